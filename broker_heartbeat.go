package mq

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/pocketmq/mq/internal/wire"
	"github.com/pocketmq/mq/transport"
)

// handleHeartbeat enters a client in its groups on the connection's reader. Only
// when a group or its retry topic has to be made does the answer come from a pool.
func (b *Broker) handleHeartbeat(_ context.Context, c transport.Conn, req *transport.Frame, reply func(*transport.Frame)) {
	beat, err := wire.ParseHeartbeat(req.Body)
	if err != nil {
		reply(refuseMalformed(err))
		return
	}
	now := time.Now()
	m := member{conn: c, clientID: beat.ClientID, language: req.Language, version: req.Version}
	for _, p := range beat.Producers {
		b.members.joinProducer(now, m, p.GroupName)
	}
	var faults []error
	var missing []string
	for i := range beat.Consumers {
		d := &beat.Consumers[i]
		defaultEnums(d)
		if err := errors.Join(d.Check(), checkGroupName(d.GroupName)); err != nil {
			faults = append(faults, err) // the client's other groups are none the worse
			continue
		}
		b.joinConsumer(now, m, d)
		if !b.groupReady(d.GroupName) {
			missing = append(missing, d.GroupName)
		}
	}
	result := answer(nil, nil)
	if err := errors.Join(faults...); err != nil {
		result = refuseMalformed(err)
	}
	if len(missing) == 0 {
		reply(result)
		return
	}
	b.inPool(b.pools.client, reply, func() {
		for _, group := range missing {
			b.makeGroup(b.life.ctx, group)
		}
		reply(result)
	})
}

// defaultEnums fills in what a client left out: every member is optional.
func defaultEnums(d *wire.ConsumerData) {
	if d.ConsumeType == "" {
		d.ConsumeType = wire.ConsumePassively
	}
	if d.MessageModel == "" {
		d.MessageModel = wire.Clustering
	}
}

func (b *Broker) joinConsumer(now time.Time, m member, d *wire.ConsumerData) {
	j := b.members.joinConsumer(now, m, d)
	if j.clash {
		b.log.Warn("two connections have one client id: if these are two clients, queues are shared out wrongly",
			"group", d.GroupName, "client", m.clientID, "conn", m.conn.RemoteAddr())
	}
	if j.mixed {
		b.log.Warn("members of one consumer group subscribe to different things: the last heartbeat wins and messages are missed",
			"group", d.GroupName, "client", m.clientID, "conn", m.conn.RemoteAddr())
	}
	if j.changed {
		b.notifyMembers(d.GroupName)
	}
}

// groupReady tells whether a group and its retry topic exist.
func (b *Broker) groupReady(group string) bool {
	g, ok := b.groups.lookup(group)
	if !ok {
		return false
	}
	if g.conf().RetryQueueNums <= 0 {
		return true
	}
	_, ok = b.topics.lookup(RetryTopic(group))
	return ok
}

// makeGroup creates a group and its retry topic. A heartbeat succeeds without
// them, as in RocketMQ: the group's pulls then say what is missing.
func (b *Broker) makeGroup(ctx context.Context, group string) {
	g, err := b.groups.ensure(ctx, group)
	if err == nil && g.conf().RetryQueueNums > 0 {
		_, err = b.topics.ensure(ctx, RetryTopic(group), int(g.conf().RetryQueueNums), permRW)
	}
	if errors.Is(err, ErrGroupNotFound) { // not allowed, and each heartbeat would say so again
		b.log.Debug("consumer group not created", "group", group, "err", err)
	} else if err != nil {
		b.log.Warn("consumer group could not be created", "group", group, "err", err)
	}
}

// notifyMembers tells every member of a group to divide the queues anew.
func (b *Broker) notifyMembers(group string) {
	if g, ok := b.groups.lookup(group); ok && !g.conf().NotifyConsumerIDsChangedEnable {
		return
	}
	for _, c := range b.members.connections(group) {
		err := c.Send(&transport.Frame{
			Code:   wire.CodeNotifyConsumerIDsChanged,
			Header: &wire.NotifyIDsChanged{ConsumerGroup: group},
		})
		if err != nil { // closed, or reads too slowly; the client rebalances every 20 s anyway
			b.log.Debug("member not notified", "group", group, "conn", c.RemoteAddr(), "err", err)
		}
	}
}

func (b *Broker) handleUnregister(_ context.Context, c transport.Conn, req *transport.Frame, reply func(*transport.Frame)) {
	handled(req, reply, func(h *wire.UnregisterClientRequest) *transport.Frame {
		if h.ProducerGroup != "" {
			b.members.leaveProducer(c, h.ProducerGroup)
		}
		if h.ConsumerGroup != "" && b.members.leaveConsumer(c, h.ConsumerGroup) {
			b.notifyMembers(h.ConsumerGroup)
			b.store.FlushOffsets()
		}
		return answer(nil, nil)
	})
}

// runMembers owns the time of members, locks and statistics, until ctx ends.
func (b *Broker) runMembers(ctx context.Context) {
	tick := time.NewTicker(memberScan) // as long as sampleEvery
	defer tick.Stop()
	for {
		select {
		case now := <-tick.C:
			b.expireMembers(now)
			b.locks.expire(now)
			b.stats.sample(now)
		case <-ctx.Done():
			return
		}
	}
}

// expireMembers takes out silent members. RocketMQ's scan does not tell the
// others; here it does, so that their queues do not lie idle for up to 20 s.
func (b *Broker) expireMembers(now time.Time) {
	groups, dead := b.members.expire(now)
	for _, group := range groups {
		b.notifyMembers(group)
	}
	if len(groups) > 0 {
		b.store.FlushOffsets()
	}
	for _, c := range dead {
		b.log.Info("connection without heartbeat closed", "conn", c.RemoteAddr())
		if err := c.Close(); err != nil {
			b.log.Debug("close of a silent connection", "conn", c.RemoteAddr(), "err", err)
		}
	}
}

func (b *Broker) handleConsumerList(_ context.Context, _ transport.Conn, req *transport.Frame, reply func(*transport.Frame)) {
	handled(req, reply, func(h *wire.ConsumerListRequest) *transport.Frame {
		list := wire.ConsumerList{ConsumerIDs: b.members.clientIDs(h.ConsumerGroup)}
		if len(list.ConsumerIDs) == 0 {
			return respond(wire.SystemError, "no consumer for this group, "+h.ConsumerGroup)
		}
		return answer(nil, list.Marshal())
	})
}

func (b *Broker) handleConsumerConnections(_ context.Context, _ transport.Conn, req *transport.Frame, reply func(*transport.Frame)) {
	handled(req, reply, func(h *wire.ConsumerConnectionRequest) *transport.Frame {
		list, online := b.members.consumerConnection(h.ConsumerGroup)
		if !online {
			return respond(wire.ConsumerNotOnline, fmt.Sprintf("the consumer group[%s] not online", h.ConsumerGroup))
		}
		return answer(nil, list.Marshal())
	})
}

func (b *Broker) handleProducerConnections(_ context.Context, _ transport.Conn, req *transport.Frame, reply func(*transport.Frame)) {
	handled(req, reply, func(h *wire.ProducerConnectionRequest) *transport.Frame {
		list, online := b.members.producerConnection(h.ProducerGroup)
		if !online {
			return respond(wire.SystemError, fmt.Sprintf("the producer group[%s] not exist", h.ProducerGroup))
		}
		return answer(nil, list.Marshal())
	})
}

// handleCheckClientConfig tells a client before it starts whether its filter will
// be understood.
func (b *Broker) handleCheckClientConfig(_ context.Context, _ transport.Conn, req *transport.Frame, reply func(*transport.Frame)) {
	c, err := wire.ParseCheckClientConfig(req.Body)
	switch {
	case err != nil:
		reply(refuseMalformed(err))
	case !isTagExpression(c.Subscription.ExpressionType):
		reply(respond(wire.SystemError, noSQL92))
	default:
		reply(answer(nil, nil))
	}
}

func (b *Broker) handleLock(_ context.Context, _ transport.Conn, req *transport.Frame, reply func(*transport.Frame)) {
	r, err := wire.ParseLockBatchRequest(req.Body)
	if err != nil {
		reply(refuseMalformed(err))
		return
	}
	granted := wire.LockBatchResponse{Locked: b.locks.lock(time.Now(), r.ConsumerGroup, r.ClientID, r.Queues)}
	reply(answer(nil, granted.Marshal()))
}

func (b *Broker) handleUnlock(_ context.Context, _ transport.Conn, req *transport.Frame, reply func(*transport.Frame)) {
	r, err := wire.ParseLockBatchRequest(req.Body)
	if err != nil {
		reply(refuseMalformed(err))
		return
	}
	b.locks.unlock(r.ConsumerGroup, r.ClientID, r.Queues)
	reply(answer(nil, nil))
}
