package storage

import (
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/cockroachdb/pebble/v2"
)

// KeyQuery asks for the records of a topic that carry a message key.
type KeyQuery struct {
	// Topic is the records' topic.
	Topic *Topic
	// Key is the message key, as it was given to KeyHash when the records were stored.
	Key string
	// Max is the largest number of records to return; 0 or less means 32.
	Max int
	// MaxBytes bounds the bytes of all records returned, though at least one is; 0 or less means 64 MiB.
	MaxBytes int
	// Begin and End bound the store time in milliseconds, both inclusive; an End of 0 or less means no end.
	Begin, End int64
	// Match says whether a record really carries the key. It is what makes the answer exact, because the index knows hashes
	// only; nil accepts every record whose hash is right. It must not keep the bytes.
	Match func(record []byte) bool
}

// Hit is one record that a query found.
type Hit struct {
	Position  int64  // where it lies in the log
	StoreTime int64  // milliseconds
	Record    []byte // the caller's own
}

// Defaults of a query.
const (
	queryMax      = 32
	queryMaxBytes = 64 << 20
	// hitsPerRound bounds the candidates that are held at a time.
	hitsPerRound = 256
)

// Query returns the records that carry a key, newest first, each once. Records that are no longer readable (removed by
// retention or with their topic) and records that were not yet durable at the call are not found. It costs one seek per merged
// segment, a search of every list in the segments not merged yet, and one read per candidate. Unlike RocketMQ's, the answer
// holds no record of another key or topic and no record twice. It may be called from any goroutine and ends early with ctx's
// error when ctx does.
func (s *Store) Query(ctx context.Context, q KeyQuery) ([]Hit, error) {
	if q.Max <= 0 {
		q.Max = queryMax
	}
	if q.MaxBytes <= 0 {
		q.MaxBytes = queryMaxBytes
	}
	if q.End <= 0 {
		q.End = math.MaxInt64
	}
	hash := KeyHash(q.Topic.Name(), q.Key)
	var found []Hit
	bytes := 0
	before := s.LogEnd()
	hits := make([]int64, 0, hitsPerRound)
	for {
		var err error
		if hits, err = s.index.hits(ctx, hits[:0], hash, before); err != nil {
			return nil, fmt.Errorf("storage: query: %w", err)
		}
		for _, position := range hits {
			if err := ctx.Err(); err != nil {
				return nil, fmt.Errorf("storage: query: %w", err)
			}
			f, verdict, err := s.check(&q, position)
			switch {
			case err != nil:
				return nil, fmt.Errorf("storage: query: record at %d: %w", position, err)
			case verdict == hitTooOld:
				return found, nil
			case verdict == hitWrong:
				continue
			}
			if bytes += len(f.Record); bytes > q.MaxBytes && len(found) > 0 {
				return found, nil
			}
			if found = append(found, f); len(found) == q.Max {
				return found, nil
			}
		}
		if len(hits) < hitsPerRound {
			return found, nil
		}
		before = hits[len(hits)-1]
	}
}

// hitVerdict is what looking at a candidate's record told.
type hitVerdict int

const (
	hitRight  hitVerdict = iota
	hitWrong             // gone, of another topic or key, or too new
	hitTooOld            // from before the query's time, as is everything below it: store times never fall in log order
)

// check reads the record at a candidate position and compares it with the query.
func (s *Store) check(q *KeyQuery, position int64) (Hit, hitVerdict, error) {
	at, err := s.locate(position)
	switch {
	case errors.Is(err, ErrNotFound):
		return Hit{}, hitWrong, nil
	case err != nil:
		return Hit{}, hitWrong, err
	case at.storeTime < q.Begin:
		return Hit{}, hitTooOld, nil
	case at.topic != q.Topic.id || at.storeTime > q.End || (q.Match != nil && !q.Match(at.record)):
		return Hit{}, hitWrong, nil
	}
	return Hit{Position: position, StoreTime: at.storeTime, Record: at.record}, hitRight, nil
}

// hits appends to dst, which has room for hitsPerRound, the newest positions below before that are filed under the hash,
// newest first. One iterator shows lists, pages and merge mark of one moment; it is closed before any record is read.
func (x *keyIndex) hits(ctx context.Context, dst []int64, hash uint64, before int64) ([]int64, error) {
	db, release, err := x.store.read()
	if err != nil {
		return dst, err
	}
	defer release()
	it, err := db.NewIter(&pebble.IterOptions{
		LowerBound: appendIndexKey(nil, 0, 0),
		UpperBound: append(mergeMarkKey(), 0),
	})
	if err != nil {
		return dst, err
	}
	q := hitScan{ctx: ctx, it: it, hash: hash, before: before, hits: dst}
	err = q.run(x.store)
	return q.hits, errors.Join(err, it.Close())
}

// hitScan is the state of one round.
type hitScan struct {
	ctx    context.Context
	it     *pebble.Iterator
	hash   uint64
	before int64
	hits   []int64
	key    []byte
}

func (q *hitScan) full() bool { return len(q.hits) >= hitsPerRound }

func (q *hitScan) run(s *Store) error {
	mark, err := q.mergeMark()
	if err != nil {
		return err
	}
	if err := q.scanLists(s.segment(q.before), mark); err != nil {
		return err
	}
	segment := min(int64(s.segment(q.before)), int64(mark)-1)
	for oldest := int64(s.segment(s.LogStart())); segment >= oldest && !q.full(); segment-- {
		if err := q.scanPages(uint32(segment)); err != nil {
			return err
		}
	}
	return nil
}

// mergeMark reads the number of the first segment that has lists; 0 before the first merge.
func (q *hitScan) mergeMark() (uint32, error) {
	if !q.it.SeekGE(mergeMarkKey()) {
		return 0, q.it.Error()
	}
	value, err := q.it.ValueAndErr()
	if err != nil {
		return 0, err
	}
	if len(value) != 4 {
		return 0, corrupt("merge mark", q.it.Key())
	}
	return be.Uint32(value), nil
}

// scanLists goes through the lists from the newest that begins below before down to the merge mark.
func (q *hitScan) scanLists(newest, mark uint32) error {
	q.key = appendIndexKey(q.key[:0], newest, q.before)
	lowest := appendIndexKey(nil, mark, 0)
	for ok := q.it.SeekLT(q.key); ok && !q.full(); ok = q.it.Prev() {
		if string(q.it.Key()) < string(lowest) {
			return nil
		}
		if _, err := q.scanValue(); err != nil {
			return err
		}
	}
	return q.it.Error()
}

// scanPages looks the hash up in a merged segment: the page found by the seek, and those after it while they still hold it.
func (q *hitScan) scanPages(segment uint32) error {
	q.key = appendPageKey(q.key[:0], segment, indexPair{q.hash, q.before - 1})
	prefix := q.key[:1+4]
	for ok := q.it.SeekGE(q.key); ok && !q.full(); ok = q.it.Next() {
		if len(q.it.Key()) < len(prefix) || string(q.it.Key()[:len(prefix)]) != string(prefix) {
			return nil
		}
		if more, err := q.scanValue(); err != nil || !more {
			return err
		}
	}
	return q.it.Error()
}

// scanValue takes the matching entries of the list or page at hand and reports whether it ended with one.
func (q *hitScan) scanValue() (bool, error) {
	if err := q.ctx.Err(); err != nil {
		return false, err
	}
	value, err := q.it.ValueAndErr()
	if err != nil {
		return false, err
	}
	list, err := parseIndexList(value)
	if err != nil {
		return false, err
	}
	for i := list.search(indexPair{q.hash, q.before - 1}); ; i++ {
		switch {
		case i == list.len():
			return true, nil
		case list.hash(i) != q.hash:
			return false, nil
		case q.full():
			return true, nil
		}
		q.hits = append(q.hits, list.pair(i).position)
	}
}
