package mq

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pocketmq/mq/internal/wire"
	"github.com/pocketmq/mq/transport"
)

func TestBrokerConfigReportsAllFaultsTogether(t *testing.T) {
	_, err := NewBroker(BrokerConfig{NameServers: []string{"nowhere"}, Listen: "x", Advertise: "host", Name: "a b", Cluster: "c/d", ID: 3,
		Flush: 9, DefaultQueues: -1, MaxMessageSize: 1 << 30})
	if err == nil {
		t.Fatal("accepted")
	}
	for _, field := range []string{"nowhere", "Listen", "Advertise", "Name", "Cluster", "ID", "Flush", "DefaultQueues", "MaxMessageSize"} {
		if !strings.Contains(err.Error(), field) {
			t.Errorf("%s is not in: %v", field, err)
		}
	}
}

func TestBrokerConfigDefaults(t *testing.T) {
	c, err := BrokerConfig{NameServers: []string{"a:1;b:2,c:3", "d:4"}, RegisterInterval: time.Second}.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	if strings.Join(c.NameServers, " ") != "a:1 b:2 c:3 d:4" {
		t.Errorf("name servers %v", c.NameServers)
	}
	if c.Listen != "127.0.0.1:10911" || c.Cluster != defaultCluster || c.DefaultQueues != 8 || c.MaxMessageSize != 4<<20 ||
		c.MemoryLimit != 256<<20 || c.Flush != SyncFlush || c.RegisterInterval != 10*time.Second {
		t.Errorf("defaults %+v", c)
	}
	if d := clampRegisterInterval(time.Hour); d != time.Minute {
		t.Errorf("an hour becomes %v", d)
	}
}

func TestNameAndAddressAreKnownAfterStart(t *testing.T) {
	net := transport.NewMemory(transport.MemoryConfig{})
	b, err := NewBroker(BrokerConfig{Transport: net, Listen: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	if b.Addr() != "" || b.Name() != "" {
		t.Fatalf("before: %q %q", b.Addr(), b.Name())
	}
	if err := b.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	_, port, _ := strings.Cut(b.Addr(), ":")
	if port == "0" || port == "" || b.Name() != "broker-"+port {
		t.Fatalf("after: %q %q", b.Addr(), b.Name())
	}
	if err := b.Start(t.Context()); err == nil {
		t.Fatal("a second start succeeded")
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	if err := b.Start(t.Context()); !errors.Is(err, ErrClosed) {
		t.Fatalf("start after close: %v", err)
	}
}

func TestAdvertisedAddressIsInIDsAndRoutes(t *testing.T) {
	for text, want := range map[string]string{"10.1.2.3": "10.1.2.3:10911", "10.1.2.3:7000": "10.1.2.3:7000", "2001:db8::1": "[2001:db8::1]:10911"} {
		net := transport.NewMemory(transport.MemoryConfig{})
		b, err := NewBroker(BrokerConfig{Transport: net, Advertise: text})
		if err != nil {
			t.Fatal(err)
		}
		if err := b.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		r := &rawBroker{Broker: b, t: t, net: net, version: protocolVersion}
		if r.conn, err = net.Dial(t.Context(), "127.0.0.1:10911", nil); err != nil {
			t.Fatal(err)
		}
		if b.Addr() != want {
			t.Errorf("%s: address %s, want %s", text, b.Addr(), want)
		}
		res := r.stored(message("t"), "x")
		if host, _, err := wire.ParseOffsetMessageID(res.MsgID); err != nil || host.String() != want {
			t.Errorf("%s: message id %s of %v (%v)", text, res.MsgID, host, err)
		}
		if m := r.queue("t", 0); len(m) != 1 || m[0].StoreHost.String() != want {
			t.Errorf("%s: stored %+v", text, m)
		}
		r.end()
	}
}

func TestCloseAtAnyTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := transport.NewMemory(transport.MemoryConfig{})
		made := func() *Broker {
			b, err := NewBroker(BrokerConfig{Transport: net, NameServers: []string{nsA}})
			if err != nil {
				t.Fatal(err)
			}
			return b
		}
		closeTwice := func(b *Broker) {
			for range 2 {
				if err := b.Close(); err != nil {
					t.Error(err)
				}
			}
		}
		closeTwice(made()) // never started

		// During a start that waits for a name server.
		net.Partition("127.0.0.1", "127.0.0.1")
		b := made()
		started := make(chan error)
		go func() { started <- b.Start(t.Context()) }()
		synctest.Wait()
		closeTwice(b)
		if err := <-started; !errors.Is(err, ErrClosed) && !errors.Is(err, context.Canceled) {
			t.Fatalf("start while closing: %v", err)
		}
		net.Heal("127.0.0.1", "127.0.0.1")

		// Under load, from several goroutines.
		b = made()
		if err := b.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		c, err := net.Dial(t.Context(), b.Addr(), nil)
		if err != nil {
			t.Fatal(err)
		}
		var sends, closes sync.WaitGroup
		for i := range 200 {
			sends.Add(1)
			if err := c.Go(t.Context(), &transport.Frame{Code: wire.CodeSendMessage, Header: message(itemName("t", i%5)), Body: []byte("x")},
				time.Now().Add(time.Minute), func(*transport.Frame, error) { sends.Done() }); err != nil {
				t.Fatal(err)
			}
		}
		for range 3 {
			closes.Go(func() { closeTwice(b) })
		}
		closes.Wait()
		sends.Wait()
	})
}

func TestFailedStartLeavesNothing(t *testing.T) {
	net := transport.NewMemory(transport.MemoryConfig{})
	holder := startBroker(t, BrokerConfig{Transport: net})
	dir := t.TempDir()
	fail := func() {
		b, err := NewBroker(BrokerConfig{Transport: net, Dir: dir}) // the address is taken
		if err != nil {
			t.Fatal(err)
		}
		if err := b.Start(t.Context()); err == nil {
			t.Fatal("two brokers at one address")
		}
		if err := b.Close(); err != nil {
			t.Fatal(err)
		}
	}
	fail()
	before := runtime.NumGoroutine()
	for range 10 {
		fail()
	}
	for deadline := time.Now().Add(5 * time.Second); runtime.NumGoroutine() > before && time.Now().Before(deadline); {
		runtime.Gosched()
	}
	if after := runtime.NumGoroutine(); after > before {
		t.Fatalf("%d goroutines, %d before", after, before)
	}
	holder.stored(message("t"), "x")
	// The directory is free.
	b := startBroker(t, BrokerConfig{Dir: dir})
	b.stored(message("t"), "x")
}

func TestDirectoryOfALiveBrokerIsRefused(t *testing.T) {
	dir := t.TempDir()
	startBroker(t, BrokerConfig{Dir: dir})
	b, err := NewBroker(BrokerConfig{Dir: dir, Transport: transport.NewMemory(transport.MemoryConfig{})})
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Start(t.Context()); err == nil || !strings.Contains(err.Error(), "in use") {
		t.Fatalf("second start: %v", err)
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestShutdownAnswersWhatWasTaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := startBroker(t, BrokerConfig{})
		r.createTopic("t", 1, 6)
		unlock, err := r.topics.lock(t.Context(), "new")
		if err != nil {
			t.Fatal(err)
		}
		answers := make(chan int32, 2)
		send := func(topic string) {
			if err := r.conn.Go(t.Context(), &transport.Frame{Code: wire.CodeSendMessage, Header: message(topic), Body: []byte("x")},
				time.Now().Add(time.Minute), func(f *transport.Frame, err error) {
					if err != nil {
						t.Errorf("send to %s: %v", topic, err)
						f = &transport.Frame{Code: -1}
					}
					answers <- f.Code
				}); err != nil {
				t.Error(err)
			}
		}
		send("new") // taken, waits for its topic
		synctest.Wait()
		done := make(chan error)
		go func() { done <- r.Shutdown(t.Context()) }()
		synctest.Wait()
		send("t")
		if code := <-answers; code != wire.ServiceNotAvailable {
			t.Fatalf("send during shutdown: answer %d", code)
		}
		unlock()
		if code := <-answers; code != wire.Success {
			t.Fatalf("send that was taken: answer %d", code)
		}
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	})
}

func TestShutdownEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := startBroker(t, BrokerConfig{})
		unlock, err := r.topics.lock(t.Context(), "new")
		if err != nil {
			t.Fatal(err)
		}
		defer unlock()
		if err := r.conn.Go(t.Context(), &transport.Frame{Code: wire.CodeSendMessage, Header: message("new"), Body: []byte("x")},
			time.Now().Add(time.Minute), func(*transport.Frame, error) {}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := r.Shutdown(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("shutdown: %v", err)
		}
		r.goneFrom("127.0.0.1:10911")
	})
}

func (r *rawBroker) goneFrom(addr string) {
	r.t.Helper()
	if _, err := r.net.Dial(context.Background(), addr, nil); err == nil {
		r.t.Fatal("still listening")
	}
}

func TestManyStartsAndCloses(t *testing.T) {
	net := transport.NewMemory(transport.MemoryConfig{})
	var before int
	for i := range 30 {
		b, err := NewBroker(BrokerConfig{Transport: net})
		if err != nil {
			t.Fatal(err)
		}
		if err := b.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := b.Close(); err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			before = runtime.NumGoroutine()
		}
	}
	for deadline := time.Now().Add(5 * time.Second); runtime.NumGoroutine() > before && time.Now().Before(deadline); {
		runtime.Gosched()
	}
	if after := runtime.NumGoroutine(); after > before {
		t.Fatalf("%d goroutines, %d before", after, before)
	}
}

func TestRequestsBeforeTheBrokerIsReadyAreRefused(t *testing.T) {
	r := startBroker(t, BrokerConfig{})
	r.ready.Store(false)
	r.refusedWith(wire.ServiceNotAvailable, r.send(message("t"), "x"), "starting or shutting down")
	if f := r.call(wire.CodeGetBrokerConfig, nil, nil); f.Code != wire.ServiceNotAvailable {
		t.Fatalf("answer %d", f.Code)
	}
	r.ready.Store(true)
	r.stored(message("t"), "x")
}
