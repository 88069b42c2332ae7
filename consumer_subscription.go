package mq

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/pocketmq/mq/internal/wire"
	"github.com/pocketmq/mq/transport"
)

// topicListener is what a consumer wants of one topic, and who handles it. It is
// replaced, never changed.
type topicListener struct {
	topic string
	data  wire.SubscriptionData
	// one or many is set; neither on the retry topic, whose messages know their
	// topic.
	one  Listener
	many BatchListener
	size int // messages that many takes at once
}

// callSize is how many messages go to one call.
func (s *topicListener) callSize() int {
	if s == nil || s.many == nil {
		return 1
	}
	return s.size
}

// subscription returns the filter in its wire form (RocketMQ:
// FilterAPI.buildSubscriptionData). The version is the time, by which brokers tell
// old from new.
func (f Filter) subscription(topic string) (wire.SubscriptionData, error) {
	expression := strings.TrimSpace(f.expression)
	if expression == "" || expression == "*" {
		return allOf(topic), nil
	}
	data := allOf(topic)
	data.SubString = expression
	for tag := range strings.SplitSeq(expression, "||") {
		tag = strings.TrimSpace(tag)
		if tag == "" {
			return data, fmt.Errorf("the filter %q has an empty tag; use \"*\" or the zero Filter for all messages", f.expression)
		}
		if !slices.Contains(data.TagsSet, tag) {
			data.TagsSet = append(data.TagsSet, tag)
			data.CodeSet = append(data.CodeSet, int32(wire.TagHash(tag)))
		}
	}
	return data, nil
}

func allOf(topic string) wire.SubscriptionData {
	return wire.SubscriptionData{Topic: topic, SubString: "*", ExpressionType: wire.ExpressionTag, SubVersion: time.Now().UnixMilli()}
}

// passes checks the tag's text: the broker compares hashes only, and two tags may
// share one.
func (s *topicListener) passes(tag string) bool {
	return len(s.data.TagsSet) == 0 || slices.Contains(s.data.TagsSet, tag)
}

// consumerData describes this member for heartbeats.
func (c *Consumer) consumerData() wire.ConsumerData {
	from := [...]string{FromLast: wire.FromLastOffset, FromFirst: wire.FromFirstOffset, FromTime: wire.FromTimestamp}
	data := wire.ConsumerData{GroupName: c.cfg.Group, ConsumeType: wire.ConsumePassively,
		MessageModel: wire.Clustering, ConsumeFromWhere: from[c.cfg.Start]}
	for _, s := range c.subscribed() {
		data.Subscriptions = append(data.Subscriptions, s.data)
	}
	slices.SortFunc(data.Subscriptions, func(a, b wire.SubscriptionData) int { return strings.Compare(a.Topic, b.Topic) })
	return data
}

// subscribed are the subscriptions by topic, the retry topic's included. The map is
// replaced, never written: workers look into it for every message.
func (c *Consumer) subscribed() map[string]*topicListener { return *c.subscriptions.Load() }

// subscriptionOf returns the subscription of a topic, nil when there is none.
func (c *Consumer) subscriptionOf(topic string) *topicListener { return c.subscribed()[topic] }

// setSubscription enters or, when s is nil, removes one; it returns whether the
// topic had one before. Brokers take a changed filter only with a greater version.
func (c *Consumer) setSubscription(topic string, s *topicListener) (had bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	next := maps.Clone(c.subscribed())
	_, had = next[topic]
	if s != nil {
		c.lastVersion = max(c.lastVersion+1, s.data.SubVersion)
		s.data.SubVersion = c.lastVersion
		next[topic] = s
		delete(c.retired, topic)
	} else {
		delete(next, topic)
		c.retired[topic] = true
	}
	c.subscriptions.Store(&next)
	return had
}

// tellBrokers sends heartbeats with a new subscription at once, since brokers
// filter by the last one, and then looks for the topic's queues.
func (c *Consumer) tellBrokers() {
	if c.life.running() != nil {
		return
	}
	c.life.run(func(ctx context.Context) {
		if err := c.client.heartbeatNow(ctx); err != nil && ctx.Err() == nil {
			c.log.Warn("brokers not told of the changed subscription", "err", err)
		}
		c.wakeRebalance()
	})
}

// retire lets go of the topics that are subscribed to no more, once their queues
// were given up: that took their routes.
func (c *Consumer) retire(ctx context.Context) {
	c.mu.Lock()
	topics := slices.Collect(maps.Keys(c.retired))
	c.mu.Unlock()
	if len(topics) == 0 {
		return
	}
	if err := c.client.heartbeatNow(ctx); err != nil && ctx.Err() == nil {
		c.log.Warn("brokers not told of the changed subscription", "err", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, topic := range topics {
		if c.retired[topic] && !c.hasQueuesLocked(topic) {
			delete(c.retired, topic)
			c.client.unwatchTopic(topic)
		}
	}
}

func (c *Consumer) hasQueuesLocked(topic string) bool {
	for q := range c.assigned {
		if q.Topic == topic {
			return true
		}
	}
	return false
}

// serveBroker answers what brokers ask of a consumer.
func (c *Consumer) serveBroker() {
	c.client.handle(wire.CodeNotifyConsumerIDsChanged, nil,
		func(_ context.Context, _ transport.Conn, _ *transport.Frame, reply func(*transport.Frame)) {
			c.wakeRebalance()
			reply(&transport.Frame{})
		})
}
