package mq

import (
	"errors"
	"fmt"
	"time"

	"github.com/pocketmq/mq/internal/wire"
	"github.com/pocketmq/mq/storage"
	"github.com/pocketmq/mq/transport"
)

// consumerHandlers adds what serves consumers and those who look at them. Inline
// is what does no I/O; the offsets that may have to be read from the store are
// not.
func (b *Broker) consumerHandlers(t *transport.Table) {
	t.Handle(wire.CodePullMessage, nil, b.handlePull)
	t.Handle(wire.CodeLitePullMessage, nil, b.handlePull)
	t.Handle(wire.CodeHeartBeat, nil, b.handleHeartbeat)
	t.Handle(wire.CodeUnregisterClient, nil, b.handleUnregister)
	t.Handle(wire.CodeGetConsumerListByGroup, nil, b.handleConsumerList)
	t.Handle(wire.CodeLockBatchMQ, nil, b.handleLock)
	t.Handle(wire.CodeUnlockBatchMQ, nil, b.handleUnlock)
	t.Handle(wire.CodeCheckClientConfig, nil, b.handleCheckClientConfig)
	t.Handle(wire.CodeUpdateConsumerOffset, nil, b.handleUpdateOffset)

	t.Handle(wire.CodeQueryConsumerOffset, b.pools.client, b.handleQueryOffset)
	t.Handle(wire.CodeSearchOffsetByTimestamp, b.pools.query, b.handleSearchOffset)
	t.Handle(wire.CodeGetMaxOffset, b.pools.query, b.handleMaxOffset)
	t.Handle(wire.CodeGetMinOffset, b.pools.query, b.handleMinOffset)
	t.Handle(wire.CodeGetEarliestMsgStoreTime, b.pools.query, b.handleEarliestTime)
	t.Handle(wire.CodeQueryMessage, b.pools.query, b.handleQueryMessage)
	t.Handle(wire.CodeViewMessageByID, b.pools.query, b.handleViewMessage)

	t.Handle(wire.CodeGetAllConsumerOffset, b.pools.admin, b.handleAllOffsets)
	t.Handle(wire.CodeUpdateAndCreateSubscriptionGroup, b.pools.admin, b.handleUpdateGroup)
	t.Handle(wire.CodeGetAllSubscriptionGroupConfig, b.pools.admin, b.handleGroups)
	t.Handle(wire.CodeDeleteSubscriptionGroup, b.pools.admin, b.handleDeleteGroup)
	t.Handle(wire.CodeGetConsumerConnectionList, b.pools.admin, b.handleConsumerConnections)
	t.Handle(wire.CodeGetProducerConnectionList, b.pools.admin, b.handleProducerConnections)
	t.Handle(wire.CodeGetConsumeStats, b.pools.admin, b.handleConsumeStats)
	t.Handle(wire.CodeGetTopicStatsInfo, b.pools.admin, b.handleTopicStats)
}

// initConsumers makes the tables that consumers need. It comes before the store
// is opened, because the store's waker uses them.
func (b *Broker) initConsumers() {
	b.stats = newBrokerStats(time.Now())
	b.groups = newGroupTable(b)
	b.members = newMemberTable()
	b.locks = newQueueLocks()
	b.holds = newPullHolds(maxHeldPulls, maxHeldPerConn, b.lookAt)
}

// runConsumers starts the two goroutines that own time here. They end, with every
// held pull answered, when closing begins.
func (b *Broker) runConsumers() {
	b.life.run(b.runHolds)
	b.life.run(b.runMembers)
}

// connClosed is told of every closed connection. What was held for it is dropped,
// and the other members of its groups divide the queues anew.
func (b *Broker) connClosed(c transport.Conn) {
	b.dropHolds(c)
	groups := b.members.drop(c)
	for _, group := range groups {
		b.notifyMembers(group)
	}
	if len(groups) > 0 {
		b.store.FlushOffsets()
	}
}

// consumersTopicDeleted answers the pulls held on a topic that was deleted.
func (b *Broker) consumersTopicDeleted(name string) {
	for _, p := range b.holds.all(nil) {
		if p.header.Topic == name {
			b.lookAt(p)
		}
	}
}

// inPool runs task on a pool; a full one is answered as RocketMQ does.
func (b *Broker) inPool(pool *transport.Pool, reply func(*transport.Frame), task func()) {
	if !pool.Submit(task) {
		reply(respond(wire.SystemBusy, "[OVERLOAD]system busy, start flow control for a while"))
	}
}

// storeRefusal is the answer when the store could not do what a request needs.
func storeRefusal(what string, err error) *transport.Frame {
	code := wire.SystemError
	switch {
	case errors.Is(err, storage.ErrBusy):
		code = wire.SystemBusy
	case errors.Is(err, storage.ErrFailed), errors.Is(err, storage.ErrClosed):
		code = wire.ServiceNotAvailable
	case errors.Is(err, storage.ErrTopicDeleted):
		code = wire.TopicNotExist
	}
	return respond(code, fmt.Sprintf("%s: %v", what, err))
}

// answer makes a successful response.
func answer(h transport.Header, body []byte) *transport.Frame {
	return &transport.Frame{Code: wire.Success, Header: h, Body: body}
}

// refuseMalformed is the answer to a request whose header or body cannot be read.
// err names the field.
func refuseMalformed(err error) *transport.Frame {
	return respond(wire.SystemError, err.Error())
}

// handled is a handler of the common shape: a typed header in, one answer out,
// nothing kept.
func handled[T any, P interface {
	*T
	transport.Header
}](req *transport.Frame, reply func(*transport.Frame), serve func(h *T) *transport.Frame) {
	h, err := transport.HeaderOf[T, P](req)
	if err != nil {
		reply(refuseMalformed(err))
		return
	}
	reply(serve(h))
}
