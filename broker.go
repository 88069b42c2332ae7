package mq

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
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

	// up makes these in this order and down ends them in the opposite one. They
	// are written before ready is set and only read afterwards.
	store    *storage.Store
	topics   *topicTable
	pools    brokerPools
	stats    *brokerStats
	groups   *groupTable
	members  *memberTable
	locks    *queueLocks
	holds    *pullHolds
	listener transport.Listener
	name     string         // resolved broker name
	addr     string         // advertised ip:port
	host     netip.AddrPort // the same, as records and message ids carry it
	registry *registry

	settings atomic.Pointer[brokerSettings] // what can change while it runs
	ready    atomic.Bool                    // requests are served
	sends    sendGate
}

// NewBroker checks cfg and makes a broker that is not started yet. It does no
// I/O. All faults of cfg are reported together.
func NewBroker(cfg BrokerConfig) (*Broker, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	return &Broker{cfg: cfg, log: cfg.Logger, life: newLifecycle()}, nil
}

// Start opens the store, listens, and registers with every name server. It
// returns when each name server has been tried once, whether or not it was
// there: a broker alone serves and keeps trying. It fails when a broker of the
// same cluster, name and id is live at another address. A start that fails
// leaves nothing behind. ctx bounds the start, not the life.
func (b *Broker) Start(ctx context.Context) error {
	if err := b.life.start(ctx, b.up, b.down); err != nil {
		return fmt.Errorf("mq: start of broker: %w", err)
	}
	return nil
}

// Close ends the broker: it unregisters, answers what was taken, and waits for
// every goroutine. It may be called at any time and any number of times.
func (b *Broker) Close() error {
	b.life.close(b.down)
	return nil
}
