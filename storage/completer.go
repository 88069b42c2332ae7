package storage

import "sync"

// completer tells requests their outcome, on a goroutine of its own, so that
// what a sender does about it never holds up the lane. It works off everything
// that is there each time it wakes.
type completer struct {
	wake chan struct{} // capacity 1
	done chan struct{}

	mu       sync.Mutex
	sleeping bool
	ending   bool
	ended    bool
	outcomes []outcome
}

// outcome is one error for one request or for those of a group.
type outcome struct {
	one  *Request
	many []*Request
	err  error
}

func newCompleter() *completer {
	return &completer{wake: make(chan struct{}, 1), done: make(chan struct{})}
}

// put hands over an outcome. A request that is submitted to a store that is
// closed for good is told so by a goroutine that does nothing else: its sender
// may hold what Completed wants.
func (c *completer) put(o outcome) {
	c.mu.Lock()
	if c.ended {
		c.mu.Unlock()
		go o.tell()
		return
	}
	c.outcomes = append(c.outcomes, o)
	c.unlockAndWake()
}

func (c *completer) unlockAndWake() {
	sleeping := c.sleeping
	c.sleeping = false
	c.mu.Unlock()
	if sleeping {
		select {
		case c.wake <- struct{}{}:
		default: // a wake-up is pending already
		}
	}
}

func (c *completer) run() {
	defer close(c.done)
	var work []outcome
	for {
		c.mu.Lock()
		work, c.outcomes = c.outcomes, work[:0]
		c.ended = c.ending && len(work) == 0
		ended := c.ended
		c.sleeping = len(work) == 0
		c.mu.Unlock()
		if len(work) == 0 {
			if ended {
				return
			}
			<-c.wake
			continue
		}
		for i := range work {
			work[i].tell()
		}
		clear(work)
	}
}

func (o *outcome) tell() {
	if o.one != nil {
		tell(o.one, o.err)
	}
	for _, r := range o.many {
		tell(r, o.err)
	}
}

// tell completes one request. Its own verdict, which means that it had no
// effect, is more than what is known of its group.
func tell(r *Request, err error) {
	if r.verdict != nil {
		err = r.verdict
	}
	if r.Completion != nil {
		r.Completion.Completed(r, err)
	}
}

// end lets the completer finish after what is there, and waits.
func (c *completer) end() {
	c.mu.Lock()
	c.ending = true
	c.unlockAndWake()
	<-c.done
}

// waker tells Options.Grown which queues grew, on a goroutine of its own. A
// queue that grows again before it was told is told once.
type waker struct {
	call func([]Growth)
	wake chan struct{} // capacity 1
	done chan struct{}

	mu       sync.Mutex
	sleeping bool
	ending   bool
	queues   []*queue
}

func newWaker(call func([]Growth)) *waker {
	return &waker{call: call, wake: make(chan struct{}, 1), done: make(chan struct{})}
}

func (w *waker) grown(chunks []builtChunk) {
	if w.call == nil || len(chunks) == 0 {
		return
	}
	w.mu.Lock()
	for i := range chunks {
		if q := chunks[i].q; !q.waking {
			q.waking = true
			w.queues = append(w.queues, q)
		}
	}
	w.unlockAndWake()
}

func (w *waker) unlockAndWake() {
	sleeping := w.sleeping
	w.sleeping = false
	w.mu.Unlock()
	if sleeping {
		select {
		case w.wake <- struct{}{}:
		default: // a wake-up is pending already
		}
	}
}

func (w *waker) run() {
	defer close(w.done)
	var queues []*queue
	var growth []Growth
	for {
		w.mu.Lock()
		queues, w.queues = w.queues, queues[:0]
		for _, q := range queues {
			q.waking = false
		}
		ending := w.ending
		w.sleeping = len(queues) == 0
		w.mu.Unlock()
		if len(queues) == 0 {
			if ending {
				return
			}
			<-w.wake
			continue
		}
		growth = growth[:0]
		for _, q := range queues {
			if b, ok := q.known(); ok {
				growth = append(growth, Growth{q.topic, q.number, b.next})
			}
		}
		if len(growth) > 0 {
			w.call(growth)
		}
		clear(queues)
	}
}

// end lets the waker finish after what is there, and waits.
func (w *waker) end() {
	w.mu.Lock()
	w.ending = true
	w.unlockAndWake()
	<-w.done
}
