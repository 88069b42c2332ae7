package mq

import (
	"context"
	"fmt"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pocketmq/mq/internal/wire"
)

func queuesOn(brokers, each int) []Queue {
	var queues []Queue
	for b := range brokers {
		for id := range each {
			queues = append(queues, Queue{"t", fmt.Sprintf("broker-%c", 'a'+b), id})
		}
	}
	return queues
}

func TestNextQueueStaysInRangeAndIsEven(t *testing.T) {
	queues := queuesOn(3, 4)
	for _, start := range []uint32{0, math.MaxInt32 - 600, math.MaxUint32 - 600} {
		counts := make([]int, len(queues))
		for i := range uint32(1200) {
			counts[nextQueue(queues, start+i, "")]++
		}
		for q, n := range counts {
			if n < 99 || n > 101 { // where the counter wraps around one may come early
				t.Errorf("from %d on queue %d was chosen %d times of 1200, want 100", start, q, n)
			}
		}
	}
}

func TestNextQueueAvoidsABroker(t *testing.T) {
	queues := queuesOn(3, 4)
	for turn := range uint32(24) {
		if q := queues[nextQueue(queues, math.MaxUint32-12+turn, "broker-b")]; q.Broker == "broker-b" {
			t.Errorf("turn %d chose %v", turn, q)
		}
	}
	alone := queuesOn(1, 4)
	for turn := range uint32(8) {
		if i := nextQueue(alone, turn, "broker-a"); i != int(turn%4) {
			t.Errorf("with one broker turn %d chose %d", turn, i)
		}
	}
}

// The values are those of Java's Math.abs(key.hashCode() % n).
func TestShardIndexEqualsJavas(t *testing.T) {
	for _, c := range []struct {
		key  string
		n    int
		want int
	}{
		{"", 7, 0},
		{"a", 4, 97 % 4},
		{"TagA", 16, 2598919 % 16},
		{"中文", 10, 646394 % 10},
		{"😀", 10, 1772899 % 10},
		{"polygenelubricants", 7, 2}, // its hash is the smallest integer
		{"polygenelubricants", 8, 0},
		{"order-1000000007", 12, shardByHand("order-1000000007", 12)},
	} {
		if got := shardIndex(c.key, c.n); got != c.want {
			t.Errorf("shardIndex(%q, %d) = %d, want %d", c.key, c.n, got, c.want)
		}
	}
}

// shardByHand computes in 64 bits what Java does in 32.
func shardByHand(key string, n int) int {
	var h int64
	for _, c := range key { // ASCII
		h = (31*h + int64(c)) & math.MaxUint32
	}
	if h > math.MaxInt32 {
		h -= 1 << 32
	}
	if h %= int64(n); h < 0 {
		h = -h
	}
	return int(h)
}

func TestShardKeysKeepTheirQueues(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newFakeCluster(t, 3, 4)
		one, two := c.producer(t, nil), c.producer(t, nil)
		send := func(p *Producer, key string) Queue {
			t.Helper()
			r, err := p.Send(t.Context(), &Message{Topic: "t", ShardKey: key, Body: []byte("x")})
			if err != nil {
				t.Fatal(err)
			}
			return r.Queue
		}
		first := make(map[string]Queue)
		for i := range 1000 {
			key := fmt.Sprint("key-", i)
			first[key] = send(one, key)
			if want := queuesOn(3, 4)[shardByHand(key, 12)]; first[key] != want {
				t.Fatalf("%s went to %v, want %v", key, first[key], want)
			}
		}
		for round := range 10 {
			order := []*fakeBroker{c.brokers[round%3], c.brokers[(round+1)%3], c.brokers[(round+2)%3]}
			c.names.set("t", 4, order...) // name servers answer in any order
			time.Sleep(routeInterval + time.Second)
		}
		for key, queue := range first {
			if a, b := send(one, key), send(two, key); a != queue || b != queue {
				t.Fatalf("%s went to %v, later to %v and %v", key, queue, a, b)
			}
		}
	})
}

func TestOrderedTopicsUseTheListedQueues(t *testing.T) {
	data := wire.RouteData{OrderTopicConf: "broker-b:2;broker-a:1;bad;worse:x;broker-z:-1"}
	for _, name := range []string{"broker-a", "broker-b", "broker-c"} {
		data.QueueDatas = append(data.QueueDatas, wire.QueueData{BrokerName: name, ReadQueueNums: 4, WriteQueueNums: 4, Perm: 6})
		data.BrokerDatas = append(data.BrokerDatas, wire.BrokerData{BrokerName: name, BrokerAddrs: map[int64]string{0: name + ":1"}})
	}
	r := newTopicRoute("t", data, 0)
	want := []Queue{{"t", "broker-a", 0}, {"t", "broker-b", 0}, {"t", "broker-b", 1}}
	if fmt.Sprint(r.publishQueues) != fmt.Sprint(want) {
		t.Errorf("queues %v, want %v", r.publishQueues, want)
	}
	if len(r.readQueues) != 12 {
		t.Errorf("%d queues to read, want all 12", len(r.readQueues))
	}
	data.OrderTopicConf = ""
	if newTopicRoute("t", data, 0).equal(r) {
		t.Error("a change of the ordered queues is no change of the route")
	}
}

func TestRouteQueuesFollowPermissions(t *testing.T) {
	data := wire.RouteData{
		QueueDatas: []wire.QueueData{
			{BrokerName: "read", ReadQueueNums: 2, WriteQueueNums: 3, Perm: 4},
			{BrokerName: "write", ReadQueueNums: 2, WriteQueueNums: 3, Perm: 2},
			{BrokerName: "slave", ReadQueueNums: 2, WriteQueueNums: 3, Perm: 6},
			{BrokerName: "unknown", ReadQueueNums: 2, WriteQueueNums: 3, Perm: 6},
		},
		BrokerDatas: []wire.BrokerData{
			{BrokerName: "read", BrokerAddrs: map[int64]string{0: "r:1"}},
			{BrokerName: "write", BrokerAddrs: map[int64]string{0: "w:1", 1: "w:2"}},
			{BrokerName: "slave", BrokerAddrs: map[int64]string{1: "s:1"}},
		},
	}
	r := newTopicRoute("t", data, 0)
	if got := fmt.Sprint(r.publishQueues, r.masters); got != "[t@write:0 t@write:1 t@write:2] [w:1 w:1 w:1]" {
		t.Errorf("to write: %s", got)
	}
	if got := fmt.Sprint(r.readQueues); got != "[t@read:0 t@read:1 t@slave:0 t@slave:1]" {
		t.Errorf("to read: %s", got)
	}
}

func TestFaultTable(t *testing.T) {
	now := time.Unix(1000, 0)
	queues := queuesOn(2, 2)
	f := newFaultTable()
	f.update(now, "broker-a", 99*time.Millisecond, false)
	if !f.available(now, "broker-a") {
		t.Error("99ms make a broker unavailable")
	}
	for _, c := range []struct {
		latency, avoid time.Duration
		failed         bool
	}{
		{550 * time.Millisecond, 2 * time.Second, false},
		{1800 * time.Millisecond, 5 * time.Second, false},
		{3 * time.Second, 6 * time.Second, false},
		{time.Hour, 30 * time.Second, false},
		{time.Millisecond, 10 * time.Second, true},
	} {
		f.update(now, "broker-a", c.latency, c.failed)
		if f.available(now.Add(c.avoid-1), "broker-a") || !f.available(now.Add(c.avoid), "broker-a") {
			t.Errorf("latency %v, failed %v: not avoided for %v", c.latency, c.failed, c.avoid)
		}
	}
	for turn := range uint32(8) {
		if q := queues[f.pick(now, queues, turn, "")]; q.Broker != "broker-b" {
			t.Errorf("turn %d chose %v, broker-a is isolated", turn, q)
		}
	}
	// Both are out: the one that did better is taken.
	f.update(now, "broker-b", 600*time.Millisecond, false)
	for turn := range uint32(8) {
		if q := queues[f.pick(now, queues, turn, "")]; q.Broker != "broker-b" {
			t.Errorf("turn %d chose %v, broker-b is less bad", turn, q)
		}
	}
	if q := queues[f.pick(now.Add(time.Minute), queues, 0, "broker-a")]; q.Broker != "broker-b" {
		t.Errorf("chose %v, broker-a has just failed", q)
	}
}

func TestSlowBrokerIsAvoidedForAWhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newFakeCluster(t, 2, 2)
		p := c.producer(t, func(cfg *ProducerConfig) { cfg.LatencyFault = true })
		c.brokers[0].do(later(600 * time.Millisecond))
		send := func() string {
			r, err := p.Send(context.Background(), textMessage("t", "x"))
			if err != nil {
				t.Fatal(err)
			}
			return r.Queue.Broker
		}
		for send() != "broker-a" {
		}
		for range 8 {
			if b := send(); b != "broker-b" {
				t.Errorf("sent to %s, which was slow", b)
			}
		}
		c.brokers[0].do(nil)
		time.Sleep(2 * time.Second)
		seen := map[string]bool{}
		for range 4 {
			seen[send()] = true
		}
		if !seen["broker-a"] {
			t.Error("the broker did not come back after 2s")
		}
	})
}
