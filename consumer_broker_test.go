package mq

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pocketmq/mq/internal/wire"
	"github.com/pocketmq/mq/transport"
)

// How a consumer takes what brokers answer, by brokers that answer what they are
// told to.

// moved is a broker's word that an offset is wrong.
func moved(next int64) *transport.Frame {
	return &transport.Frame{Code: wire.PullOffsetMoved, Header: &wire.PullResponse{NextBeginOffset: next, MinOffset: next, MaxOffset: next}}
}

// BC005: all messages had expired and the group's offset stayed behind for ever.
func TestOffsetThatTheBrokerMovedIsTakenAndCommitted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newQueueCluster(t, 1, 1)
		b := c.brokers[0]
		b.setCommitted("t", 0, 0)
		b.do(func(r *brokerRequest) *transport.Frame {
			if r.pull == nil || r.pull.Topic != "t" {
				return nil
			}
			if r.pull.QueueOffset < 2020 {
				return moved(2020)
			}
			return silence
		})
		c.consume(ConsumerConfig{}, newInbox().listen)
		time.Sleep(10 * time.Second)
		if at := b.committed("t", 0); at != 2020 {
			t.Errorf("committed %d, want 2020", at)
		}
		if n := len(b.pulls("t")); n != 2 {
			t.Errorf("%d pulls, want one that was moved and one that is held", n)
		}
	})
}

// A broker that moves the offset again and again is not flooded.
func TestAnswersThatBringNothingAreNotFollowedAtOnceForEver(t *testing.T) {
	stuck := &wire.PullResponse{NextBeginOffset: 0}
	for name, answer := range map[string]*transport.Frame{
		"moved":      {Code: wire.PullOffsetMoved, Header: stuck},
		"no match":   {Code: wire.PullRetryImmediately, Header: stuck},
		"not found":  {Code: wire.PullNotFound, Header: stuck},
		"refused":    {Code: wire.SystemError},
		"no header":  {Code: wire.PullNotFound},
		"no records": {Code: wire.Success, Header: stuck, Body: []byte("nonsense")},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newQueueCluster(t, 1, 1)
				c.brokers[0].do(func(r *brokerRequest) *transport.Frame {
					if r.Code == wire.CodePullMessage {
						return answer
					}
					return nil
				})
				c.consume(ConsumerConfig{}, newInbox().listen)
				time.Sleep(time.Minute)
				if n := len(c.brokers[0].pulls("t")); n < 30 || n > 80 {
					t.Errorf("%d pulls in a minute, want about one a second", n)
				}
			})
		})
	}
}

// BC007: the broker that an answer suggests is used whatever the answer's status.
func TestSuggestedBrokerCountsForEveryAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newQueueCluster(t, 2, 1)
		master, slave := c.brokers[0], c.brokers[1]
		for _, b := range c.brokers {
			b.put("t", 0, make([]string, 100)...)
		}
		master.setCommitted("t", 0, 50)
		master.do(func(r *brokerRequest) *transport.Frame {
			if r.pull != nil && r.pull.QueueOffset == 50 {
				return &transport.Frame{Code: wire.PullRetryImmediately, Header: &wire.PullResponse{NextBeginOffset: 60, SuggestWhichBrokerID: 1}}
			}
			return nil
		})
		slave.do(func(r *brokerRequest) *transport.Frame {
			if r.pull != nil {
				return &transport.Frame{Code: wire.PullRetryImmediately, Header: &wire.PullResponse{NextBeginOffset: 100, SuggestWhichBrokerID: 0}}
			}
			return nil
		})
		c.consume(ConsumerConfig{}, newInbox().listen)
		time.Sleep(time.Second)
		if p := slave.pulls("t"); len(p) != 1 || p[0].pull.QueueOffset != 60 {
			t.Errorf("the slave got %d pulls", len(p))
		}
		if p := master.pulls("t"); len(p) != 2 || p[1].pull.QueueOffset != 100 {
			t.Errorf("the master got %d pulls", len(p))
		}
	})
}

// BC008, BC043: with the master down everything but commits goes to the slave, and
// the commits go to the master when it is back.
func TestSlaveServesWhileTheMasterIsDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newQueueCluster(t, 2, 2)
		master, slave := c.brokers[0], c.brokers[1]
		in := newInbox()
		for _, b := range c.brokers {
			b.put("t", 0, "0", "1", "2")
		}
		c.consume(ConsumerConfig{}, in.listen)
		in.wait(t, 3, time.Minute)
		master.down()
		c.route("t", 2, slave)
		time.Sleep(time.Minute)
		slave.put("t", 0, "3", "4")
		slave.put("t", 1, "5")
		in.wait(t, 6, time.Minute)
		for _, p := range slave.pulls("t") {
			if p.pull.SysFlag&wire.PullCommitOffset != 0 {
				t.Errorf("a pull at the slave commits offset %d", p.pull.CommitOffset)
			}
		}
		if n := len(slave.requests(wire.CodeUpdateConsumerOffset)); n != 0 {
			t.Errorf("%d commits at the slave", n)
		}
		master.up()
		c.route("t", 2, c.brokers...)
		time.Sleep(time.Minute)
		if a, b := master.committed("t", 0), master.committed("t", 1); a != 5 || b != 1 {
			t.Errorf("the master has %d and %d, want 5 and 1", a, b)
		}
	})
}

// BC029: QUERY_NOT_FOUND is no error but the start policy's turn.
func TestQueuesWithoutAStoredOffsetAreAllPulled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newQueueCluster(t, 1, 4)
		b, in := c.brokers[0], newInbox()
		for q, body := range []string{"a", "b", "c", "d"} {
			b.put("t", q, body)
		}
		b.setCommitted("t", 1, 0)
		b.setCommitted("t", 3, 0)
		c.consume(ConsumerConfig{}, in.listen)
		in.wait(t, 4, time.Second)
	})
}

// BC040: a retry queue without a stored offset is pulled from its front, and the
// others from their end, when the group begins at the last message.
func TestStartPolicyIsNotForRetryQueues(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newQueueCluster(t, 1, 1)
		b, in := c.brokers[0], newInbox()
		c.route("%RETRY%g", 1, b)
		b.put("t", 0, "old")
		b.put("%RETRY%g", 0, "failed once")
		consumer, err := NewConsumer(ConsumerConfig{Transport: c.net, NameServers: []string{c.names.addr}, Group: "g"})
		must(t, err)
		defer consumer.Close()
		must(t, consumer.Subscribe("t", Filter{}, in.listen))
		must(t, consumer.Start(t.Context()))
		synctest.Wait()
		if p := b.pulls("%RETRY%g"); len(p) == 0 || p[0].pull.QueueOffset != 0 {
			t.Errorf("the retry queue's %d pulls do not begin at 0", len(p))
		}
		if p := b.pulls("t"); len(p) != 1 || p[0].pull.QueueOffset != 1 {
			t.Errorf("the queue's %d pulls do not begin at its end", len(p))
		}
	})
}

// BC139: an offset that cannot be looked up is looked up again; nothing is pulled
// by a guess.
func TestNothingIsPulledBeforeTheOffsetIsKnown(t *testing.T) {
	for _, ordered := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			c := newQueueCluster(t, 1, 1)
			b, in := c.brokers[0], newInbox()
			b.put("t", 0, make([]string, 500)...)
			b.put("t", 0, "next")
			b.setCommitted("t", 0, 500)
			failures := 0
			b.do(func(r *brokerRequest) *transport.Frame {
				if r.Code == wire.CodeQueryConsumerOffset && failures < 3 {
					failures++
					return &transport.Frame{Code: wire.SystemError, Remark: "restarting"}
				}
				return nil
			})
			c.consume(ConsumerConfig{Ordered: ordered}, in.listen)
			in.wait(t, 1, time.Minute)
			if got := in.bodies(); got[0] != "next" {
				t.Errorf("got %q first", got)
			}
			for _, p := range b.pulls("t") {
				if p.pull.QueueOffset < 500 {
					t.Errorf("pulled at %d", p.pull.QueueOffset)
				}
			}
		})
	}
}

// A broker that was restarted knows neither group nor subscription: a heartbeat
// tells it at once.
func TestBrokerThatForgotTheGroupIsTold(t *testing.T) {
	for _, code := range []int32{wire.SubscriptionNotExist, wire.SubscriptionNotLatest, wire.SubscriptionGroupNotExist} {
		synctest.Test(t, func(t *testing.T) {
			c := newQueueCluster(t, 1, 1)
			b, in := c.brokers[0], newInbox()
			b.put("t", 0, "x")
			told := 0
			b.do(func(r *brokerRequest) *transport.Frame {
				switch {
				case r.Code == wire.CodeHeartBeat:
					told++
				case r.pull != nil && told < 2:
					return &transport.Frame{Code: code}
				}
				return nil
			})
			c.consume(ConsumerConfig{}, in.listen)
			in.wait(t, 1, 3*time.Second)
		})
	}
}

// Messages that are here already are consumed although the broker has them no
// more; a queue that begins anew is consumed from there.
func TestOffsetMovedForwardsKeepsWhatWasPulled(t *testing.T) {
	q := newAssignedQueue(Queue{"t", "a", 0}, false)
	q.place(10)
	p := q.beginPull(func() {})
	q.put(p, deliveries(10, 11), 12)
	p = q.beginPull(func() {})
	q.move(p, 50)
	c := newBareConsumer()
	batch, _ := q.turn(c, nil, 0, nil)
	if !slices.Equal(offsetsOf(batch), []int64{10}) || q.beginPull(func() {}) != (pullPlace{next: 50, commit: 10, generation: p.generation}) {
		t.Fatalf("after a move forwards: %v, next pull %+v", offsetsOf(batch), q.beginPull(func() {}))
	}
	q.move(p, 5)
	if q.holds(batch[0]) {
		t.Error("a message from before the queue began anew is still held")
	}
	if next := q.beginPull(func() {}); next.next != 5 || next.generation == p.generation {
		t.Errorf("next pull %+v, want one at 5", next)
	}
}

// newBareConsumer is one that is never started.
func newBareConsumer() *Consumer {
	c, err := NewConsumer(ConsumerConfig{Transport: transport.NewMemory(transport.MemoryConfig{}), NameServers: []string{"127.0.0.1:1"}, Group: "g"})
	if err != nil {
		panic(err)
	}
	return c
}

// An answer that comes after the window was replaced is not of its offsets.
func TestPullFromBeforeTheWindowWasReplacedIsVoid(t *testing.T) {
	q := newAssignedQueue(Queue{"t", "a", 0}, true)
	q.place(50)
	stopped := false
	p := q.beginPull(func() { stopped = true })
	q.place(40)
	if !stopped {
		t.Error("the pull that waits at the old offset was not stopped")
	}
	if q.endPull(p) {
		t.Error("the pull counts as the new window's")
	}
	if work, _ := q.put(p, deliveries(50, 51), 52); work {
		t.Error("its messages were taken, and 40 to 49 skipped")
	}
	if next := q.beginPull(func() {}); next.next != 40 {
		t.Errorf("next pull at %d, want 40", next.next)
	}
}

// The last commit of a queue comes after the one that is under way.
func TestLastCommitWaitsForTheOneUnderWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newQueueCluster(t, 1, 1)
		consumer := c.consume(ConsumerConfig{}, newInbox().listen)
		q := newAssignedQueue(Queue{"t", "a", 9}, false)
		q.cancel = func() {}
		q.place(7)
		if offset, changed := q.beginCommit(); !changed || offset != 7 {
			t.Fatalf("commit of %d, %v", offset, changed)
		}
		if _, changed := q.beginCommit(); changed {
			t.Error("two commits at once")
		}
		go consumer.commitLast(t.Context(), q, q.drop())
		synctest.Wait()
		if at := c.brokers[0].committed("t", 9); at != -1 {
			t.Errorf("committed %d before the older commit was over", at)
		}
		q.endCommit(true)
		synctest.Wait()
		if at := c.brokers[0].committed("t", 9); at != 7 {
			t.Errorf("committed %d, want 7", at)
		}
	})
}

// A broker that comes back at another address is found without waiting for the
// next refresh of routes.
func TestConsumerFollowsABrokerThatMoved(t *testing.T) {
	inBubbles(t, func(t *testing.T, c *testCluster) {
		c.broker.Close()
		moved := c.startBroker(BrokerConfig{Name: "b", MemoryLimit: -1})
		p, in := c.producer(ProducerConfig{}), newInbox()
		c.sendMany(p, "orders", 0, 1)
		c.consume(ConsumerConfig{}, "orders", Filter{}, in.listen)
		in.wait(t, 1, time.Minute)
		moved.Close()
		c.startBroker(BrokerConfig{Name: "b", MemoryLimit: -1})
		c.sendMany(p, "orders", 1, 1)
		in.wait(t, 2, 5*time.Second)
	})
}

func TestMessageToTryAgainIsNotGivenUpForAReplicaThatIsBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newQueueCluster(t, 2, 1)
		master, replica := c.brokers[0], c.brokers[1]
		master.put("t", 0, "one")
		record := master.queues[Queue{"t", "a", 0}][0]
		master.do(func(r *brokerRequest) *transport.Frame {
			if r.pull == nil || r.pull.Topic != "t" || r.pull.QueueOffset != 0 {
				return nil
			}
			return &transport.Frame{Header: &wire.PullResponse{NextBeginOffset: 1, MaxOffset: 1, SuggestWhichBrokerID: 1}, Body: record}
		})
		replica.do(func(r *brokerRequest) *transport.Frame {
			if r.pull == nil || r.pull.Topic != "t" {
				return nil
			}
			// What RocketMQ's replicas say of an offset that they do not have yet.
			return &transport.Frame{Code: wire.PullRetryImmediately, Header: &wire.PullResponse{NextBeginOffset: r.pull.QueueOffset, SuggestWhichBrokerID: 1}}
		})
		var tries atomic.Int32
		c.consume(ConsumerConfig{Ordered: true}, func(_ context.Context, d *Delivery) error {
			if tries.Add(1) < 3 {
				return errAgain
			}
			return nil
		})
		time.Sleep(10 * time.Second)
		if tries.Load() != 3 || master.committed("t", 0) != 1 {
			t.Errorf("the listener had the message %d times, want 3; committed %d", tries.Load(), master.committed("t", 0))
		}
	})
}
