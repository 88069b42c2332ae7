package storage

import (
	"context"
	"fmt"

	"github.com/cockroachdb/pebble/v2"
)

// Bounds returns a queue's first offset and its next one: min equals next when
// it holds nothing, and both are 0 when it never did.
func (s *Store) Bounds(t *Topic, queue int32) (min, next int64, err error) {
	if queue < 0 || queue > MaxQueue {
		return 0, 0, fmt.Errorf("%w: queue %d of topic %s", ErrInvalid, queue, t.name)
	}
	if t.deleted.Load() {
		return 0, 0, fmt.Errorf("%w: %s", ErrTopicDeleted, t.name)
	}
	if b, ok := t.queue(queue).known(); ok {
		return b.min, b.next, nil
	}
	b, _, release, err := s.view(t, queue)
	if err != nil {
		return 0, 0, err
	}
	release()
	return b.min, b.next, nil
}

// view returns the bounds of a queue and access to the database.
func (s *Store) view(t *Topic, queue int32) (bounds, *pebble.DB, func(), error) {
	if queue < 0 || queue > MaxQueue {
		return bounds{}, nil, nil, fmt.Errorf("%w: queue %d of topic %s", ErrInvalid, queue, t.name)
	}
	if t.deleted.Load() {
		return bounds{}, nil, nil, fmt.Errorf("%w: %s", ErrTopicDeleted, t.name)
	}
	db, release, err := s.read()
	if err != nil {
		return bounds{}, nil, nil, err
	}
	b, err := t.queue(queue).head(s, db)
	if err != nil {
		release()
		return bounds{}, nil, nil, err
	}
	return b, db, release, nil
}

// StoreTime returns when the record at an offset was stored, in milliseconds
// since 1970, and whether there is one.
func (s *Store) StoreTime(t *Topic, queue int32, offset int64) (int64, bool, error) {
	b, db, release, err := s.view(t, queue)
	if err != nil {
		return 0, false, err
	}
	defer release()
	if offset < b.min || offset >= b.next {
		return 0, false, nil
	}
	at, found, err := stampAt(db, t.queue(queue), b, offset)
	if err != nil || !found || at.first > offset {
		return 0, false, err
	}
	return at.storeTime, true, nil
}

// EarliestStoreTime returns the store time of a queue's first record, -1 when
// it holds none.
func (s *Store) EarliestStoreTime(t *Topic, queue int32) (int64, error) {
	b, db, release, err := s.view(t, queue)
	if err != nil {
		return -1, err
	}
	defer release()
	at, found, err := stampAt(db, t.queue(queue), b, b.min)
	if err != nil || !found {
		return -1, err
	}
	return at.storeTime, nil
}

// EarliestLogTime returns the store time of the log's first record, -1 when
// there is none.
func (s *Store) EarliestLogTime() (int64, error) {
	segments, err := s.Segments()
	if err != nil || len(segments) == 0 {
		return -1, err
	}
	return segments[0].FirstStoreTime, nil
}

// stamp is the store time of the records first..next of a queue.
type stamp struct {
	first, next int64
	storeTime   int64
}

// stampAt returns the stamp of the chunk that holds an offset, or of the next
// one when none does.
func stampAt(db *pebble.DB, q *queue, b bounds, offset int64) (stamp, bool, error) {
	var at stamp
	found := false
	err := readChunks(context.Background(), db, q, b, offset, func(c chunk) bool {
		at, found = stamp{c.firstOffset(), c.nextOffset(), c.firstStoreTime()}, true
		return false
	})
	return at, found, err
}

// OffsetByTime returns the offset of the record whose store time is nearest to
// a time in milliseconds since 1970, as RocketMQ 4.9 does: the first record of
// that very time, or else the nearer of the last one before and the first one
// after, the earlier when both are equally near. It is 0 when the queue holds
// nothing.
func (s *Store) OffsetByTime(t *Topic, queue int32, ms int64) (int64, error) {
	b, db, release, err := s.view(t, queue)
	if err != nil {
		return 0, err
	}
	defer release()
	if b.min == b.next {
		return 0, nil
	}
	offset, err := offsetByTime(db, t.queue(queue), b, ms)
	if err != nil {
		return 0, fmt.Errorf("storage: searching queue %d of topic %s by time: %w", queue, t.name, err)
	}
	return offset, nil
}

// offsetByTime bisects the offsets; store times never fall along a queue. All
// offsets below low are older than the time, those from high on are not.
func offsetByTime(db *pebble.DB, q *queue, b bounds, ms int64) (int64, error) {
	low, high := b.min, b.next
	var before, after *stamp
	for low < high {
		mid := low + (high-low)/2
		at, found, err := stampAt(db, q, b, mid)
		if err != nil {
			return 0, err
		}
		if !found {
			return 0, fmt.Errorf("%w: no record at offset %d or after", ErrNotFound, mid)
		}
		if at.storeTime < ms {
			before, low = &at, at.next
		} else {
			after, high = &at, max(min(at.first, mid), b.min)
		}
	}
	switch {
	case before == nil && after == nil:
		return b.min, nil
	case before == nil:
		return max(after.first, b.min), nil
	case after == nil:
		return before.next - 1, nil
	case after.storeTime == ms || ms-before.storeTime > after.storeTime-ms:
		return after.first, nil
	}
	return before.next - 1, nil
}

// Segment is a piece of the log, the unit of TrimTo.
type Segment struct {
	// Start is the position of its first record, End where the next one may
	// begin.
	Start, End int64
	// FirstStoreTime is when it was begun, in milliseconds since 1970.
	FirstStoreTime int64
}

// Segments returns the segments that hold records, oldest first. Those of
// deleted topics only are among them.
func (s *Store) Segments() ([]Segment, error) {
	db, release, err := s.read()
	if err != nil {
		return nil, err
	}
	defer release()
	var all []Segment
	from := segmentKey(kindSegmentInfo, s.segment(s.LogStart()))
	err = scan(db, from, []byte{kindSegmentInfo + 1}, func(key, value []byte) error {
		if len(key) != 5 || len(value) != 16 {
			return corrupt("segment", key)
		}
		end := (int64(be.Uint32(key[1:])) + 1) * s.segmentBytes
		all = append(all, Segment{int64(be.Uint64(value)), end, int64(be.Uint64(value[8:]))})
		return nil
	})
	return all, err
}
