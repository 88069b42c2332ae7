package mq

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// assignedQueue is a queue that this member has: a window, guarded, with one pull
// loop that fills it. Once it is dropped nothing of it is handed out, finished or
// committed any more: the queue may be another member's already.
type assignedQueue struct {
	queue   Queue
	ordered bool
	located chan struct{} // closed when the first attempt to find the offset is over
	cancel  context.CancelFunc
	ended   chan struct{} // closed when the pull loop has ended
	room    chan struct{} // capacity 1: the window went below its limits, or is a new one

	suggested atomic.Int64 // id of the broker the last pull's answer named

	ready bool // in the dispatcher's list; guarded by the dispatcher's lock

	mu         sync.Mutex // never held across a call or a listener
	window     window
	placed     bool // the window has its offset
	dropped    bool
	leaving    bool               // nothing is handed out: the queue is about to be dropped
	generation int                // raised when the window is replaced: older messages and pulls are void
	stopPull   context.CancelFunc // of the pull under way
	blocked    bool               // the pull loop waits for room
	committed  int64
	committing chan struct{} // closed when the commit under way is over; nil when none is
	again      []*Delivery   // failed, could not be given back, due once more
	hands      int           // messages that workers have; 1 for an ordered queue's only worker
	idle       chan struct{} // closed when hands becomes 0; nil when nobody waits

	lock queueLease // of an ordered queue
}

func newAssignedQueue(q Queue, ordered bool) *assignedQueue {
	return &assignedQueue{queue: q, ordered: ordered, located: make(chan struct{}), ended: make(chan struct{}),
		room: make(chan struct{}, 1), committed: -1}
}

// place gives the window its offset, or a new one: what was pulled before is void.
func (q *assignedQueue) place(offset int64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.placeLocked(offset)
}

func (q *assignedQueue) placeLocked(offset int64) {
	q.window = newWindow(offset)
	q.placed = true
	q.generation++
	q.again = nil
	q.lock.moved = false
	if q.stopPull != nil {
		q.stopPull() // it waits at the old offset
	}
	q.wakePullLocked()
}

// unplace takes the offset away: the queue it counted in is gone. Nothing is
// committed until another one was found.
func (q *assignedQueue) unplace() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.window = newWindow(0)
	q.placed = false
	q.committed = -1
	q.generation++
	q.again = nil
}

func (q *assignedQueue) isPlaced() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.placed
}

// markLocated ends Start's wait for the first attempt to find the offset. Only the
// pull loop calls it.
func (q *assignedQueue) markLocated() {
	select {
	case <-q.located:
	default:
		close(q.located)
	}
}

// move takes over the offset that the broker says is the right one. Forwards, the
// messages that are here stay: the broker has them no more, but they were not
// consumed. Backwards the queue is another one, with other messages at the same
// offsets, and what is here is void.
func (q *assignedQueue) move(pulled pullPlace, offset int64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case q.generation != pulled.generation: // not the window that was asked for
	case offset >= q.window.next:
		q.window.next = offset
	default:
		q.placeLocked(offset)
	}
}

// A pullPlace is where a pull begins.
type pullPlace struct {
	next       int64
	commit     int64 // the group's progress to commit with it; 0 for none
	generation int
}

// beginPull returns where the next pull begins; stop ends it early when the window
// is replaced meanwhile.
func (q *assignedQueue) beginPull(stop context.CancelFunc) pullPlace {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.stopPull = stop
	p := pullPlace{next: q.window.next, generation: q.generation}
	if q.mineLocked(time.Now()) {
		p.commit = q.window.commit()
	}
	return p
}

// endPull tells whether the window is still the one the pull began with.
func (q *assignedQueue) endPull(p pullPlace) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.stopPull = nil
	return q.generation == p.generation
}

// put adds what a pull brought. It returns whether there is something to claim,
// and whether the window went on.
func (q *assignedQueue) put(p pullPlace, batch []*Delivery, next int64) (work, progress bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.dropped || q.generation != p.generation {
		return false, true
	}
	for _, d := range batch {
		d.generation = q.generation
	}
	q.window.put(batch, next)
	return q.waitingLocked() > 0, q.window.next > p.next
}

// turn counts done messages of the last call, of which the worker had hands, as
// finished, and takes the next ones for it: up to as many of one topic as its
// listener takes at once. It tells whether there are more for others.
func (q *assignedQueue) turn(c *Consumer, done []*Delivery, hands int, batch []*Delivery) (_ []*Delivery, more bool) {
	now := time.Now()
	q.mu.Lock()
	defer q.mu.Unlock()
	q.hands -= hands
	for _, d := range done {
		q.finishLocked(d, &c.cfg)
	}
	if q.dropped || q.leaving || c.tasks.stopping() {
		q.closeIfIdleLocked()
		return batch, false
	}
	for len(q.again) > 0 && len(batch) == 0 {
		if d := q.again[0]; q.window.restart(d.offset, now) {
			batch = append(batch, d)
		}
		q.again = q.again[1:]
	}
	if len(batch) == 0 {
		if d := q.window.first(); d != nil {
			batch = q.window.claim(batch, c.subscriptionOf(d.topic).callSize(), now)
		}
	}
	q.hands += len(batch)
	q.closeIfIdleLocked()
	return batch, q.waitingLocked() > 0
}

// pass ends a worker's turns; it tells whether there is work left to be handed out.
func (q *assignedQueue) pass(c *Consumer, done []*Delivery, hands int) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.hands -= hands
	for _, d := range done {
		q.finishLocked(d, &c.cfg)
	}
	q.closeIfIdleLocked()
	return !q.leaving && q.waitingLocked() > 0
}

func (q *assignedQueue) closeIfIdleLocked() {
	if q.hands == 0 && q.idle != nil {
		close(q.idle)
		q.idle = nil
	}
}

// retry makes a message that failed be claimed once more; false when it is not to
// be done here any more.
func (q *assignedQueue) retry(d *Delivery) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.holdsLocked(d) {
		return false
	}
	q.again = append(q.again, d)
	return true
}

// replace puts a fresh copy in the place of a message.
func (q *assignedQueue) replace(d *Delivery) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.holdsLocked(d) {
		q.window.replace(d)
	}
}

func (q *assignedQueue) waitingLocked() int {
	if q.dropped {
		return 0
	}
	return q.window.waiting() + len(q.again)
}

// finish marks messages as done. They count only while the queue is ours and the
// window is the one they came through.
func (q *assignedQueue) finish(c *Consumer, done ...*Delivery) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, d := range done {
		q.finishLocked(d, &c.cfg)
	}
}

func (q *assignedQueue) finishLocked(d *Delivery, limits *ConsumerConfig) {
	if q.dropped || d.generation != q.generation || !q.window.finish(d.offset) {
		return
	}
	if q.blocked && q.hasRoomLocked(limits) {
		q.wakePullLocked()
	}
}

func (q *assignedQueue) wakePullLocked() {
	q.blocked = false
	select {
	case q.room <- struct{}{}:
	default:
	}
}

// holds tells whether a message is still to be done here.
func (q *assignedQueue) holds(d *Delivery) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.holdsLocked(d)
}

func (q *assignedQueue) holdsLocked(d *Delivery) bool {
	return !q.dropped && d.generation == q.generation && q.window.unfinished(d.offset)
}

// block returns whether the pull loop must wait for room.
func (q *assignedQueue) block(limits *ConsumerConfig) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.blocked = !q.hasRoomLocked(limits)
	return q.blocked
}

func (q *assignedQueue) hasRoomLocked(limits *ConsumerConfig) bool {
	w := &q.window
	return w.open <= limits.QueueMessages && w.bytes <= limits.QueueBytes &&
		(q.ordered || w.span() <= int64(limits.QueueSpan))
}

// mineLocked tells whether the group's progress here is ours to tell.
func (q *assignedQueue) mineLocked(now time.Time) bool {
	return q.placed && !q.dropped && (!q.ordered || q.lock.held(now))
}

// beginCommit returns the offset to commit when it has changed since the last
// time; endCommit must follow.
func (q *assignedQueue) beginCommit() (offset int64, changed bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.mineLocked(time.Now()) || q.committing != nil {
		return 0, false
	}
	if offset = q.window.commit(); offset == q.committed {
		return 0, false
	}
	q.committing = make(chan struct{})
	q.committed = offset
	return offset, true
}

// endCommit says whether the broker was told.
func (q *assignedQueue) endCommit(ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	close(q.committing)
	q.committing = nil
	if !ok {
		q.committed = -1
	}
}

// A lastCommit is what remains to be told of a queue that is given up.
type lastCommit struct {
	offset int64
	wanted bool
	after  <-chan struct{} // an older commit is under way until this is closed; may be nil
}

// drop ends the queue here.
func (q *assignedQueue) drop() lastCommit {
	q.cancel()
	q.mu.Lock()
	defer q.mu.Unlock()
	last := lastCommit{wanted: q.mineLocked(time.Now()), after: q.committing}
	if last.wanted {
		last.offset = q.window.commit()
	}
	q.dropped = true
	return last
}

// released lets nothing more be handed out and waits until no worker has messages
// of the queue, for d at most; it returns whether that is so.
func (q *assignedQueue) released(ctx context.Context, d time.Duration) bool {
	q.mu.Lock()
	q.leaving = true
	if q.hands == 0 {
		q.mu.Unlock()
		return true
	}
	if q.idle == nil {
		q.idle = make(chan struct{})
	}
	idle := q.idle
	q.mu.Unlock()
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-idle:
		return true
	case <-timer.C:
	case <-ctx.Done():
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.hands == 0
}

// stay takes back that the queue is to be given up.
func (q *assignedQueue) stay() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.leaving = false
}

// overdue returns messages from the front whose listener runs for too long.
func (q *assignedQueue) overdue(limit time.Duration) []*Delivery {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.dropped {
		return nil
	}
	return q.window.overdue(nil, overduePerRun, limit, time.Now())
}
