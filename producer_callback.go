package mq

import (
	"context"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"
)

// patience is how long SendAsync waits for outcomes to be told when too many are
// waiting. The wait is short and then given up, because the one who waits may be
// the very callback that the others wait for.
const patience = 50 * time.Millisecond

// A callbackQueue tells outcomes to the users' callbacks, on goroutines of its
// own.
type callbackQueue struct {
	log   *slog.Logger
	share int           // outcomes a worker takes at once; 0 all
	limit int64         // outcomes from which on new sends are slowed down
	wake  chan struct{} // of one place for each worker
	room  chan struct{} // has a value when the backlog fell below the limit

	backlog atomic.Int64 // pushed, and not yet told

	mu     sync.Mutex
	queue  []finished
	closed bool
}

// A finished send is what its callback needs: the message itself is let go.
type finished struct {
	callback func(*SendResult, error)
	result   *SendResult
	err      error
}

func newCallbackQueue(log *slog.Logger, workers, window int) *callbackQueue {
	q := &callbackQueue{
		log:   log,
		limit: 1 << 16,
		wake:  make(chan struct{}, workers),
		room:  make(chan struct{}, 1),
	}
	if window > 0 {
		q.limit = int64(8*window + 1024)
	}
	if workers > 1 {
		q.share = 32
	}
	return q
}

func (q *callbackQueue) push(f ...finished) {
	q.backlog.Add(int64(len(f)))
	q.mu.Lock()
	wake := len(q.queue) == 0 || q.share > 0
	q.queue = append(q.queue, f...)
	q.mu.Unlock()
	if wake {
		signal(q.wake)
	}
}

// signal puts a value into a channel that has no room only when it is not needed.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// close lets the workers end when they have told everything.
func (q *callbackQueue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.closed {
		q.closed = true
		close(q.wake)
	}
}

// work tells outcomes until the queue is closed and empty.
func (q *callbackQueue) work() {
	var batch []finished
	for {
		var closed bool
		batch, closed = q.take(batch)
		if len(batch) == 0 {
			if closed {
				return
			}
			<-q.wake
			continue
		}
		for i := range batch {
			q.tell(&batch[i])
		}
		clear(batch)
	}
}

// take returns the next outcomes. With one worker it swaps the queue for the
// emptied batch, so that neither grows anew. With several, one that leaves some
// wakes another.
func (q *callbackQueue) take(empty []finished) (batch []finished, closed bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.share == 0 {
		batch, q.queue = q.queue, empty[:0]
		return batch, q.closed
	}
	n := min(q.share, len(q.queue))
	batch = append(empty[:0], q.queue[:n]...)
	rest := copy(q.queue, q.queue[n:])
	clear(q.queue[rest:])
	q.queue = q.queue[:rest]
	if rest > 0 && !q.closed {
		signal(q.wake)
	}
	return batch, q.closed
}

func (q *callbackQueue) tell(f *finished) {
	defer func() {
		if v := recover(); v != nil {
			q.log.Error("callback panicked", "err", fmt.Sprint(v), "stack", string(debug.Stack()))
		}
		if q.backlog.Add(-1) == q.limit {
			signal(q.room)
		}
	}()
	f.callback(f.result, f.err)
}

// throttle slows a sender down while callbacks do not keep up.
func (q *callbackQueue) throttle(ctx context.Context) {
	if q.backlog.Load() <= q.limit {
		return
	}
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-q.room:
		if q.backlog.Load() < q.limit {
			signal(q.room) // for the next who waits
		}
	case <-timer.C:
	case <-ctx.Done():
	}
}
