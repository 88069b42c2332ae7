package mq

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/pocketmq/mq/internal/wire"
	"github.com/pocketmq/mq/transport"
)

// Conditions a caller may want to branch on. Errors of this package wrap them;
// test with errors.Is. What a broker refused is also an [*Error] with its code.
var (
	// ErrClosed: the object was closed, or closed while the call waited.
	ErrClosed = errors.New("mq: closed")
	// ErrNotStarted: Start has not been called or has not succeeded.
	ErrNotStarted = errors.New("mq: not started")
	// ErrNoRoute: no name server knows a broker for the topic.
	ErrNoRoute = errors.New("mq: no route to the topic")
	// ErrNoNameServer: none of the name servers answered.
	ErrNoNameServer = errors.New("mq: no name server reached")
	// ErrTopicNotFound: the broker has no such topic and may not create it.
	ErrTopicNotFound = errors.New("mq: topic not found")
	// ErrGroupNotFound: the broker has no such consumer group and may not create it.
	ErrGroupNotFound = errors.New("mq: consumer group not found")
	// ErrBrokerBusy: flow control; nothing was stored. Try again later.
	ErrBrokerBusy = errors.New("mq: broker busy")
	// ErrNoPermission: broker, topic or group forbids it.
	ErrNoPermission = errors.New("mq: no permission")
	// ErrMessageIllegal: the message breaks a limit or a rule; sending it again
	// cannot help.
	ErrMessageIllegal = errors.New("mq: illegal message")
	// ErrUnavailable: the broker's store takes no writes (disk full, failed, or
	// being closed).
	ErrUnavailable = errors.New("mq: broker cannot store")
	// ErrNotSupported: the other side does not know the request.
	ErrNotSupported = errors.New("mq: request not supported")
	// ErrTimeout: no answer in time; the outcome is unknown. errors.Is also finds
	// context.DeadlineExceeded.
	ErrTimeout error = timeoutError{}
	// ErrTooManyInFlight: more sends are unanswered than the producer allows.
	ErrTooManyInFlight = errors.New("mq: too many sends in flight")
)

// Answers a listener may return to steer what happens next.
var (
	// ErrSkip counts the message as done.
	ErrSkip = errors.New("mq: skip this message")
	// ErrDeadLetter sends the message to the dead-letter topic at once.
	ErrDeadLetter = errors.New("mq: to the dead-letter topic")
)

type timeoutError struct{}

func (timeoutError) Error() string { return "mq: no answer in time, outcome unknown" }
func (timeoutError) Timeout() bool { return true }
func (timeoutError) Is(t error) bool {
	return t == context.DeadlineExceeded || t == transport.ErrTimeout
}

// An Error is what a broker or name server answered, or what kept a request from
// being answered.
type Error struct {
	Op   string // what was tried, for example "send to orders"
	Addr string // whom it was asked of; empty when nobody
	Code int    // response code; 0 when there was no answer
	Err  error  // the cause; wraps one of the sentinels where one fits
}

// Error returns what was tried, on whom, and what came back.
func (e *Error) Error() string {
	s := "mq: " + e.Op
	if e.Addr != "" {
		s += " at " + e.Addr
	}
	if e.Code != 0 {
		s += fmt.Sprintf(": code %d", e.Code)
	}
	return s + ": " + e.Err.Error()
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// codeErrors is the one table from response codes to sentinels.
var codeErrors = map[int32]error{
	wire.SystemBusy:                ErrBrokerBusy,
	wire.RequestCodeNotSupported:   ErrNotSupported,
	wire.MessageIllegal:            ErrMessageIllegal,
	wire.ServiceNotAvailable:       ErrUnavailable,
	wire.NoPermission:              ErrNoPermission,
	wire.TopicNotExist:             ErrTopicNotFound,
	wire.SubscriptionGroupNotExist: ErrGroupNotFound,
	wire.FlowControl:               ErrBrokerBusy,
}

// answerError turns a response that is not a success into an error.
func answerError(op, addr string, f *transport.Frame) error {
	cause := errors.New(f.Remark)
	if s, ok := codeErrors[f.Code]; ok {
		cause = fmt.Errorf("%w: %s", s, f.Remark)
	}
	return &Error{Op: op, Addr: addr, Code: int(f.Code), Err: cause}
}

// callError wraps a failure below the answer: connection, time-out, context.
func callError(op, addr string, err error) error {
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		err = fmt.Errorf("%w (%v)", ErrTimeout, err)
	case errors.Is(err, transport.ErrWindowFull):
		err = fmt.Errorf("%w: %w", ErrTooManyInFlight, err)
	}
	return &Error{Op: op, Addr: addr, Err: err}
}

// Codes of old RocketMQ brokers that only the retry policy knows.
const (
	codeNoBuyerID        int32 = 204
	codeNotInCurrentUnit int32 = 205
)

// retryable is the one retry policy of sends (RocketMQ: retryResponseCodes, and
// every failure of the connection). Code 2 is not among them in 4.9: a busy
// broker asks for less, not for the same again.
func retryable(err error) bool {
	var e *Error
	if !errors.As(err, &e) {
		return false
	}
	switch int32(e.Code) {
	case 0: // no answer: connection or time-out, unless the caller gave up
		return !errors.Is(err, context.Canceled) && !errors.Is(err, ErrClosed)
	case wire.SystemError, wire.ServiceNotAvailable, wire.NoPermission, wire.TopicNotExist,
		codeNoBuyerID, codeNotInCurrentUnit:
		return true // another broker may be healthy, allowed, or know the topic
	}
	return false
}

// RetryAfter makes a listener's failure be tried again after about d: on the
// first delay level that is not shorter, in ordered consumption by suspending the
// queue for d (10 ms to 30 s).
func RetryAfter(d time.Duration, cause error) error { return &retryError{after: d, err: cause} }

// Suspend makes an ordered consumer wait d (10 ms to 30 s) before it tries the
// same message again. In concurrent consumption it is like RetryAfter.
func Suspend(d time.Duration) error { return &retryError{after: d, suspend: true} }

// Done says that the first n messages of a batch are done and the rest failed
// with cause.
func Done(n int, cause error) error { return &doneError{n: n, err: cause} }

type retryError struct {
	after   time.Duration
	suspend bool
	err     error
}

func (e *retryError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("mq: again after %v", e.after)
	}
	return fmt.Sprintf("mq: again after %v: %v", e.after, e.err)
}
func (e *retryError) Unwrap() error { return e.err }

type doneError struct {
	n   int
	err error
}

func (e *doneError) Error() string { return fmt.Sprintf("mq: first %d done: %v", e.n, e.err) }
func (e *doneError) Unwrap() error { return e.err }
