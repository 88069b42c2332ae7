package storage

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// crashOptions are small bounds, so that a short test reaches segment ends and several groups.
func crashOptions(fs vfs.FS, flush FlushMode) Options {
	return Options{Dir: "store", FS: fs, Flush: flush, SegmentBytes: 128 << 10, RingBytes: 64 << 10, CacheBytes: 1 << 20,
		memtableBytes: 128 << 10}
}

// workload is the traffic of the crash and fault tests: several queues, records small and large, timers, metadata, group
// offsets and new topics, with pauses.
type workload struct {
	l   *ledger
	rng *rand.Rand
	// metas is the value last acknowledged per metadata key, submitted the one last submitted; -1 is none.
	mu               sync.Mutex
	metas, submitted map[string]int
	// deleted are the topics whose deletion was acknowledged.
	deleted map[string]time.Time
	// progress is what the group committed, in order; offsets only rise.
	progress []progress
}

// progress is one committed group offset.
type progress struct {
	place  place
	offset int64
	at     time.Time
}

func newWorkload(seed uint64) *workload {
	return &workload{l: newLedger(), rng: rand.New(rand.NewPCG(seed, 77)), metas: map[string]int{}, submitted: map[string]int{},
		deleted: map[string]time.Time{}}
}

const timerQueue = 9 // timers fire into a queue of their own, so that the others keep the order of submission

// run does the given number of steps, several requests in flight, and waits for what it submitted. It stops early when the
// store fails.
func (w *workload) run(ctx context.Context, s *Store, steps int) error {
	var waiting []*entry
	for i := range steps {
		topic, err := s.OpenTopic(ctx, fmt.Sprintf("topic-%d", i/40))
		if err != nil {
			return err
		}
		queue := int32(w.rng.IntN(3))
		switch n := w.rng.IntN(20); {
		case n < 12:
			waiting = append(waiting, w.l.submit(s, topic, queue, 0, w.sizes()...))
		case n < 14:
			due := time.Now().Add(time.Duration(w.rng.IntN(3000)) * time.Millisecond).UnixMilli()
			waiting = append(waiting, w.l.submit(s, topic, timerQueue, due, w.sizes()...))
		case n < 16:
			if err := w.putMeta(ctx, s, fmt.Sprintf("key-%d", w.rng.IntN(3))); err != nil {
				return err
			}
		case n < 17:
			_, next, err := s.Bounds(topic, queue)
			if err != nil {
				return err
			}
			s.CommitOffset("group", topic, queue, next)
			w.mu.Lock()
			w.progress = append(w.progress, progress{place{topic.Name(), queue}, next, time.Now()})
			w.mu.Unlock()
		case n < 18:
			if err := w.makeAndDelete(ctx, s, fmt.Sprintf("temporary-%d", i)); err != nil {
				return err
			}
		case n < 19 && w.rng.IntN(3) == 0:
			if err := w.trim(ctx, s); err != nil {
				return err
			}
		default:
			time.Sleep(time.Duration(w.rng.IntN(150)) * time.Millisecond)
		}
		if len(waiting) > 8 {
			if err := <-waiting[0].done; err != nil {
				return err
			}
			waiting = waiting[1:]
		}
	}
	for _, e := range waiting {
		if err := <-e.done; err != nil {
			return err
		}
	}
	return nil
}

func (w *workload) sizes() []int {
	sizes := make([]int, 1+w.rng.IntN(4))
	for i := range sizes {
		sizes[i] = w.rng.IntN(3000)
		if w.rng.IntN(60) == 0 {
			sizes[i] = 100 << 10 // more than a chunk
		}
	}
	return sizes
}

func (w *workload) putMeta(ctx context.Context, s *Store, key string) error {
	w.mu.Lock()
	w.submitted[key]++
	n := w.submitted[key]
	w.mu.Unlock()
	err := s.Apply(ctx, &Request{Changes: []Change{PutMeta("test", key, fmt.Appendf(nil, "%d", n))}})
	if err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.metas[key] = n
	return nil
}

// makeAndDelete makes a topic, sends to it, and deletes it.
func (w *workload) makeAndDelete(ctx context.Context, s *Store, name string) error {
	topic, err := s.OpenTopic(ctx, name)
	if err != nil {
		return err
	}
	r := &Request{Records: []Record{markedRecord(topic, 0, 1<<50, 500), markedRecord(topic, 1, 1<<50+1, 500)}}
	if err := s.Apply(ctx, r); err != nil {
		return err
	}
	s.CommitOffset("group", topic, 0, 1)
	w.mu.Lock()
	delete(w.deleted, name) // it may have been made before, by the part of the workload before a crash
	w.mu.Unlock()
	if err := s.DeleteTopic(ctx, name); err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.deleted[name] = time.Now()
	return nil
}

// trim gives up all segments but the last two or so.
func (w *workload) trim(ctx context.Context, s *Store) error {
	position := s.LogEnd() - s.segmentBytes
	if position <= 0 {
		return nil
	}
	w.l.mu.Lock()
	w.l.trimmedTo, w.l.trimmedAt = position, time.Now().UnixMilli()
	w.l.mu.Unlock()
	return s.TrimTo(ctx, position)
}

// snapshot is the workload's knowledge as of now.
func (w *workload) snapshot() *workload {
	w.mu.Lock()
	defer w.mu.Unlock()
	return &workload{l: w.l.clone(), metas: maps.Clone(w.metas), submitted: maps.Clone(w.submitted),
		deleted: maps.Clone(w.deleted), progress: slices.Clone(w.progress)}
}

// asOf takes the acknowledgements back that are not in an earlier snapshot; what was submitted or refused since stays.
func (w *workload) asOf(earlier *workload) *workload {
	w.metas, w.deleted = earlier.metas, earlier.deleted
	forget := func(later, before map[place][]*sent) {
		for p, list := range later {
			for i, m := range list {
				if m.state == refused {
					continue
				}
				if m.state = pending; i < len(before[p]) {
					*m = *before[p][i]
				}
			}
		}
	}
	forget(w.l.queues, earlier.l.queues)
	forget(w.l.timers, earlier.l.timers)
	return w
}

// verify checks the ledger and the metadata; see ledger.verify. With a deadline the metadata may be older.
func (w *workload) verify(t testing.TB, s *Store, deadline time.Time) {
	t.Helper()
	w.l.verify(t, s, deadline)
	for name, at := range w.deleted {
		if _, ok := s.Topic(name); ok && (deadline.IsZero() || at.Before(deadline)) {
			t.Errorf("topic %s, whose deletion was acknowledged, is there", name)
		}
	}
	for key, last := range w.submitted {
		value, found, err := s.Meta("test", key)
		must(t, err)
		n := 0
		if found {
			if _, err := fmt.Sscanf(string(value), "%d", &n); err != nil {
				t.Errorf("metadata %s = %q", key, value)
			}
		}
		if n > last || n < w.metas[key] && deadline.IsZero() {
			t.Errorf("metadata %s = %d, acknowledged %d, submitted %d", key, n, w.metas[key], last)
		}
	}
}

// verifyProgress checks that group offsets committed before the given time are not lost: they may take a second to become
// durable, and no longer.
func (w *workload) verifyProgress(t testing.TB, s *Store, before time.Time) {
	t.Helper()
	want := map[place]int64{}
	for _, p := range w.progress {
		if p.at.Before(before) {
			want[p.place] = p.offset
		}
	}
	for p, offset := range want {
		topic, ok := s.Topic(p.topic)
		if !ok {
			t.Errorf("topic %s is lost with the progress in it", p.topic)
			continue
		}
		if got, _, err := s.CommittedOffset("group", topic, p.queue); err != nil || got < offset {
			t.Errorf("%v: the group is at %d (%v), committed %d more than a second before", p, got, err, offset)
		}
	}
}
