package mq

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"time"

	"github.com/pocketmq/mq/internal/wire"
)

const (
	giveBackTimeout = 5 * time.Second
	retryHere       = 5 * time.Second // after a message could not be given back
	turnCalls       = 16              // listener calls before other queues have their turn
	overdueLevel    = 3               // RocketMQ: cleanExpiredMsg gives back with level 3
	overduePerRun   = 16
)

var errBatchPart = errors.New("mq: the rest of the batch is not done")

// work is one of the consumer's workers: it alone runs listeners, no lock held.
func (c *Consumer) work(ctx context.Context) {
	var held *assignedQueue
	defer func() {
		// A listener that ends its goroutine (runtime.Goexit, as testing's FailNow
		// does) must not cost a worker, nor hang Shutdown.
		if held != nil {
			c.tasks.done()
			c.life.run(c.work)
		}
	}()
	batch := make([]*Delivery, 0, c.cfg.BatchSize)
	for {
		if held = c.tasks.next(ctx); held == nil {
			return
		}
		if c.cfg.Ordered {
			c.workOrdered(held, batch)
		} else {
			c.workConcurrent(held, batch)
		}
		clear(batch[:cap(batch)])
		c.tasks.done()
	}
}

// workConcurrent runs the listener on one message or batch after the other. Its
// first turn passes the queue on when there is more, so that others help.
func (c *Consumer) workConcurrent(q *assignedQueue, batch []*Delivery) {
	var done []*Delivery
	hands, calling := 0, false
	defer func() {
		if calling { // the listener ended the goroutine
			c.retryHere(q, batch...)
		}
		if q.pass(c, done, hands) {
			c.tasks.push(q)
		}
	}()
	for i := range turnCalls {
		var more bool
		batch, more = q.turn(c, done, hands, batch[:0])
		done, hands = nil, len(batch)
		if i == 0 && more {
			c.tasks.push(q)
		}
		if hands == 0 {
			return
		}
		calling = true
		done = c.consume(q, batch)
		calling = false
	}
}

// consume runs the listener and returns the messages that are done with, in the
// memory of batch.
func (c *Consumer) consume(q *assignedQueue, batch []*Delivery) (done []*Delivery) {
	sub := c.subscriptionOf(batch[0].topic)
	if sub == nil && !c.isRetry(q.queue) { // unsubscribed; the next rebalance drops the queue
		c.retryHere(q, batch...)
		return nil
	}
	if batch[0].used {
		fresh, gone, err := c.fetchAgain(q, batch[0])
		switch {
		case err != nil:
			c.retryHere(q, batch...)
			return nil
		case gone:
			return batch
		}
		batch[0] = fresh
	}
	n, err := c.listen(sub, batch)
	if n == len(batch) {
		return batch
	}
	done = batch[:n]
	for _, d := range batch[n:] {
		if errors.Is(err, ErrSkip) || c.giveBack(q, d, err) {
			done = append(done, d) // overwrites what was dealt with
		} else {
			d.retries++
			c.retryHere(q, d)
		}
	}
	return done
}

// isRetry tells whether a queue is of the group's own retry topic, whose messages
// may belong to any of its topics.
func (c *Consumer) isRetry(q Queue) bool { return q.Topic == RetryTopic(c.cfg.Group) }

// listen runs the listener and returns how many messages from the front are done,
// with an error unless all are. A panic is an error like any other, and is logged
// with its stack.
func (c *Consumer) listen(sub *topicListener, batch []*Delivery) (done int, err error) {
	if batch[0].fault != nil {
		return 0, fmt.Errorf("%w: %w", ErrDeadLetter, batch[0].fault) // the next attempt would read the same
	}
	if sub == nil || sub.one == nil && sub.many == nil {
		return 0, fmt.Errorf("mq: no listener for topic %s", batch[0].topic)
	}
	id, topic := batch[0].id, batch[0].topic
	defer func() {
		if r := recover(); r != nil {
			c.log.Error("listener panicked", "topic", topic, "message", id, "panic", r, "stack", string(debug.Stack()))
			done, err = 0, fmt.Errorf("mq: listener panicked: %v", r)
		}
	}()
	for _, d := range batch {
		d.used = true
	}
	if sub.one != nil {
		err = sub.one(c.listening, batch[0])
	} else {
		// The listener owns the deliveries, not our slice of them.
		err = sub.many(c.listening, append([]*Delivery(nil), batch...))
	}
	if err == nil {
		return len(batch), nil
	}
	if part := (*doneError)(nil); errors.As(err, &part) {
		return max(0, min(part.n, len(batch))), cmp.Or(part.err, errBatchPart)
	}
	return 0, err
}

// interrupted tells whether a failure is Close's, which cancelled the listener's
// context, and not the message's: it is not counted against it.
func (c *Consumer) interrupted(cause error) bool {
	return c.listening.Err() != nil && !errors.Is(cause, ErrDeadLetter)
}

// giveBack hands a failed message back to the broker, which brings it again later
// or moves it to the dead-letter topic. It returns whether the broker has it.
func (c *Consumer) giveBack(q *assignedQueue, d *Delivery, cause error) bool {
	if c.interrupted(cause) {
		return false
	}
	level := int32(0) // the broker decides by the number of attempts
	var after *retryError
	switch {
	case errors.Is(cause, ErrDeadLetter):
		level = -1
	case errors.As(cause, &after):
		level = delayLevelFor(after.after)
	}
	return c.sendBack(q, d, level, cause)
}

func (c *Consumer) sendBack(q *assignedQueue, d *Delivery, level int32, cause error) bool {
	c.log.Debug("message failed", "queue", q.queue, "message", d.id, "attempt", d.retries+1, "err", cause)
	if !q.holds(d) {
		return false // never acknowledged after it was lost
	}
	addr, ok := c.client.masterAddr(q.queue.Broker)
	if !ok {
		c.log.Warn("message not given back: its broker has no master", "queue", q.queue, "message", d.id)
		return false
	}
	h := &wire.SendBackRequest{Offset: d.position, Group: c.cfg.Group, DelayLevel: level, OriginMsgID: d.id,
		OriginTopic: d.topic, MaxReconsumeTimes: int32(max(0, c.cfg.MaxRetries)), HasMaxReconsumeTimes: true}
	ctx, cancel := context.WithTimeout(context.Background(), giveBackTimeout)
	defer cancel()
	f, err := c.client.call(ctx, addr, wire.CodeConsumerSendMsgBack, h, nil)
	if err == nil && f.Code != wire.Success {
		err = answerError("give back a message", addr, f)
	}
	if err != nil {
		c.log.Warn("message not given back, trying again here", "queue", q.queue, "message", d.id, "err", err)
	}
	return err == nil
}

// delayLevelFor is the first delay level that is not shorter than d.
func delayLevelFor(d time.Duration) int32 {
	for i, level := range delayLevels {
		if level >= d {
			return int32(i + 1)
		}
	}
	return int32(len(delayLevels))
}

// retryHere has messages that could not be given back claimed again after 5 s.
// Until they are done the committed offset does not pass them.
func (c *Consumer) retryHere(q *assignedQueue, batch ...*Delivery) {
	again := append([]*Delivery(nil), batch...)
	c.life.run(func(ctx context.Context) {
		if !sleep(ctx, retryHere) {
			return
		}
		for _, d := range again {
			if q.retry(d) {
				c.tasks.push(q)
			}
		}
	})
}

// overdueLoop gives messages back whose listener runs for longer than
// ConsumeTimeout, so that they are tried elsewhere and do not hold the offset for
// ever.
func (c *Consumer) overdueLoop(ctx context.Context) {
	for sleep(ctx, c.cfg.ConsumeTimeout) {
		var all sync.WaitGroup
		for _, q := range c.assignedQueues() {
			late := q.overdue(c.cfg.ConsumeTimeout)
			all.Go(func() {
				for _, d := range late {
					if c.sendBack(q, d, overdueLevel, errors.New("mq: listener exceeds ConsumeTimeout")) {
						q.finish(c, d)
					}
				}
			})
		}
		all.Wait()
	}
}
