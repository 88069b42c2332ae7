package transport

import (
	"errors"
	"time"
)

// spareFrames is the largest batch whose slice a reader keeps for the next one.
const spareFrames = 4096

// memoryConn is one end of a connection of a [Memory].
type memoryConn struct {
	conn
	net      *Memory
	in       *pipe
	outgoing *pipe
}

var errPeerClosed = errors.New("the peer closed the connection")

// put implements outbound.
func (c *memoryConn) put(f *Frame, s stamp, limit int) (<-chan struct{}, error) {
	e := new(envelope)
	n := len(f.Body) + frameOverhead
	if c.net.cfg.Encoding == EncodeDefault {
		e.Frame = *f
		e.Opaque, e.Flag, e.Version = s.opaque, s.flag, s.version
		e.Language, e.Codec = s.language, s.codec
	} else {
		text, err := appendFrame(nil, f, s, c.limits.maxFrame)
		if err != nil {
			return nil, err
		}
		e.Code, e.Flag, e.Body = f.Code, s.flag, text
		n = len(text) + frameOverhead
	}
	if rules := c.net.faults.Load(); rules != nil {
		if d := rules.delay(c.local, c.remote); d > 0 {
			e.due = int64(time.Since(c.net.start) + d)
		}
	}
	room, err := c.outgoing.push(e, n, limit)
	if err == ErrClosed {
		err = c.gone()
	}
	return room, err
}

// gone is the error for a frame that found the pipe closed. The peer may have
// closed it before our reader noticed.
func (c *memoryConn) gone() error {
	if c.closed.Load() {
		return c.failure()
	}
	return &connError{err: ErrClosed, cause: errPeerClosed, remote: c.remote}
}

// close implements outbound: the peer reads what is queued, then sees the end.
func (c *memoryConn) close(flush bool) {
	c.outgoing.close(flush)
	c.in.close(false)
}

// read is the connection's reader goroutine.
func (c *memoryConn) read(drop func(*memoryConn)) {
	if drop != nil {
		c.begin()
	}
	var spare []*envelope
	for {
		batch, ok := c.in.pull(spare, c.done)
		if !ok || !c.deliver(batch) {
			break
		}
		if spare = batch[:0]; cap(spare) > spareFrames {
			spare = nil
		}
	}
	c.shut(errPeerClosed, true)
	c.ended()
	c.net.mu.Lock()
	delete(c.net.conns, c)
	c.net.mu.Unlock()
	if drop != nil {
		drop(c)
	}
	close(c.over)
}

// deliver handles a batch, false when the connection has closed.
func (c *memoryConn) deliver(batch []*envelope) bool {
	encoded := c.net.cfg.Encoding != EncodeDefault
	for i, e := range batch {
		batch[i] = nil
		if c.closed.Load() {
			clear(batch)
			return false
		}
		if (e.due != 0 || c.net.faults.Load() != nil) && !c.pass(e) {
			continue
		}
		if encoded {
			text := e.Body
			e = new(envelope)
			e.size = int64(len(text))
			if err := parseFrame(&e.Frame, text, c.limits.maxFrame, c.accord.mayRead.Load()); err != nil {
				c.shut(err, false)
				clear(batch)
				return false
			}
		}
		c.receive(e)
	}
	return true
}

// pass applies the network's faults to an envelope: it waits out its delay and a
// partition, and tells whether to deliver it.
func (c *memoryConn) pass(e *envelope) bool {
	for {
		rules := c.net.faults.Load()
		if rules != nil && rules.drop(c.remote, c.local, &e.Frame) {
			return false
		}
		var changed <-chan struct{}
		var arrived <-chan time.Time
		if rules != nil && rules.held(c.remote, c.local) {
			changed = rules.changed
		} else {
			wait := time.Duration(e.due) - time.Since(c.net.start)
			if e.due == 0 || wait <= 0 {
				return true
			}
			t := time.NewTimer(wait)
			defer t.Stop()
			arrived = t.C
		}
		select {
		case <-changed:
		case <-arrived:
		case <-c.done:
			return false
		}
	}
}
