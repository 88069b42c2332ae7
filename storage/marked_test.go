package storage

import (
	"context"
	"fmt"
	"slices"
	"testing"
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
