package storage

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// storedOffset reads a group's offset from the database.
func storedOffset(t *testing.T, s *Store, group string, topic *Topic, queue int32) (int64, bool) {
	t.Helper()
	db, release, err := s.read()
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	value, found, err := get(db, groupOffsetKey(group, topic.id, queue))
	if err != nil {
		t.Fatal(err)
	}
	if !found {
		return 0, false
	}
	return int64(be.Uint64(value)), true
}

func TestCommittedOffsetIsWrittenWithinASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := openTest(t, Options{Dir: "data", FS: vfs.NewMem()})
		topic := openTopic(t, s, "orders")
		groups := s.Stats().Groups
		for i := range 100 {
			s.CommitOffset("g", topic, 0, int64(i))
			if got, found, err := s.CommittedOffset("g", topic, 0); err != nil || !found || got != int64(i) {
				t.Fatalf("committed offset %d %v %v", got, found, err)
			}
		}
		time.Sleep(900 * time.Millisecond)
		synctest.Wait()
		if _, found := storedOffset(t, s, "g", topic, 0); found {
			t.Error("written before its time")
		}
		time.Sleep(200 * time.Millisecond)
		synctest.Wait()
		if got, found := storedOffset(t, s, "g", topic, 0); !found || got != 99 {
			t.Errorf("stored %d %v", got, found)
		}
		if n := s.Stats().Groups - groups; n != 1 {
			t.Errorf("a hundred commits took %d groups", n)
		}
		// The next one has its own second.
		s.CommitOffset("g", topic, 0, 5)
		time.Sleep(1100 * time.Millisecond)
		synctest.Wait()
		if got, _ := storedOffset(t, s, "g", topic, 0); got != 5 {
			t.Errorf("stored %d, want the smaller one", got)
		}
	})
}

func TestCommittedOffsetRidesOnTheNextGroup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := openTest(t, Options{Dir: "data", FS: vfs.NewMem()})
		topic := openTopic(t, s, "orders")
		groups := s.Stats().Groups
		s.CommitOffset("g", topic, 0, 3)
		appendText(t, s, topic, 0, "text")
		if got, found := storedOffset(t, s, "g", topic, 0); !found || got != 3 {
			t.Errorf("stored %d %v", got, found)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if n := s.Stats().Groups - groups; n != 1 {
			t.Errorf("it took %d groups", n)
		}
	})
}

func TestFlushedOffsetIsWrittenAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := openTest(t, Options{Dir: "data", FS: vfs.NewMem()})
		topic := openTopic(t, s, "orders")
		start := time.Now()
		s.CommitOffset("g", topic, 0, 3)
		s.FlushOffsets()
		synctest.Wait()
		if got, found := storedOffset(t, s, "g", topic, 0); !found || got != 3 || time.Since(start) != 0 {
			t.Errorf("stored %d %v after %v", got, found, time.Since(start))
		}
	})
}

func TestOffsetsOutliveCloseAndGroupsAreApart(t *testing.T) {
	o := Options{Dir: "data", FS: vfs.NewMem()}
	s := openTest(t, o)
	topic := openTopic(t, s, "orders")
	s.CommitOffset("g", topic, 0, 1)
	s.CommitOffset("g1", topic, 0, 2)
	s.CommitOffset("g", topic, 1, 3)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = openTest(t, o)
	topic = openTopic(t, s, "orders")
	// A change before the group was loaded must not hide the others.
	s.CommitOffset("g", topic, 1, 4)
	all, err := s.GroupOffsets("g")
	if err != nil || len(all) != 2 {
		t.Fatalf("offsets %v %v", all, err)
	}
	for queue, want := range []int64{1, 4} {
		if got, found, err := s.CommittedOffset("g", topic, int32(queue)); err != nil || !found || got != want {
			t.Errorf("queue %d: %d %v %v, want %d", queue, got, found, err, want)
		}
	}
	if err := s.DeleteGroup(context.Background(), "g"); err != nil {
		t.Fatal(err)
	}
	if all, err := s.GroupOffsets("g"); err != nil || len(all) != 0 {
		t.Errorf("after deleting: %v %v", all, err)
	}
	if got, found, err := s.CommittedOffset("g1", topic, 0); err != nil || !found || got != 2 {
		t.Errorf("the other group: %d %v %v", got, found, err)
	}
}

func TestCommittedOffsetIsFoundWhateverIsForgotten(t *testing.T) {
	s := openTest(t, Options{Dir: "data", FS: vfs.NewMem()})
	topic := openTopic(t, s, "orders")
	s.CommitOffset("g", topic, 0, 5)
	if err := s.Apply(t.Context(), &Request{}); err != nil { // takes the offset along
		t.Fatal(err)
	}
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			default:
				s.offsets.reset() // as when the store opens again
			}
		}
	}()
	defer func() {
		close(stop)
		<-stopped
	}()
	for range 1000 {
		if got, found, err := s.CommittedOffset("g", topic, 0); err != nil || !found || got != 5 {
			t.Fatalf("committed offset %d %v %v", got, found, err)
		}
		if all, err := s.GroupOffsets("g"); err != nil || len(all) != 1 || all[0].Offset != 5 {
			t.Fatalf("offsets of the group %v %v", all, err)
		}
	}
}
