package transport

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync/atomic"
	"time"
)

// Defaults of what every connection bounds.
const (
	defaultWindow      = 16384
	defaultOutbound    = 16 << 20
	defaultInbound     = 64 << 20
	defaultMaxFrame    = 16 << 20
	defaultCallTimeout = 3 * time.Second
	defaultDialTimeout = 3 * time.Second
)

// An envelope is a frame under way, or delivered: the copy that carries what the
// connection stamps, and the state of its reply. One allocation serves all.
type envelope struct {
	Frame
	to      *conn
	due     int64 // memory with delays: not to be delivered before
	size    int64 // bytes that came, which the request holds until it is answered
	replied atomic.Bool
}

// A stamp is what a connection sets on a frame that leaves. It travels beside
// the frame, because the frame may be shared and is never written.
type stamp struct {
	opaque, flag, version int32
	language              Language
	codec                 Codec
	upgrade               bool // add the ext field that offers or accepts MSGPACK
}

// outbound is the sending half of a connection.
type outbound interface {
	// put takes a frame in order and never blocks. A frame that would raise the
	// waiting bytes above limit is not taken: errNoRoom and the channel that
	// closes when there may be room.
	put(f *Frame, s stamp, limit int) (room <-chan struct{}, err error)
	// close ends the connection: with flush what is queued still leaves.
	close(flush bool)
}

// errNoRoom is put's way to say that the frame does not fit now.
var errNoRoom = errors.New("transport: outbound queue full")

// limits are what bounds a connection; zero values were replaced.
type limits struct {
	window      int
	outbound    int
	inbound     int
	maxFrame    int
	callTimeout time.Duration
}

func (l *limits) setDefaults() {
	if l.window <= 0 {
		l.window = defaultWindow
	}
	if l.outbound <= 0 {
		l.outbound = defaultOutbound
	}
	if l.maxFrame <= 0 {
		l.maxFrame = defaultMaxFrame
	}
	if l.inbound <= 0 {
		l.inbound = defaultInbound
	}
	l.inbound = max(l.inbound, l.maxFrame)
	if l.callTimeout <= 0 {
		l.callTimeout = defaultCallTimeout
	}
}

// conn is what memory and TCP connections share: the window, the calls in
// flight, serving, stamping, and the end. Its reader, a goroutine of the
// transport, calls receive for every frame and ended when it stops.
type conn struct {
	self   Conn // what users see: the type that embeds this one
	out    outbound
	table  *Table
	log    *slog.Logger
	rare   *rareLog // for what a peer can make happen often
	limits limits

	local, remote string
	accord        accord
	calls         calls
	load          inbound
	others        *inbound // of all connections of the listener

	ctx    context.Context
	cancel context.CancelFunc
	closed atomic.Bool
	cause  error         // why; set before done closes
	done   chan struct{} // closed when the connection is
	over   chan struct{} // closed when the reader has ended and all calls are finished

	waiters chan *waiter // spares for Call
}

// end is a connection of either kind, as init gets it.
type end interface {
	Conn
	outbound
}

func (c *conn) init(parent context.Context, e end, t *Table, log *rareLog, l limits, local, remote string) {
	c.self, c.out, c.table, c.log, c.rare, c.limits = e, e, t, log.log, log, l
	c.local, c.remote = local, remote
	c.ctx, c.cancel = context.WithCancel(parent)
	c.done = make(chan struct{})
	c.over = make(chan struct{})
	c.waiters = make(chan *waiter, 16)
	c.others = new(inbound) // a dialled connection is alone
	c.calls.init(l.window, &connError{err: ErrTimeout, remote: remote}, c.finish)
}

// A connError adds the peer's address and a cause to one of the sentinels.
type connError struct {
	err    error
	cause  error
	remote string
}

func (e *connError) Error() string {
	s := e.err.Error() + ": peer " + e.remote
	if e.cause != nil && e.cause != e.err {
		s += ": " + e.cause.Error()
	}
	return s
}

func (e *connError) Unwrap() []error {
	if e.cause == nil {
		return []error{e.err}
	}
	return []error{e.err, e.cause}
}

// Timeout makes a time-out recognisable to code that knows net.Error.
func (e *connError) Timeout() bool { return e.err == ErrTimeout }

func (c *conn) LocalAddr() string     { return c.local }
func (c *conn) RemoteAddr() string    { return c.remote }
func (c *conn) Done() <-chan struct{} { return c.done }

func (c *conn) Close() error {
	c.shut(ErrClosed, true)
	return nil
}

// shut closes the connection once. With flush, what was queued still leaves; it
// does not wait for that.
func (c *conn) shut(cause error, flush bool) {
	if !c.closed.CompareAndSwap(false, true) {
		return
	}
	c.cause = cause
	close(c.done)
	c.cancel()
	c.out.close(flush)
}

// failure is the error of a closed connection.
func (c *conn) failure() error {
	<-c.done // closed by whoever made closed true: cause is set
	return &connError{err: ErrClosed, cause: c.cause, remote: c.remote}
}

// begin tells the table that the connection exists.
func (c *conn) begin() {
	if c.table != nil && c.table.Opened != nil {
		c.table.Opened(c.self)
	}
}

// ended finishes what is in flight. The reader calls it last.
func (c *conn) ended() {
	c.calls.fail(c.failure())
	if errors.Is(c.cause, errMalformed) || c.cause == ErrOverflow {
		c.rare.warn("closed a connection", "local", c.local, "peer", c.remote, "err", c.cause)
	} else {
		c.log.Debug("connection ended", "local", c.local, "peer", c.remote, "err", c.cause)
	}
	if c.table != nil && c.table.Closed != nil {
		c.table.Closed(c.self)
	}
}

func (c *conn) Call(ctx context.Context, req *Frame) (*Frame, error) {
	var w *waiter
	select {
	case w = <-c.waiters:
	default:
		w = &waiter{ch: make(chan answer, 1)}
	}
	s := slot{wait: w}
	opaque, err := c.start(ctx, req, &s, time.Time{})
	if err != nil {
		return nil, err
	}
	var a answer
	select {
	case a = <-w.ch:
	case <-ctx.Done():
		if _, mine := c.calls.take(opaque); mine {
			a.err = ctxError(ctx)
			if a.err == ErrTimeout {
				a.err = c.calls.timedOut
			}
		} else {
			a = <-w.ch // whoever took it is about to send
		}
	}
	select {
	case c.waiters <- w:
	default:
	}
	return a.frame, a.err
}

func (c *conn) Go(ctx context.Context, req *Frame, deadline time.Time, done func(*Frame, error)) error {
	if deadline.IsZero() {
		deadline = time.Now().Add(c.limits.callTimeout)
	}
	s := slot{done: done, deadline: max(1, int64(deadline.Sub(c.calls.start)))}
	s.watch = c.calls.hold(ctx)
	if _, err := c.start(ctx, req, &s, deadline); err != nil {
		return err
	}
	return nil
}

// start registers the call and sends its request. When it returns an error the
// call was never registered, or is registered no more, and holds nothing.
func (c *conn) start(ctx context.Context, req *Frame, s *slot, deadline time.Time) (int32, error) {
	if ctx.Err() != nil {
		c.calls.unhold(s.watch)
		return 0, ctxError(ctx)
	}
	held := false
	for {
		opaque, ticket, err := c.calls.add(s, held)
		var room <-chan struct{}
		switch {
		case err != nil:
		case ticket != nil:
			room = ticket.ready
		default:
			held = true
			// Half of the queue is left to replies, which cannot wait.
			room, err = c.out.put(req, c.stampRequest(req, opaque, 0), c.limits.outbound/2)
			if err == nil || !c.calls.withdraw(opaque) {
				return opaque, nil
			}
			if err == errNoRoom {
				err = nil
			}
		}
		if err == nil {
			err = c.waitRoom(ctx, room, deadline)
			if ticket != nil {
				if err != nil {
					c.calls.leave(ticket)
				} else {
					held = true
				}
			}
		}
		if err != nil {
			c.calls.unhold(s.watch)
			if held {
				c.calls.giveBack()
			}
			if err == errEnded {
				err = ctxError(ctx)
			}
			return 0, err
		}
	}
}

// waitRoom waits for a permit or for room in the outbound queue.
func (c *conn) waitRoom(ctx context.Context, room <-chan struct{}, deadline time.Time) error {
	var expired <-chan time.Time
	if !deadline.IsZero() {
		t := time.NewTimer(time.Until(deadline))
		defer t.Stop()
		expired = t.C
	}
	select {
	case <-room:
		return nil
	case <-expired:
		return &connError{err: ErrWindowFull, cause: context.DeadlineExceeded, remote: c.remote}
	case <-ctx.Done():
		return &connError{err: ErrWindowFull, cause: ctx.Err(), remote: c.remote}
	case <-c.done:
		return c.failure()
	}
}

func (c *conn) Send(req *Frame) error {
	_, err := c.out.put(req, c.stampRequest(req, c.calls.number(), FlagOneWay), c.limits.outbound)
	return c.overflow(err)
}

// overflow closes the connection when a frame that cannot wait found no room.
func (c *conn) overflow(err error) error {
	if err != errNoRoom {
		return err
	}
	c.shut(ErrOverflow, false)
	return &connError{err: ErrOverflow, remote: c.remote}
}

func (c *conn) stampRequest(req *Frame, opaque, flag int32) stamp {
	s := stamp{opaque: opaque, flag: req.Flag&^FlagResponse | flag, language: req.Language, version: req.Version}
	c.sign(&s)
	c.accord.request(req, &s)
	return s
}

func (c *conn) sign(s *stamp) {
	if c.table == nil {
		return
	}
	s.language = c.table.Language
	if s.version == 0 {
		s.version = c.table.Version
	}
}

// receive handles one frame from the peer, on the reader.
func (c *conn) receive(e *envelope) {
	if e.IsResponse() { // before the number is looked at: both sides count for themselves
		c.accord.answered(&e.Frame)
		if s, ok := c.calls.take(e.Opaque); ok {
			c.finish(s, &e.Frame, nil)
		}
		return
	}
	e.to = c
	if e.size > 0 && !c.admit(e.size) {
		e.size = 0
		e.reply(&Frame{Code: codeSystemBusy, Remark: remarkPoolOverloaded})
		return
	}
	c.table.serve(c.ctx, c.self, &e.Frame, e.reply, c.log)
}

// finish gives a call its answer. The caller took it out of the table.
func (c *conn) finish(s slot, f *Frame, err error) {
	if s.wait != nil {
		s.wait.ch <- answer{f, err}
		return
	}
	defer c.recovered("callback of a call")
	s.done(f, err)
}

func (c *conn) recovered(what string) {
	if r := recover(); r != nil {
		c.log.Error("panic in a "+what, "peer", c.remote, "panic", r, "stack", string(debug.Stack()))
	}
}

// reply answers the request in the envelope. Only the first answer counts.
func (e *envelope) reply(resp *Frame) {
	if !e.replied.CompareAndSwap(false, true) {
		return
	}
	c := e.to
	c.release(e.size)
	if e.IsOneWay() {
		return
	}
	if resp == nil {
		resp = &Frame{Code: codeSystemError, Remark: "handler gave no response"}
	}
	s := stamp{opaque: e.Opaque, flag: resp.Flag&^FlagOneWay | FlagResponse, codec: e.Codec,
		language: resp.Language, version: resp.Version}
	c.sign(&s)
	s.upgrade = c.accord.accept(&e.Frame)
	_, err := c.out.put(resp, s, c.limits.outbound)
	if err != nil && err != errNoRoom && !errors.Is(err, ErrClosed) {
		c.log.Error("response cannot be sent", "peer", c.remote, "code", e.Code, "err", err)
		resp = &Frame{Code: codeSystemError, Remark: fmt.Sprintf("response cannot be sent: %v", err)}
		_, err = c.out.put(resp, s, c.limits.outbound)
	}
	if c.overflow(err) == nil && s.upgrade {
		c.accord.accepted()
	}
}
