package mq

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pocketmq/mq/internal/wire"
	"github.com/pocketmq/mq/transport"
)

// BC011: Shutdown waits for the listeners that run, begins no others, commits and
// leaves: what was finished does not come again, and the rest is the next
// member's at once.
func TestShutdownWaitsForListenersAndCommits(t *testing.T) {
	for _, ordered := range []bool{false, true} {
		inBubbles(t, func(t *testing.T, c *testCluster) {
			p, in := c.producer(ProducerConfig{}), newInbox()
			c.sendMany(p, "t", 0, 30)
			cfg := ConsumerConfig{Ordered: ordered, Concurrency: 4}
			one := c.consume(cfg, "t", Filter{}, func(ctx context.Context, d *Delivery) error {
				time.Sleep(2 * time.Second)
				if ctx.Err() != nil {
					t.Error("the context of a listener ended though there was time")
				}
				return in.listen(ctx, d)
			})
			time.Sleep(time.Second)
			if err := one.Shutdown(t.Context()); err != nil {
				t.Error(err)
			}
			first := in.bodies()
			if len(first) != 4 {
				t.Errorf("%d messages were handled, want the four that were begun", len(first))
			}
			rest := newInbox()
			c.consume(cfg, "t", Filter{}, rest.listen)
			rest.wait(t, 26, time.Second)
			time.Sleep(time.Minute)
			if n := len(rest.all()); n != 26 {
				t.Errorf("the next member got %d messages, want the other 26", n)
			}
		})
	}
}

// When Shutdown's time is over the listeners are told by their context; what they
// did not finish comes again.
func TestShutdownOutOfTimeCancelsListeners(t *testing.T) {
	for _, ordered := range []bool{false, true} {
		inBubbles(t, func(t *testing.T, c *testCluster) {
			p := c.producer(ProducerConfig{})
			c.sendMany(p, "t", 0, 1)
			cfg := ConsumerConfig{Ordered: ordered, MaxRetries: -1}
			one := c.consume(cfg, "t", Filter{}, func(ctx context.Context, d *Delivery) error {
				<-ctx.Done()
				return ctx.Err()
			})
			synctest.Wait()
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
			defer cancel()
			begun := time.Now()
			if err := one.Shutdown(ctx); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("Shutdown: %v, want a deadline exceeded", err)
			}
			if took := time.Since(begun); took > 4*time.Second {
				t.Errorf("Shutdown took %v", took)
			}
			in := newInbox()
			c.consume(cfg, "t", Filter{}, in.listen)
			in.wait(t, 1, time.Second)
			if d := in.all()[0]; d.Attempt != 1 {
				t.Errorf("attempt %d: being closed was counted against the message", d.Attempt)
			}
		})
	}
}

// Close begins no listener any more, also not for messages that are in hand.
func TestCloseBeginsNoListener(t *testing.T) {
	inBubbles(t, func(t *testing.T, c *testCluster) {
		p := c.producer(ProducerConfig{})
		c.sendMany(p, "t", 0, 100)
		var begun atomic.Int32
		one := c.consume(ConsumerConfig{Concurrency: 2}, "t", Filter{}, func(ctx context.Context, _ *Delivery) error {
			begun.Add(1)
			<-ctx.Done()
			return nil
		})
		synctest.Wait()
		one.Close()
		if n := begun.Load(); n != 2 {
			t.Errorf("%d listeners were begun, want 2", n)
		}
	})
}

// BC013: the group's name is free again after a close, and goes on where it was.
func TestGroupGoesOnInTheSameProcess(t *testing.T) {
	inBubbles(t, func(t *testing.T, c *testCluster) {
		p := c.producer(ProducerConfig{})
		for round := range 3 {
			c.sendMany(p, "t", 10*round, 10)
			in := newInbox()
			one := c.consume(ConsumerConfig{}, "t", Filter{}, in.listen)
			in.wait(t, 10, time.Second)
			if err := one.Close(); err != nil {
				t.Error(err)
			}
			if n := len(in.all()); n != 10 {
				t.Errorf("round %d got %d messages, want 10", round, n)
			}
		}
	})
}

// A start that fails, or is ended by Close, leaves nothing: the bubble would say so.
func TestConsumerCloseAtAnyTime(t *testing.T) {
	for _, after := range []time.Duration{-1, 0, time.Millisecond, 50 * time.Millisecond, 100 * time.Millisecond, 150 * time.Millisecond, time.Second} {
		for _, ordered := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				c := newQueueCluster(t, 1, 4)
				c.net.Delay("127.0.0.1", "127.0.0.1", 20*time.Millisecond)
				c.net.Delay("127.0.0.1", "10.0.0.1", 20*time.Millisecond)
				c.brokers[0].put("t", 0, "x", "y")
				consumer, err := NewConsumer(ConsumerConfig{Transport: c.net, NameServers: []string{c.names.addr}, Group: "g", Ordered: ordered})
				if err != nil {
					t.Fatal(err)
				}
				if err := consumer.Subscribe("t", Filter{}, newInbox().listen); err != nil {
					t.Fatal(err)
				}
				started := make(chan error, 1)
				if after >= 0 {
					go func() { started <- consumer.Start(t.Context()) }()
					time.Sleep(after)
				}
				done := make(chan struct{}, 3)
				for range 3 { // twice more, at the same time
					go func() {
						consumer.Close()
						done <- struct{}{}
					}()
				}
				for range 3 {
					<-done
				}
				if after >= 0 {
					if err := <-started; err != nil && !errors.Is(err, ErrClosed) && !errors.Is(err, context.Canceled) {
						t.Errorf("start closed after %v: %v", after, err)
					}
				}
				if err := consumer.Start(t.Context()); err == nil {
					t.Error("a closed consumer can be started")
				}
			})
		}
	}
}

func TestStartOfAConsumerFailsClearly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := ConsumerConfig{Transport: transport.NewMemory(transport.MemoryConfig{}), NameServers: []string{"127.0.0.1:9"}, Group: "g"}
		nothing, err := NewConsumer(cfg)
		if err != nil {
			t.Fatal(err)
		}
		if err := nothing.Start(t.Context()); err == nil {
			t.Error("a consumer without a subscription starts")
		}
		nobody, err := NewConsumer(cfg)
		if err != nil {
			t.Fatal(err)
		}
		if err := nobody.Subscribe("t", Filter{}, newInbox().listen); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		if err := nobody.Start(ctx); !errors.Is(err, ErrNoNameServer) {
			t.Errorf("start without a name server: %v", err)
		}
		if id := nobody.ClientID(); id != "" {
			t.Errorf("client id %q of a consumer that did not start", id)
		}
	})
}

// A broker that answers nothing at all does not keep a consumer from closing.
func TestCloseIsBoundedWithADeadBroker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newQueueCluster(t, 1, 8)
		for q := range 8 {
			c.brokers[0].put("t", q, "0", "1", "2", "3")
		}
		for _, ordered := range []bool{false, true} {
			consumer := c.consume(ConsumerConfig{Ordered: ordered}, func(context.Context, *Delivery) error {
				time.Sleep(time.Second)
				return errAgain
			})
			time.Sleep(500 * time.Millisecond)
			c.brokers[0].do(func(*brokerRequest) *transport.Frame { return silence })
			time.Sleep(time.Second) // listeners fail, and give back
			begun := time.Now()
			consumer.Close()
			if took := time.Since(begun); took > 15*time.Second {
				t.Errorf("Close took %v", took)
			}
			c.brokers[0].do(nil)
		}
	})
}

// A listener that ends its goroutine, as FailNow does, costs its message an
// attempt, but no worker, and Shutdown does not wait for it.
func TestListenerThatEndsItsGoroutine(t *testing.T) {
	for _, ordered := range []bool{false, true} {
		inBubbles(t, func(t *testing.T, c *testCluster) {
			p, in := c.producer(ProducerConfig{DefaultQueues: 1}), newInbox()
			c.sendMany(p, "t", 0, 5)
			var ended atomic.Bool
			one := c.consume(ConsumerConfig{Concurrency: 1, Ordered: ordered}, "t", Filter{}, func(ctx context.Context, d *Delivery) error {
				if ended.CompareAndSwap(false, true) {
					runtime.Goexit()
				}
				return in.listen(ctx, d)
			})
			in.wait(t, 5, time.Minute)
			if err := one.Shutdown(t.Context()); err != nil {
				t.Error(err)
			}
			if at := c.committed("consumers", "t", 0); at != 5 {
				t.Errorf("committed %d of 5", at)
			}
		})
	}
}

// What is finished at Close is committed, though it is under load, and no message
// is lost over many members that are closed at random moments.
func TestCloseUnderLoadLosesNothing(t *testing.T) {
	inBubbles(t, func(t *testing.T, c *testCluster) {
		p, in := c.producer(ProducerConfig{}), newInbox()
		c.sendMany(p, "t", 0, 300)
		for i := range 10 {
			one := c.consume(ConsumerConfig{Concurrency: 3}, "t", Filter{}, func(ctx context.Context, d *Delivery) error {
				select {
				case <-ctx.Done():
					return ctx.Err()
				case <-time.After(time.Duration(len(d.Body)*7) * time.Millisecond):
					return in.listen(ctx, d)
				}
			})
			time.Sleep(time.Duration(i*37) * time.Millisecond)
			one.Close()
		}
		last := c.consume(ConsumerConfig{}, "t", Filter{}, in.listen)
		in.wait(t, 300, time.Minute)
		if n := len(in.all()); n > 300+10*3*4 {
			t.Errorf("%d deliveries of 300 messages", n)
		}
		last.Close()
	})
}

// The last thing a member says to a broker is its offsets and that it leaves.
func TestLeavingMemberCommitsBeforeItLeaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newQueueCluster(t, 1, 2)
		c.brokers[0].put("t", 0, "0", "1")
		consumer := c.consume(ConsumerConfig{Ordered: true}, newInbox().listen)
		time.Sleep(time.Second)
		consumer.Close()
		var last []int32
		c.brokers[0].mu.Lock()
		for _, r := range c.brokers[0].asked[len(c.brokers[0].asked)-4:] {
			last = append(last, r.Code)
		}
		c.brokers[0].mu.Unlock()
		want := fmt.Sprint([]int32{wire.CodeUpdateConsumerOffset, wire.CodeUpdateConsumerOffset, wire.CodeUnlockBatchMQ, wire.CodeUnregisterClient})
		if fmt.Sprint(last) != want {
			t.Errorf("last requests %v, want %s", last, want)
		}
		if !slices.Equal([]int64{c.brokers[0].committed("t", 0), c.brokers[0].committed("t", 1)}, []int64{2, 0}) {
			t.Error("wrong offsets")
		}
	})
}
