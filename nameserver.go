package mq

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/pocketmq/mq/internal/wire"
	"github.com/pocketmq/mq/transport"
)

const (
	expiryScanDelay  = 5 * time.Second
	expiryScanPeriod = 10 * time.Second
)

// NameServerConfig configures a [NameServer]. The zero value works.
type NameServerConfig struct {
	// Transport carries the requests. Nil is TCP.
	Transport transport.Transport
	// Listen is host:port, port 0 for a free one. Default 127.0.0.1:9876.
	Listen string
	// Dir keeps the key-value configuration across restarts. Empty: it is lost.
	Dir string
	// OrderMessages adds the ordered-topic configuration to routes (RocketMQ:
	// orderMessageEnable).
	OrderMessages bool
	// Logger takes what an operator should know. Nil is silent.
	Logger *slog.Logger
}

// A NameServer tells producers and consumers which brokers have a topic. Name
// servers never talk to each other: every broker registers with each of them, and
// clients may ask any. It matches RocketMQ 4.9's, except that it answers unknown
// request codes where RocketMQ lets the caller time out. All methods are safe for
// concurrent use.
type NameServer struct {
	cfg  NameServerConfig
	log  *slog.Logger
	life *lifecycle
	kv   kvTable

	changes  *transport.Pool // one worker: changes of files, one after the other
	listener transport.Listener

	mu            sync.RWMutex
	routes        *routeTable
	orderMessages bool
	addr          string
}

// NewNameServer checks the configuration and returns a name server to be started.
func NewNameServer(cfg NameServerConfig) (*NameServer, error) {
	if cfg.Listen == "" {
		cfg.Listen = "127.0.0.1:9876"
	}
	if err := checkAddress(cfg.Listen, "[::1]:9876"); err != nil {
		return nil, fmt.Errorf("mq: NameServerConfig.Listen %q: %w", cfg.Listen, err)
	}
	log := cfg.Logger
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	if cfg.Transport == nil {
		cfg.Transport = transport.NewTCP(transport.TCPConfig{Logger: log})
	}
	n := &NameServer{cfg: cfg, log: log, life: newLifecycle(), routes: newRouteTable(),
		orderMessages: cfg.OrderMessages, changes: transport.NewPool(1, 10_000)}
	if cfg.Dir != "" {
		n.kv.path = filepath.Join(cfg.Dir, "kvConfig.json")
	}
	return n, nil
}

// Start loads the configuration and listens. It may be called once, also when it
// fails, which leaves nothing behind; then it is ErrStarted. ctx bounds the start,
// not the life.
func (n *NameServer) Start(ctx context.Context) error {
	return startError("name server", n.life.start(ctx, n.up, n.down))
}

func (n *NameServer) up(ctx context.Context) error {
	if n.cfg.Dir != "" {
		if err := os.MkdirAll(n.cfg.Dir, 0o755); err != nil {
			return fmt.Errorf("make its directory: %w", err)
		}
	}
	if err := n.kv.load(); err != nil {
		return err
	}
	l, err := n.cfg.Transport.Listen(ctx, n.cfg.Listen, n.table())
	if err != nil {
		return fmt.Errorf("listen on %s: %w", n.cfg.Listen, err)
	}
	n.listener = l
	n.mu.Lock()
	n.addr = l.Addr()
	n.mu.Unlock()
	n.life.run(n.scan)
	return nil
}

func (n *NameServer) down() {
	if n.listener != nil {
		if err := n.listener.Close(); err != nil && !errors.Is(err, transport.ErrClosed) {
			n.log.Warn("name server: close the listener", "err", err)
		}
	}
	n.changes.Close()
}

// Addr is the address in use as ip:port text; empty before Start has returned.
func (n *NameServer) Addr() string {
	n.mu.RLock()
	defer n.mu.RUnlock()
	return n.addr
}

// Close stops listening and waits for everything to end. It may be called at any
// time, more than once.
func (n *NameServer) Close() error {
	n.life.close(n.down)
	return nil
}

// scan drops brokers that went silent.
func (n *NameServer) scan(ctx context.Context) {
	timer := time.NewTimer(expiryScanDelay)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		n.mu.Lock()
		silent := n.routes.expire(time.Now())
		n.mu.Unlock()
		for _, c := range silent {
			conn := c.(transport.Conn)
			n.log.Warn("broker expired", "remote", conn.RemoteAddr(), "after", brokerExpiry)
			if err := conn.Close(); err != nil {
				n.log.Debug("close an expired broker's connection", "err", err)
			}
		}
		timer.Reset(expiryScanPeriod)
	}
}

// connClosed takes the brokers of a closed connection out of the routes at once.
func (n *NameServer) connClosed(c transport.Conn) {
	n.mu.Lock()
	gone := n.routes.connClosed(c)
	n.mu.Unlock()
	for _, addr := range gone {
		n.log.Info("broker gone with its connection", "broker", addr)
	}
}

// table says who serves what. Everything runs inline on the reader, because it
// touches memory only and registrations of one broker must be taken in their
// order; what writes a file goes to a pool of one worker.
func (n *NameServer) table() *transport.Table {
	t := &transport.Table{Language: transport.Go, Version: protocolVersion, Closed: n.connClosed}
	t.Handle(wire.CodePutKVConfig, n.changes, answering(n.putKV))
	t.Handle(wire.CodeGetKVConfig, nil, answering(n.getKV))
	t.Handle(wire.CodeDeleteKVConfig, n.changes, answering(n.deleteKV))
	t.Handle(wire.CodeGetKVListByNamespace, nil, answering(n.listKV))
	t.Handle(wire.CodeRegisterBroker, nil, answering(n.registerBroker))
	t.Handle(wire.CodeUnregisterBroker, nil, answering(n.unregisterBroker))
	t.Handle(wire.CodeQueryDataVersion, nil, answering(n.queryDataVersion))
	t.Handle(wire.CodeGetRouteInfoByTopic, nil, answering(n.route))
	t.Handle(wire.CodeGetBrokerClusterInfo, nil, answering(n.clusterInfo))
	t.Handle(wire.CodeWipeWritePermOfBroker, nil, answering(n.wipeWritePerm))
	t.Handle(wire.CodeAddWritePermOfBroker, nil, answering(n.addWritePerm))
	t.Handle(wire.CodeGetAllTopicListFromNameServer, nil, answering(n.allTopics))
	t.Handle(wire.CodeDeleteTopicInNameServer, nil, answering(n.deleteTopic))
	t.Handle(wire.CodeGetTopicsByCluster, nil, answering(n.clusterTopics))
	t.Handle(wire.CodeGetSystemTopicListFromNameServer, nil, answering(n.systemTopics))
	t.Handle(wire.CodeGetUnitTopicList, nil, answering(n.unitTopics(true, false)))
	t.Handle(wire.CodeGetHasUnitSubTopicList, nil, answering(n.unitTopics(false, true)))
	t.Handle(wire.CodeGetHasUnitSubUnunitTopicList, nil, answering(n.subscribedNonUnitTopics))
	t.Handle(wire.CodeUpdateNameServerConfig, n.changes, answering(n.updateConfig))
	t.Handle(wire.CodeGetNameServerConfig, nil, answering(n.config))
	return t
}

// answering makes a handler of a function that answers at once. An error becomes
// SYSTEM_ERROR with its text, as a handler's exception does in RocketMQ.
func answering(f func(transport.Conn, *transport.Frame) (*transport.Frame, error)) transport.Handler {
	return func(_ context.Context, c transport.Conn, req *transport.Frame, reply func(*transport.Frame)) {
		answer, err := f(c, req)
		if err != nil {
			answer = &transport.Frame{Code: wire.SystemError, Remark: err.Error()}
		}
		reply(answer)
	}
}
