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
	// claimMost bounds what one worker takes at once: enough to make the lock
	// cheap, little enough that nobody waits long behind a slow listener.
	claimMost     = 16
	overdueLevel  = 3 // RocketMQ: cleanExpiredMsg gives back with level 3
	overduePerRun = 16
)

var errBatchPart = errors.New("mq: the rest of the batch is not done")

// work is one of the consumer's workers: it alone runs listeners, no lock held.
func (c *Consumer) work(ctx context.Context) {
	batch := make([]*Delivery, 0, max(claimMost, c.cfg.BatchSize))
	for {
		q := c.tasks.next(ctx)
		if q == nil {
			return
		}
		if c.cfg.Ordered {
			c.workOrdered(q, batch)
		} else {
			c.workConcurrent(q, batch)
		}
		clear(batch[:cap(batch)])
		c.tasks.done()
	}
}

// workConcurrent claims messages, passes the queue on when it has more, and runs
// the listener on what it claimed.
func (c *Consumer) workConcurrent(q *assignedQueue, batch []*Delivery) {
	// A share that shrinks with what is left keeps the last messages from lying in
	// one worker's hands while others are idle.
	most := max(1, min(claimMost, q.waiting()/(2*c.cfg.Concurrency)))
	if sub := c.subscriptionOf(q.queue.Topic); sub != nil && sub.batch > 1 || c.isRetry(q.queue) {
		most = c.cfg.BatchSize
	}
	batch, left := q.claim(batch, most)
	if left > 0 {
		c.tasks.push(q)
	}
	for len(batch) > 0 {
		if !q.holds(batch[0]) {
			return // dropped meanwhile: the others belong to another member
		}
		sub, n := c.sameListener(batch)
		done, err := c.listen(sub, batch[:n])
		for i, d := range batch[:n] {
			if i < done || errors.Is(err, ErrSkip) || c.giveBack(q, d, err) {
				q.finish(d, &c.cfg)
			} else {
				c.retryHere(q, d)
			}
		}
		batch = batch[n:]
	}
}

// isRetry tells whether a queue is of the group's own retry topic, whose messages
// may belong to any of its topics.
func (c *Consumer) isRetry(q Queue) bool { return q.Topic == RetryTopic(c.cfg.Group) }

// sameListener returns how many messages from the front go to one call of one
// listener. A retried message goes to the listener of its original topic.
func (c *Consumer) sameListener(batch []*Delivery) (*topicListener, int) {
	sub := c.subscriptionOf(batch[0].topic)
	if sub == nil {
		return nil, 1
	}
	n := 1
	for n < len(batch) && n < sub.batch && batch[n].topic == batch[0].topic {
		n++
	}
	return sub, n
}

// listen runs the listener and returns how many messages from the front are done.
// A panic is an error like any other, and is logged with its stack.
func (c *Consumer) listen(sub *topicListener, batch []*Delivery) (done int, err error) {
	if sub == nil || sub.listen == nil {
		return 0, fmt.Errorf("mq: no listener for topic %s", batch[0].topic)
	}
	if batch[0].fault != nil {
		return 0, batch[0].fault
	}
	id, topic := batch[0].id, batch[0].topic
	defer func() {
		if r := recover(); r != nil {
			c.log.Error("listener panicked", "topic", topic, "message", id, "panic", r, "stack", string(debug.Stack()))
			done, err = 0, fmt.Errorf("mq: listener panicked: %v", r)
		}
	}()
	// The listener owns the deliveries, not our slice of them.
	err = sub.listen(c.listening, append([]*Delivery(nil), batch...))
	if err == nil {
		return len(batch), nil
	}
	if part := (*doneError)(nil); errors.As(err, &part) {
		return max(0, min(part.n, len(batch))), cmp.Or(part.err, errBatchPart)
	}
	return 0, err
}

// giveBack hands a failed message back to the broker, which brings it again later
// or moves it to the dead-letter topic. It returns whether the broker has it.
func (c *Consumer) giveBack(q *assignedQueue, d *Delivery, cause error) bool {
	level := int32(0) // the broker decides by the number of attempts
	var after *retryError
	switch {
	case errors.Is(cause, ErrDeadLetter):
		level = -1
	case errors.As(cause, &after):
		level = delayLevelFor(after.after)
	}
	if c.listening.Err() != nil && errors.Is(cause, context.Canceled) {
		return false // cut short by Close: not the message's fault
	}
	return c.sendBack(q, d, level, cause)
}

func (c *Consumer) sendBack(q *assignedQueue, d *Delivery, level int32, cause error) bool {
	c.log.Debug("message failed", "queue", d.Queue, "message", d.id, "attempt", d.retries+1, "err", cause)
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

// retryHere has a message that could not be given back claimed again after 5 s.
// Until it is done the committed offset does not pass it.
func (c *Consumer) retryHere(q *assignedQueue, d *Delivery) {
	time.AfterFunc(retryHere, func() {
		if q.retry(d) {
			c.tasks.push(q)
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
						q.finish(d, &c.cfg)
					}
				}
			})
		}
		all.Wait()
	}
}
