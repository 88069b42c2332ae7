package transport

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// pieceSize is how much one write sends at most, so that the write time-out
// measures progress rather than the size of the queue.
const pieceSize = 1 << 20

// tcpConn is one TCP connection: a reader that serves and a writer that sends
// whatever is queued in as few writes as it can.
type tcpConn struct {
	conn
	tcp    *TCP
	raw    net.Conn // the socket
	stream net.Conn // what is read and written: raw, or TLS over it
	queue  *byteQueue

	used     atomic.Int64 // nanoseconds since calls.start of the last read or write
	graceful atomic.Bool  // closing lets the writer finish
	written  chan struct{}
	pieces   net.Buffers
	size     int
}

// Errors that end a TCP connection from this side.
var errIdle = errors.New("idle for too long")

// headSpace lends the buffers in which heads are encoded.
var headSpace = sync.Pool{New: func() any { return new([]byte) }}

// put implements outbound.
func (c *tcpConn) put(f *Frame, s stamp, limit int) (<-chan struct{}, error) {
	space := headSpace.Get().(*[]byte)
	head, err := appendHead((*space)[:0], f, s, c.limits.maxFrame)
	var room <-chan struct{}
	if err == nil {
		if room, err = c.queue.push(head, f.Body, limit); err == ErrClosed {
			err = c.failure()
		}
	}
	if *space = head; cap(head) <= maxPacked {
		headSpace.Put(space)
	}
	return room, err
}

// close implements outbound. It never blocks: closing TLS could.
func (c *tcpConn) close(flush bool) {
	if !flush {
		c.queue.close(false)
		c.raw.Close() // wakes reader and writer; they tell the cause
		return
	}
	c.graceful.Store(true)
	now := time.Now()
	if c.raw.SetWriteDeadline(now.Add(flushTimeout)) != nil || c.raw.SetReadDeadline(now) != nil {
		c.raw.Close() // it is broken already
	}
	c.queue.close(true)
}

// read is the connection's reader. first was read before.
func (c *tcpConn) read(first []byte) {
	r := &frameReader{src: (*tcpStream)(c), maxFrame: c.limits.maxFrame}
	r.buf = make([]byte, minReadBuffer)
	r.to = copy(r.buf, first)
	err := c.raw.SetReadDeadline(time.Now().Add(c.tcp.cfg.IdleTimeout))
	for err == nil && !c.closed.Load() {
		e := new(envelope)
		if err = r.next(e, &c.accord); err == nil {
			c.receive(e)
		}
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		err = errPeerClosed
	}
	// A peer that only ended its own direction still gets what was answered.
	c.shut(err, err == errPeerClosed)
	c.ended()
	<-c.written
	if c.graceful.Load() {
		c.goodbye()
	}
	c.raw.Close() // nothing is left to lose
}

// goodbye ends a connection whose writer has written everything.
func (c *tcpConn) goodbye() {
	if t, ok := c.stream.(*tls.Conn); ok && t.CloseWrite() != nil {
		return
	}
	linger(c.raw)
}

// tcpStream is the connection as its frame reader sees it: it watches idleness.
type tcpStream tcpConn

func (s *tcpStream) Read(p []byte) (int, error) {
	c := (*tcpConn)(s)
	for {
		n, err := c.stream.Read(p)
		now := int64(time.Since(c.calls.start))
		if n > 0 {
			c.used.Store(now)
			return n, nil
		}
		if err == nil || !errors.Is(err, os.ErrDeadlineExceeded) || c.closed.Load() {
			return 0, err
		}
		rest := int64(c.tcp.cfg.IdleTimeout) - (now - c.used.Load())
		if rest <= 0 {
			return 0, errIdle
		}
		if err := c.raw.SetReadDeadline(time.Now().Add(time.Duration(rest))); err != nil {
			return 0, err
		}
		if c.closed.Load() { // its deadline may have been overwritten
			return 0, os.ErrDeadlineExceeded
		}
	}
}

// write is the connection's writer goroutine.
func (c *tcpConn) write() {
	defer close(c.written)
	var spare batch
	for {
		b, ok := c.queue.pull(spare)
		if !ok {
			return
		}
		if err := c.send(&b); err != nil {
			c.shut(fmt.Errorf("write: %w", err), false)
			c.graceful.Store(false)
			c.queue.close(false)
			c.raw.Close() // the reader may sit in it
			return
		}
		b.reset()
		spare = b
	}
}

// send writes a batch in pieces.
func (c *tcpConn) send(b *batch) error {
	for _, p := range b.pieces {
		if err := c.add(p); err != nil {
			return err
		}
	}
	return c.flush()
}

// add puts bytes into the piece, and writes it when it is full.
func (c *tcpConn) add(p []byte) error {
	for len(p) > 0 {
		n := min(len(p), pieceSize-c.size)
		c.pieces = append(c.pieces, p[:n])
		c.size += n
		p = p[n:]
		if c.size == pieceSize {
			if err := c.flush(); err != nil {
				return err
			}
		}
	}
	return nil
}

// flush writes the piece: one system call, unless the socket is full.
func (c *tcpConn) flush() error {
	if c.size == 0 {
		return nil
	}
	if !c.closed.Load() {
		if err := c.raw.SetWriteDeadline(time.Now().Add(c.tcp.cfg.WriteTimeout)); err != nil {
			return err
		}
		if c.closed.Load() { // its shorter deadline may have been overwritten
			if err := c.raw.SetWriteDeadline(time.Now().Add(flushTimeout)); err != nil {
				return err
			}
		}
	}
	rest := c.pieces
	_, err := rest.WriteTo(c.stream)
	clear(c.pieces)
	c.pieces, c.size = c.pieces[:0], 0
	c.used.Store(int64(time.Since(c.calls.start)))
	if errors.Is(err, os.ErrDeadlineExceeded) && !c.closed.Load() {
		return fmt.Errorf("the peer took nothing for %v: %w", c.tcp.cfg.WriteTimeout, context.DeadlineExceeded)
	}
	return err
}
