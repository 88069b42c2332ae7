package mq

import (
	"context"
	"fmt"

	"github.com/pocketmq/mq/internal/wire"
	"golang.org/x/sync/errgroup"
)

const (
	singleTag = "SINGLE_TAG"
	permRW    = wire.PermRead | wire.PermWrite
	permAll   = permRW | wire.PermInherit
)

// refusedTopics take no messages from outside.
var refusedTopics = map[string]bool{
	wire.TopicSchedule:     true,
	wire.TopicHalf:         true,
	wire.TopicHalfOp:       true,
	wire.TopicCheckMaxTime: true,
	wire.TopicSelfTest:     true,
	wire.TopicOffsetMoved:  true,
}

// bootTopics are the topics that a RocketMQ 4.9 broker has from its start on.
func (b *Broker) bootTopics() []wire.TopicConfig {
	topic := func(name string, queues, perm int32) wire.TopicConfig {
		return wire.TopicConfig{TopicName: name, ReadQueueNums: queues, WriteQueueNums: queues, Perm: perm,
			TopicFilterType: singleTag}
	}
	topics := []wire.TopicConfig{
		topic(wire.TopicSelfTest, 1, permRW),
		topic(wire.TopicBenchmark, 1024, permRW),
		topic(b.cfg.Cluster, 16, permAll),
		topic(b.name, 1, permAll),
		topic(wire.TopicOffsetMoved, 1, permRW),
		topic(wire.TopicSchedule, int32(len(delayLevels)), permRW),
		topic(b.cfg.Cluster+wire.ReplySuffix, 1, permRW),
	}
	if s := b.settings.Load(); s.autoCreateTopic {
		topics = append(topics, topic(wire.TopicAutoCreate, s.defaultQueues, permAll))
	}
	return topics
}

// addBootTopics makes the system topics known that are not yet. The store's part
// of them is made in one group.
func (b *Broker) addBootTopics(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	for _, c := range b.bootTopics() {
		if t, ok := b.topics.lookup(c.TopicName); ok && t.system {
			continue
		}
		g.Go(func() error {
			t, err := b.store.OpenTopic(ctx, c.TopicName)
			if err != nil {
				return fmt.Errorf("mq: open system topic %s: %w", c.TopicName, err)
			}
			b.topics.add(t, c, true)
			return nil
		})
	}
	return g.Wait()
}

// isSystemTopic tells whether the name is the broker's own, so that
// administrators may not change or delete it.
func (b *Broker) isSystemTopic(name string) bool {
	switch name {
	case wire.TopicAutoCreate, wire.TopicBenchmark, wire.TopicTrace, b.cfg.Cluster, b.name, b.cfg.Cluster + wire.ReplySuffix:
		return true
	}
	return refusedTopics[name] || len(name) >= len(wire.SystemPrefix) && name[:len(wire.SystemPrefix)] == wire.SystemPrefix
}
