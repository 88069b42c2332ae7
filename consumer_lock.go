package mq

import (
	"context"
	"sync"
	"time"

	"github.com/pocketmq/mq/internal/wire"
)

// RocketMQ's times of ordered consumption: a lock is renewed before this member
// stops trusting it, and trusted for less long than the broker keeps it.
const (
	lockPeriod  = 20 * time.Second
	lockTrust   = 30 * time.Second
	lockTimeout = time.Second
	lockedRetry = 3 * time.Second // when the lock was not to be had
)

// queueLease is what a member knows of its lock of a queue on the broker.
type queueLease struct {
	since     time.Time // when the last lock that was granted was asked for
	asked     time.Time // when the last lock that was answered was asked for
	refused   bool
	moved     bool // was lost in between: another member may have gone on from our offset
	restUntil time.Time
}

// answered notes the answer to a lock that was asked for at some time. Answers
// that another one has overtaken say nothing.
func (l *queueLease) answered(granted bool, asked time.Time) {
	if asked.Before(l.asked) {
		return
	}
	l.asked, l.refused = asked, !granted
	if granted {
		l.moved = l.moved || !l.since.IsZero() && asked.Sub(l.since) >= lockLifetime
		l.since = asked
	} else {
		l.moved = !l.since.IsZero()
	}
}

// trusted tells whether a listener may run.
func (l *queueLease) trusted(now time.Time) bool { return !l.refused && now.Sub(l.since) < lockTrust }

// held tells whether the broker keeps the lock for us, so that the offset here is
// the group's.
func (l *queueLease) held(now time.Time) bool {
	return !l.refused && !l.moved && now.Sub(l.since) < lockLifetime
}

// ensureLock makes sure that a listener may run on a queue, and that it goes on
// where the group is. When it cannot, it says how long the queue rests.
func (c *Consumer) ensureLock(q *assignedQueue) (rest time.Duration) {
	trusted, moved := q.lease()
	if trusted && !moved {
		return 0
	}
	if !trusted {
		ctx, cancel := context.WithTimeout(c.life.ctx, lockTimeout)
		err := c.lockQueues(ctx, q.queue.Broker, []*assignedQueue{q})
		cancel()
		if trusted, moved = q.lease(); err != nil || !trusted {
			c.log.Debug("ordered queue is not locked", "queue", q.queue, "err", err)
			return lockedRetry
		}
	}
	if moved {
		offset, err := c.firstOffset(c.life.ctx, q.queue)
		if err != nil {
			c.log.Warn("offset of a queue locked again not found, trying again", "queue", q.queue, "err", err)
			return lockedRetry
		}
		q.place(offset)
	}
	return 0
}

func (q *assignedQueue) lease() (trusted, moved bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.lock.trusted(time.Now()), q.lock.moved
}

// lockLoop renews the locks of all queues.
func (c *Consumer) lockLoop(ctx context.Context) {
	for sleep(ctx, lockPeriod) {
		var all sync.WaitGroup
		for broker, queues := range byBroker(c.assignedQueues()) {
			all.Go(func() {
				callCtx, cancel := context.WithTimeout(ctx, lockTimeout)
				defer cancel()
				err := c.lockQueues(callCtx, broker, queues)
				if err != nil && ctx.Err() == nil {
					c.log.Warn("queues not locked", "broker", broker, "err", err)
				}
				c.unlockDropped(ctx, queues)
			})
		}
		all.Wait()
	}
}

// unlockDropped gives back the locks of queues that were dropped while they were
// being locked: the broker may have done that last.
func (c *Consumer) unlockDropped(ctx context.Context, queues []*assignedQueue) {
	var dropped []*assignedQueue
	for _, q := range queues {
		q.mu.Lock()
		if q.dropped {
			dropped = append(dropped, q)
		}
		q.mu.Unlock()
	}
	if len(dropped) > 0 {
		c.unlock(ctx, dropped)
	}
}

// lockQueues asks a broker's master for the locks of queues. Those it does not
// grant are another member's.
func (c *Consumer) lockQueues(ctx context.Context, broker string, queues []*assignedQueue) error {
	addr, ok := c.client.masterAddr(broker)
	if !ok {
		return &Error{Op: "lock queues of " + broker, Err: ErrNoRoute}
	}
	asked := time.Now()
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
		q.mu.Lock()
		q.lock.answered(held[q.queue], asked)
		q.mu.Unlock()
	}
	return nil
}

// unlock gives the locks of queues back.
func (c *Consumer) unlock(ctx context.Context, queues []*assignedQueue) {
	var all sync.WaitGroup
	for broker, queues := range byBroker(queues) {
		addr, ok := c.client.masterAddr(broker)
		if !ok {
			continue // the broker forgets the lock after 60 s
		}
		all.Go(func() {
			callCtx, cancel := context.WithTimeout(ctx, lockTimeout)
			defer cancel()
			f, err := c.client.call(callCtx, addr, wire.CodeUnlockBatchMQ, nil, c.lockBody(queues))
			if err == nil && f.Code != wire.Success {
				err = answerError("unlock queues", addr, f)
			}
			if err != nil {
				c.log.Warn("queues not unlocked, the broker waits for them to expire", "broker", broker, "err", err)
			}
		})
	}
	all.Wait()
}

func byBroker(queues []*assignedQueue) map[string][]*assignedQueue {
	sorted := make(map[string][]*assignedQueue)
	for _, q := range queues {
		sorted[q.queue.Broker] = append(sorted[q.queue.Broker], q)
	}
	return sorted
}

func (c *Consumer) lockBody(queues []*assignedQueue) []byte {
	body := wire.LockBatchRequest{ClientID: c.client.clientID(), ConsumerGroup: c.cfg.Group}
	for _, q := range queues {
		body.Queues = append(body.Queues, wire.MessageQueue{Topic: q.queue.Topic, BrokerName: q.queue.Broker, QueueID: int32(q.queue.ID)})
	}
	return body.Marshal()
}
