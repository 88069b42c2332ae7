package mq

import (
	"container/heap"
	"slices"
	"sync"
	"time"

	"github.com/pocketmq/mq/storage"
	"github.com/pocketmq/mq/transport"
)

// Long polling: a pull that finds nothing new is held until its queue grows, its
// time is up, or its connection closes. A held pull costs no goroutine.
//
// Whoever wants to answer a held pull takes it first; only one can, so that each
// is answered once. Reading happens while the pull is still held: taking it to
// look, and putting it back when nothing matched, would leave a gap in which a
// growth or the close of its connection passes unseen.
const (
	maxHeldPulls     = 100_000
	maxHeldPerConn   = 20_000
	longestHold      = time.Hour
	holdSweepEvery   = 5 * time.Second // RocketMQ: the period of PullRequestHoldService
	holdRetainedSets = 1024            // empty sets kept for the next pull of their queue
)

type holdQueue struct {
	topic *storage.Topic
	queue int32
}

// pullHolds is the set of held pulls, by queue, by connection and by deadline. It
// holds no timer and reads no clock.
type pullHolds struct {
	limit, perConn int
	rouse          chan struct{} // tells runHolds of a new earliest deadline
	wake           func(*pull)   // looks at a held pull whose queue grew

	mu     sync.Mutex
	queues map[holdQueue]*holdSet
	conns  map[transport.Conn]*holdSet
	byTime holdHeap
	empty  int // sets in queues that are empty
	closed bool
}

// A holdSet knows each of its pulls' places, so that one leaves in constant time.
type holdSet struct{ pulls []*pull }

func newPullHolds(limit, perConn int, wake func(*pull)) *pullHolds {
	return &pullHolds{
		limit: limit, perConn: perConn,
		rouse: make(chan struct{}, 1), wake: wake,
		queues: make(map[holdQueue]*holdSet),
		conns:  make(map[transport.Conn]*holdSet),
	}
}

type holdVerdict int

const (
	held holdVerdict = iota
	holdsFull
	holdsClosed
)

// add holds p until deadline. first tells whether its deadline is the earliest of
// all now. The caller reads p's queue once more afterwards: what was appended
// before add has woken nobody.
func (h *pullHolds) add(p *pull, deadline time.Time) (v holdVerdict, first bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return holdsClosed, false
	}
	conn := h.conns[p.conn]
	if len(h.byTime) >= h.limit || conn != nil && len(conn.pulls) >= h.perConn {
		return holdsFull, false
	}
	if conn == nil {
		conn = new(holdSet)
		h.conns[p.conn] = conn
	}
	key := p.holdQueue()
	queue := h.queues[key]
	if queue == nil {
		queue = new(holdSet)
		h.queues[key] = queue
	} else if len(queue.pulls) == 0 {
		h.empty--
	}
	p.deadline = deadline
	p.hold.byQueue, p.hold.byConn = len(queue.pulls), len(conn.pulls)
	queue.pulls, conn.pulls = append(queue.pulls, p), append(conn.pulls, p)
	heap.Push(&h.byTime, p)
	p.hold.in = true
	return held, p.hold.byTime == 0
}

// take ends the hold of p and tells whether it was held; then the caller owes it
// its answer.
func (h *pullHolds) take(p *pull) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.remove(p)
}

// has tells whether p is held.
func (h *pullHolds) has(p *pull) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return p.hold.in
}

func (h *pullHolds) remove(p *pull) bool {
	if !p.hold.in {
		return false
	}
	p.hold.in = false
	heap.Remove(&h.byTime, p.hold.byTime)
	queue := h.queues[p.holdQueue()]
	last := queue.pop()
	if last != p {
		queue.pulls[p.hold.byQueue] = last
		last.hold.byQueue = p.hold.byQueue
	}
	if len(queue.pulls) == 0 {
		// Kept for the next pull of this queue, which comes soon as a rule.
		if h.empty++; h.empty > holdRetainedSets {
			h.dropEmpty()
		}
	}
	conn := h.conns[p.conn]
	last = conn.pop()
	if last != p {
		conn.pulls[p.hold.byConn] = last
		last.hold.byConn = p.hold.byConn
	}
	return true
}

func (s *holdSet) pop() *pull {
	n := len(s.pulls) - 1
	p := s.pulls[n]
	s.pulls[n] = nil
	s.pulls = s.pulls[:n]
	return p
}

func (h *pullHolds) dropEmpty() {
	for key, s := range h.queues {
		if len(s.pulls) == 0 {
			delete(h.queues, key)
		}
	}
	h.empty = 0
}

// on appends the pulls held on a queue that want an offset below next.
func (h *pullHolds) on(topic *storage.Topic, queue int32, next int64, pulls []*pull) []*pull {
	h.mu.Lock()
	defer h.mu.Unlock()
	if s := h.queues[holdQueue{topic, queue}]; s != nil {
		for _, p := range s.pulls {
			if p.from.Load() < next {
				pulls = append(pulls, p)
			}
		}
	}
	return pulls
}

// grown wakes the pulls held on queues that grew. It runs on the store's waker.
func (h *pullHolds) grown(growths []storage.Growth) {
	if h.len() == 0 {
		return
	}
	var pulls []*pull
	for _, g := range growths {
		pulls = h.on(g.Topic, g.Queue, g.Next, pulls[:0])
		for _, p := range pulls {
			h.wake(p)
		}
	}
}

// all appends every held pull.
func (h *pullHolds) all(pulls []*pull) []*pull {
	h.mu.Lock()
	defer h.mu.Unlock()
	return append(pulls, h.byTime...)
}

// due takes the pulls whose time is up and returns when the next one's is; zero
// when nothing is held.
func (h *pullHolds) due(now time.Time, pulls []*pull) ([]*pull, time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for len(h.byTime) > 0 {
		p := h.byTime[0]
		if p.deadline.After(now) {
			return pulls, p.deadline
		}
		h.remove(p)
		pulls = append(pulls, p)
	}
	return pulls, time.Time{}
}

// drop takes the pulls of a closed connection. Nobody waits for their answers, but
// each is owed one, which ends the count of the bytes it holds.
func (h *pullHolds) drop(c transport.Conn) (pulls []*pull) {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := h.conns[c]
	if s == nil {
		return nil
	}
	pulls = slices.Clone(s.pulls)
	for _, p := range pulls {
		h.remove(p)
	}
	delete(h.conns, c)
	return pulls
}

// close takes every pull and refuses new ones.
func (h *pullHolds) close() []*pull {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closed = true
	pulls := append([]*pull(nil), h.byTime...)
	for _, p := range pulls {
		h.remove(p)
	}
	h.dropEmpty()
	return pulls
}

// len is the number of held pulls.
func (h *pullHolds) len() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.byTime)
}

// A holdHeap has the pull with the earliest deadline first.
type holdHeap []*pull

func (h holdHeap) Len() int           { return len(h) }
func (h holdHeap) Less(i, j int) bool { return h[i].deadline.Before(h[j].deadline) }

func (h holdHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].hold.byTime, h[j].hold.byTime = i, j
}

// Push implements heap.Interface.
func (h *holdHeap) Push(x any) {
	p := x.(*pull)
	p.hold.byTime = len(*h)
	*h = append(*h, p)
}

// Pop implements heap.Interface.
func (h *holdHeap) Pop() any {
	old := *h
	n := len(old) - 1
	p := old[n]
	old[n] = nil
	*h = old[:n]
	return p
}
