package mq

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pocketmq/mq/transport"
)

// testCluster is a name server and a broker on one memory network.
type testCluster struct {
	t      *testing.T
	net    *transport.Memory   // nil when the cluster speaks over something else
	over   transport.Transport // nil: net
	ns     *NameServer
	broker *Broker
}

// memoryKinds are the ways the whole-cluster tests run: frames handed over as they
// are, and encoded and decoded by each codec, so that no encoding fault can hide.
var memoryKinds = []struct {
	name string
	cfg  transport.MemoryConfig
}{
	{"pointers", transport.MemoryConfig{}},
	{"JSON", transport.MemoryConfig{Encoding: transport.EncodeJSON}},
	{"ROCKETMQ", transport.MemoryConfig{Encoding: transport.EncodeRocketMQ}},
	{"MSGPACK", transport.MemoryConfig{Encoding: transport.EncodeMsgPack}},
}

// inBubbles runs a test in virtual time on every kind of memory network.
func inBubbles(t *testing.T, f func(t *testing.T, c *testCluster)) {
	for _, kind := range memoryKinds {
		t.Run(kind.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { f(t, newTestCluster(t, kind.cfg, BrokerConfig{})) })
		})
	}
}

// transport is what the cluster's members speak over.
func (c *testCluster) transport() transport.Transport {
	if c.over != nil {
		return c.over
	}
	return c.net
}

func newTestCluster(t *testing.T, cfg transport.MemoryConfig, broker BrokerConfig) *testCluster {
	t.Helper()
	c := &testCluster{t: t, net: transport.NewMemory(cfg)}
	c.ns = startNameServer(t, c.net, NameServerConfig{})
	c.broker = c.startBroker(broker)
	return c
}

func (c *testCluster) startBroker(cfg BrokerConfig) *Broker {
	c.t.Helper()
	cfg.NameServers = []string{c.ns.Addr()}
	if cfg.Transport == nil {
		cfg.Transport = c.transport()
	}
	if cfg.Listen == "" {
		cfg.Listen = "127.0.0.1:0"
	}
	b, err := NewBroker(cfg)
	if err != nil {
		c.t.Fatal(err)
	}
	if err := b.Start(c.t.Context()); err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { b.Close() })
	return b
}

func (c *testCluster) producer(cfg ProducerConfig) *Producer {
	c.t.Helper()
	cfg.Transport, cfg.NameServers = c.transport(), []string{c.ns.Addr()}
	if cfg.Group == "" {
		cfg.Group = "producers"
	}
	p, err := NewProducer(cfg)
	if err != nil {
		c.t.Fatal(err)
	}
	if err := p.Start(c.t.Context()); err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { p.Close() })
	return p
}

func (c *testCluster) newConsumer(cfg ConsumerConfig) *Consumer {
	c.t.Helper()
	cfg.Transport, cfg.NameServers = c.transport(), []string{c.ns.Addr()}
	if cfg.Group == "" {
		cfg.Group = "consumers"
	}
	consumer, err := NewConsumer(cfg)
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { consumer.Close() })
	return consumer
}

// consume starts a consumer of one topic from its beginning.
func (c *testCluster) consume(cfg ConsumerConfig, topic string, filter Filter, listen Listener) *Consumer {
	c.t.Helper()
	cfg.Start = FromFirst
	consumer := c.newConsumer(cfg)
	if err := consumer.Subscribe(topic, filter, listen); err != nil {
		c.t.Fatal(err)
	}
	if err := consumer.Start(c.t.Context()); err != nil {
		c.t.Fatal(err)
	}
	return consumer
}

func (c *testCluster) send(p *Producer, m *Message) *SendResult {
	c.t.Helper()
	res, err := p.Send(c.t.Context(), m)
	if err != nil {
		c.t.Fatal(err)
	}
	return res
}

func (c *testCluster) sendMany(p *Producer, topic string, from, n int) {
	c.t.Helper()
	for i := range n {
		c.send(p, &Message{Topic: topic, Body: fmt.Appendf(nil, "%s %d", topic, from+i)})
	}
}

// inbox collects what a listener got.
type inbox struct {
	mu   sync.Mutex
	got  []*Delivery
	more chan struct{}
}

func newInbox() *inbox { return &inbox{more: make(chan struct{}, 1)} }

func (in *inbox) listen(_ context.Context, d *Delivery) error {
	in.mu.Lock()
	in.got = append(in.got, d)
	in.mu.Unlock()
	select {
	case in.more <- struct{}{}:
	default:
	}
	return nil
}

func (in *inbox) all() []*Delivery {
	in.mu.Lock()
	defer in.mu.Unlock()
	return slices.Clone(in.got)
}

// bodies are the bodies received so far, sorted, each once.
func (in *inbox) bodies() []string {
	var texts []string
	for _, d := range in.all() {
		texts = append(texts, string(d.Body))
	}
	slices.Sort(texts)
	return slices.Compact(texts)
}

// distinct are the bodies that any of the inboxes has.
func distinct(inboxes ...*inbox) []string {
	var all []string
	for _, in := range inboxes {
		all = append(all, in.bodies()...)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// wait returns when n different bodies have come, and fails the test when they have
// not within limit.
func (in *inbox) wait(t *testing.T, n int, limit time.Duration) {
	t.Helper()
	timeout := time.After(limit)
	for len(in.bodies()) < n {
		select {
		case <-in.more:
		case <-timeout:
			t.Fatalf("%d of %d messages after %v: %v", len(in.bodies()), n, limit, in.bodies())
		}
	}
}

func TestWhatIsSentIsReceived(t *testing.T) {
	inBubbles(t, func(t *testing.T, c *testCluster) {
		p, in := c.producer(ProducerConfig{}), newInbox()
		sent := make(map[string]*SendResult)
		for i := range 20 {
			m := &Message{Topic: "orders", Tag: "paid", Keys: []string{"k1", fmt.Sprint("n", i)}, Body: fmt.Appendf(nil, "body %d", i),
				Properties: map[string]string{"colour": "blue", "ünïcode": "名前"}, Flag: 7, ShardKey: "s"}
			res := c.send(p, m)
			if res.Status != SendOK {
				t.Fatalf("status %v", res.Status)
			}
			sent[res.ID] = res
		}
		c.consume(ConsumerConfig{}, "orders", Tags("paid || late"), in.listen)
		in.wait(t, 20, time.Minute)
		for _, d := range in.all() {
			res := sent[d.ID]
			if res == nil || res.OffsetID != d.OffsetID() || res.Queue != d.Queue || res.Offset != d.Offset {
				t.Fatalf("received %s %s %v %d, sent %+v", d.ID, d.OffsetID(), d.Queue, d.Offset, res)
			}
			if d.Topic != "orders" || d.Tag != "paid" || d.Flag != 7 || d.ShardKey != "s" || d.Attempt != 1 || len(d.Keys) != 2 || d.Keys[0] != "k1" {
				t.Errorf("received %+v", d)
			}
			if len(d.Properties) != 2 || d.Properties["colour"] != "blue" || d.Properties["ünïcode"] != "名前" {
				t.Errorf("properties %v", d.Properties)
			}
		}
	})
}

func TestLongPollBringsAMessageAtOnceAndOutlivesItsTimeout(t *testing.T) {
	inBubbles(t, func(t *testing.T, c *testCluster) {
		p, in := c.producer(ProducerConfig{}), newInbox()
		c.sendMany(p, "orders", 0, 1)
		c.consume(ConsumerConfig{}, "orders", Filter{}, in.listen)
		in.wait(t, 1, time.Minute)
		for i, pause := range []time.Duration{time.Second, 10 * time.Second, 100 * time.Second} {
			time.Sleep(pause)
			begun := time.Now()
			c.sendMany(p, "orders", i+1, 1)
			in.wait(t, i+2, time.Minute)
			if late := time.Since(begun); late > 10*time.Millisecond {
				t.Errorf("after a pause of %v the message took %v", pause, late)
			}
		}
	})
}

func TestAnotherMemberTakesOverWhenOneLeavesOrDies(t *testing.T) {
	inBubbles(t, func(t *testing.T, c *testCluster) {
		p, first, second := c.producer(ProducerConfig{}), newInbox(), newInbox()
		c.sendMany(p, "orders", 0, 8)
		one := c.consume(ConsumerConfig{}, "orders", Filter{}, first.listen)
		first.wait(t, 8, time.Minute)
		c.consume(ConsumerConfig{}, "orders", Filter{}, second.listen)
		synctest.Wait()
		time.Sleep(time.Second)
		if n, all := len(one.Assigned()), 4+1; n == 0 || n >= all {
			t.Fatalf("the first member has %d queues after the second joined", n)
		}
		c.sendMany(p, "orders", 8, 8)
		synctest.Wait()
		if n := len(distinct(first, second)); n != 16 || len(second.bodies()) == 0 {
			t.Fatalf("first has %d, second %d, together %d of 16", len(first.bodies()), len(second.bodies()), n)
		}
		one.Close()
		c.sendMany(p, "orders", 16, 8)
		time.Sleep(time.Second)
		if n := len(distinct(first, second)); n != 24 {
			t.Errorf("%d of 24 messages after the takeover", n)
		}
	})
}

// A message whose listener always fails comes 17 times; the waits between add up
// to 4 h 45 min 40 s, and then it is in the dead-letter topic.
func TestFailingMessageEndsInTheDeadLetterTopic(t *testing.T) {
	inBubbles(t, func(t *testing.T, c *testCluster) {
		p, dead := c.producer(ProducerConfig{}), newInbox()
		res := c.send(p, &Message{Topic: "orders", Body: []byte("poison"), Keys: []string{"k"}})
		var mu sync.Mutex
		var attempts []int
		var times []time.Time
		c.consume(ConsumerConfig{}, "orders", Filter{}, func(_ context.Context, d *Delivery) error {
			mu.Lock()
			defer mu.Unlock()
			attempts, times = append(attempts, d.Attempt), append(times, time.Now())
			if d.ID != res.ID || d.Topic != "orders" {
				t.Errorf("attempt %d has id %s topic %s", d.Attempt, d.ID, d.Topic)
			}
			return errors.New("never")
		})
		c.consume(ConsumerConfig{Group: "undertakers"}, DeadLetterTopic("consumers"), Filter{}, dead.listen)
		time.Sleep(4*time.Hour + 45*time.Minute + 40*time.Second + time.Minute)
		dead.wait(t, 1, time.Minute)
		mu.Lock()
		defer mu.Unlock()
		if len(attempts) != 17 || attempts[16] != 17 {
			t.Fatalf("attempts %v, want 1 to 17", attempts)
		}
		total := times[16].Sub(times[0])
		if want := 4*time.Hour + 45*time.Minute + 40*time.Second; total < want || total > want+time.Minute {
			t.Errorf("the last attempt came after %v, want %v", total, want)
		}
		if d := dead.all()[0]; d.ID != res.ID || d.Property("RETRY_TOPIC") != "orders" || d.Property("ORIGIN_MESSAGE_ID") == "" {
			t.Errorf("dead letter %+v", d)
		}
	})
}

func TestSendsGoOnWhenAllNameServersAreGone(t *testing.T) {
	inBubbles(t, func(t *testing.T, c *testCluster) {
		p, in := c.producer(ProducerConfig{}), newInbox()
		c.sendMany(p, "orders", 0, 1)
		c.consume(ConsumerConfig{}, "orders", Filter{}, in.listen)
		in.wait(t, 1, time.Minute)
		c.ns.Close()
		for i := range 10 {
			c.sendMany(p, "orders", 1+i, 1)
			time.Sleep(time.Minute)
		}
		in.wait(t, 11, time.Minute)
	})
}

func TestBrokerThatFallsSilentLeavesTheRoutes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := transport.NewMemory(transport.MemoryConfig{})
		c := &testCluster{t: t, net: net, ns: startNameServer(t, net, NameServerConfig{})}
		c.startBroker(BrokerConfig{Name: "a", Transport: net.Host("10.0.0.2"), Listen: "10.0.0.2:0"})
		peer := dialRaw(t, net, c.ns.Addr())
		peer.want(0, routeOf(autoCreateTopic))
		net.Partition("10.0.0.2", "127.0.0.1")
		time.Sleep(brokerExpiry + expiryScanPeriod + time.Second)
		peer.want(17, routeOf(autoCreateTopic))
		net.Heal("10.0.0.2", "127.0.0.1")
		time.Sleep(time.Minute)
		peer.want(0, routeOf(autoCreateTopic))
	})
}

// The whole cluster starts in memory in less time than a test may notice.
func TestClusterStartsWithin50Milliseconds(t *testing.T) {
	best := time.Hour
	for range 5 {
		begun := time.Now()
		c := newTestCluster(t, transport.MemoryConfig{}, BrokerConfig{})
		c.producer(ProducerConfig{})
		c.consume(ConsumerConfig{}, "orders", Filter{}, newInbox().listen)
		best = min(best, time.Since(begun))
	}
	if best > 50*time.Millisecond {
		t.Errorf("start took %v at best, want less than 50 ms", best)
	}
}

// testLog shows a component's log in the test's output.
func testLog(t *testing.T) *slog.Logger {
	return slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug}))
}
