package mq

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pocketmq/mq/internal/wire"
	"github.com/pocketmq/mq/transport"
)

func (c *testCluster) raw() *rawBroker {
	c.t.Helper()
	r := &rawBroker{Broker: c.broker, t: c.t, net: c.net, version: protocolVersion}
	r.conn = r.dial()
	c.t.Cleanup(func() { r.conn.Close() })
	return r
}

// deleteTopic deletes a topic as an administrator does: on the broker, and then
// from the name server.
func (c *testCluster) deleteTopic(name string) {
	c.t.Helper()
	c.raw().must(wire.CodeDeleteTopicInBroker, &wire.DeleteTopicRequest{Topic: name}, nil)
	peer := dialRaw(c.t, c.net, c.ns.Addr())
	peer.want(wire.Success, &transport.Frame{Code: wire.CodeDeleteTopicInNameServer, Fields: []string{"topic", name}})
}

// BC094: the group of a deleted topic begins anew with it.
func TestTopicDeletedBetweenUses(t *testing.T) {
	inBubbles(t, func(t *testing.T, c *testCluster) {
		p, in := c.producer(ProducerConfig{}), newInbox()
		c.sendMany(p, "orders", 0, 100)
		first := c.consume(ConsumerConfig{}, "orders", Filter{}, in.listen)
		in.wait(t, 100, time.Minute)
		first.Close()
		c.deleteTopic("orders")
		again := newInbox()
		var last error
		for i, sent := 0, 0; sent < 10; i++ { // the producer may try the deleted topic first
			if _, last = p.Send(t.Context(), &Message{Topic: "orders", Body: fmt.Appendf(nil, "again %d", sent)}); last == nil {
				sent++
			} else if i > 100 {
				t.Fatal(last)
			} else {
				time.Sleep(time.Second)
			}
		}
		c.consume(ConsumerConfig{}, "orders", Filter{}, again.listen)
		again.wait(t, 10, time.Minute)
		time.Sleep(time.Minute)
		if n := len(again.all()); n != 10 {
			t.Errorf("%d deliveries, want the 10 new ones: %v", n, again.bodies())
		}
	})
}

// A consumer group is deleted while it consumes: it is made again, and nothing is
// lost. What was committed went with it, so messages may come twice.
func TestGroupDeletedInUse(t *testing.T) {
	inBubbles(t, func(t *testing.T, c *testCluster) {
		p, in := c.producer(ProducerConfig{}), newInbox()
		c.sendMany(p, "orders", 0, 20)
		fails := make(map[string]int)
		var mu sync.Mutex
		c.consume(ConsumerConfig{}, "orders", Filter{}, func(ctx context.Context, d *Delivery) error {
			mu.Lock()
			fails[d.ID]++
			first := fails[d.ID] == 1
			mu.Unlock()
			if first && d.Offset%3 == 0 {
				return errors.New("again")
			}
			return in.listen(ctx, d)
		})
		for round := range 5 {
			c.sendMany(p, "orders", 20+20*round, 20)
			time.Sleep(time.Duration(round) * 300 * time.Millisecond)
			c.raw().must(wire.CodeDeleteSubscriptionGroup, &wire.DeleteGroupRequest{GroupName: "consumers"}, nil)
			time.Sleep(time.Duration(round) * 11 * time.Second)
		}
		c.sendMany(p, "orders", 120, 20)
		in.wait(t, 140, 10*time.Minute)
	})
}

// The same with groups that are not made by themselves: the consumer is refused
// until an administrator makes the group again, and then goes on.
func TestGroupDeletedInUseWithoutAutomaticCreation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newTestCluster(t, transport.MemoryConfig{}, BrokerConfig{DisableAutoCreateGroup: true})
		create := func() {
			body := []byte(`{"groupName":"consumers","consumeEnable":true,"consumeFromMinEnable":true,"retryQueueNums":1,"retryMaxTimes":16}`)
			c.raw().must(wire.CodeUpdateAndCreateSubscriptionGroup, nil, body)
		}
		create()
		p, in := c.producer(ProducerConfig{}), newInbox()
		c.sendMany(p, "orders", 0, 20)
		c.consume(ConsumerConfig{}, "orders", Filter{}, in.listen)
		in.wait(t, 20, time.Minute)
		c.raw().must(wire.CodeDeleteSubscriptionGroup, &wire.DeleteGroupRequest{GroupName: "consumers"}, nil)
		c.sendMany(p, "orders", 20, 20)
		time.Sleep(5 * time.Minute)
		if n := len(in.bodies()); n > 24 { // the pulls held at that moment may still bring one each
			t.Errorf("%d messages came to a group that does not exist", n)
		}
		create()
		in.wait(t, 40, 10*time.Minute)
	})
}

// A topic is deleted while a producer and a consumer use it. The next sends make
// it again, and the consumer gets what is sent from then on.
func TestTopicDeletedInUse(t *testing.T) {
	inBubbles(t, func(t *testing.T, c *testCluster) {
		p, in := c.producer(ProducerConfig{}), newInbox()
		c.sendMany(p, "orders", 0, 40)
		c.consume(ConsumerConfig{}, "orders", Filter{}, in.listen)
		in.wait(t, 40, time.Minute)
		for round := 1; round <= 3; round++ {
			stop, acked := make(chan struct{}), make(map[string]bool)
			var sending sync.WaitGroup
			var mu sync.Mutex
			sending.Go(func() {
				for i := 0; ; i++ {
					select {
					case <-stop:
						return
					case <-time.After(20 * time.Millisecond):
					}
					body := fmt.Sprintf("round %d send %d", round, i)
					_, err := p.Send(t.Context(), &Message{Topic: "orders", Body: []byte(body)})
					if err != nil && !errors.Is(err, ErrTopicNotFound) && !errors.Is(err, ErrNoRoute) {
						t.Errorf("send: %v", err)
					}
					if err == nil {
						mu.Lock()
						acked[body] = true
						mu.Unlock()
					}
				}
			})
			time.Sleep(time.Second)
			c.deleteTopic("orders")
			mu.Lock()
			clear(acked) // what was sent before may have gone with the topic
			mu.Unlock()
			time.Sleep(2 * time.Minute) // routes are looked up every 30 s
			close(stop)
			sending.Wait()
			time.Sleep(time.Minute)
			got := make(map[string]bool)
			for _, body := range in.bodies() {
				got[body] = true
			}
			missing := 0
			for body := range acked {
				if !got[body] {
					missing++
				}
			}
			if missing > 0 || len(acked) < 1000 {
				t.Fatalf("round %d: %d of %d messages sent after the deletion did not come", round, missing, len(acked))
			}
		}
	})
}
