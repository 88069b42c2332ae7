package transport

import (
	"context"
	"errors"
	"io"
	"maps"
	"net"
	"sync"
	"time"
)

type tcpListener struct {
	tcp    *TCP
	ln     net.Listener
	table  *Table
	log    *rareLog
	ctx    context.Context
	cancel context.CancelFunc
	tasks  sync.WaitGroup // the accept loop and every connection

	load inbound

	mu     sync.Mutex
	closed bool
	conns  map[net.Conn]*tcpConn // nil while the first byte or handshake is awaited
}

func (l *tcpListener) Addr() string { return l.ln.Addr().String() }

// Pauses after a failed accept, such as for want of file descriptors.
const (
	minAcceptPause = 5 * time.Millisecond
	maxAcceptPause = time.Second
)

func (l *tcpListener) accept() {
	defer l.tasks.Done()
	pause := minAcceptPause
	for {
		raw, err := l.ln.Accept()
		switch {
		case err == nil:
			pause = minAcceptPause
			l.admit(raw)
		case errors.Is(err, net.ErrClosed):
			return
		default:
			l.log.warn("accept failed", "local", l.Addr(), "err", err, "pause", pause)
			select {
			case <-time.After(pause):
			case <-l.ctx.Done():
				return
			}
			pause = min(2*pause, maxAcceptPause)
		}
	}
}

func (l *tcpListener) admit(raw net.Conn) {
	l.mu.Lock()
	full := len(l.conns) >= l.tcp.cfg.MaxConns
	if l.closed || full {
		l.mu.Unlock()
		raw.Close() // nothing was exchanged
		if full {
			l.log.warn("refused a connection: too many", "local", l.Addr(), "peer", raw.RemoteAddr(), "limit", l.tcp.cfg.MaxConns)
		}
		return
	}
	l.conns[raw] = nil
	l.tasks.Add(1)
	l.mu.Unlock()
	go l.serve(raw)
}

func (l *tcpListener) serve(raw net.Conn) {
	defer l.tasks.Done()
	defer func() {
		l.mu.Lock()
		delete(l.conns, raw)
		l.mu.Unlock()
	}()
	stream, first, err := l.tcp.welcome(l.ctx, raw)
	if err != nil {
		if err == errNoTLS || err == errOnlyTLS {
			refuse(raw)
		}
		raw.Close() // the cause is logged, not this
		if !errors.Is(err, io.EOF) && !errors.Is(err, net.ErrClosed) {
			l.log.warn("refused a connection", "local", l.Addr(), "peer", raw.RemoteAddr(), "err", err)
		}
		return
	}
	c := l.tcp.newConn(l.ctx, raw, stream, l.table, l.log)
	c.others = &l.load
	l.mu.Lock()
	closed := l.closed
	l.conns[raw] = c
	l.mu.Unlock()
	if closed {
		c.shut(errListenerClosed, false)
	}
	c.begin()
	go c.write()
	c.read(first)
	close(c.over)
}

// Close implements [Listener].
func (l *tcpListener) Close() error {
	err := l.ln.Close()
	if errors.Is(err, net.ErrClosed) {
		err = nil
	}
	l.mu.Lock()
	l.closed = true
	open := maps.Clone(l.conns)
	l.mu.Unlock()
	for raw, c := range open {
		if c == nil {
			raw.Close() // its goroutine waits for bytes and tells the outcome
		} else {
			c.shut(errListenerClosed, true)
		}
	}
	l.cancel()
	l.tasks.Wait()
	return err
}
