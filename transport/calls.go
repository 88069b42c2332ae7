package transport

import (
	"context"
	"errors"
	"math"
	"sync"
	"time"
)

// sweepStep is the shortest time between two looks at the deadlines of a
// connection, so that many different deadlines cost few looks.
const sweepStep = time.Millisecond

// A slot is one call in flight. Exactly one of done and wait is set.
type slot struct {
	opaque   int32 // 0: the slot is free
	deadline int64 // nanoseconds since calls.start; 0: none, its caller watches
	done     func(*Frame, error)
	wait     *waiter
	watch    *watch
}

// A waiter is where a Call waits. Whoever takes the slot out of the table sends
// exactly one answer.
type waiter struct{ ch chan answer }

type answer struct {
	frame *Frame
	err   error
}

// calls is the table of a connection's calls in flight, and the window that
// bounds them.
//
// Opaque numbers count up and a call lives in slot opaque & mask; a number whose
// slot is taken by a call that is still in flight is skipped. So a look-up is one
// comparison, a number comes again only after 2^31 calls, and a late answer finds
// nothing. Numbers that differ modulo the old size differ modulo twice the size,
// which is why growing never collides. A map costs three times as much; a free
// list of slots with generations would reuse a number after 2^17 calls.
//
// Taking a slot out of the table, under mu, is what entitles to finish its call;
// the permit is released in the same step.
type calls struct {
	mu    sync.Mutex
	slots []slot // a power of two, at least twice the permits in use
	next  int32
	inUse int // permits given out
	dead  error

	window  int
	tickets []*ticket // callers waiting for a permit, oldest first
	head    int

	start   time.Time
	sweepAt int64 // when the timer fires; math.MaxInt64: it is not armed
	timer   *time.Timer
	running sync.WaitGroup // sweeps and cancellations that are finishing calls

	watches map[<-chan struct{}]*watch
	idle    *watch // the one watch kept although no call uses it

	timedOut error
	finish   func(slot, *Frame, error)
}

// errEnded says that the context of a call ended before the call was added.
var errEnded = errors.New("transport: context ended")

// A ticket is one caller's place in the queue for a permit.
type ticket struct {
	ready   chan struct{}
	granted bool
	gone    bool
}

// A watch is one cancellable context that calls in flight depend on. All calls
// under one context share it, so that a call costs no registration of its own.
type watch struct {
	done  <-chan struct{}
	calls int
	ended bool
	stop  func() bool
}

func (t *calls) init(window int, timedOut error, finish func(slot, *Frame, error)) {
	t.slots = make([]slot, 16)
	t.window = window
	t.start = time.Now()
	t.sweepAt = math.MaxInt64
	t.timedOut = timedOut
	t.finish = finish
}

// add puts s into the table and returns its number. Without held it needs a
// permit: when none is free it returns a ticket to wait for one.
func (t *calls) add(s *slot, held bool) (int32, *ticket, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.dead != nil {
		return 0, nil, t.dead
	}
	if s.watch != nil && s.watch.ended {
		return 0, nil, errEnded
	}
	if !held {
		if t.inUse >= t.window {
			k := &ticket{ready: make(chan struct{})}
			t.tickets = append(t.tickets, k)
			return 0, k, nil
		}
		t.inUse++
	}
	if 2*t.inUse > len(t.slots) {
		t.grow()
	}
	mask := int32(len(t.slots) - 1)
	for {
		t.advance()
		if t.slots[t.next&mask].opaque == 0 {
			break
		}
	}
	s.opaque = t.next
	t.slots[t.next&mask] = *s
	if s.deadline != 0 && s.deadline < t.sweepAt {
		t.arm(s.deadline, s.deadline-int64(time.Since(t.start)))
	}
	return s.opaque, nil, nil
}

// number returns a fresh number for a request that wants no answer.
func (t *calls) number() int32 {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.advance()
	return t.next
}

func (t *calls) advance() {
	if t.next++; t.next <= 0 {
		t.next = 1
	}
}

func (t *calls) grow() {
	old := t.slots
	t.slots = make([]slot, 2*len(old))
	mask := int32(len(t.slots) - 1)
	for i := range old {
		if old[i].opaque != 0 {
			t.slots[old[i].opaque&mask] = old[i]
		}
	}
}

// take removes the call with the number and releases its permit. A number that
// is not in flight, such as a late answer's, gives false.
func (t *calls) take(opaque int32) (slot, bool) {
	t.mu.Lock()
	s := &t.slots[opaque&int32(len(t.slots)-1)]
	if opaque == 0 || s.opaque != opaque {
		t.mu.Unlock()
		return slot{}, false
	}
	out := *s
	t.clear(s)
	t.release()
	t.mu.Unlock()
	return out, true
}

// withdraw removes the call but keeps its permit, for a caller that could not
// send. False means that the call was finished by somebody else.
func (t *calls) withdraw(opaque int32) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := &t.slots[opaque&int32(len(t.slots)-1)]
	if s.opaque != opaque {
		return false
	}
	*s = slot{} // the caller's hold on the watch goes on
	return true
}

// giveBack returns a permit that is bound to no slot.
func (t *calls) giveBack() {
	t.mu.Lock()
	t.release()
	t.mu.Unlock()
}

// leave gives up a ticket, and the permit if it was granted meanwhile.
func (t *calls) leave(k *ticket) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if k.granted {
		t.release()
		return
	}
	k.gone = true
}

func (t *calls) clear(s *slot) {
	if s.watch != nil {
		t.drop(s.watch)
	}
	*s = slot{}
}

// release hands the permit to the oldest ticket, or makes it free.
func (t *calls) release() {
	for t.head < len(t.tickets) {
		k := t.tickets[t.head]
		t.tickets[t.head] = nil
		t.head++
		if !k.gone {
			k.granted = true
			close(k.ready)
			return
		}
	}
	t.tickets, t.head = t.tickets[:0], 0
	t.inUse--
}

func (t *calls) arm(at, in int64) {
	t.sweepAt = at
	if t.timer == nil {
		t.timer = time.AfterFunc(time.Duration(in), t.sweep)
	} else {
		t.timer.Reset(time.Duration(in))
	}
}

// sweep finishes the calls whose deadline has passed and arms the timer for the
// next one. One timer serves the connection: calls that are answered in time,
// nearly all, never touch it.
func (t *calls) sweep() {
	now := int64(time.Since(t.start))
	t.mu.Lock()
	if t.dead != nil {
		t.mu.Unlock()
		return
	}
	var late []slot
	next := int64(math.MaxInt64)
	for i := range t.slots {
		s := &t.slots[i]
		switch {
		case s.opaque == 0 || s.deadline == 0:
		case s.deadline <= now:
			late = append(late, *s)
			t.clear(s)
			t.release()
		case s.deadline < next:
			next = s.deadline
		}
	}
	t.sweepAt = next
	if next != math.MaxInt64 {
		in := max(next-now, int64(sweepStep))
		t.arm(now+in, in)
	}
	t.running.Add(1)
	t.mu.Unlock()
	for _, s := range late {
		t.finish(s, nil, t.timedOut)
	}
	t.running.Done()
}

// hold returns the watch of ctx for one more call; drop ends the hold. A context
// that cannot be cancelled has none.
func (t *calls) hold(ctx context.Context) *watch {
	done := ctx.Done()
	if done == nil {
		return nil
	}
	t.mu.Lock()
	if w := t.known(done); w != nil {
		t.mu.Unlock()
		return w
	}
	w := &watch{done: done, calls: 1}
	if t.watches == nil {
		t.watches = make(map[<-chan struct{}]*watch)
	}
	t.watches[done] = w
	t.mu.Unlock()
	stop := context.AfterFunc(ctx, func() { t.cancelled(w, ctx) })
	t.mu.Lock()
	w.stop = stop
	if t.watches[done] != w { // dropped or cancelled meanwhile
		stop()
	}
	t.mu.Unlock()
	return w
}

// known is the watch there is for one more call.
func (t *calls) known(done <-chan struct{}) *watch {
	w := t.idle
	if w == nil || w.done != done {
		if w = t.watches[done]; w == nil {
			return nil
		}
	}
	if w == t.idle {
		t.idle = nil
	}
	w.calls++
	return w
}

// unhold ends a hold that never got into the table.
func (t *calls) unhold(w *watch) {
	if w == nil {
		return
	}
	t.mu.Lock()
	t.drop(w)
	t.mu.Unlock()
}

// drop ends one call's hold on w. The last watch stays registered, so that calls
// one after the other under one context register once. A dead connection keeps
// none: a context that lives on would hold it.
func (t *calls) drop(w *watch) {
	w.calls--
	if w.calls > 0 || t.watches[w.done] != w {
		return
	}
	if t.dead != nil {
		t.forget(w)
		return
	}
	if old := t.idle; old != nil && old != w {
		t.forget(old)
	}
	t.idle = w
}

func (t *calls) forget(w *watch) {
	delete(t.watches, w.done)
	if w.stop != nil {
		w.stop()
	}
}

// cancelled finishes the calls under a context that has ended.
func (t *calls) cancelled(w *watch, ctx context.Context) {
	t.mu.Lock()
	if t.watches[w.done] != w || t.dead != nil {
		t.mu.Unlock()
		return
	}
	w.ended = true
	delete(t.watches, w.done)
	if t.idle == w {
		t.idle = nil
	}
	var ended []slot
	for i := range t.slots {
		if s := &t.slots[i]; s.opaque != 0 && s.watch == w {
			ended = append(ended, *s)
			t.clear(s)
			t.release()
		}
	}
	t.running.Add(1)
	t.mu.Unlock()
	err := ctxError(ctx)
	for _, s := range ended {
		t.finish(s, nil, err)
	}
	t.running.Done()
}

// fail finishes every call with err, refuses new ones, and returns when no
// finishing goes on any more.
func (t *calls) fail(err error) {
	t.mu.Lock()
	t.dead = err
	var all []slot
	for i := range t.slots {
		if s := &t.slots[i]; s.opaque != 0 {
			all = append(all, *s)
			t.clear(s)
			t.release()
		}
	}
	if t.timer != nil {
		t.timer.Stop()
	}
	for _, w := range t.watches {
		t.forget(w)
	}
	t.idle = nil
	t.mu.Unlock()
	for _, s := range all {
		t.finish(s, nil, err)
	}
	t.running.Wait()
}

// ctxError tells the end of a context: a passed deadline is a time-out.
func ctxError(ctx context.Context) error {
	if err := ctx.Err(); err != context.DeadlineExceeded {
		return err
	}
	return ErrTimeout
}
