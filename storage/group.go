package storage

import (
	"bytes"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2"
)

// group is a set of requests that becomes durable together. The builder makes
// it, the committer finishes it; what answers its requests, committer or
// watcher, decides answered.
type group struct {
	batch    *pebble.Batch
	data     []byte // the batch's memory, not written any more except for its head
	requests []*Request
	built    time.Time

	// What the batch is made of besides the records in queues.
	ops     []keyOp
	delayed []*Record
	offsets []builtOffset
	keys    int // hashes of all records

	// What publish needs; it must not look at the requests, which belong to
	// their senders again once the watcher answered them.
	chunks    []builtChunk
	pointers  []builtPointer
	trims     []builtTrim
	published []func()
	freed     bool     // records were deleted
	sealed    []uint32 // segments that this group completed
	logEnd    int64
	logStart  int64
	records   int
	bytes     int64

	touched   overlay
	committed atomic.Bool
	answered  atomic.Bool

	// settled, on an otherwise empty group, is closed by the committer.
	settled chan struct{}
}

// builtChunk is a chunk of the group, its value at..at+size in data.
type builtChunk struct {
	q           *queue
	first, next int64
	at, size    int
}

// builtPointer is a segment pointer that became true with the group.
type builtPointer struct {
	q *queue
	p segmentPointer
}

// builtTrim is a queue whose minimum moved.
type builtTrim struct {
	q       *queue
	min     int64  // when no pointer is left
	segment uint32 // pointers below it are gone
}

// overlay is the key changes of one group, for lookups before they are in the
// database. It is filled only by requests with changes, never by records.
type overlay struct {
	keys   map[string]overlayEntry
	ranges []keyOp
}

type overlayEntry struct {
	value []byte
	found bool
}

// apply adds a key change to the group.
func (g *group) apply(op keyOp) {
	g.ops = append(g.ops, op)
	g.touched.note(op)
}

func (g *group) set(key, value []byte) { g.apply(keyOp{kind: opSet, key: key, value: value}) }

func (g *group) remove(key []byte) { g.apply(keyOp{kind: opDelete, key: key}) }

func (g *group) deleteRange(from, to []byte) { g.apply(keyOp{kind: opDeleteRange, key: from, end: to}) }

func (o *overlay) empty() bool { return len(o.keys) == 0 && len(o.ranges) == 0 }

func (o *overlay) note(op keyOp) {
	if o.keys == nil {
		o.keys = map[string]overlayEntry{}
	}
	switch op.kind {
	case opSet:
		o.keys[string(op.key)] = overlayEntry{op.value, true}
	case opDelete:
		o.keys[string(op.key)] = overlayEntry{}
	case opDeleteRange:
		o.ranges = append(o.ranges, op)
		for key := range o.keys {
			if key >= string(op.key) && key < string(op.end) {
				o.keys[key] = overlayEntry{}
			}
		}
	}
}

// find returns what the overlay says about a key; known is false when it says
// nothing.
func (o *overlay) find(key []byte) (value []byte, found, known bool) {
	if e, ok := o.keys[string(key)]; ok {
		return e.value, e.found, true
	}
	for _, r := range o.ranges {
		if bytes.Compare(key, r.key) >= 0 && bytes.Compare(key, r.end) < 0 {
			return nil, false, true
		}
	}
	return nil, false, false
}
