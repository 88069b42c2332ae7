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
	located chan struct{} // closed when the first attempt to find the offset is over
	cancel  context.CancelFunc
	ended   chan struct{} // closed when the pull loop has ended
	room    chan struct{} // capacity 1: the window went below its limits

	suggested atomic.Int64 // id of the broker the last pull's answer named

	ready bool // in the dispatcher's list; guarded by the dispatcher's lock

	mu         sync.Mutex // never held across a call or a listener
	window     window
	placed     bool // the window has its offset
	dropped    bool
	generation int // raised when the window is replaced: older messages are void
	committed  int64
	blocked    bool        // the pull loop waits for room
	again      []*Delivery // failed, could not be given back, due once more

	// Ordered consumption.
	busy        bool // a worker has the queue
	leaving     bool // no worker gets it any more
	lockedUntil time.Time
	restUntil   time.Time
	idle        chan struct{} // closed when busy ends; nil when nobody waits
}

func newAssignedQueue(q Queue) *assignedQueue {
	return &assignedQueue{queue: q, located: make(chan struct{}), ended: make(chan struct{}),
		room: make(chan struct{}, 1), committed: -1}
}

// place gives the window its offset, or a new one when the broker moved the
// queue: what was pulled before is void.
func (q *assignedQueue) place(offset int64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.window = newWindow(offset)
	q.placed = true
	q.generation++
	q.again = nil
}

// put adds what was pulled and returns whether there is something to claim.
func (q *assignedQueue) put(batch []*Delivery, next int64) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.dropped {
		return false
	}
	for _, d := range batch {
		d.generation = q.generation
	}
	q.window.put(batch, next)
	return q.waitingLocked() > 0
}

// claim takes up to most waiting messages for a worker, fewer while others could
// help, and returns how many stay.
func (q *assignedQueue) claim(batch []*Delivery, most int) (_ []*Delivery, left int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.dropped {
		return batch, 0
	}
	now := time.Now()
	for len(q.again) > 0 && len(batch) < most {
		if d := q.again[0]; q.window.restart(d.offset, now) {
			batch = append(batch, d)
		}
		q.again = q.again[1:]
	}
	batch = q.window.claim(batch, most-len(batch), now)
	return batch, q.waitingLocked()
}

// retry makes a message that failed be claimed once more; false when the queue is
// not ours any more.
func (q *assignedQueue) retry(d *Delivery) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.dropped || d.generation != q.generation {
		return false
	}
	q.again = append(q.again, d)
	return true
}

// waiting is the number of messages to claim.
func (q *assignedQueue) waiting() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.waitingLocked()
}

func (q *assignedQueue) waitingLocked() int {
	if q.dropped {
		return 0
	}
	return q.window.waiting() + len(q.again)
}

// finish marks a message as done. It counts only while the queue is ours and the
// window is the one the message came through.
func (q *assignedQueue) finish(d *Delivery, limits *ConsumerConfig) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.dropped || d.generation != q.generation || !q.window.finish(d.offset) {
		return
	}
	if q.blocked && q.hasRoomLocked(limits) {
		q.blocked = false
		select {
		case q.room <- struct{}{}:
		default:
		}
	}
}

// holds tells whether a message is still to be done here.
func (q *assignedQueue) holds(d *Delivery) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return !q.dropped && d.generation == q.generation
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
	return w.count() <= limits.QueueMessages && w.bytes <= limits.QueueBytes &&
		(limits.Ordered || w.span() <= int64(limits.QueueSpan))
}

// pullFrom returns where the next pull begins and what to commit with it.
func (q *assignedQueue) pullFrom() (next, commit int64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.window.next, q.window.commit()
}

// takeCommit returns the offset to commit when it has changed since the last
// time, or in any case when final.
func (q *assignedQueue) takeCommit() (offset int64, changed bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.placed || q.dropped {
		return 0, false
	}
	offset = q.window.commit()
	changed = offset != q.committed
	q.committed = offset
	return offset, changed
}

// uncommit says that the broker was not told.
func (q *assignedQueue) uncommit() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.committed = -1
}

// drop ends the queue here and returns the offset that was reached, if any.
func (q *assignedQueue) drop() (offset int64, placed bool) {
	q.cancel()
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.dropped || !q.placed {
		q.dropped = true
		return 0, false
	}
	q.dropped = true
	return q.window.commit(), true
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
