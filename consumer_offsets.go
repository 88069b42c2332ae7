package mq

import (
	"context"
	"sync"
	"time"

	"github.com/pocketmq/mq/internal/wire"
	"github.com/pocketmq/mq/transport"
)

const persistPeriod = 5 * time.Second // RocketMQ: persistConsumerOffsetInterval

// firstOffset is where to begin on a queue: the group's stored offset, else what
// the start policy says. Retry queues always begin at 0, so that no failure from
// before the assignment is skipped.
func (c *Consumer) firstOffset(ctx context.Context, q Queue) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, offsetCallLimit)
	defer cancel()
	offset, found, err := c.storedOffset(ctx, q)
	if err != nil || found {
		return offset, err
	}
	queue := wire.QueueRequest{Topic: q.Topic, QueueID: int32(q.ID)}
	switch {
	case c.isRetry(q) || c.cfg.Start == FromFirst:
		return 0, nil // below the smallest offset the broker moves us up
	case c.cfg.Start == FromTime:
		h := &wire.SearchOffsetRequest{Topic: q.Topic, QueueID: int32(q.ID), Timestamp: c.cfg.StartTime.UnixMilli()}
		return c.askOffset(ctx, q, wire.CodeSearchOffsetByTimestamp, h)
	}
	return c.askOffset(ctx, q, wire.CodeGetMaxOffset, &queue)
}

// storedOffset asks for the group's offset. QUERY_NOT_FOUND means there is none,
// every other refusal is an error: taking it for "none" would skip messages.
func (c *Consumer) storedOffset(ctx context.Context, q Queue) (offset int64, found bool, err error) {
	h := &wire.QueryOffsetRequest{ConsumerGroup: c.cfg.Group, Topic: q.Topic, QueueID: int32(q.ID)}
	addr, f, err := c.ask(ctx, q, wire.CodeQueryConsumerOffset, h)
	if err != nil || f.Code == wire.QueryNotFound {
		return 0, false, err
	}
	offset, err = offsetAnswer("query offset", addr, f)
	return offset, err == nil && offset >= 0, err
}

func (c *Consumer) askOffset(ctx context.Context, q Queue, code int32, h transport.Header) (int64, error) {
	addr, f, err := c.ask(ctx, q, code, h)
	if err != nil {
		return 0, err
	}
	return offsetAnswer("look up an offset", addr, f)
}

// ask calls the broker of a queue: its master, else any of its brokers.
func (c *Consumer) ask(ctx context.Context, q Queue, code int32, h transport.Header) (string, *transport.Frame, error) {
	addr, ok := c.client.masterAddr(q.Broker)
	if !ok {
		for _, addr = range c.client.brokerTable()[q.Broker] {
			ok = true
			break
		}
	}
	if !ok {
		return "", nil, &Error{Op: "ask the broker of " + q.String(), Err: ErrNoRoute}
	}
	f, err := c.client.call(ctx, addr, code, h, nil)
	return addr, f, err
}

func offsetAnswer(op, addr string, f *transport.Frame) (int64, error) {
	if f.Code != wire.Success {
		return 0, answerError(op, addr, f)
	}
	h, err := transport.HeaderOf[wire.OffsetResponse](f)
	if err != nil {
		return 0, &Error{Op: op, Addr: addr, Err: err}
	}
	return h.Offset, nil
}

// persistLoop commits what has changed every 5 s.
func (c *Consumer) persistLoop(ctx context.Context) {
	for sleep(ctx, persistPeriod) {
		c.persistAll(ctx)
	}
}

// persistAll commits what has changed, of all queues at once: a broker that does
// not answer must not hold up the others.
func (c *Consumer) persistAll(ctx context.Context) {
	var all sync.WaitGroup
	for _, q := range c.assignedQueues() {
		if offset, changed := q.beginCommit(); changed {
			all.Go(func() {
				err := c.commit(ctx, q.queue, offset)
				q.endCommit(err == nil)
				if err != nil && ctx.Err() == nil {
					c.log.Warn("offset not committed, trying again", "queue", q.queue, "offset", offset, "err", err)
				}
			})
		}
	}
	all.Wait()
}

// commitLast commits what a queue that was dropped had reached. It waits for an
// older commit that is under way, which must not come to the broker after it.
func (c *Consumer) commitLast(ctx context.Context, q *assignedQueue, last lastCommit) {
	if !last.wanted {
		return
	}
	if last.after != nil {
		select {
		case <-last.after:
		case <-ctx.Done():
		}
	}
	if err := c.commit(ctx, q.queue, last.offset); err != nil {
		c.log.Warn("progress of a queue given up not committed, messages will come again",
			"queue", q.queue, "offset", last.offset, "err", err)
	}
}

// commit stores an offset on the queue's master. It waits for the answer where
// RocketMQ does not, so that a loss is known.
func (c *Consumer) commit(ctx context.Context, q Queue, offset int64) error {
	addr, ok := c.client.masterAddr(q.Broker)
	if !ok {
		return &Error{Op: "commit an offset of " + q.String(), Err: ErrNoRoute}
	}
	h := &wire.UpdateOffsetRequest{ConsumerGroup: c.cfg.Group, Topic: q.Topic, QueueID: int32(q.ID), CommitOffset: offset}
	f, err := c.client.call(ctx, addr, wire.CodeUpdateConsumerOffset, h, nil)
	if err == nil && f.Code != wire.Success {
		err = answerError("commit an offset", addr, f)
	}
	return err
}
