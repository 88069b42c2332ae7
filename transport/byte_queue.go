package transport

import "sync"

// Bodies up to copyBelow are copied next to their heads, larger ones are sent
// from where they are.
const copyBelow = 8 << 10

// chunkSize is the size of the buffers that frames are gathered in. One growing
// buffer instead would be copied and faulted in again for each large round.
const chunkSize = 64 << 10

// chunks lends the buffers. A connection holds some only while bytes wait.
var chunks = sync.Pool{New: func() any { return new([chunkSize]byte) }}

// A batch is what one round of a writer sends.
type batch struct {
	pieces [][]byte // in order: parts of chunks, and large bodies
	open   bool     // the last piece is the end of the last chunk and may grow
	chunks [][]byte // those in use; the last one is being filled
}

// text appends a copy of p.
func (b *batch) text(p []byte) {
	if len(p) == 0 {
		return
	}
	last := len(b.chunks) - 1
	if last < 0 || cap(b.chunks[last])-len(b.chunks[last]) < len(p) {
		if len(p) > chunkSize {
			b.chunks = append(b.chunks, make([]byte, 0, len(p)))
		} else {
			b.chunks = append(b.chunks, chunks.Get().(*[chunkSize]byte)[:0])
		}
		last++
		b.open = false
	}
	at := len(b.chunks[last])
	chunk := append(b.chunks[last], p...)
	b.chunks[last] = chunk
	if b.open {
		at -= len(b.pieces[len(b.pieces)-1])
		b.pieces[len(b.pieces)-1] = chunk[at:]
	} else {
		b.pieces = append(b.pieces, chunk[at:])
	}
	b.open = true
}

// frame appends a frame.
func (b *batch) frame(head, body []byte) {
	b.text(head)
	if len(body) <= copyBelow {
		b.text(body)
		return
	}
	b.pieces = append(b.pieces, body)
	b.open = false
}

// reset empties the batch for reuse.
func (b *batch) reset() {
	for _, c := range b.chunks {
		if cap(c) == chunkSize {
			chunks.Put((*[chunkSize]byte)(c[:chunkSize]))
		}
	}
	clear(b.chunks)
	clear(b.pieces)
	b.chunks, b.pieces, b.open = b.chunks[:0], b.pieces[:0], false
	if cap(b.pieces) > spareFrames {
		b.pieces = nil
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
	q.next.frame(head, body)
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
		if len(q.next.pieces) > 0 {
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
		q.next.reset()
	}
	wake := q.asleep
	q.asleep = false
	q.mu.Unlock()
	if wake {
		q.wake <- struct{}{}
	}
}
