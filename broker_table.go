package mq

import (
	"context"

	"github.com/pocketmq/mq/internal/wire"
	"github.com/pocketmq/mq/transport"
)

// brokerPools are the bounded pools that run what must not run on a
// connection's reader.
type brokerPools struct {
	create *transport.Pool // creating topics and groups for sends
	back   *transport.Pool // send back: reads the message first
	pull   *transport.Pool // pulls that missed the ring
	query  *transport.Pool // key queries, view by id, offsets that need the disk
	client *transport.Pool // heartbeats and commits that create a group
	admin  *transport.Pool // everything of administrators
}

func newBrokerPools() brokerPools {
	return brokerPools{
		create: transport.NewPool(16, 10_000),
		back:   transport.NewPool(4, 10_000),
		pull:   transport.NewPool(16, 10_000),
		query:  transport.NewPool(8, 10_000),
		client: transport.NewPool(8, 10_000),
		admin:  transport.NewPool(8, 1_000),
	}
}

func (p brokerPools) close() {
	for _, pool := range []*transport.Pool{p.create, p.back, p.pull, p.query, p.client, p.admin} {
		pool.Close()
	}
}

// handlers makes the table of everything the broker serves.
func (b *Broker) handlers() *transport.Table {
	t := &transport.Table{Language: transport.Go, Version: protocolVersion, Closed: b.connClosed}
	t.Use(b.whenReady)

	// Producers.
	t.Handle(wire.CodeSendMessage, nil, b.handleSend)
	t.Handle(wire.CodeSendMessageV2, nil, b.handleSend)
	t.Handle(wire.CodeSendBatchMessage, nil, b.handleSend)

	// Consumers.
	t.Handle(wire.CodeConsumerSendMsgBack, b.pools.back, b.handleSendBack)
	b.consumerHandlers(t)

	// Administrators.
	t.Handle(wire.CodeUpdateAndCreateTopic, b.pools.admin, b.handleCreateTopic)
	t.Handle(wire.CodeGetAllTopicConfig, b.pools.admin, b.handleTopicConfigs)
	t.Handle(wire.CodeDeleteTopicInBroker, b.pools.admin, b.handleDeleteTopic)
	t.Handle(wire.CodeUpdateBrokerConfig, b.pools.admin, b.handleUpdateConfig)
	t.Handle(wire.CodeGetBrokerConfig, b.pools.admin, b.handleConfig)
	t.Handle(wire.CodeGetBrokerRuntimeInfo, b.pools.admin, b.handleRuntimeInfo)
	t.Handle(wire.CodeGetSystemTopicListFromBroker, b.pools.admin, b.handleSystemTopics)
	return t
}

// whenReady refuses requests that come before Start has loaded everything, or
// after Close began.
func (b *Broker) whenReady(next transport.Handler) transport.Handler {
	return func(ctx context.Context, c transport.Conn, req *transport.Frame, reply func(*transport.Frame)) {
		if !b.ready.Load() {
			reply(respond(wire.ServiceNotAvailable, "the broker is starting or shutting down"))
			return
		}
		next(ctx, c, req, reply)
	}
}

// respond makes an answer without header and body.
func respond(code int32, remark string) *transport.Frame {
	return &transport.Frame{Code: code, Remark: remark}
}
