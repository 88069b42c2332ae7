package storage

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// Layout of the records these tests write: offset, position and store time as the lane fills them in, an id, the queue,
// and bytes that follow from the id.
const (
	testOffsetAt    = 0
	testPositionAt  = 8
	testStoreTimeAt = 16
	testIDAt        = 24
	testQueueAt     = 32
	testFillAt      = 36
)

// markedRecord makes a record that can be recognised and checked wherever it turns up.
func markedRecord(topic *Topic, queue int32, id uint64, size int) Record {
	b := make([]byte, max(size, testFillAt))
	be.PutUint64(b[testIDAt:], id)
	be.PutUint32(b[testQueueAt:], uint32(queue))
	fill(b[testFillAt:], id)
	return Record{
		Topic: topic, Queue: queue, TagHash: int64(id % 5), Keys: testKeys(topic.Name(), id), Bytes: b,
		QueueOffsetAt: testOffsetAt, PositionAt: testPositionAt, StoreTimeAt: testStoreTimeAt,
	}
}

func fill(b []byte, id uint64) {
	for i := range b {
		b[i] = byte(id*31 + uint64(i)*7)
	}
}

// testKeys are the keys of a record: one that others share, and for some one of their own.
func testKeys(topic string, id uint64) []uint64 {
	keys := []uint64{KeyHash(topic, fmt.Sprintf("shared-%d", id%7))}
	if id%3 == 0 {
		keys = append(keys, KeyHash(topic, fmt.Sprintf("own-%d", id)))
	}
	return keys
}

// storedRecord is what parseMarkedRecord reads.
type storedRecord struct {
	offset, position, storeTime int64
	id                          uint64
	queue                       int32
}

func parseMarkedRecord(b []byte) (storedRecord, error) {
	if len(b) < testFillAt {
		return storedRecord{}, fmt.Errorf("record of %d bytes", len(b))
	}
	r := storedRecord{
		offset: int64(be.Uint64(b[testOffsetAt:])), position: int64(be.Uint64(b[testPositionAt:])),
		storeTime: int64(be.Uint64(b[testStoreTimeAt:])), id: be.Uint64(b[testIDAt:]), queue: int32(be.Uint32(b[testQueueAt:])),
	}
	want := make([]byte, len(b)-testFillAt)
	fill(want, r.id)
	if !slices.Equal(b[testFillAt:], want) {
		return r, fmt.Errorf("record %d is damaged", r.id)
	}
	return r, nil
}

// place names a queue in a way that survives reopening.
type place struct {
	topic string
	queue int32
}

// sent is one record that was submitted.
type sent struct {
	id    uint64
	state sentState
	// at is when it was acknowledged; offset and position are what the store said then.
	at               time.Time
	offset, position int64
	due              int64 // of a timer, in milliseconds
}

type sentState int

const (
	pending sentState = iota
	acked             // completed without error
	unknown           // completed with an error that leaves the outcome open
	refused           // completed with an error that says "no effect"
)

// ledger remembers what was submitted and acknowledged, to be compared with what a store holds later.
type ledger struct {
	mu     sync.Mutex
	nextID uint64
	queues map[place][]*sent // in the order of submission
	timers map[place][]*sent
	faults []string // completions that came twice or contradict themselves
	// trimmedTo and trimmedAt say what trims may have removed: records below the position, timers fired before the time.
	trimmedTo, trimmedAt int64
}

func newLedger() *ledger {
	return &ledger{queues: map[place][]*sent{}, timers: map[place][]*sent{}}
}

// entry is a ledger's Completion for one request.
type entry struct {
	l    *ledger
	sent []*sent
	done chan error // capacity 1
}

// submit sends records of the given sizes to one queue in one request; deliverAt 0 is at once.
func (l *ledger) submit(s *Store, topic *Topic, queue int32, deliverAt int64, sizes ...int) *entry {
	e := &entry{l: l, done: make(chan error, 1)}
	r := &Request{Completion: e}
	p := place{topic.Name(), queue}
	l.mu.Lock()
	for _, size := range sizes {
		l.nextID++
		m := &sent{id: l.nextID, due: deliverAt}
		rec := markedRecord(topic, queue, m.id, size)
		rec.DeliverAt = deliverAt
		r.Records = append(r.Records, rec)
		e.sent = append(e.sent, m)
		if deliverAt == 0 {
			l.queues[p] = append(l.queues[p], m)
		} else {
			l.timers[p] = append(l.timers[p], m)
		}
	}
	l.mu.Unlock()
	s.Submit(r)
	return e
}

// Completed implements Completion.
func (e *entry) Completed(r *Request, err error) {
	e.l.mu.Lock()
	defer e.l.mu.Unlock()
	for i, m := range e.sent {
		if m.state != pending {
			e.l.faults = append(e.l.faults, fmt.Sprintf("record %d completed twice, now with %v", m.id, err))
			return
		}
		m.at, m.offset, m.position = time.Now(), r.Records[i].Offset, r.Records[i].Position
		switch {
		case err == nil:
			m.state = acked
		case errors.Is(err, ErrBusy), errors.Is(err, ErrClosed), errors.Is(err, ErrTopicDeleted):
			m.state = refused
		default:
			m.state = unknown
		}
	}
	e.done <- err
}

// clone is the ledger as of now, for an image of the disk as of now.
func (l *ledger) clone() *ledger {
	l.mu.Lock()
	defer l.mu.Unlock()
	copied := func(m map[place][]*sent) map[place][]*sent {
		c := maps.Clone(m)
		for p, list := range c {
			c[p] = slices.Clone(list)
			for i, s := range list {
				v := *s
				c[p][i] = &v
			}
		}
		return c
	}
	return &ledger{nextID: l.nextID, queues: copied(l.queues), timers: copied(l.timers), faults: slices.Clone(l.faults),
		trimmedTo: l.trimmedTo, trimmedAt: l.trimmedAt}
}

// readAll reads a queue from its minimum to its end.
func readAll(t testing.TB, s *Store, topic *Topic, queue int32) []storedRecord {
	t.Helper()
	low, high, err := s.Bounds(topic, queue)
	must(t, err)
	var all []storedRecord
	for offset := low; offset < high; {
		var records [][]byte
		limit := Limit{Count: 64, Bytes: 1 << 20}
		res, err := s.Read(context.Background(), Read{Topic: topic, Queue: queue, Offset: offset, Near: limit, Far: limit,
			Match: func(_ int64, b []byte) bool { records = append(records, slices.Clone(b)); return true }})
		must(t, err)
		if res.Status != Found || res.Next <= offset {
			t.Fatalf("%s/%d: read at %d of [%d, %d) says %v, next %d", topic.Name(), queue, offset, low, high, res.Status, res.Next)
		}
		for i, b := range records[:res.Count] {
			r, err := parseMarkedRecord(b)
			must(t, err)
			if r.offset != offset+int64(i) || r.queue != queue {
				t.Fatalf("%s/%d: record %d at offset %d says queue %d, offset %d", topic.Name(), queue, r.id, offset+int64(i), r.queue, r.offset)
			}
			all = append(all, r)
		}
		offset = res.Next
	}
	return all
}

// verify compares a store with the ledger: each queue holds a prefix of what was submitted to it, at the offsets that were
// told, and everything acknowledged before the deadline; the zero deadline stands for everything acknowledged. It is called in
// a bubble.
func (l *ledger) verify(t testing.TB, s *Store, deadline time.Time) {
	t.Helper()
	synctest.Wait() // timers that are due have fired, and stand still from here on
	for _, fault := range l.faults {
		t.Error(fault)
	}
	owed := func(m *sent) bool { return m.state == acked && (deadline.IsZero() || m.at.Before(deadline)) }
	for p, list := range l.queues {
		topic, ok := s.Topic(p.topic)
		if !ok {
			if slices.ContainsFunc(list, owed) {
				t.Errorf("%v: topic is gone with acknowledged records", p)
			}
			continue
		}
		low, _ := must2(s.Bounds(topic, p.queue))(t)
		l.verifyQueue(t, p, int(low), readAll(t, s, topic, p.queue), list, owed)
	}
	for p, list := range l.timers {
		topic, ok := s.Topic(p.topic)
		if !ok {
			continue
		}
		found := map[uint64]int{}
		for _, r := range readAll(t, s, topic, p.queue) {
			found[r.id]++
		}
		for id, n := range timerIDs(t, s, p) {
			found[id] += n
		}
		for _, m := range list {
			if n := found[m.id]; n > 1 || n == 0 && owed(m) && m.due > l.trimmedAt || n > 0 && m.state == refused {
				t.Errorf("%v: timer %d (state %d) is there %d times", p, m.id, m.state, n)
			}
		}
	}
}

// verifyQueue checks one queue, which begins at low. Records whose request was refused must be absent; of the others a prefix
// is there, except for what was trimmed.
func (l *ledger) verifyQueue(t testing.TB, p place, low int, have []storedRecord, list []*sent, owed func(*sent) bool) {
	t.Helper()
	list = slices.DeleteFunc(slices.Clone(list), func(m *sent) bool { return m.state == refused })
	high := low + len(have)
	if high > len(list) {
		t.Errorf("%v: holds [%d, %d), only %d records were submitted", p, low, high, len(list))
		return
	}
	for _, m := range list[:low] {
		if m.state == acked && m.position >= l.trimmedTo {
			t.Errorf("%v: acknowledged record %d at position %d is trimmed, the limit is %d", p, m.id, m.position, l.trimmedTo)
			return
		}
	}
	for i, r := range have {
		if m := list[low+i]; r.id != m.id || r.offset != int64(low+i) {
			t.Errorf("%v: record %d at offset %d, want record %d at %d", p, r.id, r.offset, m.id, low+i)
			return
		} else if m.state == acked && m.offset != r.offset {
			t.Errorf("%v: record %d at offset %d, acknowledged with %d", p, r.id, r.offset, m.offset)
		}
	}
	for _, m := range list[high:] {
		if owed(m) {
			t.Errorf("%v: acknowledged record %d is lost (the queue ends at %d of %d)", p, m.id, high, len(list))
			return
		}
	}
}

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
		deleted: maps.Clone(w.deleted)}
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

// verifyTimersFired checks that of the timers, all due by now, each acknowledged one is in its queue once.
func (l *ledger) verifyTimersFired(t testing.TB, s *Store, deadline time.Time) {
	t.Helper()
	for p, list := range l.timers {
		topic, ok := s.Topic(p.topic)
		if !ok {
			continue
		}
		if waiting := timerIDs(t, s, p); len(waiting) > 0 {
			t.Errorf("%v: %d timers did not fire", p, len(waiting))
		}
		found := map[uint64]int{}
		for _, r := range readAll(t, s, topic, p.queue) {
			found[r.id]++
		}
		for _, m := range list {
			owed := m.state == acked && (deadline.IsZero() || m.at.Before(deadline))
			if n := found[m.id]; n > 1 || n == 0 && owed && m.due > l.trimmedAt {
				t.Errorf("%v: timer %d (state %d) was delivered %d times", p, m.id, m.state, n)
			}
		}
	}
}

// timerIDs counts the waiting timers of a queue by record id.
func timerIDs(t testing.TB, s *Store, p place) map[uint64]int {
	t.Helper()
	db, release, err := s.read()
	must(t, err)
	defer release()
	ids := map[uint64]int{}
	must(t, scan(db, []byte{kindTimer}, []byte{kindTimer + 1}, func(key, value []byte) error {
		var r Record
		id, err := parseTimerValue(value, &r)
		if err != nil {
			return err
		}
		if topic := s.topicByID(id); topic != nil && topic.Name() == p.topic && r.Queue == p.queue {
			ids[be.Uint64(r.Bytes[testIDAt:])]++
		}
		return nil
	}))
	return ids
}

// forgetLost takes the records out of the ledger that were not acknowledged and are not in the store: after a failure the
// queue goes on without them.
func (l *ledger) forgetLost(t testing.TB, s *Store) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	for p, list := range l.queues {
		have := map[uint64]bool{}
		if topic, ok := s.Topic(p.topic); ok {
			for _, r := range readAll(t, s, topic, p.queue) {
				have[r.id] = true
			}
		}
		l.queues[p] = slices.DeleteFunc(list, func(m *sent) bool { return m.state != acked && !have[m.id] && m.position >= l.trimmedTo })
	}
}
