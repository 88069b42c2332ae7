package mq

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"testing"
	"time"

	"github.com/pocketmq/mq/internal/wire"
	"github.com/pocketmq/mq/transport"
)

// A fakeNames is a name server that answers what the test says.
type fakeNames struct {
	t      testing.TB
	net    transport.Transport
	addr   string
	listen transport.Listener

	mu     sync.Mutex
	routes map[string]wire.RouteData
	asked  map[string]int
	hang   bool // never answers
}

func newFakeNames(t testing.TB, net transport.Transport, addr string) *fakeNames {
	n := &fakeNames{t: t, net: net, addr: addr, routes: make(map[string]wire.RouteData), asked: make(map[string]int)}
	n.up()
	t.Cleanup(n.down)
	return n
}

func (n *fakeNames) up() {
	table := &transport.Table{Language: transport.Java, Version: protocolVersion}
	table.Handle(wire.CodeGetRouteInfoByTopic, nil, func(_ context.Context, _ transport.Conn, req *transport.Frame, reply func(*transport.Frame)) {
		h, err := transport.HeaderOf[wire.RouteRequest](req)
		if err != nil {
			n.t.Errorf("route request: %v", err)
			return
		}
		n.mu.Lock()
		n.asked[h.Topic]++
		r, ok := n.routes[h.Topic]
		hang := n.hang
		n.mu.Unlock()
		switch {
		case hang:
		case ok:
			reply(&transport.Frame{Body: r.Marshal(true)})
		default:
			reply(&transport.Frame{Code: wire.TopicNotExist, Remark: "No topic route info in name server for the topic: " + h.Topic})
		}
	})
	l, err := n.net.Listen(context.Background(), n.addr, table)
	if err != nil {
		n.t.Fatal(err)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.listen = l
}

func (n *fakeNames) down() {
	n.mu.Lock()
	l := n.listen
	n.mu.Unlock()
	l.Close()
}

// set puts a topic with queues on each of the brokers.
func (n *fakeNames) set(topic string, queues int32, brokers ...*fakeBroker) {
	var r wire.RouteData
	for _, b := range brokers {
		r.QueueDatas = append(r.QueueDatas, wire.QueueData{BrokerName: b.name, ReadQueueNums: queues, WriteQueueNums: queues, Perm: 6})
		r.BrokerDatas = append(r.BrokerDatas, wire.BrokerData{Cluster: defaultCluster, BrokerName: b.name, BrokerAddrs: map[int64]string{0: b.addr}})
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.routes[topic] = r
}

func (n *fakeNames) remove(topic string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.routes, topic)
}

func (n *fakeNames) setHang(hang bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.hang = hang
}

func (n *fakeNames) askedFor(topic string) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.asked[topic]
}

// A fakeBroker stores what it is sent in a list, or does as script says.
type fakeBroker struct {
	t      testing.TB
	net    transport.Transport
	name   string
	addr   string
	listen transport.Listener

	mu     sync.Mutex
	script func(n int, s fakeSend, reply func(*transport.Frame)) bool // true: the script answers, now, later or never
	sends  []fakeSend
	beats  []wire.Heartbeat
	left   []wire.UnregisterClientRequest
	opened int
	conns  map[transport.Conn]bool
}

type fakeSend struct {
	code   int32
	oneway bool
	header wire.SendRequestV2
	body   string
	at     time.Time
}

func newFakeBroker(t testing.TB, net transport.Transport, name, addr string) *fakeBroker {
	b := &fakeBroker{t: t, net: net, name: name, addr: addr, conns: make(map[transport.Conn]bool)}
	b.up()
	t.Cleanup(b.down)
	return b
}

func (b *fakeBroker) up() {
	table := &transport.Table{Language: transport.Java, Version: protocolVersion}
	table.Opened = func(c transport.Conn) {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.opened++
		b.conns[c] = true
	}
	table.Closed = func(c transport.Conn) {
		b.mu.Lock()
		defer b.mu.Unlock()
		delete(b.conns, c)
	}
	table.Handle(wire.CodeSendMessageV2, nil, b.send)
	table.Handle(wire.CodeSendBatchMessage, nil, b.send)
	table.Handle(wire.CodeHeartBeat, nil, func(_ context.Context, _ transport.Conn, req *transport.Frame, reply func(*transport.Frame)) {
		hb, err := wire.ParseHeartbeat(req.Body)
		if err != nil {
			b.t.Errorf("heartbeat: %v", err)
		}
		b.mu.Lock()
		b.beats = append(b.beats, hb)
		b.mu.Unlock()
		reply(&transport.Frame{})
	})
	table.Handle(wire.CodeUnregisterClient, nil, func(_ context.Context, _ transport.Conn, req *transport.Frame, reply func(*transport.Frame)) {
		h, err := transport.HeaderOf[wire.UnregisterClientRequest](req)
		if err != nil {
			b.t.Errorf("unregister: %v", err)
			return
		}
		b.mu.Lock()
		b.left = append(b.left, *h)
		b.mu.Unlock()
		reply(&transport.Frame{})
	})
	l, err := b.net.Listen(context.Background(), b.addr, table)
	if err != nil {
		b.t.Fatal(err)
	}
	b.listen = l
}

func (b *fakeBroker) down() { b.listen.Close() }

func (b *fakeBroker) send(_ context.Context, _ transport.Conn, req *transport.Frame, reply func(*transport.Frame)) {
	h, err := transport.HeaderOf[wire.SendRequestV2](req)
	if err != nil {
		b.t.Errorf("send: %v", err)
		return
	}
	s := fakeSend{req.Code, req.IsOneWay(), *h, string(req.Body), time.Now()}
	b.mu.Lock()
	n := len(b.sends)
	b.sends = append(b.sends, s)
	script := b.script
	b.mu.Unlock()
	if script == nil || !script(n, s, reply) {
		reply(stored(n, s))
	}
}

// stored is a broker's answer that all is well.
func stored(n int, s fakeSend) *transport.Frame {
	return &transport.Frame{Header: &wire.SendResponse{MsgID: fmt.Sprintf("%032X", n), QueueID: s.header.QueueID, QueueOffset: int64(n), TraceOn: true}}
}

// refuse is a script that answers every send with a code.
func refuse(code int32) func(int, fakeSend, func(*transport.Frame)) bool {
	return func(_ int, _ fakeSend, reply func(*transport.Frame)) bool {
		reply(&transport.Frame{Code: code, Remark: "refused by the test"})
		return true
	}
}

// hang is a script that never answers.
func hang(int, fakeSend, func(*transport.Frame)) bool { return true }

func (b *fakeBroker) do(script func(int, fakeSend, func(*transport.Frame)) bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.script = script
}

func (b *fakeBroker) got() []fakeSend {
	b.mu.Lock()
	defer b.mu.Unlock()
	return append([]fakeSend(nil), b.sends...)
}

func (b *fakeBroker) heartbeats() []wire.Heartbeat {
	b.mu.Lock()
	defer b.mu.Unlock()
	return append([]wire.Heartbeat(nil), b.beats...)
}

func (b *fakeBroker) connections() (opened int, open []transport.Conn) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for c := range maps.Keys(b.conns) {
		open = append(open, c)
	}
	return b.opened, open
}

// A fakeCluster is one name server and brokers that all have the topic "t".
type fakeCluster struct {
	net     *transport.Memory
	names   *fakeNames
	brokers []*fakeBroker
}

func newFakeCluster(t testing.TB, brokers int, queues int32) *fakeCluster {
	c := &fakeCluster{net: transport.NewMemory(transport.MemoryConfig{})}
	c.names = newFakeNames(t, c.net, "127.0.0.1:9876")
	for i := range brokers {
		c.brokers = append(c.brokers, newFakeBroker(t, c.net, fmt.Sprintf("broker-%c", 'a'+i), fmt.Sprintf("10.0.0.%d:10911", i+1)))
	}
	c.names.set("t", queues, c.brokers...)
	return c
}

func (c *fakeCluster) producer(t testing.TB, change func(*ProducerConfig)) *Producer {
	cfg := ProducerConfig{Transport: c.net, NameServers: []string{c.names.addr}, Group: "g"}
	if change != nil {
		change(&cfg)
	}
	p, err := NewProducer(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Start(context.Background()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

func textMessage(topic, body string) *Message { return &Message{Topic: topic, Body: []byte(body)} }
