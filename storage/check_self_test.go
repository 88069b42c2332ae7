package storage

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// complaints takes what a check reports instead of failing the test.
type complaints struct {
	testing.TB
	list []string
}

func (c *complaints) Errorf(format string, args ...any) {
	c.list = append(c.list, fmt.Sprintf(format, args...))
}
func (c *complaints) Error(args ...any) { c.list = append(c.list, fmt.Sprint(args...)) }
func (c *complaints) Failed() bool      { return len(c.list) > 0 }
func (c *complaints) FailNow()          {}

// The checker is what the crash tests rely on: it must find each kind of key missing.
func TestStoreCheckFindsDamage(t *testing.T) {
	kinds := map[string]byte{
		"segment info": kindSegmentInfo, "chunk": kindChunk, "position map": kindPositionMap, "segment pointer": kindQueueSegment,
		"index list": kindIndex, "timer": kindTimer, "topic": kindTopic,
	}
	for name, kind := range kinds {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				mem := vfs.NewMem()
				s := must1(Open(crashOptions(mem, FlushSync)))(t)
				topic := must1(s.OpenTopic(context.Background(), "topic"))(t)
				l := newLedger()
				for i := range 12 {
					must(t, <-l.submit(s, topic, int32(i%2), 0, 20, 3000, 40).done)
				}
				must(t, <-l.submit(s, topic, timerQueue, time.Now().Add(time.Hour).UnixMilli(), 100).done)
				checkStore(t, s)
				must(t, s.Close())
				damage(t, mem, kind)
				s = must1(Open(crashOptions(mem, FlushSync)))(t)
				c := &complaints{TB: t}
				checkStore(c, s)
				if len(c.list) == 0 {
					t.Errorf("nothing is reported with the first %s missing", name)
				}
				must(t, s.Close())
			})
		})
	}
}

// damage deletes the first key of a kind.
func damage(t *testing.T, mem *vfs.MemFS, kind byte) {
	t.Helper()
	db := must1(pebble.Open("store", &pebble.Options{FS: mem, Logger: quietLogger{}, FormatMajorVersion: formatVersion}))(t)
	it := must1(db.NewIter(&pebble.IterOptions{LowerBound: []byte{kind}, UpperBound: []byte{kind + 1}}))(t)
	if !it.First() {
		t.Fatalf("no key of kind %x", kind)
	}
	key := append([]byte(nil), it.Key()...)
	must(t, it.Close())
	must(t, db.Delete(key, pebble.Sync))
	must(t, db.Close())
}
