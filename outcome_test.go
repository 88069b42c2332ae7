package mq

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pocketmq/mq/transport"
)

// sendWays are all ways to send one message; each returns the outcome.
func sendWays(t *testing.T) map[string]func(ctx context.Context, p *Producer, body string) error {
	return map[string]func(ctx context.Context, p *Producer, body string) error{
		"Send": func(ctx context.Context, p *Producer, body string) error {
			_, err := p.Send(ctx, textMessage("t", body))
			return err
		},
		"Send with a shard key": func(ctx context.Context, p *Producer, body string) error {
			_, err := p.Send(ctx, &Message{Topic: "t", Body: []byte(body), ShardKey: "k"})
			return err
		},
		"SendSelect": func(ctx context.Context, p *Producer, body string) error {
			_, err := p.SendSelect(ctx, textMessage("t", body), func([]Queue) int { return 0 })
			return err
		},
		"SendBatch": func(ctx context.Context, p *Producer, body string) error {
			_, err := p.SendBatch(ctx, []*Message{textMessage("t", body)})
			return err
		},
		"SendAsync": func(ctx context.Context, p *Producer, body string) error {
			outcome := make(chan error, 1)
			if err := p.SendAsync(ctx, textMessage("t", body), func(_ *SendResult, err error) { outcome <- err }); err != nil {
				return err
			}
			return <-outcome
		},
		"SendOneway": func(ctx context.Context, p *Producer, body string) error {
			err := p.SendOneway(ctx, textMessage("t", body))
			synctest.Wait()
			return err
		},
	}
}

func TestSendThatMissesABrokerFindsWhereItIsNow(t *testing.T) {
	for name, send := range sendWays(t) {
		for _, renamed := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					c := newFakeCluster(t, 1, 4)
					p := c.producer(t, nil)
					if _, err := p.Send(t.Context(), textMessage("t", "before")); err != nil {
						t.Fatal(err)
					}
					c.brokers[0].down()
					broker := "broker-a"
					if renamed {
						broker = "broker-20005"
					}
					moved := newFakeBroker(t, c.net, broker, "10.0.0.9:10911")
					c.names.set("t", 4, moved)
					began := time.Now()
					if err := send(t.Context(), p, "after"); err != nil {
						t.Fatal(err)
					}
					if d := time.Since(began); len(moved.got()) != 1 || d > 100*time.Millisecond {
						t.Errorf("%d messages came after %v", len(moved.got()), d)
					}
				})
			})
		}
	}
}

func TestRestartedBrokerOnAnotherPortTakesTheNextSend(t *testing.T) {
	for _, name := range []string{"", "fixed"} {
		synctest.Test(t, func(t *testing.T) {
			net := transport.NewMemory(transport.MemoryConfig{})
			c := &testCluster{t: t, net: net, ns: startNameServer(t, net, NameServerConfig{})}
			cfg := BrokerConfig{Name: name, Listen: "127.0.0.1:0"}
			broker := c.startBroker(cfg)
			p := c.producer(ProducerConfig{})
			for range 3 {
				for _, key := range []string{"", "k"} {
					if _, err := p.Send(t.Context(), &Message{Topic: "orders", Body: []byte("x"), ShardKey: key}); err != nil {
						t.Fatalf("name %q, shard key %q: %v", name, key, err)
					}
				}
				must(t, broker.Close())
				if _, err := p.Send(t.Context(), textMessage("orders", "x")); !errors.Is(err, ErrUnreachable) && !errors.Is(err, ErrNoRoute) {
					t.Errorf("while it is away: %v", err)
				}
				broker = c.startBroker(cfg)
			}
		})
	}
}

func TestManySendsThatMissABrokerLookItUpTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newFakeCluster(t, 1, 4)
		p := c.producer(t, nil)
		if _, err := p.Send(t.Context(), textMessage("t", "x")); err != nil {
			t.Fatal(err)
		}
		c.brokers[0].down()
		before := c.names.askedFor("t")
		began := time.Now()
		var all sync.WaitGroup
		for range 200 {
			all.Go(func() {
				if _, err := p.Send(t.Context(), textMessage("t", "x")); !errors.Is(err, ErrUnreachable) {
					t.Error(err)
				}
			})
		}
		all.Wait()
		if n, d := c.names.askedFor("t")-before, time.Since(began); n > 4 || d > 2*lookAgainAfter {
			t.Errorf("%d look-ups for 200 sends, which took %v", n, d)
		}
	})
}

func TestSendToNobodySaysThatNothingWasSent(t *testing.T) {
	for name, send := range sendWays(t) {
		synctest.Test(t, func(t *testing.T) {
			c := newFakeCluster(t, 1, 4)
			p := c.producer(t, nil)
			c.brokers[0].down()
			err := send(t.Context(), p, "x")
			if !errors.Is(err, ErrUnreachable) || errors.Is(err, ErrOutcomeUnknown) || errors.Is(err, ErrTimeout) ||
				!strings.Contains(err.Error(), "nothing was sent") || strings.Contains(err.Error(), "unknown") {
				t.Errorf("%s: %v", name, err)
			}
		})
	}
}

func TestSendThatIsOverBeforeItBeginsIsNotSent(t *testing.T) {
	past, cancelPast := context.WithDeadline(context.Background(), time.Unix(0, 0))
	defer cancelPast()
	cancelled, cancel := context.WithCancel(context.Background())
	cancel()
	for name, send := range sendWays(t) {
		for ctx, want := range map[context.Context]error{past: context.DeadlineExceeded, cancelled: context.Canceled} {
			synctest.Test(t, func(t *testing.T) {
				c := newFakeCluster(t, 1, 4)
				p := c.producer(t, nil)
				err := send(ctx, p, "x")
				if !errors.Is(err, want) || errors.Is(err, ErrOutcomeUnknown) || errors.Is(err, ErrTimeout) ||
					!strings.Contains(err.Error(), "nothing was sent") || strings.Contains(err.Error(), "unknown") {
					t.Errorf("%s: %v", name, err)
				}
				synctest.Wait()
				if n := len(c.brokers[0].got()); n != 0 {
					t.Errorf("%s: %d messages came", name, n)
				}
			})
		}
	}
}

func TestSendThatIsGivenUpInFlightMayBeStored(t *testing.T) {
	for name, send := range sendWays(t) {
		if name == "SendOneway" {
			continue // it never knows
		}
		for _, end := range []string{"cancel", "deadline", "lost"} {
			synctest.Test(t, func(t *testing.T) {
				c := newFakeCluster(t, 1, 4)
				c.brokers[0].do(hang)
				p := c.producer(t, func(cfg *ProducerConfig) { cfg.Retries = -1 })
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				switch end {
				case "cancel":
					time.AfterFunc(50*time.Millisecond, cancel)
				case "deadline":
					ctx, cancel = context.WithTimeout(ctx, 50*time.Millisecond)
					defer cancel()
				case "lost":
					time.AfterFunc(50*time.Millisecond, func() { c.net.Cut(c.brokers[0].addr) })
				}
				err := send(ctx, p, "x")
				if !errors.Is(err, ErrOutcomeUnknown) || !strings.Contains(err.Error(), "outcome unknown") || errors.Is(err, ErrUnreachable) ||
					errors.Is(err, context.Canceled) != (end == "cancel") || errors.Is(err, ErrTimeout) != (end == "deadline") {
					t.Errorf("%s, %s: %v", name, end, err)
				}
			})
		}
	}
}

// The last try may well say that nothing was sent: an earlier one was not answered.
func TestUnansweredTryMakesTheWholeSendsOutcomeUnknown(t *testing.T) {
	for _, name := range []string{"Send", "SendAsync"} {
		for what, then := range map[string]func(c *fakeCluster){
			"refused":     func(c *fakeCluster) { c.brokers[0].do(refuse(1)) },
			"unreachable": func(c *fakeCluster) { c.brokers[0].down() },
		} {
			synctest.Test(t, func(t *testing.T) {
				c := newFakeCluster(t, 1, 4)
				c.brokers[0].do(hang)
				p := c.producer(t, func(cfg *ProducerConfig) { cfg.Retries = 1 })
				time.AfterFunc(time.Second, func() { then(c) })
				err := sendWays(t)[name](t.Context(), p, "x")
				if !errors.Is(err, ErrOutcomeUnknown) || !strings.Contains(err.Error(), "earlier try was not answered") {
					t.Errorf("%s, then %s: %v", name, what, err)
				}
			})
		}
	}
}

func TestFullWindowSaysThatNothingWasSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newFakeCluster(t, 1, 4)
		c.brokers[0].do(hang)
		p := c.producer(t, func(cfg *ProducerConfig) { cfg.AsyncWindow = 1 })
		if err := p.SendAsync(t.Context(), textMessage("t", "x"), func(*SendResult, error) {}); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		err := p.SendAsync(ctx, textMessage("t", "x"), func(*SendResult, error) { t.Error("callback of a send that was refused") })
		if !errors.Is(err, ErrTooManyInFlight) || !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, ErrOutcomeUnknown) ||
			!strings.Contains(err.Error(), "nothing was sent") || strings.Contains(err.Error(), "unknown") {
			t.Error(err)
		}
	})
}

// A connection's window is full of others' requests: as a full AsyncWindow.
func TestFullWindowOfAConnectionSaysThatNothingWasSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newFakeCluster(t, 1, 4)
		c.net = transport.NewMemory(transport.MemoryConfig{Window: 1})
		c.names = newFakeNames(t, c.net, "127.0.0.1:9876")
		c.brokers[0] = newFakeBroker(t, c.net, "broker-a", "10.0.0.1:10911")
		c.names.set("t", 4, c.brokers...)
		p := c.producer(t, func(cfg *ProducerConfig) { cfg.Retries = -1 })
		c.brokers[0].do(hang)
		if err := p.SendAsync(t.Context(), textMessage("t", "x"), func(*SendResult, error) {}); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		if _, err := p.Send(ctx, textMessage("t", "x")); !errors.Is(err, ErrTooManyInFlight) || errors.Is(err, ErrOutcomeUnknown) ||
			!strings.Contains(err.Error(), "nothing was sent") {
			t.Error(err)
		}
	})
}

func TestSendsBehindAFailedOneWereNotSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newFakeCluster(t, 1, 4)
		c.brokers[0].do(hang)
		p := c.producer(t, func(cfg *ProducerConfig) { cfg.FailQueuedOnError, cfg.Retries = true, -1 })
		var outcomes []error
		for range 2 {
			m := &Message{Topic: "t", Body: []byte("x"), ShardKey: "k"}
			if err := p.SendAsync(t.Context(), m, func(_ *SendResult, err error) { outcomes = append(outcomes, err) }); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(4 * time.Second)
		synctest.Wait()
		if len(outcomes) != 2 || !errors.Is(outcomes[0], ErrTimeout) {
			t.Fatalf("outcomes %v", outcomes)
		}
		if err := outcomes[1]; errors.Is(err, ErrOutcomeUnknown) || !strings.Contains(err.Error(), "nothing was sent") {
			t.Error(err)
		}
	})
}

func TestProducerClosesAtOnceBesideASilentBroker(t *testing.T) {
	for _, shutdown := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			c := newFakeCluster(t, 1, 4)
			p := c.producer(t, nil)
			if _, err := p.Send(t.Context(), textMessage("t", "x")); err != nil {
				t.Fatal(err)
			}
			stop := c.net.Drop("", c.brokers[0].addr, nil)
			defer stop()
			waiting, told := make(chan error, 1), make(chan error, 1)
			go func() {
				_, err := p.Send(t.Context(), textMessage("t", "x"))
				waiting <- err
			}()
			if err := p.SendAsync(t.Context(), textMessage("t", "x"), func(_ *SendResult, err error) { told <- err }); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			began, want := time.Now(), time.Duration(0)
			if shutdown {
				want = 100 * time.Millisecond
				ctx, cancel := context.WithTimeout(t.Context(), want)
				defer cancel()
				if err := p.Shutdown(ctx); !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("Shutdown: %v", err)
				}
			} else {
				must(t, p.Close())
			}
			if d := time.Since(began); d != want {
				t.Errorf("took %v, want %v", d, want)
			}
			for _, err := range []error{<-waiting, <-told} {
				if !errors.Is(err, ErrClosed) || !errors.Is(err, ErrOutcomeUnknown) || errors.Is(err, ErrTimeout) {
					t.Errorf("a send under way ended with %v", err)
				}
			}
		})
	}
}

func TestSendToAQueueThatIsNotThere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newFakeCluster(t, 1, 4)
		p := c.producer(t, nil)
		for _, id := range []int{-1, 4, 99} {
			_, err := p.SendTo(t.Context(), Queue{"t", "broker-a", id}, textMessage("t", "x"))
			if !errors.Is(err, ErrMessageIllegal) || !strings.Contains(err.Error(), "t@broker-a:3") {
				t.Errorf("queue %d: %v", id, err)
			}
		}
		if n := len(c.brokers[0].got()); n != 0 {
			t.Errorf("%d were sent", n)
		}
		c.names.set("t", 100, c.brokers...) // the producer has not heard of it yet
		if _, err := p.SendTo(t.Context(), Queue{"t", "broker-a", 99}, textMessage("t", "x")); err != nil {
			t.Error(err)
		}
	})
}
