package transport

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"time"
)

// TCPConfig sets up a [TCP]. The zero value speaks plain RocketMQ remoting.
type TCPConfig struct {
	// Server makes listeners accept TLS beside plain connections on one port, told
	// apart by the first byte (RocketMQ: tls.server.mode=permissive). Nil refuses TLS.
	Server *tls.Config
	// RequireTLS makes listeners refuse plain connections (RocketMQ: enforcing).
	RequireTLS bool
	// Client makes dialled connections use TLS, never falling back to plain. An
	// empty ServerName stands for the dialled host.
	Client *tls.Config

	// Encoding of requests. EncodeDefault is EncodeMsgPack.
	Encoding Encoding
	// Window bounds the calls in flight on one side of a connection. Default 16384.
	Window int
	// Outbound bounds the bytes that wait to be written to one connection. Calls
	// wait for room; a reply or one-way request that finds none closes the
	// connection with ErrOverflow. Default 16 MiB.
	Outbound int
	// Inbound bounds the bytes of the requests that came over one connection and
	// are not answered yet; four times as much bounds those of all connections of a
	// listener. A request of more than 4 KiB beyond that is answered with
	// SYSTEM_BUSY. Default 64 MiB.
	Inbound int
	// MaxFrame bounds a frame with its length field. Default 16 MiB, as RocketMQ.
	MaxFrame int
	// MaxConns bounds the accepted connections of one listener; more are closed at
	// once. Default 10,000.
	MaxConns int

	// CallTimeout is the deadline of a Go without one. Default 3 s.
	CallTimeout time.Duration
	// DialTimeout bounds connecting and the TLS handshake. Default 3 s.
	DialTimeout time.Duration
	// WriteTimeout bounds writing a piece of at most 1 MiB. Default 30 s.
	WriteTimeout time.Duration
	// IdleTimeout closes a connection that neither read nor wrote for so long.
	// Default 120 s, as RocketMQ.
	IdleTimeout time.Duration
	// Logger is told of malformed frames (at most one line in 10 s) and of
	// panics; nil discards.
	Logger *slog.Logger
}

// Defaults of TCP alone.
const (
	defaultMaxConns     = 10000
	defaultWriteTimeout = 30 * time.Second
	defaultIdleTimeout  = 120 * time.Second
	handshakeTimeout    = 10 * time.Second       // of an accepted connection
	flushTimeout        = time.Second            // for what is queued when a connection closes
	lingerTimeout       = 250 * time.Millisecond // for the peer to close as well
)

// TCP is RocketMQ's remoting protocol over TCP, with or without TLS.
type TCP struct {
	cfg    TCPConfig
	limits limits
	log    *rareLog
}

// NewTCP makes a TCP transport. It does no I/O, and never closes connections by
// itself: each belongs to the listener or to whoever dialled it.
func NewTCP(cfg TCPConfig) *TCP {
	t := &TCP{cfg: cfg, limits: limits{cfg.Window, cfg.Outbound, cfg.Inbound, cfg.MaxFrame, cfg.CallTimeout}}
	t.limits.setDefaults()
	t.log = newRareLog(cfg.Logger)
	if t.cfg.MaxConns <= 0 {
		t.cfg.MaxConns = defaultMaxConns
	}
	for _, d := range []struct {
		v   *time.Duration
		def time.Duration
	}{
		{&t.cfg.DialTimeout, defaultDialTimeout},
		{&t.cfg.WriteTimeout, defaultWriteTimeout},
		{&t.cfg.IdleTimeout, defaultIdleTimeout},
	} {
		if *d.v <= 0 {
			*d.v = d.def
		}
	}
	return t
}

// Listen implements [Transport]. An accepted connection counts as opened when
// its first byte, or the TLS handshake, has arrived.
func (t *TCP) Listen(ctx context.Context, addr string, table *Table) (Listener, error) {
	var lc net.ListenConfig
	ln, err := lc.Listen(ctx, "tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("transport: listen on %s: %w", addr, err)
	}
	l := &tcpListener{tcp: t, ln: ln, table: table, log: newRareLog(t.cfg.Logger), conns: make(map[net.Conn]*tcpConn)}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	l.tasks.Add(1)
	go l.accept()
	return l, nil
}

// Dial implements [Transport]. Errors name the cause and come within DialTimeout.
func (t *TCP) Dial(ctx context.Context, addr string, table *Table) (Conn, error) {
	bound, cancel := context.WithTimeout(ctx, t.cfg.DialTimeout)
	defer cancel()
	var d net.Dialer
	raw, err := d.DialContext(bound, "tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("transport: dial %s: %w", addr, err)
	}
	stream := raw
	if t.cfg.Client != nil {
		if stream, err = t.clientTLS(bound, raw, addr); err != nil {
			raw.Close() // the handshake's error is the one to tell
			return nil, err
		}
	}
	c := t.newConn(context.Background(), raw, stream, table, t.log)
	c.accord.dialled = true
	c.begin()
	go c.write()
	go func() {
		c.read(nil)
		close(c.over)
	}()
	return c, nil
}

func (t *TCP) newConn(parent context.Context, raw, stream net.Conn, table *Table, log *rareLog) *tcpConn {
	c := &tcpConn{tcp: t, raw: raw, stream: stream, queue: newByteQueue(), written: make(chan struct{})}
	c.init(parent, c, table, log, t.limits, raw.LocalAddr().String(), raw.RemoteAddr().String())
	c.accord.base, c.accord.upgrade = t.cfg.Encoding.plan()
	return c
}
