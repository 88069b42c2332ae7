package mq

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"

	"github.com/pocketmq/mq/storage"
	"github.com/pocketmq/mq/transport"
)

// A Broker stores topics and serves producers and consumers. Make one with
// [NewBroker]. All methods are safe for concurrent use.
type Broker struct {
	cfg  BrokerConfig
	log  *slog.Logger
	life *lifecycle

	// up makes these and down ends them. They are written before ready is set, and
	// only read afterwards.
	stats    *brokerStats
	groups   *groupTable
	members  *memberTable
	locks    *queueLocks
	holds    *pullHolds
	topics   *topicTable
	pending  *pendingSends
	pools    brokerPools
	registry *registry
	store    *storage.Store
	listener transport.Listener
	name     string         // resolved broker name
	addr     string         // advertised ip:port
	host     netip.AddrPort // the same, as records and message ids carry it

	settings atomic.Pointer[brokerSettings]
	ready    atomic.Bool // requests are served
	sends    sendGate
	sendOps  sync.Pool     // of *sendOp, for reuse
	changing chan struct{} // capacity 1: held while settings are changed
	failed   chan struct{} // capacity 1: the store stopped
}

// NewBroker checks cfg and makes a broker that is not started yet. It does no
// I/O. All faults of cfg are reported together.
func NewBroker(cfg BrokerConfig) (*Broker, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	b := &Broker{cfg: cfg, log: cfg.Logger, life: newLifecycle()}
	b.sends.idle = make(chan struct{}, 1)
	b.changing = make(chan struct{}, 1)
	b.failed = make(chan struct{}, 1)
	b.settings.Store(cfg.initialSettings())
	return b, nil
}

// Start opens the store, listens, and registers with every name server. It
// returns when each name server has been tried once, whether or not it was
// there: a broker alone serves and keeps trying. It fails when a broker of the
// same cluster, name and id is live at another address, and with ErrLocked when
// another broker has the Dir. A start that fails leaves nothing behind. It may be
// called once, also when it fails; then it is ErrStarted. ctx bounds the start, not
// the life.
func (b *Broker) Start(ctx context.Context) error {
	return startError("broker", b.life.start(ctx, b.up, b.down))
}

// Close ends the broker: it unregisters, answers what was taken, and waits for
// every goroutine. It may be called at any time and any number of times.
func (b *Broker) Close() error {
	b.life.close(b.down)
	return nil
}

// Shutdown refuses new sends, so that producers go elsewhere, waits until those
// under way are answered, and closes. When ctx ends first it closes at once and
// returns the context's error.
func (b *Broker) Shutdown(ctx context.Context) error {
	err := b.sends.drain(ctx)
	return errors.Join(err, b.Close())
}

// Addr returns the address the broker tells others, ip:port; empty before Start
// has returned.
func (b *Broker) Addr() string {
	if !b.ready.Load() {
		return ""
	}
	return b.addr
}

// Name returns the broker's name. When the config has none it is empty before
// Start has returned.
func (b *Broker) Name() string {
	if !b.ready.Load() {
		return b.cfg.Name
	}
	return b.name
}

// up starts everything. What it made when it fails is for down to end.
func (b *Broker) up(ctx context.Context) error {
	b.initConsumers()
	b.topics = newTopicTable(b)
	b.pending = newPendingSends(b)
	b.registry = newRegistry(b)
	b.pools = newBrokerPools()
	if err := b.openStore(ctx); err != nil {
		return err
	}
	if err := b.loadSettings(); err != nil {
		return err
	}
	if err := b.topics.load(ctx); err != nil {
		return err
	}
	if err := b.groups.load(ctx); err != nil {
		return err
	}
	l, err := b.cfg.Transport.Listen(ctx, b.cfg.Listen, b.handlers())
	if err != nil {
		return fmt.Errorf("listen on %s: %w", b.cfg.Listen, err)
	}
	b.listener = l
	if err := b.identify(l.Addr()); err != nil {
		return err
	}
	if err := b.addBootTopics(ctx); err != nil {
		return err
	}
	b.ready.Store(true)
	b.runConsumers()
	b.life.run(b.reopenStore)
	return b.registry.start(ctx)
}

// down ends what up made, and answers what was taken first. The registry's
// goroutines unregister when the broker's context ends, which it has.
func (b *Broker) down() {
	b.ready.Store(false)
	b.pools.close()
	if b.store != nil {
		if err := b.store.Close(); err != nil {
			b.log.Error("close the store", "err", err)
		}
	}
	if b.listener != nil {
		if err := b.listener.Close(); err != nil {
			b.log.Warn("close the listener", "err", err)
		}
	}
}

// identify settles name and address once the port is known.
func (b *Broker) identify(listening string) error {
	at, err := netip.ParseAddrPort(listening)
	if err != nil {
		return fmt.Errorf("address %q of the transport: %w", listening, err)
	}
	b.host = netip.AddrPortFrom(at.Addr().Unmap().WithZone(""), at.Port())
	switch {
	case b.cfg.Advertise != "":
		if b.host, err = advertised(b.cfg.Advertise, at.Port()); err != nil {
			return err
		}
	case b.host.Addr().IsUnspecified():
		ip, err := ownAddress()
		if err != nil {
			return err
		}
		b.host = netip.AddrPortFrom(ip, at.Port())
	}
	b.addr = b.host.String()
	b.name = orText(b.cfg.Name, fmt.Sprintf("broker-%d", b.host.Port()))
	return nil
}

// ownAddress is the machine's first address that others can reach, IPv4 before
// IPv6, else the loopback's.
func ownAddress() (netip.Addr, error) {
	all, err := net.InterfaceAddrs()
	if err != nil {
		return netip.Addr{}, fmt.Errorf("own address: %w; set BrokerConfig.Advertise", err)
	}
	best := netip.AddrFrom4([4]byte{127, 0, 0, 1})
	for _, a := range all {
		p, err := netip.ParsePrefix(a.String())
		if err != nil || !p.Addr().IsGlobalUnicast() {
			continue
		}
		if p.Addr().Unmap().Is4() {
			return p.Addr().Unmap(), nil
		}
		if best.IsLoopback() {
			best = p.Addr()
		}
	}
	return best, nil
}
