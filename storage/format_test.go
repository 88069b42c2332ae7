package storage

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"
)

var writeFormat = flag.String("write-format", "", "write the store of TestStoreOfEveryFormatOpens into this new directory")

// formatKey is the key every record of the kept stores has.
const formatKey = "key"

// fillFormatStore writes what the kept stores hold: something of every kind.
func fillFormatStore(t *testing.T, s *Store) {
	t.Helper()
	topic := mustTopic(t, s, "orders")
	mustTopic(t, s, "deleted")
	for i := range 30 {
		mustApply(t, s, &Request{Records: []Record{bodyRecord(topic, int32(i%3), fmt.Sprint("record ", i), formatKey)}})
	}
	later := bodyRecord(topic, 0, "later", formatKey)
	later.DeliverAt = time.Date(2100, 1, 1, 0, 0, 0, 0, time.UTC).UnixMilli()
	mustApply(t, s, &Request{Records: []Record{later}, Changes: []Change{PutMeta("kind", "name", []byte("value"))}})
	s.CommitOffset("group", topic, 1, 7)
	if err := s.DeleteTopic(context.Background(), "deleted"); err != nil {
		t.Fatal(err)
	}
}

// A store that a released version wrote is opened and holds what was put into it.
// The directories below testdata are never changed; a new format adds one, made by
// go test ./storage -run Format -write-format testdata/formatN.
func TestStoreOfEveryFormatOpens(t *testing.T) {
	if *writeFormat != "" {
		s := mustOpen(t, Options{Dir: *writeFormat})
		fillFormatStore(t, s)
		mustClose(t, s)
	}
	dirs, err := filepath.Glob("testdata/format*")
	if err != nil || len(dirs) == 0 {
		t.Fatalf("no kept stores: %v", err)
	}
	for _, kept := range dirs {
		t.Run(filepath.Base(kept), func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "store")
			if err := os.CopyFS(dir, os.DirFS(kept)); err != nil {
				t.Fatal(err)
			}
			s := mustOpen(t, Options{Dir: dir})
			defer mustClose(t, s)
			checkFormatStore(t, s)
			checkStore(t, s)
		})
	}
}

func checkFormatStore(t *testing.T, s *Store) {
	t.Helper()
	topic, ok := s.Topic("orders")
	if _, deleted := s.Topic("deleted"); !ok || deleted {
		t.Fatalf("topics %v", s.Topics())
	}
	for queue := range int32(3) {
		if got := bodies(readQueue(t, s, topic, queue)); len(got) != 10 || got[0] != fmt.Sprint("record ", queue) {
			t.Errorf("queue %d holds %q", queue, got)
		}
	}
	if offset, ok, err := s.CommittedOffset("group", topic, 1); offset != 7 || !ok || err != nil {
		t.Errorf("group offset %d %v %v", offset, ok, err)
	}
	if value, ok, err := s.Meta("kind", "name"); string(value) != "value" || !ok || err != nil {
		t.Errorf("metadata %q %v %v", value, ok, err)
	}
	hits, err := s.Query(context.Background(), KeyQuery{Topic: topic, Key: formatKey, Max: 64})
	if err != nil || len(hits) != 30 {
		t.Errorf("%d records have the key, %v; want 30", len(hits), err)
	}
	if n := s.Stats().Timers; n != 1 {
		t.Errorf("%d timers wait, want 1", n)
	}
	mustApply(t, s, &Request{Records: []Record{bodyRecord(topic, 0, "new")}})
	if min, next, err := s.Bounds(topic, 0); min != 0 || next != 11 || err != nil {
		t.Errorf("bounds %d to %d, %v; want 0 to 11", min, next, err)
	}
}
