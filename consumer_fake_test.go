package mq

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/pocketmq/mq/internal/wire"
	"github.com/pocketmq/mq/transport"
)

// A queueBroker serves consumers from lists in memory, unless a script answers
// first. It filters nothing and holds pulls as a broker does.
type queueBroker struct {
	t      testing.TB
	net    transport.Transport
	name   string
	addr   string
	id     int64
	listen transport.Listener

	mu      sync.Mutex
	grown   chan struct{} // closed and replaced when a queue grows
	queues  map[Queue][][]byte
	offsets map[Queue]int64
	members map[string]bool
	script  func(r *brokerRequest) *transport.Frame // nil: as usual; silence: no answer
	asked   []*brokerRequest
}

type brokerRequest struct {
	*transport.Frame
	pull *wire.PullRequest // of a pull
	at   time.Time
}

var silence = &transport.Frame{}

func newQueueBroker(t testing.TB, net transport.Transport, name, addr string, id int64) *queueBroker {
	b := &queueBroker{t: t, net: net, name: name, addr: addr, id: id, grown: make(chan struct{}),
		queues: make(map[Queue][][]byte), offsets: make(map[Queue]int64), members: make(map[string]bool)}
	b.up()
	t.Cleanup(b.down)
	return b
}

func (b *queueBroker) up() {
	table := &transport.Table{Language: transport.Java, Version: protocolVersion}
	for _, code := range []int32{wire.CodeHeartBeat, wire.CodeUnregisterClient, wire.CodeGetConsumerListByGroup, wire.CodeQueryConsumerOffset,
		wire.CodeUpdateConsumerOffset, wire.CodeGetMaxOffset, wire.CodePullMessage, wire.CodeConsumerSendMsgBack, wire.CodeLockBatchMQ, wire.CodeUnlockBatchMQ} {
		table.Handle(code, nil, b.serve)
	}
	l, err := b.net.Listen(context.Background(), b.addr, table)
	if err != nil {
		b.t.Fatal(err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.listen = l
}

func (b *queueBroker) down() {
	b.mu.Lock()
	l := b.listen
	b.mu.Unlock()
	l.Close()
}

func (b *queueBroker) serve(ctx context.Context, _ transport.Conn, f *transport.Frame, reply func(*transport.Frame)) {
	r := &brokerRequest{Frame: f, at: time.Now()}
	if f.Code == wire.CodePullMessage {
		r.pull = headerOf[wire.PullRequest](b.t, f)
	}
	b.mu.Lock()
	b.asked = append(b.asked, r)
	script := b.script
	b.mu.Unlock()
	if script != nil {
		if answer := script(r); answer == silence {
			return
		} else if answer != nil {
			reply(answer)
			return
		}
	}
	if f.Code == wire.CodePullMessage {
		go b.hold(ctx, r.pull, reply)
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	reply(b.answerLocked(f))
}

func (b *queueBroker) answerLocked(f *transport.Frame) *transport.Frame {
	switch f.Code {
	case wire.CodeHeartBeat:
		hb, err := wire.ParseHeartbeat(f.Body)
		if err != nil {
			b.t.Errorf("heartbeat: %v", err)
		}
		b.members[hb.ClientID] = true
	case wire.CodeUnregisterClient:
		delete(b.members, headerOf[wire.UnregisterClientRequest](b.t, f).ClientID)
	case wire.CodeGetConsumerListByGroup:
		return &transport.Frame{Body: (&wire.ConsumerList{ConsumerIDs: sortedKeys(b.members)}).Marshal()}
	case wire.CodeQueryConsumerOffset:
		h := headerOf[wire.QueryOffsetRequest](b.t, f)
		offset, ok := b.offsets[Queue{h.Topic, b.name, int(h.QueueID)}]
		if !ok {
			return &transport.Frame{Code: wire.QueryNotFound}
		}
		return &transport.Frame{Header: &wire.OffsetResponse{Offset: offset}}
	case wire.CodeUpdateConsumerOffset:
		h := headerOf[wire.UpdateOffsetRequest](b.t, f)
		b.offsets[Queue{h.Topic, b.name, int(h.QueueID)}] = h.CommitOffset
	case wire.CodeGetMaxOffset:
		h := headerOf[wire.QueueRequest](b.t, f)
		return &transport.Frame{Header: &wire.OffsetResponse{Offset: int64(len(b.queues[Queue{h.Topic, b.name, int(h.QueueID)}]))}}
	case wire.CodeLockBatchMQ:
		r, err := wire.ParseLockBatchRequest(f.Body)
		if err != nil {
			b.t.Errorf("lock: %v", err)
		}
		return &transport.Frame{Body: (&wire.LockBatchResponse{Locked: r.Queues}).Marshal()}
	}
	return &transport.Frame{}
}

// hold answers a pull when there is something, or its time is up.
func (b *queueBroker) hold(ctx context.Context, h *wire.PullRequest, reply func(*transport.Frame)) {
	q := Queue{h.Topic, b.name, int(h.QueueID)}
	wait := time.NewTimer(time.Duration(h.SuspendTimeoutMillis) * time.Millisecond)
	defer wait.Stop()
	for first := true; ; first = false {
		b.mu.Lock()
		if first && h.SysFlag&wire.PullCommitOffset != 0 && b.id == masterID {
			b.offsets[q] = h.CommitOffset
		}
		all, grown := b.queues[q], b.grown
		b.mu.Unlock()
		at := &wire.PullResponse{NextBeginOffset: h.QueueOffset, MaxOffset: int64(len(all)), SuggestWhichBrokerID: b.id}
		if h.QueueOffset > at.MaxOffset {
			at.NextBeginOffset = at.MaxOffset
			reply(&transport.Frame{Code: wire.PullOffsetMoved, Header: at})
			return
		}
		if left := all[h.QueueOffset:]; len(left) > 0 {
			left = left[:min(len(left), int(h.MaxMsgNums))]
			at.NextBeginOffset += int64(len(left))
			reply(&transport.Frame{Header: at, Body: slices.Concat(left...)})
			return
		}
		select {
		case <-grown:
		case <-ctx.Done():
			return
		case <-wait.C:
			reply(&transport.Frame{Code: wire.PullNotFound, Header: at})
			return
		}
	}
}

// put appends messages to a queue.
func (b *queueBroker) put(topic string, queue int, texts ...string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	q := Queue{topic, b.name, queue}
	for _, body := range texts {
		n := int64(len(b.queues[q]))
		b.queues[q] = append(b.queues[q], wire.AppendStored(nil, &wire.StoredMessage{QueueID: int32(queue), QueueOffset: n, Position: n * 1000,
			Topic: topic, Body: []byte(body), Properties: wire.FormatProperties(map[string]string{wire.PropUniqueKey: fmt.Sprint(topic, queue, "-", n)})}))
	}
	close(b.grown)
	b.grown = make(chan struct{})
}

func (b *queueBroker) do(script func(r *brokerRequest) *transport.Frame) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.script = script
}

// requests are those of a code so far.
func (b *queueBroker) requests(code int32) []*brokerRequest {
	b.mu.Lock()
	defer b.mu.Unlock()
	var some []*brokerRequest
	for _, r := range b.asked {
		if r.Code == code {
			some = append(some, r)
		}
	}
	return some
}

// pulls are the pulls of one topic so far.
func (b *queueBroker) pulls(topic string) []*brokerRequest {
	return slices.DeleteFunc(b.requests(wire.CodePullMessage), func(r *brokerRequest) bool { return r.pull.Topic != topic })
}

func (b *queueBroker) committed(topic string, queue int) int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	offset, ok := b.offsets[Queue{topic, b.name, queue}]
	if !ok {
		return -1
	}
	return offset
}

func (b *queueBroker) setCommitted(topic string, queue int, offset int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.offsets[Queue{topic, b.name, queue}] = offset
}

func headerOf[T any, P interface {
	*T
	transport.Header
}](t testing.TB, f *transport.Frame) *T {
	h, err := transport.HeaderOf[T, P](f)
	if err != nil {
		t.Errorf("request %d: %v", f.Code, err)
		return new(T)
	}
	return h
}

// A queueCluster is a scripted name server and scripted brokers of one replica set.
type queueCluster struct {
	t       *testing.T
	net     *transport.Memory
	names   *fakeNames
	brokers []*queueBroker // by id: the master first
}

// newQueueCluster has one replica set with the topic "t".
func newQueueCluster(t *testing.T, brokers int, queues int32) *queueCluster {
	c := &queueCluster{t: t, net: transport.NewMemory(transport.MemoryConfig{})}
	c.names = newFakeNames(t, c.net, "127.0.0.1:9876")
	for id := range brokers {
		c.brokers = append(c.brokers, newQueueBroker(t, c.net, "a", fmt.Sprintf("10.0.0.%d:10911", id+1), int64(id)))
	}
	c.route("t", queues, c.brokers...)
	return c
}

// route makes the name server know a topic on brokers.
func (c *queueCluster) route(topic string, queues int32, brokers ...*queueBroker) {
	addrs := make(map[int64]string)
	for _, b := range brokers {
		addrs[b.id] = b.addr
	}
	c.names.mu.Lock()
	defer c.names.mu.Unlock()
	c.names.routes[topic] = wire.RouteData{
		QueueDatas:  []wire.QueueData{{BrokerName: "a", ReadQueueNums: queues, WriteQueueNums: queues, Perm: 6}},
		BrokerDatas: []wire.BrokerData{{Cluster: defaultCluster, BrokerName: "a", BrokerAddrs: addrs}},
	}
}

// consume starts a consumer of "t" in the group "g" from the beginning.
func (c *queueCluster) consume(cfg ConsumerConfig, listen Listener) *Consumer {
	c.t.Helper()
	cfg.Transport, cfg.NameServers, cfg.Group, cfg.Logger = c.net, []string{c.names.addr}, "g", testLog(c.t)
	if cfg.Start == FromLast {
		cfg.Start = FromFirst
	}
	consumer, err := NewConsumer(cfg)
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { consumer.Close() })
	if err := consumer.Subscribe("t", Filter{}, listen); err != nil {
		c.t.Fatal(err)
	}
	if err := consumer.Start(c.t.Context()); err != nil {
		c.t.Fatal(err)
	}
	return consumer
}
