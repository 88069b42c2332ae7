// Package transport carries RocketMQ's remoting commands between processes, or
// between parts of one process.
//
// Most programs need only [NewMemory] and [NewTCP]: they give the result to the
// configurations of package mq, where no transport at all means TCP. Name servers,
// brokers, producers and consumers may share one Transport, and on a memory network
// they must, to meet. The rest of this package is for writing a Transport of one's
// own. The errors here are those of connections; what a producer returns is to be
// tested with package mq's: its ErrClosed is the producer's end and not a
// connection's, and its ErrTimeout is a request's of which the outcome is unknown.
//
// A [Frame] is one command. A [Transport] listens and dials; a [Conn] carries
// frames both ways, because brokers call their clients too. [TCP] speaks
// RocketMQ's wire protocol; [Memory] hands frames over by pointer and opens no
// socket. Both keep the same promises, which one conformance suite checks.
package transport

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// A Header is the typed form of a frame's ext fields. Its methods use plain
// types, so that a package of headers need not import this one.
type Header interface {
	// AppendFields appends the header as key, value, key, value and so on.
	AppendFields(fields []string) []string
	// ParseFields sets the header from key, value pairs. It ignores keys it does
	// not know and names the field that is missing or malformed.
	ParseFields(fields []string) error
}

// Flag bits of a [Frame], equal to RocketMQ's.
const (
	FlagResponse int32 = 1 << 0
	FlagOneWay   int32 = 1 << 1
)

// A Frame is one remoting command. Once it was handed to a Conn or to a reply
// function it is never written again, by either side: whoever must change a
// field copies the struct. Body belongs to the receiver for reading.
type Frame struct {
	Code     int32    // request code, or response code when FlagResponse is set
	Language Language // who speaks; stamped from the Table when the frame leaves
	Codec    Codec    // the header codec the frame came in; replies answer in kind
	Version  int32    // the speaker's version ordinal; stamped when zero
	Opaque   int32    // correlation number, set by the Conn
	Flag     int32
	Remark   string // error text of a response
	Header   Header // typed header to send, or as handed over in memory; may be nil
	// Fields are the ext fields as key, value pairs: on a received frame exactly
	// as they came (signatures are made over them), on a sent one those that
	// Header does not write. Received strings share the memory of one header:
	// clone what is kept for long.
	Fields []string
	Body   []byte
}

// IsResponse tells whether the frame answers a request.
func (f *Frame) IsResponse() bool { return f.Flag&FlagResponse != 0 }

// IsOneWay tells whether the sender of a request waits for no answer.
func (f *Frame) IsOneWay() bool { return f.Flag&FlagOneWay != 0 }

// Field returns the value of an ext field that came as text.
func (f *Frame) Field(key string) (string, bool) {
	for i := 0; i+1 < len(f.Fields); i += 2 {
		if f.Fields[i] == key {
			return f.Fields[i+1], true
		}
	}
	return "", false
}

// HeaderOf returns a frame's header as a *T: the sender's own value when it was
// handed over in memory, else one parsed from the ext fields. The result is
// shared and must not be written.
func HeaderOf[T any, P interface {
	*T
	Header
}](f *Frame) (*T, error) {
	if h, ok := f.Header.(P); ok && h != nil {
		return (*T)(h), nil
	}
	fields := f.Fields
	if f.Header != nil {
		fields = f.Header.AppendFields(fields[:len(fields):len(fields)])
	}
	h := new(T)
	if err := P(h).ParseFields(fields); err != nil {
		return nil, fmt.Errorf("transport: header of code %d: %w", f.Code, err)
	}
	return h, nil
}

// A Handler serves one request. It must call reply exactly once, from any
// goroutine, at any later time, also for a one-way request and after the
// connection has closed, where nothing is sent: until then what the request holds
// counts as waiting. Reply never blocks. ctx ends when the connection or the
// listener closes.
type Handler func(ctx context.Context, c Conn, req *Frame, reply func(*Frame))

// A Transport opens connections. Implementations are safe for concurrent use.
type Transport interface {
	// Listen accepts connections on addr ("host:port"; port 0 for a free one) and
	// serves their requests with t until the listener closes. ctx bounds the call.
	Listen(ctx context.Context, addr string, t *Table) (Listener, error)
	// Dial connects to addr. Requests that the other side sends on the connection
	// are served with t, which may be nil. ctx bounds the call.
	Dial(ctx context.Context, addr string, t *Table) (Conn, error)
}

// A Listener accepts connections in the background.
type Listener interface {
	// Addr is the address in use as ip:port text.
	Addr() string
	// Close stops accepting, closes the accepted connections and waits for their
	// goroutines and inline handlers. It is idempotent.
	Close() error
}

// A Conn is one connection. All methods are safe for concurrent use. Requests
// sent on one Conn reach the other side's handlers in the order in which they
// were sent.
type Conn interface {
	// Call sends a request and waits for its answer or the end of ctx. A response
	// of any code is an answer, not an error.
	Call(ctx context.Context, req *Frame) (*Frame, error)
	// Go sends a request and calls done exactly once with the answer, or with an
	// error when deadline passes, ctx is cancelled, or the connection closes. It
	// waits for a permit of the window, bounded by ctx and deadline; when it
	// returns an error, nothing was sent and done is never called. A zero deadline means the
	// transport's default. done runs on the connection's reader (after a time-out
	// or a cancelled ctx, on a goroutine of its own) and must not block; the
	// permit was released before.
	Go(ctx context.Context, req *Frame, deadline time.Time, done func(*Frame, error)) error
	// Send sends a request that wants no answer. It never blocks: it fails with
	// [ErrOverflow], and the connection closes, when the other side reads too slowly.
	Send(req *Frame) error
	// LocalAddr and RemoteAddr are ip:port text.
	LocalAddr() string
	RemoteAddr() string
	// Done is closed when the connection is.
	Done() <-chan struct{}
	// Close closes the connection; calls in flight fail with [ErrClosed]. It is
	// idempotent and does not wait for handlers.
	Close() error
}

// Errors of connections. A call that fails with one of them, other than
// ErrWindowFull and ErrFrameTooLarge, may or may not have reached the other side.
var (
	// ErrClosed says that the connection or listener was closed, by either side.
	ErrClosed = errors.New("transport: connection closed")
	// ErrTimeout says that no answer came in time. errors.Is also finds
	// context.DeadlineExceeded.
	ErrTimeout error = timeoutError{}
	// ErrWindowFull says that no permit of the peer's window became free in time;
	// nothing was sent.
	ErrWindowFull = errors.New("transport: too many requests in flight on this connection")
	// ErrOverflow says that the peer reads too slowly and its outbound queue is
	// full; the connection is closed.
	ErrOverflow = errors.New("transport: peer reads too slowly, outbound queue full")
	// ErrFrameTooLarge says that a frame exceeds the limit; nothing was sent.
	ErrFrameTooLarge = errors.New("transport: frame too large")
)

type timeoutError struct{}

func (timeoutError) Error() string   { return "transport: no answer in time" }
func (timeoutError) Timeout() bool   { return true }
func (timeoutError) Is(t error) bool { return t == context.DeadlineExceeded }
