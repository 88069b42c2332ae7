package mq

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pocketmq/mq/internal/wire"
	"github.com/pocketmq/mq/transport"
)

const (
	registerTimeout   = 6 * time.Second // RocketMQ: registerBrokerTimeoutMills
	unregisterTimeout = 3 * time.Second
	twinTimeout       = 3 * time.Second
	retryFirst        = 100 * time.Millisecond // after a failed registration, doubled each time
	retryLast         = 10 * time.Second
)

// registry keeps the broker registered with every name server. Each name server
// has a link with a goroutine of its own, so that one that hangs delays no other.
type registry struct {
	b     *Broker
	links []*nameServerLink

	ordered atomic.Pointer[map[string]string] // the name servers' ordered topics
}

func newRegistry(b *Broker) *registry {
	r := &registry{b: b}
	for _, addr := range b.cfg.NameServers {
		r.links = append(r.links, &nameServerLink{r: r, addr: addr, wake: make(chan struct{}, 1)})
	}
	return r
}

// start looks for a twin, registers once everywhere, and goes on in the
// background. Only a twin and the end of ctx are errors.
func (r *registry) start(ctx context.Context) error {
	running := 0
	defer func() { // a link that runs owns its connection
		for _, l := range r.links[running:] {
			l.drop()
		}
	}()
	if err := r.each(func(l *nameServerLink) error { return l.lookForTwin(ctx) }); err != nil {
		return err
	}
	var first []<-chan struct{}
	for _, l := range r.links {
		first = append(first, l.attempted())
		if !r.b.life.run(l.run) {
			return ErrClosed
		}
		running++
	}
	return waitAll(ctx, first)
}

// each runs do for every link at once and joins what went wrong.
func (r *registry) each(do func(*nameServerLink) error) error {
	faults := make([]error, len(r.links))
	var wg sync.WaitGroup
	for i, l := range r.links {
		wg.Go(func() { faults[i] = do(l) })
	}
	wg.Wait()
	return errors.Join(faults...)
}

// change lets every link register what changed, without waiting.
func (r *registry) change() {
	for _, l := range r.links {
		l.poke()
	}
}

// announce registers what changed and waits until every connected name server has
// it, at most for limit. Those that are away get it when they come back.
func (r *registry) announce(ctx context.Context, limit time.Duration) {
	var all []<-chan struct{}
	for _, l := range r.links {
		if l.connected.Load() {
			all = append(all, l.attempted())
		}
		l.poke()
	}
	if len(all) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	defer context.AfterFunc(r.b.life.ctx, cancel)()
	if err := waitAll(ctx, all); err != nil {
		r.b.log.Warn("a name server is slow to take a change", "err", err)
	}
}

func waitAll(ctx context.Context, all []<-chan struct{}) error {
	for _, done := range all {
		select {
		case <-done:
		case <-ctx.Done():
			return fmt.Errorf("mq: wait for name servers: %w", ctx.Err())
		}
	}
	return nil
}

// isOrdered tells whether the name servers list the topic as an ordered one.
func (r *registry) isOrdered(topic string) bool {
	m := r.ordered.Load()
	if m == nil {
		return false
	}
	_, ok := (*m)[topic]
	return ok
}

// A nameServerLink is the connection to one name server and what that knows of
// this broker.
type nameServerLink struct {
	r    *registry
	addr string
	wake chan struct{} // capacity 1: something changed

	connected atomic.Bool

	mu      sync.Mutex
	waiters []chan struct{} // closed after the next attempt

	// Used by start before run, and then by run only.
	conn transport.Conn
	full bool  // everything was registered over conn
	sent int64 // data version counter up to which it was
	down bool  // the last attempt failed, and the log says so
}

func (l *nameServerLink) poke() {
	select {
	case l.wake <- struct{}{}:
	default: // the coming attempt sees this change too
	}
}

// attempted returns a channel that is closed after an attempt that begins later.
func (l *nameServerLink) attempted() <-chan struct{} {
	done := make(chan struct{})
	l.mu.Lock()
	l.waiters = append(l.waiters, done)
	l.mu.Unlock()
	return done
}

// run registers at once, after each change, periodically, and as soon as a lost
// name server is back: one that restarted has forgotten everything.
func (l *nameServerLink) run(ctx context.Context) {
	retry := retryFirst
	for ctx.Err() == nil {
		err := l.attempt(ctx)
		wait := l.r.b.settings.Load().registerInterval
		if err != nil {
			wait, retry = retry, min(2*retry, retryLast)
		} else {
			retry = retryFirst
		}
		l.report(err)
		var lost <-chan struct{}
		if l.conn != nil {
			lost = l.conn.Done()
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-l.wake:
		case <-lost:
			l.drop()
		case <-ctx.Done():
		}
		timer.Stop()
	}
	l.leave()
}

func (l *nameServerLink) report(err error) {
	log := l.r.b.log
	switch {
	case err != nil && !l.down && !errors.Is(err, context.Canceled):
		log.Warn("registration failed; trying again", "nameserver", l.addr, "err", err)
	case err == nil && l.down:
		log.Info("registered again", "nameserver", l.addr)
	}
	l.down = err != nil
}

// attempt registers what the name server does not have yet: everything over a new
// connection or when it is only time again, else the topics that changed.
func (l *nameServerLink) attempt(ctx context.Context) error {
	l.mu.Lock()
	waiters := l.waiters
	l.waiters = nil
	l.mu.Unlock()
	defer func() {
		for _, done := range waiters {
			close(done)
		}
	}()
	ctx, cancel := context.WithTimeout(ctx, registerTimeout)
	defer cancel()
	if err := l.dial(ctx); err != nil {
		return err
	}
	sent, body := l.r.b.registration(l.full, l.sent)
	answer, err := l.call(ctx, wire.CodeRegisterBroker, l.r.b.registerHeader(), body)
	if err != nil {
		l.drop() // whether it took the topics is unknown: all of them next time
		return err
	}
	l.full, l.sent = true, sent
	if len(answer.Body) > 0 {
		if table, err := wire.ParseKVTable(answer.Body); err != nil {
			l.r.b.log.Warn("ordered topics of the name server", "nameserver", l.addr, "err", err)
		} else {
			l.r.ordered.Store(&table.Table)
		}
	}
	return nil
}

func (l *nameServerLink) dial(ctx context.Context) error {
	if l.conn != nil {
		select {
		case <-l.conn.Done():
			l.drop()
		default:
			return nil
		}
	}
	table := &transport.Table{Language: transport.Go, Version: protocolVersion}
	c, err := l.r.b.cfg.Transport.Dial(ctx, l.addr, table)
	if err != nil {
		return &Error{Op: "connect to name server", Addr: l.addr, Err: err}
	}
	l.conn = c
	l.connected.Store(true)
	return nil
}

// drop gives the connection up; whatever was registered over it counts as lost.
func (l *nameServerLink) drop() {
	l.connected.Store(false)
	if l.conn != nil {
		if err := l.conn.Close(); err != nil && !errors.Is(err, transport.ErrClosed) {
			l.r.b.log.Debug("close connection to name server", "nameserver", l.addr, "err", err)
		}
	}
	l.conn, l.full, l.sent = nil, false, 0
}

func (l *nameServerLink) call(ctx context.Context, code int32, header transport.Header, body []byte) (*transport.Frame, error) {
	op := "request " + strconv.Itoa(int(code)) + " to name server"
	answer, err := l.conn.Call(ctx, &transport.Frame{Code: code, Header: header, Body: body})
	if err != nil {
		return nil, callError(op, l.addr, err)
	}
	if answer.Code != wire.Success {
		return nil, answerError(op, l.addr, answer)
	}
	return answer, nil
}

// leave unregisters when the connection is there; without one the name server
// has noticed by itself.
func (l *nameServerLink) leave() {
	if l.conn == nil {
		return
	}
	b := l.r.b
	if l.full {
		ctx, cancel := context.WithTimeout(context.Background(), unregisterTimeout)
		defer cancel()
		if _, err := l.call(ctx, wire.CodeUnregisterBroker, &wire.UnregisterBrokerRequest{BrokerName: b.name,
			BrokerAddr: b.addr, ClusterName: b.cfg.Cluster, BrokerID: b.cfg.ID}, nil); err != nil {
			b.log.Warn("unregister", "nameserver", l.addr, "err", err)
		}
	}
	l.drop()
}

// lookForTwin fails when the name server knows a broker of the same cluster, name
// and id at another address and that one answers. A name server that is away, or
// an address at which nobody is, is no error.
func (l *nameServerLink) lookForTwin(ctx context.Context) error {
	b := l.r.b
	ctx, cancel := context.WithTimeout(ctx, twinTimeout)
	defer cancel()
	if err := l.dial(ctx); err != nil {
		return nil // run reports it
	}
	answer, err := l.call(ctx, wire.CodeGetBrokerClusterInfo, nil, nil)
	if err != nil {
		b.log.Debug("cluster information", "nameserver", l.addr, "err", err)
		return nil
	}
	info, err := wire.ParseClusterInfo(answer.Body)
	if err != nil {
		b.log.Warn("cluster information", "nameserver", l.addr, "err", err)
		return nil
	}
	data, ok := info.BrokerAddrTable[b.name]
	if !ok || data.Cluster != b.cfg.Cluster {
		return nil
	}
	other, ok := data.BrokerAddrs[b.cfg.ID]
	if !ok || other == b.addr || !b.answers(ctx, other) {
		return nil
	}
	return fmt.Errorf("mq: broker %s (cluster %s, id %d) is live at %s; give this one another name", b.name, b.cfg.Cluster,
		b.cfg.ID, other)
}

// answers tells whether a broker of our name answers at addr.
func (b *Broker) answers(ctx context.Context, addr string) bool {
	c, err := b.cfg.Transport.Dial(ctx, addr, nil)
	if err != nil {
		return false
	}
	_, err = c.Call(ctx, &transport.Frame{Code: wire.CodeGetBrokerRuntimeInfo, Language: transport.Go, Version: protocolVersion})
	if closeErr := c.Close(); closeErr != nil && !errors.Is(closeErr, transport.ErrClosed) {
		b.log.Debug("close connection to another broker", "addr", addr, "err", closeErr)
	}
	return err == nil
}

func (b *Broker) registerHeader() *wire.RegisterBrokerRequest {
	h := &wire.RegisterBrokerRequest{BrokerName: b.name, BrokerAddr: b.addr, ClusterName: b.cfg.Cluster, BrokerID: b.cfg.ID}
	// RocketMQ always listens for replicas on the next port. Nobody connects
	// there, but its name servers require the field.
	h.HAServerAddr = net.JoinHostPort(b.host.Addr().String(), strconv.Itoa(int(b.host.Port())+1))
	return h
}

// registration is the body that tells a name server of the topics changed since
// the data version sent, or of all when that is not enough, and the counter of
// the version it carries. Topics and version are taken under one lock: a name
// server takes topics only with a version it has not seen.
func (b *Broker) registration(since bool, sent int64) (int64, []byte) {
	perm := b.settings.Load().permission
	tt := b.topics
	tt.mu.Lock()
	version := tt.version
	partial := since && tt.removed <= sent && version.Counter > sent
	topics := make(map[string]wire.TopicConfig)
	tt.byName.Range(func(_, v any) bool {
		t := v.(*brokerTopic)
		if partial && t.changed <= sent {
			return true
		}
		c := *t.conf()
		if perm&permRW != permRW {
			c.Perm = perm
		}
		topics[t.name] = c
		return true
	})
	tt.mu.Unlock()
	body := wire.RegisterBrokerBody{TopicConfigTable: wire.TopicConfigTable{DataVersion: version, Topics: topics}}
	return version.Counter, body.Marshal()
}
