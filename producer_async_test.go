package mq

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pocketmq/mq/transport"
)

// An asyncCall counts the calls of one callback.
type asyncCall struct {
	calls  atomic.Int32
	result *SendResult
	err    error
}

func (a *asyncCall) done(r *SendResult, err error) {
	a.result, a.err = r, err
	a.calls.Add(1)
}

// later is a script that stores after a delay.
func later(d time.Duration) func(int, fakeSend, func(*transport.Frame)) bool {
	return func(n int, s fakeSend, reply func(*transport.Frame)) bool {
		time.AfterFunc(d, func() { reply(stored(n, s)) })
		return true
	}
}

func TestAsyncSendsKeepTheirOrderAndEachCallbackRunsOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newFakeCluster(t, 1, 1)
		p := c.producer(t, func(cfg *ProducerConfig) { cfg.AsyncWindow = 10 })
		const n = 500
		calls := make([]asyncCall, n)
		var order []int
		for i := range n {
			err := p.SendAsync(t.Context(), textMessage("t", fmt.Sprint(i)), func(r *SendResult, err error) {
				order = append(order, i) // one worker: no lock needed
				calls[i].done(r, err)
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		for i, s := range c.brokers[0].got() {
			if s.body != fmt.Sprint(i) {
				t.Fatalf("message %d is %s", i, s.body)
			}
		}
		for i := range calls {
			if a := &calls[i]; a.calls.Load() != 1 || a.err != nil || a.result.Offset != int64(i) || order[i] != i {
				t.Fatalf("callback %d: %d calls, %+v, %v", i, a.calls.Load(), a.result, a.err)
			}
		}
	})
}

func TestAsyncWindowBoundsWhatIsInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newFakeCluster(t, 1, 1)
		p := c.producer(t, func(cfg *ProducerConfig) { cfg.AsyncWindow, cfg.AsyncWindowBytes = 5, 10 })
		c.brokers[0].do(later(500 * time.Millisecond))
		var one asyncCall
		for range 5 {
			if err := p.SendAsync(t.Context(), textMessage("t", "x"), one.done); err != nil {
				t.Fatal(err)
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		err := p.SendAsync(ctx, textMessage("t", "x"), func(*SendResult, error) { t.Error("callback of a send that was refused") })
		if !errors.Is(err, ErrTooManyInFlight) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v, want ErrTooManyInFlight", err)
		}
		began := time.Now()
		if err := p.SendAsync(t.Context(), textMessage("t", strings.Repeat("x", 10)), one.done); err != nil {
			t.Fatal(err)
		}
		if d := time.Since(began); d != 400*time.Millisecond {
			t.Errorf("waited %v for a place, want until all were answered", d)
		}
		began = time.Now()
		if err := p.SendAsync(t.Context(), textMessage("t", strings.Repeat("x", 100)), one.done); err != nil {
			t.Fatalf("a message larger than the window: %v", err)
		}
		if d := time.Since(began); d != 500*time.Millisecond {
			t.Errorf("waited %v, want until it was alone", d)
		}
		time.Sleep(time.Second)
		if n := len(c.brokers[0].got()); n != 7 {
			t.Errorf("%d messages were sent", n)
		}
		if n := one.calls.Load(); n != 7 {
			t.Errorf("%d callbacks, want 7", n)
		}
	})
}

func TestCallbackMaySendWithAWindowOfOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newFakeCluster(t, 1, 1)
		p := c.producer(t, func(cfg *ProducerConfig) { cfg.AsyncWindow = 1 })
		c.brokers[0].do(later(time.Millisecond))
		var ended, sent atomic.Int32
		var onDone func(depth int) func(*SendResult, error)
		onDone = func(depth int) func(*SendResult, error) {
			return func(_ *SendResult, err error) {
				if err != nil {
					t.Error(err)
				}
				ended.Add(1)
				if depth == 0 {
					return
				}
				if _, err := p.Send(t.Context(), textMessage("t", "waiting")); err != nil {
					t.Errorf("waiting send in a callback: %v", err)
				}
				sent.Add(1)
				if err := p.SendAsync(t.Context(), textMessage("t", "async"), onDone(depth-1)); err != nil {
					t.Errorf("asynchronous send in a callback: %v", err)
				}
			}
		}
		var all sync.WaitGroup
		for range 4 { // others compete for the one place
			all.Go(func() {
				for range 20 {
					sent.Add(1)
					if err := p.SendAsync(t.Context(), textMessage("t", "x"), onDone(3)); err != nil {
						t.Error(err)
					}
				}
			})
		}
		all.Wait()
		time.Sleep(time.Minute)
		if want := int32(4 * 20 * (1 + 3)); ended.Load() != want || sent.Load() != want {
			t.Errorf("%d sent, %d callbacks, want %d each", sent.Load(), ended.Load(), want)
		}
	})
}

func TestAsyncSendIsCancelledByItsContextUnlessDetached(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newFakeCluster(t, 1, 1)
		p := c.producer(t, nil)
		c.brokers[0].do(later(100 * time.Millisecond))
		ctx, cancel := context.WithCancel(t.Context())
		var bound, detached asyncCall
		if err := p.SendAsync(ctx, textMessage("t", "x"), bound.done); err != nil {
			t.Fatal(err)
		}
		if err := p.SendAsync(context.WithoutCancel(ctx), textMessage("t", "x"), detached.done); err != nil {
			t.Fatal(err)
		}
		cancel()
		synctest.Wait()
		if bound.calls.Load() != 1 || !errors.Is(bound.err, context.Canceled) {
			t.Errorf("%d calls, %v; want one with context.Canceled", bound.calls.Load(), bound.err)
		}
		time.Sleep(time.Second)
		if detached.calls.Load() != 1 || detached.err != nil {
			t.Errorf("detached: %d calls, %v", detached.calls.Load(), detached.err)
		}
		if n := bound.calls.Load(); n != 1 {
			t.Errorf("%d calls after the answer came too", n)
		}
	})
}

func TestAsyncSendsAreRepeatedOnlyWithoutAnAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newFakeCluster(t, 2, 1)
		p := c.producer(t, nil)
		send := func() *asyncCall {
			var a asyncCall
			if err := p.SendAsync(t.Context(), textMessage("t", "x"), a.done); err != nil {
				t.Fatal(err)
			}
			time.Sleep(10 * time.Second)
			if n := a.calls.Load(); n != 1 {
				t.Fatalf("%d callbacks", n)
			}
			return &a
		}
		total := func() int { return len(c.brokers[0].got()) + len(c.brokers[1].got()) }

		for _, b := range c.brokers {
			b.do(refuse(1))
		}
		if a := send(); a.err == nil || total() != 1 {
			t.Errorf("refused: %v after %d tries, want one", a.err, total())
		}
		for _, b := range c.brokers {
			b.do(hang)
		}
		before := total()
		if a := send(); !errors.Is(a.err, ErrTimeout) || total()-before != 3 {
			t.Errorf("hanging: %v after %d tries, want three", a.err, total()-before)
		}
		for i, b := range c.brokers {
			b.do(func(n int, s fakeSend, reply func(*transport.Frame)) bool {
				if i == 0 {
					c.net.Cut(c.brokers[0].addr)
					return true
				}
				reply(stored(n, s))
				return true
			})
		}
		for range 4 {
			if a := send(); a.err != nil || a.result.Queue.Broker != "broker-b" {
				t.Errorf("connection lost: %+v, %v", a.result, a.err)
			}
		}
	})
}

func TestAsyncSendThatNobodyTakesIsAnErrorOfTheCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newFakeCluster(t, 2, 1)
		p := c.producer(t, nil)
		if _, err := p.Send(t.Context(), textMessage("t", "x")); err != nil {
			t.Fatal(err)
		}
		c.brokers[0].down()
		c.brokers[1].down()
		never := func(*SendResult, error) { t.Error("callback of a call that failed") }
		for range 3000 { // more than the window: places are given back
			if err := p.SendAsync(t.Context(), textMessage("t", "x"), never); err == nil {
				t.Fatal("no error")
			}
			if err := p.SendAsync(t.Context(), &Message{Topic: "t"}, never); !errors.Is(err, ErrMessageIllegal) {
				t.Fatalf("got %v", err)
			}
		}
		if err := p.SendAsync(t.Context(), textMessage("t", "x"), nil); err == nil {
			t.Error("a missing callback was taken")
		}
	})
}

func TestPanicInACallbackIsRecoveredAndLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newFakeCluster(t, 1, 1)
		var log bytes.Buffer
		p := c.producer(t, func(cfg *ProducerConfig) { cfg.Logger = slog.New(slog.NewTextHandler(&log, nil)) })
		var after asyncCall
		for _, done := range []func(*SendResult, error){func(*SendResult, error) { panic("of the test") }, after.done} {
			if err := p.SendAsync(t.Context(), textMessage("t", "x"), done); err != nil {
				t.Fatal(err)
			}
		}
		p.Close()
		if after.calls.Load() != 1 || !strings.Contains(log.String(), "of the test") {
			t.Errorf("%d callbacks after the panic, log: %s", after.calls.Load(), log.String())
		}
	})
}

func TestCloseGivesEverySendItsOutcome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newFakeCluster(t, 1, 1)
		p := c.producer(t, func(cfg *ProducerConfig) { cfg.AsyncWindow = 10 })
		c.brokers[0].do(hang)
		calls := make([]asyncCall, 10)
		for i := range calls {
			if err := p.SendAsync(t.Context(), textMessage("t", "x"), calls[i].done); err != nil {
				t.Fatal(err)
			}
		}
		var all sync.WaitGroup
		all.Go(func() {
			if _, err := p.Send(t.Context(), textMessage("t", "x")); !errors.Is(err, ErrClosed) {
				t.Errorf("waiting send: %v", err)
			}
		})
		all.Go(func() {
			err := p.SendAsync(t.Context(), textMessage("t", "x"), func(*SendResult, error) { t.Error("callback") })
			if !errors.Is(err, ErrClosed) {
				t.Errorf("send waiting for a place: %v", err)
			}
		})
		synctest.Wait()
		for range 3 {
			all.Go(func() { p.Close() })
		}
		all.Wait()
		for i := range calls {
			if a := &calls[i]; a.calls.Load() != 1 || !errors.Is(a.err, ErrClosed) {
				t.Errorf("send %d: %d callbacks, %v", i, a.calls.Load(), a.err)
			}
		}
	})
}

func TestShutdownWaitsForAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newFakeCluster(t, 1, 1)
		p := c.producer(t, nil)
		c.brokers[0].do(later(300 * time.Millisecond))
		var a asyncCall
		if err := p.SendAsync(t.Context(), textMessage("t", "x"), a.done); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		if err := p.Shutdown(t.Context()); err != nil {
			t.Error(err)
		}
		if a.calls.Load() != 1 || a.err != nil || time.Since(began) != 300*time.Millisecond {
			t.Errorf("%d callbacks, %v, after %v", a.calls.Load(), a.err, time.Since(began))
		}
	})
}

func TestShutdownGivesUpWhenItsContextEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newFakeCluster(t, 1, 1)
		p := c.producer(t, nil)
		c.brokers[0].do(hang)
		var a asyncCall
		if err := p.SendAsync(t.Context(), textMessage("t", "x"), a.done); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		if err := p.Shutdown(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
		if a.calls.Load() != 1 || !errors.Is(a.err, ErrClosed) {
			t.Errorf("%d callbacks, %v", a.calls.Load(), a.err)
		}
	})
}

func TestSlowCallbacksSlowTheSendersDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newFakeCluster(t, 1, 1)
		p := c.producer(t, func(cfg *ProducerConfig) { cfg.AsyncWindow = 1 })
		const n = 1300 // more than may wait without a brake
		began := time.Now()
		var ended atomic.Int32
		for range n {
			err := p.SendAsync(t.Context(), textMessage("t", "x"), func(*SendResult, error) {
				time.Sleep(10 * time.Millisecond)
				ended.Add(1)
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		if d := time.Since(began); d < time.Second {
			t.Errorf("all were sent after %v, the callbacks take 13s", d)
		}
		time.Sleep(time.Minute)
		if ended.Load() != n {
			t.Errorf("%d callbacks, want %d", ended.Load(), n)
		}
	})
}

// The sender writes into its buffer as soon as the call has returned; with -race
// any use of it afterwards is found.
func TestSenderMayReuseItsBuffer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newFakeCluster(t, 1, 1)
		p := c.producer(t, nil)
		c.brokers[0].do(later(10 * time.Millisecond))
		buffer := make([]byte, 8)
		m := &Message{Topic: "t", Body: buffer, Keys: []string{"k"}, Properties: map[string]string{"p": "v"}}
		for i := range 100 {
			copy(buffer, fmt.Sprintf("%08d", i))
			if err := p.SendAsync(t.Context(), m, func(*SendResult, error) {}); err != nil {
				t.Fatal(err)
			}
			m.Keys[0], m.Properties["p"] = "other", "other"
		}
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Millisecond, cancel)
		copy(buffer, "00000100")
		if _, err := p.Send(ctx, m); !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		copy(buffer, "xxxxxxxx")
		time.Sleep(time.Second)
		for i, s := range c.brokers[0].got() {
			if s.body != fmt.Sprintf("%08d", i) {
				t.Errorf("message %d is %q", i, s.body)
			}
		}
	})
}

func TestChainedSendsFailBehindAFailedOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newFakeCluster(t, 1, 4)
		p := c.producer(t, func(cfg *ProducerConfig) { cfg.FailQueuedOnError = true })
		c.brokers[0].do(func(n int, s fakeSend, reply func(*transport.Frame)) bool {
			time.AfterFunc(10*time.Millisecond, func() {
				if s.body == "a2" {
					reply(&transport.Frame{Code: 1, Remark: "refused by the test"})
					return
				}
				reply(stored(n, s))
			})
			return true
		})
		var outcomes []string
		send := func(key, body string) {
			err := p.SendAsync(t.Context(), &Message{Topic: "t", ShardKey: key, Body: []byte(body)}, func(_ *SendResult, err error) {
				outcomes = append(outcomes, fmt.Sprintf("%s:%v", body, err == nil))
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		for i := range 5 {
			send("a", fmt.Sprintf("a%d", i))
			send("b", fmt.Sprintf("b%d", i))
		}
		time.Sleep(time.Second)
		send("a", "a5") // the chain begins anew
		time.Sleep(time.Second)
		synctest.Wait()
		var a, b []string
		for _, s := range outcomes {
			if s[0] == 'a' {
				a = append(a, s)
			} else {
				b = append(b, s)
			}
		}
		if got := strings.Join(a, " "); got != "a0:true a1:true a2:false a3:false a4:false a5:true" {
			t.Errorf("key a: %s", got)
		}
		if got := strings.Join(b, " "); got != "b0:true b1:true b2:true b3:true b4:true" {
			t.Errorf("key b: %s", got)
		}
		for _, s := range c.brokers[0].got() {
			if s.body == "a3" || s.body == "a4" {
				t.Errorf("%s was sent behind a failed one", s.body)
			}
		}
	})
}

func TestCloseWithAChain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newFakeCluster(t, 1, 4)
		p := c.producer(t, func(cfg *ProducerConfig) { cfg.FailQueuedOnError = true })
		c.brokers[0].do(hang)
		calls := make([]asyncCall, 20)
		for i := range calls {
			if err := p.SendAsync(t.Context(), &Message{Topic: "t", ShardKey: "k", Body: []byte("x")}, calls[i].done); err != nil {
				t.Fatal(err)
			}
		}
		p.Close()
		for i := range calls {
			if a := &calls[i]; a.calls.Load() != 1 || !errors.Is(a.err, ErrClosed) {
				t.Errorf("send %d: %d callbacks, %v", i, a.calls.Load(), a.err)
			}
		}
	})
}
