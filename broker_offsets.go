package mq

import (
	"context"
	"errors"
	"fmt"

	"github.com/pocketmq/mq/internal/wire"
	"github.com/pocketmq/mq/storage"
	"github.com/pocketmq/mq/transport"
)

// hasQueue tells whether a topic has the queue, for reading or for writing.
func (t *brokerTopic) hasQueue(queue int32) bool {
	c := t.conf()
	return 0 <= queue && queue < max(c.ReadQueueNums, c.WriteQueueNums)
}

// queue finds a queue for the requests to which RocketMQ answers 0 when there is
// none.
func (b *Broker) queue(topic string, queue int32) (*storage.Topic, bool) {
	t, ok := b.topics.lookup(topic)
	if !ok || !t.hasQueue(queue) {
		return nil, false
	}
	return t.store, true
}

func (b *Broker) handleUpdateOffset(_ context.Context, _ transport.Conn, req *transport.Frame, reply func(*transport.Frame)) {
	handled(req, reply, func(h *wire.UpdateOffsetRequest) *transport.Frame {
		t, ok := b.topics.lookup(h.Topic)
		switch {
		case !ok:
			return respond(wire.TopicNotExist, fmt.Sprintf("topic %s does not exist on broker %s", h.Topic, b.name))
		case !t.hasQueue(h.QueueID):
			return respond(wire.SystemError, fmt.Sprintf("topic %s has no queue %d", h.Topic, h.QueueID))
		case h.CommitOffset < 0:
			return respond(wire.SystemError, fmt.Sprintf("commitOffset %d of group %s is negative", h.CommitOffset, h.ConsumerGroup))
		}
		b.store.CommitOffset(h.ConsumerGroup, t.store, h.QueueID, h.CommitOffset)
		return answer(nil, nil)
	})
}

// handleQueryOffset answers 0 for a group without an offset when the queue's
// first message is still there and counts as in memory: a new group on a young
// topic begins at the front whatever its start policy. This is RocketMQ's rule.
func (b *Broker) handleQueryOffset(ctx context.Context, _ transport.Conn, req *transport.Frame, reply func(*transport.Frame)) {
	handled(req, reply, func(h *wire.QueryOffsetRequest) *transport.Frame {
		t, ok := b.queue(h.Topic, h.QueueID)
		if !ok {
			return answer(&wire.QueryOffsetResponse{}, nil)
		}
		offset, found, err := b.store.CommittedOffset(h.ConsumerGroup, t, h.QueueID)
		if err == nil && !found {
			found, err = b.young(ctx, t, h.QueueID)
		}
		switch {
		case err != nil:
			return storeRefusal(fmt.Sprintf("offset of group %s in queue %d of topic %s", h.ConsumerGroup, h.QueueID, h.Topic), err)
		case !found:
			return respond(wire.QueryNotFound, "Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first")
		}
		return answer(&wire.QueryOffsetResponse{Offset: offset}, nil)
	})
}

// young tells whether a queue's offset 0 is there, or still to come, and counts as
// in memory.
func (b *Broker) young(ctx context.Context, t *storage.Topic, queue int32) (bool, error) {
	first, end, err := b.store.Bounds(t, queue)
	if err != nil || first > 0 {
		return false, err
	}
	if end == 0 || b.store.LogEnd()-b.store.LogStart() <= inMemoryBytes {
		return true, nil
	}
	one := storage.Limit{Count: 1, Bytes: 1}
	res, err := b.store.Read(ctx, storage.Read{Topic: t, Queue: queue, Near: one, Far: one, FarBytes: inMemoryBytes, MaxScan: 1})
	if err != nil {
		return false, err
	}
	if res.Status != storage.Found {
		return res.Min <= 0, nil
	}
	return b.store.LogEnd()-res.FirstPosition <= inMemoryBytes, nil
}

// handleSearchOffset answers with the offset of the message stored nearest to a
// time: the last one's, not the end, for a time after it.
func (b *Broker) handleSearchOffset(_ context.Context, _ transport.Conn, req *transport.Frame, reply func(*transport.Frame)) {
	handled(req, reply, func(h *wire.SearchOffsetRequest) *transport.Frame {
		return b.offsetAnswer(h.Topic, h.QueueID, func(t *storage.Topic) (int64, error) {
			return b.store.OffsetByTime(t, h.QueueID, h.Timestamp)
		})
	})
}

func (b *Broker) handleMaxOffset(_ context.Context, _ transport.Conn, req *transport.Frame, reply func(*transport.Frame)) {
	handled(req, reply, func(h *wire.MaxOffsetRequest) *transport.Frame {
		return b.offsetAnswer(h.Topic, h.QueueID, func(t *storage.Topic) (int64, error) {
			_, end, err := b.store.Bounds(t, h.QueueID)
			return end, err
		})
	})
}

func (b *Broker) handleMinOffset(_ context.Context, _ transport.Conn, req *transport.Frame, reply func(*transport.Frame)) {
	handled(req, reply, func(h *wire.MinOffsetRequest) *transport.Frame {
		return b.offsetAnswer(h.Topic, h.QueueID, func(t *storage.Topic) (int64, error) {
			first, _, err := b.store.Bounds(t, h.QueueID)
			return first, err
		})
	})
}

func (b *Broker) offsetAnswer(topic string, queue int32, find func(*storage.Topic) (int64, error)) *transport.Frame {
	t, ok := b.queue(topic, queue)
	if !ok {
		return answer(&wire.OffsetResponse{}, nil)
	}
	offset, err := find(t)
	if err != nil {
		return storeRefusal(fmt.Sprintf("queue %d of topic %s", queue, topic), err)
	}
	return answer(&wire.OffsetResponse{Offset: offset}, nil)
}

func (b *Broker) handleEarliestTime(_ context.Context, _ transport.Conn, req *transport.Frame, reply func(*transport.Frame)) {
	handled(req, reply, func(h *wire.EarliestTimeRequest) *transport.Frame {
		res := &wire.EarliestTimeResponse{Timestamp: -1}
		t, ok := b.queue(h.Topic, h.QueueID)
		if !ok {
			return answer(res, nil)
		}
		var err error
		if res.Timestamp, err = b.store.EarliestStoreTime(t, h.QueueID); err != nil {
			return storeRefusal(fmt.Sprintf("queue %d of topic %s", h.QueueID, h.Topic), err)
		}
		return answer(res, nil)
	})
}

// handleAllOffsets lists the offsets of all groups that have a configuration.
func (b *Broker) handleAllOffsets(_ context.Context, _ transport.Conn, _ *transport.Frame, reply func(*transport.Frame)) {
	all := wire.ConsumerOffsets{Offsets: make(map[string]map[int32]int64)}
	for group := range b.groups.table().Groups {
		offsets, err := b.store.GroupOffsets(group)
		if err != nil && !errors.Is(err, storage.ErrNotFound) {
			reply(storeRefusal("offsets of group "+group, err))
			return
		}
		for _, o := range offsets {
			key := o.Topic.Name() + "@" + group
			if all.Offsets[key] == nil {
				all.Offsets[key] = make(map[int32]int64)
			}
			all.Offsets[key][o.Queue] = o.Offset
		}
	}
	reply(answer(nil, all.Marshal()))
}
