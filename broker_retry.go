package mq

import (
	"context"
	"errors"
	"math/rand/v2"
	"strconv"

	"github.com/pocketmq/mq/internal/wire"
	"github.com/pocketmq/mq/storage"
	"github.com/pocketmq/mq/transport"
)

// versionOwnLimit is the first client whose own limit of retries counts
// (RocketMQ: V3_4_9).
const versionOwnLimit = 121

// firstRetryLevel is the delay level of the first retry when the client leaves
// the choice to the broker; each further retry takes the next one.
const firstRetryLevel = 3

// retryLimit is how often a message may be tried again: what the request says,
// so that single messages can have a limit of their own, else the group's.
func retryLimit(g *brokerGroup, has bool, own, version int32) int32 {
	if has && version >= versionOwnLimit {
		return own
	}
	return g.conf().RetryMaxTimes
}

// group returns a consumer group, made when it may be.
func (b *Broker) group(ctx context.Context, name string) (*brokerGroup, error) {
	if g, ok := b.groups.lookup(name); ok {
		return g, nil
	}
	g, err := b.groups.ensure(ctx, name)
	if missing := (*groupMissing)(nil); errors.As(err, &missing) {
		return nil, refused(wire.SubscriptionGroupNotExist, "subscription group not exist, %s, %s", name, missing.why)
	}
	return g, err
}

// placeRetry sends a message that an ordered consumer, or one whose send-back
// failed, sent to its retry topic itself on to the dead-letter topic when its
// attempts are used up.
func (op *sendOp) placeRetry(ctx context.Context, group string) error {
	g, ok := op.b.groups.lookup(group)
	if !ok && !op.slow {
		return errSlow
	}
	if !ok {
		var err error
		if g, err = op.b.group(ctx, group); err != nil {
			return err
		}
	}
	h := op.header
	if h.ReconsumeTimes < retryLimit(g, h.HasMaxReconsumeTimes, h.MaxReconsumeTimes, op.version) {
		return nil
	}
	name := wire.DLQPrefix + group
	t, ok := op.b.topics.lookup(name)
	if !ok && !op.slow {
		return errSlow
	}
	if !ok {
		var err error
		if t, err = op.b.deadLetterTopic(ctx, name); err != nil {
			return err
		}
	}
	op.topic, op.queue, op.dead = t, 0, true
	return nil
}

func (b *Broker) deadLetterTopic(ctx context.Context, name string) (*brokerTopic, error) {
	if err := checkTopicName(name); err != nil {
		return nil, refused(wire.SystemError, "%v", err)
	}
	return b.topics.ensure(ctx, name, 1, permRW)
}

// A backOp is a message on its way back from a consumer that could not handle it.
type backOp struct {
	storage.Request

	b      *Broker
	reply  func(*transport.Frame)
	header *wire.SendBackRequest
	hashes [4]uint64
}

// handleSendBack serves CONSUMER_SEND_MSG_BACK: the message is stored anew for the
// group's retry topic, held back for its delay, or in its dead-letter topic. It
// runs on a pool, because it reads the message first.
func (b *Broker) handleSendBack(ctx context.Context, _ transport.Conn, req *transport.Frame, reply func(*transport.Frame)) {
	if !b.sends.enter() {
		reply(respond(wire.ServiceNotAvailable, "the broker is shutting down"))
		return
	}
	header, err := transport.HeaderOf[wire.SendBackRequest](req)
	if err != nil {
		reply(respond(wire.SystemError, err.Error()))
		b.sends.leave()
		return
	}
	op := &backOp{b: b, reply: reply, header: header}
	switch stored, err := op.prepare(ctx, req.Version); {
	case err != nil:
		op.finish(b.refusal(err))
	case !stored:
		op.finish(respond(wire.Success, ""))
	default:
		op.Completion = op
		b.store.Submit(&op.Request)
	}
}

// prepare makes the record. It returns false when the group wants no retries.
func (op *backOp) prepare(ctx context.Context, version int32) (bool, error) {
	b, h := op.b, op.header
	g, err := b.group(ctx, h.Group)
	if err != nil {
		return false, err
	}
	if b.settings.Load().permission&wire.PermWrite == 0 {
		return false, refused(wire.NoPermission, "the broker[%s] sending message is forbidden", b.addr)
	}
	queues := g.conf().RetryQueueNums
	if queues <= 0 {
		return false, nil
	}
	name := wire.RetryPrefix + h.Group
	if err := checkTopicName(name); err != nil {
		return false, refused(wire.SystemError, "%v", err)
	}
	topic, err := b.topics.ensure(ctx, name, int(queues), permRW)
	if err != nil {
		return false, err
	}
	if topic.conf().Perm&wire.PermWrite == 0 {
		return false, refused(wire.NoPermission, "the topic[%s] sending message is forbidden", name)
	}
	record, err := b.store.RecordAt(h.Offset)
	if err != nil {
		return false, refused(wire.SystemError, "look message by offset failed, %d: %v", h.Offset, err)
	}
	m, _, err := wire.ParseStored(record)
	if err != nil {
		return false, refused(wire.SystemError, "look message by offset failed, %d: %v", h.Offset, err)
	}
	return true, op.record(ctx, g, topic, &m, version)
}

// record decides between retry and dead letter and makes the record of the
// message's next life: body, born time and host, flags and properties stay.
func (op *backOp) record(ctx context.Context, g *brokerGroup, topic *brokerTopic, m *wire.StoredMessage, version int32) error {
	b, h := op.b, op.header
	t := traitsOf(m.Properties)
	set := []property{{key: wire.PropWait}}
	if _, ok := wire.Property(m.Properties, wire.PropRetryTopic); !ok {
		set = append(set, property{wire.PropRetryTopic, m.Topic})
	}
	if _, ok := wire.Property(m.Properties, wire.PropOriginMessageID); !ok {
		set = append(set, property{wire.PropOriginMessageID, wire.OffsetMessageID(m.StoreHost, m.Position)})
	}
	b.stats.consumer(h.Group, m.Topic).sentBack.add(1)
	level := 0
	if h.DelayLevel < 0 || m.ReconsumeTimes >= retryLimit(g, h.HasMaxReconsumeTimes, h.MaxReconsumeTimes, version) {
		var err error
		if topic, err = b.deadLetterTopic(ctx, wire.DLQPrefix+h.Group); err != nil {
			return err
		}
		m.QueueID = 0
		// A delay that survived would be one for whoever sends it on from there.
		set = append(set, property{key: wire.PropDelay})
	} else {
		level = int(h.DelayLevel)
		if level == 0 {
			level = firstRetryLevel + int(m.ReconsumeTimes)
		}
		level = min(level, len(delayLevels))
		m.QueueID = rand.Int32N(max(1, topic.conf().WriteQueueNums))
		set = append(set, property{wire.PropDelay, strconv.Itoa(level)})
	}
	m.Topic, m.StoreHost, m.ReconsumeTimes = topic.name, b.host, m.ReconsumeTimes+1
	return fillRecord(op.One(), topic, m, &t, level, set, op.hashes[:0])
}

// Completed answers the consumer; see storage.Completion.
func (op *backOp) Completed(_ *storage.Request, err error) {
	switch {
	case err == nil:
		op.finish(respond(wire.Success, ""))
	case errors.Is(err, storage.ErrFlushTimeout):
		// Only a stored message may leave the consumer: it will try again.
		op.finish(respond(wire.SystemError, "FLUSH_DISK_TIMEOUT"))
	default:
		op.finish(op.b.refusal(err))
	}
}

func (op *backOp) finish(f *transport.Frame) {
	op.reply(f)
	op.b.sends.leave()
}
