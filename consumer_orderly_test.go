package mq

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/pocketmq/mq/internal/wire"
	"github.com/pocketmq/mq/transport"
)

// oneQueue is a topic "t" with one queue and messages "0" to "n-1" in it.
func (c *testCluster) oneQueue(n int) *Producer {
	c.t.Helper()
	p := c.producer(ProducerConfig{DefaultQueues: 1})
	for i := range n {
		c.send(p, &Message{Topic: "t", Body: fmt.Append(nil, i)})
	}
	return p
}

// BC002: what follows a failed message waits for it, and the offset too.
func TestOrderedQueueWaitsForTheMessageThatFailed(t *testing.T) {
	inBubbles(t, func(t *testing.T, c *testCluster) {
		c.oneQueue(2)
		y := &diary{answer: func(d *Delivery) error {
			if string(d.Body) == "0" && d.Attempt <= 2 {
				copy(d.Body, "?") // the next attempt must not see this
				return errAgain
			}
			return nil
		}}
		consumer := c.consume(ConsumerConfig{Ordered: true, Suspend: 10 * time.Second}, "t", Filter{}, y.listen)
		time.Sleep(15 * time.Second)
		if q := consumer.assignedQueues(); len(q) != 2 { // the retry topic's too
			t.Fatalf("%d queues", len(q))
		}
		y.want(t, "0/1", "0/2")
		if at := c.committed("consumers", "t", 0); at != 0 {
			t.Errorf("committed %d while the first message fails", at)
		}
		time.Sleep(20 * time.Second)
		y.want(t, "0/1", "0/2", "0/3", "1/1")
		if at := c.committed("consumers", "t", 0); at != 2 {
			t.Errorf("committed %d at last, want 2", at)
		}
	})
}

// committed asks the broker for a group's offset.
func (c *testCluster) committed(group, topic string, queue int) int64 {
	c.t.Helper()
	conn, err := c.net.Dial(c.t.Context(), c.broker.Addr(), nil)
	if err != nil {
		c.t.Fatal(err)
	}
	defer conn.Close()
	f, err := conn.Call(c.t.Context(), &transport.Frame{Code: wire.CodeQueryConsumerOffset,
		Header: &wire.QueryOffsetRequest{ConsumerGroup: group, Topic: topic, QueueID: int32(queue)}})
	if err != nil || f.Code != wire.Success {
		c.t.Fatalf("offset of %s: %v %v", group, f, err)
	}
	return headerOf[wire.OffsetResponse](c.t, f).Offset
}

// BC034: what a listener of an ordered consumer may answer, and what it does.
func TestAnswersOfOrderedListeners(t *testing.T) {
	for name, test := range map[string]struct {
		answer error
		wait   time.Duration // until the second attempt; 0 for none
		dead   bool
	}{
		"an error rests for Suspend":      {errAgain, time.Second, false},
		"RetryAfter rests that long":      {RetryAfter(7*time.Second, errAgain), 7 * time.Second, false},
		"Suspend rests that long":         {Suspend(3 * time.Second), 3 * time.Second, false},
		"a rest has an upper bound":       {Suspend(time.Hour), 30 * time.Second, false},
		"a rest has a lower bound":        {Suspend(1), 10 * time.Millisecond, false},
		"ErrSkip is done":                 {ErrSkip, 0, false},
		"ErrDeadLetter is out of the way": {ErrDeadLetter, 0, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newTestCluster(t, transport.MemoryConfig{}, BrokerConfig{})
				c.oneQueue(2)
				dead := newInbox()
				y := &diary{answer: func(d *Delivery) error {
					if string(d.Body) == "0" && d.Attempt == 1 {
						return test.answer
					}
					return nil
				}}
				c.consume(ConsumerConfig{Ordered: true}, "t", Filter{}, y.listen)
				c.consume(ConsumerConfig{Group: "undertakers"}, DeadLetterTopic("consumers"), Filter{}, dead.listen)
				time.Sleep(time.Minute)
				if (len(dead.all()) == 1) != test.dead {
					t.Errorf("%d dead letters", len(dead.all()))
				}
				if test.wait == 0 {
					y.want(t, "0/1", "1/1")
					return
				}
				y.want(t, "0/1", "0/2", "1/1")
				if took := y.at()[1].Sub(y.at()[0]); took < test.wait || took > test.wait+5*time.Millisecond {
					t.Errorf("the second attempt came after %v, want %v", took, test.wait)
				}
			})
		})
	}
}

// With MaxRetries an ordered message ends in the dead-letter topic, and the queue
// goes on.
func TestOrderedMessageOutOfRetriesIsADeadLetter(t *testing.T) {
	inBubbles(t, func(t *testing.T, c *testCluster) {
		c.oneQueue(2)
		dead := newInbox()
		y := &diary{answer: func(d *Delivery) error {
			if string(d.Body) == "0" {
				return errAgain
			}
			return nil
		}}
		c.consume(ConsumerConfig{Ordered: true, MaxRetries: 2}, "t", Filter{}, y.listen)
		c.consume(ConsumerConfig{Group: "undertakers"}, DeadLetterTopic("consumers"), Filter{}, dead.listen)
		dead.wait(t, 1, time.Minute)
		time.Sleep(time.Second)
		y.want(t, "0/1", "0/2", "0/3", "1/1")
	})
}

// An orderWatch checks that no message of a queue is begun before the one before
// it was done, by any member.
type orderWatch struct {
	t    *testing.T
	mu   sync.Mutex
	busy map[Queue]bool
	next map[Queue]int64
	got  map[string]int
}

func newOrderWatch(t *testing.T) *orderWatch {
	return &orderWatch{t: t, busy: make(map[Queue]bool), next: make(map[Queue]int64), got: make(map[string]int)}
}

// listen may see a message again, of which the commit was lost; it may not skip.
func (w *orderWatch) listen(takes time.Duration) Listener {
	return func(_ context.Context, d *Delivery) error {
		w.mu.Lock()
		if w.busy[d.Queue] {
			w.t.Errorf("%v: two listeners at once", d.Queue)
		}
		if d.Offset > w.next[d.Queue] {
			w.t.Errorf("%v: offset %d before %d", d.Queue, d.Offset, w.next[d.Queue])
		}
		w.busy[d.Queue] = true
		w.mu.Unlock()
		time.Sleep(takes)
		w.mu.Lock()
		defer w.mu.Unlock()
		w.busy[d.Queue] = false
		w.next[d.Queue] = max(w.next[d.Queue], d.Offset+1)
		w.got[string(d.Body)]++
		return nil
	}
}

func (w *orderWatch) counts() (different, all int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, n := range w.got {
		all += n
	}
	return len(w.got), all
}

// Members that come and go hand queues over between two messages: no message is
// handled by two, out of order, or twice.
func TestOrderHoldsWhileMembersComeAndGo(t *testing.T) {
	inBubbles(t, func(t *testing.T, c *testCluster) {
		p, w := c.producer(ProducerConfig{}), newOrderWatch(t)
		c.sendMany(p, "t", 0, 400)
		cfg := ConsumerConfig{Ordered: true}
		members := []*Consumer{c.consume(cfg, "t", Filter{}, w.listen(300*time.Millisecond))}
		for i := range 6 {
			time.Sleep(3 * time.Second)
			if i%2 == 0 {
				members = append(members, c.consume(cfg, "t", Filter{}, w.listen(300*time.Millisecond)))
			} else {
				if err := members[0].Shutdown(t.Context()); err != nil {
					t.Error(err)
				}
				members = members[1:]
			}
		}
		time.Sleep(2 * time.Minute)
		if different, all := w.counts(); different != 400 || all != 400 {
			t.Errorf("%d of 400 messages, in %d deliveries", different, all)
		}
	})
}

// A queue is handed over between two messages, though there are always more.
func TestBusyOrderedQueuesAreHandedOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newTestCluster(t, transport.MemoryConfig{}, BrokerConfig{})
		p, w := c.producer(ProducerConfig{}), newOrderWatch(t)
		c.sendMany(p, "t", 0, 4000)
		cfg := ConsumerConfig{Ordered: true}
		c.consume(cfg, "t", Filter{}, w.listen(100*time.Millisecond))
		time.Sleep(time.Second)
		second := newInbox()
		c.consume(cfg, "t", Filter{}, second.listen)
		second.wait(t, 1, 3*time.Second)
	})
}

// A listener that runs for longer than the rebalance waits keeps its queue, and
// its lock, until it is done.
func TestLostOrderedQueueIsKeptWhileItsListenerRuns(t *testing.T) {
	inBubbles(t, func(t *testing.T, c *testCluster) {
		p, w := c.producer(ProducerConfig{}), newOrderWatch(t)
		c.sendMany(p, "t", 0, 8)
		cfg := ConsumerConfig{Ordered: true}
		c.consume(cfg, "t", Filter{}, w.listen(70*time.Second))
		time.Sleep(time.Second)
		c.consume(cfg, "t", Filter{}, w.listen(70*time.Second))
		time.Sleep(5 * time.Minute)
		if different, all := w.counts(); different != 8 || all != 8 {
			t.Errorf("%d of 8 messages, in %d deliveries", different, all)
		}
	})
}

// A lock that was another member's meanwhile means that the group may have gone
// on: this member begins again where the group is, and does not commit its own,
// older offset.
func TestLockThatWasLostMakesAMemberLookForItsPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newQueueCluster(t, 1, 1)
		b := c.brokers[0]
		var lent atomic.Bool
		b.put("t", 0, "0", "1", "2", "3", "4", "5")
		b.do(func(r *brokerRequest) *transport.Frame {
			if r.Code == wire.CodeLockBatchMQ && lent.Load() {
				return &transport.Frame{Body: (&wire.LockBatchResponse{}).Marshal()}
			}
			return nil
		})
		y := &diary{answer: func(d *Delivery) error {
			if string(d.Body) == "1" {
				return errAgain
			}
			return nil
		}}
		c.consume(ConsumerConfig{Ordered: true}, y.listen)
		time.Sleep(10 * time.Second)
		lent.Store(true)
		time.Sleep(lockPeriod) // refused by now
		tries := len(y.all())
		b.setCommitted("t", 0, 4) // what the other member did
		time.Sleep(20 * time.Second)
		if n := len(y.all()); n != tries {
			t.Errorf("%d deliveries without the lock", n-tries)
		}
		if at := b.committed("t", 0); at != 4 {
			t.Errorf("committed %d over the other member's 4", at)
		}
		lent.Store(false)
		time.Sleep(lockPeriod + persistPeriod)
		if got := y.all(); !slices.Equal(got[tries:], []string{"4/1", "5/1"}) {
			t.Errorf("deliveries %q after the lock was back, want 4 and 5", got[tries:])
		}
		if at := b.committed("t", 0); at != 6 {
			t.Errorf("committed %d, want 6", at)
		}
	})
}

// No listener runs for a queue whose lock could not be renewed, also when the
// broker just does not answer.
func TestOrderedListenersStopWhenTheLockIsOld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newQueueCluster(t, 1, 1)
		b := c.brokers[0]
		b.put("t", 0, make([]string, 200)...)
		y := &diary{answer: func(*Delivery) error { time.Sleep(time.Second); return nil }}
		c.consume(ConsumerConfig{Ordered: true}, y.listen)
		begun := time.Now()
		b.do(func(r *brokerRequest) *transport.Frame {
			if r.Code == wire.CodeLockBatchMQ {
				return silence
			}
			return nil
		})
		time.Sleep(2 * time.Minute)
		if last := y.at()[len(y.all())-1].Sub(begun); last > lockTrust || last < lockTrust-2*time.Second {
			t.Errorf("the last listener began %v after the last lock, want almost %v", last, lockTrust)
		}
		b.do(nil)
		time.Sleep(3 * time.Minute)
		if n := len(y.all()); n < 200 {
			t.Errorf("%d of 200 messages after locks are answered again", n)
		}
	})
}

// Answers to locks that overtake each other do not confuse what is known.
func TestLeaseGoesByTheNewestAnswer(t *testing.T) {
	start := time.Unix(1000, 0)
	at := func(s int) time.Time { return start.Add(time.Duration(s) * time.Second) }
	var l queueLease
	if l.trusted(start) || l.held(start) {
		t.Error("a lock that was never asked for is trusted")
	}
	l.answered(true, at(10))
	l.answered(false, at(5))
	if !l.trusted(at(39)) || l.trusted(at(40)) || !l.held(at(69)) || l.held(at(70)) {
		t.Error("want trust for 30 s and the lock for 60 s from the time it was asked for")
	}
	l.answered(true, at(69))
	if l.moved || !l.held(at(70)) {
		t.Error("a lock renewed in time counts as lost")
	}
	l.answered(true, at(69+60))
	if !l.moved || l.held(at(130)) || !l.trusted(at(130)) {
		t.Error("a lock renewed too late may have been another's: the offset is to be looked up")
	}
}

// Messages of one queue come in order also over a broker's restart.
func TestOrderHoldsOverARestartOfTheBroker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newTestCluster(t, transport.MemoryConfig{}, BrokerConfig{})
		c.broker.Close()
		disk := onDisk(vfs.NewMem())
		disk.Listen, disk.Name = "127.0.0.1:10911", "a"
		c.broker = c.startBroker(disk)
		p, w := c.producer(ProducerConfig{}), newOrderWatch(t)
		c.sendMany(p, "t", 0, 40)
		c.consume(ConsumerConfig{Ordered: true}, "t", Filter{}, w.listen(time.Second))
		time.Sleep(3 * time.Second)
		if err := c.broker.Close(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Second)
		c.broker = c.startBroker(disk)
		time.Sleep(2 * time.Minute)
		if different, all := w.counts(); different != 40 || all > 60 {
			t.Errorf("%d of 40 messages, in %d deliveries", different, all)
		}
	})
}
