package mq

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
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
	var pace pullPace
	for ctx.Err() == nil {
		if !q.isPlaced() && !c.locate(ctx, q) {
			return
		}
		if q.block(&c.cfg) {
			select {
			case <-q.room:
			case <-ctx.Done():
			}
			continue
		}
		begun := time.Now()
		outcome := c.pull(ctx, q, pace.failing)
		if !sleep(ctx, pace.pause(outcome, time.Since(begun))) {
			return
		}
	}
}

type pullOutcome int

const (
	pullWentOn  pullOutcome = iota // the offset moved on
	pullStalled                    // an answer, but nothing new
	pullBusy                       // flow control
	pullFailed
)

// pullPace says how long to wait before the next pull. An answer that brings
// nothing is followed at once, since the broker has held the pull; but one that
// keeps coming early does not make us flood the broker.
type pullPace struct {
	stalled int
	failing bool // the last pull failed: it was logged
}

func (p *pullPace) pause(outcome pullOutcome, took time.Duration) time.Duration {
	p.failing = outcome == pullFailed
	switch {
	case outcome == pullFailed:
		return pullAfterError
	case outcome == pullBusy:
		return pullAfterBusy
	case outcome == pullWentOn || took >= pullAfterError:
		p.stalled = 0
		return 0
	}
	p.stalled = min(p.stalled+1, 8)
	return min(pullAfterBusy<<p.stalled/4, pullAfterError)
}

// locate locks an ordered queue and finds where to begin, and tries until that
// has worked: a pull never carries an offset that is only a guess.
func (c *Consumer) locate(ctx context.Context, q *assignedQueue) bool {
	for {
		err := c.locateOnce(ctx, q)
		q.markLocated()
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
		if trusted, _ := q.lease(); !trusted {
			return errors.New("mq: another member still has the queue's lock")
		}
	}
	offset, err := c.firstOffset(ctx, q.queue)
	if err == nil {
		q.place(offset)
	}
	return err
}

// pull asks once for messages. quiet keeps a failure out of the log because the
// one before it is there.
func (c *Consumer) pull(ctx context.Context, q *assignedQueue, quiet bool) pullOutcome {
	sub := c.subscriptionOf(q.queue.Topic)
	if sub == nil {
		return pullFailed // the next rebalance drops the queue
	}
	addr, id, ok := c.pullAddr(q)
	if !ok {
		return pullFailed
	}
	callCtx, cancel := context.WithTimeout(ctx, pullTimeout)
	defer cancel()
	place := q.beginPull(cancel)
	h := c.pullHeader(q, sub, place.next, c.cfg.PullBatch)
	h.SysFlag, h.SuspendTimeoutMillis = wire.PullSuspend, pullSuspend.Milliseconds()
	if id == masterID && place.commit > 0 { // RocketMQ: offsets are committed on masters only
		h.SysFlag |= wire.PullCommitOffset
		h.CommitOffset = place.commit
	}
	f, err := c.client.call(callCtx, addr, wire.CodePullMessage, h, nil)
	switch {
	case !q.endPull(place):
		return pullWentOn // what came is not of the window there is now
	case err != nil:
		if ctx.Err() == nil {
			c.log.Log(ctx, logLevel(quiet), "pull failed", "queue", q.queue, "broker", addr, "err", err)
		}
		q.suggested.Store(masterID)
		c.lookForMoved(ctx, q.queue.Topic, err)
		return pullFailed
	}
	return c.pulled(ctx, q, addr, place, f, quiet)
}

// lookForMoved looks a topic's route up when its broker is not reached: restarted,
// it may be at another address, and the next refresh is half a minute away.
func (c *Consumer) lookForMoved(ctx context.Context, topic string, err error) {
	if errors.Is(err, ErrUnreachable) || errors.Is(err, transport.ErrClosed) {
		e := c.client.routes.entry(topic)
		c.client.lookAgain(ctx, e, e.publishRoute(), false)
	}
}

func logLevel(quiet bool) slog.Level {
	if quiet {
		return slog.LevelDebug
	}
	return slog.LevelWarn
}

func (c *Consumer) pullHeader(q *assignedQueue, sub *topicListener, offset int64, most int) *wire.PullRequest {
	return &wire.PullRequest{ConsumerGroup: c.cfg.Group, Topic: q.queue.Topic, QueueID: int32(q.queue.ID), QueueOffset: offset,
		MaxMsgNums: int32(most), SubVersion: sub.data.SubVersion, ExpressionType: wire.ExpressionTag}
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

func (c *Consumer) pulled(ctx context.Context, q *assignedQueue, addr string, place pullPlace, f *transport.Frame, quiet bool) pullOutcome {
	switch f.Code {
	case wire.Success, wire.PullNotFound, wire.PullRetryImmediately, wire.PullOffsetMoved:
	case wire.SystemBusy, wire.FlowControl:
		return pullBusy
	default:
		c.log.Log(ctx, logLevel(quiet), "pull refused", "queue", q.queue, "err", answerError("pull", addr, f))
		c.refused(ctx, q, addr, f.Code)
		return pullFailed
	}
	h, err := transport.HeaderOf[wire.PullResponse](f)
	if err != nil {
		c.log.Error("answer to a pull is malformed", "queue", q.queue, "broker", addr, "err", err)
		return pullFailed
	}
	q.suggested.Store(h.SuggestWhichBrokerID)
	if f.Code == wire.PullOffsetMoved {
		c.log.Warn("broker moved the offset", "queue", q.queue, "from", place.next, "to", h.NextBeginOffset, "reason", f.Remark)
		q.move(place, h.NextBeginOffset)
		return pullStalled
	}
	var batch []*Delivery
	if f.Code == wire.Success {
		// The filter of now, not that of when the pull began: the broker goes by the
		// newest, also for a pull that it held.
		sub := c.subscriptionOf(q.queue.Topic)
		if sub == nil {
			return pullFailed
		}
		if batch, err = c.decode(q.queue, sub, f.Body); err != nil {
			c.log.Error("messages of a pull are malformed", "queue", q.queue, "broker", addr, "err", err)
			return pullFailed
		}
	}
	work, progress := q.put(place, batch, h.NextBeginOffset)
	if work {
		c.tasks.push(q)
	}
	if progress {
		return pullWentOn
	}
	return pullStalled
}

// refused deals with a broker that does not know the group's subscription, because
// it was restarted or is behind: a heartbeat tells it. One that does not know the
// topic has lost it or was told to delete it: when the topic comes back its offsets
// begin anew, so ours mean nothing any more.
func (c *Consumer) refused(ctx context.Context, q *assignedQueue, addr string, code int32) {
	switch code {
	case wire.TopicNotExist:
		q.unplace()
	case wire.SubscriptionNotExist, wire.SubscriptionNotLatest, wire.SubscriptionGroupNotExist:
		if err := c.client.beat(ctx, []string{addr}); err != nil && ctx.Err() == nil {
			c.log.Debug("heartbeat after a refused pull failed", "broker", addr, "err", err)
		}
	}
}

var errNotPulled = errors.New("mq: message not there")

// fetchAgain gets a fresh copy of a message that a listener had before and is to
// have again: the listener owns the first one and may have changed it. gone says
// that the broker has the message no more, or that it does not pass the filter any
// more.
func (c *Consumer) fetchAgain(q *assignedQueue, old *Delivery) (fresh *Delivery, gone bool, err error) {
	defer func() {
		if err != nil {
			c.log.Debug("message to try again not pulled", "queue", q.queue, "message", old.id, "err", err)
		} else if gone {
			c.log.Error("message to try again is not on the broker any more", "queue", q.queue, "message", old.id)
		}
	}()
	sub := c.subscriptionOf(q.queue.Topic)
	addr, id, ok := c.pullAddr(q)
	if master, known := c.client.masterAddr(q.queue.Broker); known {
		addr, id = master, masterID
	}
	if sub == nil || !ok {
		return nil, false, errNotPulled
	}
	ctx, cancel := context.WithTimeout(c.life.ctx, offsetCallLimit)
	defer cancel()
	f, err := c.client.call(ctx, addr, wire.CodePullMessage, c.pullHeader(q, sub, old.offset, 1), nil)
	if err != nil {
		return nil, false, err
	}
	switch f.Code {
	case wire.Success:
	case wire.PullRetryImmediately, wire.PullOffsetMoved:
		if id != masterID { // a replica that is behind says the same
			return nil, false, errNotPulled
		}
		return nil, true, nil
	default:
		return nil, false, answerError("pull a message again", addr, f)
	}
	batch, err := c.decode(q.queue, sub, f.Body)
	if err != nil {
		return nil, false, err
	}
	if len(batch) == 0 || batch[0].offset != old.offset {
		return nil, true, nil
	}
	fresh = batch[0]
	fresh.generation, fresh.retries, fresh.Attempt = old.generation, old.retries, int(old.retries)+1
	q.replace(fresh)
	return fresh, false, nil
}

// decode reads the records of a pull's answer and leaves out those whose tag does
// not pass. A body that cannot be decompressed fails its own message only.
func (c *Consumer) decode(q Queue, sub *topicListener, data []byte) ([]*Delivery, error) {
	n, err := countStored(data)
	if err != nil {
		return nil, fmt.Errorf("mq: pull from %v: %w", q, err)
	}
	retried := c.isRetry(q)
	all := make([]Delivery, n) // one allocation for all
	batch := make([]*Delivery, 0, n)
	for i := range all {
		m, size, err := wire.ParseStored(data)
		if err != nil {
			return nil, fmt.Errorf("mq: record %d of a pull from %v: %w", i, q, err)
		}
		data = data[size:]
		d := &all[i]
		d.read(q, &m, size, retried)
		if sub.passes(d.Tag) {
			batch = append(batch, d)
		}
	}
	return batch, nil
}

func countStored(data []byte) (n int, err error) {
	for ; len(data) > 0; n++ {
		if _, data, err = wire.NextStored(data); err != nil {
			return 0, fmt.Errorf("record %d: %w", n, err)
		}
	}
	return n, nil
}

// read fills a delivery in from a record of size bytes. One that is retried shows
// its original topic.
func (d *Delivery) read(q Queue, m *wire.StoredMessage, size int, retried bool) {
	d.Topic, d.Flag, d.Body = q.Topic, m.Flag, m.Body
	d.Queue, d.Offset, d.Attempt = q, m.QueueOffset, int(m.ReconsumeTimes)+1
	d.BornAt, d.StoredAt = time.UnixMilli(m.BornTimestamp), time.UnixMilli(m.StoreTimestamp)
	d.BornHost, d.StoreHost = m.BornHost, m.StoreHost
	d.offset, d.position, d.retries, d.properties, d.size = m.QueueOffset, m.Position, m.ReconsumeTimes, m.Properties, size
	original := d.readProperties()
	if retried && original != "" {
		d.Topic = original
	}
	if d.ID == "" {
		d.ID = d.OffsetID()
	}
	d.id, d.topic = d.ID, d.Topic
	if m.SysFlag&wire.SysCompressed != 0 {
		body, err := wire.Decompress(m.Body, m.SysFlag, wire.MaxFrameBytes)
		if err != nil {
			d.fault = fmt.Errorf("mq: body of message %s at %v: %w", d.ID, d.Queue, err)
			return
		}
		d.size += len(body) - len(m.Body)
		d.Body = body
	}
}

// readProperties fills in what has a field of its own, and the user's own
// properties. It returns the original topic of a retried message.
func (d *Delivery) readProperties() (original string) {
	for key, value := range wire.Properties(d.properties) {
		switch key {
		case wire.PropTags:
			d.Tag = value
		case wire.PropUniqueKey:
			d.ID = value
		case wire.PropKeys:
			d.Keys = strings.Fields(value)
		case wire.PropRetryTopic:
			original = value
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
	return original
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
