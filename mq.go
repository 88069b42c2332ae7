package mq

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"github.com/pocketmq/mq/internal/wire"
)

// A Message is what a producer sends. The library never writes to it and copies
// the body before a send call returns, so the caller may use it again at once.
type Message struct {
	// Topic names where it goes: 1 to 127 of the characters a-z A-Z 0-9 _ - % |.
	Topic string
	// Tag is the one tag that subscriptions filter by. Empty for none.
	Tag string
	// Keys are looked up by queries: one word each, without blanks.
	Keys []string
	// Body is 1 byte to MaxMessageSize, which producer and broker each have; the
	// default of both is 4 MiB.
	Body []byte
	// Properties are the user's own. Names RocketMQ keeps for itself are refused;
	// names and values are not empty and hold no \x01 and \x02. In their wire form
	// all properties of a message take at most 32,767 bytes.
	Properties map[string]string
	// Flag travels with the message; RocketMQ gives it no meaning.
	Flag int32
	// DelayLevel 1 to 18 holds the message back for 1s 5s 10s 30s 1m 2m 3m 4m 5m
	// 6m 7m 8m 9m 10m 20m 30m 1h 2h on the broker (RocketMQ's levels). Zero: at once.
	// In a delivery it is zero; what it was is Property("DELAY").
	DelayLevel int
	// ShardKey, when set, chooses the queue: equal keys go to equal queues as long
	// as the topic's queues stay the same, and to the same as Java's hash selector.
	ShardKey string
	// NoFlush lets the broker answer before the message is flushed to disk
	// (RocketMQ: WAIT=false). Our broker answers it with the others of its group,
	// whose one sync serves it too.
	NoFlush bool
}

// A Queue is one of a topic's queues. Order is kept inside a queue only.
type Queue struct {
	Topic  string
	Broker string
	ID     int
}

// String returns the queue as topic@broker:id.
func (q Queue) String() string { return fmt.Sprintf("%s@%s:%d", q.Topic, q.Broker, q.ID) }

// A Delivery is a message as a listener gets it. The listener owns it and may
// keep or change it; its body shares memory with the other messages of the same
// pull, so who keeps few of many for long copies them.
type Delivery struct {
	Message
	// ID is the unique id that SendResult.ID showed; it stays equal over all
	// retries. OffsetID() when the sender set none.
	ID     string
	Queue  Queue
	Offset int64 // in the queue
	// Attempt counts deliveries to the group, from 1 (RocketMQ: reconsumeTimes + 1).
	// On a group's dead-letter topic it counts on from what the broker knows: it is
	// one more than the attempts of a concurrent consumer, and 2 after an ordered
	// one, which repeats by itself, however often.
	Attempt int
	// BornAt is when the producer sent it, by the producer's clock; StoredAt is when
	// the broker stored this copy.
	BornAt, StoredAt time.Time
	// BornHost is the producer's address as the broker saw it, StoreHost the
	// broker's.
	BornHost, StoreHost netip.AddrPort

	// What the consumer itself goes by; the exported fields are the listener's.
	offset     int64
	generation int    // of the window it came through
	retries    int32  // RocketMQ: reconsumeTimes
	id, topic  string // topic is the original one of a retried message
	position   int64  // in the broker's log; what a send-back quotes
	properties string // all of them, in their wire form
	size       int    // bytes it takes in the log, for flow control
	fault      error  // why the body could not be read
	used       bool   // a listener had it: it is not handed out again
}

// OffsetID is the broker's id of this copy: its address and its position in the
// log.
func (d *Delivery) OffsetID() string { return wire.OffsetMessageID(d.StoreHost, d.position) }

// Property returns a property by its name in RocketMQ, also one that Properties
// leaves out because RocketMQ reserves it, such as REAL_TOPIC or CLUSTER. It is
// empty when the message has no such property.
func (d *Delivery) Property(name string) string {
	value, _ := wire.Property(d.properties, name)
	return value
}

// A Listener handles one message. Nil means done; an error means "again later";
// [RetryAfter], [ErrSkip], [ErrDeadLetter] and [Suspend] say more. A panic counts
// as an error. ctx ends when the consumer is closed or, after Shutdown's limit, is
// being closed.
type Listener func(ctx context.Context, d *Delivery) error

// A BatchListener handles several messages of one queue, in order. An error made
// by [Done] tells how many from the front were done; any other error fails all.
type BatchListener func(ctx context.Context, batch []*Delivery) error

// SendStatus says how safely a message is stored. Every status means it is
// stored; sending it again would duplicate it.
type SendStatus int

// The statuses of RocketMQ's send answers.
const (
	SendOK SendStatus = iota
	// FlushDiskTimeout: the disk did not confirm in time; the message may be lost
	// if the machine loses power.
	FlushDiskTimeout
	// FlushSlaveTimeout: no replica confirmed in time.
	FlushSlaveTimeout
	// SlaveNotAvailable: there was no replica to confirm.
	SlaveNotAvailable
)

// String returns RocketMQ's name of the status.
func (s SendStatus) String() string {
	switch s {
	case SendOK:
		return "SEND_OK"
	case FlushDiskTimeout:
		return "FLUSH_DISK_TIMEOUT"
	case FlushSlaveTimeout:
		return "FLUSH_SLAVE_TIMEOUT"
	case SlaveNotAvailable:
		return "SLAVE_NOT_AVAILABLE"
	}
	return fmt.Sprintf("SendStatus(%d)", int(s))
}

// A SendResult tells where a message was stored.
type SendResult struct {
	Status SendStatus
	// ID is the client's unique id; for a batch the ids joined by commas.
	ID string
	// OffsetID is the broker's id; for a batch the ids joined by commas.
	OffsetID string
	Queue    Queue
	// Offset in the queue; the first message's for a batch. Zero for a delayed
	// message, which has none yet.
	Offset int64
}

// A Filter chooses which messages of a topic a consumer gets. The zero value is
// all of them.
type Filter struct {
	expression string
}

// Tags returns a filter on tags, in RocketMQ's form: names joined by "||", or
// "*" for all. Subscribe refuses one with an empty name in it.
func Tags(expression string) Filter { return Filter{expression} }

// StartFrom says where a consumer group begins on a queue for which it has no
// stored offset.
type StartFrom int

// The start policies of RocketMQ.
const (
	// FromLast begins at the end of the queue, except where the queue's first message
	// is still there and less than 3.2 GiB of log follow it: then at 0, as RocketMQ's
	// brokers do. So a new group on a small broker gets everything.
	FromLast StartFrom = iota
	// FromFirst begins at the oldest message.
	FromFirst
	// FromTime begins at the message stored nearest to ConsumerConfig.StartTime.
	FromTime
)

// Names that RocketMQ gives meaning to.
const (
	retryPrefix       = "%RETRY%"
	deadLetterPrefix  = "%DLQ%"
	systemTopicPrefix = "rmq_sys_"
	autoCreateTopic   = "TBW102"
	scheduleTopic     = "SCHEDULE_TOPIC_XXXX"
	innerProducer     = "CLIENT_INNER_PRODUCER"
	defaultCluster    = "DefaultCluster"
)

// protocolVersion is the version ordinal in every frame we send: RocketMQ 4.9.8.
const protocolVersion = 409

// delayLevels are RocketMQ's, level 1 first.
var delayLevels = [...]time.Duration{
	time.Second, 5 * time.Second, 10 * time.Second, 30 * time.Second,
	1 * time.Minute, 2 * time.Minute, 3 * time.Minute, 4 * time.Minute, 5 * time.Minute,
	6 * time.Minute, 7 * time.Minute, 8 * time.Minute, 9 * time.Minute, 10 * time.Minute,
	20 * time.Minute, 30 * time.Minute, time.Hour, 2 * time.Hour,
}

// RetryTopic returns the topic on which a consumer group's failed messages come
// again.
func RetryTopic(group string) string { return retryPrefix + group }

// DeadLetterTopic returns the topic that takes a consumer group's messages whose
// attempts are used up.
func DeadLetterTopic(group string) string { return deadLetterPrefix + group }
