package mq

import (
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pocketmq/mq/internal/wire"
)

// back hands the newest message of a topic's queue back for the group.
func (r *rawBroker) back(group string, m wire.StoredMessage, level int32) int32 {
	r.t.Helper()
	return r.call(wire.CodeConsumerSendMsgBack, &wire.SendBackRequest{Offset: m.Position, Group: group, DelayLevel: level}, nil).Code
}

func last(all []wire.StoredMessage) wire.StoredMessage {
	if len(all) == 0 {
		return wire.StoredMessage{}
	}
	return all[len(all)-1]
}

func TestFailingMessageIsRetriedByTheScheduleAndThenDead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := startBroker(t, BrokerConfig{})
		h := message("orders", wire.PropTags, "paid", wire.PropUniqueKey, "U1", wire.PropKeys, "k", wire.PropDelay, "1", "mine", "x")
		h.Flag, h.BornTimestamp, h.SysFlag = 9, 4242, wire.SysCompressed
		h.QueueID = 2
		r.stored(h, "body")
		time.Sleep(1100 * time.Millisecond)
		first := last(r.queue("orders", 2))
		began, m := time.Now(), first
		waits := []time.Duration{10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200}
		var sum time.Duration
		for i, seconds := range waits {
			if code := r.back("g", m, 0); code != wire.Success {
				t.Fatalf("failure %d: answer %d", i, code)
			}
			wait := seconds * time.Second
			time.Sleep(wait - 10*time.Millisecond)
			if got := len(r.queue(RetryTopic("g"), 0)); got != i {
				t.Fatalf("failure %d: delivered too early", i)
			}
			time.Sleep(20 * time.Millisecond)
			if got := len(r.queue(RetryTopic("g"), 0)); got != i+1 {
				t.Fatalf("failure %d: %d retries after %v", i, got, wait)
			}
			sum += wait
			m = last(r.queue(RetryTopic("g"), 0))
			if m.ReconsumeTimes != int32(i+1) || prop(m, wire.PropDelay) != strconv.Itoa(i+3) {
				t.Fatalf("retry %d: reconsume times %d, properties %q", i, m.ReconsumeTimes, m.Properties)
			}
		}
		if sum != 4*time.Hour+45*time.Minute+40*time.Second || time.Since(began) < sum {
			t.Fatalf("the waits sum up to %v", sum)
		}
		if code := r.back("g", m, 0); code != wire.Success {
			t.Fatalf("last failure: answer %d", code)
		}
		dead := r.queue(DeadLetterTopic("g"), 0)
		if len(dead) != 1 {
			t.Fatalf("%d dead letters", len(dead))
		}
		d := dead[0]
		if string(d.Body) != "body" || d.Flag != 9 || d.BornTimestamp != 4242 || d.BornHost != first.BornHost ||
			d.SysFlag != first.SysFlag || d.ReconsumeTimes != 17 || d.Topic != DeadLetterTopic("g") {
			t.Fatalf("dead letter %+v", d)
		}
		origin := wire.OffsetMessageID(r.host, first.Position)
		for key, want := range map[string]string{wire.PropRetryTopic: "orders", wire.PropOriginMessageID: origin, wire.PropDelay: "",
			wire.PropUniqueKey: "U1", wire.PropKeys: "k", wire.PropTags: "paid", "mine": "x", wire.PropCluster: defaultCluster} {
			if got := prop(d, key); got != want {
				t.Errorf("dead letter's %s is %q, want %q", key, got, want)
			}
		}
	})
}

func TestRequestsOwnLimitOfRetriesWins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := startBroker(t, BrokerConfig{})
		r.createTopic("t", 1, 6)
		r.stored(message("t"), "x")
		m := last(r.queue("t", 0))
		h := &wire.SendBackRequest{Group: "g", HasMaxReconsumeTimes: true, MaxReconsumeTimes: 2}
		for range 2 {
			h.Offset = m.Position
			r.must(wire.CodeConsumerSendMsgBack, h, nil)
			time.Sleep(time.Minute)
			m = last(r.messages(RetryTopic("g")))
		}
		h.Offset = m.Position
		r.must(wire.CodeConsumerSendMsgBack, h, nil)
		if got := len(r.messages(DeadLetterTopic("g"))); got != 1 {
			t.Fatalf("%d dead letters after 2 retries of 2", got)
		}
		// A client older than 3.4.9 has no limit of its own.
		r.version = versionOwnLimit - 1
		h.MaxReconsumeTimes = 0
		r.must(wire.CodeConsumerSendMsgBack, h, nil)
		if got := len(r.messages(DeadLetterTopic("g"))); got != 1 {
			t.Fatalf("%d dead letters: an old client's limit counted", got)
		}
	})
}

func TestGroupsLimitOfRetries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := startBroker(t, BrokerConfig{})
		g := wire.DefaultSubscriptionGroupConfig("g")
		g.RetryMaxTimes = 1
		r.must(wire.CodeUpdateAndCreateSubscriptionGroup, nil, g.Marshal())
		r.createTopic("t", 1, 6)
		r.stored(message("t"), "x")
		if code := r.back("g", last(r.queue("t", 0)), 18); code != wire.Success {
			t.Fatal(code)
		}
		time.Sleep(2*time.Hour + time.Second)
		again := r.messages(RetryTopic("g"))
		if len(again) != 1 {
			t.Fatalf("%d retries", len(again))
		}
		if code := r.back("g", again[0], 18); code != wire.Success {
			t.Fatal(code)
		}
		// At once, although the message carries a delay.
		dead := r.messages(DeadLetterTopic("g"))
		if len(dead) != 1 || prop(dead[0], wire.PropDelay) != "" {
			t.Fatalf("dead letters %+v", dead)
		}
	})
}

func TestNegativeLevelIsTheDeadLetterTopic(t *testing.T) {
	r := startBroker(t, BrokerConfig{})
	r.createTopic("t", 1, 6)
	r.stored(message("t"), "x")
	if code := r.back("g", last(r.queue("t", 0)), -1); code != wire.Success {
		t.Fatal(code)
	}
	if dead := r.queue(DeadLetterTopic("g"), 0); len(dead) != 1 || dead[0].ReconsumeTimes != 1 {
		t.Fatalf("dead letters %+v", dead)
	}
	topic, _ := r.topics.lookup(DeadLetterTopic("g"))
	if c := topic.conf(); c.WriteQueueNums != 1 || c.Perm != 6 {
		t.Fatalf("dead-letter topic %+v", c)
	}
}

func TestRefusedSendBacks(t *testing.T) {
	r := startBroker(t, BrokerConfig{DisableAutoCreateGroup: true})
	r.createTopic("t", 1, 6)
	r.stored(message("t"), "x")
	m := last(r.queue("t", 0))
	if code := r.back("unknown", m, 0); code != wire.SubscriptionGroupNotExist {
		t.Fatalf("unknown group: %d", code)
	}
	if _, ok := r.topics.lookup(RetryTopic("unknown")); ok {
		t.Fatal("a refused send-back made a topic")
	}
	group := func(name string, queues int32) {
		c := wire.DefaultSubscriptionGroupConfig(name)
		c.RetryQueueNums = queues
		r.must(wire.CodeUpdateAndCreateSubscriptionGroup, nil, c.Marshal())
	}
	group("none", 0)
	if code := r.back("none", m, 0); code != wire.Success {
		t.Fatalf("group without retries: %d", code)
	}
	if got := r.messages(RetryTopic("none")); len(got) != 0 {
		t.Fatalf("a group without retries got %d", len(got))
	}
	group("g", 3)
	lost := m
	lost.Position += 1 << 40
	f := r.call(wire.CodeConsumerSendMsgBack, &wire.SendBackRequest{Offset: lost.Position, Group: "g"}, nil)
	if f.Code != wire.SystemError || !strings.Contains(f.Remark, "look message by offset failed") {
		t.Fatalf("lost message: %d %s", f.Code, f.Remark)
	}
	if topic, _ := r.topics.lookup(RetryTopic("g")); topic.conf().WriteQueueNums != 3 {
		t.Fatalf("retry topic %+v", topic.conf())
	}
	r.createTopic(RetryTopic("g"), 3, wire.PermRead)
	if code := r.back("g", m, 0); code != wire.NoPermission {
		t.Fatalf("retry topic without write: %d", code)
	}
	r.must(wire.CodeUpdateBrokerConfig, nil, []byte("brokerPermission=4"))
	if code := r.back("g", m, 0); code != wire.NoPermission {
		t.Fatalf("broker without write: %d", code)
	}
}

func TestDirectSendToTheRetryTopic(t *testing.T) {
	r := startBroker(t, BrokerConfig{DisableAutoCreateGroup: true})
	retry := RetryTopic("g")
	h := message(retry)
	r.refusedWith(wire.SubscriptionGroupNotExist, r.send(h, "x"), "subscription group not exist")
	h.QueueID = 1
	r.refusedWith(wire.SystemError, r.send(h, "x"), "queueId[1]") // this check comes first
	h.QueueID = 0
	c := wire.DefaultSubscriptionGroupConfig("g")
	c.RetryMaxTimes = 3
	r.must(wire.CodeUpdateAndCreateSubscriptionGroup, nil, c.Marshal())
	h.ReconsumeTimes = 2
	r.stored(h, "again")
	h.ReconsumeTimes = 3
	h.Properties = "DELAY\x0118"
	if res := r.stored(h, "dead"); res.QueueID != 0 {
		t.Fatalf("queue %d", res.QueueID)
	}
	h.HasMaxReconsumeTimes, h.MaxReconsumeTimes = true, 4
	h.Properties = ""
	r.stored(h, "own limit")
	if got := bodies(r.queue(retry, 0)); got != "again own limit" {
		t.Fatalf("retry topic has %q", got)
	}
	dead := r.queue(DeadLetterTopic("g"), 0)
	if bodies(dead) != "dead" || prop(dead[0], wire.PropDelay) != "" || dead[0].ReconsumeTimes != 3 {
		t.Fatalf("dead-letter topic has %+v", dead)
	}
	r.must(wire.CodeDeleteSubscriptionGroup, &wire.DeleteGroupRequest{GroupName: "g"}, nil)
	r.refusedWith(wire.SubscriptionGroupNotExist, r.send(message(retry), "x"), "subscription group not exist")
}
