package mq

import (
	"hash/fnv"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/pocketmq/mq/internal/wire"
	"github.com/pocketmq/mq/transport"
)

const (
	memberLifetime = 120 * time.Second // without a heartbeat (RocketMQ: CHANNEL_EXPIRED_TIMEOUT)
	memberScan     = 10 * time.Second
	clashLogEvery  = 10 * time.Minute // between two warnings of the same kind about a group
)

// memberTable knows who of which group is connected, and what each consumer group
// subscribes to. As in RocketMQ a member is a connection: a client that connects
// again is a new member until the old connection is gone.
type memberTable struct {
	mu        sync.RWMutex
	consumers map[string]*consumerMembers
	producers map[string]map[transport.Conn]*member
	// groups of each connection, so that its close costs what it joined
	conns map[transport.Conn]*memberships
}

type memberships struct{ consumers, producers map[string]struct{} }

// A member is one connection in one group.
type member struct {
	conn     transport.Conn
	clientID string
	language transport.Language
	version  int32
	seen     time.Time // last heartbeat
	// subscribed is a digest of what it subscribed to in its last heartbeat
	subscribed uint64
}

// consumerMembers are the members of a consumer group. What the group consumes
// and how is what the last heartbeat said, whoever sent it.
type consumerMembers struct {
	members       map[transport.Conn]*member
	subscriptions map[string]*subscription
	consumeType   string
	messageModel  string
	consumeFrom   string

	clashLogged, mixedLogged time.Time
}

// A subscription is a group's to one topic. It is replaced, never written.
type subscription struct {
	data wire.SubscriptionData
	tags *tagSet
}

func newMemberTable() *memberTable {
	return &memberTable{
		consumers: make(map[string]*consumerMembers),
		producers: make(map[string]map[transport.Conn]*member),
		conns:     make(map[transport.Conn]*memberships),
	}
}

// joined tells what a heartbeat changed in a consumer group.
type joined struct {
	changed bool // a new member, or other topics: the members are to be told
	clash   bool // another connection has the same client id; to be logged
	mixed   bool // members subscribe to different things; to be logged
}

// joinConsumer enters m, or renews it. A subscription is replaced only by one of
// a greater version, and topics that are not listed are given up, for the whole
// group. Both are RocketMQ's rules.
func (t *memberTable) joinConsumer(now time.Time, m member, d *wire.ConsumerData) joined {
	m.seen, m.subscribed = now, digest(d.Subscriptions)
	t.mu.Lock()
	defer t.mu.Unlock()
	g := t.consumers[d.GroupName]
	if g == nil {
		g = &consumerMembers{
			members:       make(map[transport.Conn]*member),
			subscriptions: make(map[string]*subscription),
		}
		t.consumers[d.GroupName] = g
	}
	var j joined
	if old := g.members[m.conn]; old == nil || old.clientID != m.clientID {
		j.changed = true
		t.membershipsOf(m.conn).consumers[d.GroupName] = struct{}{}
	}
	g.members[m.conn] = &m
	g.consumeType, g.messageModel, g.consumeFrom = d.ConsumeType, d.MessageModel, d.ConsumeFromWhere
	if g.subscribe(d.Subscriptions) {
		j.changed = true
	}
	for c, other := range g.members {
		if c == m.conn {
			continue
		}
		j.clash = j.clash || other.clientID == m.clientID
		j.mixed = j.mixed || other.subscribed != m.subscribed
	}
	j.clash = j.clash && once(&g.clashLogged, now)
	j.mixed = j.mixed && once(&g.mixedLogged, now)
	return j
}

func once(last *time.Time, now time.Time) bool {
	if !last.IsZero() && now.Sub(*last) < clashLogEvery {
		return false
	}
	*last = now
	return true
}

// subscribe makes list the group's subscriptions and tells whether its topics
// changed.
func (g *consumerMembers) subscribe(list []wire.SubscriptionData) bool {
	changed := false
	listed := make(map[string]struct{}, len(list))
	for i := range list {
		d := &list[i]
		listed[d.Topic] = struct{}{}
		old := g.subscriptions[d.Topic]
		if old != nil && old.data.SubVersion >= d.SubVersion {
			continue
		}
		changed = changed || old == nil
		g.subscriptions[d.Topic] = &subscription{data: *d, tags: tagsOf(d)}
	}
	for topic := range g.subscriptions {
		if _, ok := listed[topic]; !ok {
			delete(g.subscriptions, topic)
			changed = true
		}
	}
	return changed
}

// digest is equal for equal subscriptions in any order. Retry topics do not count.
func digest(list []wire.SubscriptionData) uint64 {
	var sum uint64
	for i := range list {
		if strings.HasPrefix(list[i].Topic, retryPrefix) {
			continue
		}
		h := fnv.New64a()
		for _, s := range []string{list[i].Topic, list[i].ExpressionType, list[i].SubString} {
			_, _ = h.Write([]byte(s)) // never fails
			_, _ = h.Write([]byte{0})
		}
		sum += h.Sum64()
	}
	return sum
}

// joinProducer enters m, or renews it.
func (t *memberTable) joinProducer(now time.Time, m member, group string) {
	m.seen = now
	t.mu.Lock()
	defer t.mu.Unlock()
	g := t.producers[group]
	if g == nil {
		g = make(map[transport.Conn]*member)
		t.producers[group] = g
	}
	if g[m.conn] == nil {
		t.membershipsOf(m.conn).producers[group] = struct{}{}
	}
	g[m.conn] = &m
}

func (t *memberTable) membershipsOf(c transport.Conn) *memberships {
	s := t.conns[c]
	if s == nil {
		s = &memberships{make(map[string]struct{}), make(map[string]struct{})}
		t.conns[c] = s
	}
	return s
}

// leaveConsumer takes the connection out of a consumer group and tells whether it
// was in it.
func (t *memberTable) leaveConsumer(c transport.Conn, group string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	g := t.consumers[group]
	if g == nil || g.members[c] == nil {
		return false
	}
	delete(g.members, c)
	if len(g.members) == 0 {
		delete(t.consumers, group)
	}
	if s := t.conns[c]; s != nil {
		delete(s.consumers, group)
		t.forget(c, s)
	}
	return true
}

// leaveProducer takes the connection out of a producer group.
func (t *memberTable) leaveProducer(c transport.Conn, group string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	g := t.producers[group]
	delete(g, c)
	if len(g) == 0 {
		delete(t.producers, group)
	}
	if s := t.conns[c]; s != nil {
		delete(s.producers, group)
		t.forget(c, s)
	}
}

func (t *memberTable) forget(c transport.Conn, s *memberships) {
	if len(s.consumers) == 0 && len(s.producers) == 0 {
		delete(t.conns, c)
	}
}

// drop takes a connection out of every group and returns the consumer groups it
// was in.
func (t *memberTable) drop(c transport.Conn) []string {
	t.mu.RLock()
	s := t.conns[c]
	var consumers, producers []string
	if s != nil {
		consumers, producers = sortedKeys(s.consumers), sortedKeys(s.producers)
	}
	t.mu.RUnlock()
	consumers = slices.DeleteFunc(consumers, func(g string) bool { return !t.leaveConsumer(c, g) })
	for _, g := range producers {
		t.leaveProducer(c, g)
	}
	return consumers
}

// expire takes out members without a heartbeat for memberLifetime. It returns the
// consumer groups that lost one, and the connections that are in no group any
// more, which are to be closed. RocketMQ closes a connection as soon as one of its
// groups is silent, which hurts the others on it.
func (t *memberTable) expire(now time.Time) (groups []string, dead []transport.Conn) {
	type place struct {
		conn               transport.Conn
		consumer, producer string
	}
	var silent []place
	t.mu.RLock()
	for name, g := range t.consumers {
		for c, m := range g.members {
			if now.Sub(m.seen) > memberLifetime {
				silent = append(silent, place{conn: c, consumer: name})
			}
		}
	}
	for name, g := range t.producers {
		for c, m := range g {
			if now.Sub(m.seen) > memberLifetime {
				silent = append(silent, place{conn: c, producer: name})
			}
		}
	}
	t.mu.RUnlock()
	lost := make(map[string]struct{})
	for _, s := range silent {
		if s.consumer != "" {
			if t.leaveConsumer(s.conn, s.consumer) {
				lost[s.consumer] = struct{}{}
			}
		} else {
			t.leaveProducer(s.conn, s.producer)
		}
		if !t.member(s.conn) && !slices.Contains(dead, s.conn) {
			dead = append(dead, s.conn)
		}
	}
	return sortedKeys(lost), dead
}

// member tells whether a connection is in any group.
func (t *memberTable) member(c transport.Conn) bool {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.conns[c] != nil
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
