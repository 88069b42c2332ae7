package storage

// ring keeps the chunks written last, so that a consumer that keeps up is
// answered without Pebble. It holds no copies: a group's batch is built in
// memory of its own, exactly as large as needed, and that memory stays here
// until it is among the oldest. A reader may hold chunks longer; nothing in a
// published group is ever written again, so the garbage collector takes it
// when the last reader is done.
//
// The list belongs to the committer; readers find chunks through their queue.
type ring struct {
	limit  int64
	bytes  int64
	groups []ringGroup // oldest first
	head   int         // groups before it are gone
}

// ringGroup is one group's memory and the owners of its chunks, in order.
type ringGroup struct {
	bytes  int64
	queues []*queue
}

// recentChunk is a chunk in the ring.
type recentChunk struct {
	first, next int64 // its offsets, from first to below next
	value       []byte
}

// chunkOverhead is what a chunk in the ring costs besides its bytes.
const chunkOverhead = 128

// add takes a published group's chunks into account and lets the oldest groups
// go.
func (r *ring) add(g ringGroup) {
	g.bytes += int64(len(g.queues)) * chunkOverhead
	r.groups = append(r.groups, g)
	r.bytes += g.bytes
	for r.bytes > r.limit {
		old := &r.groups[r.head]
		for _, q := range old.queues {
			q.dropRecent()
		}
		r.bytes -= old.bytes
		*old = ringGroup{}
		r.head++
	}
	if r.head > len(r.groups)/2 {
		n := copy(r.groups, r.groups[r.head:])
		clear(r.groups[n:])
		r.groups, r.head = r.groups[:n], 0
	}
}

// reset empties the ring; the queues are cleared by their owner.
func (r *ring) reset() { *r = ring{limit: r.limit} }

// dropRecent forgets the oldest chunk; a queue that was cleared has none.
func (q *queue) dropRecent() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.recent) == 0 {
		return
	}
	q.recent[0] = recentChunk{}
	q.recent = q.recent[1:]
}

// recentFrom returns the chunks from the one holding the offset on, at most
// as many as dst can take; none when the ring does not reach back that far.
func (q *queue) recentFrom(offset int64, dst []recentChunk) (b bounds, chunks []recentChunk, loaded bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	b = bounds{q.min, q.next, q.segments}
	if !q.loaded || len(q.recent) == 0 || offset < q.recent[0].first {
		return b, nil, q.loaded
	}
	low, high := 0, len(q.recent)
	for low < high {
		mid := int(uint(low+high) >> 1)
		if q.recent[mid].next > offset {
			high = mid
		} else {
			low = mid + 1
		}
	}
	return b, append(dst, q.recent[low:min(len(q.recent), low+cap(dst))]...), true
}
