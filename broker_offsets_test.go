package mq

import (
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/pocketmq/mq/internal/wire"
	"github.com/pocketmq/mq/storage"
	"github.com/pocketmq/mq/transport"
)

func (r *rawBroker) offset(code int32, h transport.Header) int64 {
	r.t.Helper()
	res, err := transport.HeaderOf[wire.OffsetResponse](r.must(code, h, nil))
	if err != nil {
		r.t.Fatal(err)
	}
	return res.Offset
}

func (r *rawBroker) commit(group, topic string, queue int32, offset int64) *transport.Frame {
	r.t.Helper()
	return r.call(wire.CodeUpdateConsumerOffset, &wire.UpdateOffsetRequest{ConsumerGroup: group, Topic: topic, QueueID: queue, CommitOffset: offset}, nil)
}

func TestACommittedOffsetIsReadBackASmallerOneToo(t *testing.T) {
	r := startBroker(t, BrokerConfig{})
	r.createTopic("orders", 2, permRW)
	h := &wire.QueryOffsetRequest{ConsumerGroup: "g", Topic: "orders", QueueID: 1}
	for _, offset := range []int64{7, 3, 0, 1 << 40} {
		r.refused(r.commit("g", "orders", 1, offset), wire.Success, "")
		if got := r.offset(wire.CodeQueryConsumerOffset, h); got != offset {
			t.Errorf("offset %d, want %d", got, offset)
		}
	}
	r.refused(r.commit("g", "orders", 2, 1), wire.SystemError, "queue 2")
	r.refused(r.commit("g", "orders", -1, 1), wire.SystemError, "queue -1")
	r.refused(r.commit("g", "orders", 1, -1), wire.SystemError, "negative")
	r.refused(r.commit("g", "unknown", 0, 1), wire.TopicNotExist, "unknown")
}

func TestAOneWayCommitComesBeforeTheQueryBehindIt(t *testing.T) {
	r := startBroker(t, BrokerConfig{})
	r.createTopic("orders", 1, permRW)
	for offset := range int64(100) {
		err := r.conn.Send(&transport.Frame{Code: wire.CodeUpdateConsumerOffset,
			Header: &wire.UpdateOffsetRequest{ConsumerGroup: "g", Topic: "orders", CommitOffset: offset}})
		if err != nil {
			t.Fatal(err)
		}
		if got := r.offset(wire.CodeQueryConsumerOffset, &wire.QueryOffsetRequest{ConsumerGroup: "g", Topic: "orders"}); got != offset {
			t.Fatalf("offset %d, want %d", got, offset)
		}
	}
}

// A new group on a young topic begins at 0 whatever its start policy is; where the
// first message is gone the client is told that there is no offset.
func TestAGroupWithoutOffsetBeginsAtZeroOnAYoungTopicOnly(t *testing.T) {
	r := startBroker(t, BrokerConfig{storage: func(o *storage.Options) { o.SegmentBytes = 64 << 10 }})
	r.createTopic("orders", 1, permRW)
	r.createTopic("filler", 1, permRW)
	h := &wire.QueryOffsetRequest{ConsumerGroup: "g", Topic: "orders"}
	if got := r.offset(wire.CodeQueryConsumerOffset, h); got != 0 {
		t.Errorf("empty queue: %d", got)
	}
	r.sendTo("orders", "", "a")
	if got := r.offset(wire.CodeQueryConsumerOffset, h); got != 0 {
		t.Errorf("first message there: %d", got)
	}
	for range 10 {
		r.sendTo("filler", "", strings.Repeat("x", 16<<10))
	}
	if err := r.store.TrimTo(t.Context(), r.store.LogEnd()); err != nil {
		t.Fatal(err)
	}
	r.refused(r.call(wire.CodeQueryConsumerOffset, h, nil), wire.QueryNotFound, "Not found")
	if got := r.offset(wire.CodeQueryConsumerOffset, &wire.QueryOffsetRequest{ConsumerGroup: "g", Topic: "unknown"}); got != 0 {
		t.Errorf("unknown topic: %d", got)
	}
}

func TestBoundsOfQueues(t *testing.T) {
	r := startBroker(t, BrokerConfig{})
	r.createTopic("orders", 2, permRW)
	sent := r.sendTo("orders", "", "a")
	r.sendTo("orders", "", "b")
	record, err := r.store.RecordAt(0)
	if err != nil {
		t.Fatal(err)
	}
	first, _, err := wire.ParseStored(record)
	if err != nil || sent.QueueOffset != 0 {
		t.Fatal(err, sent)
	}
	for _, c := range []struct {
		topic            string
		queue            int32
		min, max, stored int64
	}{
		{"orders", 0, 0, 2, first.StoreTimestamp},
		{"orders", 1, 0, 0, -1},
		{"orders", 9, 0, 0, -1},
		{"unknown", 0, 0, 0, -1},
	} {
		q := wire.QueueRequest{Topic: c.topic, QueueID: c.queue}
		if got := r.offset(wire.CodeGetMinOffset, &q); got != c.min {
			t.Errorf("%s/%d: min %d, want %d", c.topic, c.queue, got, c.min)
		}
		if got := r.offset(wire.CodeGetMaxOffset, &q); got != c.max {
			t.Errorf("%s/%d: max %d, want %d", c.topic, c.queue, got, c.max)
		}
		h, err := transport.HeaderOf[wire.EarliestTimeResponse](r.must(wire.CodeGetEarliestMsgStoreTime, &q, nil))
		if err != nil || h.Timestamp != c.stored {
			t.Errorf("%s/%d: earliest %+v, %v, want %d", c.topic, c.queue, h, err, c.stored)
		}
	}
}

func TestOffsetsAreSearchedByTheNearestStoreTime(t *testing.T) {
	inBubble(t, BrokerConfig{}, func(t *testing.T, r *rawBroker) {
		r.createTopic("orders", 2, permRW)
		start := time.Now().UnixMilli()
		for range 10 {
			r.sendTo("orders", "", "x")
			time.Sleep(100 * time.Millisecond)
		}
		for after, want := range map[int64]int64{-1000: 0, 0: 0, 500: 5, 549: 5, 550: 5, 551: 6, 599: 6, 900: 9, 100_000: 9} {
			h := &wire.SearchOffsetRequest{Topic: "orders", Timestamp: start + after}
			if got := r.offset(wire.CodeSearchOffsetByTimestamp, h); got != want {
				t.Errorf("%d ms after the first: %d, want %d", after, got, want)
			}
		}
		for _, h := range []*wire.SearchOffsetRequest{{Topic: "orders", QueueID: 1, Timestamp: start}, {Topic: "unknown", Timestamp: start}} {
			if got := r.offset(wire.CodeSearchOffsetByTimestamp, h); got != 0 {
				t.Errorf("%+v: %d, want 0", h, got)
			}
		}
	})
}

func TestAllOffsetsAreListedByTopicAndGroup(t *testing.T) {
	r := startBroker(t, BrokerConfig{})
	r.createTopic("orders", 2, permRW)
	r.createTopic("other", 1, permRW)
	for _, g := range []string{"g", "h", "idle"} {
		r.updateGroup(func(*wire.SubscriptionGroupConfig) {}, g)
	}
	r.commit("g", "orders", 0, 5)
	r.commit("g", "orders", 1, 6)
	r.commit("g", "other", 0, 7)
	r.commit("h", "orders", 1, 8)
	got, err := wire.ParseConsumerOffsets(r.must(wire.CodeGetAllConsumerOffset, nil, nil).Body)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]map[int32]int64{"orders@g": {0: 5, 1: 6}, "other@g": {0: 7}, "orders@h": {1: 8}}
	if !maps.EqualFunc(got.Offsets, want, maps.Equal) {
		t.Errorf("got %v, want %v", got.Offsets, want)
	}
}

// Offsets ride along with messages or become durable after a second; when a
// member leaves they do at once, because its successor goes on from them.
func TestOffsetsAreDurableWhenAMemberLeaves(t *testing.T) {
	for name, leave := range map[string]func(*testing.T, *rawBroker){
		"unregister": func(_ *testing.T, r *rawBroker) {
			r.must(wire.CodeUnregisterClient, &wire.UnregisterClientRequest{ClientID: "c", ConsumerGroup: "g"}, nil)
		},
		"close": func(t *testing.T, r *rawBroker) {
			if err := r.conn.Close(); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			fs := vfs.NewCrashableMem()
			inBubble(t, onDisk(fs), func(t *testing.T, r *rawBroker) {
				main := *r
				r, _ = main.beside()
				r.createTopic("orders", 1, permRW)
				r.beat("c", "g", tagSub("orders", "*"))
				time.Sleep(time.Minute)
				r.commit("g", "orders", 0, 42)
				leave(t, r)
				time.Sleep(time.Millisecond) // far less than a second
				crashed := startBroker(t, onDisk(fs.CrashClone(vfs.CrashCloneCfg{})))
				if got := crashed.offset(wire.CodeQueryConsumerOffset, &wire.QueryOffsetRequest{ConsumerGroup: "g", Topic: "orders"}); got != 42 {
					t.Errorf("offset %d after the crash, want 42", got)
				}
			})
		})
	}
}

func TestABrokerClosesUnderItsMembersAndKeepsTheirOffsets(t *testing.T) {
	fs := vfs.NewMem()
	inBubble(t, onDisk(fs), func(_ *testing.T, r *rawBroker) {
		r.createTopic("orders", 1, permRW)
		r.beat("c", "g", tagSub("orders", "*"))
		r.waiting(holding(pullHeader("g", "orders", 0), time.Hour))
		r.commit("g", "orders", 0, 42)
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	r := startBroker(t, onDisk(fs))
	if got := r.offset(wire.CodeQueryConsumerOffset, &wire.QueryOffsetRequest{ConsumerGroup: "g", Topic: "orders"}); got != 42 {
		t.Errorf("offset %d, want 42", got)
	}
}

func TestRequestsWithoutARequiredFieldNameIt(t *testing.T) {
	r := startBroker(t, BrokerConfig{})
	for code, missing := range map[int32]string{
		wire.CodeQueryConsumerOffset:       "consumerGroup",
		wire.CodeUpdateConsumerOffset:      "consumerGroup",
		wire.CodeSearchOffsetByTimestamp:   "topic",
		wire.CodeGetMaxOffset:              "topic",
		wire.CodeGetMinOffset:              "topic",
		wire.CodeGetEarliestMsgStoreTime:   "topic",
		wire.CodeViewMessageByID:           "offset",
		wire.CodeUnregisterClient:          "clientID",
		wire.CodeGetConsumerListByGroup:    "consumerGroup",
		wire.CodeDeleteSubscriptionGroup:   "groupName",
		wire.CodeGetConsumerConnectionList: "consumerGroup",
		wire.CodeGetProducerConnectionList: "producerGroup",
		wire.CodeGetConsumeStats:           "consumerGroup",
		wire.CodeGetTopicStatsInfo:         "topic",
	} {
		r.refused(r.call(code, nil, nil), wire.SystemError, missing)
	}
}
