package mq

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/pocketmq/mq/internal/wire"
)

// BC155: many connections send bodies that carry their own check sums, and half of
// them are cut off in the middle. No body that is stored has bytes of another.
func TestBodiesOfCutConnectionsDoNotMix(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	atHostileSite(t, BrokerConfig{}, func(s *hostileSite) {
		s.raw().createTopic("mix", 1, 6)
		var peers sync.WaitGroup
		var acked atomic.Int32
		for i := range uint64(64) {
			peers.Go(func() {
				rnd := rand.New(rand.NewPCG(seed, i))
				p := dialBad(t, s.broker.Addr())
				defer p.quit()
				for n := range 20 {
					body := make([]byte, 4+rnd.IntN(12<<10))
					for j := 4; j < len(body); j++ {
						body[j] = byte(i)<<2 ^ byte(j*n)
					}
					binary.BigEndian.PutUint32(body, crc32.ChecksumIEEE(body[4:]))
					frame := jsonRequest(wire.CodeSendMessage, n, body, sendFields("mix")...)
					if i%2 == 1 && n == 10 {
						p.put(frame[:rnd.IntN(len(frame))])
						if rnd.IntN(2) == 0 {
							if err := p.Conn.(*net.TCPConn).SetLinger(0); err != nil {
								t.Error(err)
							}
						}
						return
					}
					p.put(frame)
				}
				for range 20 {
					a, err := p.answer()
					if err != nil || a.Code != 0 && a.Code != int(wire.SystemBusy) {
						t.Errorf("a whole send: %+v, %v", a, err)
						return
					}
					if a.Code == 0 {
						acked.Add(1)
					}
				}
			})
		}
		peers.Wait()
		stored := s.raw().queue("mix", 0)
		for _, m := range stored {
			if len(m.Body) < 4 || binary.BigEndian.Uint32(m.Body) != crc32.ChecksumIEEE(m.Body[4:]) || !m.Intact() {
				t.Errorf("a stored body of %d bytes has a wrong check sum", len(m.Body))
			}
		}
		if n := int(acked.Load()); len(stored) < n || n < 32 {
			t.Errorf("%d messages are stored, %d acknowledged", len(stored), n)
		}
	})
}

// A message whose body says it is compressed and is not, or becomes far too large,
// fails alone: the consumer goes on with the others, in bounded memory.
func TestBodiesThatCannotBeDecompressedFailAlone(t *testing.T) {
	bomb, flags, err := wire.Compress(make([]byte, 64<<20), wire.SysCompressionZlib)
	if err != nil {
		t.Fatal(err)
	}
	inner := bytes.Repeat([]byte("x"), 1<<20)
	atHostileSite(t, BrokerConfig{}, func(s *hostileSite) {
		p := dialBad(t, s.broker.Addr())
		defer p.quit()
		for what, c := range map[string]struct {
			body []byte
			flag int32
		}{
			"a bomb": {bomb, flags}, "no zlib": {inner, wire.SysCompressed}, "an unknown kind": {inner, wire.SysCompressed | wire.SysCompressionMask},
			"no zstd": {inner, wire.SysCompressed | wire.SysCompressionZstd}, "no lz4": {inner, wire.SysCompressed | wire.SysCompressionLZ4},
		} {
			// Where the bystander is.
			if a := p.ask(wire.CodeSendMessage, c.body, sendFields("bystander", "sysFlag", fmt.Sprint(c.flag))...); a.Code != 0 {
				t.Errorf("%s: %d %s", what, a.Code, a.Remark)
			}
		}
		before := s.bystander.received()
		peak := heapPeak()
		for s.bystander.received() < before+20 {
			<-s.bystander.arrive
		}
		if grown := peak(); grown > 128<<20 {
			t.Errorf("memory grew by %d", grown)
		}
	})
}

func (b *bystander) received() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.got)
}
