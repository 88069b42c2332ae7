package storage

import (
	"context"
	"encoding/binary"
)

// tester is what testing.TB and rapid.T share, as far as the helpers need it.
type tester interface {
	Helper()
	Context() context.Context
	Fatal(...any)
	Fatalf(string, ...any)
}

// A test record is its length, the three numbers the store fills in, and a body.
const bodyHeader = 4 + 3*8

// bodyRecord makes a record whose stored form tells where and when it was stored.
func bodyRecord(topic *Topic, queue int32, body string, keys ...string) Record {
	b := make([]byte, bodyHeader, bodyHeader+len(body))
	binary.BigEndian.PutUint32(b, uint32(bodyHeader+len(body)))
	r := Record{Topic: topic, Queue: queue, Bytes: append(b, body...), QueueOffsetAt: 4, PositionAt: 12, StoreTimeAt: 20}
	for _, k := range keys {
		r.Keys = append(r.Keys, KeyHash(topic.Name(), k))
	}
	return r
}

// bodyStored is a test record as it was read back.
type bodyStored struct {
	offset, position, time int64
	body                   string
}

func parseBody(t tester, data []byte) bodyStored {
	t.Helper()
	if len(data) < bodyHeader || int(binary.BigEndian.Uint32(data)) != len(data) {
		t.Fatalf("record of %d bytes is no test record", len(data))
	}
	n := func(at int) int64 { return int64(binary.BigEndian.Uint64(data[at:])) }
	return bodyStored{n(4), n(12), n(20), string(data[bodyHeader:])}
}

// readQueue reads everything in a queue and checks that offsets are without gap and positions readable.
func readQueue(t tester, s *Store, topic *Topic, queue int32) []bodyStored {
	t.Helper()
	first, next, err := s.Bounds(topic, queue)
	if err != nil {
		t.Fatal(err)
	}
	var all []bodyStored
	for at := first; at < next; {
		res, err := s.Read(t.Context(), Read{Topic: topic, Queue: queue, Offset: at,
			Near: Limit{Count: 1 << 20, Bytes: 64 << 20}, Far: Limit{Count: 1 << 20, Bytes: 64 << 20}})
		if err != nil {
			t.Fatal(err)
		}
		if res.Status != Found {
			t.Fatalf("read at %d of [%d, %d): status %v", at, first, next, res.Status)
		}
		for data := res.Data; len(data) > 0; {
			n := binary.BigEndian.Uint32(data)
			r := parseBody(t, data[:n])
			if r.offset != at {
				t.Fatalf("record at offset %d says it is at %d", at, r.offset)
			}
			all = append(all, r)
			data = data[n:]
			at++
		}
	}
	return all
}

func bodies(records []bodyStored) []string {
	var b []string
	for _, r := range records {
		b = append(b, r.body)
	}
	return b
}

func mustOpen(t tester, o Options) *Store {
	t.Helper()
	s, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func mustClose(t tester, s *Store) {
	t.Helper()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

func mustTopic(t tester, s *Store, name string) *Topic {
	t.Helper()
	topic, err := s.OpenTopic(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	return topic
}

func mustApply(t tester, s *Store, r *Request) {
	t.Helper()
	if err := s.Apply(t.Context(), r); err != nil {
		t.Fatal(err)
	}
}
