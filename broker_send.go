package mq

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/netip"
	"strings"
	"time"

	"github.com/pocketmq/mq/internal/wire"
	"github.com/pocketmq/mq/storage"
	"github.com/pocketmq/mq/transport"
)

// A sendOp is one send on its way from the request to the answer: the store's
// request and its completion in one object. Sends are what a broker does most, so
// an op is used again, with the memory of its record, once it was answered. The
// answer lives longer and is not part of it.
type sendOp struct {
	storage.Request

	b       *Broker
	reply   func(*transport.Frame)
	header  *wire.SendRequest
	body    []byte
	born    netip.AddrPort
	version int32 // of the client
	arrived time.Time

	topic *brokerTopic // where it goes: the header's, or a dead-letter topic
	queue int32
	dead  bool // it goes to the dead-letter topic
	slow  bool // it is off the connection's reader and may make what it needs

	hashes [4]uint64
	room   []byte // for the record, which the store only reads, until Completed
}

// maxRoom is the most memory for records that an op keeps.
const maxRoom = 512 << 10

// A sendAnswer is the answer to a send that was stored.
type sendAnswer struct {
	frame  transport.Frame
	header wire.SendResponse
}

func (b *Broker) newSendOp() *sendOp {
	op, ok := b.sendOps.Get().(*sendOp)
	if !ok {
		op = &sendOp{b: b}
	}
	return op
}

// end lets go of an op that was answered.
func (op *sendOp) end() {
	b, room := op.b, op.room
	*op = sendOp{b: b}
	if cap(room) <= maxRoom {
		op.room = room
	}
	b.sendOps.Put(op)
	b.sends.leave()
}

// errSlow says that something must be made first, which does not happen on a
// connection's reader.
var errSlow = errors.New("mq: to be made first")

// handleSend serves SEND_MESSAGE, its short form and batches. For a topic that is
// there it does no I/O, so that the sends of one connection are stored in their
// order; others queue, in order, behind the creation of their topic.
func (b *Broker) handleSend(ctx context.Context, c transport.Conn, req *transport.Frame, reply func(*transport.Frame)) {
	if !b.sends.enter() {
		b.refuseSend(reply, respond(wire.ServiceNotAvailable, "the broker is shutting down"))
		return
	}
	op := b.newSendOp()
	op.reply, op.body, op.version, op.arrived, op.born = reply, req.Body, req.Version, time.Now(), remoteAddr(c)
	header, err := sendHeader(req)
	if err != nil {
		op.fail(refused(wire.SystemError, "%v", err))
		return
	}
	op.header = header
	if err := op.admit(); err != nil {
		op.fail(err)
		return
	}
	if b.pending.join(op) {
		return
	}
	op.proceed(ctx)
}

// sendHeader reads the header in its long or short form. The number of queues of
// a topic to be created may be missing; the broker's default stands in.
func sendHeader(req *transport.Frame) (*wire.SendRequest, error) {
	if req.Code == wire.CodeSendMessage {
		h, err := transport.HeaderOf[wire.SendRequest](req)
		if err != nil && !hasField(req, "defaultTopicQueueNums") {
			return transport.HeaderOf[wire.SendRequest](withField(req, "defaultTopicQueueNums", "0"))
		}
		return h, err
	}
	h, err := transport.HeaderOf[wire.SendRequestV2](req)
	if err != nil && !hasField(req, "d") {
		h, err = transport.HeaderOf[wire.SendRequestV2](withField(req, "d", "0"))
	}
	return (*wire.SendRequest)(h), err
}

func hasField(f *transport.Frame, key string) bool {
	_, ok := f.Field(key)
	return ok || f.Header != nil
}

func withField(f *transport.Frame, key, value string) *transport.Frame {
	c := *f
	c.Fields = append(f.Fields[:len(f.Fields):len(f.Fields)], key, value)
	return &c
}

// admit makes the checks that need nothing but the name of the topic, in
// RocketMQ's order.
func (op *sendOp) admit() error {
	s, topic := op.b.settings.Load(), op.header.Topic
	if s.acceptSendsFrom > op.arrived.UnixMilli() {
		return refused(wire.SystemError, "broker unable to service, until %v", time.UnixMilli(s.acceptSendsFrom).UTC())
	}
	if err := checkTopicName(topic); err != nil {
		return refused(wire.SystemError, "%v", err)
	}
	if s.permission&wire.PermWrite == 0 && op.b.isOrdered(topic) {
		return refused(wire.NoPermission, "the broker[%s] sending message is forbidden", op.b.addr)
	}
	if refusedTopics[topic] {
		return refused(wire.NoPermission, "sending message to topic[%s] is forbidden", topic)
	}
	return nil
}

// isOrdered tells whether the topic is an ordered one, by its own configuration
// or the name servers'.
func (b *Broker) isOrdered(topic string) bool {
	t, ok := b.topics.lookup(topic)
	return ok && t.conf().Order || b.registry.isOrdered(topic)
}

// proceed places the message and hands it to the store. When something must be
// made first and the send is not slow, it queues.
func (op *sendOp) proceed(ctx context.Context) {
	err := op.place(ctx)
	if err == nil {
		err = op.record()
	}
	switch {
	case err == nil:
		op.Completion = op
		op.b.store.Submit(&op.Request)
	case errors.Is(err, errSlow):
		op.b.pending.queue(op)
	default:
		op.fail(err)
	}
}

// place finds the topic and the queue.
func (op *sendOp) place(ctx context.Context) error {
	name := op.header.Topic
	group, retry := strings.CutPrefix(name, wire.RetryPrefix)
	t, known := op.b.topics.lookup(name)
	if !known && !op.slow {
		return errSlow
	}
	if !known {
		var err error
		if t, err = op.create(ctx, group, retry); err != nil {
			return err
		}
	}
	op.topic, op.queue = t, op.header.QueueID
	c := t.conf()
	if op.queue >= max(c.ReadQueueNums, c.WriteQueueNums) {
		return refused(wire.SystemError, "request queueId[%d] is illegal, topic %s has %d read and %d write queues, producer: %v",
			op.queue, name, c.ReadQueueNums, c.WriteQueueNums, op.born)
	}
	if op.queue < 0 {
		op.queue = rand.Int32N(max(1, c.WriteQueueNums))
	}
	if retry {
		return op.placeRetry(ctx, group)
	}
	return nil
}

// create makes the topic by RocketMQ's rules. A retry topic needs its group, so
// that a refused send leaves no topic behind.
func (op *sendOp) create(ctx context.Context, group string, retry bool) (*brokerTopic, error) {
	if !retry {
		return op.b.autoCreate(ctx, op.header.Topic, op.header.DefaultTopic, op.header.DefaultTopicQueueNums)
	}
	if op.header.QueueID >= 1 {
		return nil, refused(wire.SystemError, "request queueId[%d] is illegal, topic %s has 1 queue, producer: %v",
			op.header.QueueID, op.header.Topic, op.born)
	}
	if _, err := op.b.group(ctx, group); err != nil {
		return nil, err
	}
	return op.b.topics.ensure(ctx, op.header.Topic, 1, permRW)
}

// autoCreate makes a topic after a template that allows it. Missing or senseless
// numbers of queues become the broker's default; a topic never has none.
func (b *Broker) autoCreate(ctx context.Context, name, template string, queues int32) (*brokerTopic, error) {
	s := b.settings.Load()
	t, ok := b.topics.lookup(template)
	if !ok || t.conf().Perm&wire.PermInherit == 0 || template == wire.TopicAutoCreate && !s.autoCreateTopic {
		return nil, refused(wire.TopicNotExist,
			"topic[%s] not exist, and automatic creation is off; create it first (Broker.CreateTopic, or mqadmin updateTopic -b %s -t %s)", name, b.addr, name)
	}
	like := t.conf()
	if queues <= 0 {
		queues = s.defaultQueues
	}
	queues = max(1, min(queues, like.WriteQueueNums))
	return b.topics.ensureLike(ctx, wire.TopicConfig{TopicName: name, ReadQueueNums: queues, WriteQueueNums: queues,
		Perm: like.Perm &^ wire.PermInherit, TopicFilterType: like.TopicFilterType})
}

// Completed answers the sender; see storage.Completion.
func (op *sendOp) Completed(_ *storage.Request, err error) {
	code, remark := int32(wire.Success), ""
	if errors.Is(err, storage.ErrFlushTimeout) {
		code, remark, err = wire.FlushDiskTimeout, "the disk did not confirm in time; the message is stored", nil
	}
	if err != nil {
		op.fail(err)
		return
	}
	s := op.b.settings.Load()
	a := &sendAnswer{header: wire.SendResponse{MsgID: op.messageIDs(), QueueID: op.queue, QueueOffset: op.Records[0].Offset,
		Region: s.region, TraceOn: s.traceOn}}
	a.frame = transport.Frame{Code: code, Remark: remark, Header: &a.header}
	bytes := int64(0)
	for i := range op.Records {
		bytes += int64(len(op.Records[i].Bytes))
	}
	op.b.stats.stored(op.topic.counters, len(op.Records), bytes, time.Since(op.arrived))
	op.reply(&a.frame)
	op.end()
}

func (op *sendOp) messageIDs() string {
	if len(op.Records) == 1 {
		return wire.OffsetMessageID(op.b.host, op.Records[0].Position)
	}
	ids := make([]byte, 0, len(op.Records)*(wire.MaxUniqueKey+1))
	for i := range op.Records {
		if i > 0 {
			ids = append(ids, ',')
		}
		ids = wire.AppendOffsetMessageID(ids, op.b.host, op.Records[i].Position)
	}
	return string(ids)
}

// fail answers with the refusal.
func (op *sendOp) fail(err error) {
	op.b.refuseSend(op.reply, op.b.refusal(err))
	op.end()
}

// refuseSend adds what Java's client reads from every answer to a send.
func (b *Broker) refuseSend(reply func(*transport.Frame), f *transport.Frame) {
	f.Header = b.settings.Load().refused
	reply(f)
}

// remoteAddr is the peer's address as messages carry it.
func remoteAddr(c transport.Conn) netip.AddrPort {
	a, err := netip.ParseAddrPort(c.RemoteAddr())
	if err != nil {
		return netip.AddrPortFrom(netip.IPv4Unspecified(), 0)
	}
	return netip.AddrPortFrom(a.Addr().Unmap().WithZone(""), a.Port())
}
