package storage

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

func TestMemoryStaysWithinItsBound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := Options{MemoryLimit: 1 << 20, SegmentBytes: 64 << 10}
		s := openTest(t, o)
		topic := openTopic(t, s, "orders")
		text := string(make([]byte, 1000))
		for i := range 4000 {
			appendText(t, s, topic, int32(i%2), text)
		}
		appendText(t, s, topic, 5, "early and alone")
		synctest.Wait()
		if n := s.LogEnd() - s.LogStart(); n > o.MemoryLimit || n < o.MemoryLimit-2*o.SegmentBytes {
			t.Errorf("the log holds %d bytes, the bound is %d", n, o.MemoryLimit)
		}
		for queue := range int32(2) {
			min, next, err := s.Bounds(topic, queue)
			if err != nil || next != 2000 || min < 1400 {
				t.Fatalf("queue %d: bounds %d %d %v", queue, min, next, err)
			}
			if got := readTexts(t, s, topic, queue, min); len(got) != int(next-min) {
				t.Errorf("queue %d: %d records are readable of %d", queue, len(got), next-min)
			}
			res, err := s.Read(context.Background(), Read{Topic: topic, Queue: queue})
			if err != nil || res.Status != BeforeStart || res.Next != min {
				t.Errorf("queue %d: reading from 0 gives %v, next %d, %v", queue, res.Status, res.Next, err)
			}
		}
	})
}

func TestUnboundedMemoryKeepsEverything(t *testing.T) {
	s := openTest(t, Options{MemoryLimit: -1, SegmentBytes: 4 << 10})
	topic := openTopic(t, s, "orders")
	for range 100 {
		appendText(t, s, topic, 0, string(make([]byte, 500)))
	}
	if min, next, err := s.Bounds(topic, 0); err != nil || min != 0 || next != 100 {
		t.Errorf("bounds %d %d %v", min, next, err)
	}
}

func TestOffsetsGoOnWhenNothingIsLeft(t *testing.T) {
	o := Options{Dir: "data", FS: vfs.NewMem(), SegmentBytes: 1 << 10}
	s := openTest(t, o)
	ctx := context.Background()
	topic := openTopic(t, s, "orders")
	for i := range 20 {
		appendText(t, s, topic, 0, fmt.Sprint("text ", i))
	}
	// Another queue takes the log on, so that all segments of this one can go.
	for range 5 {
		appendText(t, s, topic, 1, string(make([]byte, 900)))
	}
	if err := s.TrimTo(ctx, s.LogEnd()); err != nil {
		t.Fatal(err)
	}
	check := func(when string) {
		t.Helper()
		if min, next, err := s.Bounds(topic, 0); err != nil || min != 20 || next != 20 {
			t.Fatalf("%s: bounds %d %d %v", when, min, next, err)
		}
		res, err := s.Read(ctx, Read{Topic: topic, Offset: 20})
		if err != nil || res.Status != AtEnd {
			t.Fatalf("%s: %v %v", when, res.Status, err)
		}
		if at, err := s.EarliestStoreTime(topic, 0); err != nil || at != -1 {
			t.Fatalf("%s: earliest store time %d %v", when, at, err)
		}
		if offset, err := s.OffsetByTime(topic, 0, time.Now().UnixMilli()); err != nil || offset != 0 {
			t.Fatalf("%s: offset by time %d %v", when, offset, err)
		}
	}
	check("trimmed")
	for range 2 {
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		s = openTest(t, o)
		topic = openTopic(t, s, "orders")
		check("opened again")
	}
	if r := appendText(t, s, topic, 0, "more"); r.Offset != 20 || r.Position < 5*900 {
		t.Errorf("offset %d position %d", r.Offset, r.Position)
	}
	if got := readTexts(t, s, topic, 0, 20); len(got) != 1 || got[0].text != "more" {
		t.Errorf("read %v", got)
	}
}

func TestTrimGivesUpWholeSegmentsOnly(t *testing.T) {
	s := openTest(t, Options{MemoryLimit: -1, SegmentBytes: 1 << 10})
	topic := openTopic(t, s, "orders")
	for range 100 {
		appendText(t, s, topic, 0, string(make([]byte, 100-textHeader)))
	}
	segments, err := s.Segments()
	if err != nil || len(segments) != 10 {
		t.Fatalf("%d segments, %v", len(segments), err)
	}
	if err := s.TrimTo(context.Background(), segments[3].End-1); err != nil {
		t.Fatal(err)
	}
	after, err := s.Segments()
	if err != nil || len(after) != 7 || after[0] != segments[3] || s.LogStart() != 3<<10 {
		t.Fatalf("%v %v, log starts at %d", after, err, s.LogStart())
	}
	min, _, err := s.Bounds(topic, 0)
	if err != nil {
		t.Fatal(err)
	}
	first, err := s.RecordAt(segments[3].Start)
	if err != nil || parseText(first).offset != min {
		t.Errorf("the first record left has offset %d, minimum %d, %v", parseText(first).offset, min, err)
	}
	if at, err := s.EarliestLogTime(); err != nil || at != after[0].FirstStoreTime {
		t.Errorf("earliest time of the log %d %v", at, err)
	}
}

func TestTrimmedSpaceComesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := openTest(t, Options{Dir: "data", FS: vfs.NewMem(), SegmentBytes: 1 << 20})
		topic := openTopic(t, s, "orders")
		noise := make([]byte, 32<<10)
		for i := range 600 {
			for j := range noise {
				noise[j] = byte(i*j) ^ byte(j>>7)*31 ^ byte(i>>3)
			}
			appendText(t, s, topic, 0, string(noise))
		}
		before, err := s.FileBytes()
		if err != nil {
			t.Fatal(err)
		}
		if err := s.TrimTo(context.Background(), s.LogEnd()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		after, err := s.FileBytes()
		if err != nil || after > before/4 {
			t.Errorf("files take %d bytes, %d before trimming, %v", after, before, err)
		}
	})
}
