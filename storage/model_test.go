package storage

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sort"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"pgregory.net/rapid"
)

// model is what a store should hold, in slices and maps.
type model struct {
	topics  map[string]*modelTopic
	offsets map[string]int64 // group, topic, queue
	meta    map[string]string
	end     int64 // of the log
	last    int64 // store time
}

type modelTopic struct {
	handle *Topic
	queues map[int32][]stored
}

// modelRun is a store and the model it is held against.
type modelRun struct {
	t     *rapid.T
	store *Store
	o     Options
	m     model
}

var modelNames = []string{"a", "b", "c"}

// TestStoreAgreesWithAModel runs random operations on a store with tiny
// segments and a ring that holds next to nothing, and on the model.
func TestStoreAgreesWithAModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		o := Options{Dir: "data", FS: vfs.NewMem(), SegmentBytes: 512,
			RingBytes: rapid.SampledFrom([]int64{1, 4096, 1 << 20}).Draw(t, "ring")}
		if rapid.Bool().Draw(t, "async") {
			o.Flush = FlushAsync
		}
		r := &modelRun{t: t, o: o, m: model{map[string]*modelTopic{}, map[string]int64{}, map[string]string{}, 0, 0}}
		r.open()
		defer func() {
			if err := r.store.Close(); err != nil {
				t.Fatalf("close: %v", err)
			}
		}()
		t.Repeat(map[string]func(*rapid.T){
			"append":      r.append,
			"read":        r.read,
			"byTime":      r.byTime,
			"byPosition":  r.byPosition,
			"commit":      r.commit,
			"meta":        r.meta,
			"deleteTopic": r.deleteTopic,
			"deleteGroup": r.deleteGroup,
			"trim":        r.trim,
			"reopen":      r.reopen,
			"":            r.check,
		})
	})
}

func (r *modelRun) open() {
	s, err := Open(r.o)
	if err != nil {
		r.t.Fatalf("open: %v", err)
	}
	r.store = s
	for name, mt := range r.m.topics {
		handle, ok := s.Topic(name)
		if !ok {
			r.t.Fatalf("topic %s is gone", name)
		}
		mt.handle = handle
	}
}

func (r *modelRun) reopen(t *rapid.T) {
	if rapid.Bool().Draw(t, "in place") {
		if err := r.store.Reopen(context.Background()); err != nil {
			t.Fatalf("reopen: %v", err)
		}
		return
	}
	if err := r.store.Close(); err != nil {
		t.Fatalf("close: %v", err)
	}
	r.open()
}

// topic draws a topic, made when it is missing.
func (r *modelRun) topic(t *rapid.T) *modelTopic {
	name := rapid.SampledFrom(modelNames).Draw(t, "topic")
	mt := r.m.topics[name]
	if mt == nil {
		handle, err := r.store.OpenTopic(context.Background(), name)
		if err != nil {
			t.Fatalf("topic %s: %v", name, err)
		}
		mt = &modelTopic{handle, map[int32][]stored{}}
		r.m.topics[name] = mt
	}
	return mt
}

func drawQueue(t *rapid.T) int32 { return rapid.Int32Range(0, 3).Draw(t, "queue") }

func (r *modelRun) append(t *rapid.T) {
	req := &Request{}
	var topics []*modelTopic
	for range rapid.IntRange(1, 20).Draw(t, "records") {
		mt := r.topic(t)
		topics = append(topics, mt)
		text := fmt.Sprint("record ", r.m.end, " ", len(topics), string(make([]byte, rapid.IntRange(0, 200).Draw(t, "size"))))
		req.Records = append(req.Records, textRecord(mt.handle, drawQueue(t), text))
	}
	if err := r.store.Apply(context.Background(), req); err != nil {
		t.Fatalf("append: %v", err)
	}
	// Positions follow each other without a hole, queue by queue.
	byPosition := slices.Clone(req.Records)
	sort.Slice(byPosition, func(i, j int) bool { return byPosition[i].Position < byPosition[j].Position })
	for _, rec := range byPosition {
		if rec.Position != r.m.end {
			t.Fatalf("a record has position %d, the log ends at %d", rec.Position, r.m.end)
		}
		r.m.end += int64(len(rec.Bytes))
	}
	for i, rec := range req.Records {
		queue := topics[i].queues[rec.Queue]
		if rec.Offset != int64(len(queue)) || rec.StoreTime < r.m.last {
			t.Fatalf("record %d got offset %d, time %d; want offset %d", i, rec.Offset, rec.StoreTime, len(queue))
		}
		topics[i].queues[rec.Queue] = append(queue, stored{rec.Offset, rec.Position, rec.StoreTime, string(rec.Bytes[textHeader:])})
	}
	r.m.last = req.Records[0].StoreTime
}

func (r *modelRun) read(t *rapid.T) {
	mt, queue := r.topic(t), drawQueue(t)
	want := mt.queues[queue]
	min, next, err := r.store.Bounds(mt.handle, queue)
	if err != nil || next != int64(len(want)) {
		t.Fatalf("bounds %d %d %v, want next %d", min, next, err, len(want))
	}
	offset := rapid.Int64Range(0, next+1).Draw(t, "offset")
	limit := Limit{Count: rapid.IntRange(0, 5).Draw(t, "count"), Bytes: rapid.IntRange(0, 500).Draw(t, "bytes")}
	odd := rapid.Bool().Draw(t, "odd")
	q := Read{Topic: mt.handle, Queue: queue, Offset: offset, Near: limit, Far: limit, MaxScan: 10}
	if odd {
		q.Match = func(tag int64, record []byte) bool {
			return tag == int64(len(record)-textHeader) && parseText(record).offset%2 == 1
		}
	}
	got, err := r.store.Read(context.Background(), q)
	if err != nil {
		t.Fatalf("read: %v", err)
	}
	r.compareRead(t, q, got, min, want, odd)
}

// compareRead reads the model by the rules and compares.
func (r *modelRun) compareRead(t *rapid.T, q Read, got ReadResult, min int64, want []stored, odd bool) {
	next := int64(len(want))
	expect := ReadResult{Status: NoMatch, Next: q.Offset, Min: min, Max: next}
	switch {
	case next == 0:
		expect.Status, expect.Next = Empty, 0
	case q.Offset < min:
		expect.Status, expect.Next = BeforeStart, min
	case q.Offset == next:
		expect.Status = AtEnd
	case q.Offset > next:
		expect.Status, expect.Next = PastEnd, next
	default:
		var texts []string
		bytes := 0
		for expect.Next < next && expect.Next < q.Offset+int64(q.MaxScan) {
			rec := want[expect.Next]
			size := textHeader + len(rec.text)
			if len(texts) > 0 && (q.Near.Count > 0 && len(texts) >= q.Near.Count || q.Near.Bytes > 0 && bytes+size > q.Near.Bytes) {
				break
			}
			expect.Next++
			if odd && rec.offset%2 == 0 {
				continue
			}
			if len(texts) == 0 {
				expect.FirstPosition = rec.position
			}
			texts = append(texts, rec.text)
			bytes += size
			expect.Status = Found
		}
		expect.Count = len(texts)
		if len(got.Data) != bytes {
			t.Fatalf("read %d bytes, want %d", len(got.Data), bytes)
		}
		at := 0
		for _, text := range texts {
			if s := string(got.Data[at+textHeader : at+textHeader+len(text)]); s != text {
				t.Fatalf("read %q, want %q", s, text)
			}
			at += textHeader + len(text)
		}
	}
	got.Data = nil
	if fmt.Sprint(got) != fmt.Sprint(expect) {
		t.Fatalf("read at %d: %+v, want %+v", q.Offset, got, expect)
	}
}

func (r *modelRun) byTime(t *rapid.T) {
	mt, queue := r.topic(t), drawQueue(t)
	min, next, err := r.store.Bounds(mt.handle, queue)
	if err != nil {
		t.Fatal(err)
	}
	list := mt.queues[queue][min:next]
	ms := r.m.last - rapid.Int64Range(-3, 30).Draw(t, "ago")
	want := int64(0)
	best := int64(1 << 62)
	for _, rec := range list {
		distance := max(rec.storeTime-ms, ms-rec.storeTime)
		switch {
		case rec.storeTime == ms && best > 0, distance < best:
			want, best = rec.offset, distance
		case distance == best && rec.storeTime < ms:
			want = rec.offset // the last of those before
		}
	}
	got, err := r.store.OffsetByTime(mt.handle, queue, ms)
	if err != nil || got != want {
		t.Fatalf("offset at %d is %d %v, want %d", ms, got, err, want)
	}
}

func (r *modelRun) byPosition(t *rapid.T) {
	mt, queue := r.topic(t), drawQueue(t)
	list := mt.queues[queue]
	if len(list) == 0 {
		t.Skip("no records")
	}
	rec := rapid.SampledFrom(list).Draw(t, "record")
	min, _, err := r.store.Bounds(mt.handle, queue)
	if err != nil {
		t.Fatal(err)
	}
	got, err := r.store.RecordAt(rec.position)
	switch {
	case rec.offset < min:
		if !errors.Is(err, ErrNotFound) {
			t.Fatalf("trimmed position %d: %v", rec.position, err)
		}
	case err != nil || parseText(got) != rec:
		t.Fatalf("position %d: %q %v", rec.position, got, err)
	}
	if _, err := r.store.RecordAt(rec.position + 1); !errors.Is(err, ErrNotFound) {
		t.Fatalf("inside a record: %v", err)
	}
}

func (r *modelRun) commit(t *rapid.T) {
	mt, queue := r.topic(t), drawQueue(t)
	group := rapid.SampledFrom(modelNames).Draw(t, "group")
	offset := rapid.Int64Range(0, 100).Draw(t, "offset")
	r.store.CommitOffset(group, mt.handle, queue, offset)
	r.m.offsets[fmt.Sprint(group, " ", mt.handle.Name(), " ", queue)] = offset
}

func (r *modelRun) meta(t *rapid.T) {
	kind, key := rapid.SampledFrom(modelNames).Draw(t, "kind"), rapid.SampledFrom(modelNames).Draw(t, "key")
	if rapid.Bool().Draw(t, "delete") {
		delete(r.m.meta, kind+" "+key)
		r.apply(t, &Request{Changes: []Change{DeleteMeta(kind, key)}})
		return
	}
	value := rapid.String().Draw(t, "value")
	r.m.meta[kind+" "+key] = value
	r.apply(t, &Request{Changes: []Change{PutMeta(kind, key, []byte(value))}})
}

func (r *modelRun) apply(t *rapid.T, req *Request) {
	if err := r.store.Apply(context.Background(), req); err != nil {
		t.Fatalf("apply: %v", err)
	}
}

func (r *modelRun) deleteTopic(t *rapid.T) {
	mt := r.topic(t)
	name := mt.handle.Name()
	if err := r.store.DeleteTopic(context.Background(), name); err != nil {
		t.Fatalf("delete: %v", err)
	}
	delete(r.m.topics, name)
	for _, group := range modelNames {
		for queue := range 4 {
			delete(r.m.offsets, fmt.Sprint(group, " ", name, " ", queue))
		}
	}
	if _, err := r.store.Read(context.Background(), Read{Topic: mt.handle}); !errors.Is(err, ErrTopicDeleted) {
		t.Fatalf("reading a deleted topic: %v", err)
	}
	req := &Request{}
	*req.One() = textRecord(mt.handle, 0, "late")
	if err := r.store.Apply(context.Background(), req); !errors.Is(err, ErrTopicDeleted) {
		t.Fatalf("appending to a deleted topic: %v", err)
	}
}

func (r *modelRun) deleteGroup(t *rapid.T) {
	group := rapid.SampledFrom(modelNames).Draw(t, "group")
	if err := r.store.DeleteGroup(context.Background(), group); err != nil {
		t.Fatalf("delete group: %v", err)
	}
	for key := range r.m.offsets {
		if key[:1] == group {
			delete(r.m.offsets, key)
		}
	}
}

func (r *modelRun) trim(t *rapid.T) {
	position := rapid.Int64Range(0, r.m.end).Draw(t, "position")
	if err := r.store.TrimTo(context.Background(), position); err != nil {
		t.Fatalf("trim: %v", err)
	}
}

// check compares what is cheap to compare after every step.
func (r *modelRun) check(t *rapid.T) {
	s := r.store
	if s.LogEnd() != r.m.end {
		t.Fatalf("the log ends at %d, want %d", s.LogEnd(), r.m.end)
	}
	for name, mt := range r.m.topics {
		for queue, list := range mt.queues {
			min, next, err := s.Bounds(mt.handle, queue)
			if err != nil || next != int64(len(list)) {
				t.Fatalf("%s %d: bounds %d %d %v, want next %d", name, queue, min, next, err, len(list))
			}
			// The minimum is the first record whose chunk begins in a segment
			// that is there.
			if min < next && list[min].position < s.LogStart() || min > 0 && list[min-1].position >= s.LogStart()+512 {
				t.Fatalf("%s %d: minimum %d does not fit the log's start %d", name, queue, min, s.LogStart())
			}
		}
	}
	for _, group := range modelNames {
		for _, mt := range r.m.topics {
			for queue := range int32(4) {
				want, wanted := r.m.offsets[fmt.Sprint(group, " ", mt.handle.Name(), " ", queue)]
				got, found, err := s.CommittedOffset(group, mt.handle, queue)
				if err != nil || found != wanted || got != want {
					t.Fatalf("offset of %s is %d %v %v, want %d %v", group, got, found, err, want, wanted)
				}
			}
		}
	}
	for _, kind := range modelNames {
		for _, key := range modelNames {
			want, wanted := r.m.meta[kind+" "+key]
			got, found, err := s.Meta(kind, key)
			if err != nil || found != wanted || string(got) != want {
				t.Fatalf("meta %s %s is %q %v %v, want %q %v", kind, key, got, found, err, want, wanted)
			}
		}
	}
}
