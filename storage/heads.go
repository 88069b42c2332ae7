package storage

import (
	"errors"
	"fmt"
	"sort"
	"sync"

	"github.com/cockroachdb/pebble/v2"
)

// queue is the head of one queue: what it holds durably, and on the lane's side
// what was given out already. Heads load on first use, so that opening a store
// costs the same with any number of queues.
//
// Invariants: min <= next; both only grow; records in [min, next) are durable;
// a reader uses nothing outside. Segment pointers are sorted and cover
// [min, next).
type queue struct {
	topic  *Topic
	number int32

	lane   laneQueue
	waking bool // the waker has it on its list; belongs to waker.mu

	mu       sync.Mutex
	loaded   bool
	next     int64
	min      int64
	segments []segmentPointer
	recent   []recentChunk // ring entries, oldest first, contiguous up to next
}

// segmentPointer says where a segment's records of a queue begin.
type segmentPointer struct {
	segment   uint32
	offset    int64
	position  int64
	storeTime int64
}

// laneQueue is the part of a queue that belongs to the builder alone.
type laneQueue struct {
	life    int64 // number of the lane that loaded it; another means not loaded
	next    int64 // next offset to give out
	segment int64 // segment of the newest pointer, -1 without one
	group   int64 // group that pending belongs to
	pending []*Record
}

// bounds is a consistent view of a head.
type bounds struct {
	min, next int64
	segments  []segmentPointer // shared, never changed in place
}

// head returns the bounds of a queue, loading them when needed.
func (q *queue) head(s *Store, db *pebble.DB) (bounds, error) {
	if b, ok := q.known(); ok {
		return b, nil
	}
	b, err := loadHead(db, q.topic.id, q.number)
	if err != nil {
		return bounds{}, fmt.Errorf("storage: loading queue %d of topic %s: %w", q.number, q.topic.name, err)
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	// Whoever loaded first wins: the lane appends only after that, so a head
	// read before is older than one that is there.
	if !q.loaded {
		q.loaded, q.min, q.next, q.segments = true, b.min, b.next, b.segments
		// A trim published after the read did not find the head loaded; it
		// moved the log's start before it looked.
		q.trimLocked(b.next, s.segment(s.LogStart()))
	}
	return bounds{q.min, q.next, q.segments}, nil
}

// known returns the bounds when they are loaded.
func (q *queue) known() (bounds, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return bounds{q.min, q.next, q.segments}, q.loaded
}

// clear forgets everything, for a topic that was deleted or a store that opens
// again.
func (q *queue) clear() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.loaded, q.min, q.next, q.segments = false, 0, 0, nil
	q.recent = nil
}

// addSegmentLocked adds a pointer without touching the slice readers may hold.
func (q *queue) addSegmentLocked(p segmentPointer) {
	q.segments = append(q.segments[:len(q.segments):len(q.segments)], p)
}

// trimmed drops pointers below a segment and moves the minimum up to the first
// one left, or to empty when none is.
func (q *queue) trimmed(empty int64, segment uint32) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.loaded {
		q.trimLocked(empty, segment)
	}
}

func (q *queue) trimLocked(empty int64, segment uint32) {
	n := pointersBelow(q.segments, segment)
	if n == 0 {
		return
	}
	q.segments = q.segments[n:]
	if len(q.segments) > 0 {
		empty = q.segments[0].offset
	}
	q.min = max(q.min, empty)
}

func pointersBelow(list []segmentPointer, segment uint32) int {
	return sort.Search(len(list), func(i int) bool { return list[i].segment >= segment })
}

// segmentAt returns the index of the pointer whose segment holds the offset, -1
// when the offset is below all of them.
func (b bounds) segmentAt(offset int64) int {
	return sort.Search(len(b.segments), func(i int) bool { return b.segments[i].offset > offset }) - 1
}

// loadHead derives a head from its stored form, its pointers and its last
// chunk.
func loadHead(db *pebble.DB, topic uint32, queue int32) (bounds, error) {
	var b bounds
	key := queueKey(kindQueueHead, topic, queue)
	value, found, err := get(db, key)
	if err != nil {
		return b, err
	}
	if found {
		if len(value) != 16 {
			return b, corrupt("queue head", key)
		}
		b.next, b.min = int64(be.Uint64(value)), int64(be.Uint64(value[8:]))
	}
	if b.segments, err = loadPointers(db, topic, queue); err != nil || len(b.segments) == 0 {
		return b, err
	}
	b.min = max(b.min, b.segments[0].offset)
	last := b.segments[len(b.segments)-1].segment
	next, err := chunkEnd(db, last, topic, queue)
	b.next = max(b.next, next)
	return b, err
}

func headValue(next, min int64) []byte {
	return be.AppendUint64(be.AppendUint64(nil, uint64(next)), uint64(min))
}

// loadPointers reads the segment pointers of a queue.
func loadPointers(db *pebble.DB, topic uint32, queue int32) ([]segmentPointer, error) {
	var list []segmentPointer
	prefix := queueKey(kindQueueSegment, topic, queue)
	err := scan(db, prefix, after(prefix), func(key, value []byte) error {
		_, _, segment, ok := splitQueueSegmentKey(key)
		if !ok {
			return corrupt("queue segment", key)
		}
		p, ok := parsePointer(segment, value)
		if !ok {
			return corrupt("queue segment", key)
		}
		list = append(list, p)
		return nil
	})
	return list, err
}

func parsePointer(segment uint32, value []byte) (segmentPointer, bool) {
	if len(value) != 24 {
		return segmentPointer{}, false
	}
	return segmentPointer{segment, int64(be.Uint64(value)), int64(be.Uint64(value[8:])),
		int64(be.Uint64(value[16:]))}, true
}

func (p segmentPointer) value() []byte {
	v := be.AppendUint64(nil, uint64(p.offset))
	v = be.AppendUint64(v, uint64(p.position))
	return be.AppendUint64(v, uint64(p.storeTime))
}

// chunkEnd returns the offset after the last chunk of a queue in a segment.
func chunkEnd(db *pebble.DB, segment, topic uint32, queue int32) (int64, error) {
	first := chunkKey(segment, topic, queue, 0)
	it, err := db.NewIter(&pebble.IterOptions{LowerBound: first, UpperBound: after(first[:13])})
	if err != nil {
		return 0, err
	}
	if !it.Last() {
		return 0, errors.Join(it.Error(), it.Close())
	}
	value, err := it.ValueAndErr()
	if err != nil {
		return 0, errors.Join(err, it.Close())
	}
	c, ok := parseChunk(value)
	if !ok {
		return 0, errors.Join(corrupt("chunk", it.Key()), it.Close())
	}
	next := c.nextOffset()
	return next, it.Close()
}
