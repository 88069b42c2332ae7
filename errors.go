package mq

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/pocketmq/mq/internal/wire"
	"github.com/pocketmq/mq/storage"
	"github.com/pocketmq/mq/transport"
)

// Conditions a caller may want to branch on. Errors of this package wrap them;
// test with errors.Is. What a broker refused is also an [*Error] with its code.
var (
	// ErrClosed: the object was closed, or closed while the call waited.
	ErrClosed = errors.New("mq: closed")
	// ErrNotStarted: Start has not been called or has not succeeded.
	ErrNotStarted = errors.New("mq: not started")
	// ErrStarted: Start was called before. It works once, also when it fails.
	ErrStarted = errors.New("mq: Start was called before; make a new one to start again")
	// ErrLocked: the broker's Dir is in use by another one, of this process or of
	// another.
	ErrLocked = storage.ErrLocked
	// ErrOutcomeUnknown: a request was sent and not answered, because time was over,
	// the connection was lost, or the caller or the client gave up. A message may be
	// stored, and sending it again may duplicate it. After an error of a send that is
	// not this one nothing was stored, as far as the broker can tell; see
	// ErrUnavailable.
	ErrOutcomeUnknown = errors.New("mq: outcome unknown")
	// ErrUnreachable: there is no connection to the broker or name server, and none
	// could be made in time. Nothing was sent.
	ErrUnreachable = errors.New("mq: not reached, nothing was sent")
	// ErrNoRoute: no name server knows a broker for the topic.
	ErrNoRoute = errors.New("mq: no route to the topic")
	// ErrNoNameServer: none of the name servers answered.
	ErrNoNameServer = errors.New("mq: no name server reached")
	// ErrTopicNotFound: no broker has the topic, or the one asked has not, and may
	// not create it; see [Broker.CreateTopic]. A producer's error is ErrNoRoute as
	// well when no broker has it.
	ErrTopicNotFound = errors.New("mq: topic not found")
	// ErrGroupNotFound: the broker has no such consumer group and may not create
	// it; see [Broker.CreateGroup].
	ErrGroupNotFound = errors.New("mq: consumer group not found")
	// ErrBrokerBusy: flow control; nothing was stored. Try again later.
	ErrBrokerBusy = errors.New("mq: broker busy")
	// ErrNoPermission: broker, topic or group forbids it.
	ErrNoPermission = errors.New("mq: no permission")
	// ErrMessageIllegal: the message breaks a limit or a rule; sending it again
	// cannot help.
	ErrMessageIllegal = errors.New("mq: illegal message")
	// ErrUnavailable: the broker's store takes no writes (disk full, failed, or
	// being closed). The message is not acknowledged; those that were being written
	// when the disk failed may be there when it works again.
	ErrUnavailable = errors.New("mq: broker cannot store")
	// ErrNotSupported: the other side does not know the request.
	ErrNotSupported = errors.New("mq: request not supported")
	// ErrTimeout: a request was sent and not answered in time. errors.Is also finds
	// ErrOutcomeUnknown and context.DeadlineExceeded. A send whose time was over
	// before anything was sent is only the latter.
	ErrTimeout error = timeoutError{}
	// ErrTooManyInFlight: more sends are unanswered than the producer, or the
	// connection, allows, and none was answered in time. Nothing was sent.
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
	return t == context.DeadlineExceeded || t == transport.ErrTimeout || t == ErrOutcomeUnknown
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
	return s + ": " + strings.TrimPrefix(e.Err.Error(), "mq: ")
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

// callError wraps a failure below the answer of a request that was sent, or may
// have been.
func callError(op, addr string, err error) error {
	switch {
	case neverSent(err):
		return unsentError(op, addr, err)
	case errors.Is(err, ErrOutcomeUnknown): // says so already
	case errors.Is(err, context.DeadlineExceeded):
		err = fmt.Errorf("%w (%v)", ErrTimeout, err)
	default:
		err = fmt.Errorf("%w: %w", ErrOutcomeUnknown, err)
	}
	return &Error{Op: op, Addr: addr, Err: err}
}

// neverSent tells of failures that say by themselves that nothing was sent.
func neverSent(err error) bool {
	return errors.Is(err, ErrUnreachable) || errors.Is(err, ErrTooManyInFlight) || errors.Is(err, ErrMessageIllegal) ||
		errors.Is(err, transport.ErrWindowFull) || errors.Is(err, transport.ErrFrameTooLarge)
}

// unsentError wraps what kept a request from being sent.
func unsentError(op, addr string, err error) error {
	switch {
	case errors.Is(err, ErrUnreachable), errors.Is(err, ErrClosed), errors.Is(err, ErrTooManyInFlight):
	case errors.Is(err, transport.ErrWindowFull):
		err = fmt.Errorf("%w, nothing was sent: %w", ErrTooManyInFlight, err)
	case errors.Is(err, transport.ErrFrameTooLarge):
		err = fmt.Errorf("%w: %w", ErrMessageIllegal, err)
	case errors.Is(err, transport.ErrClosed): // since it was looked up
		err = fmt.Errorf("%w: %w", ErrUnreachable, err)
	default:
		err = fmt.Errorf("nothing was sent: %w", err)
	}
	return &Error{Op: op, Addr: addr, Err: err}
}

// An unsentAfter is the failure of what was not sent because of another's failure.
// It is like that one, but for the outcome, which is known.
type unsentAfter struct{ cause error }

func (e unsentAfter) Error() string {
	return "nothing was sent, a send with the same shard key before it failed: " + e.cause.Error()
}
func (e unsentAfter) As(target any) bool { return errors.As(e.cause, target) }
func (e unsentAfter) Is(target error) bool {
	return target != ErrOutcomeUnknown && target != ErrTimeout && errors.Is(e.cause, target)
}

// An unknownTopic says that brokers are there and none has the topic.
type unknownTopic string

func (e unknownTopic) Error() string {
	return ErrNoRoute.Error() + ": " + string(e) +
		" is on no broker and none creates topics by itself; create it first (Broker.CreateTopic, or mqadmin updateTopic)"
}
func (e unknownTopic) Is(target error) bool {
	return target == ErrNoRoute || target == ErrTopicNotFound
}

// startError says which component's Start failed.
func startError(what string, err error) error {
	if err == nil {
		return nil
	}
	return &operationError{"mq: start " + what, err}
}

// An operationError puts what was tried before a cause.
type operationError struct {
	op  string
	err error
}

func (e *operationError) Error() string {
	return e.op + ": " + strings.TrimPrefix(e.err.Error(), "mq: ")
}
func (e *operationError) Unwrap() error { return e.err }

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
// first delay level that is not shorter, which is 2 h for all that is longer and
// 1 s for zero and less; in ordered consumption by suspending the queue for d,
// which becomes 10 ms when it is less and 30 s when it is more.
func RetryAfter(d time.Duration, cause error) error { return &retryError{after: d, err: cause} }

// Suspend makes an ordered consumer wait d before it tries the same message again;
// d becomes 10 ms when it is less and 30 s when it is more. In concurrent
// consumption it is like RetryAfter.
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
