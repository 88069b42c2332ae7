package mq

import (
	"context"
	"errors"
	"time"

	"github.com/pocketmq/mq/internal/wire"
)

// RocketMQ's times of ordered consumption: a lock is renewed before this member
// stops trusting it, and trusted for less long than the broker keeps it.
const (
	lockPeriod   = 20 * time.Second
	lockTrust    = 30 * time.Second
	lockTimeout  = time.Second
	longestTurn  = 60 * time.Second // RocketMQ: maxTimeConsumeContinuously
	lockedRetry  = 3 * time.Second  // when the lock was not to be had
	queueRelease = time.Second      // how long a lost queue's listener is waited for
)

// workOrdered runs the listener on one batch after the other while it has the
// queue for itself: one worker at a time, and only under the broker's lock.
func (c *Consumer) workOrdered(q *assignedQueue, batch []*Delivery) {
	if !q.begin() {
		return
	}
	pause := time.Duration(0)
	for start := time.Now(); ; {
		if !q.locked(time.Now()) {
			pause = c.relock(q)
			break
		}
		if time.Since(start) > longestTurn || c.tasks.stopping() {
			break
		}
		var ok bool
		if batch, ok = q.claimOrdered(batch[:0], c.orderedBatch(q)); !ok {
			break
		}
		if pause, ok = c.listenOrdered(q, batch); !ok {
			break
		}
	}
	if q.end(pause) || pause > 0 {
		c.pushAfter(q, pause)
	}
}

func (c *Consumer) orderedBatch(q *assignedQueue) int {
	if sub := c.subscriptionOf(q.queue.Topic); sub != nil && sub.listen != nil {
		return sub.batch
	}
	return 1
}

// listenOrdered handles one batch. A message that failed is put back with what
// follows it and the queue rests, or it goes to the dead-letter topic when its
// retries are used up. It returns false when the turn ends.
func (c *Consumer) listenOrdered(q *assignedQueue, batch []*Delivery) (pause time.Duration, ok bool) {
	sub := c.subscriptionOf(batch[0].topic)
	done, err := c.listen(sub, batch)
	for _, d := range batch[:done] {
		q.finish(d, &c.cfg)
	}
	if err == nil || done == len(batch) {
		return 0, true
	}
	failed := batch[done]
	if errors.Is(err, ErrSkip) {
		for _, d := range batch[done:] {
			q.finish(d, &c.cfg)
		}
		return 0, true
	}
	if errors.Is(err, ErrDeadLetter) || c.cfg.MaxRetries < 0 || int(failed.retries) >= c.cfg.MaxRetries {
		if c.sendBack(q, failed, -1, err) {
			q.finish(failed, &c.cfg)
			q.unclaim()
			return 0, true
		}
	}
	failed.retries++
	failed.Attempt = int(failed.retries) + 1
	q.unclaim()
	pause = c.cfg.Suspend
	if after := (*retryError)(nil); errors.As(err, &after) && after.after > 0 {
		pause = max(minSuspend, min(after.after, maxSuspend))
	}
	c.log.Debug("ordered queue rests", "queue", q.queue, "message", failed.id, "for", pause, "err", err)
	return pause, false
}

// relock asks for the lock again and says how long the queue rests without it.
func (c *Consumer) relock(q *assignedQueue) time.Duration {
	ctx, cancel := context.WithTimeout(c.life.ctx, lockTimeout)
	defer cancel()
	if err := c.lockQueues(ctx, q.queue.Broker, []*assignedQueue{q}); err != nil || !q.locked(time.Now()) {
		return lockedRetry
	}
	return minSuspend
}

// pushAfter gives a queue to the workers again when its rest is over.
func (c *Consumer) pushAfter(q *assignedQueue, pause time.Duration) {
	if pause <= 0 {
		c.tasks.push(q)
		return
	}
	time.AfterFunc(pause, func() {
		if q.rested() {
			c.tasks.push(q)
		}
	})
}

// lockLoop renews the locks of all queues, broker by broker.
func (c *Consumer) lockLoop(ctx context.Context) {
	for sleep(ctx, lockPeriod) {
		byBroker := make(map[string][]*assignedQueue)
		for _, q := range c.assignedQueues() {
			byBroker[q.queue.Broker] = append(byBroker[q.queue.Broker], q)
		}
		for broker, queues := range byBroker {
			callCtx, cancel := context.WithTimeout(ctx, lockTimeout)
			if err := c.lockQueues(callCtx, broker, queues); err != nil && ctx.Err() == nil {
				c.log.Warn("queues not locked", "broker", broker, "err", err)
			}
			cancel()
		}
	}
}

// lockQueues asks a broker's master for the locks of queues. Those it does not
// grant are another member's.
func (c *Consumer) lockQueues(ctx context.Context, broker string, queues []*assignedQueue) error {
	addr, ok := c.client.masterAddr(broker)
	if !ok {
		return &Error{Op: "lock queues of " + broker, Err: ErrNoRoute}
	}
	begun := time.Now()
	f, err := c.client.call(ctx, addr, wire.CodeLockBatchMQ, nil, c.lockBody(queues))
	if err != nil {
		return err
	}
	if f.Code != wire.Success {
		return answerError("lock queues", addr, f)
	}
	granted, err := wire.ParseLockBatchResponse(f.Body)
	if err != nil {
		return &Error{Op: "lock queues", Addr: addr, Err: err}
	}
	held := make(map[Queue]bool)
	for _, q := range granted.Locked {
		held[Queue{q.Topic, q.BrokerName, int(q.QueueID)}] = true
	}
	for _, q := range queues {
		q.setLocked(held[q.queue], begun)
	}
	return nil
}

// unlock gives a queue's lock back.
func (c *Consumer) unlock(ctx context.Context, queues ...*assignedQueue) {
	byBroker := make(map[string][]*assignedQueue)
	for _, q := range queues {
		byBroker[q.queue.Broker] = append(byBroker[q.queue.Broker], q)
	}
	for broker, queues := range byBroker {
		addr, ok := c.client.masterAddr(broker)
		if !ok {
			continue // the broker forgets the lock after 60 s
		}
		callCtx, cancel := context.WithTimeout(ctx, lockTimeout)
		f, err := c.client.call(callCtx, addr, wire.CodeUnlockBatchMQ, nil, c.lockBody(queues))
		cancel()
		if err == nil && f.Code != wire.Success {
			err = answerError("unlock queues", addr, f)
		}
		if err != nil {
			c.log.Warn("queues not unlocked, the broker waits for them to expire", "broker", broker, "err", err)
		}
	}
}

func (c *Consumer) lockBody(queues []*assignedQueue) []byte {
	body := wire.LockBatchRequest{ClientID: c.client.clientID(), ConsumerGroup: c.cfg.Group}
	for _, q := range queues {
		body.Queues = append(body.Queues, wire.MessageQueue{Topic: q.queue.Topic, BrokerName: q.queue.Broker, QueueID: int32(q.queue.ID)})
	}
	return body.Marshal()
}

// What ordered consumption asks of a queue.

// begin takes the queue for one worker; false when it has one, rests or is gone.
func (q *assignedQueue) begin() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.busy || q.dropped || q.leaving || time.Now().Before(q.restUntil) {
		return false
	}
	q.busy = true
	return true
}

// end gives the queue back, lets it rest for pause, and returns whether it is to be
// pushed again.
func (q *assignedQueue) end(pause time.Duration) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.busy = false
	if q.idle != nil {
		close(q.idle)
		q.idle = nil
	}
	if pause > 0 {
		q.restUntil = time.Now().Add(pause)
	}
	return q.waitingLocked() > 0
}

func (q *assignedQueue) rested() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.restUntil = time.Time{}
	return !q.dropped
}

// claimOrdered takes up to n messages of one original topic from the front.
func (q *assignedQueue) claimOrdered(batch []*Delivery, n int) ([]*Delivery, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.dropped {
		return batch, false
	}
	batch = q.window.claim(batch, n, time.Now())
	return batch, len(batch) > 0
}

func (q *assignedQueue) unclaim() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.window.unclaim()
}

func (q *assignedQueue) locked(now time.Time) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return now.Before(q.lockedUntil)
}

func (q *assignedQueue) setLocked(held bool, since time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.lockedUntil = (time.Time{}); held {
		q.lockedUntil = since.Add(lockTrust)
	}
}

// released waits until no worker has the queue, for d at most. When that worked no
// worker gets it any more.
func (q *assignedQueue) released(ctx context.Context, d time.Duration) bool {
	q.mu.Lock()
	q.leaving = true
	if !q.busy {
		q.mu.Unlock()
		return true
	}
	if q.idle == nil {
		q.idle = make(chan struct{})
	}
	idle := q.idle
	q.mu.Unlock()
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-idle:
		return true
	case <-timer.C:
	case <-ctx.Done():
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.leaving = !q.busy
	return q.leaving
}
