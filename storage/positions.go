package storage

import (
	"errors"
	"fmt"
	"sort"

	"github.com/cockroachdb/pebble/v2"
)

// A position map is one group's chunks in one segment, under the position of
// the first: the log's end after them, the group's store time, and for each
// chunk its position, topic, queue and first offset.
const (
	mapHeaderLen = 16
	mapEntryLen  = 24
)

type mapEntry struct {
	position int64
	topic    uint32
	queue    int32
	offset   int64
}

func putMapHeader(dst []byte, end, storeTime int64) {
	be.PutUint64(dst, uint64(end))
	be.PutUint64(dst[8:], uint64(storeTime))
}

func appendMapEntry(dst []byte, e mapEntry) []byte {
	dst = be.AppendUint64(dst, uint64(e.position))
	dst = be.AppendUint32(dst, e.topic)
	dst = be.AppendUint32(dst, uint32(e.queue))
	return be.AppendUint64(dst, uint64(e.offset))
}

// positionMap reads the value of a position map.
type positionMap []byte

func (m positionMap) valid() bool {
	return len(m) > mapHeaderLen && (len(m)-mapHeaderLen)%mapEntryLen == 0
}

func (m positionMap) end() int64       { return int64(be.Uint64(m)) }
func (m positionMap) storeTime() int64 { return int64(be.Uint64(m[8:])) }
func (m positionMap) len() int         { return (len(m) - mapHeaderLen) / mapEntryLen }

func (m positionMap) entry(i int) mapEntry {
	e := m[mapHeaderLen+i*mapEntryLen:]
	return mapEntry{int64(be.Uint64(e)), be.Uint32(e[8:]), int32(be.Uint32(e[12:])), int64(be.Uint64(e[16:]))}
}

// find returns the last chunk that begins at or before the position.
func (m positionMap) find(position int64) (mapEntry, bool) {
	i := sort.Search(m.len(), func(i int) bool { return m.entry(i).position > position })
	if i == 0 {
		return mapEntry{}, false
	}
	return m.entry(i - 1), true
}

// located is a record found by its position.
type located struct {
	topic     uint32
	queue     int32
	offset    int64
	storeTime int64
	record    []byte // a copy
}

// RecordAt returns the record that begins at a position of the log, or
// ErrNotFound.
func (s *Store) RecordAt(position int64) ([]byte, error) {
	l, err := s.locate(position)
	return l.record, err
}

// locate finds the record that begins at a position, or returns ErrNotFound.
func (s *Store) locate(position int64) (located, error) {
	missing := fmt.Errorf("%w: no record begins at position %d", ErrNotFound, position)
	if position < s.LogStart() || position >= s.LogEnd() {
		return located{}, missing
	}
	db, release, err := s.read()
	if err != nil {
		return located{}, err
	}
	defer release()
	e, found, err := mapEntryAt(db, s.segment(position), position)
	if err != nil {
		return located{}, err
	}
	if !found {
		return located{}, missing
	}
	key := chunkKey(s.segment(e.position), e.topic, e.queue, e.offset)
	value, closer, err := db.Get(key)
	if errors.Is(err, pebble.ErrNotFound) {
		return located{}, missing // its topic was deleted
	}
	if err != nil {
		return located{}, fmt.Errorf("storage: reading position %d: %w", position, err)
	}
	c, ok := parseChunk(value)
	if !ok {
		return located{}, errors.Join(corrupt("chunk", key), closer.Close())
	}
	l, found := c.locate(position)
	l.topic, l.queue = e.topic, e.queue
	if err := closer.Close(); err != nil {
		return located{}, err
	}
	if !found {
		return located{}, missing
	}
	return l, nil
}

// locate copies out the record that begins at a position.
func (c chunk) locate(position int64) (located, bool) {
	at := position - c.position()
	i := sort.Search(c.n, func(i int) bool { return int64(c.start(i)) >= at })
	if i == c.n || int64(c.start(i)) != at {
		return located{}, false
	}
	return located{offset: c.firstOffset() + int64(i), storeTime: c.lastStoreTime(),
		record: append([]byte(nil), c.record(i)...)}, true
}

// mapEntryAt returns the entry of the chunk that a position falls into. The
// chunk may have begun in an earlier segment.
func mapEntryAt(db *pebble.DB, segment uint32, position int64) (mapEntry, bool, error) {
	it, err := db.NewIter(&pebble.IterOptions{
		LowerBound: []byte{kindPositionMap}, UpperBound: positionKey(segment, position+1)})
	if err != nil {
		return mapEntry{}, false, err
	}
	if !it.Last() {
		return mapEntry{}, false, errors.Join(it.Error(), it.Close())
	}
	value, err := it.ValueAndErr()
	if err != nil {
		return mapEntry{}, false, errors.Join(err, it.Close())
	}
	m := positionMap(value)
	if !m.valid() {
		return mapEntry{}, false, errors.Join(corrupt("position map", it.Key()), it.Close())
	}
	e, found := m.find(position)
	return e, found, it.Close()
}

// lastMap returns the log's end and last store time as the last position map
// has them, and its segment.
func lastMap(db *pebble.DB) (end, storeTime int64, segment uint32, found bool, err error) {
	it, err := db.NewIter(&pebble.IterOptions{
		LowerBound: []byte{kindPositionMap}, UpperBound: []byte{kindPositionMap + 1}})
	if err != nil {
		return 0, 0, 0, false, err
	}
	if !it.Last() {
		return 0, 0, 0, false, errors.Join(it.Error(), it.Close())
	}
	value, err := it.ValueAndErr()
	if err != nil {
		return 0, 0, 0, false, errors.Join(err, it.Close())
	}
	m := positionMap(value)
	if !m.valid() || len(it.Key()) != positionKeyLen {
		return 0, 0, 0, false, errors.Join(corrupt("position map", it.Key()), it.Close())
	}
	return m.end(), m.storeTime(), be.Uint32(it.Key()[1:]), true, it.Close()
}
