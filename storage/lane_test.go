package storage

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// outcomes collects completions in the order in which they come.
type outcomes struct {
	mu   sync.Mutex
	list []*Request
	errs []error
	all  chan struct{} // closed at the wanted-th
	want int
}

func newOutcomes(want int) *outcomes { return &outcomes{all: make(chan struct{}), want: want} }

func (o *outcomes) Completed(r *Request, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.list = append(o.list, r)
	o.errs = append(o.errs, err)
	if len(o.list) == o.want {
		close(o.all)
	}
}

func (o *outcomes) count(target error) int {
	o.mu.Lock()
	defer o.mu.Unlock()
	n := 0
	for _, err := range o.errs {
		if errors.Is(err, target) {
			n++
		}
	}
	return n
}

func TestRequestsOfOneSubmitterKeepTheirOrder(t *testing.T) {
	s := openTest(t, Options{WaitRequests: 1 << 20, WaitTime: time.Minute})
	topic := openTopic(t, s, "orders")
	const submitters, each = 8, 2000
	done := newOutcomes(submitters * each)
	var wg sync.WaitGroup
	for n := range submitters {
		wg.Go(func() {
			for i := range each {
				r := &Request{Completion: done}
				*r.One() = textRecord(topic, int32(i%3), fmt.Sprintf("%d %d", n, i))
				s.Submit(r)
			}
		})
	}
	wg.Wait()
	<-done.all
	for _, err := range done.errs {
		if err != nil {
			t.Fatal(err)
		}
	}
	total := 0
	for queue := range int32(3) {
		last := map[int]int{}
		offset := int64(0)
		for {
			res, err := s.Read(context.Background(), Read{Topic: topic, Queue: queue, Offset: offset, Near: Limit{Count: 1}})
			if err != nil {
				t.Fatal(err)
			}
			if res.Status != Found {
				break
			}
			var n, i int
			if _, err := fmt.Sscanf(parseText(res.Data).text, "%d %d", &n, &i); err != nil {
				t.Fatal(err)
			}
			if before, ok := last[n]; ok && i <= before {
				t.Fatalf("queue %d offset %d: submitter %d's record %d after %d", queue, offset, n, i, before)
			}
			last[n] = i
			total++
			offset = res.Next
		}
	}
	if total != submitters*each {
		t.Errorf("%d records are readable of %d", total, submitters*each)
	}
}

func TestRequestStaysWholeInOneGroup(t *testing.T) {
	s := openTest(t, Options{})
	topic := openTopic(t, s, "orders")
	before := s.counts.groups.Load()
	r := &Request{Records: make([]Record, groupRecords+100)}
	for i := range r.Records {
		r.Records[i] = textRecord(topic, int32(i%5), "text")
	}
	if err := s.Apply(context.Background(), r); err != nil {
		t.Fatal(err)
	}
	if n := s.counts.groups.Load() - before; n != 1 {
		t.Errorf("the request took %d groups", n)
	}
	for i := range r.Records {
		if want := int64(i / 5); r.Records[i].Offset != want {
			t.Fatalf("record %d has offset %d, want %d", i, r.Records[i].Offset, want)
		}
	}
}

func TestGroupsAreBounded(t *testing.T) {
	in := newIntake(Options{WaitBytes: 1 << 30, WaitRequests: 1 << 20})
	in.open()
	topic := &Topic{name: "orders"}
	put := func(records, bytes int) {
		r := &Request{}
		for range records {
			r.Records = append(r.Records, Record{Topic: topic, Bytes: make([]byte, bytes)})
		}
		if err := in.put(r); err != nil {
			t.Fatal(err)
		}
	}
	for range 10 {
		put(1000, 16)
	}
	for range 5 {
		put(1, 3<<20)
	}
	put(1, 9<<20)
	put(1, 1)
	var sizes []int
	for {
		requests, _ := in.take(nil)
		if len(requests) == 0 {
			break
		}
		sizes = append(sizes, len(requests))
	}
	// Four thousand records, again, two thousand with the first 3 MiB; each
	// further 3 MiB alone; 9 MiB alone; the last.
	if want := "[4 4 3 1 1 1 1 1 1]"; fmt.Sprint(sizes) != want {
		t.Errorf("groups have %v requests, want %s", sizes, want)
	}
}

func TestInvalidRequestsHaveNoEffect(t *testing.T) {
	s := openTest(t, Options{})
	topic := openTopic(t, s, "orders")
	good := textRecord(topic, 0, "text")
	with := func(change func(*Record)) Record {
		r := good
		change(&r)
		return r
	}
	for name, c := range map[string]struct {
		record Record
		want   error
	}{
		"no topic":        {with(func(r *Record) { r.Topic = nil }), ErrInvalid},
		"negative queue":  {with(func(r *Record) { r.Queue = -1 }), ErrInvalid},
		"huge queue":      {with(func(r *Record) { r.Queue = MaxQueue + 1 }), ErrTooLarge},
		"no bytes":        {with(func(r *Record) { r.Bytes = nil }), ErrInvalid},
		"place outside":   {with(func(r *Record) { r.StoreTimeAt = int32(len(r.Bytes)) - 7 }), ErrInvalid},
		"too many bytes":  {with(func(r *Record) { r.Bytes = make([]byte, MaxRequestBytes+1) }), ErrTooLarge},
		"last place fits": {with(func(r *Record) { r.StoreTimeAt = int32(len(r.Bytes)) - 8 }), nil},
	} {
		t.Run(name, func(t *testing.T) {
			before := s.LogEnd()
			err := s.Apply(context.Background(), &Request{Records: []Record{good, c.record}})
			if !errors.Is(err, c.want) {
				t.Fatalf("got %v, want %v", err, c.want)
			}
			if err != nil && s.LogEnd() != before {
				t.Errorf("the log grew by %d bytes", s.LogEnd()-before)
			}
		})
	}
}

func TestConditionsSeeEarlierRequests(t *testing.T) {
	s := openTest(t, Options{})
	ctx := context.Background()
	const n = 50
	done := newOutcomes(n)
	absent := &Condition{Kind: "half", Key: "x", Holds: func(_ []byte, found bool) bool { return !found }}
	for i := range n {
		s.Submit(&Request{If: absent, Changes: []Change{PutMeta("half", "x", []byte{byte(i)})}, Completion: done})
	}
	<-done.all
	if failed := done.count(ErrConditionFailed); failed != n-1 {
		t.Fatalf("%d of %d failed", failed, n)
	}
	if value, found, err := s.Meta("half", "x"); err != nil || !found || value[0] != 0 {
		t.Fatalf("meta %v %v %v", value, found, err)
	}
	if err := s.Apply(ctx, &Request{Changes: []Change{DeleteMeta("half", "x")}}); err != nil {
		t.Fatal(err)
	}
	if _, found, err := s.Meta("half", "x"); err != nil || found {
		t.Fatalf("meta found %v %v", found, err)
	}
}

func TestMetadataIsScannedByKind(t *testing.T) {
	s := openTest(t, Options{})
	err := s.Apply(context.Background(), &Request{Changes: []Change{
		PutMeta("a", "2", []byte("two")), PutMeta("a", "1", []byte("one")), PutMeta("ab", "1", []byte("other")),
		PutMeta("a", "3", nil), DeleteMeta("a", "3")}})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	err = s.ScanMeta("a", func(key string, value []byte) error {
		got = append(got, key+"="+string(value))
		return nil
	})
	if err != nil || fmt.Sprint(got) != "[1=one 2=two]" {
		t.Errorf("scan %v %v", got, err)
	}
	stop := errors.New("stop")
	if err := s.ScanMeta("a", func(string, []byte) error { return stop }); !errors.Is(err, stop) {
		t.Errorf("scan ends with %v", err)
	}
}

func TestStoreTimeNeverGoesBack(t *testing.T) {
	fs := vfs.NewMem()
	o := Options{Dir: "data", FS: fs}
	var first int64
	// A bubble's clock starts in the year 2000, which is what a clock set back
	// looks like to a store written now.
	s := openTest(t, o)
	first = appendText(t, s, openTopic(t, s, "orders"), 0, "now").StoreTime
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		if now := time.Now().UnixMilli(); now >= first {
			t.Fatalf("the bubble's clock is at %d, after %d", now, first)
		}
		s, err := Open(o)
		if err != nil {
			t.Fatal(err)
		}
		topic := openTopic(t, s, "orders")
		r := appendText(t, s, topic, 0, "then")
		if r.StoreTime < first || r.Offset != 1 {
			t.Errorf("offset %d stored at %d, the one before at %d", r.Offset, r.StoreTime, first)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	})
}
