package mq

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pocketmq/mq/internal/wire"
	"github.com/pocketmq/mq/storage"
	"github.com/pocketmq/mq/transport"
)

// BC010: a panic is logged with its stack and counts as a failure; the others are
// delivered, and the message comes again.
func TestPanickingListenerIsAFailure(t *testing.T) {
	inBubbles(t, func(t *testing.T, c *testCluster) {
		var log lockedBuffer
		p, in := c.producer(ProducerConfig{}), newInbox()
		c.sendMany(p, "t", 0, 10)
		c.consume(ConsumerConfig{Logger: slog.New(slog.NewTextHandler(&log, nil))}, "t", Filter{}, func(ctx context.Context, d *Delivery) error {
			if string(d.Body) == "t 3" && d.Attempt == 1 {
				panic("oops")
			}
			return in.listen(ctx, d)
		})
		in.wait(t, 9, time.Second)
		in.wait(t, 10, time.Minute)
		if log.count("oops") != 1 || log.count("TestPanickingListenerIsAFailure") == 0 {
			t.Error("the panic is not in the log with its stack")
		}
	})
}

// BC031: the group's offset passes over messages that its filter leaves out.
func TestOffsetPassesOverWhatTheFilterLeavesOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newTestCluster(t, transport.MemoryConfig{}, BrokerConfig{})
		p, in := c.producer(ProducerConfig{DefaultQueues: 1}), newInbox()
		c.send(p, &Message{Topic: "t", Tag: "X", Body: []byte("x")})
		for range 100 {
			batch := make([]*Message, 100)
			for i := range batch {
				batch[i] = &Message{Topic: "t", Tag: "X", Body: []byte("x")}
			}
			if _, err := p.SendBatch(t.Context(), batch); err != nil {
				t.Fatal(err)
			}
		}
		c.consume(ConsumerConfig{}, "t", Tags("Y"), in.listen)
		time.Sleep(10 * time.Second)
		if at := c.committed("consumers", "t", 0); at != 10001 {
			t.Errorf("committed %d of 10001 that match nothing", at)
		}
		c.send(p, &Message{Topic: "t", Tag: "Y", Body: []byte("y")})
		in.wait(t, 1, time.Second)
	})
}

// Two tags with one hash are told apart by the consumer.
func TestTagsWithOneHashAreToldApart(t *testing.T) {
	inBubbles(t, func(t *testing.T, c *testCluster) {
		if wire.TagHash("Aa") != wire.TagHash("BB") {
			t.Fatal("not a collision")
		}
		p, in := c.producer(ProducerConfig{}), newInbox()
		for _, tag := range []string{"Aa", "BB", "Aa", ""} {
			c.send(p, &Message{Topic: "t", Tag: tag, Body: []byte(tag + "!")})
		}
		c.consume(ConsumerConfig{}, "t", Tags(" BB || Cc "), in.listen)
		time.Sleep(time.Second)
		if got := in.bodies(); !slices.Equal(got, []string{"BB!"}) {
			t.Errorf("received %q", got)
		}
	})
}

// BC032: faults of a configuration are errors that name the option and what it may
// be, all at once.
func TestConsumerConfigReportsAllFaultsTogether(t *testing.T) {
	_, err := NewConsumer(ConsumerConfig{Concurrency: 1001, BatchSize: -1, PullBatch: 2000, MaxRetries: -5, Suspend: time.Hour,
		ConsumeTimeout: 1, Start: 7, NameServers: []string{"nonsense"}})
	if err == nil {
		t.Fatal("no error")
	}
	for _, want := range []string{"Group", "Concurrency is 1001, want 1 to 1000", "BatchSize is -1", "PullBatch is 2000", "MaxRetries is -5, want -1 to",
		"Suspend is 1h0m0s, want 10ms to 30s", "ConsumeTimeout is 1ns", "Start is 7", "nonsense"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the error does not say %q:\n%v", want, err)
		}
	}
	if _, err := NewConsumer(ConsumerConfig{Group: "g", NameServers: []string{"127.0.0.1:1"}, Start: FromTime}); err == nil {
		t.Error("FromTime without a time is accepted")
	}
}

func TestSubscribeRefusesBadInput(t *testing.T) {
	c := newBareConsumer()
	listen := newInbox().listen
	for name, err := range map[string]error{
		"no listener":       c.Subscribe("t", Filter{}, nil),
		"no batch listener": c.SubscribeBatch("t", Filter{}, nil),
		"bad topic":         c.Subscribe("a b", Filter{}, listen),
		"no topic":          c.Subscribe("", Filter{}, listen),
		"empty tags":        c.Subscribe("t", Tags(" || "), listen),
		"own retry topic":   c.Subscribe(RetryTopic("g"), Filter{}, listen),
	} {
		if err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// BC038: heartbeats carry each subscription as it was given, also after another
// one came; a changed filter has a greater version, also within one millisecond.
func TestHeartbeatsCarryTheSubscriptionsAsGiven(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newQueueCluster(t, 1, 1)
		b := c.brokers[0]
		last := func() map[string]wire.SubscriptionData {
			beats := b.requests(wire.CodeHeartBeat)
			hb, err := wire.ParseHeartbeat(beats[len(beats)-1].Body)
			if err != nil || len(hb.Consumers) != 1 {
				t.Fatalf("heartbeat %+v, %v", hb, err)
			}
			subs := make(map[string]wire.SubscriptionData)
			for _, s := range hb.Consumers[0].Subscriptions {
				subs[s.Topic] = s
			}
			return subs
		}
		consumer := c.consume(ConsumerConfig{}, newInbox().listen)
		all := last()["t"]
		subscribe := func(topic string, f Filter) {
			if err := consumer.Subscribe(topic, f, newInbox().listen); err != nil {
				t.Fatal(err)
			}
		}
		subscribe("t", Tags("A || B"))
		subscribe("u", Filter{})
		synctest.Wait()
		s := last()["t"]
		if s.SubString != "A || B" || !slices.Equal(s.TagsSet, []string{"A", "B"}) || !slices.Equal(s.CodeSet, []int32{65, 66}) || s.ExpressionType != "TAG" {
			t.Errorf("subscription %+v", s)
		}
		if s.SubVersion <= all.SubVersion {
			t.Errorf("version %d after %d", s.SubVersion, all.SubVersion)
		}
		if u := last()["u"]; u.SubString != "*" || len(u.TagsSet) != 0 {
			t.Errorf("subscription %+v", u)
		}
		if r, ok := last()["%RETRY%g"]; !ok || r.SubString != "*" {
			t.Errorf("retry subscription %+v, %v", r, ok)
		}
	})
}

// A filter that is changed while the consumer runs holds from then on.
func TestFilterMayBeChangedWhileRunning(t *testing.T) {
	inBubbles(t, func(t *testing.T, c *testCluster) {
		p, in := c.producer(ProducerConfig{}), newInbox()
		send := func(tag, body string) { c.send(p, &Message{Topic: "t", Tag: tag, Body: []byte(body)}) }
		send("A", "1")
		consumer := c.consume(ConsumerConfig{}, "t", Tags("A"), in.listen)
		in.wait(t, 1, time.Second)
		if err := consumer.Subscribe("t", Tags("B"), in.listen); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		send("A", "2")
		send("B", "3")
		in.wait(t, 2, 20*time.Second)
		time.Sleep(time.Minute)
		if got := in.bodies(); !slices.Equal(got, []string{"1", "3"}) {
			t.Errorf("received %q, want 1 and 3", got)
		}
	})
}

// BC044: nothing is delivered after Unsubscribe, what was finished is committed,
// queues are not pulled any more, and a later subscription goes on there.
func TestUnsubscribeEndsDelivery(t *testing.T) {
	for _, ordered := range []bool{false, true} {
		inBubbles(t, func(t *testing.T, c *testCluster) {
			p, one, two := c.producer(ProducerConfig{}), newInbox(), newInbox()
			c.sendMany(p, "one", 0, 10)
			c.sendMany(p, "two", 0, 10)
			consumer := c.consume(ConsumerConfig{Ordered: ordered}, "one", Filter{}, one.listen)
			if err := consumer.Subscribe("two", Filter{}, two.listen); err != nil {
				t.Fatal(err)
			}
			one.wait(t, 10, time.Minute)
			two.wait(t, 10, time.Minute)
			consumer.Unsubscribe("one")
			synctest.Wait()
			for _, q := range consumer.Assigned() {
				if q.Topic == "one" {
					t.Errorf("%v is still assigned", q)
				}
			}
			c.sendMany(p, "one", 10, 10)
			c.sendMany(p, "two", 10, 10)
			two.wait(t, 20, time.Second)
			time.Sleep(time.Minute)
			if n := len(one.all()); n != 10 {
				t.Errorf("%d messages after Unsubscribe", n-10)
			}
			if err := consumer.Subscribe("one", Filter{}, one.listen); err != nil {
				t.Fatal(err)
			}
			one.wait(t, 20, 5*time.Second)
			if n := len(one.all()); n != 20 {
				t.Errorf("%d deliveries of 20 messages", n)
			}
		})
	}
}

// A subscription that is given up and taken again at once, with messages in hand,
// loses none.
func TestResubscribingAtOnceLosesNothing(t *testing.T) {
	inBubbles(t, func(t *testing.T, c *testCluster) {
		p, in := c.producer(ProducerConfig{}), newInbox()
		slow := func(ctx context.Context, d *Delivery) error {
			time.Sleep(50 * time.Millisecond)
			return in.listen(ctx, d)
		}
		c.sendMany(p, "t", 0, 200)
		consumer := c.consume(ConsumerConfig{Concurrency: 2}, "t", Filter{}, slow)
		for i := range 5 {
			time.Sleep(time.Duration(i) * 13 * time.Millisecond)
			consumer.Unsubscribe("t")
			time.Sleep(time.Duration(i) * 300 * time.Millisecond)
			if err := consumer.Subscribe("t", Filter{}, slow); err != nil {
				t.Fatal(err)
			}
		}
		in.wait(t, 200, time.Minute)
	})
}

// A topic that is subscribed to before it exists is consumed soon after its first
// message made it.
func TestTopicMayComeLater(t *testing.T) {
	inBubbles(t, func(t *testing.T, c *testCluster) {
		p, in := c.producer(ProducerConfig{}), newInbox()
		consumer := c.consume(ConsumerConfig{}, "early", Filter{}, in.listen)
		time.Sleep(time.Hour)
		c.sendMany(p, "early", 0, 1)
		in.wait(t, 1, 6*time.Second)
		late := newInbox()
		if err := consumer.Subscribe("late", Filter{}, late.listen); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		c.sendMany(p, "late", 0, 1)
		late.wait(t, 1, 6*time.Second)
	})
}

// BC136, BC137: members of one group with different filters, or with one id, are
// reported; ids that nobody chose differ.
func TestMembersThatClashAreReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log lockedBuffer
		c := newTestCluster(t, transport.MemoryConfig{}, BrokerConfig{Logger: slog.New(slog.NewTextHandler(&log, nil))})
		in := newInbox()
		c.sendMany(c.producer(ProducerConfig{}), "t", 0, 1)
		a := c.consume(ConsumerConfig{}, "t", Tags("A"), in.listen)
		b := c.consume(ConsumerConfig{}, "t", Tags("A"), in.listen)
		if a.ClientID() == b.ClientID() || a.ClientID() == "" {
			t.Errorf("ids %q and %q", a.ClientID(), b.ClientID())
		}
		if n := log.count("one client id") + log.count("different things"); n != 0 {
			t.Error("a group that is well is reported")
		}
		c.consume(ConsumerConfig{}, "t", Tags("B"), in.listen)
		if log.count("different things") != 1 {
			t.Error("different filters are not reported")
		}
		c.consume(ConsumerConfig{Group: "same", ClientID: "me"}, "t", Filter{}, in.listen)
		c.consume(ConsumerConfig{Group: "same", ClientID: "me"}, "t", Filter{}, in.listen)
		if log.count("one client id") != 1 {
			t.Error("equal ids are not reported")
		}
	})
}

// Aliasing: a listener may keep its deliveries and write to them; other groups, and
// the broker, are not harmed.
func TestListenerOwnsItsDeliveries(t *testing.T) {
	inBubbles(t, func(t *testing.T, c *testCluster) {
		p := c.producer(ProducerConfig{})
		c.sendMany(p, "t", 0, 50)
		spoilt := newInbox()
		c.consume(ConsumerConfig{Group: "vandals"}, "t", Filter{}, func(ctx context.Context, d *Delivery) error {
			d.Topic, d.ID, d.Queue, d.Offset, d.Attempt = "", "", Queue{}, -1, -1
			for i := range d.Body {
				d.Body[i] = '?'
			}
			d.Body = append(d.Body, "more than there was"...)
			d.Properties = nil
			return spoilt.listen(ctx, d)
		})
		for i := range 3 {
			in := newInbox()
			c.consume(ConsumerConfig{Group: fmt.Sprint("group", i)}, "t", Filter{}, in.listen)
			in.wait(t, 50, time.Second)
			for _, d := range in.all() {
				if !strings.HasPrefix(string(d.Body), "t ") || d.Topic != "t" {
					t.Fatalf("another group got %q of %q", d.Body, d.Topic)
				}
			}
		}
		time.Sleep(2 * persistPeriod)
		if n := len(spoilt.all()); n != 50 || c.lag("vandals", "t") != 0 {
			t.Errorf("%d deliveries, lag %d", n, c.lag("vandals", "t"))
		}
	})
}

// lag is how many messages of a topic a group has not committed.
func (c *testCluster) lag(group, topic string) (lag int64) {
	for queue := range 4 {
		_, end, err := c.broker.store.Bounds(c.storeTopic(topic), int32(queue))
		if err != nil {
			c.t.Fatal(err)
		}
		lag += end - c.committed(group, topic, queue)
	}
	return lag
}

// A listener may send, to its own topic too, waiting and not.
func TestListenerMaySend(t *testing.T) {
	inBubbles(t, func(t *testing.T, c *testCluster) {
		p, in := c.producer(ProducerConfig{}), newInbox()
		c.sendMany(p, "t", 0, 20)
		c.consume(ConsumerConfig{Concurrency: 2}, "t", Filter{}, func(ctx context.Context, d *Delivery) error {
			if len(d.Body) < 20 {
				if _, err := p.Send(ctx, &Message{Topic: "t", Body: append(slices.Clone(d.Body), "+sent again+sent again"...)}); err != nil {
					return err
				}
			}
			return in.listen(ctx, d)
		})
		in.wait(t, 40, time.Minute)
	})
}

// Limits of what a queue may hold stop its pulls, until there is room again.
func TestLimitsOfAQueueStopItsPulls(t *testing.T) {
	for name, test := range map[string]struct {
		cfg   ConsumerConfig
		pulls int // before the first listener is done
	}{
		"messages": {ConsumerConfig{QueueMessages: 40, PullBatch: 10}, 5},
		"bytes":    {ConsumerConfig{QueueBytes: 1000, PullBatch: 4}, 3},
		"span":     {ConsumerConfig{QueueSpan: 20, PullBatch: 10}, 3},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newQueueCluster(t, 1, 1)
				var texts []string
				for i := range 200 {
					texts = append(texts, fmt.Sprint(i))
				}
				c.brokers[0].put("t", 0, texts...)
				var once sync.Once
				free, in := make(chan struct{}), newInbox()
				test.cfg.Concurrency = 1
				c.consume(test.cfg, func(ctx context.Context, d *Delivery) error {
					once.Do(func() { <-free })
					return in.listen(ctx, d)
				})
				time.Sleep(time.Hour)
				if n := len(c.brokers[0].pulls("t")); n != test.pulls {
					t.Errorf("%d pulls while nothing is finished, want %d", n, test.pulls)
				}
				close(free)
				in.wait(t, 200, time.Second)
			})
		})
	}
}

func (c *testCluster) storeTopic(name string) *storage.Topic {
	c.t.Helper()
	t, ok := c.broker.topics.lookup(name)
	if !ok {
		c.t.Fatalf("no topic %s", name)
	}
	return t.store
}
