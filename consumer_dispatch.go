package mq

import (
	"context"
	"sync"
	"sync/atomic"
)

// dispatcher hands queues that have work to the workers. A queue is in the list
// at most once; a worker that leaves work behind puts it back at the end, so
// that queues take turns.
type dispatcher struct {
	mu      sync.Mutex
	ready   []*assignedQueue
	head    int
	idlers  int           // workers waiting for wake
	wake    chan struct{} // capacity: all workers, so that sending never blocks
	running int           // workers that have a queue
	drained atomic.Bool   // set under mu, read without
	quiet   chan struct{} // closed once drained and nobody is running
}

func newDispatcher(workers int) *dispatcher {
	return &dispatcher{wake: make(chan struct{}, workers), quiet: make(chan struct{})}
}

// push says that q has work.
func (d *dispatcher) push(q *assignedQueue) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if q.ready || d.drained.Load() {
		return
	}
	q.ready = true
	d.ready = append(d.ready, q)
	if d.idlers > 0 {
		d.idlers--
		d.wake <- struct{}{}
	}
}

// next waits for a queue with work; the worker calls done when it leaves it. It
// returns nil when ctx ends or no new work is to be begun.
func (d *dispatcher) next(ctx context.Context) *assignedQueue {
	for {
		q, drained := d.take()
		if q != nil || drained {
			return q
		}
		select {
		case <-d.wake:
		case <-ctx.Done():
			return nil
		}
	}
}

func (d *dispatcher) take() (q *assignedQueue, drained bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.drained.Load() {
		return nil, true
	}
	if d.head == len(d.ready) {
		d.idlers++
		return nil, false
	}
	q = d.ready[d.head]
	d.ready[d.head] = nil
	if d.head++; d.head == len(d.ready) {
		d.ready, d.head = d.ready[:0], 0
	} else if d.head > 64 && d.head*2 > len(d.ready) {
		n := copy(d.ready, d.ready[d.head:])
		clear(d.ready[n:])
		d.ready, d.head = d.ready[:n], 0
	}
	q.ready = false
	d.running++
	return q, false
}

// done ends the turn that next began.
func (d *dispatcher) done() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.running--
	d.closeIfQuietLocked()
}

// drain lets no new work begin.
func (d *dispatcher) drain() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.drained.CompareAndSwap(false, true) {
		d.closeIfQuietLocked()
	}
}

// stopping tells whether drain was called.
func (d *dispatcher) stopping() bool { return d.drained.Load() }

// idle is closed when drain was called and the last worker is done.
func (d *dispatcher) idle() <-chan struct{} { return d.quiet }

func (d *dispatcher) closeIfQuietLocked() {
	if d.drained.Load() && d.running == 0 {
		select {
		case <-d.quiet:
		default:
			close(d.quiet)
		}
	}
}
