package mq

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pocketmq/mq/internal/wire"
	"github.com/pocketmq/mq/transport"
)

// createTopic makes a topic on a broker, or changes its number of queues.
func (c *testCluster) createTopic(b *Broker, name string, queues int32) {
	c.t.Helper()
	conn, err := c.net.Dial(c.t.Context(), b.Addr(), nil)
	if err != nil {
		c.t.Fatal(err)
	}
	defer conn.Close()
	f, err := conn.Call(c.t.Context(), &transport.Frame{Code: wire.CodeUpdateAndCreateTopic, Header: &wire.CreateTopicRequest{Topic: name,
		DefaultTopic: autoCreateTopic, ReadQueueNums: queues, WriteQueueNums: queues, Perm: wire.PermRead | wire.PermWrite, TopicFilterType: "SINGLE_TAG"}})
	if err != nil || f.Code != wire.Success {
		c.t.Fatalf("create topic: %v %v", f, err)
	}
}

// BC028: queues and brokers that are added later are consumed, their first
// messages included, also with a producer in the same process.
func TestQueuesAndBrokersAddedLaterAreConsumed(t *testing.T) {
	inBubbles(t, func(t *testing.T, c *testCluster) {
		c.createTopic(c.broker, "t", 4)
		p, in := c.producer(ProducerConfig{}), newInbox()
		c.sendMany(p, "t", 0, 8)
		consumer := c.newConsumer(ConsumerConfig{Start: FromLast}) // what is new there is not skipped
		if err := consumer.Subscribe("t", Filter{}, in.listen); err != nil {
			t.Fatal(err)
		}
		if err := consumer.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		c.createTopic(c.broker, "t", 8)
		time.Sleep(31 * time.Second) // the producer has the new route, and so has the consumer
		c.sendMany(p, "t", 8, 16)
		in.wait(t, 24, 50*time.Second)
		second := c.startBroker(BrokerConfig{Name: "second"})
		c.createTopic(second, "t", 4)
		time.Sleep(31 * time.Second)
		c.sendMany(p, "t", 24, 24)
		in.wait(t, 48, 50*time.Second)
		if n := len(queuesOfTopic(consumer.Assigned(), "t")); n != 12 {
			t.Errorf("%d queues, want 12", n)
		}
	})
}

func queuesOfTopic(all []Queue, topic string) []Queue {
	return slices.DeleteFunc(all, func(q Queue) bool { return q.Topic != topic })
}

// BC035: members that come and go every second do not multiply pull loops.
func TestOnePullLoopPerQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newTestCluster(t, transport.MemoryConfig{}, BrokerConfig{})
		p, in := c.producer(ProducerConfig{}), newInbox()
		c.sendMany(p, "t", 0, 8)
		one := c.consume(ConsumerConfig{}, "t", Filter{}, in.listen)
		time.Sleep(2 * persistPeriod)
		for range 30 {
			other := c.consume(ConsumerConfig{}, "t", Filter{}, in.listen)
			time.Sleep(time.Second)
			other.Close()
			time.Sleep(time.Second)
		}
		time.Sleep(2*rebalancePeriod + time.Millisecond)
		synctest.Wait() // a pull whose time is up is asked for again at this moment
		if n, held := len(one.Assigned()), c.broker.holds.len(); n != 5 || held != 5 {
			t.Errorf("%d queues, %d pulls held; want 5 of each", n, held)
		}
		if n := len(in.all()); n != 8 {
			t.Errorf("%d deliveries of 8 messages", n)
		}
	})
}

// BC041, BC145: members come and go at random, with messages and slow listeners.
// In the end every queue has one owner and every message was delivered; committed
// offsets never go back and never pass an unfinished message.
func TestRandomMembersLoseNothing(t *testing.T) {
	inBubbles(t, func(t *testing.T, c *testCluster) {
		random := rand.New(rand.NewPCG(1, 2))
		p := c.producer(ProducerConfig{DefaultQueues: 8})
		var mu sync.Mutex
		done := make(map[Queue]map[int64]bool)
		listen := func(ctx context.Context, d *Delivery) error {
			queue, offset := d.Queue, d.Offset
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(time.Duration(offset%37) * time.Millisecond):
			}
			mu.Lock()
			defer mu.Unlock()
			if done[queue] == nil {
				done[queue] = make(map[int64]bool)
			}
			done[queue][offset] = true
			return nil
		}
		watch, stop := context.WithCancel(t.Context())
		var watcher sync.WaitGroup
		watcher.Go(func() { c.watchOffsets(watch, &mu, done) })
		sent := 0
		var members []*Consumer
		for range 60 {
			if len(members) == 0 || len(members) < 10 && random.IntN(2) == 0 {
				members = append(members, c.consume(ConsumerConfig{QueueMessages: 50}, "t", Filter{}, listen))
			} else {
				i := random.IntN(len(members))
				members[i].Close()
				members = slices.Delete(members, i, i+1)
			}
			n := random.IntN(60)
			c.sendMany(p, "t", sent, n)
			sent += n
			time.Sleep(time.Duration(random.IntN(2000)) * time.Millisecond)
		}
		for len(members) < 3 {
			members = append(members, c.consume(ConsumerConfig{}, "t", Filter{}, listen))
		}
		time.Sleep(2 * rebalancePeriod)
		stop()
		watcher.Wait()
		var owned []Queue
		for _, m := range members {
			owned = append(owned, queuesOfTopic(m.Assigned(), "t")...)
		}
		slices.SortFunc(owned, compareQueues)
		if len(owned) != 8 || len(slices.Compact(owned)) != 8 {
			t.Errorf("owned queues: %v, want each of 8 once", owned)
		}
		all := 0
		for _, offsets := range done {
			all += len(offsets)
		}
		if all != sent {
			t.Errorf("%d of %d messages were delivered", all, sent)
		}
	})
}

// watchOffsets checks what is committed, twice a second.
func (c *testCluster) watchOffsets(ctx context.Context, mu *sync.Mutex, done map[Queue]map[int64]bool) {
	last := make(map[Queue]int64)
	for sleep(ctx, 500*time.Millisecond) {
		topic, ok := c.broker.topics.lookup("t")
		if !ok {
			continue
		}
		mu.Lock()
		for queue, offsets := range done {
			at, _, err := c.broker.store.CommittedOffset("consumers", topic.store, int32(queue.ID))
			if err != nil {
				c.t.Error(err)
			}
			if at < last[queue] {
				c.t.Errorf("%v: committed offset went from %d to %d", queue, last[queue], at)
			}
			for o := last[queue]; o < at; o++ {
				if !offsets[o] {
					c.t.Errorf("%v: committed %d, though %d is not done", queue, at, o)
				}
			}
			last[queue] = at
		}
		mu.Unlock()
	}
}

// A concurrent consumer that gives queues up lets running listeners finish and
// commits them: the next owner does not get them again.
func TestLostQueuesAreDrained(t *testing.T) {
	inBubbles(t, func(t *testing.T, c *testCluster) {
		p, in := c.producer(ProducerConfig{}), newInbox()
		slow := func(ctx context.Context, d *Delivery) error {
			time.Sleep(700 * time.Millisecond)
			return in.listen(ctx, d)
		}
		c.sendMany(p, "t", 0, 100)
		consumer := c.consume(ConsumerConfig{Concurrency: 8}, "t", Filter{}, slow)
		for range 4 {
			time.Sleep(2100 * time.Millisecond)
			consumer.Unsubscribe("t")
			time.Sleep(1500 * time.Millisecond)
			if err := consumer.Subscribe("t", Filter{}, slow); err != nil {
				t.Fatal(err)
			}
		}
		in.wait(t, 100, time.Minute)
		time.Sleep(time.Minute)
		if n := len(in.all()); n != 100 {
			t.Errorf("%d deliveries of 100 messages", n)
		}
	})
}

// A listener that runs longer does not hold the handing over up, and what it does
// then counts no more.
func TestLostQueueOfASlowListenerIsNotCommittedByIt(t *testing.T) {
	inBubbles(t, func(t *testing.T, c *testCluster) {
		p, in := c.producer(ProducerConfig{}), newInbox()
		c.sendMany(p, "t", 0, 4)
		one := c.consume(ConsumerConfig{}, "t", Filter{}, func(context.Context, *Delivery) error {
			time.Sleep(time.Minute)
			return errAgain // nor is it given back by one that lost it
		})
		time.Sleep(time.Second)
		c.consume(ConsumerConfig{}, "t", Filter{}, in.listen)
		time.Sleep(5 * time.Second)
		if lost := 4 - len(queuesOfTopic(one.Assigned(), "t")); lost != 2 {
			t.Fatalf("%d queues were handed over, want 2", lost)
		}
		in.wait(t, 2, time.Second)
		time.Sleep(5 * time.Minute)
		attempts := make(map[string][]int)
		for _, d := range in.all() {
			attempts[string(d.Body)] = append(attempts[string(d.Body)], d.Attempt)
		}
		retried := 0
		for _, a := range attempts {
			if a[0] > 1 {
				retried++
			}
		}
		if retried > 2 {
			t.Errorf("attempts %v: messages of lost queues were given back", attempts)
		}
	})
}

// A member the brokers do not list, and brokers that do not answer, are no reason
// to give queues up.
func TestQueuesAreKeptWhenMembersCannotBeFoundOut(t *testing.T) {
	for name, answer := range map[string]*transport.Frame{
		"no answer":       silence,
		"nobody":          {Code: wire.SystemError, Remark: "no consumer for this group"},
		"others only":     {Body: (&wire.ConsumerList{ConsumerIDs: []string{"other"}}).Marshal()},
		"nonsense":        {Body: []byte("nonsense")},
		"an empty list":   {Body: (&wire.ConsumerList{}).Marshal()},
		"no such request": {Code: wire.RequestCodeNotSupported},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newQueueCluster(t, 1, 4)
				consumer := c.consume(ConsumerConfig{}, newInbox().listen)
				before := consumer.Assigned()
				if len(before) != 4 {
					t.Fatalf("assigned %v", before)
				}
				c.brokers[0].do(func(r *brokerRequest) *transport.Frame {
					if r.Code == wire.CodeGetConsumerListByGroup {
						return answer
					}
					return nil
				})
				time.Sleep(3 * time.Minute)
				if after := consumer.Assigned(); !slices.Equal(after, before) {
					t.Errorf("assigned %v, before %v", after, before)
				}
				if n := len(c.brokers[0].requests(wire.CodeGetConsumerListByGroup)); n > 200 {
					t.Errorf("members were asked for %d times in 3 minutes", n)
				}
			})
		})
	}
}

// BC142, BC143: machine rooms. Brokers are named room@broker; by room, only the
// configured rooms' queues are shared out; nearby, each room's members have its
// queues, and all members share those of rooms without members.
func TestMachineRooms(t *testing.T) {
	var queues []Queue
	for _, room := range []string{"r1", "r2", "r3"} {
		queues = appendQueues(queues, "t", room+"@broker", 3)
	}
	share := func(a Allocator, clients ...string) map[Queue]int {
		owners := make(map[Queue]int)
		for _, client := range clients {
			got, err := a.Allocate(Allocation{Group: "g", Client: client, Queues: queues, Clients: clients})
			if err != nil {
				t.Fatal(err)
			}
			for _, q := range got {
				owners[q]++
			}
		}
		return owners
	}
	rooms := share(ByMachineRoom("r1", "r2"), "c1", "c2", "c3")
	if len(rooms) != 6 {
		t.Errorf("%d queues are shared out, want the 6 of r1 and r2", len(rooms))
	}
	for q, n := range rooms {
		if n != 1 || q.Broker == "r3@broker" {
			t.Errorf("%v has %d owners", q, n)
		}
	}
	nearby := share(MachineRoomNearby(Average(), atSign{}), "r3@c1", "r3@c2", "r3@c3", "r3@c4")
	if len(nearby) != 9 {
		t.Errorf("%d of 9 queues are shared out", len(nearby))
	}
	for q, n := range nearby {
		if n != 1 {
			t.Errorf("%v has %d owners", q, n)
		}
	}
}

// atSign finds rooms before the @.
type atSign struct{}

func (atSign) BrokerRoom(q Queue) string         { return q.Broker[:2] }
func (atSign) ConsumerRoom(client string) string { return client[:2] }

// An allocator that fails, or returns nonsense, costs nothing but the round.
func TestAllocatorThatFailsKeepsTheQueues(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newQueueCluster(t, 1, 4)
		a := &moodyAllocator{}
		consumer := c.consume(ConsumerConfig{Allocator: a}, newInbox().listen)
		if n := len(consumer.Assigned()); n != 4 {
			t.Fatalf("%d queues", n)
		}
		a.set(fmt.Errorf("moody"))
		time.Sleep(time.Minute)
		if n := len(consumer.Assigned()); n != 4 {
			t.Errorf("%d queues after failures", n)
		}
	})
}

type moodyAllocator struct {
	mu  sync.Mutex
	err error
}

func (a *moodyAllocator) set(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.err = err
}

func (a *moodyAllocator) Name() string { return "MOODY" }

func (a *moodyAllocator) Allocate(in Allocation) ([]Queue, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return in.Queues, a.err
}
