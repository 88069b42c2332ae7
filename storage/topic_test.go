package storage

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

func TestTopicMadeAgainStartsAnew(t *testing.T) {
	o := Options{Dir: "data", FS: vfs.NewMem(), SegmentBytes: 512}
	s := openTest(t, o)
	ctx := context.Background()
	old := openTopic(t, s, "orders")
	other := openTopic(t, s, "others")
	for range 20 {
		appendText(t, s, old, 0, "old record of some length")
		appendText(t, s, other, 0, "other")
	}
	at := appendText(t, s, old, 1, "by position").Position
	s.CommitOffset("g", old, 0, 7)
	s.CommitOffset("g", other, 0, 8)
	if err := s.DeleteTopic(ctx, "orders"); err != nil {
		t.Fatal(err)
	}
	if err := s.DeleteTopic(ctx, "orders"); !errors.Is(err, ErrNotFound) {
		t.Errorf("deleting again: %v", err)
	}
	if _, err := s.RecordAt(at); !errors.Is(err, ErrNotFound) {
		t.Errorf("a deleted record by position: %v", err)
	}
	for range 2 {
		topic := openTopic(t, s, "orders")
		if topic == old || topic.id == old.id {
			t.Fatal("the new topic is the old one")
		}
		if min, next, err := s.Bounds(topic, 0); err != nil || min != 0 || next != 0 {
			t.Fatalf("bounds %d %d %v", min, next, err)
		}
		if offset, found, err := s.CommittedOffset("g", topic, 0); err != nil || found {
			t.Fatalf("committed offset %d %v %v", offset, found, err)
		}
		all, err := s.GroupOffsets("g")
		if err != nil || len(all) != 1 || all[0].Topic.Name() != "others" || all[0].Offset != 8 {
			t.Fatalf("offsets of the group %v %v", all, err)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		s = openTest(t, o)
	}
	if r := appendText(t, s, openTopic(t, s, "orders"), 0, "new"); r.Offset != 0 {
		t.Errorf("first offset %d", r.Offset)
	}
	others, ok := s.Topic("others")
	if !ok {
		t.Fatal("the other topic is gone")
	}
	if got := readTexts(t, s, others, 0, 0); len(got) != 20 {
		t.Errorf("%d records of the other topic are left", len(got))
	}
}

func TestDeletedTopicTakesNothingOfARequest(t *testing.T) {
	s := openTest(t, Options{})
	ctx := context.Background()
	gone, stays := openTopic(t, s, "gone"), openTopic(t, s, "stays")
	if err := s.DeleteTopic(ctx, "gone"); err != nil {
		t.Fatal(err)
	}
	r := &Request{Records: []Record{textRecord(stays, 0, "a"), textRecord(gone, 0, "b")},
		Changes: []Change{PutMeta("k", "v", nil)}}
	if err := s.Apply(ctx, r); !errors.Is(err, ErrTopicDeleted) {
		t.Fatalf("got %v", err)
	}
	if _, next, err := s.Bounds(stays, 0); err != nil || next != 0 {
		t.Errorf("next offset %d %v", next, err)
	}
	if _, found, err := s.Meta("k", "v"); err != nil || found {
		t.Errorf("meta found %v %v", found, err)
	}
}

func TestTopicIsDeletedWhileItIsWrittenAndRead(t *testing.T) {
	s := openTest(t, Options{WaitRequests: 1 << 20, RingBytes: 1})
	ctx := context.Background()
	const rounds = 30
	var wg sync.WaitGroup
	stop := make(chan struct{})
	for n := range 4 {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				topic, err := s.OpenTopic(ctx, "orders")
				if err != nil {
					t.Errorf("open: %v", err)
					return
				}
				r := &Request{}
				*r.One() = textRecord(topic, int32(n), "text")
				if err := s.Apply(ctx, r); err != nil && !errors.Is(err, ErrTopicDeleted) {
					t.Errorf("append: %v", err)
				}
				s.CommitOffset("g", topic, int32(n), r.Records[0].Offset)
				_, err = s.Read(ctx, Read{Topic: topic, Queue: int32(n), Offset: r.Records[0].Offset})
				if err != nil && !errors.Is(err, ErrTopicDeleted) {
					t.Errorf("read: %v", err)
				}
			}
		})
	}
	for range rounds {
		if err := s.DeleteTopic(ctx, "orders"); err != nil && !errors.Is(err, ErrNotFound) && !errors.Is(err, ErrTopicDeleted) {
			t.Errorf("delete: %v", err)
		}
	}
	close(stop)
	wg.Wait()
	openTopic(t, s, "orders")
	if err := s.DeleteTopic(ctx, "orders"); err != nil {
		t.Fatal(err)
	}
	// The offset that was committed last may still wait for a group.
	s.FlushOffsets()
	if err := s.Apply(ctx, &Request{}); err != nil {
		t.Fatal(err)
	}
	db, release, err := s.read()
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	for _, kind := range []byte{kindChunk, kindQueueSegment, kindQueueHead, kindGroupOffset, kindTopic} {
		err := scan(db, []byte{kind}, []byte{kind + 1}, func(key, _ []byte) error {
			t.Errorf("key %x is left", key)
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

func TestTopicIsMadeOnce(t *testing.T) {
	s := openTest(t, Options{})
	handles := make([]*Topic, 20)
	var wg sync.WaitGroup
	for i := range handles {
		wg.Go(func() {
			topic, err := s.OpenTopic(context.Background(), "orders")
			if err != nil {
				t.Error(err)
			}
			handles[i] = topic
		})
	}
	wg.Wait()
	for _, h := range handles {
		if h != handles[0] {
			t.Fatal("two handles of one topic")
		}
	}
	if all := s.Topics(); len(all) != 1 || all[0].Name() != "orders" {
		t.Errorf("topics %v", all)
	}
}

func TestOpenTopicGivesUpWithItsContext(t *testing.T) {
	s := openTest(t, Options{})
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := s.OpenTopic(ctx, "orders"); err != nil && !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	openTopic(t, s, "orders")
}

func TestTopicIsNotMadeTwiceAfterAFlushTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _, fs := slowStore(t, Options{}, time.Minute)
		ctx := context.Background()
		if _, err := s.OpenTopic(ctx, "late"); !errors.Is(err, ErrFlushTimeout) {
			t.Fatalf("got %v", err)
		}
		fs.delay.Store(0)
		topic, err := s.OpenTopic(ctx, "late")
		for errors.Is(err, ErrFlushTimeout) || errors.Is(err, ErrBusy) {
			time.Sleep(time.Second)
			topic, err = s.OpenTopic(ctx, "late")
		}
		if err != nil {
			t.Fatal(err)
		}
		if again, ok := s.Topic("late"); !ok || again != topic || len(s.topics.byID) != 2 {
			t.Errorf("%d topics, the last one is found: %v", len(s.topics.byID), ok)
		}
	})
}
