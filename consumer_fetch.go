package mq

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/pocketmq/mq/internal/wire"
	"github.com/pocketmq/mq/transport"
)

// RocketMQ's times of the pull loop.
const (
	pullSuspend     = 15 * time.Second // how long the broker may hold a pull
	pullTimeout     = 30 * time.Second
	pullAfterError  = time.Second
	pullAfterBusy   = 20 * time.Millisecond
	offsetCallLimit = 5 * time.Second
)

// fetch is the pull loop of one queue. It ends when the queue is dropped.
func (c *Consumer) fetch(ctx context.Context, q *assignedQueue) {
	defer close(q.ended)
	if !c.locate(ctx, q) {
		return
	}
	moved := 0 // times in a row that the broker moved the offset
	for ctx.Err() == nil {
		if q.block(&c.cfg) {
			select {
			case <-q.room:
			case <-ctx.Done():
			}
			continue
		}
		pause, wasMoved := c.pull(ctx, q)
		if moved++; !wasMoved {
			moved = 0
		} else if moved > 1 {
			pause = pullAfterError // a broker that keeps moving us is not to be flooded
		}
		if !sleep(ctx, pause) {
			return
		}
	}
}

// locate locks an ordered queue and finds where to begin, and tries until that
// has worked: a pull never carries an offset that is only a guess.
func (c *Consumer) locate(ctx context.Context, q *assignedQueue) bool {
	tried := false
	for {
		err := c.locateOnce(ctx, q)
		if !tried {
			close(q.located)
			tried = true
		}
		if err == nil {
			return true
		}
		if ctx.Err() != nil {
			return false
		}
		c.log.Warn("queue has no offset yet, trying again", "queue", q.queue, "err", err)
		if !sleep(ctx, pullAfterError) {
			return false
		}
	}
}

func (c *Consumer) locateOnce(ctx context.Context, q *assignedQueue) error {
	if c.cfg.Ordered {
		if err := c.lockQueues(ctx, q.queue.Broker, []*assignedQueue{q}); err != nil {
			return err
		}
		if !q.locked(time.Now()) {
			return errors.New("mq: another member still has the queue's lock")
		}
	}
	offset, err := c.firstOffset(ctx, q.queue)
	if err == nil {
		q.place(offset)
	}
	return err
}

// pull asks once for messages and says how long to wait before the next time, and
// whether the broker moved the offset.
func (c *Consumer) pull(ctx context.Context, q *assignedQueue) (pause time.Duration, moved bool) {
	sub := c.subscriptionOf(q.queue.Topic)
	if sub == nil {
		return pullAfterError, false // the next rebalance drops the queue
	}
	addr, id, ok := c.pullAddr(q)
	if !ok {
		return pullAfterError, false
	}
	next, commit := q.pullFrom()
	h := &wire.PullRequest{ConsumerGroup: c.cfg.Group, Topic: q.queue.Topic, QueueID: int32(q.queue.ID), QueueOffset: next,
		MaxMsgNums: int32(c.cfg.PullBatch), SysFlag: wire.PullSuspend, SuspendTimeoutMillis: pullSuspend.Milliseconds(),
		SubVersion: sub.data.SubVersion, ExpressionType: wire.ExpressionTag}
	if id == masterID && commit > 0 { // RocketMQ: offsets are committed on masters only
		h.SysFlag |= wire.PullCommitOffset
		h.CommitOffset = commit
	}
	callCtx, cancel := context.WithTimeout(ctx, pullTimeout)
	f, err := c.client.call(callCtx, addr, wire.CodePullMessage, h, nil)
	cancel()
	if err != nil {
		if ctx.Err() == nil {
			c.log.Warn("pull failed", "queue", q.queue, "broker", addr, "err", err)
		}
		return pullAfterError, false
	}
	return c.pulled(ctx, q, sub, addr, f)
}

// pullAddr is the broker to pull from: the one the last answer suggested, else
// the master, else any that has the queue.
func (c *Consumer) pullAddr(q *assignedQueue) (addr string, id int64, ok bool) {
	if addr, ok = c.client.brokerAddr(q.queue.Broker, q.suggested.Load()); ok {
		return addr, q.suggested.Load(), true
	}
	if addr, ok = c.client.masterAddr(q.queue.Broker); ok {
		return addr, masterID, true
	}
	for id, addr := range c.client.brokerTable()[q.queue.Broker] {
		return addr, id, true
	}
	return "", 0, false
}

func (c *Consumer) pulled(ctx context.Context, q *assignedQueue, sub *topicListener, addr string, f *transport.Frame) (pause time.Duration, moved bool) {
	switch f.Code {
	case wire.Success, wire.PullNotFound, wire.PullRetryImmediately, wire.PullOffsetMoved:
	case wire.SystemBusy, wire.FlowControl:
		return pullAfterBusy, false
	default:
		c.refused(ctx, q, addr, f)
		return pullAfterError, false
	}
	h, err := transport.HeaderOf[wire.PullResponse](f)
	if err != nil {
		c.log.Error("answer to a pull is malformed", "queue", q.queue, "broker", addr, "err", err)
		return pullAfterError, false
	}
	q.suggested.Store(h.SuggestWhichBrokerID)
	if f.Code == wire.PullOffsetMoved {
		c.log.Warn("broker moved the offset", "queue", q.queue, "to", h.NextBeginOffset, "reason", f.Remark)
		q.place(h.NextBeginOffset)
		return 0, true
	}
	var batch []*Delivery
	if f.Code == wire.Success {
		if batch, err = decodeDeliveries(q.queue, sub, f.Body); err != nil {
			c.log.Error("messages of a pull are malformed", "queue", q.queue, "broker", addr, "err", err)
			return pullAfterError, false
		}
	}
	if q.put(batch, h.NextBeginOffset) {
		c.tasks.push(q)
	}
	return 0, false
}

// refused handles an answer that is an error. A broker that does not know the
// group's subscription was restarted or is behind: a heartbeat tells it.
func (c *Consumer) refused(ctx context.Context, q *assignedQueue, addr string, f *transport.Frame) {
	c.log.Warn("pull refused", "queue", q.queue, "broker", addr, "err", answerError("pull", addr, f))
	switch f.Code {
	case wire.SubscriptionNotExist, wire.SubscriptionNotLatest, wire.SubscriptionGroupNotExist:
		if err := c.client.heartbeatNow(ctx); err != nil && ctx.Err() == nil {
			c.log.Warn("heartbeat after a refused pull failed", "err", err)
		}
	}
}

// decodeDeliveries reads the records of a pull's answer and leaves out those whose
// tag does not pass. A body that cannot be decompressed fails its own message
// only.
func decodeDeliveries(q Queue, sub *topicListener, data []byte) ([]*Delivery, error) {
	var batch []*Delivery
	for len(data) > 0 {
		m, n, err := wire.ParseStored(data)
		if err != nil {
			return nil, fmt.Errorf("mq: record %d of a pull from %v: %w", len(batch), q, err)
		}
		data = data[n:]
		tag, _ := wire.Property(m.Properties, wire.PropTags)
		if sub.passes(tag) {
			batch = append(batch, newDelivery(q, &m, tag, n))
		}
	}
	return batch, nil
}

func newDelivery(q Queue, m *wire.StoredMessage, tag string, size int) *Delivery {
	d := &Delivery{
		Message: Message{Topic: m.Topic, Tag: tag, Flag: m.Flag, Body: m.Body[:len(m.Body):len(m.Body)]},
		Queue:   q, Offset: m.QueueOffset, Attempt: int(m.ReconsumeTimes) + 1,
		BornAt: time.UnixMilli(m.BornTimestamp), StoredAt: time.UnixMilli(m.StoreTimestamp),
		BornHost: m.BornHost, StoreHost: m.StoreHost,
		offset: m.QueueOffset, position: m.Position, retries: m.ReconsumeTimes, properties: m.Properties, size: size,
	}
	d.readProperties()
	if m.SysFlag&wire.SysCompressed != 0 {
		body, err := wire.Decompress(m.Body, m.SysFlag, wire.MaxFrameBytes)
		if err != nil {
			d.fault = fmt.Errorf("mq: body of message %s at %v: %w", d.ID, d.Queue, err)
		} else {
			d.Body = body
		}
	}
	return d
}

// readProperties fills in what has a field of its own, and the user's own
// properties.
func (d *Delivery) readProperties() {
	for key, value := range wire.Properties(d.properties) {
		switch key {
		case wire.PropTags:
		case wire.PropUniqueKey:
			d.ID = value
		case wire.PropKeys:
			d.Keys = strings.Fields(value)
		case wire.PropRetryTopic:
			// RocketMQ: a dead letter keeps this property too, and its own topic.
			if strings.HasPrefix(d.Queue.Topic, retryPrefix) {
				d.Topic = value
			}
		case wire.PropShardingKey:
			d.ShardKey = value
		default:
			if reservedProperties[key] {
				continue
			}
			if d.Properties == nil {
				d.Properties = make(map[string]string)
			}
			d.Properties[key] = value
		}
	}
	if d.ID == "" {
		d.ID = d.OffsetID()
	}
	d.id, d.topic = d.ID, d.Topic
}

// sleep waits for d or the end of ctx; it returns false for the latter.
func sleep(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
