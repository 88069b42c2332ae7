package mq

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/pocketmq/mq/internal/wire"
	"github.com/pocketmq/mq/transport"
)

func TestFirstSendCreatesTheTopic(t *testing.T) {
	r := startBroker(t, BrokerConfig{})
	for _, c := range []struct {
		wanted, got int32
	}{{4, 4}, {1, 1}, {100_000, 8}, {0, 8}, {-3, 8}} {
		h := message(fmt.Sprintf("t%d", c.wanted+3))
		h.DefaultTopicQueueNums = c.wanted
		r.stored(h, "x")
		topic, ok := r.topics.lookup(h.Topic)
		if !ok || topic.conf().WriteQueueNums != c.got || topic.conf().ReadQueueNums != c.got || topic.conf().Perm != 6 {
			t.Fatalf("wanted %d: %+v", c.wanted, topic.conf())
		}
	}
}

func TestMissingNumberOfQueuesIsTheBrokersDefault(t *testing.T) {
	r := startBroker(t, BrokerConfig{DefaultQueues: 3})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for code, h := range map[int32]transport.Header{
		wire.CodeSendMessage:   message("long"),
		wire.CodeSendMessageV2: func() transport.Header { h := wire.SendRequestV2(*message("short")); return &h }(),
	} {
		var fields []string
		all := h.AppendFields(nil)
		for i := 0; i < len(all); i += 2 {
			if all[i] != "defaultTopicQueueNums" && all[i] != "d" {
				fields = append(fields, all[i], all[i+1])
			}
		}
		f, err := r.conn.Call(ctx, &transport.Frame{Code: code, Fields: fields, Body: []byte("x")})
		if err != nil {
			t.Fatal(err)
		}
		r.storedBy(f)
	}
	for _, name := range []string{"long", "short"} {
		if topic, ok := r.topics.lookup(name); !ok || topic.conf().WriteQueueNums != 3 {
			t.Fatalf("topic %s: %v", name, ok)
		}
	}
}

func TestClusterAndBrokerTopicsAreTemplatesToo(t *testing.T) {
	r := startBroker(t, BrokerConfig{Cluster: "c1", Name: "b1", DisableAutoCreateTopic: true})
	for _, template := range []string{"c1", "b1"} {
		h := message("by-" + template)
		h.DefaultTopic = template
		r.stored(h, "x")
	}
	if c := func() *wire.TopicConfig { t, _ := r.topics.lookup("by-b1"); return t.conf() }(); c.WriteQueueNums != 1 {
		t.Fatalf("broker's own topic has 1 queue, made %d", c.WriteQueueNums)
	}
	r.refusedWith(wire.TopicNotExist, r.send(message("other"), "x"), "create it first")
}

func TestUnknownTopicWithoutAutoCreate(t *testing.T) {
	r := startBroker(t, BrokerConfig{DisableAutoCreateTopic: true})
	if _, ok := r.topics.lookup(autoCreateTopic); ok {
		t.Fatal("TBW102 is there although topics are not created automatically")
	}
	r.refusedWith(wire.TopicNotExist, r.send(message("t"), "x"), "mqadmin updateTopic")
	r.stored(message(RetryTopic("g")), "x") // these are always made
	if topic, _ := r.topics.lookup(RetryTopic("g")); topic.conf().WriteQueueNums != 1 || topic.conf().Perm != 6 {
		t.Fatalf("retry topic %+v", topic.conf())
	}
}

func TestAutoCreateSwitchedOffWhileRunning(t *testing.T) {
	r := startBroker(t, BrokerConfig{})
	r.must(wire.CodeUpdateBrokerConfig, nil, []byte("autoCreateTopicEnable=false\n"))
	r.refusedWith(wire.TopicNotExist, r.send(message("t"), "x"), "create it first")
}

func TestAutoCreateSwitchedOnWhileRunning(t *testing.T) {
	r := startBroker(t, BrokerConfig{DisableAutoCreateTopic: true})
	r.must(wire.CodeUpdateBrokerConfig, nil, []byte("autoCreateTopicEnable=true\n"))
	r.stored(message("t"), "x")
}

func TestBatchCreatesTheTopic(t *testing.T) {
	r := startBroker(t, BrokerConfig{})
	body, err := wire.AppendBatch(nil, []wire.BatchMessage{{Body: []byte("a")}, {Body: []byte("b")}, {Body: []byte("c")}})
	if err != nil {
		t.Fatal(err)
	}
	h := wire.SendRequestV2(*message("t"))
	h.Batch = true
	r.storedBy(r.call(wire.CodeSendBatchMessage, &h, body))
	if got := bodies(r.queue("t", 0)); got != "a b c" {
		t.Fatalf("stored %q", got)
	}
}

func TestSendsToOtherTopicsPassACreation(t *testing.T) {
	r := startBroker(t, BrokerConfig{})
	r.createTopic("known", 1, 6)
	// A change of the new topic is under way: its sends wait, the others do not.
	unlock, err := r.topics.lock(t.Context(), "new")
	if err != nil {
		t.Fatal(err)
	}
	answers := make(chan *transport.Frame, 2)
	for i := range 2 {
		f := &transport.Frame{Code: wire.CodeSendMessage, Header: message("new"), Body: []byte(itemName("m", i))}
		if err := r.conn.Go(t.Context(), f, time.Now().Add(time.Minute), func(f *transport.Frame, err error) {
			if err != nil {
				t.Error(err)
			}
			answers <- f
		}); err != nil {
			t.Fatal(err)
		}
	}
	r.stored(message("known"), "x")
	select {
	case <-answers:
		t.Fatal("a send to a topic that is not there was answered")
	default:
	}
	unlock()
	for range 2 {
		r.storedBy(<-answers)
	}
	if got := bodies(r.queue("new", 0)); got != "m0 m1" {
		t.Fatalf("stored %q", got)
	}
}

func TestEachWaitingSendIsJudgedByItsOwnTemplate(t *testing.T) {
	r := startBroker(t, BrokerConfig{})
	unlock, err := r.topics.lock(t.Context(), "new")
	if err != nil {
		t.Fatal(err)
	}
	codes := make(chan int32, 2)
	for _, template := range []string{"nonsense", autoCreateTopic} {
		h := message("new")
		h.DefaultTopic = template
		if err := r.conn.Go(t.Context(), &transport.Frame{Code: wire.CodeSendMessage, Header: h, Body: []byte("x")},
			time.Now().Add(time.Minute), func(f *transport.Frame, err error) {
				if err != nil {
					t.Error(err)
				}
				codes <- f.Code
			}); err != nil {
			t.Fatal(err)
		}
	}
	unlock()
	if a, b := <-codes, <-codes; a+b != wire.TopicNotExist+wire.Success {
		t.Fatalf("answers %d and %d", a, b)
	}
}

func TestTooManySendsWaitingForATopicAreRefused(t *testing.T) {
	r := startBroker(t, BrokerConfig{})
	unlock, err := r.topics.lock(t.Context(), "new")
	if err != nil {
		t.Fatal(err)
	}
	const extra = 50
	codes := make(chan int32, maxPendingSends+extra)
	for range maxPendingSends + 1 + extra { // one is taken out to be worked on
		op := &transport.Frame{Code: wire.CodeSendMessage, Header: message("new"), Body: []byte("x")}
		if err := r.conn.Go(t.Context(), op, time.Now().Add(time.Minute), func(f *transport.Frame, err error) {
			if err != nil {
				t.Error(err)
			}
			codes <- f.Code
		}); err != nil {
			t.Fatal(err)
		}
	}
	if first := <-codes; first != wire.SystemBusy {
		t.Fatalf("answer %d", first)
	}
	unlock()
	busy, stored := 1, 0
	for busy+stored < maxPendingSends+1+extra {
		switch code := <-codes; code {
		case wire.SystemBusy:
			busy++
		case wire.Success:
			stored++
		default:
			t.Fatalf("answer %d", code)
		}
	}
	if stored < maxPendingSends/2 {
		t.Fatalf("%d stored, %d busy", stored, busy)
	}
}

func TestDeletedTopicStartsAnew(t *testing.T) {
	r := startBroker(t, BrokerConfig{Dir: t.TempDir()})
	r.createTopic("t", 1, 6)
	for range 100 {
		r.stored(message("t", wire.PropKeys, "key"), "old")
	}
	topic, _ := r.topics.lookup("t")
	r.store.CommitOffset("g", topic.store, 0, 100)
	r.must(wire.CodeDeleteTopicInBroker, &wire.DeleteTopicRequest{Topic: "t"}, nil)
	if _, ok := r.topics.lookup("t"); ok {
		t.Fatal("the topic is still there")
	}
	r.createTopic("t", 1, 6)
	for i := range 10 {
		if res := r.stored(message("t"), "new"); res.QueueOffset != int64(i) {
			t.Fatalf("offset %d of message %d", res.QueueOffset, i)
		}
	}
	if got := r.queue("t", 0); len(got) != 10 || string(got[0].Body) != "new" {
		t.Fatalf("%d messages", len(got))
	}
	topic, _ = r.topics.lookup("t")
	if offset, ok, err := r.store.CommittedOffset("g", topic.store, 0); ok || err != nil {
		t.Fatalf("group offset %d survived (%v)", offset, err)
	}
	r.must(wire.CodeDeleteTopicInBroker, &wire.DeleteTopicRequest{Topic: "never-was"}, nil)
}

func TestTopicsSurviveARestart(t *testing.T) {
	dir := t.TempDir()
	cfg := BrokerConfig{Dir: dir, Transport: transport.NewMemory(transport.MemoryConfig{})}
	r := startBroker(t, cfg)
	r.must(wire.CodeUpdateAndCreateTopic, &wire.CreateTopicRequest{Topic: "t", ReadQueueNums: 5, WriteQueueNums: 3, Perm: 4,
		TopicFilterType: singleTag, TopicSysFlag: 1, Order: true}, nil)
	r.stored(message("auto"), "x")
	before := r.topics.dataVersion()
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	again := startBroker(t, cfg)
	topic, ok := again.topics.lookup("t")
	if !ok {
		t.Fatal("the topic is gone")
	}
	if c := *topic.conf(); c.ReadQueueNums != 5 || c.WriteQueueNums != 3 || c.Perm != 4 || c.TopicSysFlag != 1 || !c.Order || c.TopicFilterType != singleTag {
		t.Fatalf("configuration %+v", c)
	}
	if got := bodies(again.messages("auto")); got != "x" {
		t.Fatalf("stored %q", got)
	}
	if after := again.topics.dataVersion(); after.Counter+1 < before.Counter || after.Counter > before.Counter {
		t.Fatalf("data version %+v, before %+v", after, before)
	}
}

func TestSendsWaitingForATopicAreBoundedInBytes(t *testing.T) {
	r := startBroker(t, BrokerConfig{})
	unlock, err := r.topics.lock(t.Context(), "new")
	if err != nil {
		t.Fatal(err)
	}
	const n = 100
	body := make([]byte, 1<<20)
	codes := make(chan int32, n)
	for range n {
		if err := r.conn.Go(t.Context(), &transport.Frame{Code: wire.CodeSendMessage, Header: message("new"), Body: body},
			time.Now().Add(time.Minute), func(f *transport.Frame, err error) {
				if err != nil {
					t.Error(err)
				}
				codes <- f.Code
			}); err != nil {
			t.Fatal(err)
		}
	}
	for range n - maxPendingBytes>>20 - 1 { // one was taken out to be worked on
		if code := <-codes; code != wire.SystemBusy {
			t.Errorf("answer %d", code)
		}
	}
	unlock()
	for range maxPendingBytes>>20 + 1 {
		<-codes
	}
}
