package mq

import (
	"context"
	"fmt"
	"slices"

	"github.com/pocketmq/mq/internal/wire"
	"github.com/pocketmq/mq/transport"
)

// handleTopicStats answers with the bounds of each queue of a topic.
func (b *Broker) handleTopicStats(_ context.Context, _ transport.Conn, req *transport.Frame, reply func(*transport.Frame)) {
	handled(req, reply, func(h *wire.TopicStatsRequest) *transport.Frame {
		topic, ok := b.topics.lookup(h.Topic)
		if !ok {
			return respond(wire.TopicNotExist, fmt.Sprintf("topic %s does not exist on broker %s", h.Topic, b.name))
		}
		stats := wire.TopicStats{Queues: make(map[wire.MessageQueue]wire.QueueStats)}
		conf := topic.conf()
		for q := range max(conf.ReadQueueNums, conf.WriteQueueNums) {
			first, end, err := b.store.Bounds(topic.store, q)
			s := wire.QueueStats{MinOffset: first, MaxOffset: end}
			if err == nil {
				s.LastUpdateTimestamp, err = b.storeTime(topic, q, end-1)
			}
			if err != nil {
				return storeRefusal(fmt.Sprintf("queue %d of topic %s", q, h.Topic), err)
			}
			stats.Queues[wire.MessageQueue{Topic: h.Topic, BrokerName: b.name, QueueID: q}] = s
		}
		return answer(nil, stats.Marshal())
	})
}

// storeTime is when the message at an offset was stored; 0 when there is none.
func (b *Broker) storeTime(t *brokerTopic, queue int32, offset int64) (int64, error) {
	if offset < 0 {
		return 0, nil
	}
	at, found, err := b.store.StoreTime(t.store, queue, offset)
	if err != nil || !found {
		return 0, err
	}
	return at, nil
}

// handleConsumeStats answers with a group's progress on one topic, or on every
// topic on which it has an offset and, while it is online, still subscribes to.
func (b *Broker) handleConsumeStats(_ context.Context, _ transport.Conn, req *transport.Frame, reply func(*transport.Frame)) {
	handled(req, reply, func(h *wire.ConsumeStatsRequest) *transport.Frame {
		stats := wire.ConsumeStats{Queues: make(map[wire.MessageQueue]wire.ConsumeOffset)}
		topics, err := b.consumedTopics(h.ConsumerGroup, h.Topic)
		if err != nil {
			return storeRefusal("offsets of group "+h.ConsumerGroup, err)
		}
		for _, topic := range topics {
			if err := b.addProgress(&stats, h.ConsumerGroup, topic); err != nil {
				return storeRefusal(fmt.Sprintf("progress of group %s on topic %s", h.ConsumerGroup, topic.name), err)
			}
			stats.ConsumeTPS += b.stats.consumeRate(h.ConsumerGroup, topic.name)
		}
		return answer(nil, stats.Marshal())
	})
}

func (b *Broker) consumedTopics(group, only string) ([]*brokerTopic, error) {
	names := []string{only}
	if only == "" {
		offsets, err := b.store.GroupOffsets(group)
		if err != nil {
			return nil, err
		}
		names = names[:0]
		for _, o := range offsets {
			names = append(names, o.Topic.Name())
		}
		slices.Sort(names)
		names = slices.Compact(names)
	}
	var topics []*brokerTopic
	for _, name := range names {
		topic, ok := b.topics.lookup(name)
		if !ok {
			continue
		}
		if _, state := b.members.subscription(group, name); only == "" && state == notSubscribed {
			continue
		}
		topics = append(topics, topic)
	}
	return topics, nil
}

func (b *Broker) addProgress(stats *wire.ConsumeStats, group string, topic *brokerTopic) error {
	for q := range topic.conf().ReadQueueNums {
		_, end, err := b.store.Bounds(topic.store, q)
		if err != nil {
			return err
		}
		offset, _, err := b.store.CommittedOffset(group, topic.store, q) // none counts as 0
		if err != nil {
			return err
		}
		at, err := b.storeTime(topic, q, offset-1)
		if err != nil {
			return err
		}
		stats.Queues[wire.MessageQueue{Topic: topic.name, BrokerName: b.name, QueueID: q}] = wire.ConsumeOffset{
			BrokerOffset: end, ConsumerOffset: offset, LastTimestamp: at,
		}
	}
	return nil
}
