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

	"github.com/pocketmq/mq/transport"
)

// component is what all four have in common.
type component interface {
	Start(context.Context) error
	Close() error
}

// A componentMaker makes one of each, all on one network.
type componentMaker struct {
	t    *testing.T
	net  *transport.Memory
	name string // the name server's address
}

func (m componentMaker) nameServer() *NameServer {
	n, err := NewNameServer(NameServerConfig{Transport: m.net, Listen: m.name})
	must(m.t, err)
	return n
}

func (m componentMaker) broker() *Broker {
	b, err := NewBroker(BrokerConfig{Transport: m.net, Listen: "127.0.0.1:10911", NameServers: []string{m.name}})
	must(m.t, err)
	return b
}

func (m componentMaker) producer() *Producer {
	p, err := NewProducer(ProducerConfig{Transport: m.net, NameServers: []string{m.name}, Group: "p"})
	must(m.t, err)
	return p
}

func (m componentMaker) consumer(ordered bool, listen Listener) *Consumer {
	c, err := NewConsumer(ConsumerConfig{Transport: m.net, NameServers: []string{m.name}, Group: "c", Start: FromFirst, Ordered: ordered})
	must(m.t, err)
	must(m.t, c.Subscribe("t", Filter{}, listen))
	return c
}

// round starts a cluster, sends a message, receives it, and closes all, twice.
func (m componentMaker) round(ordered bool) {
	got := make(chan struct{}, 1)
	producer := m.producer()
	all := []component{m.nameServer(), m.broker(), producer, m.consumer(ordered, func(context.Context, *Delivery) error {
		got <- struct{}{}
		return nil
	})}
	for _, c := range all {
		must(m.t, c.Start(m.t.Context()))
		if c == component(producer) { // the topic is there before the consumer
			_, err := producer.Send(m.t.Context(), &Message{Topic: "t", Body: []byte("x")})
			must(m.t, err)
		}
	}
	<-got
	for range 2 {
		for i := len(all) - 1; i >= 0; i-- {
			must(m.t, all[i].Close())
		}
	}
}

// failures has every component fail to start: servers whose address is taken,
// clients with nobody to ask.
func (m componentMaker) failures() {
	for _, addr := range []string{m.name, "127.0.0.1:10911"} {
		holder, err := m.net.Listen(m.t.Context(), addr, &transport.Table{})
		must(m.t, err)
		defer holder.Close()
	}
	// Dials get through, answers never come.
	stop := m.net.Drop("127.0.0.1", "127.0.0.1", func(*transport.Frame) bool { return true })
	defer stop()
	for _, c := range []component{m.nameServer(), m.broker(), m.producer(), m.consumer(false, newInbox().listen), m.consumer(true, newInbox().listen)} {
		ctx, cancel := context.WithTimeout(m.t.Context(), time.Millisecond)
		if err := c.Start(ctx); err == nil {
			m.t.Errorf("%T starts though it cannot", c)
		}
		cancel()
		must(m.t, c.Close())
	}
}

// standing is what a process holds: goroutines, and bytes in the heap.
func standing() (goroutines int, heap uint64) {
	var s runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&s)
	return runtime.NumGoroutine(), s.HeapAlloc
}

// wantGoroutines waits for goroutines that have ended to be counted no more.
func wantGoroutines(t *testing.T, want int) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); runtime.NumGoroutine() > want && time.Now().Before(deadline); {
		runtime.Gosched()
	}
	if n := runtime.NumGoroutine(); n > want {
		stacks := make([]byte, 1<<20)
		t.Errorf("%d goroutines, %d before:\n%s", n, want, stacks[:runtime.Stack(stacks, true)])
	}
}

// BC014: rounds of start, use and close, and failed starts, leave goroutines and
// heap where they were.
func TestManyRoundsLeaveNothing(t *testing.T) {
	m := componentMaker{t, transport.NewMemory(transport.MemoryConfig{}), "127.0.0.1:9876"}
	for name, round := range map[string]func(i int){
		"rounds":        func(i int) { m.round(i%2 == 1) },
		"failed starts": func(int) { m.failures() },
	} {
		t.Run(name, func(t *testing.T) {
			m.t = t
			for i := range 10 { // what is made once is made now
				round(i)
			}
			goroutines, heap := standing()
			for i := range 100 {
				round(i)
			}
			_, heapAfter := standing()
			wantGoroutines(t, goroutines)
			if heapAfter > heap+(2<<20) {
				t.Errorf("%d bytes in the heap, %d before", heapAfter, heap)
			}
		})
	}
}

// Close may come at any moment of a start, from several goroutines: all return, and
// Start says what happened.
func TestCloseDuringStartOfEveryComponent(t *testing.T) {
	m := componentMaker{t, transport.NewMemory(transport.MemoryConfig{}), "127.0.0.1:9876"}
	n := m.nameServer()
	must(t, n.Start(t.Context()))
	defer n.Close()
	before := runtime.NumGoroutine()
	for i := range 60 {
		for _, c := range []component{m.broker(), m.producer(), m.consumer(i%2 == 0, newInbox().listen)} {
			var all sync.WaitGroup
			all.Go(func() {
				if err := c.Start(t.Context()); err != nil && !errors.Is(err, ErrClosed) && !errors.Is(err, context.Canceled) {
					t.Errorf("%T: %v", c, err)
				}
			})
			for range 3 {
				all.Go(func() {
					for range i * 10 {
						runtime.Gosched()
					}
					if err := c.Close(); err != nil {
						t.Error(err)
					}
				})
			}
			all.Wait()
		}
	}
	wantGoroutines(t, before)
}

// A Close that comes while a failed start is being taken down waits for that.
func TestCloseWaitsForAFailedStartsEnd(t *testing.T) {
	l := newLifecycle()
	down, finish := make(chan struct{}), make(chan struct{})
	ended := false
	l.last = func() { ended = true }
	go l.start(t.Context(), func(context.Context) error { return errAgain }, func() {
		close(down)
		<-finish
	})
	<-down
	closed := make(chan bool)
	go func() {
		l.close(func() { t.Error("taken down twice") })
		closed <- ended
	}()
	for range 100 {
		runtime.Gosched()
	}
	close(finish)
	if !<-closed {
		t.Error("close returned before the failed start had been taken down")
	}
}

// A component starts once, also when that failed: then it says so, and does not
// start by half.
func TestEveryComponentStartsOnce(t *testing.T) {
	m := componentMaker{t, transport.NewMemory(transport.MemoryConfig{}), "127.0.0.1:9876"}
	names := []string{"name server", "broker", "producer", "consumer"}
	makeAll := func() []component {
		return []component{m.nameServer(), m.broker(), m.producer(), m.consumer(false, newInbox().listen)}
	}
	again := func(i int, c component) {
		if err := c.Start(t.Context()); !errors.Is(err, ErrStarted) || !strings.HasPrefix(err.Error(), "mq: start "+names[i]+": ") {
			t.Errorf("%s, started again: %v", names[i], err)
		}
	}
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	for i, c := range makeAll() {
		if err := c.Start(cancelled); err == nil || !strings.HasPrefix(err.Error(), "mq: start "+names[i]+": ") {
			t.Errorf("%s, without time to start: %v", names[i], err)
		}
		again(i, c)
		must(t, c.Close())
	}
	all := makeAll()
	for i, c := range all {
		must(t, c.Start(t.Context()))
		again(i, c)
	}
	for i := len(all) - 1; i >= 0; i-- {
		must(t, all[i].Close())
		if err := all[i].Start(t.Context()); !errors.Is(err, ErrClosed) {
			t.Errorf("%s, started after it was closed: %v", names[i], err)
		}
	}
	if err := all[3].(*Consumer).Subscribe("t", Filter{}, newInbox().listen); !errors.Is(err, ErrClosed) {
		t.Errorf("subscribing after Close: %v", err)
	}
}

func TestStartWithNothingSubscribedDoesNotCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newTestCluster(t, transport.MemoryConfig{}, BrokerConfig{})
		consumer := c.newConsumer(ConsumerConfig{})
		if err := consumer.Start(t.Context()); err == nil || errors.Is(err, ErrStarted) {
			t.Errorf("with nothing subscribed: %v", err)
		}
		must(t, consumer.Subscribe("t", Filter{}, newInbox().listen))
		must(t, consumer.Start(t.Context()))
	})
}

func TestClientsWithoutNameServersSaySoOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := componentMaker{t, transport.NewMemory(transport.MemoryConfig{}), "127.0.0.1:9876"}
		for _, c := range []component{m.producer(), m.consumer(false, newInbox().listen)} {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			err := c.Start(ctx)
			cancel()
			if !errors.Is(err, ErrNoNameServer) || !errors.Is(err, context.DeadlineExceeded) ||
				strings.Count(err.Error(), "no name server reached") != 1 || strings.Count(err.Error(), "mq: ask") > 1 {
				t.Errorf("%T: %v", c, err)
			}
			must(t, c.Close())
		}
	})
}

func TestDirOfOneBrokerAtATime(t *testing.T) {
	dir := t.TempDir()
	var brokers [2]*Broker
	for i := range brokers {
		b, err := NewBroker(BrokerConfig{Transport: transport.NewMemory(transport.MemoryConfig{}), Dir: dir})
		must(t, err)
		defer b.Close()
		brokers[i] = b
	}
	must(t, brokers[0].Start(t.Context()))
	if err := brokers[1].Start(t.Context()); !errors.Is(err, ErrLocked) {
		t.Errorf("the second broker: %v", err)
	}
}
