package mq

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/pocketmq/mq/internal/wire"
	"github.com/pocketmq/mq/storage"
	"github.com/pocketmq/mq/transport"
)

// Limits of one pull's answer, as RocketMQ's: near is what it counts as in memory,
// far what it counts as on disk.
const (
	nearPullCount = 32
	nearPullBytes = 256 << 10
	farPullCount  = 8
	farPullBytes  = 64 << 10
	minPullScan   = 800 // entries a pull looks at when its filter matches none

	// inMemoryBytes is how far behind the end of the log a message counts as in
	// memory: RocketMQ's accessMessageInMemoryMaxRatio, 40 %, of a machine with
	// 8 GiB. What our ring really holds does not show in any answer.
	inMemoryBytes = 8 << 30 / 100 * 40
)

// A pull is one PULL_MESSAGE request on its way to its answer.
type pull struct {
	conn   transport.Conn
	header *wire.PullRequest
	reply  func(*transport.Frame)
	topic  *brokerTopic
	tags   *tagSet // of the request's own expression, once it is parsed

	// from is the first offset to look at: the one asked for, moved past entries
	// that were filtered away while the pull was held.
	from atomic.Int64
	// cold is set while the pool reads for this held pull.
	cold atomic.Bool

	// Guarded by pullHolds.mu.
	deadline time.Time
	hold     struct {
		in                      bool
		byQueue, byConn, byTime int // places in the sets and the heap
	}
}

func (p *pull) holdQueue() holdQueue { return holdQueue{p.topic.store, p.header.QueueID} }

// wantsHold tells whether the client asked to wait for messages.
func (p *pull) wantsHold() bool {
	return p.header.SysFlag&wire.PullSuspend != 0 && p.header.SuspendTimeoutMillis > 0
}

// advance moves from past entries that did not match.
func (p *pull) advance(next int64) {
	for old := p.from.Load(); next > old; old = p.from.Load() {
		if p.from.CompareAndSwap(old, next) {
			return
		}
	}
}

// read is the read that answers p.
func (p *pull) read(tags *tagSet) storage.Read {
	count := int(max(1, p.header.MaxMsgNums))
	return storage.Read{
		Topic: p.topic.store, Queue: p.header.QueueID, Offset: p.from.Load(),
		Near:     storage.Limit{Count: min(count, nearPullCount), Bytes: nearPullBytes},
		Far:      storage.Limit{Count: min(count, farPullCount), Bytes: farPullBytes},
		FarBytes: inMemoryBytes,
		MaxScan:  max(minPullScan, count),
		Match:    tags.match,
	}
}

// handlePull runs on the connection's reader: it answers from the ring or holds
// the pull, and hands everything that needs I/O to a pool.
func (b *Broker) handlePull(ctx context.Context, c transport.Conn, req *transport.Frame, reply func(*transport.Frame)) {
	header, err := transport.HeaderOf[wire.PullRequest](req)
	if err != nil {
		reply(refuseMalformed(err))
		return
	}
	p := &pull{conn: c, header: header, reply: reply}
	p.from.Store(header.QueueOffset)
	tags, refusal := b.checkPull(p)
	if refusal != nil && refusal.Code == wire.SubscriptionGroupNotExist {
		b.pullAsNewGroup(ctx, p)
		return
	}
	b.firstPass(ctx, p, tags, refusal)
}

// pullAsNewGroup creates the group first, where that is allowed.
func (b *Broker) pullAsNewGroup(ctx context.Context, p *pull) {
	b.inPool(b.pools.client, p.reply, func() {
		if _, err := b.groups.ensure(b.life.ctx, p.header.ConsumerGroup); err != nil {
			p.reply(groupRefusal(p.header.ConsumerGroup, err))
			return
		}
		tags, refusal := b.checkPull(p)
		b.firstPass(ctx, p, tags, refusal)
	})
}

// firstPass deals with a pull that has been checked for the first time: it may
// commit an offset and may be held.
func (b *Broker) firstPass(ctx context.Context, p *pull, tags *tagSet, refusal *transport.Frame) {
	if refusal != nil {
		p.reply(refusal)
		return
	}
	if p.header.SysFlag&wire.PullCommitOffset != 0 && p.header.CommitOffset >= 0 {
		b.store.CommitOffset(p.header.ConsumerGroup, p.topic.store, p.header.QueueID, p.header.CommitOffset)
	}
	res, recent := b.store.ReadRecent(p.read(tags))
	if recent {
		b.answerOrHold(p, res)
		return
	}
	b.inPool(b.pools.pull, p.reply, func() {
		res, err := b.store.Read(ctx, p.read(tags))
		if err != nil {
			p.reply(readRefusal(p, err))
			return
		}
		b.answerOrHold(p, res)
	})
}

func (b *Broker) answerOrHold(p *pull, res storage.ReadResult) {
	if p.wantsHold() && pullCode(p, res) == wire.PullNotFound {
		b.holdPull(p)
		return
	}
	b.answerPull(p, res)
}

// checkPull makes RocketMQ's checks in its order and returns the filter, or the
// refusal. The first call is made by the request's own goroutine and sets what p
// keeps; later ones, while p is held, may come from several.
func (b *Broker) checkPull(p *pull) (*tagSet, *transport.Frame) {
	h := p.header
	refuse := func(code int32, format string, args ...any) (*tagSet, *transport.Frame) {
		return nil, respond(code, fmt.Sprintf(format, args...))
	}
	if b.settings.Load().permission&wire.PermRead == 0 {
		return refuse(wire.NoPermission, "the broker %s may not be read", b.name)
	}
	group, ok := b.groups.lookup(h.ConsumerGroup)
	if !ok {
		return refuse(wire.SubscriptionGroupNotExist, "the subscription group %s does not exist", h.ConsumerGroup)
	}
	conf := group.conf()
	if !conf.ConsumeEnable {
		return refuse(wire.NoPermission, "the subscription group %s may not consume", h.ConsumerGroup)
	}
	topic, ok := b.topics.lookup(h.Topic)
	if !ok {
		return refuse(wire.TopicNotExist, "topic %s does not exist on broker %s", h.Topic, b.name)
	}
	t := topic.conf()
	if t.Perm&wire.PermRead == 0 {
		return refuse(wire.NoPermission, "topic %s may not be read", h.Topic)
	}
	if h.QueueID < 0 || h.QueueID >= t.ReadQueueNums {
		return refuse(wire.SystemError, "queue %d of topic %s: the read queues are 0 to %d", h.QueueID, h.Topic, t.ReadQueueNums-1)
	}
	if p.topic == nil {
		p.topic = topic
	} else if p.topic != topic {
		// Held on a topic that was deleted and made again: another queue, with
		// other offsets.
		return refuse(wire.TopicNotExist, "topic %s was deleted", h.Topic)
	}
	return b.pullFilter(p, conf)
}

// pullFilter finds the filter: the expression in the request, or the last
// heartbeat's.
func (b *Broker) pullFilter(p *pull, conf *wire.SubscriptionGroupConfig) (*tagSet, *transport.Frame) {
	h := p.header
	if h.SysFlag&wire.PullSubscription != 0 {
		if !isTagExpression(h.ExpressionType) {
			return nil, respond(wire.SystemError, noSQL92)
		}
		if p.tags == nil {
			tags, err := parseTags(h.Subscription)
			if err != nil {
				return nil, respond(wire.SubscriptionParseFailed,
					fmt.Sprintf("subscription %q to topic %s: %v", h.Subscription, h.Topic, err))
			}
			p.tags = tags
		}
		return p.tags, nil
	}
	sub, state := b.members.subscription(h.ConsumerGroup, h.Topic)
	switch {
	case state == groupOffline:
		return nil, respond(wire.SubscriptionNotExist, fmt.Sprintf("the consumer group %s has no member here", h.ConsumerGroup))
	case sub.broadcasting && !conf.ConsumeBroadcastEnable:
		return nil, respond(wire.NoPermission, fmt.Sprintf("the consumer group %s may not consume broadcasting", h.ConsumerGroup))
	case state == notSubscribed:
		return nil, respond(wire.SubscriptionNotExist, fmt.Sprintf("the consumer group %s has not subscribed to topic %s", h.ConsumerGroup, h.Topic))
	case sub.version < h.SubVersion:
		return nil, respond(wire.SubscriptionNotLatest, fmt.Sprintf("the subscription of group %s to topic %s is of version %d, the request's of %d",
			h.ConsumerGroup, h.Topic, sub.version, h.SubVersion))
	case !isTagExpression(sub.kind):
		return nil, respond(wire.SystemError, noSQL92)
	}
	return sub.tags, nil
}

// noSQL92 is the text by which RocketMQ's clients and tools know the refusal.
const noSQL92 = "The broker does not support consumer to filter message by SQL92"

// pullCode is the response code of a read's outcome.
func pullCode(p *pull, res storage.ReadResult) int32 {
	switch res.Status {
	case storage.Found:
		return wire.Success
	case storage.NoMatch:
		return wire.PullRetryImmediately
	case storage.AtEnd:
		if p.from.Load() > p.header.QueueOffset {
			return wire.PullRetryImmediately // everything since was filtered away
		}
		return wire.PullNotFound
	case storage.Empty:
		if p.header.QueueOffset == 0 {
			return wire.PullNotFound
		}
	}
	return wire.PullOffsetMoved
}

// answerPull answers with what a read found.
func (b *Broker) answerPull(p *pull, res storage.ReadResult) {
	f := &transport.Frame{Code: pullCode(p, res)}
	h := &wire.PullResponse{MinOffset: res.Min, MaxOffset: res.Max, NextBeginOffset: res.Next}
	switch res.Status {
	case storage.Found:
		f.Body, f.Remark = res.Data, "FOUND"
	case storage.NoMatch:
		f.Remark = "NO_MATCHED_MESSAGE"
	case storage.AtEnd:
		f.Remark = "OFFSET_OVERFLOW_ONE"
		if f.Code == wire.PullRetryImmediately {
			f.Remark = "NO_MATCHED_MESSAGE"
		}
		h.NextBeginOffset = p.from.Load()
	case storage.PastEnd:
		f.Remark, h.NextBeginOffset = "OFFSET_OVERFLOW_BADLY", res.Max
	case storage.BeforeStart:
		f.Remark, h.NextBeginOffset = "OFFSET_TOO_SMALL", res.Min
	case storage.Empty:
		f.Remark, h.NextBeginOffset = "NO_MESSAGE_IN_QUEUE", 0
	}
	f.Header = h
	if res.Status == storage.Found {
		b.stats.pulled(b.stats.consumer(p.header.ConsumerGroup, p.header.Topic), res.Count, len(res.Data))
	} else {
		b.stats.pullsEmpty.add(1)
	}
	p.reply(f)
}

// readRefusal is the answer when the store could not read: RocketMQ's for a store
// that is shut down, or for a topic deleted at this moment.
func readRefusal(p *pull, err error) *transport.Frame {
	code := wire.SystemError
	if errors.Is(err, storage.ErrTopicDeleted) {
		code = wire.TopicNotExist
	}
	return respond(code, fmt.Sprintf("pull of queue %d of topic %s: %v", p.header.QueueID, p.header.Topic, err))
}
