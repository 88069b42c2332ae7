package transport_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"hash/crc32"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pocketmq/mq/transport"
)

// lockedBuffer is a log that several goroutines write.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func rawDial(t *testing.T, addr string) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	if err := c.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	return c
}

// closedByPeer reads until the other side has closed.
func closedByPeer(t *testing.T, c net.Conn) {
	t.Helper()
	if _, err := io.Copy(io.Discard, c); errors.Is(err, context.DeadlineExceeded) || isTimeout(err) {
		t.Error("the connection was not closed")
	}
}

func isTimeout(err error) bool {
	var n net.Error
	return errors.As(err, &n) && n.Timeout()
}

func javaFrame(header string, body string) []byte {
	b := binary.BigEndian.AppendUint32(nil, uint32(4+len(header)+len(body)))
	b = binary.BigEndian.AppendUint32(b, uint32(len(header)))
	return append(append(b, header...), body...)
}

func readFrame(t *testing.T, c net.Conn) (header, body string) {
	t.Helper()
	var prefix [8]byte
	if _, err := io.ReadFull(c, prefix[:]); err != nil {
		t.Fatal(err)
	}
	rest := make([]byte, binary.BigEndian.Uint32(prefix[:])-4)
	if _, err := io.ReadFull(c, rest); err != nil {
		t.Fatal(err)
	}
	n := binary.BigEndian.Uint32(prefix[4:]) & 0xffffff
	return string(rest[:n]), string(rest[n:])
}

func TestForeignPeersNeverSeeTheUpgrade(t *testing.T) {
	tr := transport.NewTCP(transport.TCPConfig{})
	l := listen(t, tr, suite(nil))
	c := rawDial(t, l.Addr())
	for range 2 { // requests back to back in one packet, written in Java's way
		one := javaFrame(`{"code":10,"extFields":{"topic":"T"},"flag":0,"language":"JAVA","opaque":7,"serializeTypeCurrentRPC":"JSON","version":409}`, "b")
		if _, err := c.Write(append(one, one...)); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			want := `{"code":0,"extFields":{"topic":"T"},"flag":1,"language":"GO","opaque":7,"serializeTypeCurrentRPC":"JSON","version":409}`
			if h, body := readFrame(t, c); h != want || body != "b" {
				t.Errorf("answered %s %q", h, body)
			}
		}
	}
	binary, err := hex.DecodeString("000000240100001d000a09013d000000090000000000000000000000080001610000000131010203")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Write(binary); err != nil {
		t.Fatal(err)
	}
	if h, body := readFrame(t, c); !strings.HasPrefix(h, "\x00\x00\x09\x01\x99\x00\x00\x00\x09\x00\x00\x00\x01") || body != "\x01\x02\x03" {
		t.Errorf("a binary request was answered %q %q", h, body)
	}
}

func TestAPeerThatAsksMayUseMsgPack(t *testing.T) {
	tr := transport.NewTCP(transport.TCPConfig{})
	l := listen(t, tr, suite(nil))
	packed := append([]byte{0, 0, 0, 12, 2, 0, 0, 8}, 0x97, 10, 9, 1, 5, 0, 0xa0, 0xa0)
	eager := rawDial(t, l.Addr())
	if _, err := eager.Write(packed); err != nil {
		t.Fatal(err)
	}
	closedByPeer(t, eager)
	c := rawDial(t, l.Addr())
	if _, err := c.Write(javaFrame(`{"code":999,"extFields":{"pmq":"1"},"opaque":1}`, "")); err != nil {
		t.Fatal(err)
	}
	if h, _ := readFrame(t, c); !strings.Contains(h, `"extFields":{"pmq":"1"}`) {
		t.Errorf("consent is missing: %s", h)
	}
	if _, err := c.Write(packed); err != nil {
		t.Fatal(err)
	}
	if h, _ := readFrame(t, c); h[0] != 0x97 {
		t.Errorf("answered %q", h)
	}
}

func TestOursAsksOnceAndHonoursTheAnswer(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	tr := transport.NewTCP(transport.TCPConfig{})
	headers := make(chan string, 10)
	var consents atomic.Bool
	go func() { // a foreign server that answers everything, with consent when told
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			for opaque := 1; ; opaque++ {
				var prefix [8]byte
				if _, err := io.ReadFull(c, prefix[:]); err != nil {
					break
				}
				rest := make([]byte, binary.BigEndian.Uint32(prefix[:])-4)
				if _, err := io.ReadFull(c, rest); err != nil {
					break
				}
				headers <- string(prefix[4]) + string(rest)
				consent := ""
				if consents.Load() {
					consent = `,"extFields":{"pmq":"1"}`
				}
				if _, err := c.Write(javaFrame(`{"flag":1,"opaque":`+string(rune('0'+opaque))+consent+`}`, "")); err != nil {
					break
				}
			}
			c.Close()
		}
	}()
	for _, agrees := range []bool{false, true, false} {
		consents.Store(agrees)
		c := dial(t, tr, ln.Addr().String(), nil)
		for i := range 3 {
			call(t, c, &transport.Frame{Code: 105, Fields: []string{"topic", "T"}})
			h := <-headers
			if asks := strings.Contains(h, `"pmq":"1"`); asks != (i == 0) {
				t.Errorf("consent %v, request %d: asks is %v", agrees, i, asks)
			}
			want := transport.JSON
			if agrees && i > 0 {
				want = transport.MsgPack
			}
			if got := transport.Codec(h[0]); got != want {
				t.Errorf("consent %v, request %d: came as %v", agrees, i, got)
			}
		}
		c.Close()
		signed := dial(t, tr, ln.Addr().String(), nil)
		call(t, signed, &transport.Frame{Code: 105, Fields: []string{"Signature", "x"}})
		if h := <-headers; strings.Contains(h, "pmq") {
			t.Errorf("a signed request was changed: %s", h)
		}
		signed.Close()
	}
}

func TestMalformedFrameClosesOnlyItsConnection(t *testing.T) {
	log := new(lockedBuffer)
	tr := transport.NewTCP(transport.TCPConfig{Logger: slog.New(slog.NewTextHandler(log, nil))})
	l := listen(t, tr, suite(nil))
	good := dial(t, tr, l.Addr(), nil)
	call(t, good, &transport.Frame{Code: codeEcho})
	for _, bad := range []string{"\x7f\xff\xff\xff\x00\x00\x00\x00", "\x00\x00\x00\x05\x09\x00\x00\x01x", "GET / HTTP/1.1\r\n\r\n",
		"\x00\x00\x00\x05\x00\x00\x00\x01{"} {
		c := rawDial(t, l.Addr())
		if _, err := c.Write([]byte(bad)); err != nil {
			t.Fatal(err)
		}
		closedByPeer(t, c)
	}
	call(t, good, &transport.Frame{Code: codeEcho})
	if n := strings.Count(log.String(), "level=WARN"); n != 1 {
		t.Errorf("%d lines in the log:\n%s", n, log.String())
	}
}

func TestRandomBytesDoNoHarm(t *testing.T) {
	tr := transport.NewTCP(transport.TCPConfig{MaxFrame: 1 << 20})
	l := listen(t, tr, suite(nil))
	random := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		c := rawDial(t, l.Addr())
		b := make([]byte, random.IntN(4000))
		for i := range b {
			b[i] = byte(random.Uint32())
		}
		if random.IntN(2) == 0 && len(b) > 8 {
			binary.BigEndian.PutUint32(b, uint32(random.IntN(len(b))))
			binary.BigEndian.PutUint32(b[4:], uint32(random.IntN(3))<<24|uint32(random.IntN(64)))
		}
		c.Write(b) // the peer may have hung up at any byte
		c.Close()
	}
	call(t, dial(t, tr, l.Addr(), nil), &transport.Frame{Code: codeEcho})
}

func TestAnnouncedLengthPinsLittleMemory(t *testing.T) {
	tr := transport.NewTCP(transport.TCPConfig{})
	l := listen(t, tr, suite(nil))
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	const n = 50
	for range n {
		c := rawDial(t, l.Addr())
		if _, err := c.Write([]byte("\x00\xff\xff\xf0\x00\x00\x00\x02{}x")); err != nil {
			t.Fatal(err)
		}
	}
	// A later connection's answer does not prove that the others were read; their
	// first allocation is all they ever make, so looking early only helps them.
	call(t, dial(t, tr, l.Addr(), nil), &transport.Frame{Code: codeEcho})
	runtime.GC()
	runtime.ReadMemStats(&after)
	if grown := int64(after.HeapAlloc) - int64(before.HeapAlloc); grown > n<<20 {
		t.Errorf("%d announcements of 16 MiB pinned %d bytes", n, grown)
	}
}

func TestBodiesSurviveCutConnections(t *testing.T) {
	tr := transport.NewTCP(transport.TCPConfig{})
	var wrong, right atomic.Int64
	table := &transport.Table{}
	table.Handle(1, nil, func(_ context.Context, _ transport.Conn, req *transport.Frame, reply func(*transport.Frame)) {
		sum := crc32.ChecksumIEEE(req.Body[4:])
		if binary.BigEndian.Uint32(req.Body) != sum {
			wrong.Add(1)
		}
		right.Add(1)
		reply(&transport.Frame{Body: req.Body})
	})
	l := listen(t, tr, table)
	var all sync.WaitGroup
	for i := range 64 {
		all.Go(func() {
			random := rand.New(rand.NewPCG(uint64(i), 7))
			c, err := net.Dial("tcp", l.Addr())
			if err != nil {
				t.Error(err)
				return
			}
			defer c.Close()
			go io.Copy(io.Discard, c)
			for k := range 30 {
				body := make([]byte, 4+random.IntN(20000))
				for j := range body {
					body[j] = byte(random.Uint32())
				}
				binary.BigEndian.PutUint32(body, crc32.ChecksumIEEE(body[4:]))
				frame := javaFrame(`{"code":1}`, string(body))
				if i%2 == 0 && k == 20 {
					frame = frame[:random.IntN(len(frame))]
				}
				if _, err := c.Write(frame); err != nil {
					t.Error(err)
					return
				}
				if i%2 == 0 && k == 20 {
					return
				}
			}
		})
	}
	all.Wait()
	if wrong.Load() > 0 {
		t.Errorf("%d of %d bodies were damaged", wrong.Load(), right.Load())
	}
}

// These two need real time, more of it than a busy machine takes for a round trip.

func TestIdleConnectionsClose(t *testing.T) {
	t.Parallel()
	tr := transport.NewTCP(transport.TCPConfig{IdleTimeout: 700 * time.Millisecond})
	l := listen(t, tr, suite(nil))
	silent := rawDial(t, l.Addr())
	c := dial(t, transport.NewTCP(transport.TCPConfig{}), l.Addr(), nil)
	for start := time.Now(); time.Since(start) < 1500*time.Millisecond; {
		call(t, c, &transport.Frame{Code: codeEcho}) // traffic keeps it open
	}
	closedByPeer(t, silent)
	wait(t, c.Done(), "the idle connection to close")
}

func TestWritesAloneKeepAConnectionOpen(t *testing.T) {
	server, client := serverTLS(t, "127.0.0.1", time.Now().Add(time.Hour))
	for name, cfg := range map[string]transport.TCPConfig{"plain": {}, "tls": {Client: client}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg.IdleTimeout = 700 * time.Millisecond
			seen := make(chan struct{}, 1)
			table := suite(nil)
			table.Handle(1, nil, func(context.Context, transport.Conn, *transport.Frame, func(*transport.Frame)) { seen <- struct{}{} })
			c := dial(t, transport.NewTCP(cfg), listen(t, transport.NewTCP(transport.TCPConfig{Server: server}), table).Addr(), nil)
			for start := time.Now(); time.Since(start) < 1500*time.Millisecond; {
				if err := c.Send(&transport.Frame{Code: 1}); err != nil {
					t.Fatal(err)
				}
				wait(t, seen, "a one-way request")
			}
			call(t, c, &transport.Frame{Code: codeEcho})
		})
	}
}

func TestTooManyConnectionsAreClosed(t *testing.T) {
	tr := transport.NewTCP(transport.TCPConfig{MaxConns: 2})
	l := listen(t, tr, suite(nil))
	first := dial(t, tr, l.Addr(), nil)
	call(t, first, &transport.Frame{Code: codeEcho})
	call(t, dial(t, tr, l.Addr(), nil), &transport.Frame{Code: codeEcho})
	closedByPeer(t, rawDial(t, l.Addr()))
	call(t, first, &transport.Frame{Code: codeEcho})
}

func TestPeerThatStopsReadingIsCutOff(t *testing.T) {
	tr := transport.NewTCP(transport.TCPConfig{WriteTimeout: 200 * time.Millisecond})
	ended := make(chan struct{})
	table := &transport.Table{Closed: func(transport.Conn) { close(ended) }}
	table.Handle(1, nil, func(_ context.Context, _ transport.Conn, _ *transport.Frame, reply func(*transport.Frame)) {
		reply(&transport.Frame{Body: make([]byte, 4<<20)})
	})
	l := listen(t, tr, table)
	c := rawDial(t, l.Addr())
	for range 3 { // 12 MiB of answers: below the queue's limit, above the socket's
		if _, err := c.Write(javaFrame(`{"code":1}`, "")); err != nil {
			t.Fatal(err)
		}
	}
	wait(t, ended, "the write time-out")
}

func TestNoGoroutineIsLeft(t *testing.T) {
	before := runtime.NumGoroutine()
	tr := transport.NewTCP(transport.TCPConfig{})
	l, err := tr.Listen(t.Context(), "127.0.0.1:0", suite(nil))
	if err != nil {
		t.Fatal(err)
	}
	var conns []transport.Conn
	for range 20 {
		c, err := tr.Dial(t.Context(), l.Addr(), nil)
		if err != nil {
			t.Fatal(err)
		}
		call(t, c, &transport.Frame{Code: codeEcho})
		conns = append(conns, c)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	for _, c := range conns {
		wait(t, transport.Over(c), "a connection's end")
	}
	// The last goroutines are past their last statement, but may not have left.
	for until := time.Now().Add(10 * time.Second); time.Now().Before(until); {
		if runtime.NumGoroutine() <= before {
			return
		}
		runtime.Gosched()
	}
	stacks := make([]byte, 1<<16)
	t.Errorf("%d goroutines before, %d after\n%s", before, runtime.NumGoroutine(), stacks[:runtime.Stack(stacks, true)])
}
