package mq

import (
	"context"
	"errors"
	"time"
)

const (
	longestTurn  = 60 * time.Second // RocketMQ: maxTimeConsumeContinuously
	queueRelease = time.Second      // how long a lost queue's listeners are waited for
)

// workOrdered runs the listener on one batch after the other while it has the
// queue for itself: one worker at a time, and only under the broker's lock.
func (c *Consumer) workOrdered(q *assignedQueue, batch []*Delivery) {
	if !q.begin() {
		return
	}
	// The rest counts when a listener ends its goroutine.
	pause := c.cfg.Suspend
	defer func() {
		if q.end(pause) {
			c.pushAfter(q, pause)
		}
	}()
	for start := time.Now(); time.Since(start) < longestTurn; {
		if rest := c.ensureLock(q); rest > 0 {
			pause = rest
			return
		}
		batch = q.claimOrdered(c, batch[:0])
		if len(batch) == 0 {
			break
		}
		if rest := c.listenOrdered(q, batch); rest > 0 {
			pause = rest
			return
		}
	}
	pause = 0
}

// listenOrdered handles one batch and returns how long the queue rests. A message
// that failed is put back with what follows it, or it goes to the dead-letter
// topic when its retries are used up.
func (c *Consumer) listenOrdered(q *assignedQueue, batch []*Delivery) (rest time.Duration) {
	batch, err := c.refresh(q, batch)
	if err != nil || len(batch) == 0 {
		q.unclaim()
		return c.restAfter(err)
	}
	sub := c.subscriptionOf(batch[0].topic)
	if sub == nil && !c.isRetry(q.queue) { // unsubscribed; the next rebalance drops the queue
		return c.cfg.Suspend
	}
	done, err := c.listen(sub, batch)
	q.finish(c, batch[:done]...)
	if done == len(batch) {
		return 0
	}
	if errors.Is(err, ErrSkip) {
		q.finish(c, batch[done:]...)
		return 0
	}
	failed := batch[done]
	if c.interrupted(err) {
		return c.cfg.Suspend
	}
	if errors.Is(err, ErrDeadLetter) || c.cfg.MaxRetries < 0 || int(failed.retries) >= c.cfg.MaxRetries {
		if c.sendBack(q, failed, -1, err) {
			q.finish(c, failed)
			q.unclaim()
			return 0
		}
	}
	failed.retries++
	rest = c.restAfter(err)
	c.log.Debug("ordered queue rests", "queue", q.queue, "message", failed.id, "for", rest, "err", err)
	return rest
}

// restAfter is how long an ordered queue rests after a failure; zero without one.
func (c *Consumer) restAfter(err error) time.Duration {
	if err == nil {
		return 0
	}
	if after := (*retryError)(nil); errors.As(err, &after) && after.after > 0 {
		return max(minSuspend, min(after.after, maxSuspend))
	}
	return c.cfg.Suspend
}

// refresh replaces the messages of an ordered batch that a listener had before by
// fresh copies. Those that the broker has no more are done with.
func (c *Consumer) refresh(q *assignedQueue, batch []*Delivery) ([]*Delivery, error) {
	kept := batch[:0]
	for _, d := range batch {
		if !d.used {
			kept = append(kept, d)
			continue
		}
		fresh, gone, err := c.fetchAgain(q, d)
		switch {
		case err != nil:
			return nil, err
		case gone:
			q.finish(c, d)
		default:
			kept = append(kept, fresh)
		}
	}
	return kept, nil
}

// pushAfter gives a queue to the workers again when its rest is over.
func (c *Consumer) pushAfter(q *assignedQueue, pause time.Duration) {
	if pause <= 0 {
		c.tasks.push(q)
		return
	}
	c.life.run(func(ctx context.Context) {
		if sleep(ctx, pause) {
			c.tasks.push(q)
		}
	})
}

// What ordered consumption asks of a queue.

// begin takes the queue for one worker; false when it has one, rests or is gone.
func (q *assignedQueue) begin() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.hands > 0 || q.dropped || q.leaving || time.Now().Before(q.lock.restUntil) {
		return false
	}
	q.hands = 1
	return true
}

// end gives the queue back with what was not finished, lets it rest for pause, and
// returns whether it is to be pushed again then.
func (q *assignedQueue) end(pause time.Duration) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.hands = 0
	q.window.unclaim()
	if pause > 0 {
		q.lock.restUntil = time.Now().Add(pause)
	}
	q.closeIfIdleLocked()
	return !q.dropped && (pause > 0 || q.waitingLocked() > 0)
}

// claimOrdered takes from the front what one call of the listener gets; nothing
// when the turn is to end.
func (q *assignedQueue) claimOrdered(c *Consumer, batch []*Delivery) []*Delivery {
	q.mu.Lock()
	defer q.mu.Unlock()
	d := q.window.first()
	if d == nil || q.dropped || q.leaving || c.tasks.stopping() {
		return batch
	}
	return q.window.claim(batch, c.subscriptionOf(d.topic).callSize(), time.Now())
}

func (q *assignedQueue) unclaim() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.window.unclaim()
}
