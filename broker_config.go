package mq

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"strconv"
	"time"

	"github.com/pocketmq/mq/internal/wire"
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
	// Name is the broker's name in routes, made like a topic's. Empty: broker- and
	// the port; so with port 0 the name changes at every start, and with it the
	// names of the queues: give a Name when there is a Dir.
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
	// everything is in memory, bounded by MemoryLimit, and gone after Close. One
	// broker at a time can have it: for others Start fails with ErrLocked.
	Dir string
	// Flush says what an acknowledgement means when there is a Dir.
	Flush FlushMode
	// MemoryLimit bounds what is kept without a Dir, in bytes; the oldest goes
	// first. 0: 256 MiB; negative: no limit.
	MemoryLimit int64
	// DisableAutoCreateTopic refuses sends to topics that were not created, with
	// [Broker.CreateTopic] or an administrator's tool (RocketMQ:
	// autoCreateTopicEnable=false).
	DisableAutoCreateTopic bool
	// DisableAutoCreateGroup refuses consumer groups that were not created, with
	// [Broker.CreateGroup] or an administrator's tool (RocketMQ:
	// autoCreateSubscriptionGroup=false).
	DisableAutoCreateGroup bool
	// DefaultQueues caps the queues of an automatically created topic, 1 to 1024.
	// 0: 8 (RocketMQ: defaultTopicQueueNums).
	DefaultQueues int
	// MaxMessageSize is the largest body in bytes, 1 to 15 MiB. 0: 4 MiB. Producers
	// have a limit of their own.
	MaxMessageSize int
	// RegisterInterval is the time between registrations, clamped to 10 to 60 s as
	// RocketMQ does. 0: 30 s.
	RegisterInterval time.Duration
	// Logger takes the broker's log. Nil: silent.
	Logger *slog.Logger

	// storage lets tests of this package alter how the store is opened.
	storage func(*storage.Options)
}

// withDefaults returns a copy with every default filled in, or all its faults.
func (c BrokerConfig) withDefaults() (BrokerConfig, error) {
	servers, badServers := parseAddresses("BrokerConfig.NameServers", c.NameServers)
	c.NameServers = servers
	if c.Transport == nil {
		c.Transport = transport.NewTCP(transport.TCPConfig{Logger: c.Logger})
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	c.Cluster = orText(c.Cluster, defaultCluster)
	c.Listen = orText(c.Listen, "127.0.0.1:10911")
	if c.MemoryLimit == 0 {
		c.MemoryLimit = 256 << 20
	}
	if c.DefaultQueues == 0 {
		c.DefaultQueues = 8
	}
	if c.MaxMessageSize == 0 {
		c.MaxMessageSize = wire.MaxBodyBytes
	}
	c.RegisterInterval = clampRegisterInterval(c.RegisterInterval)
	return c, errors.Join(badServers, c.validate())
}

func orText(s, otherwise string) string {
	if s == "" {
		return otherwise
	}
	return s
}

// clampRegisterInterval follows RocketMQ, which registers every 10 to 60 s
// whatever its setting says.
func clampRegisterInterval(d time.Duration) time.Duration {
	if d == 0 {
		return 30 * time.Second
	}
	return min(max(d, 10*time.Second), time.Minute)
}

func (c BrokerConfig) validate() error {
	var faults []error
	fault := func(field, format string, args ...any) {
		faults = append(faults, fmt.Errorf("mq: BrokerConfig.%s: %s", field, fmt.Sprintf(format, args...)))
	}
	if err := checkAddress(c.Listen, "[::1]:10911"); err != nil {
		fault("Listen", "%q: %v", c.Listen, err)
	}
	if c.Advertise != "" {
		if _, err := advertised(c.Advertise, 1); err != nil {
			fault("Advertise", "%q: %v", c.Advertise, err)
		}
	}
	// Both are topics' names too.
	if why := nameFault(c.Name, maxTopicLength); c.Name != "" && why != "" {
		fault("Name", "%s", why)
	}
	if why := nameFault(c.Cluster, maxTopicLength); why != "" {
		fault("Cluster", "%s", why)
	}
	if c.ID != 0 {
		fault("ID", "%d: only 0, a master, until there is replication", c.ID)
	}
	if c.Flush != SyncFlush && c.Flush != AsyncFlush {
		fault("Flush", "%d: SyncFlush or AsyncFlush", int(c.Flush))
	}
	if c.DefaultQueues < 1 || c.DefaultQueues > maxQueues {
		fault("DefaultQueues", "%d: 1 to %d", c.DefaultQueues, maxQueues)
	}
	if c.MaxMessageSize < 1 || c.MaxMessageSize > maxMessageLimit {
		fault("MaxMessageSize", "%d: 1 to %d", c.MaxMessageSize, maxMessageLimit)
	}
	return errors.Join(faults...)
}

const (
	// maxQueues bounds a topic's queues, so that a mistyped number does not make
	// every later listing huge.
	maxQueues = 1024
	// maxMessageLimit leaves room for header and properties below the largest
	// frame.
	maxMessageLimit = 15 << 20
)

// checkAddress checks host:port to listen on. The example is for IPv6.
func checkAddress(addr, example string) error {
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		return fmt.Errorf("want host:port, IPv6 as %s", example)
	}
	if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		return fmt.Errorf("port %q: want 0 to 65535", port)
	}
	return nil
}

// advertised reads an IP with or without a port; without one it is port's.
func advertised(text string, port uint16) (netip.AddrPort, error) {
	if a, err := netip.ParseAddrPort(text); err == nil && a.Port() != 0 {
		return netip.AddrPortFrom(a.Addr().Unmap(), a.Port()), nil
	}
	ip, err := netip.ParseAddr(text)
	if err != nil || ip.IsUnspecified() {
		return netip.AddrPort{}, errors.New("want an IP or ip:port, because it goes into message ids")
	}
	return netip.AddrPortFrom(ip.Unmap(), port), nil
}
