package storage

import "fmt"

// Record is one message for a queue, finished by the caller except for three
// numbers.
type Record struct {
	// Topic and Queue say where the record goes.
	Topic *Topic
	Queue int32
	// TagHash is handed to Read.Match, so that most records that do not match
	// need not be looked at.
	TagHash int64
	// Keys are the hashes under which Query finds the record; see KeyHash.
	Keys []uint64
	// DeliverAt, when above 0, is the time in milliseconds since 1970 at which
	// the record is appended to its queue. Until then it is a timer, readable
	// nowhere.
	DeliverAt int64
	// Bytes is the record. The store owns it from Submit until Completed and
	// reads it only.
	Bytes []byte
	// QueueOffsetAt, PositionAt and StoreTimeAt are the places in Bytes of the
	// three 8-byte big-endian numbers that the store fills in, in its own
	// copy. A negative place leaves that number out.
	QueueOffsetAt, PositionAt, StoreTimeAt int32

	// Offset, Position and StoreTime are the place the store gave the record.
	// They are set when the request completes without error or with
	// ErrFlushTimeout. A timer gets Offset 0 and a Position of at least
	// TimerPositionBase.
	Offset, Position, StoreTime int64
}

// TimerPositionBase is added to a timer's sequence number to make its
// position, which no record of the log ever reaches.
const TimerPositionBase = int64(1) << 62

// Change sets or deletes one piece of metadata; see PutMeta and DeleteMeta.
type Change struct {
	kind, key string
	value     []byte
	remove    bool
}

// PutMeta is the change that stores value under kind and key. The store owns
// value from Submit until Completed.
func PutMeta(kind, key string, value []byte) Change {
	return Change{kind: kind, key: key, value: value}
}

// DeleteMeta is the change that deletes what is stored under kind and key;
// nothing stored is no error.
func DeleteMeta(kind, key string) Change {
	return Change{kind: kind, key: key, remove: true}
}

// Condition makes a request depend on one piece of metadata.
type Condition struct {
	Kind, Key string
	// Holds decides; value is what all requests before this one left there. It
	// runs on the store's lane, so it must be quick and must not call the
	// store.
	Holds func(value []byte, found bool) bool
}

// Request is records and changes that happen together or not at all.
type Request struct {
	// Records are appended in this order per queue.
	Records []Record
	// Changes are applied before the records.
	Changes []Change
	// If, when set, must hold, or nothing happens and the request completes
	// with ErrConditionFailed.
	If *Condition
	// Completion is told the outcome; nil tells nobody.
	Completion Completion

	one  [1]Record
	ops  []keyOp
	cond func(get lookup) (bool, error)
	// build runs on the lane instead of anything above, published when its
	// group is durable. A solo request has a group for itself and finds every
	// earlier group committed.
	build     func(*lane, *group) error
	published func()
	solo      bool
	// urgent requests are not refused for the bounds on what waits.
	urgent bool
	// verdict is the request's own outcome once its group is durable.
	verdict error
}

// Completion is told the outcome of a request.
type Completion interface {
	// Completed is called exactly once for every submitted request, on the
	// store's completer goroutine. It must not block; it may call Submit.
	Completed(r *Request, err error)
}

// lookup returns what requests before the present one left under a key,
// committed or not.
type lookup func(key []byte) (value []byte, found bool, err error)

type opKind uint8

const (
	opSet opKind = iota
	opDelete
	opDeleteRange
)

// keyOp is a change to Pebble's keys. Key and, for a range, end are keys as
// keys.go makes them.
type keyOp struct {
	kind            opKind
	key, end, value []byte
}

// One makes r a request of a single record and returns it, to be filled in,
// without allocating.
func (r *Request) One() *Record {
	r.Records = r.one[:]
	return &r.one[0]
}

// size is the bytes a request counts for while it waits.
func (r *Request) size() int {
	n := 0
	for i := range r.Records {
		n += len(r.Records[i].Bytes)
	}
	for i := range r.Changes {
		n += len(r.Changes[i].key) + len(r.Changes[i].value)
	}
	for i := range r.ops {
		n += len(r.ops[i].key) + len(r.ops[i].value)
	}
	return n
}

// check refuses what the lane could not carry out once it gave out positions.
func (r *Request) check() error {
	for i := range r.Records {
		if err := r.Records[i].check(); err != nil {
			return err
		}
	}
	for i := range r.Changes {
		if len(r.Changes[i].kind) > 1<<16-1 {
			return fmt.Errorf("%w: kind of metadata of %d bytes", ErrTooLarge, len(r.Changes[i].kind))
		}
	}
	return nil
}

func (r *Record) check() error {
	switch {
	case r.Topic == nil:
		return fmt.Errorf("%w: record without topic", ErrInvalid)
	case r.Queue < 0:
		return fmt.Errorf("%w: queue %d of topic %s", ErrInvalid, r.Queue, r.Topic.name)
	case r.Queue > MaxQueue:
		return fmt.Errorf("%w: queue %d of topic %s, at most %d", ErrTooLarge, r.Queue, r.Topic.name, MaxQueue)
	case len(r.Bytes) == 0:
		return fmt.Errorf("%w: empty record for topic %s", ErrInvalid, r.Topic.name)
	case r.outside(r.QueueOffsetAt), r.outside(r.PositionAt), r.outside(r.StoreTimeAt):
		return fmt.Errorf("%w: field places %d, %d, %d in a record of %d bytes for topic %s", ErrInvalid,
			r.QueueOffsetAt, r.PositionAt, r.StoreTimeAt, len(r.Bytes), r.Topic.name)
	case r.Topic.deleted.Load():
		return fmt.Errorf("%w: %s", ErrTopicDeleted, r.Topic.name)
	}
	return nil
}

func (r *Record) outside(at int32) bool {
	return at >= 0 && int(at)+8 > len(r.Bytes)
}

// put copies the record into dst and fills in its numbers there.
func (r *Record) put(dst []byte) {
	copy(dst, r.Bytes)
	if r.QueueOffsetAt >= 0 {
		be.PutUint64(dst[r.QueueOffsetAt:], uint64(r.Offset))
	}
	if r.PositionAt >= 0 {
		be.PutUint64(dst[r.PositionAt:], uint64(r.Position))
	}
	if r.StoreTimeAt >= 0 {
		be.PutUint64(dst[r.StoreTimeAt:], uint64(r.StoreTime))
	}
}
