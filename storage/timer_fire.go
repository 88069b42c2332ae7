package storage

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"slices"
	"time"

	"github.com/cockroachdb/pebble/v2"
)

// Bounds of firing.
const (
	// One round takes so many timers and so many bytes of records, at least one.
	fireRecords = 2048
	fireBytes   = 2 << 20
	// A round of at least so many timers deletes them by one range delete, a smaller one each by itself. Pebble sorts all range
	// deletes of a memtable anew for the first iterator after each: with one per timer every read of the store took 7 ms after
	// 20,000 of them. Points cost nothing, since no scan goes below the cursor.
	fireRange = 256
	// A round that failed is repeated after fireRetryMin, doubled each time up to fireRetryMax.
	fireRetryMin = 10 * time.Millisecond
	fireRetryMax = time.Second
	// The goroutine looks at the clock at least so often, without I/O: a clock that was set forward, or a machine that slept,
	// does not move Go's timers.
	fireGlance = time.Minute
)

// never is the alarm of a goroutine that waits for a kick only.
const never = math.MaxUint64

// start begins firing. What became due while the store was closed is fired at once.
func (t *timers) start() {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	t.cancel, t.done = cancel, done
	go func() {
		defer close(done)
		t.run(ctx)
	}()
}

// stop ends the firing and waits for its goroutine. A round that is on its way to the lane is carried out or not, as a whole.
// It may be called without start, and twice.
func (t *timers) stop() {
	if t.cancel == nil {
		return
	}
	t.cancel()
	<-t.done
	t.cancel = nil
}

// run fires what is due and sleeps until more is, until ctx ends or the store does.
func (t *timers) run(ctx context.Context) {
	retry := fireRetryMin
	for {
		alarm, err := t.round(ctx)
		switch {
		case ctx.Err() != nil || errors.Is(err, ErrClosed) || errors.Is(err, ErrFailed):
			return
		case err == nil:
			retry = fireRetryMin
		default:
			level := slog.LevelWarn
			if errors.Is(err, ErrConditionFailed) || errors.Is(err, ErrTopicDeleted) {
				level = slog.LevelDebug // the world moved between scan and lane
			}
			t.store.log.LogAttrs(ctx, level, "storage: firing timers failed, trying again",
				slog.Duration("after", retry), slog.Any("error", err))
			alarm = uint64(time.Now().Add(retry).UnixMilli())
			retry = min(2*retry, fireRetryMax)
		}
		if !t.sleep(ctx, alarm) {
			return
		}
	}
}

// sleep waits until the alarm or a kick and reports whether ctx is still alive.
func (t *timers) sleep(ctx context.Context, alarm uint64) bool {
	glance := time.NewTimer(fireGlance)
	defer glance.Stop()
	for {
		var ring <-chan time.Time
		if alarm != never {
			left := time.Until(time.UnixMilli(int64(min(alarm, math.MaxInt64))))
			if left <= 0 {
				return ctx.Err() == nil
			}
			glance.Reset(min(left, fireGlance))
			ring = glance.C
		}
		select {
		case <-ctx.Done():
			return false
		case <-t.wake:
			return true
		case <-ring:
		}
	}
}

// round fires at most one request's worth of timers and returns when to look again.
func (t *timers) round(ctx context.Context) (alarm uint64, err error) {
	from, bound, limited := t.begin()
	due, err := t.due(from, bound)
	if err == nil && due.taken > 0 {
		err = t.fire(ctx, from, due)
	}
	if ctx.Err() != nil {
		// The request may still be on its way to the lane, so that the bound stays in force.
		return never, err
	}
	return t.end(due, limited), err
}

// begin opens a round: everything due at the bound or before it, and behind the cursor, may be fired. The bound is now, or
// earlier (limited) because of groups under way, whose timers the scan may not see. While the round lasts every group with
// timers that is published kicks.
func (t *timers) begin() (from timerKey, bound uint64, limited bool) {
	now := uint64(time.Now().UnixMilli())
	t.mu.Lock()
	defer t.mu.Unlock()
	bound = now
	if t.building.moment != 0 {
		bound = min(bound, t.building.moment)
	}
	if len(t.flying) > 0 {
		bound = min(bound, t.flying[0].moment)
	}
	t.firing, t.alarm = bound, never
	return t.state.cursor, bound, bound < now
}

// end closes a round and says when the next one is.
func (t *timers) end(due dueTimers, limited bool) uint64 {
	now := uint64(time.Now().UnixMilli())
	t.mu.Lock()
	defer t.mu.Unlock()
	t.firing = 0
	switch {
	case due.taken > 0:
		t.alarm = 0 // there may be more
	case limited && due.next <= now:
		// What is due waits for a group under way; its publishing kicks, or has kicked already.
		t.alarm = never
	default:
		t.alarm = due.next
	}
	return t.alarm
}

// dueTimers is what one round takes.
type dueTimers struct {
	records []Record
	taken   uint64     // timers, the dropped ones included
	dropped uint64     // timers whose topic is gone, or that are damaged
	bytes   uint64     // of the records of all timers taken
	keys    []timerKey // of all timers taken
	next    uint64     // due time of the first timer that is not due yet, never if there is none
}

// due reads the timers behind from that are due at the bound or before, within the limits of a round.
func (t *timers) due(from timerKey, bound uint64) (due dueTimers, err error) {
	due.next = never
	db, release, err := t.store.read()
	if err != nil {
		return due, err
	}
	defer release()
	it, err := waitingTimers(db, from)
	if err != nil {
		return due, err
	}
	defer func() { err = errors.Join(err, it.Close()) }()
	for ok := it.First(); ok; ok = it.Next() {
		key := parseTimerKey(it.Key())
		if key.due > bound {
			due.next = key.due
			return due, nil
		}
		value, err := it.ValueAndErr()
		if err != nil {
			return due, err
		}
		if due.taken == fireRecords || due.taken > 0 && due.bytes+uint64(len(value)) > fireBytes {
			return due, nil
		}
		due.take(t.store, key, value)
	}
	return due, it.Error()
}

// waitingTimers iterates over the timers behind the cursor, and never touches what was fired.
func waitingTimers(db *pebble.DB, cursor timerKey) (*pebble.Iterator, error) {
	return db.NewIter(&pebble.IterOptions{LowerBound: cursor.next().append(nil), UpperBound: []byte{kindTimer + 1}})
}

// take adds a copy of one timer. A damaged one is reported and dropped: it must not block those behind it.
func (d *dueTimers) take(s *Store, key timerKey, value []byte) {
	d.taken++
	d.keys = append(d.keys, key)
	var r Record
	topic, err := parseTimerValue(slices.Clone(value), &r)
	if err != nil {
		s.log.Error("storage: timer cannot be read and is dropped", "due", key.due, "sequence", key.seq, "error", err)
		d.dropped++
		return
	}
	d.bytes += uint64(len(r.Bytes))
	if r.Topic = s.topicByID(topic); r.Topic == nil {
		d.dropped++
		return
	}
	d.records = append(d.records, r)
}

// fire hands a round to the lane: the records, the end of their timers and the new cursor, all or nothing. If the cursor is no
// longer where the scan began, as after a round whose outcome was unknown, the request is refused and nothing happens twice.
func (t *timers) fire(ctx context.Context, from timerKey, due dueTimers) error {
	advance := func(lookup) (bool, error) {
		t.mu.Lock()
		defer t.mu.Unlock()
		if t.state.cursor != from {
			return false, nil
		}
		t.state.cursor = due.keys[len(due.keys)-1]
		t.state.waiting -= due.taken
		t.state.bytes -= due.bytes
		t.state.dropped += due.dropped
		t.dirty = true
		return true, nil
	}
	return t.store.Apply(ctx, &Request{Records: due.records, ops: due.deletes(from), cond: advance, urgent: true})
}

// deletes is the end of the timers taken, which are all those behind from up to the last.
func (d *dueTimers) deletes(from timerKey) []keyOp {
	if len(d.keys) >= fireRange {
		last := d.keys[len(d.keys)-1]
		return []keyOp{{kind: opDeleteRange, key: from.next().append(nil), end: last.next().append(nil)}}
	}
	ops := make([]keyOp, len(d.keys))
	for i, key := range d.keys {
		ops[i] = keyOp{kind: opDelete, key: key.append(nil)}
	}
	return ops
}
