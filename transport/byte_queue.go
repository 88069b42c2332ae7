package transport

import "sync"

// Bodies up to copyBelow are copied into the buffer that a write sends, larger
// ones are sent from where they are.
const copyBelow = 16 << 10

// spareBytes is the largest buffer a writer keeps for the next round.
const spareBytes = 1 << 20

// A batch is what one round of a writer sends: text with large bodies between.
type batch struct {
	text  []byte
	large []largeBody
}

type largeBody struct {
	at   int // before this place in text
	body []byte
}

func (b *batch) empty() bool { return len(b.text) == 0 }

// reset empties the batch for reuse.
func (b *batch) reset() {
	clear(b.large)
	b.large = b.large[:0]
	if b.text = b.text[:0]; cap(b.text) > spareBytes {
		b.text = nil
	}
}

// A byteQueue holds encoded frames for a connection's writer, which takes
// everything at once. It is to TCP what pipe is to memory.
type byteQueue struct {
	wake chan struct{} // capacity 1

	mu     sync.Mutex
	next   batch
	budget budget
	asleep bool
	closed bool
}

func newByteQueue() *byteQueue { return &byteQueue{wake: make(chan struct{}, 1)} }

func (q *byteQueue) push(head, body []byte, limit int) (<-chan struct{}, error) {
	q.mu.Lock()
	if q.closed {
		q.mu.Unlock()
		return nil, ErrClosed
	}
	if !q.budget.fits(len(head)+len(body), limit) {
		room := q.budget.freed()
		q.mu.Unlock()
		return room, errNoRoom
	}
	q.next.text = append(q.next.text, head...)
	if len(body) <= copyBelow {
		q.next.text = append(q.next.text, body...)
	} else {
		q.next.large = append(q.next.large, largeBody{len(q.next.text), body})
	}
	wake := q.asleep
	q.asleep = false
	q.mu.Unlock()
	if wake {
		q.wake <- struct{}{} // never blocks: one token for each time asleep is set
	}
	return nil, nil
}

// pull swaps the queue for spare, which must be empty. It waits until there is
// something; false means closed and drained.
func (q *byteQueue) pull(spare batch) (batch, bool) {
	for {
		q.mu.Lock()
		q.budget.take()
		if !q.next.empty() {
			b := q.next
			q.next = spare
			q.mu.Unlock()
			return b, true
		}
		if q.closed {
			q.mu.Unlock()
			return batch{}, false
		}
		q.asleep = true
		q.mu.Unlock()
		<-q.wake
	}
}

// close refuses further frames; with flush the writer still gets those queued.
func (q *byteQueue) close(flush bool) {
	q.mu.Lock()
	q.closed = true
	if !flush {
		q.next = batch{}
	}
	wake := q.asleep
	q.asleep = false
	q.mu.Unlock()
	if wake {
		q.wake <- struct{}{}
	}
}
