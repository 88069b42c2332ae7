package mq

import (
	"log/slog"
	"time"

	"github.com/pocketmq/mq/storage"
	"github.com/pocketmq/mq/transport"
)

// A FlushMode says what a broker waits for before it acknowledges a message.
type FlushMode int

const (
	// SyncFlush waits until the message is on disk: nothing acknowledged is lost,
	// not even when the machine loses power. The default; RocketMQ's is the other.
	SyncFlush FlushMode = iota
	// AsyncFlush waits until the operating system has the message: nothing is lost
	// when the process dies; a power loss may cost the last 500 ms.
	AsyncFlush
)

// A BrokerConfig configures a [Broker]. The zero value is a broker alone, in
// memory, on 127.0.0.1:10911.
type BrokerConfig struct {
	// Transport carries the broker's connections. Nil is TCP.
	Transport transport.Transport
	// NameServers are the addresses (host:port) to register with. One string may
	// hold several, separated by ; or commas. Empty: a broker alone.
	NameServers []string
	// Name is the broker's name in routes. Empty: broker- and the port.
	Name string
	// Cluster is the cluster's name. Empty: DefaultCluster.
	Cluster string
	// ID is 0 for a master. Others are refused until there is replication.
	ID int64
	// Listen is host:port; port 0 picks a free one. Empty: 127.0.0.1:10911.
	Listen string
	// Advertise is the address told to others and written into message ids: an IP,
	// or ip:port where the port seen from outside differs. Empty: the address
	// listened on; when that is unspecified (0.0.0.0), the machine's first address.
	Advertise string
	// Dir is where everything is kept. Nothing is written outside. Empty:
	// everything is in memory, bounded by MemoryLimit, and gone after Close.
	Dir string
	// Flush says what an acknowledgement means when there is a Dir.
	Flush FlushMode
	// MemoryLimit bounds what is kept without a Dir, in bytes; the oldest goes
	// first. 0: 256 MiB; negative: no limit.
	MemoryLimit int64
	// DisableAutoCreateTopic refuses sends to topics that were not created
	// (RocketMQ: autoCreateTopicEnable=false).
	DisableAutoCreateTopic bool
	// DisableAutoCreateGroup refuses consumer groups that were not created
	// (RocketMQ: autoCreateSubscriptionGroup=false).
	DisableAutoCreateGroup bool
	// DefaultQueues caps the queues of an automatically created topic, 1 to 1024.
	// 0: 8 (RocketMQ: defaultTopicQueueNums).
	DefaultQueues int
	// MaxMessageSize is the largest body in bytes, 1 to 15 MiB. 0: 4 MiB.
	MaxMessageSize int
	// RegisterInterval is the time between registrations, clamped to 10 to 60 s as
	// RocketMQ does. 0: 30 s.
	RegisterInterval time.Duration
	// Logger takes the broker's log. Nil: silent.
	Logger *slog.Logger

	// storage lets tests of this package alter how the store is opened.
	storage func(*storage.Options)
}
