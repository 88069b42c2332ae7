package storage

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2"
)

// Timers are records that are to be appended later. Each is kept whole in a key range of its own, because retention must not
// take the body of a message that is due in a year. The key is the time it is due and a sequence number, which never repeats
// in the life of a store.
//
// The cursor is a key below which no timer waits. Firing reads from the cursor on and, in one batch, appends the records,
// deletes their timers and moves the cursor, so a crash leaves all of it or nothing, and no scan ever walks over what was fired
// before. What keeps the cursor true is the time under which a new timer is filed (see add): a timer that is due already is
// filed just after the moment of its group, and firing leaves alone everything from the moment of the oldest group that is
// not published yet, which it cannot see.

// timerKey is the place of a timer: what it is ordered by.
type timerKey struct {
	due uint64 // milliseconds since 1970
	seq uint64
}

const timerKeySize = 1 + 8 + 8

func (k timerKey) less(o timerKey) bool {
	return k.due < o.due || k.due == o.due && k.seq < o.seq
}

// next is the smallest key behind k.
func (k timerKey) next() timerKey {
	if k.seq == math.MaxUint64 {
		return timerKey{k.due + 1, 0}
	}
	return timerKey{k.due, k.seq + 1}
}

// append appends the Pebble key.
func (k timerKey) append(dst []byte) []byte {
	dst = append(dst, kindTimer)
	dst = be.AppendUint64(dst, k.due)
	return be.AppendUint64(dst, k.seq)
}

func parseTimerKey(key []byte) timerKey {
	return timerKey{be.Uint64(key[1:]), be.Uint64(key[9:])}
}

// timerState is what is durable about timers as a whole. The lane owns it: it changes while a group is built and is stored
// with that group.
type timerState struct {
	cursor  timerKey // no timer waits at it or below
	seq     uint64   // the next timer's sequence number
	waiting uint64   // timers not fired yet
	bytes   uint64   // their records' bytes
	dropped uint64   // timers that were not delivered, ever: their topic was deleted, or they were damaged
}

const timerStateSize = 6 * 8

func (s *timerState) append(dst []byte) []byte {
	for _, v := range [...]uint64{s.cursor.due, s.cursor.seq, s.seq, s.waiting, s.bytes, s.dropped} {
		dst = be.AppendUint64(dst, v)
	}
	return dst
}

func parseTimerState(value []byte) (timerState, error) {
	if len(value) != timerStateSize {
		return timerState{}, fmt.Errorf("%w: timer state of %d bytes", ErrCorrupt, len(value))
	}
	var v [6]uint64
	for i := range v {
		v[i] = be.Uint64(value[8*i:])
	}
	return timerState{timerKey{v[0], v[1]}, v[2], v[3], v[4], v[5]}, nil
}

// timers keeps the records that are to be appended later, and owns the goroutine that appends them (see timer_fire.go).
type timers struct {
	store  *Store
	wake   chan struct{} // capacity 1: look again
	cancel context.CancelFunc
	done   chan struct{}

	mu    sync.Mutex
	state timerState
	dirty bool // state differs from what is stored or on its way
	// building is the group being built, with moment 0 until it has timers; flying are those with timers that are built and
	// not published yet, the oldest first.
	building groupTimers
	flying   []groupTimers
	// firing is the bound of the scan that is under way: it fires what is due then or before. 0 when none is.
	firing uint64
	// alarm is when the firing goroutine looks next of its own accord.
	alarm uint64
}

// groupTimers is what firing must know about a group before its timers can be seen.
type groupTimers struct {
	moment   uint64 // the time of its first timer's arrival; all of its timers are due later
	earliest uint64 // when the first of them is due
}

func newTimers(s *Store) *timers {
	return &timers{store: s, wake: make(chan struct{}, 1)}
}

// load reads the durable state. It is called before the lane runs.
func (t *timers) load(db *pebble.DB) error {
	state := timerState{seq: 1}
	value, closer, err := db.Get([]byte{kindTimerState})
	switch {
	case errors.Is(err, pebble.ErrNotFound):
	case err != nil:
		return fmt.Errorf("storage: timers: %w", err)
	default:
		state, err = parseTimerState(value)
		if err := errors.Join(err, closer.Close()); err != nil {
			return fmt.Errorf("storage: timers: %w", err)
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.state, t.dirty = state, false
	t.building, t.flying, t.firing, t.alarm = groupTimers{}, nil, 0, 0
	return nil
}

// add stores a record with DeliverAt as a timer, in the batch of the group being built, and gives it its position and store
// time. It runs on the lane.
//
// A timer is filed under the time it is due, but not before the moment after its group's: whatever is being fired meanwhile
// is due at that moment or before and can therefore not run past it. When the clock was set back below the cursor, the cursor
// follows; below it everything is fired, so nothing can be fired again.
func (t *timers) add(b *pebble.Batch, r *Record) error {
	now := uint64(time.Now().UnixMilli())
	t.mu.Lock()
	if t.building.moment == 0 {
		t.building = groupTimers{max(now, t.firing), math.MaxUint64}
	}
	key := timerKey{max(uint64(r.DeliverAt), t.building.moment+1), t.state.seq}
	t.state.seq++
	t.state.waiting++
	t.state.bytes += uint64(len(r.Bytes))
	if !t.state.cursor.less(key) {
		t.state.cursor = timerKey{due: key.due}
	}
	t.dirty = true
	t.building.earliest = min(t.building.earliest, key.due)
	t.mu.Unlock()

	r.Offset, r.Position, r.StoreTime = 0, TimerPositionBase+int64(key.seq), int64(now)
	op := b.SetDeferred(timerKeySize, timerValueSize(r))
	key.append(op.Key[:0])
	appendTimerValue(op.Value[:0], r)
	return op.Finish()
}

// seal ends the group being built and stores the state with it, if the group changed it. It runs on the lane.
func (t *timers) seal(b *pebble.Batch) error {
	t.mu.Lock()
	if t.building.moment != 0 {
		t.flying = append(t.flying, t.building)
		t.building = groupTimers{}
	}
	if !t.dirty {
		t.mu.Unlock()
		return nil
	}
	t.dirty = false
	value := t.state.append(make([]byte, 0, timerStateSize))
	t.mu.Unlock()
	return b.Set([]byte{kindTimerState}, value, nil)
}

// kick says that the oldest group with timers that was not published is. It wakes the firing goroutine if one of the group's
// timers is due before the time it sleeps until. It never blocks.
func (t *timers) kick() {
	t.mu.Lock()
	early := len(t.flying) > 0 && t.flying[0].earliest < t.alarm
	t.flying = t.flying[min(1, len(t.flying)):]
	t.mu.Unlock()
	if !early {
		return
	}
	select {
	case t.wake <- struct{}{}:
	default:
	}
}

// counts returns how many timers wait, the bytes of their records, and how many vanished with their topic.
func (t *timers) counts() (waiting, bytes, dropped int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return int64(t.state.waiting), int64(t.state.bytes), int64(t.state.dropped)
}

// A timer's value: the record's topic id and numbers, its key hashes, its bytes; all numbers big endian.
//
//	topic 4, queue 4, tag hash 8, deliver time 8, places of queue offset, position and store time 4 each, count of keys 4,
//	keys 8 each, record
const timerHeaderSize = 4 + 4 + 8 + 8 + 3*4 + 4

func timerValueSize(r *Record) int { return timerHeaderSize + 8*len(r.Keys) + len(r.Bytes) }

func appendTimerValue(dst []byte, r *Record) []byte {
	dst = be.AppendUint32(dst, r.Topic.id)
	dst = be.AppendUint32(dst, uint32(r.Queue))
	dst = be.AppendUint64(dst, uint64(r.TagHash))
	dst = be.AppendUint64(dst, uint64(r.DeliverAt))
	dst = be.AppendUint32(dst, uint32(r.QueueOffsetAt))
	dst = be.AppendUint32(dst, uint32(r.PositionAt))
	dst = be.AppendUint32(dst, uint32(r.StoreTimeAt))
	dst = be.AppendUint32(dst, uint32(len(r.Keys)))
	for _, k := range r.Keys {
		dst = be.AppendUint64(dst, k)
	}
	return append(dst, r.Bytes...)
}

// parseTimerValue reads a timer: its topic's id, and everything else into the record, whose DeliverAt stays 0 since it is to
// be appended now. The record's bytes alias value.
func parseTimerValue(value []byte, r *Record) (topic uint32, err error) {
	if len(value) < timerHeaderSize {
		return 0, fmt.Errorf("%w: timer of %d bytes", ErrCorrupt, len(value))
	}
	topic = be.Uint32(value)
	r.Queue = int32(be.Uint32(value[4:]))
	r.TagHash = int64(be.Uint64(value[8:]))
	r.QueueOffsetAt = int32(be.Uint32(value[24:]))
	r.PositionAt = int32(be.Uint32(value[28:]))
	r.StoreTimeAt = int32(be.Uint32(value[32:]))
	n := be.Uint32(value[36:])
	rest := value[timerHeaderSize:]
	if uint64(len(rest)) < 8*uint64(n) {
		return 0, fmt.Errorf("%w: timer of %d bytes with %d keys", ErrCorrupt, len(value), n)
	}
	if n > 0 {
		r.Keys = make([]uint64, n)
		for i := range r.Keys {
			r.Keys[i] = be.Uint64(rest[8*i:])
		}
	}
	r.Bytes = rest[8*n:]
	return topic, nil
}
