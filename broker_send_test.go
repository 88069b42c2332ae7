package mq

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pocketmq/mq/internal/wire"
	"github.com/pocketmq/mq/transport"
)

func TestSentMessageIsStoredAsRocketMQStoresIt(t *testing.T) {
	r := startBroker(t, BrokerConfig{Cluster: "c1"})
	h := message("orders", wire.PropTags, "paid", wire.PropKeys, "k1 k2", wire.PropUniqueKey, "U1", wire.PropWait, "true", "mine", "x")
	h.Flag, h.QueueID, h.BornTimestamp = 7, 3, 12345
	res := r.stored(h, "hello")
	if res.QueueID != 3 || res.QueueOffset != 0 {
		t.Fatalf("queue %d offset %d", res.QueueID, res.QueueOffset)
	}
	host, position, err := wire.ParseOffsetMessageID(res.MsgID)
	if err != nil || host != r.host {
		t.Fatalf("message id %s: host %v, want %v (%v)", res.MsgID, host, r.host, err)
	}
	all := r.queue("orders", 3)
	if len(all) != 1 {
		t.Fatalf("%d messages", len(all))
	}
	m := all[0]
	if string(m.Body) != "hello" || !m.Intact() || m.Topic != "orders" || m.Flag != 7 || m.BornTimestamp != 12345 ||
		m.QueueID != 3 || m.Position != position || m.StoreHost != r.host || m.BornHost.String() != r.conn.LocalAddr() {
		t.Fatalf("stored %+v", m)
	}
	if d := time.Since(time.UnixMilli(m.StoreTimestamp)); d < 0 || d > time.Minute {
		t.Fatalf("store time is %v ago", d)
	}
	want := map[string]string{"TAGS": "paid", "KEYS": "k1 k2", "UNIQ_KEY": "U1", "mine": "x", "CLUSTER": "c1"}
	if got := wire.ParseProperties(m.Properties); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Fatalf("properties %v, want %v", got, want)
	}
}

func TestEverySendCodeIsServed(t *testing.T) {
	r := startBroker(t, BrokerConfig{})
	r.createTopic("t", 1, 6)
	h := message("t")
	r.stored(h, "a")
	short := wire.SendRequestV2(*h)
	r.storedBy(r.call(wire.CodeSendMessageV2, &short, []byte("b")))
	batch, err := wire.AppendBatch(nil, []wire.BatchMessage{{Body: []byte("c")}})
	if err != nil {
		t.Fatal(err)
	}
	short.Batch = true
	r.storedBy(r.call(wire.CodeSendBatchMessage, &short, batch))
	if got := bodies(r.queue("t", 0)); got != "a b c" {
		t.Fatalf("stored %q", got)
	}
}

func TestRefusedSends(t *testing.T) {
	r := startBroker(t, BrokerConfig{MaxMessageSize: 1000})
	r.createTopic("t", 2, 6)
	with := func(topic string, edit func(*wire.SendRequest)) *wire.SendRequest {
		h := message(topic)
		edit(h)
		return h
	}
	none := func(*wire.SendRequest) {}
	for _, c := range []struct {
		name   string
		h      *wire.SendRequest
		body   string
		code   int32
		remark string
	}{
		{"blank topic", with(" ", none), "x", wire.SystemError, "blank"},
		{"illegal character", with("a/b", none), "x", wire.SystemError, "illegal characters"},
		{"long topic", with(strings.Repeat("a", 128), none), "x", wire.SystemError, "127"},
		{"schedule topic", with(scheduleTopic, none), "x", wire.NoPermission, "forbidden"},
		{"half topic", with(wire.TopicHalf, none), "x", wire.NoPermission, "forbidden"},
		{"op topic", with(wire.TopicHalfOp, none), "x", wire.NoPermission, "forbidden"},
		{"self test", with(wire.TopicSelfTest, none), "x", wire.NoPermission, "forbidden"},
		{"offset moved", with(wire.TopicOffsetMoved, none), "x", wire.NoPermission, "forbidden"},
		{"no such template", with("new", func(h *wire.SendRequest) { h.DefaultTopic = "other" }), "x", wire.TopicNotExist, "create it first"},
		{"template without inherit", with("new", func(h *wire.SendRequest) { h.DefaultTopic = "t" }), "x", wire.TopicNotExist, "create it first"},
		{"queue out of range", with("t", func(h *wire.SendRequest) { h.QueueID = 2 }), "x", wire.SystemError, "queueId[2]"},
		{"transaction", message("t", wire.PropTransaction, "true"), "x", wire.NoPermission, "transaction"},
		{"prepared", with("t", func(h *wire.SendRequest) { h.SysFlag = wire.SysTransactionPrepared }), "x", wire.NoPermission, "transaction"},
		{"big body", with("t", none), strings.Repeat("x", 1001), wire.MessageIllegal, "1001"},
		{"big properties", message("t", "k", strings.Repeat("v", 32766)), "x", wire.MessageIllegal, "32768"},
		{"big with the broker's", message("t", "k", strings.Repeat("v", 32765)), "x", wire.MessageIllegal, "limit is 32767"},
		{"delay in seconds", message("t", wire.PropTimerDelaySec, "5"), "x", wire.MessageIllegal, wire.PropTimerDelaySec},
		{"delay in ms", message("t", wire.PropTimerDelayMs, "5"), "x", wire.MessageIllegal, wire.PropTimerDelayMs},
		{"deliver time", message("t", wire.PropTimerDeliverMs, "5"), "x", wire.MessageIllegal, wire.PropTimerDeliverMs},
		{"start deliver time", message("t", wire.PropStartDeliverTime, "5"), "x", wire.MessageIllegal, wire.PropStartDeliverTime},
		{"senseless level", message("t", wire.PropDelay, "soon"), "x", wire.MessageIllegal, "soon"},
		// The order of the checks: the first fault decides.
		{"name before size", with("a/b", none), strings.Repeat("x", 2000), wire.SystemError, "illegal characters"},
		{"queue before size", with("t", func(h *wire.SendRequest) { h.QueueID = 9 }), strings.Repeat("x", 2000), wire.SystemError, "queueId"},
		{"transaction before size", message("t", wire.PropTransaction, "true"), strings.Repeat("x", 2000), wire.NoPermission, "transaction"},
	} {
		t.Run(c.name, func(t *testing.T) { r.refusedWith(c.code, r.send(c.h, c.body), c.remark) })
	}
	if got := r.messages("t"); len(got) != 0 {
		t.Fatalf("stored %d messages", len(got))
	}
	if _, ok := r.topics.lookup("new"); ok {
		t.Fatal("a refused send made a topic")
	}
}

func TestMalformedSendNamesTheField(t *testing.T) {
	r := startBroker(t, BrokerConfig{})
	f := r.call(wire.CodeSendMessageV2, nil, []byte("x"))
	r.refusedWith(wire.SystemError, f, "a")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	fields := message("t").AppendFields(nil)
	for i := 0; i < len(fields); i += 2 {
		if fields[i] == "queueId" {
			fields[i+1] = "many"
		}
	}
	f, err := r.conn.Call(ctx, &transport.Frame{Code: wire.CodeSendMessage, Fields: fields, Body: []byte("x")})
	if err != nil {
		t.Fatal(err)
	}
	r.refusedWith(wire.SystemError, f, "queueId")
}

func TestNegativeQueueIsChosenByTheBroker(t *testing.T) {
	r := startBroker(t, BrokerConfig{})
	r.createTopic("t", 4, 6)
	seen := map[int32]bool{}
	for range 200 {
		h := message("t")
		h.QueueID = -1
		res := r.stored(h, "x")
		if res.QueueID < 0 || res.QueueID > 3 {
			t.Fatalf("queue %d", res.QueueID)
		}
		seen[res.QueueID] = true
	}
	if len(seen) != 4 {
		t.Fatalf("200 sends reached the queues %v", seen)
	}
}

func TestLargestMessageIsStored(t *testing.T) {
	r := startBroker(t, BrokerConfig{})
	r.createTopic("t", 1, 6)
	cluster := len("\x02CLUSTER\x01" + defaultCluster)
	h := message("t", "k", strings.Repeat("v", wire.MaxPropertiesBytes-cluster-2))
	r.stored(h, strings.Repeat("x", 4<<20))
	m := r.queue("t", 0)
	if len(m) != 1 || len(m[0].Body) != 4<<20 || len(m[0].Properties) != wire.MaxPropertiesBytes || !m[0].Intact() {
		t.Fatalf("%d messages", len(m))
	}
	r.refusedWith(wire.MessageIllegal, r.send(message("t"), strings.Repeat("x", 4<<20+1)), "limit")
}

func TestSendsOfOneConnectionAreStoredInOrder(t *testing.T) {
	r := startBroker(t, BrokerConfig{})
	unlock, err := r.topics.lock(t.Context(), "fresh")
	if err != nil {
		t.Fatal(err)
	}
	const n = 4000
	var wg sync.WaitGroup
	wg.Add(n)
	for i := range n {
		if i == n/2 { // the topic is made and the sends that waited go on, while others come
			unlock()
		}
		f := &transport.Frame{Code: wire.CodeSendMessage, Header: message("fresh"), Body: []byte(strconv.Itoa(i))}
		err := r.conn.Go(t.Context(), f, time.Now().Add(time.Minute), func(f *transport.Frame, err error) {
			defer wg.Done()
			if err != nil || f.Code != wire.Success {
				t.Errorf("send: %v %v", err, f)
			}
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	wg.Wait()
	if got, want := bodies(r.queue("fresh", 0)), numbered("", n); got != want {
		t.Fatalf("stored out of order: %.300s", got)
	}
}

func TestOneWaySendIsStored(t *testing.T) {
	r := startBroker(t, BrokerConfig{})
	r.createTopic("t", 1, 6)
	if err := r.conn.Send(&transport.Frame{Code: wire.CodeSendMessage, Flag: transport.FlagOneWay, Header: message("t"), Body: []byte("a")}); err != nil {
		t.Fatal(err)
	}
	r.stored(message("t"), "b") // behind it on the same connection
	if got := bodies(r.queue("t", 0)); got != "a b" {
		t.Fatalf("stored %q", got)
	}
}

func TestBodyMayBeReusedAfterTheAnswer(t *testing.T) {
	r := startBroker(t, BrokerConfig{})
	r.createTopic("t", 1, 6)
	body := []byte("first")
	r.must(wire.CodeSendMessage, message("t"), body)
	copy(body, "-----")
	if got := bodies(r.queue("t", 0)); got != "first" {
		t.Fatalf("stored %q", got)
	}
}

func TestBatchIsStoredInConsecutivePlaces(t *testing.T) {
	r := startBroker(t, BrokerConfig{})
	h := message("new", wire.PropWait, "true", "shared", "s")
	h.Batch, h.QueueID = true, 1
	items := []wire.BatchMessage{
		{Body: []byte("a"), Flag: 1, Properties: "TAGS\x01x\x02UNIQ_KEY\x01U1\x02"},
		{Body: []byte("b"), Flag: 2, Properties: "TAGS\x01y\x02WAIT\x01true"},
		{Body: []byte("c")},
	}
	body, err := wire.AppendBatch(nil, items)
	if err != nil {
		t.Fatal(err)
	}
	res := r.storedBy(r.call(wire.CodeSendMessage, h, body))
	ids := strings.Split(res.MsgID, ",")
	all := r.queue("new", 1)
	if len(ids) != 3 || len(all) != 3 || res.QueueOffset != 0 {
		t.Fatalf("%d ids, %d messages, offset %d", len(ids), len(all), res.QueueOffset)
	}
	for i, m := range all {
		_, position, err := wire.ParseOffsetMessageID(ids[i])
		if err != nil || position != m.Position || m.QueueOffset != int64(i) || m.Flag != items[i].Flag || string(m.Body) != string(items[i].Body) {
			t.Fatalf("message %d: %+v, id %s", i, m, ids[i])
		}
		if prop(m, wire.PropCluster) != defaultCluster || prop(m, "shared") != "s" || prop(m, wire.PropWait) != "" {
			t.Fatalf("message %d: properties %q", i, m.Properties)
		}
	}
	if prop(all[1], wire.PropTags) != "y" {
		t.Fatalf("tag %q", all[1].Properties)
	}
}

func TestBatchIsRefusedAsAWhole(t *testing.T) {
	r := startBroker(t, BrokerConfig{})
	r.createTopic("t", 1, 6)
	good := wire.BatchMessage{Body: []byte("a")}
	for _, c := range []struct {
		name, topic string
		second      wire.BatchMessage
		common      []string
		cut         int
	}{
		{"delayed item", "t", wire.BatchMessage{Body: []byte("b"), Properties: "DELAY\x013"}, nil, 0},
		{"transactional item", "t", wire.BatchMessage{Body: []byte("b"), Properties: "TRAN_MSG\x01true"}, nil, 0},
		{"timer item", "t", wire.BatchMessage{Body: []byte("b"), Properties: "TIMER_DELAY_SEC\x013"}, nil, 0},
		{"delayed request", "t", good, []string{wire.PropDelay, "3"}, 0},
		{"transactional request", "t", good, []string{wire.PropTransaction, "true"}, 0},
		{"malformed", "t", good, nil, 3},
		{"retry topic", RetryTopic("g"), good, nil, 0},
		{"properties too long", "t", wire.BatchMessage{Body: []byte("b"), Properties: "k\x01" + strings.Repeat("v", 32760)}, nil, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			body, err := wire.AppendBatch(nil, []wire.BatchMessage{good, c.second})
			if err != nil {
				t.Fatal(err)
			}
			h := message(c.topic, c.common...)
			h.Batch = true
			r.refusedWith(wire.MessageIllegal, r.call(wire.CodeSendMessage, h, body[:len(body)-c.cut]), "")
		})
	}
	if got := r.messages("t"); len(got) != 0 {
		t.Fatalf("stored %d", len(got))
	}
}
