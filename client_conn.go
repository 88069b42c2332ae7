package mq

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/pocketmq/mq/transport"
)

// A connPool has at most one connection to each address. The connection in use
// is found without a lock.
type connPool struct {
	dialer transport.Transport
	table  *transport.Table
	life   *lifecycle
	opened func(addr string) // told of each new connection; must not block

	peers sync.Map // addr → *peer
}

// A peer is one address and the connection to it, if there is one.
type peer struct {
	addr string
	conn atomic.Pointer[pooledConn]

	mu   sync.Mutex // never held across a dial
	dial *dialing   // under way, shared by all who wait for it
	gone bool       // dropped from the pool: a dial that ends closes what it got
}

type pooledConn struct{ transport.Conn }

type dialing struct {
	done chan struct{} // closed when conn and err are set
	conn transport.Conn
	err  error
}

// live returns the connection to addr if there is one that works, else nil.
func (p *connPool) live(addr string) transport.Conn {
	if v, ok := p.peers.Load(addr); ok {
		return v.(*peer).live()
	}
	return nil
}

func (p *peer) live() transport.Conn {
	c := p.conn.Load()
	if c == nil {
		return nil
	}
	select {
	case <-c.Done():
		p.conn.CompareAndSwap(c, nil)
		return nil
	default:
		return c.Conn
	}
}

// connect returns the connection to addr, or waits, until ctx ends, for a dial
// that it shares with all others who wait. A failed dial is not remembered: the
// next caller tries again. The error is ErrClosed, wraps ErrUnreachable, or says
// that the caller gave up.
func (p *connPool) connect(ctx context.Context, addr string) (transport.Conn, error) {
	if c := p.live(addr); c != nil {
		return c, nil
	}
	d, err := p.dial(addr)
	if err != nil {
		return nil, err
	}
	select {
	case <-d.done:
		return d.conn, d.err
	case <-ctx.Done():
	}
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return nil, fmt.Errorf("%w: still connecting: %w", ErrUnreachable, ctx.Err())
	}
	return nil, fmt.Errorf("connecting: %w", ctx.Err())
}

// dial joins the dial under way or begins one. The dial is bounded by its own
// time limit, not by the context of who happened to come first.
func (p *connPool) dial(addr string) (*dialing, error) {
	for {
		v, ok := p.peers.Load(addr)
		if !ok {
			v, _ = p.peers.LoadOrStore(addr, &peer{addr: addr})
		}
		pr := v.(*peer)
		pr.mu.Lock()
		if pr.gone { // dropped since it was loaded: take its successor
			pr.mu.Unlock()
			continue
		}
		d, err := p.join(pr)
		pr.mu.Unlock()
		return d, err
	}
}

// join is dial on a peer whose lock is held.
func (p *connPool) join(pr *peer) (*dialing, error) {
	if pr.dial != nil {
		return pr.dial, nil
	}
	d := &dialing{done: make(chan struct{})}
	if c := pr.live(); c != nil {
		d.conn = c
		close(d.done)
		return d, nil
	}
	if !p.life.run(func(ctx context.Context) { p.complete(ctx, pr, d) }) {
		return nil, ErrClosed
	}
	pr.dial = d
	return d, nil
}

func (p *connPool) complete(ctx context.Context, pr *peer, d *dialing) {
	dialCtx, cancel := context.WithTimeout(ctx, callTimeout)
	conn, err := p.dialer.Dial(dialCtx, pr.addr, p.table)
	cancel()
	pr.mu.Lock()
	pr.dial = nil
	switch {
	case ctx.Err() != nil || pr.gone && err == nil:
		if err == nil {
			conn.Close()
		}
		if conn, err = nil, ErrClosed; ctx.Err() == nil {
			err = fmt.Errorf("%w: %s is in no route any more", ErrUnreachable, pr.addr)
		}
	case err != nil:
		err = fmt.Errorf("%w: %w", ErrUnreachable, err)
	default:
		pr.conn.Store(&pooledConn{conn})
	}
	pr.mu.Unlock()
	d.conn, d.err = conn, err
	close(d.done)
	if err == nil && p.opened != nil {
		p.opened(pr.addr)
	}
}

// forget drops addr from the pool if no connection to it is alive. One that lives
// is left to whoever still waits for its answers.
func (p *connPool) forget(addr string) {
	if v, ok := p.peers.Load(addr); ok && v.(*peer).live() == nil {
		p.drop(v.(*peer))
	}
}

func (p *connPool) drop(pr *peer) {
	p.peers.CompareAndDelete(pr.addr, pr)
	pr.mu.Lock()
	pr.gone = true
	c := pr.live()
	pr.mu.Unlock()
	if c != nil {
		c.Close()
	}
}

// close closes every connection. The lifecycle's context has ended before, so
// that no dial can add another.
func (p *connPool) close() {
	p.peers.Range(func(_, v any) bool {
		p.drop(v.(*peer))
		return true
	})
}
