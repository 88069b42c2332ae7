package storage

import (
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
)

// checkStore reads a whole store, from one snapshot, and reports everything that does not agree: chunks with position maps,
// queue heads and segment pointers, segments and the log's ends, key index with records, timers with their count, group
// offsets with topics and queues. Records that markedRecord made are checked byte by byte.
func checkStore(t testing.TB, s *Store) {
	t.Helper()
	db, release, err := s.read()
	must(t, err)
	defer release()
	c := &checker{t: t, s: s, topics: map[uint32]*Topic{}, chunks: map[chunkID]chunk{}, records: map[int64]checkedRecord{},
		queues: map[chunkQueue]*checkedQueue{}, indexed: map[indexPair]bool{}}
	for _, topic := range s.Topics() {
		c.topics[topic.id] = topic
	}
	published := s.LogEnd()
	c.db = db.NewSnapshot()
	defer func() { must(t, c.db.Close()) }()
	c.readChunks()
	c.readMaps()
	c.waitForLog(published)
	c.readSegments()
	c.readPointers()
	c.readIndex()
	c.readTimers()
	c.readGroupOffsets()
	c.compareHeads()
	if t.Failed() {
		t.FailNow()
	}
}

type chunkID struct {
	topic  uint32
	queue  int32
	offset int64
}

type chunkQueue struct {
	topic uint32
	queue int32
}

// checkedQueue is what the chunks of a queue say.
type checkedQueue struct {
	min, next int64
	pointers  map[uint32]segmentPointer // by segment
	mapped    int                       // chunks that a map knows
	chunks    int
}

type checker struct {
	t  testing.TB
	s  *Store
	db *pebble.Snapshot

	topics  map[uint32]*Topic
	chunks  map[chunkID]chunk
	queues  map[chunkQueue]*checkedQueue
	records map[int64]checkedRecord // by position
	indexed map[indexPair]bool
	maps    []checkedMap
}

// checkedRecord is a record of the log. It is indexed in the segment of its chunk, which may reach into the next one.
type checkedRecord struct {
	segment uint32
	ours    bool // made by markedRecord, so that its keys are known
	keys    []uint64
}

type checkedMap struct {
	segment    uint32
	first, end int64
}

func (c *checker) errorf(format string, args ...any) {
	c.t.Helper()
	c.t.Errorf("store check: "+format, args...)
}

func (c *checker) scan(kind byte, fn func(key, value []byte)) {
	c.t.Helper()
	must(c.t, scan(c.db, []byte{kind}, []byte{kind + 1}, func(key, value []byte) error { fn(key, value); return nil }))
}

// readChunks checks each chunk by itself and against the one before it of the same queue.
func (c *checker) readChunks() {
	c.scan(kindChunk, func(key, value []byte) {
		segment := be.Uint32(key[1:])
		id := chunkID{be.Uint32(key[5:]), int32(be.Uint32(key[9:])), int64(be.Uint64(key[13:]))}
		ch, ok := parseChunk(slices.Clone(value))
		if !ok {
			c.errorf("chunk %v of segment %d is malformed", id, segment)
			return
		}
		topic := c.topics[id.topic]
		if topic == nil {
			c.errorf("chunk %v of segment %d belongs to no topic", id, segment)
			return
		}
		if ch.firstOffset() != id.offset || c.s.segment(ch.position()) != segment || ch.firstStoreTime() > ch.lastStoreTime() {
			c.errorf("chunk %v of segment %d: offset %d, position %d, times %d to %d", id, segment, ch.firstOffset(),
				ch.position(), ch.firstStoreTime(), ch.lastStoreTime())
		}
		q := c.queues[chunkQueue{id.topic, id.queue}]
		if q == nil {
			q = &checkedQueue{min: id.offset, next: id.offset, pointers: map[uint32]segmentPointer{}}
			c.queues[chunkQueue{id.topic, id.queue}] = q
		}
		if id.offset != q.next {
			c.errorf("chunk %v of segment %d: the one before ends at %d", id, segment, q.next)
		}
		if _, ok := q.pointers[segment]; !ok {
			q.pointers[segment] = segmentPointer{segment, id.offset, ch.position(), ch.firstStoreTime()}
		}
		q.next = ch.nextOffset()
		q.chunks++
		c.chunks[id] = ch
		for i := range ch.n {
			c.checkRecord(topic, segment, id, ch, i)
		}
	})
}

// checkRecord checks a record that markedRecord made; others are left alone.
func (c *checker) checkRecord(topic *Topic, segment uint32, id chunkID, ch chunk, i int) {
	position := ch.position() + int64(ch.start(i))
	c.records[position] = checkedRecord{segment: segment}
	r, err := parseMarkedRecord(ch.record(i))
	if err != nil || r.queue != id.queue {
		return
	}
	if r.offset != id.offset+int64(i) || r.position != position || r.storeTime < ch.firstStoreTime() || r.storeTime > ch.lastStoreTime() {
		c.errorf("record %d of chunk %v says offset %d, position %d, time %d", i, id, r.offset, r.position, r.storeTime)
	}
	if ch.tagHash(i) != int64(r.id%5) {
		c.errorf("record %d of chunk %v has tag hash %d", i, id, ch.tagHash(i))
	}
	c.records[position] = checkedRecord{segment, true, testKeys(topic.Name(), r.id)}
}

// readMaps checks that the maps cover the log without a gap and lead to every chunk.
func (c *checker) readMaps() {
	var lastTime int64
	c.scan(kindPositionMap, func(key, value []byte) {
		segment, first := be.Uint32(key[1:]), int64(be.Uint64(key[5:]))
		m := positionMap(value)
		if !m.valid() {
			c.errorf("position map at %d is malformed", first)
			return
		}
		if c.s.segment(first) != segment || m.entry(0).position != first || m.storeTime() < lastTime {
			c.errorf("position map at %d of segment %d begins at %d, time %d after %d", first, segment, m.entry(0).position,
				m.storeTime(), lastTime)
		}
		if n := len(c.maps); n > 0 && c.maps[n-1].end != first {
			c.errorf("position map at %d: the one before ends at %d", first, c.maps[n-1].end)
		}
		lastTime = m.storeTime()
		c.maps = append(c.maps, checkedMap{segment, first, m.end()})
		for i := range m.len() {
			end := m.end()
			if i+1 < m.len() {
				end = m.entry(i + 1).position
			}
			c.checkMapEntry(m.entry(i), end)
		}
	})
	for id, q := range c.queues {
		if q.mapped != q.chunks {
			c.errorf("queue %v has %d chunks, of which the maps know %d", id, q.chunks, q.mapped)
		}
	}
}

// waitForLog waits until what is in the snapshot is published, as a group is after its commit, and compares the log's ends.
func (c *checker) waitForLog(published int64) {
	if len(c.maps) == 0 {
		return
	}
	end := c.maps[len(c.maps)-1].end
	for begun := time.Now(); c.s.LogEnd() < end && time.Since(begun) < 10*time.Second; {
		runtime.Gosched()
	}
	if published > end || c.s.LogEnd() < end || c.maps[0].first < c.s.LogStart() {
		c.errorf("the maps cover [%d, %d), the log is [%d, %d)", c.maps[0].first, end, c.s.LogStart(), c.s.LogEnd())
	}
}

func (c *checker) checkMapEntry(e mapEntry, end int64) {
	if c.topics[e.topic] == nil {
		return // deleted since
	}
	ch, ok := c.chunks[chunkID{e.topic, e.queue, e.offset}]
	if !ok {
		c.errorf("the map entry %+v leads to no chunk", e)
		return
	}
	if ch.position() != e.position || ch.position()+int64(ch.end(ch.n-1)) != end {
		c.errorf("the map entry %+v up to %d leads to a chunk at %d of %d bytes", e, end, ch.position(), ch.end(ch.n-1))
	}
	c.queues[chunkQueue{e.topic, e.queue}].mapped++
}

// readSegments checks that each segment's record of itself names its first position.
func (c *checker) readSegments() {
	firsts := map[uint32]int64{}
	for _, m := range c.maps {
		if _, ok := firsts[m.segment]; !ok {
			firsts[m.segment] = m.first
		}
	}
	c.scan(kindSegmentInfo, func(key, value []byte) {
		segment := be.Uint32(key[1:])
		first, ok := firsts[segment]
		if !ok || len(value) != 16 || int64(be.Uint64(value)) != first {
			c.errorf("segment %d: info %x, first map at %d (%t)", segment, value, first, ok)
		}
		delete(firsts, segment)
	})
	for segment := range firsts {
		c.errorf("segment %d has maps and no info", segment)
	}
}

// readPointers checks that each queue has a pointer for each segment with chunks of it, and none else.
func (c *checker) readPointers() {
	c.scan(kindQueueSegment, func(key, value []byte) {
		topic, queue, segment, ok := splitQueueSegmentKey(key)
		p, good := parsePointer(segment, value)
		if !ok || !good {
			c.errorf("queue segment %x is malformed", key)
			return
		}
		q := c.queues[chunkQueue{topic, queue}]
		if q == nil || q.pointers[segment] != p {
			c.errorf("queue %d of topic %d: pointer %+v does not match its chunks", queue, topic, p)
			return
		}
		delete(q.pointers, segment)
	})
	for id, q := range c.queues {
		if len(q.pointers) > 0 {
			c.errorf("queue %v has no pointers for %v", id, q.pointers)
		}
	}
}

// readIndex checks that the index leads from each key to each of its records, once, and from no key to another record.
func (c *checker) readIndex() {
	mark := uint32(0)
	if value, found, err := get(c.db, mergeMarkKey()); err != nil {
		c.errorf("merge mark: %v", err)
	} else if found {
		mark = be.Uint32(value)
	}
	read := func(kind byte, wanted func(segment uint32) bool) {
		c.scan(kind, func(key, value []byte) {
			if segment := indexKeySegment(key); wanted(segment) {
				c.readIndexValue(segment, value)
			}
		})
	}
	read(kindIndex, func(segment uint32) bool {
		if segment < mark {
			c.errorf("segment %d has lists below the merge mark %d", segment, mark)
		}
		return true
	})
	read(kindMerged, func(segment uint32) bool { return segment < mark })
	for position, r := range c.records {
		for _, key := range r.keys {
			if !c.indexed[indexPair{key, position}] {
				c.errorf("the record at %d is not indexed under %x", position, key)
			}
		}
	}
}

func (c *checker) readIndexValue(segment uint32, value []byte) {
	list, err := parseIndexList(value)
	if err != nil {
		c.errorf("index of segment %d: %v", segment, err)
		return
	}
	for i := range list.len() {
		p := list.pair(i)
		if c.indexed[p] {
			c.errorf("index of segment %d: %+v is there twice", segment, p)
		}
		c.indexed[p] = true
		// A record that is missing belonged to a deleted topic; that the others are there is checked by the maps.
		r, ok := c.records[p.position]
		if ok && (r.segment != segment || r.ours && !slices.Contains(r.keys, p.hash)) {
			c.errorf("index of segment %d: %+v leads to a record of segment %d with keys %x", segment, p, r.segment, r.keys)
		}
	}
}

// readTimers checks that no timer lies behind the cursor and that they are counted right.
func (c *checker) readTimers() {
	var state timerState
	if value, found, err := get(c.db, []byte{kindTimerState}); err != nil {
		c.errorf("timer state: %v", err)
	} else if found {
		if state, err = parseTimerState(value); err != nil {
			c.errorf("timer state: %v", err)
		}
	}
	var waiting, bytes uint64
	c.scan(kindTimer, func(key, value []byte) {
		k := parseTimerKey(key)
		var r Record
		if _, err := parseTimerValue(value, &r); err != nil {
			c.errorf("timer %+v: %v", k, err)
		}
		if !state.cursor.less(k) || k.seq >= state.seq {
			c.errorf("timer %+v: the cursor is at %+v, the next sequence number %d", k, state.cursor, state.seq)
		}
		waiting++
		bytes += uint64(len(r.Bytes))
	})
	if waiting != state.waiting || bytes != state.bytes {
		c.errorf("%d timers of %d bytes, counted %d of %d", waiting, bytes, state.waiting, state.bytes)
	}
}

// readGroupOffsets checks that no group is ahead of its queue, which these tests never make it.
func (c *checker) readGroupOffsets() {
	c.scan(kindGroupOffset, func(key, value []byte) {
		group, topic, queue, ok := splitGroupOffsetKey(key)
		if !ok || len(value) != 8 {
			c.errorf("group offset %x is malformed", key)
			return
		}
		if c.topics[topic] == nil {
			c.errorf("group %s has an offset in topic %d, which does not exist", group, topic)
			return
		}
		if offset := int64(be.Uint64(value)); group == "group" && c.queues[chunkQueue{topic, queue}] != nil &&
			offset > c.queues[chunkQueue{topic, queue}].next {
			c.errorf("group %s is at %d of queue %d of %s, beyond its end", group, offset, queue, c.topics[topic].Name())
		}
	})
}

// compareHeads checks what the store answers against what is stored.
func (c *checker) compareHeads() {
	before := c.s.LogEnd()
	still := len(c.maps) > 0 && before == c.maps[len(c.maps)-1].end
	for id, q := range c.queues {
		low, high, err := c.s.Bounds(c.topics[id.topic], id.queue)
		if err != nil {
			c.errorf("queue %v: %v", id, err)
		} else if low != q.min || high < q.next || still && c.s.LogEnd() == before && high != q.next {
			c.errorf("queue %v is [%d, %d), its chunks are [%d, %d)", id, low, high, q.min, q.next)
		}
	}
}
