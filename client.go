package mq

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pocketmq/mq/transport"
)

// RocketMQ's periods and time limits of a client.
const (
	routeInterval     = 30 * time.Second
	heartbeatInterval = 30 * time.Second
	callTimeout       = 3 * time.Second
	leaveTimeout      = time.Second
)

// clientConfig says who a client is and whom it knows. It was checked by those
// who fill it in.
type clientConfig struct {
	transport   transport.Transport
	nameServers []string // as parseAddresses returns them, at least one
	id          string   // empty: made at start
	// defaultQueues bounds the queues of a topic that goes by the route of TBW102.
	defaultQueues int
	log           *slog.Logger
}

// A client is what a producer and a consumer have in common: connections, routes
// and heartbeats. Each producer and each consumer has its own; two of them share
// nothing.
type client struct {
	cfg    clientConfig
	log    *slog.Logger
	life   *lifecycle
	table  *transport.Table // serves what brokers ask of clients
	conns  *connPool
	names  *nameServers
	routes routeCache
	// greeting is set when start has sent its heartbeats: from then on each new
	// broker and each new connection gets one at once.
	greeting atomic.Bool

	membersMu sync.Mutex
	id        string
	producers map[string]bool
	consumers map[string]consumerMember
	beating   map[string]int // addr → heartbeats under way
}

// newClient makes a client that knows nobody yet. Handlers may be added to its
// table until it is started.
func newClient(cfg clientConfig) *client {
	c := &client{
		cfg:       cfg,
		log:       cfg.log,
		life:      newLifecycle(),
		table:     &transport.Table{Language: transport.Go, Version: protocolVersion},
		producers: make(map[string]bool),
		consumers: make(map[string]consumerMember),
		beating:   make(map[string]int),
	}
	if c.log == nil {
		c.log = slog.New(slog.DiscardHandler)
	}
	c.conns = &connPool{dialer: cfg.transport, table: c.table, life: c.life, opened: c.greet}
	c.names = newNameServers(cfg.nameServers, c.conns)
	return c
}

// handle serves a request code that brokers send to their clients; all others are
// answered with REQUEST_CODE_NOT_SUPPORTED. Only before start.
func (c *client) handle(code int32, pool *transport.Pool, h transport.Handler) {
	c.table.Handle(code, pool, h)
}

// start returns once a name server has answered for every watched topic and one
// round of heartbeats is over. That the topics have no route yet, or that a
// broker does not answer, is not an error. It keeps trying until ctx ends.
func (c *client) start(ctx context.Context) error {
	return c.life.start(ctx, c.up, c.down)
}

func (c *client) up(ctx context.Context) error {
	if err := c.firstContact(ctx); err != nil {
		return err
	}
	c.heartbeatNow(ctx) // failures were logged; the loop tries again
	c.greeting.Store(true)
	if !c.life.run(c.refreshLoop) || !c.life.run(c.heartbeatLoop) {
		return ErrClosed
	}
	return nil
}

// firstContact looks up the watched topics until a name server answers.
func (c *client) firstContact(ctx context.Context) error {
	last := ErrNoNameServer
	for wait := 100 * time.Millisecond; ; wait = min(2*wait, time.Second) {
		err := c.refresh(ctx)
		if err == nil {
			c.takeID()
			return nil
		}
		if errors.Is(err, ErrNoNameServer) { // else ctx has ended, which says less
			last = err
		}
		select {
		case <-ctx.Done():
			if c.life.ctx.Err() != nil {
				return ErrClosed
			}
			return fmt.Errorf("%w; gave up: %w", last, context.Cause(ctx))
		case <-time.After(wait):
		}
		c.log.Warn("no name server reached, trying again", "err", err)
	}
}

// takeID makes the client's id in RocketMQ's form ip@pid#nonce. The address is
// that from which a name server is reached, so that no other socket has to be
// asked; the nonce is random since two clients may start at one instant.
func (c *client) takeID() {
	c.membersMu.Lock()
	defer c.membersMu.Unlock()
	if c.id = c.cfg.id; c.id != "" {
		return
	}
	var nonce [8]byte
	rand.Read(nonce[:]) // never fails
	c.id = fmt.Sprintf("%s@%d#%s", c.names.localHost(), os.Getpid(), hex.EncodeToString(nonce[:]))
}

// clientID is the id by which brokers know the client; empty before start.
func (c *client) clientID() string {
	c.membersMu.Lock()
	defer c.membersMu.Unlock()
	return c.id
}

// close tells the brokers that the client's groups leave, closes its connections,
// which ends the calls in flight, and waits for its goroutines. It is idempotent.
func (c *client) close() { c.life.close(c.down) }

func (c *client) down() {
	c.leaveAll()
	c.conns.close()
}

// conn returns the connection to addr and dials when there is none. Dials are
// shared; a caller waits for one no longer than its ctx.
func (c *client) conn(ctx context.Context, addr string) (transport.Conn, error) {
	return c.conns.connect(ctx, addr)
}

// call sends a request to addr and waits for its answer, for 3 s when ctx has no
// deadline. An answer of any code is not an error; answerError makes one of it.
func (c *client) call(ctx context.Context, addr string, code int32, h transport.Header, body []byte) (*transport.Frame, error) {
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, callTimeout)
		defer cancel()
	}
	conn, err := c.conns.connect(ctx, addr)
	if err != nil {
		return nil, unsentError(fmt.Sprintf("request %d", code), addr, err)
	}
	f, err := conn.Call(ctx, &transport.Frame{Code: code, Header: h, Body: body})
	if err != nil {
		return nil, c.callError(fmt.Sprintf("request %d", code), addr, err)
	}
	return f, nil
}

// goCall sends a request to addr and calls done once with the answer. When it
// returns an error nothing was sent and done is never called, as [transport.Conn.Go]
// has it. It waits only when a connection must be made or the peer's window is full,
// and then no longer than ctx and deadline. done must not block.
func (c *client) goCall(ctx context.Context, addr string, req *transport.Frame, deadline time.Time, done func(*transport.Frame, error)) error {
	conn := c.conns.live(addr)
	if conn == nil {
		wait, cancel := context.WithDeadline(ctx, deadline)
		var err error
		conn, err = c.conns.connect(wait, addr)
		cancel()
		if err != nil {
			return err
		}
	}
	return conn.Go(ctx, req, deadline, done)
}

// callError is the package's callError, and says ErrClosed when it was this
// client that closed the connection.
func (c *client) callError(op, addr string, err error) error {
	if errors.Is(err, transport.ErrClosed) && c.life.ctx.Err() != nil {
		err = fmt.Errorf("%w while waiting for an answer, %w", ErrClosed, ErrOutcomeUnknown)
	}
	return callError(op, addr, err)
}

// hostOf returns the host of an ip:port text.
func hostOf(addr string) string {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return addr
	}
	return host
}
