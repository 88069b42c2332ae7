package storage

import (
	"sync"
	"time"
)

// intake is where submitted requests wait for the lane. Submit pays for one
// short lock and, when the lane sleeps, one channel send.
type intake struct {
	maxBytes    int64
	maxRequests int

	wake chan struct{} // capacity 1: something changed while the lane slept

	mu       sync.Mutex
	refusal  error // not nil: nothing is taken any more, and why
	sleeping bool  // the lane waits on wake
	items    []waiting
	head, n  int   // items is a ring of n entries from head on
	bytes    int64 // sum of the waiting requests' sizes
	taken    int64 // requests that left since the beginning
	draining bool  // the lane must end once nothing waits
	flush    bool  // group offsets are to be written now
	offsets  bool  // group offsets are to be written before long
}

// waiting is one request with what the lane must know to bound a group,
// without a look at the request itself.
type waiting struct {
	r       *Request
	bytes   uint32
	records uint32
}

func newIntake(o Options) *intake {
	return &intake{maxBytes: o.WaitBytes, maxRequests: o.WaitRequests, wake: make(chan struct{}, 1),
		refusal: ErrClosed, items: make([]waiting, 64)}
}

// put adds a request, or says why not.
func (in *intake) put(r *Request) error {
	r.verdict = nil
	size := r.size()
	if size > MaxRequestBytes {
		return ErrTooLarge
	}
	in.mu.Lock()
	if in.refusal != nil {
		err := in.refusal
		in.mu.Unlock()
		return err
	}
	if !r.urgent && in.n > 0 && (in.n >= in.maxRequests || in.bytes+int64(size) > in.maxBytes) {
		in.mu.Unlock()
		return ErrBusy
	}
	if in.n == len(in.items) {
		in.grow()
	}
	in.items[(in.head+in.n)&(len(in.items)-1)] = waiting{r, uint32(size), uint32(len(r.Records))}
	in.n++
	in.bytes += int64(size)
	in.unlockAndWake()
	return nil
}

// unlockAndWake wakes a sleeping lane; sleeping keeps an awake one from costing
// a channel send each time.
func (in *intake) unlockAndWake() {
	sleeping := in.sleeping
	in.sleeping = false
	in.mu.Unlock()
	if sleeping {
		select {
		case in.wake <- struct{}{}:
		default: // a wake-up is pending already
		}
	}
}

func (in *intake) grow() {
	items := make([]waiting, 2*len(in.items))
	for i := range in.n {
		items[i] = in.items[(in.head+i)&(len(in.items)-1)]
	}
	in.items, in.head = items, 0
}

func (in *intake) popLocked() waiting {
	w := in.items[in.head]
	in.items[in.head] = waiting{}
	in.head = (in.head + 1) & (len(in.items) - 1)
	in.n--
	in.bytes -= int64(w.bytes)
	in.taken++
	return w
}

// order is what the lane is to do next.
type order struct {
	flush   bool // write group offsets now
	offsets bool // write group offsets before long
	end     bool // nothing waits and nothing will come
}

// take moves one group's worth of requests to dst, at least one when one waits.
// When there is nothing to do at all, the lane counts as sleeping.
func (in *intake) take(dst []*Request) ([]*Request, order) {
	in.mu.Lock()
	defer in.mu.Unlock()
	bytes, records := 0, 0
	for in.n > 0 {
		w := in.items[in.head]
		if len(dst) > 0 && (bytes+int(w.bytes) > groupBytes || records+int(w.records) > groupRecords ||
			len(dst) >= groupRecords) {
			break
		}
		bytes += int(w.bytes)
		records += int(w.records)
		dst = append(dst, in.popLocked().r)
	}
	o := order{flush: in.flush, offsets: in.offsets, end: in.draining && in.n == 0}
	in.flush, in.offsets = false, false
	in.sleeping = len(dst) == 0 && !o.flush && !o.offsets && !o.end
	return dst, o
}

// takeAll empties the intake.
func (in *intake) takeAll() []*Request {
	in.mu.Lock()
	defer in.mu.Unlock()
	var all []*Request
	for in.n > 0 {
		all = append(all, in.popLocked().r)
	}
	return all
}

// waiting returns how much no group has taken yet.
func (in *intake) waiting() (requests int, bytes int64) {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.n, in.bytes
}

// mark is the number of the next request to come; see expire.
func (in *intake) mark() int64 {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.taken + int64(in.n)
}

// expire removes the requests that came before mark and may be refused.
func (in *intake) expire(mark int64) []*Request {
	in.mu.Lock()
	defer in.mu.Unlock()
	var old []*Request
	for n := min(mark-in.taken, int64(in.n)); n > 0; n-- {
		w := in.popLocked()
		if !w.r.urgent {
			old = append(old, w.r)
			continue
		}
		// An urgent request keeps waiting, behind the others: its sender
		// orders nothing by its place.
		in.items[(in.head+in.n)&(len(in.items)-1)] = w
		in.n++
		in.bytes += int64(w.bytes)
		in.taken--
	}
	return old
}

// refuse makes put answer with err.
func (in *intake) refuse(err error) {
	in.mu.Lock()
	in.refusal = err
	in.mu.Unlock()
}

// open takes requests, for a lane that starts.
func (in *intake) open() {
	in.mu.Lock()
	in.refusal, in.draining = nil, false
	in.mu.Unlock()
}

// drain refuses new requests with ErrClosed and lets the lane end after those
// that wait.
func (in *intake) drain() {
	in.mu.Lock()
	if in.refusal == nil {
		in.refusal = ErrClosed
	}
	in.draining = true
	in.unlockAndWake()
}

// offsetsChanged tells the lane that group offsets want to be written: at once,
// or with the next group and after offsetsDelay at the latest.
func (in *intake) offsetsChanged(now bool) {
	in.mu.Lock()
	in.offsets = true
	in.flush = in.flush || now
	in.unlockAndWake()
}

// Bounds of one group, and how long a changed group offset may wait for one. A
// group without bounds took 3.3 GiB of memory for 500 MiB of records, and Pebble
// panics at 4 GiB.
const (
	groupBytes   = 4 << 20
	groupRecords = 4096
	offsetsDelay = time.Second
)
