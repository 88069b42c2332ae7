package transport

import "sync"

// frameOverhead is what a queued frame counts for beside its body.
const frameOverhead = 128

// A budget counts the bytes of a queue: those that wait and those that its
// reader took but has not finished. The queue's mutex guards it.
type budget struct {
	waiting, taken int
	room           chan struct{} // closed when bytes become free; nil: nobody waits
}

// fits takes n bytes if the queue stays within limit. A frame that is larger than
// the limit fits when the queue is empty.
func (b *budget) fits(n, limit int) bool {
	if held := b.waiting + b.taken; held > 0 && held+n > limit {
		return false
	}
	b.waiting += n
	return true
}

// freed returns the channel that closes when bytes become free.
func (b *budget) freed() <-chan struct{} {
	if b.room == nil {
		b.room = make(chan struct{})
	}
	return b.room
}

// take hands all waiting bytes to the reader, which has finished the last lot.
func (b *budget) take() {
	if b.taken > 0 && b.room != nil {
		close(b.room)
		b.room = nil
	}
	b.taken, b.waiting = b.waiting, 0
}

// A pipe is one direction of a memory connection: many writers, one reader that
// takes everything at once.
type pipe struct {
	wake chan struct{} // capacity 1

	mu     sync.Mutex
	queue  []*envelope
	budget budget
	asleep bool // the reader waits for wake
	closed bool
}

func newPipe() *pipe { return &pipe{wake: make(chan struct{}, 1)} }

// push appends an envelope of n bytes.
func (p *pipe) push(e *envelope, n, limit int) (<-chan struct{}, error) {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return nil, ErrClosed
	}
	if !p.budget.fits(n, limit) {
		room := p.budget.freed()
		p.mu.Unlock()
		return room, errNoRoom
	}
	p.queue = append(p.queue, e)
	wake := p.asleep
	p.asleep = false
	p.mu.Unlock()
	if wake {
		p.wake <- struct{}{} // never blocks: one token for each time asleep is set
	}
	return nil, nil
}

// pull swaps the queue for spare, which must be empty. It waits until there is
// something, the pipe is closed and drained, or stop closes; the last two give
// false.
func (p *pipe) pull(spare []*envelope, stop <-chan struct{}) ([]*envelope, bool) {
	for {
		p.mu.Lock()
		p.budget.take()
		if len(p.queue) > 0 {
			batch := p.queue
			p.queue = spare
			p.mu.Unlock()
			return batch, true
		}
		if p.closed {
			p.mu.Unlock()
			return nil, false
		}
		p.asleep = true
		p.mu.Unlock()
		select {
		case <-p.wake:
		case <-stop:
			return nil, false
		}
	}
}

// close refuses further envelopes; with flush the reader still gets those queued.
func (p *pipe) close(flush bool) {
	p.mu.Lock()
	p.closed = true
	if !flush {
		clear(p.queue)
		p.queue = p.queue[:0]
	}
	wake := p.asleep
	p.asleep = false
	p.mu.Unlock()
	if wake {
		p.wake <- struct{}{}
	}
}
