package mq

import (
	"cmp"
	"slices"
	"strings"

	"github.com/pocketmq/mq/internal/wire"
	"github.com/pocketmq/mq/transport"
)

// subscriptionState says why a group has no subscription to a topic.
type subscriptionState int

const (
	subscribed subscriptionState = iota
	groupOffline
	notSubscribed
)

// subscriptionView is what a pull needs of a group's subscription.
type subscriptionView struct {
	tags         *tagSet
	kind         string // expression type
	version      int64
	broadcasting bool
}

// subscription returns what a group subscribed to on a topic. broadcasting is set
// also when the group is online but not subscribed.
func (t *memberTable) subscription(group, topic string) (subscriptionView, subscriptionState) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	g := t.consumers[group]
	if g == nil {
		return subscriptionView{}, groupOffline
	}
	v := subscriptionView{broadcasting: g.messageModel == wire.Broadcasting}
	s := g.subscriptions[topic]
	if s == nil {
		return v, notSubscribed
	}
	v.tags, v.kind, v.version = s.tags, s.data.ExpressionType, s.data.SubVersion
	return v, subscribed
}

// clientIDs are the members of a consumer group, sorted, each id once: a client
// that connected again before its old connection was noticed to be gone must not
// count twice when queues are shared out.
func (t *memberTable) clientIDs(group string) []string {
	t.mu.RLock()
	defer t.mu.RUnlock()
	g := t.consumers[group]
	if g == nil {
		return nil
	}
	ids := make([]string, 0, len(g.members))
	for _, m := range g.members {
		ids = append(ids, m.clientID)
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}

// connections are those of a consumer group's members.
func (t *memberTable) connections(group string) []transport.Conn {
	t.mu.RLock()
	defer t.mu.RUnlock()
	g := t.consumers[group]
	if g == nil {
		return nil
	}
	conns := make([]transport.Conn, 0, len(g.members))
	for c := range g.members {
		conns = append(conns, c)
	}
	return conns
}

// consumerConnection describes an online consumer group.
func (t *memberTable) consumerConnection(group string) (wire.ConsumerConnection, bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	g := t.consumers[group]
	if g == nil {
		return wire.ConsumerConnection{}, false
	}
	c := wire.ConsumerConnection{
		Connections:      connectionsOf(g.members),
		Subscriptions:    make(map[string]wire.SubscriptionData, len(g.subscriptions)),
		ConsumeType:      g.consumeType,
		MessageModel:     g.messageModel,
		ConsumeFromWhere: g.consumeFrom,
	}
	for topic, s := range g.subscriptions {
		c.Subscriptions[topic] = s.data
	}
	return c, true
}

// producerConnection describes an online producer group.
func (t *memberTable) producerConnection(group string) (wire.ProducerConnection, bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	g := t.producers[group]
	return wire.ProducerConnection{Connections: connectionsOf(g)}, len(g) > 0
}

func connectionsOf(members map[transport.Conn]*member) []wire.Connection {
	list := make([]wire.Connection, 0, len(members))
	for _, m := range members {
		list = append(list, wire.Connection{
			ClientAddr: m.conn.RemoteAddr(),
			ClientID:   m.clientID,
			Language:   m.language.String(),
			Version:    m.version,
		})
	}
	slices.SortFunc(list, func(a, b wire.Connection) int {
		return cmp.Or(strings.Compare(a.ClientID, b.ClientID), strings.Compare(a.ClientAddr, b.ClientAddr))
	})
	return list
}
