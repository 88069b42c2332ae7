package mq

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/pocketmq/mq/internal/wire"
	"github.com/pocketmq/mq/storage"
	"github.com/pocketmq/mq/transport"
)

func (r *rawBroker) updateGroup(change func(*wire.SubscriptionGroupConfig), name string) {
	r.t.Helper()
	c := wire.DefaultSubscriptionGroupConfig(name)
	change(&c)
	r.must(wire.CodeUpdateAndCreateSubscriptionGroup, nil, c.Marshal())
}

func (r *rawBroker) setConfig(key, value string) {
	r.t.Helper()
	r.must(wire.CodeUpdateBrokerConfig, nil, []byte(key+"="+value+"\n"))
}

// Everything is wrong at first. Each step mends what was complained of last.
func TestPullChecksComeInRocketMQsOrder(t *testing.T) {
	r := startBroker(t, BrokerConfig{})
	r.setConfig("brokerPermission", "2")
	r.setConfig("autoCreateSubscriptionGroup", "false")
	h := pullHeader("g", "orders", 0)
	h.QueueID, h.SubVersion = 2, 5
	sub := tagSub("other", "*")
	broadcast := func() {
		r.beatAs("c", wire.ConsumerData{GroupName: "g", MessageModel: wire.Broadcasting, Subscriptions: []wire.SubscriptionData{sub}})
	}
	for _, step := range []struct {
		code   int32
		remark string
		mend   func()
	}{
		{wire.NoPermission, "the broker", func() { r.setConfig("brokerPermission", "6") }},
		{wire.SubscriptionGroupNotExist, "g", func() {
			r.updateGroup(func(c *wire.SubscriptionGroupConfig) { c.ConsumeEnable, c.ConsumeBroadcastEnable = false, false }, "g")
		}},
		{wire.NoPermission, "group g", func() {
			r.updateGroup(func(c *wire.SubscriptionGroupConfig) { c.ConsumeBroadcastEnable = false }, "g")
		}},
		{wire.TopicNotExist, "orders", func() { r.createTopic("orders", 2, wire.PermWrite) }},
		{wire.NoPermission, "topic orders", func() { r.createTopic("orders", 2, permRW) }},
		{wire.SystemError, "queue 2", func() { h.QueueID = 1 }},
		{wire.SubscriptionNotExist, "no member", broadcast},
		{wire.NoPermission, "broadcasting", func() { r.updateGroup(func(*wire.SubscriptionGroupConfig) {}, "g") }},
		{wire.SubscriptionNotExist, "orders", func() {
			sub = tagSub("orders", "A")
			sub.SubVersion, sub.ExpressionType = 4, wire.ExpressionSQL92
			broadcast()
		}},
		{wire.SubscriptionNotLatest, "version 4", func() { sub.SubVersion = 5; broadcast() }},
		{wire.SystemError, "SQL92", func() { sub.SubVersion, sub.ExpressionType = 6, wire.ExpressionTag; broadcast() }},
		{wire.PullNotFound, "", nil},
	} {
		r.refused(r.call(wire.CodePullMessage, h, nil), step.code, step.remark)
		if t.Failed() {
			t.FailNow()
		}
		if step.mend != nil {
			step.mend()
		}
	}
}

func TestASubscriptionInTheRequestNeedsNoHeartbeat(t *testing.T) {
	r := startBroker(t, BrokerConfig{})
	r.createTopic("orders", 1, permRW)
	r.sendTo("orders", "A", "a0")
	r.sendTo("orders", "B", "b0")
	for expression, want := range map[string]string{"": "a0 b0", "*": "a0 b0", "A": "a0", "B||C": "b0"} {
		if p := r.pull(filtered(pullHeader("g", "orders", 0), expression)); p.code != wire.Success || p.bodies != want || p.next != 2 {
			t.Errorf("%q: code %d %q, next %d, %q; want %q", expression, p.code, p.remark, p.next, p.bodies, want)
		}
	}
	r.refused(r.call(wire.CodePullMessage, filtered(pullHeader("g", "orders", 0), "||"), nil), wire.SubscriptionParseFailed, "orders")
	sql := filtered(pullHeader("g", "orders", 0), "a > 1")
	sql.ExpressionType = wire.ExpressionSQL92
	r.refused(r.call(wire.CodePullMessage, sql, nil), wire.SystemError, noSQL92)
}

func TestAPullCreatesItsGroupOnlyWhereThatIsAllowed(t *testing.T) {
	r := startBroker(t, BrokerConfig{DisableAutoCreateGroup: true})
	r.createTopic("orders", 1, permRW)
	r.refused(r.call(wire.CodePullMessage, filtered(pullHeader("g", "orders", 0), "*"), nil), wire.SubscriptionGroupNotExist, "g")
	r.pull(filtered(pullHeader("CID_RMQ_SYS_X", "orders", 0), "*")).want(t, wire.PullNotFound, 0, "NO_MESSAGE_IN_QUEUE")
	r.setConfig("autoCreateSubscriptionGroup", "true")
	r.pull(filtered(pullHeader("g", "orders", 0), "*")).want(t, wire.PullNotFound, 0, "")
	if _, ok := r.groups.lookup("g"); !ok {
		t.Error("the group was not created")
	}
	r.refused(r.call(wire.CodePullMessage, filtered(pullHeader("bad name", "orders", 0), "*"), nil), wire.SubscriptionGroupNotExist, "illegal")
}

func TestPullStatusesAndNextOffsets(t *testing.T) {
	r := startBroker(t, BrokerConfig{})
	r.createTopic("orders", 1, permRW)
	pull := func(offset int64) pulled { return r.pull(filtered(pullHeader("g", "orders", offset), "A")) }
	pull(0).want(t, wire.PullNotFound, 0, "NO_MESSAGE_IN_QUEUE")
	pull(7).want(t, wire.PullOffsetMoved, 0, "NO_MESSAGE_IN_QUEUE")
	for range 3 {
		r.sendTo("orders", "A", "a")
	}
	r.sendTo("orders", "B", "b")
	pull(1).want(t, wire.Success, 4, "FOUND")
	pull(3).want(t, wire.PullRetryImmediately, 4, "NO_MATCHED_MESSAGE")
	pull(4).want(t, wire.PullNotFound, 4, "OFFSET_OVERFLOW_ONE")
	pull(5).want(t, wire.PullOffsetMoved, 4, "OFFSET_OVERFLOW_BADLY")
	if p := pull(1); p.min != 0 || p.max != 4 || p.bodies != "a a" {
		t.Errorf("bounds %d to %d, %q", p.min, p.max, p.bodies)
	}
	pull(-1).want(t, wire.PullOffsetMoved, 0, "OFFSET_TOO_SMALL")
}

// Everything of a queue was removed by retention, and the group's offset is from
// before.
func TestAPullOfExpiredMessagesIsSentToTheQueuesStart(t *testing.T) {
	r := startBroker(t, BrokerConfig{storage: func(o *storage.Options) { o.SegmentBytes = 64 << 10 }})
	r.createTopic("orders", 1, permRW)
	r.createTopic("filler", 1, permRW)
	for range 20 {
		r.sendTo("orders", "", "old")
	}
	for range 10 {
		r.sendTo("filler", "", strings.Repeat("x", 16<<10))
	}
	if err := r.store.TrimTo(t.Context(), r.store.LogEnd()); err != nil {
		t.Fatal(err)
	}
	p := r.pull(filtered(pullHeader("g", "orders", 0), "*"))
	p.want(t, wire.PullOffsetMoved, 20, "OFFSET_TOO_SMALL")
	if p.min != 20 || p.max != 20 {
		t.Errorf("bounds %d to %d, want 20 to 20", p.min, p.max)
	}
	r.pull(filtered(pullHeader("g", "orders", 20), "*")).want(t, wire.PullNotFound, 20, "")
}

// A group that wants a rare tag must not lag behind messages it never gets.
func TestOffsetsAdvanceOverMessagesThatDoNotMatch(t *testing.T) {
	r := startBroker(t, BrokerConfig{})
	r.createTopic("orders", 1, permRW)
	const n = 2000
	for i := range n {
		r.sendTo("orders", "X", strconv.Itoa(i))
	}
	pulls := 0
	for offset := int64(0); offset < n; pulls++ {
		p := r.pull(filtered(pullHeader("g", "orders", offset), "Y"))
		if p.code != wire.PullRetryImmediately || p.next <= offset {
			t.Fatalf("at %d: answer %d, next %d", offset, p.code, p.next)
		}
		offset = p.next
	}
	if pulls > 3 {
		t.Errorf("%d pulls over %d messages, want at least %d in each", pulls, n, minPullScan)
	}
}

func TestPullsAreBoundedByCountAndBytes(t *testing.T) {
	r := startBroker(t, BrokerConfig{})
	r.createTopic("small", 1, permRW)
	r.createTopic("big", 1, permRW)
	for range 40 {
		r.sendTo("small", "", "x")
	}
	for _, kib := range []int{300, 100, 100, 100} {
		r.sendTo("big", "", strings.Repeat("x", kib<<10))
	}
	count := func(topic string, offset int64, max int32) int64 {
		h := filtered(pullHeader("g", topic, offset), "*")
		h.MaxMsgNums = max
		return r.pull(h).next - offset
	}
	for max, want := range map[int32]int64{1: 1, 10: 10, 100: nearPullCount, 0: 1, -5: 1} {
		if n := count("small", 0, max); n != want {
			t.Errorf("asked for %d, got %d, want %d", max, n, want)
		}
	}
	if n := count("big", 0, 32); n != 1 {
		t.Errorf("%d messages, want the one that is beyond the limit alone", n)
	}
	if n := count("big", 1, 32); n != 2 {
		t.Errorf("%d messages, want two of 100 KiB in 256 KiB", n)
	}
}

func TestAPullCommitsTheOffsetItCarries(t *testing.T) {
	r := startBroker(t, BrokerConfig{})
	r.createTopic("orders", 1, permRW)
	topic, _ := r.topics.lookup("orders")
	h := filtered(pullHeader("g", "orders", 9), "*")
	h.CommitOffset = 3
	r.pull(h).want(t, wire.PullOffsetMoved, 0, "")
	if _, found, err := r.store.CommittedOffset("g", topic.store, 0); found || err != nil {
		t.Errorf("committed without the flag, or %v", err)
	}
	h.SysFlag |= wire.PullCommitOffset
	r.pull(h)
	if offset, found, err := r.store.CommittedOffset("g", topic.store, 0); offset != 3 || !found || err != nil {
		t.Errorf("offset %d, found %v, %v; want 3 whatever became of the pull", offset, found, err)
	}
	h.CommitOffset = -1
	r.pull(h)
	if offset, _, _ := r.store.CommittedOffset("g", topic.store, 0); offset != 3 {
		t.Errorf("a negative offset was committed: %d", offset)
	}
}

func TestPulledBytesAreTheStoredOnes(t *testing.T) {
	r := startBroker(t, BrokerConfig{})
	r.createTopic("orders", 1, permRW)
	sent := r.stored(message("orders", wire.PropTags, "A", "color", "red"), "body")
	p := r.pull(filtered(pullHeader("g", "orders", 0), "*"))
	m, n, err := wire.ParseStored(p.frame.Body)
	if err != nil || n != len(p.frame.Body) {
		t.Fatalf("body of %d bytes, one record of %d, %v", len(p.frame.Body), n, err)
	}
	if !m.Intact() || m.Topic != "orders" || m.QueueOffset != sent.QueueOffset || prop(m, "color") != "red" {
		t.Errorf("record %+v", m)
	}
	record, err := r.store.RecordAt(m.Position)
	if err != nil || string(record) != string(p.frame.Body) {
		t.Errorf("the log has other bytes at %d, or %v", m.Position, err)
	}
}

func TestLitePullsAreServedLikePulls(t *testing.T) {
	r := startBroker(t, BrokerConfig{})
	r.createTopic("orders", 1, permRW)
	r.sendTo("orders", "", "a")
	h := filtered(pullHeader("g", "orders", 0), "*")
	h.SysFlag |= wire.PullLite
	if p := r.read(r.call(wire.CodeLitePullMessage, h, nil)); p.code != wire.Success || p.bodies != "a" {
		t.Errorf("answer %d %q", p.code, p.bodies)
	}
}

func TestAPullWithoutARequiredFieldIsRefusedByItsName(t *testing.T) {
	r := startBroker(t, BrokerConfig{})
	fields := (&wire.PullRequest{ConsumerGroup: "g", Topic: "t"}).AppendFields(nil)
	for i := 0; i < len(fields); i += 2 {
		key := fields[i]
		rest := append(append([]string(nil), fields[:i]...), fields[i+2:]...)
		f, err := r.conn.Call(t.Context(), &transport.Frame{Code: wire.CodePullMessage, Fields: rest})
		if err != nil {
			t.Fatal(err)
		}
		r.refused(f, wire.SystemError, key)
	}
}

func TestColdPullsAreReadByThePool(t *testing.T) {
	r := startBroker(t, BrokerConfig{storage: func(o *storage.Options) { o.RingBytes = 1 }})
	r.createTopic("orders", 1, permRW)
	for i := range 50 {
		r.sendTo("orders", "", fmt.Sprint(i))
	}
	if p := r.pull(filtered(pullHeader("g", "orders", 10), "*")); p.code != wire.Success || p.next != 42 || !strings.HasPrefix(p.bodies, "10 11 ") {
		t.Errorf("answer %d, next %d, %q", p.code, p.next, p.bodies)
	}
}
