package storage

import (
	"context"
	"errors"
	"fmt"

	"github.com/cockroachdb/pebble/v2"
)

// Limit bounds what a read returns; the first record is always returned.
type Limit struct {
	Count int
	Bytes int
}

// Read asks for records of one queue from an offset on.
type Read struct {
	Topic  *Topic
	Queue  int32
	Offset int64
	// Near bounds records within FarBytes of the log's end, Far those beyond,
	// as RocketMQ distinguishes records in memory from records on disk. With
	// FarBytes 0 all records are near. A zero Count or Bytes is no bound.
	Near, Far Limit
	FarBytes  int64
	// MaxScan is how many records are looked at; 0 means 800, the window of
	// RocketMQ.
	MaxScan int
	// Match says which records are wanted; nil takes all. record is valid
	// during the call only.
	Match func(tagHash int64, record []byte) bool
}

// Status is the outcome of a Read.
type Status int

const (
	// Found: Data holds at least one record.
	Found Status = iota
	// NoMatch: there are records, but none of those looked at is wanted.
	NoMatch
	// AtEnd: Offset is where the next record will be.
	AtEnd
	// PastEnd: Offset lies beyond that.
	PastEnd
	// BeforeStart: records at Offset were trimmed.
	BeforeStart
	// Empty: the queue never had a record.
	Empty
)

// String returns the name of the status.
func (s Status) String() string {
	names := [...]string{"Found", "NoMatch", "AtEnd", "PastEnd", "BeforeStart", "Empty"}
	if s < 0 || int(s) >= len(names) {
		return fmt.Sprintf("Status(%d)", int(s))
	}
	return names[s]
}

// ReadResult is the answer to a Read.
type ReadResult struct {
	Status Status
	// Data is the records one after the other, in memory of its own.
	Data  []byte
	Count int
	// Next is where to read on: after the last record looked at, or where
	// RocketMQ sends a reader whose offset is out of bounds.
	Next int64
	// Min and Max are the queue's first offset and its next one.
	Min, Max int64
	// FirstPosition is the log position of the first record returned.
	FirstPosition int64
}

// defaultScan is the least number of entries RocketMQ looks at in one pull.
const defaultScan = 800

// ReadRecent answers from memory without any I/O, or says that it cannot; then
// Read is the way.
func (s *Store) ReadRecent(r Read) (ReadResult, bool) {
	if r.Queue < 0 || r.Queue > MaxQueue || r.Topic.deleted.Load() {
		return ReadResult{}, false
	}
	return s.readRecent(&r, r.Topic.queue(r.Queue))
}

func (s *Store) readRecent(r *Read, q *queue) (ReadResult, bool) {
	var space [8]recentChunk
	b, chunks, loaded := q.recentFrom(r.Offset, space[:0])
	if !loaded {
		return ReadResult{}, false
	}
	res, in := b.place(r.Offset)
	if !in {
		return res, true
	}
	if len(chunks) == 0 {
		return ReadResult{}, false
	}
	c := s.newCollector(r, res)
	for i := range chunks {
		c.hint += len(chunks[i].value)
	}
	for len(chunks) > 0 {
		for i := range chunks {
			// The store made these values; they need no check.
			if !c.add(chunk{chunks[i].value, int(chunks[i].next - chunks[i].first)}) {
				return c.result(), true
			}
		}
		// Small chunks do not make small answers: the bounds end a read.
		b, chunks, _ = q.recentFrom(c.res.Next, space[:0])
		c.res.Max = b.next
	}
	return c.result(), true
}

// place fills in a result for an offset outside the bounds; in says that it is
// inside.
func (b bounds) place(offset int64) (res ReadResult, in bool) {
	res = ReadResult{Next: offset, Min: b.min, Max: b.next}
	switch {
	case b.next == 0:
		res.Status, res.Next = Empty, 0
	case offset < b.min:
		res.Status, res.Next = BeforeStart, b.min
	case offset == b.next:
		res.Status = AtEnd
	case offset > b.next:
		res.Status, res.Next = PastEnd, b.next
	default:
		return res, true
	}
	return res, false
}

// Read answers from memory or from disk.
func (s *Store) Read(ctx context.Context, r Read) (ReadResult, error) {
	if r.Queue < 0 || r.Queue > MaxQueue {
		return ReadResult{}, fmt.Errorf("%w: queue %d of topic %s", ErrInvalid, r.Queue, r.Topic.name)
	}
	if r.Topic.deleted.Load() {
		return ReadResult{}, fmt.Errorf("%w: %s", ErrTopicDeleted, r.Topic.name)
	}
	q := r.Topic.queue(r.Queue)
	if res, ok := s.readRecent(&r, q); ok {
		return res, nil
	}
	db, release, err := s.read()
	if err != nil {
		return ReadResult{}, err
	}
	defer release()
	b, err := q.head(s, db)
	if err != nil {
		return ReadResult{}, err
	}
	res, in := b.place(r.Offset)
	if !in {
		return res, nil
	}
	c := s.newCollector(&r, res)
	c.hint = chunkBytes
	if err := readChunks(ctx, db, q, b, r.Offset, c.add); err != nil {
		return ReadResult{}, fmt.Errorf("storage: reading queue %d of topic %s at %d: %w",
			q.number, q.topic.name, r.Offset, err)
	}
	return c.result(), nil
}

// readChunks calls add for the chunks of a queue from the one holding the
// offset on, until add returns false. It never shows a record at b.next or
// above: those are not known to be durable. Each segment has an iterator of its
// own, closed at once, since an open one pins what is deleted.
func readChunks(ctx context.Context, db *pebble.DB, q *queue, b bounds, offset int64, add func(chunk) bool) error {
	for i := max(b.segmentAt(offset), 0); i < len(b.segments); i++ {
		if err := ctx.Err(); err != nil {
			return err
		}
		more, err := readSegment(db, q, b.segments[i].segment, offset, b.next, add)
		if err != nil || !more {
			return err
		}
	}
	return nil
}

func readSegment(db *pebble.DB, q *queue, segment uint32, offset, end int64, add func(chunk) bool) (more bool, err error) {
	prefix := chunkKey(segment, q.topic.id, q.number, 0)[:13]
	it, err := db.NewIter(&pebble.IterOptions{
		LowerBound: prefix, UpperBound: chunkKey(segment, q.topic.id, q.number, end)})
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, it.Close()) }()
	ok := it.SeekLT(chunkKey(segment, q.topic.id, q.number, offset+1))
	if !ok {
		ok = it.First()
	}
	for ; ok; ok = it.Next() {
		value, err := it.ValueAndErr()
		if err != nil {
			return false, err
		}
		c, valid := parseChunk(value)
		if !valid {
			return false, corrupt("chunk", it.Key())
		}
		if c.nextOffset() <= offset {
			continue
		}
		if !add(c) {
			return false, nil
		}
	}
	return true, it.Error()
}
