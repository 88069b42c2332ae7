package storage

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

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
