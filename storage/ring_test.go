package storage

import (
	"bytes"
	"context"
	"fmt"
	"sync"
	"testing"
)

func TestKeepingUpNeedsNoDisk(t *testing.T) {
	s := openTest(t, Options{})
	topic := openTopic(t, s, "orders")
	for i := range 100 {
		r := appendText(t, s, topic, 0, fmt.Sprint("text ", i))
		res, ok := s.ReadRecent(Read{Topic: topic, Offset: r.Offset})
		if !ok || res.Status != Found || parseText(res.Data).text != fmt.Sprint("text ", i) || res.FirstPosition != r.Position {
			t.Fatalf("offset %d: %v %+v", r.Offset, ok, res)
		}
		if res, ok = s.ReadRecent(Read{Topic: topic, Offset: res.Next}); !ok || res.Status != AtEnd {
			t.Fatalf("at the end: %v %+v", ok, res)
		}
	}
	res, ok := s.ReadRecent(Read{Topic: topic, Near: Limit{Count: 32}})
	if !ok || res.Count != 32 {
		t.Errorf("small chunks together: %v, %d records", ok, res.Count)
	}
}

func TestRingGivesUpTheOldestAndTheDiskAnswers(t *testing.T) {
	s := openTest(t, Options{RingBytes: 64 << 10})
	topic := openTopic(t, s, "orders")
	text := string(make([]byte, 1000))
	for i := range 200 {
		appendText(t, s, topic, int32(i%2), text)
	}
	if s.ring.bytes > 64<<10 {
		t.Errorf("the ring holds %d bytes", s.ring.bytes)
	}
	if _, ok := s.ReadRecent(Read{Topic: topic}); ok {
		t.Error("the first record is still in the ring")
	}
	if res, ok := s.ReadRecent(Read{Topic: topic, Offset: 99}); !ok || res.Count != 1 {
		t.Errorf("the last record: %v %+v", ok, res)
	}
	for queue := range int32(2) {
		if got := readTexts(t, s, topic, queue, 0); len(got) != 100 {
			t.Errorf("queue %d: %d records", queue, len(got))
		}
	}
}

// A request beyond half a memtable is kept by Pebble itself, which takes the
// batch's memory away from it.
func TestLargeRequestsAreReadBack(t *testing.T) {
	for _, size := range []int{100 << 10, 17 << 20, 20 << 20} {
		s := openTest(t, Options{RingBytes: 1 << 30})
		topic := openTopic(t, s, "orders")
		body := bytes.Repeat([]byte("0123456789abcdef"), size/16)
		appendText(t, s, topic, 0, string(body))
		appendText(t, s, topic, 0, "small")
		res, ok := s.ReadRecent(Read{Topic: topic})
		if !ok || res.Count != 2 || !bytes.Equal(res.Data[textHeader:textHeader+len(body)], body) {
			t.Errorf("%d bytes from the ring: %v, %d records", size, ok, res.Count)
		}
		at, err := s.RecordAt(0)
		if err != nil || !bytes.Equal(at[textHeader:], body) {
			t.Errorf("%d bytes from the disk: %v", size, err)
		}
	}
}

func TestEveryGrowthIsToldAfterItIsReadable(t *testing.T) {
	var s *Store
	var mu sync.Mutex
	seen := map[int32]int64{}
	all := make(chan struct{})
	var once sync.Once
	grown := func(list []Growth) {
		mu.Lock()
		defer mu.Unlock()
		done := 0
		for _, g := range list {
			if _, next, err := s.Bounds(g.Topic, g.Queue); err != nil || next < g.Next {
				t.Errorf("queue %d is told to reach %d, readable to %d %v", g.Queue, g.Next, next, err)
			}
			seen[g.Queue] = g.Next
		}
		for _, next := range seen {
			if next == 500 {
				done++
			}
		}
		if done == 4 {
			once.Do(func() { close(all) })
		}
	}
	s = openTest(t, Options{Grown: grown})
	topic := openTopic(t, s, "orders")
	for i := range 2000 {
		submitTo(s, topic, int32(i%4))
	}
	<-all
	if err := s.Apply(context.Background(), &Request{}); err != nil {
		t.Fatal(err)
	}
}

func submitTo(s *Store, topic *Topic, queue int32) {
	r := &Request{}
	*r.One() = textRecord(topic, queue, "text")
	s.Submit(r)
}

func TestWindowOfBytesAndCountsFollowsTheDistanceFromTheEnd(t *testing.T) {
	s := openTest(t, Options{RingBytes: 1})
	topic := openTopic(t, s, "orders")
	for range 100 {
		appendText(t, s, topic, 0, string(make([]byte, 100-textHeader)))
	}
	q := Read{Topic: topic, Near: Limit{Count: 32, Bytes: 2000}, Far: Limit{Count: 8, Bytes: 500}, FarBytes: 5000}
	for _, c := range []struct {
		offset int64
		change func(*Read)
		count  int
	}{
		{0, func(*Read) {}, 5},
		{0, func(r *Read) { r.Far.Bytes = 0 }, 8},
		{60, func(*Read) {}, 20},
		{60, func(r *Read) { r.Near.Bytes = 0 }, 32},
		{0, func(r *Read) { r.Far.Bytes = 1 }, 1},
		{0, func(r *Read) { r.FarBytes = 0 }, 20},
		{0, func(r *Read) { r.Far, r.Near, r.MaxScan = Limit{}, Limit{}, 7 }, 7},
		// Beyond the 50 records that are far, the bounds for near ones hold.
		{45, func(r *Read) { r.Far.Bytes = 600 }, 20},
	} {
		r := q
		r.Offset = c.offset
		c.change(&r)
		res, err := s.Read(context.Background(), r)
		if err != nil || res.Count != c.count || len(res.Data) != 100*c.count || res.Next != c.offset+int64(c.count) {
			t.Errorf("%+v: %d records, next %d, %v; want %d", r, res.Count, res.Next, err, c.count)
		}
	}
}

// Messages that came one by one lie in chunks of one record each; a pull still
// gets as many as its bounds allow.
func TestSmallChunksDoNotMakeSmallAnswers(t *testing.T) {
	s := mustOpen(t, Options{})
	defer mustClose(t, s)
	topic := mustTopic(t, s, "orders")
	for i := range 40 {
		mustApply(t, s, &Request{Records: []Record{bodyRecord(topic, 0, fmt.Sprint(i))}})
	}
	res, ok := s.ReadRecent(Read{Topic: topic, Near: Limit{Count: 32}})
	if !ok || res.Count != 32 || res.Next != 32 || res.Max != 40 {
		t.Errorf("got %d records up to %d of %d, from memory %v; want 32", res.Count, res.Next, res.Max, ok)
	}
}
