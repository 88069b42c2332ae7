package transport

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func newCalls(window int) *calls {
	t := new(calls)
	t.init(window, ErrTimeout, func(s slot, f *Frame, err error) { s.done(f, err) })
	return t
}

// TestCallTableAgainstAMap runs random adds and takes, over growth and the
// wrap-around of numbers, against a map.
func TestCallTableAgainstAMap(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	table := newCalls(5000)
	table.next = math.MaxInt32 - 20000
	model := make(map[int32]bool)
	wrapped := false
	for range 200000 {
		if random.IntN(2) == 0 && len(model) < 5000 || len(model) == 0 {
			opaque, ticket, err := table.add(&slot{done: func(*Frame, error) {}}, false)
			if err != nil || ticket != nil || opaque <= 0 || model[opaque] {
				t.Fatalf("add gave %d, %v, %v", opaque, ticket, err)
			}
			wrapped = wrapped || opaque < 1000
			model[opaque] = true
			continue
		}
		for opaque := range model {
			if s, ok := table.take(opaque); !ok || s.opaque != opaque {
				t.Fatalf("%d is lost", opaque)
			}
			if _, ok := table.take(opaque); ok {
				t.Fatalf("%d was taken twice", opaque)
			}
			delete(model, opaque)
			break
		}
	}
	if !wrapped {
		t.Error("the numbers did not wrap around")
	}
	for opaque := range model {
		table.take(opaque)
	}
	if table.inUse != 0 {
		t.Errorf("%d permits are in use", table.inUse)
	}
	if _, ok := table.take(0); ok {
		t.Error("number 0 is in flight")
	}
}

func TestManyDeadlinesShareOneTimer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := newCalls(1000)
		start := time.Now()
		var ended atomic.Int32
		for i := range 500 {
			want := time.Duration(1+i%50) * 100 * time.Millisecond
			s := slot{deadline: int64(want), done: func(_ *Frame, err error) {
				ended.Add(1)
				if d := time.Since(start); !errors.Is(err, ErrTimeout) || d < want || d > want+sweepStep {
					t.Errorf("a deadline of %v passed after %v with %v", want, d, err)
				}
			}}
			if _, _, err := table.add(&s, false); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if ended.Load() != 500 || table.inUse != 0 {
			t.Errorf("%d ended, %d permits in use", ended.Load(), table.inUse)
		}
		table.fail(ErrClosed)
	})
}

func TestContextsAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := newCalls(1000)
		var cancelled atomic.Int32
		for i := range 100 {
			ctx, cancel := context.WithCancel(t.Context())
			for range 3 {
				w := table.hold(ctx)
				opaque, _, err := table.add(&slot{watch: w, done: func(_ *Frame, err error) {
					if !errors.Is(err, context.Canceled) {
						t.Errorf("ended with %v", err)
					}
					cancelled.Add(1)
				}}, false)
				if err != nil {
					t.Fatal(err)
				}
				if i%2 == 0 {
					table.take(opaque)
				}
			}
			if i%2 == 1 {
				cancel()
				synctest.Wait()
			}
			defer cancel()
		}
		if cancelled.Load() != 150 || table.inUse != 0 || len(table.watches) > 1 {
			t.Errorf("%d cancelled, %d permits in use, %d contexts watched", cancelled.Load(), table.inUse, len(table.watches))
		}
		ctx, cancel := context.WithCancel(t.Context())
		w := table.hold(ctx)
		cancel()
		synctest.Wait()
		if _, _, err := table.add(&slot{watch: w}, false); err != errEnded {
			t.Errorf("a call under an ended context: %v", err)
		}
		table.fail(ErrClosed)
	})
}

func TestPermitsGoToTheOldestTicket(t *testing.T) {
	table := newCalls(1)
	none := func(*Frame, error) {}
	first, _, err := table.add(&slot{done: none}, false)
	if err != nil {
		t.Fatal(err)
	}
	var tickets []*ticket
	for range 4 {
		_, k, err := table.add(&slot{done: none}, false)
		if err != nil || k == nil {
			t.Fatal("a permit beyond the window")
		}
		tickets = append(tickets, k)
	}
	table.leave(tickets[0])
	table.take(first)
	<-tickets[1].ready
	table.leave(tickets[1]) // granted, but its caller gave up: the next one gets it
	<-tickets[2].ready
	second, _, err := table.add(&slot{done: none}, true)
	if err != nil {
		t.Fatal(err)
	}
	select {
	case <-tickets[3].ready:
		t.Fatal("two permits of one")
	default:
	}
	table.take(second)
	<-tickets[3].ready
	table.giveBack()
	if table.inUse != 0 {
		t.Errorf("%d permits in use", table.inUse)
	}
}

func TestDeadConnectionLeavesNothingInALivingContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	table := newCalls(1)
	table.fail(ErrClosed)
	s := slot{done: func(*Frame, error) { t.Error("a call of a dead connection was finished") }, watch: table.hold(ctx)}
	if _, _, err := table.add(&s, false); err != ErrClosed {
		t.Fatalf("add gave %v", err)
	}
	table.unhold(s.watch)
	if len(table.watches) != 0 || table.idle != nil {
		t.Errorf("%d contexts are watched, one kept: %v", len(table.watches), table.idle != nil)
	}
	if s.watch.stop() {
		t.Error("the context still holds the connection")
	}
}
