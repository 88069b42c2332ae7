package mq

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pocketmq/mq/internal/wire"
	"github.com/pocketmq/mq/transport"
)

// A diary notes every delivery, and answers as told.
type diary struct {
	mu      sync.Mutex
	entries []string // body, attempt
	times   []time.Time
	answer  func(d *Delivery) error
}

func (y *diary) listen(_ context.Context, d *Delivery) error {
	y.mu.Lock()
	y.entries = append(y.entries, fmt.Sprintf("%s/%d", d.Body, d.Attempt))
	y.times = append(y.times, time.Now())
	y.mu.Unlock()
	return y.answer(d)
}

func (y *diary) all() []string {
	y.mu.Lock()
	defer y.mu.Unlock()
	return slices.Clone(y.entries)
}

// at is when each delivery came.
func (y *diary) at() []time.Time {
	y.mu.Lock()
	defer y.mu.Unlock()
	return slices.Clone(y.times)
}

func (y *diary) want(t *testing.T, entries ...string) {
	t.Helper()
	if got := y.all(); !slices.Equal(got, entries) {
		t.Errorf("deliveries %q, want %q", got, entries)
	}
}

var errAgain = errors.New("again")

func alwaysFail(*Delivery) error { return errAgain }

// BC001: a message that could not be given back stays, is tried here after 5 s,
// and the offset does not pass it, also over a restart.
func TestMessageThatCannotBeGivenBackIsTriedHere(t *testing.T) {
	for name, answer := range map[string]*transport.Frame{"refused": {Code: wire.SystemError}, "not answered": silence} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newQueueCluster(t, 1, 1)
				b := c.brokers[0]
				b.do(func(r *brokerRequest) *transport.Frame {
					if r.Code == wire.CodeConsumerSendMsgBack {
						return answer
					}
					return nil
				})
				b.put("t", 0, "a", "b", "c")
				y := &diary{answer: func(d *Delivery) error {
					if string(d.Body) != "b" {
						return nil
					}
					copy(d.Body, "?") // the listener owns it; the next attempt must not see this
					d.Topic, d.ID = "?", "?"
					return errAgain
				}}
				consumer := c.consume(ConsumerConfig{Concurrency: 1}, y.listen)
				time.Sleep(8 * time.Second)
				if at := b.committed("t", 0); at != 1 {
					t.Errorf("committed %d, want 1: the message that failed", at)
				}
				time.Sleep(9 * time.Second)
				if got := y.all(); len(got) < 4 || got[3] != "b/2" {
					t.Errorf("deliveries %q, want b again as the broker has it", got)
				}
				consumer.Close()
				if at := b.committed("t", 0); at != 1 {
					t.Errorf("committed %d at the end, want 1", at)
				}
				in := newInbox()
				c.consume(ConsumerConfig{}, in.listen)
				in.wait(t, 2, time.Second)
				if got := in.bodies(); !slices.Equal(got, []string{"b", "c"}) {
					t.Errorf("after a restart %q, want b and c", got)
				}
			})
		})
	}
}

// BC020: one delivery and MaxRetries more, then the dead-letter topic. BC023: what
// is out of retries is there at once, without one more delay.
func TestAttemptsEndAfterMaxRetries(t *testing.T) {
	inBubbles(t, func(t *testing.T, c *testCluster) {
		for _, retries := range []int{3, 1, -1} {
			p, dead := c.producer(ProducerConfig{}), newInbox()
			group := fmt.Sprintf("g%d", retries+1)
			c.send(p, &Message{Topic: group, Body: []byte("x")})
			y := &diary{answer: func(*Delivery) error { return RetryAfter(time.Hour, errAgain) }}
			c.consume(ConsumerConfig{Group: group, MaxRetries: retries}, group, Filter{}, y.listen)
			c.consume(ConsumerConfig{Group: "undertakers" + group}, DeadLetterTopic(group), Filter{}, dead.listen)
			time.Sleep(time.Duration(max(0, retries))*time.Hour + 10*time.Second)
			dead.wait(t, 1, time.Second)
			var want []string
			for i := range max(0, retries) + 1 {
				want = append(want, fmt.Sprintf("x/%d", i+1))
			}
			y.want(t, want...)
			if d := dead.all()[0]; d.Topic != DeadLetterTopic(group) || d.StoredAt.After(y.at()[len(want)-1].Add(time.Second)) {
				t.Errorf("dead letter of %s stored at %v, the last attempt was at %v", d.Topic, d.StoredAt, y.at()[len(want)-1])
			}
		}
	})
}

// BC022: the maximum that a consumer sends along counts, though the group's own on
// the broker is larger.
func TestMaxRetriesOfTheConsumerGoesBeforeTheGroups(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newTestCluster(t, transport.MemoryConfig{}, BrokerConfig{})
		p, y := c.producer(ProducerConfig{}), &diary{answer: alwaysFail}
		c.send(p, &Message{Topic: "t", Body: []byte("x")})
		c.consume(ConsumerConfig{MaxRetries: 2}, "t", Filter{}, y.listen)
		time.Sleep(5 * time.Hour)
		y.want(t, "x/1", "x/2", "x/3")
	})
}

// BC034: what a listener of a concurrent consumer may answer, and what it does.
func TestAnswersOfConcurrentListeners(t *testing.T) {
	for name, test := range map[string]struct {
		answer error
		wait   time.Duration // until the second attempt; 0 for none
		dead   bool
	}{
		"an error waits for the first level":     {errAgain, 10 * time.Second, false},
		"RetryAfter goes by the levels":          {RetryAfter(45*time.Second, errAgain), time.Minute, false},
		"Suspend is RetryAfter":                  {Suspend(3 * time.Second), 5 * time.Second, false},
		"wrapped answers count":                  {fmt.Errorf("why: %w", RetryAfter(time.Second, nil)), time.Second, false},
		"ErrSkip is done":                        {ErrSkip, 0, false},
		"ErrDeadLetter does not come again":      {ErrDeadLetter, 0, true},
		"Done of one message is done":            {Done(1, errAgain), 0, false},
		"Done of none is the error that it has":  {Done(0, RetryAfter(time.Second, nil)), time.Second, false},
		"Done with a wrong number does not harm": {Done(-7, nil), 10 * time.Second, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newTestCluster(t, transport.MemoryConfig{}, BrokerConfig{})
				p, dead := c.producer(ProducerConfig{}), newInbox()
				y := &diary{answer: func(d *Delivery) error {
					if d.Attempt == 1 {
						return test.answer
					}
					return nil
				}}
				c.send(p, &Message{Topic: "t", Body: []byte("x")})
				c.consume(ConsumerConfig{}, "t", Filter{}, y.listen)
				c.consume(ConsumerConfig{Group: "undertakers"}, DeadLetterTopic("consumers"), Filter{}, dead.listen)
				time.Sleep(5 * time.Minute)
				if (len(dead.all()) == 1) != test.dead {
					t.Errorf("%d dead letters", len(dead.all()))
				}
				if test.wait == 0 {
					y.want(t, "x/1")
					return
				}
				y.want(t, "x/1", "x/2")
				if took := y.at()[1].Sub(y.at()[0]); took < test.wait || took > test.wait+2*time.Second {
					t.Errorf("the second attempt came after %v, want %v", took, test.wait)
				}
			})
		})
	}
}

// BC040: retry queues begin at 0 also when the group begins at the end, so that a
// message that failed before they were assigned is not skipped.
func TestRetryQueueBeginsAtItsFront(t *testing.T) {
	inBubbles(t, func(t *testing.T, c *testCluster) {
		p := c.producer(ProducerConfig{})
		c.sendMany(p, "t", 0, 1)
		y := &diary{answer: alwaysFail}
		first := c.consume(ConsumerConfig{}, "t", Filter{}, y.listen)
		synctest.Wait()
		first.Close() // the message is with the broker, and goes to the retry queue with nobody there
		time.Sleep(time.Minute)
		in := newInbox()
		consumer := c.newConsumer(ConsumerConfig{Start: FromLast})
		if err := consumer.Subscribe("t", Filter{}, in.listen); err != nil {
			t.Fatal(err)
		}
		if err := consumer.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		in.wait(t, 1, 5*time.Second)
		if d := in.all()[0]; d.Attempt != 2 || d.Topic != "t" {
			t.Errorf("attempt %d of topic %s", d.Attempt, d.Topic)
		}
	})
}

// A batch listener gets up to BatchSize messages of one queue, and what it did not
// do comes again one by one.
func TestBatchListenerSaysHowManyAreDone(t *testing.T) {
	inBubbles(t, func(t *testing.T, c *testCluster) {
		p := c.producer(ProducerConfig{DefaultQueues: 1})
		c.sendMany(p, "t", 0, 10)
		var mu sync.Mutex
		var calls []string
		consumer := c.newConsumer(ConsumerConfig{BatchSize: 4, Start: FromFirst, Concurrency: 1})
		err := consumer.SubscribeBatch("t", Filter{}, func(_ context.Context, batch []*Delivery) error {
			mu.Lock()
			defer mu.Unlock()
			var texts []string
			for i, d := range batch {
				texts = append(texts, strings.TrimPrefix(string(d.Body), "t "))
				batch[i] = nil // the slice is the listener's too
			}
			calls = append(calls, strings.Join(texts, " "))
			if len(calls) == 2 {
				return Done(1, errAgain)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := consumer.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		mu.Lock()
		defer mu.Unlock()
		if want := []string{"0 1 2 3", "4 5 6 7", "8 9"}; !slices.Equal(calls[:3], want) {
			t.Errorf("calls %q, want %q first", calls, want)
		}
		again := strings.Fields(strings.Join(calls[3:], " "))
		if slices.Sort(again); !slices.Equal(again, []string{"5", "6", "7"}) {
			t.Errorf("%q came again, want 5, 6 and 7", again)
		}
	})
}

// A body that cannot be read goes to the dead letters, and the others go on.
func TestUnreadableBodyIsADeadLetter(t *testing.T) {
	for _, ordered := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			c := newQueueCluster(t, 1, 1)
			b, in := c.brokers[0], newInbox()
			b.put("t", 0, "before")
			b.mu.Lock()
			q := Queue{"t", "a", 0}
			b.queues[q] = append(b.queues[q], wire.AppendStored(nil, &wire.StoredMessage{QueueOffset: 1, Topic: "t", Body: []byte("no zlib"), SysFlag: wire.SysCompressed}))
			b.mu.Unlock()
			b.put("t", 0, "after")
			c.consume(ConsumerConfig{Ordered: ordered}, in.listen)
			in.wait(t, 2, time.Second)
			synctest.Wait() // another worker may still be giving it back
			back := b.requests(wire.CodeConsumerSendMsgBack)
			if len(back) != 1 || headerOf[wire.SendBackRequest](t, back[0].Frame).DelayLevel != -1 {
				t.Errorf("%d messages given back, want one as a dead letter", len(back))
			}
			if got := in.bodies(); !slices.Equal(got, []string{"after", "before"}) {
				t.Errorf("received %q", got)
			}
		})
	}
}

// A message whose listener runs for longer than ConsumeTimeout is given back once,
// and what that listener says afterwards counts no more.
func TestOverdueMessageIsGivenBackOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newQueueCluster(t, 1, 1)
		b := c.brokers[0]
		b.put("t", 0, "slow", "quick")
		c.consume(ConsumerConfig{ConsumeTimeout: time.Minute}, func(ctx context.Context, d *Delivery) error {
			if string(d.Body) == "slow" {
				time.Sleep(5 * time.Minute)
				return errAgain
			}
			return nil
		})
		time.Sleep(3 * time.Minute)
		if at := b.committed("t", 0); at != 2 {
			t.Errorf("committed %d, want 2: the overdue message was given back", at)
		}
		time.Sleep(5 * time.Minute)
		back := b.requests(wire.CodeConsumerSendMsgBack)
		if len(back) != 1 || headerOf[wire.SendBackRequest](t, back[0].Frame).DelayLevel != overdueLevel {
			t.Errorf("given back %d times, want once", len(back))
		}
	})
}
