package mq

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/pocketmq/mq/internal/wire"
	"github.com/pocketmq/mq/storage"
	"github.com/pocketmq/mq/transport"
)

// A start that cannot succeed says why, and leaves neither goroutines nor a lock.
func TestStartThatCannotSucceedSaysWhy(t *testing.T) {
	tcp := transport.NewTCP(transport.TCPConfig{})
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, []byte("not a directory"), 0o600); err != nil {
		t.Fatal(err)
	}
	data := filepath.Join(dir, "data")
	for what, c := range map[string]struct {
		cfg  BrokerConfig
		want string
	}{
		"a directory that is a file":    {BrokerConfig{Dir: file}, "file"},
		"a directory below a file":      {BrokerConfig{Dir: filepath.Join(file, "data")}, "file"},
		"an address that is taken":      {BrokerConfig{Dir: data, Listen: taken.Addr().String()}, taken.Addr().String()},
		"an address of another machine": {BrokerConfig{Dir: data, Listen: "192.0.2.1:0"}, "192.0.2.1:0"},
	} {
		t.Run(what, func(t *testing.T) {
			c.cfg.Transport = tcp
			if c.cfg.Listen == "" {
				c.cfg.Listen = "127.0.0.1:0"
			}
			goroutines, heap := runtime.NumGoroutine(), heapInUse()
			for range 20 {
				b, err := NewBroker(c.cfg)
				if err != nil {
					t.Fatal(err)
				}
				if err := b.Start(t.Context()); err == nil || !strings.Contains(err.Error(), c.want) {
					t.Errorf("start: %v", err)
				}
				if err := b.Close(); err != nil {
					t.Error(err)
				}
			}
			settled(t, goroutines, heap)
		})
	}
	r := startBroker(t, BrokerConfig{Transport: tcp, Listen: "127.0.0.1:0", Dir: data}) // nobody holds it
	r.stored(message("t"), "x")
	content, err := os.ReadFile(file)
	if err != nil || string(content) != "not a directory" {
		t.Errorf("the file has become %q, %v", content, err)
	}
}

// Closing a broker in the middle of a flood answers or fails every send, and what
// was acknowledged is there afterwards.
func TestCloseDuringAFlood(t *testing.T) {
	net, dir := transport.NewTCP(transport.TCPConfig{}), t.TempDir()
	goroutines, heap := runtime.NumGoroutine(), heapInUse()
	acked := make(map[string]bool)
	func() {
		ns, err := NewNameServer(NameServerConfig{Transport: net, Listen: "127.0.0.1:0"})
		if err != nil {
			t.Fatal(err)
		}
		if err := ns.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		defer ns.Close()
		b, err := NewBroker(BrokerConfig{Transport: net, Listen: "127.0.0.1:0", NameServers: []string{ns.Addr()}, Dir: dir})
		if err != nil {
			t.Fatal(err)
		}
		if err := b.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		p, err := NewProducer(ProducerConfig{Transport: net, NameServers: []string{ns.Addr()}, Group: "p", Retries: -1})
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		var mu sync.Mutex
		var open atomic.Int64
		enough := make(chan struct{})
		var senders sync.WaitGroup
		for g := range 4 {
			senders.Go(func() {
				for i := 0; ; i++ {
					body := fmt.Sprintf("%d-%d", g, i)
					open.Add(1)
					err := p.SendAsync(context.Background(), &Message{Topic: "flood", Body: []byte(body)}, func(res *SendResult, err error) {
						open.Add(-1)
						if err != nil {
							return
						}
						mu.Lock()
						defer mu.Unlock()
						if acked[body] = true; len(acked) == 2000 {
							close(enough)
						}
					})
					if err != nil { // the producer is closed
						open.Add(-1)
						if !errors.Is(err, ErrClosed) && b.Addr() != "" {
							t.Errorf("send: %v", err)
						}
						if errors.Is(err, ErrClosed) {
							return
						}
					}
				}
			})
		}
		<-enough
		closed := make(chan error)
		for range 2 {
			go func() { closed <- b.Close() }()
		}
		for range 2 {
			if err := <-closed; err != nil {
				t.Error(err)
			}
		}
		if err := p.Close(); err != nil {
			t.Error(err)
		}
		senders.Wait()
		if n := open.Load(); n != 0 {
			t.Errorf("%d sends have no outcome", n)
		}
	}()
	settled(t, goroutines, heap)
	r := startBroker(t, BrokerConfig{Dir: dir})
	stored := make(map[string]int)
	for _, m := range r.messages("flood") {
		stored[string(m.Body)]++
	}
	for body := range acked {
		if stored[body] != 1 {
			t.Errorf("acknowledged %s is stored %d times", body, stored[body])
		}
	}
}

// BC146: a name server that is restarted in place knows nothing, until the brokers
// come back at once; senders, old and new, do not notice.
func TestNameServerRestartedInPlaceIsNotNoticed(t *testing.T) {
	inBubbles(t, func(t *testing.T, c *testCluster) {
		old, in := c.producer(ProducerConfig{}), newInbox()
		c.sendMany(old, "orders", 0, 1)
		c.consume(ConsumerConfig{}, "orders", Filter{}, in.listen)
		sent := 1
		for round := range 5 {
			addr := c.ns.Addr()
			c.ns.Close()
			if round%2 == 1 {
				time.Sleep(time.Duration(round) * 7 * time.Second) // away for a while
			}
			ns, err := NewNameServer(NameServerConfig{Transport: c.net, Listen: addr})
			if err != nil {
				t.Fatal(err)
			}
			if err := ns.Start(t.Context()); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { ns.Close() })
			c.ns = ns
			for range 600 {
				c.sendMany(old, "orders", sent, 1)
				sent++
				time.Sleep(100 * time.Millisecond)
			}
			fresh := c.producer(ProducerConfig{Group: "fresh"})
			c.sendMany(fresh, "orders", sent, 1)
			sent++
			fresh.Close()
		}
		in.wait(t, sent, time.Minute)
	})
}

// Sends to a broker that hangs end when their time is over; a full window holds
// the sender no longer than that, and closing does not wait.
func TestHangingBrokerHoldsNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := transport.NewMemory(transport.MemoryConfig{})
		c := &testCluster{t: t, net: net, ns: startNameServer(t, net, NameServerConfig{})}
		c.startBroker(BrokerConfig{Name: "a", Transport: net.Host("10.0.0.2"), Listen: "10.0.0.2:0"})
		p := c.producer(ProducerConfig{AsyncWindow: 4})
		c.sendMany(p, "orders", 0, 1)
		net.Partition("10.0.0.2", "127.0.0.1")
		var outcomes atomic.Int32
		for i := range 12 {
			begun := time.Now()
			err := p.SendAsync(t.Context(), &Message{Topic: "orders", Body: []byte("x")}, func(_ *SendResult, err error) {
				outcomes.Add(1)
				if !errors.Is(err, ErrTimeout) && !errors.Is(err, ErrClosed) {
					t.Errorf("send: %v", err)
				}
			})
			if err != nil {
				outcomes.Add(1)
				if !errors.Is(err, ErrTooManyInFlight) && !errors.Is(err, ErrTimeout) {
					t.Errorf("send %d: %v", i, err)
				}
			}
			if took := time.Since(begun); took > 4*time.Second {
				t.Errorf("send %d held its caller for %v", i, took)
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		begun := time.Now()
		if _, err := p.Send(ctx, &Message{Topic: "orders", Body: []byte("x")}); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a send of 100 ms: %v", err)
		}
		if took := time.Since(begun); took > 200*time.Millisecond {
			t.Errorf("a send of 100 ms took %v", took)
		}
		begun = time.Now()
		if err := p.Close(); err != nil {
			t.Error(err)
		}
		if took := time.Since(begun); took > 5*time.Second {
			t.Errorf("closing took %v", took)
		}
		if n := outcomes.Load(); n != 12 {
			t.Errorf("%d of 12 sends have an outcome", n)
		}
		net.Heal("10.0.0.2", "127.0.0.1")
	})
}

// Ten thousand topics are as good as ten: they are made, told to name servers,
// found again after a restart, and each takes messages.
func TestManyTopics(t *testing.T) {
	topics := 10_000
	if testing.Short() {
		topics = 1000
	}
	fs := vfs.NewMem()
	cfg := BrokerConfig{Dir: "data", storage: func(o *storage.Options) { o.FS = fs }}
	c := newTestCluster(t, transport.MemoryConfig{Encoding: transport.EncodeRocketMQ}, cfg)
	r := &rawBroker{Broker: c.broker, t: t, net: c.net, version: protocolVersion}
	r.conn = r.dial()
	var all sync.WaitGroup
	begun := time.Now()
	for i := range topics {
		all.Add(1)
		if err := r.conn.Go(t.Context(), &transport.Frame{Code: wire.CodeSendMessage, Header: message(itemName("many-", i)), Body: []byte("x")},
			time.Now().Add(5*time.Minute), func(f *transport.Frame, err error) {
				defer all.Done()
				if err != nil || f.Code != wire.Success {
					t.Errorf("send: %+v, %v", f, err)
				}
			}); err != nil {
			t.Fatal(err)
		}
	}
	all.Wait()
	t.Logf("%d topics made in %v", topics, time.Since(begun))
	if err := c.broker.Close(); err != nil {
		t.Fatal(err)
	}
	begun = time.Now()
	c.broker = c.startBroker(cfg)
	t.Logf("started again with them in %v", time.Since(begun))
	p := c.producer(ProducerConfig{})
	for _, i := range []int{0, topics / 2, topics - 1} {
		if res := c.send(p, &Message{Topic: itemName("many-", i), Body: []byte("y")}); res.Offset > 1 {
			t.Errorf("topic %d: offset %d", i, res.Offset)
		}
	}
	if n := len(c.broker.topics.all()); n < topics {
		t.Errorf("%d topics of %d", n, topics)
	}
}
