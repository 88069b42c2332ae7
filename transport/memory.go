package transport

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// MemoryConfig sets up a [Memory]. The zero value hands frames over by pointer.
type MemoryConfig struct {
	// Encoding makes the network encode and decode every frame. The default,
	// EncodeDefault, hands frames over by pointer with their typed headers.
	Encoding Encoding
	// Window bounds the calls in flight on one side of a connection. Default 16384.
	Window int
	// Outbound bounds the bytes that wait for a side that reads slowly.
	// Default 16 MiB.
	Outbound int
	// Inbound bounds the bytes of unanswered requests as [TCPConfig] says, on a
	// network that encodes. Default 64 MiB.
	Inbound int
	// MaxFrame bounds an encoded frame. Default 16 MiB, as RocketMQ.
	MaxFrame int
	// CallTimeout is the deadline of a Go without one. Default 3 s.
	CallTimeout time.Duration
	// DialTimeout bounds a dial across a partition. Default 3 s.
	DialTimeout time.Duration
	// Logger is told of malformed frames and panics; nil discards.
	Logger *slog.Logger
}

// Memory is a network inside the process, for embedding and for tests. Its
// addresses are ip:port text, but no socket is opened, and two Memory networks
// never meet. It blocks only on channels and timers of package time, so the
// clock of a testing/synctest bubble moves while it waits.
//
// A Memory is a [Transport] with the address 127.0.0.1; [Memory.Host] gives
// others, so that faults can tell hosts apart.
type Memory struct {
	cfg    MemoryConfig
	limits limits
	log    *rareLog
	start  time.Time
	faults atomic.Pointer[faults] // nil: none, the usual case

	mu        sync.Mutex
	listeners map[string]*memoryListener
	conns     map[*memoryConn]struct{}
	ports     int // last one given out
}

// Ports for listeners and dialling ends that did not choose one.
const firstFreePort = 20000

// NewMemory makes an empty network.
func NewMemory(cfg MemoryConfig) *Memory {
	m := &Memory{
		cfg:       cfg,
		limits:    limits{cfg.Window, cfg.Outbound, cfg.Inbound, cfg.MaxFrame, cfg.CallTimeout},
		log:       newRareLog(cfg.Logger),
		start:     time.Now(),
		listeners: make(map[string]*memoryListener),
		conns:     make(map[*memoryConn]struct{}),
		ports:     firstFreePort,
	}
	m.limits.setDefaults()
	if m.cfg.DialTimeout <= 0 {
		m.cfg.DialTimeout = defaultDialTimeout
	}
	return m
}

// Listen implements [Transport] on 127.0.0.1.
func (m *Memory) Listen(ctx context.Context, addr string, t *Table) (Listener, error) {
	return m.listen(ctx, loopback, addr, t)
}

// Dial implements [Transport] from 127.0.0.1. Nobody at the address is an error
// at once.
func (m *Memory) Dial(ctx context.Context, addr string, t *Table) (Conn, error) {
	return m.dial(ctx, loopback, addr, t)
}

// Host returns the network as seen from another host: it listens on that ip
// unless told otherwise, and its dialled connections come from there.
func (m *Memory) Host(ip string) Transport { return memoryHost{m, ip} }

type memoryHost struct {
	net *Memory
	ip  string
}

func (h memoryHost) Listen(ctx context.Context, addr string, t *Table) (Listener, error) {
	return h.net.listen(ctx, h.ip, addr, t)
}

func (h memoryHost) Dial(ctx context.Context, addr string, t *Table) (Conn, error) {
	return h.net.dial(ctx, h.ip, addr, t)
}

const loopback = "127.0.0.1"

// memoryAddr splits an address; an unspecified host is the given one.
func memoryAddr(host, addr string) (string, int, error) {
	h, p, err := net.SplitHostPort(addr)
	if err != nil {
		return "", 0, fmt.Errorf("transport: address %q: want ip:port: %w", addr, err)
	}
	port, err := strconv.ParseUint(p, 10, 16)
	if err != nil {
		return "", 0, fmt.Errorf("transport: address %q: port: %w", addr, err)
	}
	switch h {
	case "":
		h = host
	case "localhost":
		h = loopback
	}
	ip, err := netip.ParseAddr(h)
	if err != nil {
		return "", 0, fmt.Errorf("transport: address %q: the memory network resolves no names, use an ip: %w", addr, err)
	}
	if ip.IsUnspecified() {
		return host, int(port), nil
	}
	return ip.String(), int(port), nil
}

func (m *Memory) listen(ctx context.Context, host, addr string, t *Table) (Listener, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	ip, port, err := memoryAddr(host, addr)
	if err != nil {
		return nil, err
	}
	l := &memoryListener{net: m, table: t, conns: make(map[*memoryConn]struct{})}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	m.mu.Lock()
	defer m.mu.Unlock()
	if port == 0 {
		l.addr = m.freeAddr(ip)
	} else {
		l.addr = joinAddr(ip, port)
	}
	if m.listeners[l.addr] != nil {
		l.cancel()
		return nil, fmt.Errorf("transport: listen on %s: address already in use", l.addr)
	}
	m.listeners[l.addr] = l
	return l, nil
}

func joinAddr(ip string, port int) string { return net.JoinHostPort(ip, strconv.Itoa(port)) }

// freeAddr gives out a port on ip. Ports are not given out twice before all were,
// because addresses go into client ids.
func (m *Memory) freeAddr(ip string) string {
	for {
		if m.ports++; m.ports > 65535 {
			m.ports = firstFreePort
		}
		if addr := joinAddr(ip, m.ports); m.listeners[addr] == nil {
			return addr
		}
	}
}

// errRefused is the end of a dial to nobody.
var errRefused = errors.New("connection refused: nobody listens there")

func (m *Memory) dial(ctx context.Context, host, addr string, t *Table) (Conn, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	ip, port, err := memoryAddr(host, addr)
	if err != nil {
		return nil, err
	}
	remote := joinAddr(ip, port)
	if err := m.reach(ctx, host, remote); err != nil {
		return nil, fmt.Errorf("transport: dial %s: %w", remote, err)
	}
	m.mu.Lock()
	l := m.listeners[remote]
	local := m.freeAddr(host)
	m.mu.Unlock()
	if l == nil {
		return nil, fmt.Errorf("transport: dial %s: %w", remote, errRefused)
	}
	near, far := m.pair(l, t, local, remote)
	if !l.adopt(far) {
		near.cancel()
		far.cancel()
		return nil, fmt.Errorf("transport: dial %s: %w", remote, errRefused)
	}
	m.mu.Lock()
	m.conns[near], m.conns[far] = struct{}{}, struct{}{}
	m.mu.Unlock()
	near.begin()
	go near.read(nil)
	go far.read(l.drop)
	return near, nil
}

// reach waits while host and remote are partitioned.
func (m *Memory) reach(ctx context.Context, host, remote string) error {
	if m.faults.Load() == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, m.cfg.DialTimeout)
	defer cancel()
	for {
		f := m.faults.Load()
		if f == nil || !f.held(host, remote) {
			return nil
		}
		select {
		case <-f.changed:
		case <-ctx.Done():
			return fmt.Errorf("no route: %w", ctx.Err())
		}
	}
}

// pair makes the two ends of a connection.
func (m *Memory) pair(l *memoryListener, t *Table, local, remote string) (near, far *memoryConn) {
	there, back := newPipe(), newPipe()
	near = &memoryConn{net: m, in: back, outgoing: there}
	far = &memoryConn{net: m, in: there, outgoing: back}
	near.init(context.Background(), near, t, m.log, m.limits, local, remote)
	far.init(l.ctx, far, l.table, m.log, m.limits, remote, local)
	far.others = &l.load
	near.accord.dialled = true
	for _, c := range []*memoryConn{near, far} {
		c.accord.base, c.accord.upgrade = m.cfg.Encoding.plan()
		if m.cfg.Encoding == EncodeDefault {
			c.accord.upgrade = false
		}
	}
	return near, far
}

type memoryListener struct {
	net    *Memory
	addr   string
	table  *Table
	ctx    context.Context
	cancel context.CancelFunc
	load   inbound

	mu     sync.Mutex
	closed bool
	conns  map[*memoryConn]struct{}
}

func (l *memoryListener) Addr() string { return l.addr }

func (l *memoryListener) adopt(c *memoryConn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return false
	}
	l.conns[c] = struct{}{}
	return true
}

func (l *memoryListener) drop(c *memoryConn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.conns, c)
}

// Close implements [Listener].
func (l *memoryListener) Close() error {
	l.net.mu.Lock()
	if l.net.listeners[l.addr] == l {
		delete(l.net.listeners, l.addr)
	}
	l.net.mu.Unlock()
	l.mu.Lock()
	l.closed = true
	open := make([]*memoryConn, 0, len(l.conns))
	for c := range l.conns {
		open = append(open, c)
	}
	l.mu.Unlock()
	for _, c := range open {
		c.shut(errListenerClosed, true)
	}
	l.cancel()
	for _, c := range open {
		<-c.over
	}
	return nil
}

var errListenerClosed = errors.New("the listener was closed")
