package mq

import (
	"context"
	"errors"
	"fmt"

	"github.com/pocketmq/mq/internal/wire"
	"github.com/pocketmq/mq/storage"
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
			f := respond(wire.ServiceNotAvailable, "the broker is starting or shutting down")
			switch req.Code {
			case wire.CodeSendMessage, wire.CodeSendMessageV2, wire.CodeSendBatchMessage:
				f.Header = &wire.SendFailure{Region: defaultRegion, TraceOn: true}
			}
			reply(f)
			return
		}
		next(ctx, c, req, reply)
	}
}

// remarkOverload is RocketMQ's text when a queue is full.
const remarkOverload = "[OVERLOAD]system busy, start flow control for a while"

// A refusal is an answer of another code than success, as an error.
type refusal struct {
	code   int32
	remark string
}

func refused(code int32, format string, args ...any) error {
	return &refusal{code, fmt.Sprintf(format, args...)}
}

func (r *refusal) Error() string { return r.remark }

// refusal turns what went wrong into the answer.
func (b *Broker) refusal(err error) *transport.Frame {
	var r *refusal
	switch {
	case errors.As(err, &r):
		return respond(r.code, r.remark)
	case errors.Is(err, storage.ErrBusy):
		return respond(wire.SystemBusy, remarkOverload)
	case errors.Is(err, storage.ErrClosed), errors.Is(err, storage.ErrFailed), errors.Is(err, context.Canceled):
		return respond(wire.ServiceNotAvailable, "service not available now: "+err.Error())
	case errors.Is(err, storage.ErrTopicDeleted):
		return respond(wire.TopicNotExist, "the topic was deleted: "+err.Error())
	case errors.Is(err, storage.ErrTooLarge):
		return respond(wire.MessageIllegal, err.Error())
	}
	return respond(wire.SystemError, err.Error())
}

// respond makes an answer without header and body.
func respond(code int32, remark string) *transport.Frame {
	return &transport.Frame{Code: code, Remark: remark}
}
