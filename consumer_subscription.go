package mq

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/pocketmq/mq/internal/wire"
	"github.com/pocketmq/mq/transport"
)

// topicListener is what a consumer wants of one topic, and who handles it. It is
// replaced, never changed.
type topicListener struct {
	topic  string
	data   wire.SubscriptionData
	listen BatchListener // nil on the retry topic: its messages know their topic
	batch  int
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
		if tag = strings.TrimSpace(tag); tag != "" && !slices.Contains(data.TagsSet, tag) {
			data.TagsSet = append(data.TagsSet, tag)
			data.CodeSet = append(data.CodeSet, int32(wire.TagHash(tag)))
		}
	}
	if len(data.TagsSet) == 0 {
		return data, errors.New("the filter names no tag; use \"*\" or the zero Filter for all")
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
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.subscriptions {
		data.Subscriptions = append(data.Subscriptions, s.data)
	}
	slices.SortFunc(data.Subscriptions, func(a, b wire.SubscriptionData) int { return strings.Compare(a.Topic, b.Topic) })
	return data
}

// subscriptionOf returns the subscription of a topic, nil when there is none.
func (c *Consumer) subscriptionOf(topic string) *topicListener {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.subscriptions[topic]
}

// subscriptionsChanged tells the brokers at once: their filter is the last
// heartbeat's.
func (c *Consumer) subscriptionsChanged() {
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

// serveBroker answers what brokers ask of a consumer.
func (c *Consumer) serveBroker() {
	c.client.handle(wire.CodeNotifyConsumerIDsChanged, nil,
		func(_ context.Context, _ transport.Conn, _ *transport.Frame, reply func(*transport.Frame)) {
			c.wakeRebalance()
			reply(&transport.Frame{})
		})
}
