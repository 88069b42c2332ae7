package mq

import (
	"bytes"
	"errors"
	"io"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pocketmq/mq/internal/wire"
	"github.com/pocketmq/mq/transport"
)

// heapPeak watches the live heap until stop, and returns by how much it grew at
// most.
func heapPeak() (stop func() int64) {
	before := heapInUse()
	end, peak := make(chan struct{}), make(chan int64)
	go func() {
		most := int64(0)
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for {
			most = max(most, heapInUse()-before)
			select {
			case <-tick.C:
			case <-end:
				peak <- most
				return
			}
		}
	}()
	return func() int64 {
		close(end)
		return <-peak
	}
}

// A client that asks for much and reads nothing loses its connection, and what
// waits for it takes no more memory than one connection may.
func TestClientThatStopsReadingLosesItsConnection(t *testing.T) {
	atHostileSite(t, BrokerConfig{}, func(s *hostileSite) {
		p := dialBad(t, s.broker.Addr())
		body := bytes.Repeat([]byte("0123456789abcdef"), wire.MaxBodyBytes/16)
		if a := p.ask(wire.CodeSendMessage, body, sendFields("deaf")...); a.Code != 0 {
			t.Fatal(a.Code, a.Remark)
		}
		pull := jsonRequest(wire.CodePullMessage, 1, nil, pullFields("deaf")...)
		peak := heapPeak()
		var err error
		for range 2000 {
			if _, err = p.Write(pull); err != nil {
				break
			}
		}
		// What had been sent is still there to read; then the connection ends.
		n, err := io.Copy(io.Discard, p.r)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			t.Error("the connection stays open")
		}
		grown := peak()
		t.Logf("%d bytes came, memory grew by %d", n, grown)
		if n > 64<<20 {
			t.Errorf("%d bytes were kept for one connection", n)
		}
		if grown > 128<<20 {
			t.Errorf("memory grew by %d", grown)
		}
		p.quit()
	})
}

// A pull that waits must not keep more than it needs: not the body that a hostile
// client sends along, nor its long header.
func TestHeldPullsAreBoundedInBytes(t *testing.T) {
	for what, request := range map[string][]byte{
		"bodies":  jsonRequest(wire.CodePullMessage, 1, make([]byte, 1<<20), pullFields("held", "sysFlag", "6", "suspendTimeoutMillis", "20000", "queueOffset", "1")...),
		"headers": jsonRequest(wire.CodePullMessage, 1, nil, append(pullFields("held", "sysFlag", "6", "suspendTimeoutMillis", "20000", "queueOffset", "1"), "junk", strings.Repeat("x", 1<<20-1000))...),
	} {
		t.Run(what, func(t *testing.T) {
			atHostileSite(t, BrokerConfig{}, func(s *hostileSite) {
				p := dialBad(t, s.broker.Addr())
				if a := p.ask(wire.CodeSendMessage, []byte("x"), sendFields("held")...); a.Code != 0 {
					t.Fatal(a.Code, a.Remark)
				}
				before := heapInUse()
				const count = 200
				answers := make(chan int, count)
				go func() {
					for {
						a, err := p.answer()
						if err != nil {
							close(answers)
							return
						}
						answers <- a.Code
					}
				}()
				for range count {
					p.put(request)
				}
				p.put(jsonRequest(9999, 1, nil))
				refused := 0
				for code := range answers { // those that are not held, and the last
					if code == 3 {
						break
					}
					if code != int(wire.SystemBusy) {
						t.Errorf("answer %d", code)
					}
					refused++
				}
				if refused == 0 {
					t.Errorf("%d pulls of 1 MiB are held", count)
				}
				if grown := heapInUse() - before; grown > 80<<20 {
					t.Errorf("%d held pulls keep %d bytes", count-refused, grown)
				}
				p.quit()
				for range answers {
				}
			})
		})
	}
}

// floodDisk is a broker on TCP whose disk can be stopped.
func floodDisk(t *testing.T) (r *rawBroker, stop func() (release func())) {
	disk := newFaultyDisk()
	cfg := disk.config()
	cfg.Transport, cfg.Listen = transport.NewTCP(transport.TCPConfig{}), "127.0.0.1:0"
	r = startBroker(t, cfg)
	return r, func() func() {
		wait := make(chan struct{})
		disk.stall.Store(&wait)
		return sync.OnceFunc(func() {
			disk.stall.Store(nil)
			close(wait)
		})
	}
}

// flood sends count requests over each of several connections. sent closes when
// all are written; codes waits for the answers and counts their codes.
func flood(t *testing.T, addr string, peers, count int, request []byte) (sent chan struct{}, codes func() map[int]int) {
	var mu sync.Mutex
	got := make(map[int]int)
	var writers, readers sync.WaitGroup
	for range peers {
		p := dialBad(t, addr)
		writers.Go(func() {
			for range count {
				p.put(request)
			}
		})
		readers.Go(func() {
			for range count {
				a, err := p.answer()
				for err == nil && a.Flag&1 == 0 { // the broker's own request
					a, err = p.answer()
				}
				if err != nil {
					t.Errorf("a request was not answered: %v", err)
					break
				}
				mu.Lock()
				got[a.Code]++
				mu.Unlock()
			}
			p.quit()
		})
	}
	sent = make(chan struct{})
	go func() {
		writers.Wait()
		close(sent)
	}()
	return sent, func() map[int]int {
		readers.Wait()
		return got
	}
}

// More than fits is answered at once, and does not become memory.
func TestFloodOnAStuckDiskIsRefusedInBoundedMemory(t *testing.T) {
	create := []string{"topic", "made", "defaultTopic", autoCreateTopic, "readQueueNums", "1", "writeQueueNums", "1", "perm", "6",
		"topicFilterType", "SINGLE_TAG", "topicSysFlag", "0", "order", "false"}
	for what, c := range map[string]struct {
		request []byte
		count   int
	}{
		"sends":                      {jsonRequest(wire.CodeSendMessage, 1, make([]byte, 128<<10), sendFields("flood")...), 700},
		"sends with long headers":    {jsonRequest(wire.CodeSendMessage, 1, []byte("x"), append(sendFields("flood"), "junk", strings.Repeat("x", 256<<10))...), 350},
		"sends that create topics":   {jsonRequest(wire.CodeSendMessage, 1, []byte("x"), append(sendFields("new"), "junk", strings.Repeat("x", 256<<10))...), 350},
		"administration":             {jsonRequest(wire.CodeUpdateAndCreateTopic, 1, make([]byte, 1<<20), create...), 100},
		"heartbeats of new groups":   {jsonRequest(wire.CodeHeartBeat, 1, append([]byte(`{"clientID":"c","consumerDataSet":[{"groupName":"new"}]}`), bytes.Repeat([]byte(" "), 1<<20)...)), 100},
		"messages that are returned": {jsonRequest(wire.CodeConsumerSendMsgBack, 1, make([]byte, 1<<20), "offset", "0", "group", "new", "delayLevel", "3"), 100},
	} {
		t.Run(what, func(t *testing.T) {
			if testing.Short() && what != "sends" && what != "administration" {
				t.Skip("the others are alike")
			}
			goroutines, heap := runtime.NumGoroutine(), heapInUse()
			t.Run("", func(t *testing.T) {
				r, stop := floodDisk(t)
				r.createTopic("flood", 1, 6)
				r.stored(message("flood"), "before")
				release := stop()
				defer release()
				before := heapInUse()
				sent, answers := flood(t, r.Addr(), 4, c.count, c.request)
				<-sent
				grown := heapInUse() - before
				release()
				codes := answers()
				t.Logf("answers %v, memory grew by %d MiB", codes, grown>>20)
				if grown > 400<<20 { // all requests that may be unanswered, and the store's memory
					t.Errorf("memory grew by %d, %d requests of %d bytes", grown, 4*c.count, len(c.request))
				}
				for code, n := range codes {
					switch int32(code) {
					case wire.Success, wire.SystemBusy, wire.FlushDiskTimeout:
					case wire.SystemError: // what waited for a topic or group that the disk did not confirm in time
						if what == "sends" || what == "sends with long headers" {
							t.Errorf("%d answers of code %d", n, code)
						}
					default:
						t.Errorf("%d answers of code %d", n, code)
					}
				}
				for deadline := time.Now().Add(hostilePatience); ; { // it goes on by itself
					if f := r.send(message("flood"), "after"); f.Code == wire.Success {
						break
					} else if time.Now().After(deadline) {
						t.Fatalf("a send after the flood: %d %s", f.Code, f.Remark)
					}
				}
				if strings.HasPrefix(what, "sends") && what != "sends that create topics" {
					stored := len(r.queue("flood", 0)) - 2
					if stored < codes[int(wire.Success)] || stored > codes[int(wire.Success)]+codes[int(wire.FlushDiskTimeout)] {
						t.Errorf("%d messages are stored, answers %v", stored, codes)
					}
				}
			})
			settled(t, goroutines, heap)
		})
	}
}
