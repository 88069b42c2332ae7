package storage

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// The records of these tests begin with the three numbers the store fills in.
const textHeader = 24

// textRecord makes a record with the given text.
func textRecord(t *Topic, queue int32, text string) Record {
	return Record{Topic: t, Queue: queue, TagHash: int64(len(text)), QueueOffsetAt: 0, PositionAt: 8, StoreTimeAt: 16,
		Bytes: append(make([]byte, textHeader), text...)}
}

// stored is a record as a reader sees it.
type stored struct {
	offset, position, storeTime int64
	text                        string
}

func parseText(b []byte) stored {
	return stored{int64(be.Uint64(b)), int64(be.Uint64(b[8:])), int64(be.Uint64(b[16:])), string(b[textHeader:])}
}

func openTest(t testing.TB, o Options) *Store {
	t.Helper()
	s, err := Open(o)
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return s
}

func openTopic(t testing.TB, s *Store, name string) *Topic {
	t.Helper()
	topic, err := s.OpenTopic(context.Background(), name)
	if err != nil {
		t.Fatalf("topic %s: %v", name, err)
	}
	return topic
}

// appendText appends one record and returns it as the store placed it.
func appendText(t testing.TB, s *Store, topic *Topic, queue int32, text string) Record {
	t.Helper()
	r := &Request{}
	*r.One() = textRecord(topic, queue, text)
	if err := s.Apply(context.Background(), r); err != nil {
		t.Fatalf("append %q: %v", text, err)
	}
	return r.Records[0]
}

// readTexts reads a queue from an offset to its end, record by record.
func readTexts(t testing.TB, s *Store, topic *Topic, queue int32, from int64) []stored {
	t.Helper()
	var all []stored
	for {
		res, err := s.Read(context.Background(), Read{Topic: topic, Queue: queue, Offset: from,
			Near: Limit{Count: 1}, Far: Limit{Count: 1}})
		if err != nil {
			t.Fatalf("read at %d: %v", from, err)
		}
		if res.Status != Found {
			if from != res.Max {
				t.Fatalf("read at %d ends with %v, next offset %d", from, res.Status, res.Max)
			}
			return all
		}
		all = append(all, parseText(res.Data))
		from = res.Next
	}
}

func TestAppendedRecordsAreReadBackWithTheirPlace(t *testing.T) {
	s := openTest(t, Options{})
	topic := openTopic(t, s, "orders")
	var position int64
	for i := range 10 {
		text := fmt.Sprint("text ", i)
		r := appendText(t, s, topic, int32(i%2), text)
		if r.Offset != int64(i/2) || r.Position != position || r.StoreTime == 0 {
			t.Fatalf("record %d got offset %d position %d time %d", i, r.Offset, r.Position, r.StoreTime)
		}
		got, err := s.RecordAt(r.Position)
		if err != nil {
			t.Fatal(err)
		}
		if want := (stored{r.Offset, r.Position, r.StoreTime, text}); parseText(got) != want {
			t.Fatalf("at position %d: %+v, want %+v", r.Position, parseText(got), want)
		}
		position += int64(len(got))
	}
	for queue := range int32(2) {
		all := readTexts(t, s, topic, queue, 0)
		if len(all) != 5 {
			t.Fatalf("queue %d has %d records", queue, len(all))
		}
		for i, r := range all {
			if want := fmt.Sprint("text ", 2*i+int(queue)); r.text != want || r.offset != int64(i) {
				t.Errorf("queue %d offset %d: %+v, want %q", queue, i, r, want)
			}
		}
	}
	if _, err := s.RecordAt(1); !errors.Is(err, ErrNotFound) {
		t.Errorf("between two records: %v", err)
	}
	if s.LogEnd() != position {
		t.Errorf("log ends at %d, want %d", s.LogEnd(), position)
	}
}

func TestReopenedStoreContinuesWhereItEnded(t *testing.T) {
	fs := vfs.NewMem()
	for _, flush := range []FlushMode{FlushSync, FlushAsync} {
		t.Run(flush.String(), func(t *testing.T) {
			o := Options{Dir: "data/" + flush.String(), FS: fs, Flush: flush, SegmentBytes: 256}
			var last Record
			for round := range 4 {
				s, err := Open(o)
				if err != nil {
					t.Fatal(err)
				}
				topic := openTopic(t, s, "orders")
				for i := range 5 {
					n := round*5 + i
					r := appendText(t, s, topic, 3, fmt.Sprint("text ", n))
					if r.Offset != int64(n) || r.Position < last.Position || n > 0 && r.Position == last.Position {
						t.Fatalf("record %d got offset %d position %d after %d", n, r.Offset, r.Position, last.Position)
					}
					last = r
				}
				for i, r := range readTexts(t, s, topic, 3, 0) {
					if r.text != fmt.Sprint("text ", i) {
						t.Fatalf("offset %d: %q", i, r.text)
					}
				}
				if err := s.Close(); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

func TestOpeningReadsNoQueueHeads(t *testing.T) {
	o := Options{Dir: "data", FS: vfs.NewMem()}
	s := openTest(t, o)
	topic := openTopic(t, s, "orders")
	for queue := range int32(50) {
		appendText(t, s, topic, queue, "text")
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = openTest(t, o)
	topic = openTopic(t, s, "orders")
	if used := topic.used(); len(used) != 0 {
		t.Fatalf("%d heads are loaded after opening", len(used))
	}
	if min, next, err := s.Bounds(topic, 7); err != nil || min != 0 || next != 1 {
		t.Fatalf("bounds %d %d %v", min, next, err)
	}
	if used := topic.used(); len(used) != 1 {
		t.Fatalf("%d heads are loaded after one look", len(used))
	}
}

func TestSecondOpenOfADirectoryIsRefused(t *testing.T) {
	for name, o := range map[string]Options{
		"disk":   {Dir: t.TempDir() + "/deep/data"},
		"memory": {Dir: "data", FS: vfs.NewMem()},
	} {
		t.Run(name, func(t *testing.T) {
			s := openTest(t, o)
			if other, err := Open(o); !errors.Is(err, ErrLocked) {
				t.Fatalf("second open: %v %v", other, err)
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			openTest(t, o)
		})
	}
}

func TestClosedStoreAnswersErrClosed(t *testing.T) {
	s := openTest(t, Options{})
	topic := openTopic(t, s, "orders")
	appendText(t, s, topic, 0, "text")
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatalf("second close: %v", err)
	}
	ctx := context.Background()
	_, readErr := s.Read(ctx, Read{Topic: topic})
	_, _, boundsErr := s.Bounds(topic, 0)
	_, _, metaErr := s.Meta("k", "v")
	_, recordErr := s.RecordAt(0)
	_, _, offsetErr := s.CommittedOffset("g", topic, 0)
	_, openErr := s.OpenTopic(ctx, "other")
	for what, err := range map[string]error{"read": readErr, "bounds": boundsErr, "meta": metaErr, "record": recordErr,
		"offset": offsetErr, "topic": openErr, "store": s.Err(), "reopen": s.Reopen(ctx)} {
		if !errors.Is(err, ErrClosed) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func TestStoreKeepsNoPartOfTheSendersBytes(t *testing.T) {
	s := openTest(t, Options{})
	topic := openTopic(t, s, "orders")
	r := &Request{}
	*r.One() = textRecord(topic, 0, "original")
	before := bytes.Clone(r.Records[0].Bytes)
	if err := s.Apply(context.Background(), r); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(before, r.Records[0].Bytes) {
		t.Errorf("the store wrote to the sender's bytes")
	}
	copy(r.Records[0].Bytes, bytes.Repeat([]byte{'x'}, 32))
	res, ok := s.ReadRecent(Read{Topic: topic})
	if !ok || parseText(res.Data).text != "original" {
		t.Fatalf("read %v %q", ok, res.Data)
	}
	copy(res.Data, bytes.Repeat([]byte{'y'}, 32))
	if again, err := s.Read(context.Background(), Read{Topic: topic}); err != nil || parseText(again.Data).text != "original" {
		t.Fatalf("read %q %v after the reader overwrote its copy", again.Data, err)
	}
}

func TestOptionsNameAllTheirFaults(t *testing.T) {
	_, err := Open(Options{WaitTime: -1, RingBytes: -1, Flush: 7, SegmentBytes: 3 << 30})
	if err == nil {
		t.Fatal("opened")
	}
	for _, name := range []string{"WaitTime", "RingBytes", "Flush", "SegmentBytes"} {
		if !bytes.Contains([]byte(err.Error()), []byte(name)) {
			t.Errorf("%q does not name %s", err, name)
		}
	}
}
