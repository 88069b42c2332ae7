package storage

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"pgregory.net/rapid"
)

// loneTimers are timers without a lane or goroutine, for what happens between two groups.
func loneTimers(t *testing.T) (*timers, func(deliverAt time.Duration) timerKey) {
	t.Helper()
	db, err := pebble.Open("", &pebble.Options{FS: vfs.NewMem()})
	must(t, err)
	t.Cleanup(func() { must(t, db.Close()) })
	x := newTimers(nil)
	must(t, x.load(db))
	return x, func(delay time.Duration) timerKey {
		b := db.NewBatch()
		r := bodyRecord(&Topic{}, 0, "m")
		r.DeliverAt = time.Now().Add(delay).UnixMilli()
		must(t, x.add(b, &r))
		content := b.Reader()
		_, key, _, _, err := content.Next()
		must(t, err)
		return parseTimerKey(slices.Clone(key))
	}
}

// A scan does not see the timers of groups under way, so nothing it fires may be due as late as one of those can be.
func TestFiringStaysBelowTheGroupsUnderWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x, add := loneTimers(t)
		b := newBatch(t)
		first := add(-time.Hour)
		must(t, x.seal(b))
		time.Sleep(10 * time.Millisecond)
		second := add(-time.Hour)
		must(t, x.seal(b))
		time.Sleep(10 * time.Millisecond)
		third := add(-time.Hour)
		for i, key := range []timerKey{first, second, third} {
			time.Sleep(10 * time.Millisecond)
			if _, bound, limited := x.begin(); bound >= key.due || !limited {
				t.Fatalf("with group %d under way firing goes up to %d, its timer is at %d", i, bound, key.due)
			}
			x.end(dueTimers{next: never}, true)
			if i == 2 {
				must(t, x.seal(b))
			}
			x.kick()
		}
		if _, bound, limited := x.begin(); bound != uint64(time.Now().UnixMilli()) || limited {
			t.Fatal("with no group under way firing does not go up to now")
		}
	})
}

// While a round is under way, what arrives is filed behind its bound, even when the clock is set back meanwhile.
func TestTimersArriveBehindTheRoundUnderWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x, add := loneTimers(t)
		_, bound, _ := x.begin()
		if key := add(-time.Hour); key.due <= bound {
			t.Fatalf("timer arrived at %d, the round goes up to %d", key.due, bound)
		}
		x.firing = uint64(time.Now().Add(time.Hour).UnixMilli()) // as if the clock had been ahead
		x.building = groupTimers{}
		if key := add(time.Minute); key.due <= x.firing {
			t.Fatalf("timer arrived at %d, the round goes up to %d", key.due, x.firing)
		}
	})
}

// What becomes due between the end of the scan and the end of the round must not be slept over.
func TestTimerDueDuringTheRoundIsNotSleptOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x, _ := loneTimers(t)
		next := uint64(time.Now().Add(time.Millisecond).UnixMilli())
		_, _, limited := x.begin()
		time.Sleep(5 * time.Millisecond)
		if alarm := x.end(dueTimers{next: next}, limited); alarm != next {
			t.Fatalf("alarm at %d for a timer due at %d", alarm, next)
		}
	})
}

func newBatch(t *testing.T) *pebble.Batch {
	t.Helper()
	db, err := pebble.Open("", &pebble.Options{FS: vfs.NewMem()})
	must(t, err)
	t.Cleanup(func() { must(t, db.Close()) })
	return db.NewBatch()
}

// After 200,000 fired timers the next scan takes no more steps than before them.
func TestScanDoesNotWalkOverFiredTimers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := mustOpen(t, Options{})
		defer mustClose(t, s)
		topic := mustTopic(t, s, "T")
		const n, perRequest = 200_000, 2000
		due := time.Now().Add(time.Minute)
		for i := range n / perRequest {
			req := &Request{}
			for j := range perRequest {
				r := bodyRecord(topic, int32(j%4), "m")
				r.DeliverAt = due.Add(time.Duration(i) * time.Millisecond).UnixMilli()
				req.Records = append(req.Records, r)
			}
			mustApply(t, s, req)
		}
		storeTimer(t, s, topic, "later", 24*time.Hour)
		wait(2 * time.Minute)
		if waiting, _, _ := s.timers.counts(); waiting != 1 {
			t.Fatalf("%d timers wait, want 1", waiting)
		}
		db, release, err := s.read()
		must(t, err)
		defer release()
		s.timers.mu.Lock()
		cursor := s.timers.state.cursor
		s.timers.mu.Unlock()
		it, err := waitingTimers(db, cursor)
		must(t, err)
		if !it.First() || it.Next() {
			t.Fatal("scan does not find exactly the one timer that waits")
		}
		stats := it.Stats()
		must(t, it.Close())
		steps := stats.ForwardStepCount[pebble.InternalIterCall] + stats.ForwardSeekCount[pebble.InternalIterCall]
		if steps > 20 {
			t.Errorf("scan took %d internal steps after %d fired timers", steps, n)
		}
	})
}

// While a round is under way it cannot know what becomes visible behind its scan, so every group with timers wakes it.
func TestEveryGroupWithTimersKicksTheRoundUnderWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x, add := loneTimers(t)
		x.begin()
		add(365 * 24 * time.Hour)
		must(t, x.seal(newBatch(t)))
		x.kick()
		if len(x.wake) != 1 {
			t.Fatal("a group with timers was published during the round and did not kick")
		}
	})
}

// A round whose scan began elsewhere than at the present cursor must do nothing: it may have missed timers or seen fired ones.
func TestRoundFromAnotherCursorIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := mustOpen(t, Options{})
		defer mustClose(t, s)
		topic := mustTopic(t, s, "T")
		storeTimer(t, s, topic, "m", time.Second)
		s.timers.stop()
		time.Sleep(time.Minute)
		from, bound, _ := s.timers.begin()
		due, err := s.timers.due(from, bound)
		must(t, err)
		if err := s.timers.fire(t.Context(), from.next(), due); !errors.Is(err, ErrConditionFailed) {
			t.Fatalf("round from another cursor: %v", err)
		}
		must(t, s.timers.fire(t.Context(), from, due))
		if err := s.timers.fire(t.Context(), from, due); !errors.Is(err, ErrConditionFailed) {
			t.Fatalf("the same round again: %v", err)
		}
		expect(t, bodies(readQueue(t, s, topic, 0)), "m")
	})
}

// A sync that takes longer than the timeout leaves a round's outcome open; it is carried out once all the same.
func TestRoundOnAStalledDiskHappensOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fs := newFaultFS(vfs.NewMem())
		s := mustOpen(t, Options{Dir: "store", FS: fs})
		defer mustClose(t, s)
		topic := mustTopic(t, s, "T")
		for i := range 50 {
			storeTimer(t, s, topic, fmt.Sprint(i), time.Minute+time.Duration(i)*time.Second)
		}
		fs.onOp(func(op diskOp) error {
			if op.kind == "sync" {
				time.Sleep(12 * time.Second)
			}
			return nil
		})
		wait(5 * time.Minute)
		fs.onOp(nil)
		wait(time.Minute)
		seen := map[string]int{}
		for _, b := range bodies(readQueue(t, s, topic, 0)) {
			seen[b]++
		}
		for i := range 50 {
			if n := seen[fmt.Sprint(i)]; n != 1 {
				t.Errorf("timer %d was delivered %d times", i, n)
			}
		}
		must(t, s.Err())
	})
}

// Few timers are deleted one by one, many by a range that ends with the last of them.
func TestRoundDeletesExactlyItsTimers(t *testing.T) {
	for _, n := range []uint64{1, fireRange - 1, fireRange, fireRecords} {
		due := dueTimers{}
		for i := range n {
			due.keys = append(due.keys, timerKey{1000 + i/2, 7 + i})
		}
		from, beyond := timerKey{999, 3}, timerKey{due.keys[n-1].due, due.keys[n-1].seq + 1}
		ops := due.deletes(from)
		if n < fireRange {
			for i, op := range ops {
				if op.kind != opDelete || string(op.key) != string(due.keys[i].append(nil)) {
					t.Errorf("deletion %d of %d is %v", i, n, op)
				}
			}
			if len(ops) != int(n) {
				t.Errorf("%d deletions for %d timers", len(ops), n)
			}
			continue
		}
		if len(ops) != 1 || ops[0].kind != opDeleteRange || string(ops[0].key) <= string(from.append(nil)) ||
			string(ops[0].key) > string(due.keys[0].append(nil)) || string(ops[0].end) <= string(due.keys[n-1].append(nil)) ||
			string(ops[0].end) > string(beyond.append(nil)) {
			t.Errorf("%d timers are deleted by %v", n, ops)
		}
	}
}

// When the write of a round fails, nothing of it happened; after reopening all of it happens, once.
func TestFailedRoundIsRepeatedAsAWhole(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fs := newFaultFS(vfs.NewMem())
		s := mustOpen(t, Options{Dir: "store", FS: fs})
		defer mustClose(t, s)
		topic := mustTopic(t, s, "T")
		var want []string
		for i := range 20 {
			want = append(want, fmt.Sprint(i))
			storeTimer(t, s, topic, want[i], time.Second)
		}
		broken := errors.New("no space left")
		fs.onOp(func(op diskOp) error {
			if op.kind == "sync" {
				return broken
			}
			return nil
		})
		wait(2 * time.Second)
		if err := s.Err(); !errors.Is(err, broken) {
			t.Fatalf("store did not fail: %v", err)
		}
		fs.onOp(nil)
		must(t, s.Reopen(t.Context()))
		wait(2 * time.Second)
		got := bodies(readQueue(t, s, topic, 0))
		slices.Sort(want)
		slices.Sort(got)
		expect(t, got, want...)
		storeTimer(t, s, topic, "next", time.Second)
		wait(2 * time.Second)
		if got := bodies(readQueue(t, s, topic, 0)); len(got) != 21 || got[20] != "next" {
			t.Fatalf("delivered %q", got)
		}
	})
}

// Power is lost while timers fire: after reopening each acknowledged one was or will be delivered once, and new ones that take
// the places of lost ones are on time.
func TestTimersAreDeliveredOnceAcrossPowerLoss(t *testing.T) {
	for _, flush := range []FlushMode{FlushSync, FlushAsync} {
		for _, keep := range []int{0, 50, 99} {
			t.Run(fmt.Sprint(flush, keep), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { powerLoss(t, flush, keep) })
			})
		}
	}
}

func powerLoss(t *testing.T, flush FlushMode, keep int) {
	rng := rand.New(rand.NewPCG(uint64(keep), uint64(flush)))
	fs := vfs.NewCrashableMem()
	s := mustOpen(t, Options{Dir: "store", FS: fs, Flush: flush})
	topic := mustTopic(t, s, "T")
	const n = 1500
	for i := range n {
		// In async mode the last of them are still unsynced when the power goes.
		storeTimer(t, s, topic, fmt.Sprint(i), time.Duration(rng.IntN(3000)+20)*time.Millisecond)
	}
	for range 4 {
		wait(time.Duration(rng.IntN(900)) * time.Millisecond)
		clone := fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: keep, RNG: rng})
		after := mustOpen(t, Options{Dir: "store", FS: clone, Flush: flush})
		topic, err := after.OpenTopic(t.Context(), "T")
		must(t, err)
		storeTimer(t, after, topic, "new", 500*time.Millisecond)
		wait(501 * time.Millisecond)
		seen := map[string]int{}
		for _, b := range bodies(readQueue(t, after, topic, 0)) {
			seen[b]++
		}
		if seen["new"] != 1 {
			t.Errorf("a timer stored after the power loss was delivered %d times", seen["new"])
		}
		wait(4 * time.Second)
		clear(seen)
		for _, b := range bodies(readQueue(t, after, topic, 0)) {
			seen[b]++
		}
		for i := range n {
			if got := seen[fmt.Sprint(i)]; got > 1 || got == 0 && flush == FlushSync {
				t.Errorf("timer %d was delivered %d times", i, got)
			}
		}
		if waiting, _, _ := after.timers.counts(); waiting != 0 {
			t.Errorf("%d timers wait at the end", waiting)
		}
		mustClose(t, after)
	}
	mustClose(t, s)
}

// timerStep is one step of the model test.
type timerStep struct {
	Do    string
	Delay []int // milliseconds, one timer each
}

func drawTimerSteps(t *rapid.T) []timerStep {
	return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) timerStep {
		step := timerStep{Do: rapid.SampledFrom([]string{"store", "store", "wait", "wait", "reopen", "delete"}).Draw(t, "do")}
		n := 1
		if step.Do == "store" {
			n = rapid.IntRange(1, 6).Draw(t, "n")
		}
		for range n {
			step.Delay = append(step.Delay, rapid.SampledFrom([]int{-10_000, -1, 0, 1, 2, 3, 10, 999, 1000, 1001, 60_000}).Draw(t, "delay"))
		}
		return step
	}), 1, 40).Draw(t, "steps")
}

// Timers against a slice, in virtual time, with restarts and deleted topics.
func TestTimersEqualModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		steps := drawTimerSteps(rt)
		var fault string
		synctest.Test(t, func(t *testing.T) { fault = runTimerSteps(t, steps) })
		if fault != "" {
			rt.Fatal(fault)
		}
	})
}

type modelTimer struct {
	body string
	due  int64
	gone bool // its topic was deleted before it was due
}

func runTimerSteps(t *testing.T, steps []timerStep) (fault string) {
	o := Options{Dir: "store", FS: vfs.NewMem()}
	s := mustOpen(t, o)
	defer func() { mustClose(t, s) }()
	topic := mustTopic(t, s, "T")
	var model []modelTimer
	for i, step := range steps {
		switch step.Do {
		case "store":
			for _, delay := range step.Delay {
				now := time.Now().UnixMilli()
				r := bodyRecord(topic, 0, fmt.Sprint(len(model)))
				r.DeliverAt = now + int64(delay)
				mustApply(t, s, &Request{Records: []Record{r}})
				model = append(model, modelTimer{body: fmt.Sprint(len(model)), due: max(now+1, r.DeliverAt)})
			}
		case "wait":
			wait(time.Duration(max(step.Delay[0], 1)) * time.Millisecond)
		case "reopen":
			mustClose(t, s)
			wait(time.Duration(max(step.Delay[0], 0)) * time.Millisecond)
			s = mustOpen(t, o)
			topic = mustTopic(t, s, "T")
			synctest.Wait()
		case "delete":
			must(t, s.DeleteTopic(t.Context(), "T"))
			topic = mustTopic(t, s, "T")
			for j := range model {
				model[j].gone = true
			}
		}
		if fault := compareTimers(t, s, topic, model); fault != "" {
			return fmt.Sprintf("after step %d (%s): %s", i, step.Do, fault)
		}
	}
	return ""
}

// compareTimers checks that everything due is there once, nothing before its time, and nothing else.
func compareTimers(t *testing.T, s *Store, topic *Topic, model []modelTimer) string {
	now := time.Now().UnixMilli()
	seen := map[string]bodyStored{}
	for _, r := range readQueue(t, s, topic, 0) {
		if _, twice := seen[r.body]; twice {
			return fmt.Sprintf("timer %s was delivered twice", r.body)
		}
		seen[r.body] = r
	}
	var waiting []string
	for _, m := range model {
		r, delivered := seen[m.body]
		delete(seen, m.body)
		switch {
		case m.gone && delivered:
			return fmt.Sprintf("timer %s was delivered to the topic made again", m.body)
		case delivered && r.time < m.due:
			return fmt.Sprintf("timer %s was delivered at %d, due at %d", m.body, r.time, m.due)
		case !m.gone && !delivered && m.due < now:
			return fmt.Sprintf("timer %s due at %d is not delivered at %d", m.body, m.due, now)
		case !m.gone && !delivered:
			waiting = append(waiting, m.body)
		}
	}
	if len(seen) > 0 {
		return fmt.Sprintf("delivered what nobody stored: %v", seen)
	}
	if n, _, _ := s.timers.counts(); int(n) < len(waiting) {
		return fmt.Sprintf("count says %d wait, %s do", n, strings.Join(waiting, " "))
	}
	return ""
}

func BenchmarkTimers(b *testing.B) {
	for _, size := range []int{128, 1024} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			const n = 20_000
			delivered := make(chan struct{}, 1)
			s := mustOpen(b, Options{MemoryLimit: 64 << 20, Grown: func([]Growth) {
				select {
				case delivered <- struct{}{}:
				default:
				}
			}})
			defer mustClose(b, s)
			topic := mustTopic(b, s, "T")
			body := strings.Repeat("x", size)
			next := int64(0)
			for b.Loop() {
				for range n / 1000 {
					req := &Request{}
					for range 1000 {
						r := bodyRecord(topic, 0, body)
						r.DeliverAt = 1
						req.Records = append(req.Records, r)
					}
					mustApply(b, s, req)
				}
				for goal := next + n; next < goal; {
					<-delivered
					var err error
					_, next, err = s.Bounds(topic, 0)
					must(b, err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/n, "ns/timer")
		})
	}
}
