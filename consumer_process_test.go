package mq

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func deliveries(offsets ...int64) []*Delivery {
	var ds []*Delivery
	for _, o := range offsets {
		ds = append(ds, &Delivery{Offset: o, offset: o, size: 10})
	}
	return ds
}

func offsetsOf(ds []*Delivery) []int64 {
	var offsets []int64
	for _, d := range ds {
		offsets = append(offsets, d.offset)
	}
	return offsets
}

func TestCommitIsTheSmallestUnfinishedOffset(t *testing.T) {
	w := newWindow(5)
	if w.commit() != 5 {
		t.Fatalf("an empty window commits %d, want where it began", w.commit())
	}
	w.put(deliveries(5, 7, 9), 12)
	w.claim(nil, 3, time.Time{})
	for _, step := range []struct{ finish, commit int64 }{{9, 5}, {5, 7}, {7, 12}} {
		if !w.finish(step.finish) || w.commit() != step.commit {
			t.Errorf("after %d: commit %d, want %d", step.finish, w.commit(), step.commit)
		}
	}
	if w.finish(7) {
		t.Error("a message finished twice")
	}
}

func TestWindowDropsWhatItAlreadyHas(t *testing.T) {
	w := newWindow(0)
	w.put(deliveries(0, 1, 2), 3)
	w.put(deliveries(1, 2, 3), 4)
	if got := offsetsOf(w.claim(nil, 10, time.Time{})); !slices.Equal(got, []int64{0, 1, 2, 3}) {
		t.Errorf("claimed %v", got)
	}
}

func TestUnclaimGivesTheBatchBackInOrder(t *testing.T) {
	w := newWindow(0)
	w.put(deliveries(0, 1, 2), 3)
	w.claim(nil, 2, time.Time{})
	w.finish(0)
	w.unclaim()
	if got := offsetsOf(w.claim(nil, 2, time.Time{})); !slices.Equal(got, []int64{1, 2}) {
		t.Errorf("claimed %v, want 1 and 2 again", got)
	}
}

func TestOverdueStopsAtAMessageWhoseTurnHasNotCome(t *testing.T) {
	w, start := newWindow(0), time.Unix(1000, 0)
	w.put(deliveries(0, 1, 2, 3), 4)
	w.claim(nil, 2, start)
	w.finish(0)
	if late := w.overdue(nil, 16, time.Minute, start.Add(time.Minute)); late != nil {
		t.Errorf("%v overdue at the limit, want none", offsetsOf(late))
	}
	late := w.overdue(nil, 16, time.Minute, start.Add(time.Minute+1))
	if !slices.Equal(offsetsOf(late), []int64{1}) {
		t.Errorf("%v overdue, want 1", offsetsOf(late))
	}
}

// The window against the dumbest possible one: a map of unfinished offsets.
func TestWindowEqualsAModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w, next := newWindow(0), int64(0)
		unfinished, running := map[int64]bool{}, []int64{}
		t.Repeat(map[string]func(*rapid.T){
			"put": func(t *rapid.T) {
				var batch []*Delivery
				for range rapid.IntRange(0, 5).Draw(t, "messages") {
					next += int64(rapid.IntRange(1, 3).Draw(t, "step"))
					batch = append(batch, deliveries(next)...)
					unfinished[next] = true
				}
				next++
				w.put(batch, next)
			},
			"claim": func(t *rapid.T) {
				running = append(running, offsetsOf(w.claim(nil, rapid.IntRange(1, 4).Draw(t, "n"), time.Time{}))...)
			},
			"finish": func(t *rapid.T) {
				if len(running) == 0 {
					t.Skip("nothing runs")
				}
				i := rapid.IntRange(0, len(running)-1).Draw(t, "which")
				if !w.finish(running[i]) {
					t.Fatalf("%d was not there", running[i])
				}
				delete(unfinished, running[i])
				running = slices.Delete(running, i, i+1)
			},
			"": func(t *rapid.T) {
				want := next
				for o := range unfinished {
					want = min(want, o)
				}
				if w.commit() != want {
					t.Fatalf("commit %d, want %d", w.commit(), want)
				}
				if w.bytes != 10*len(unfinished) || w.waiting() != len(unfinished)-len(running) {
					t.Fatalf("%d bytes, %d waiting; want %d unfinished, %d running", w.bytes, w.waiting(), len(unfinished), len(running))
				}
			},
		})
	})
}
