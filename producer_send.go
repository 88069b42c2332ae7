package mq

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/pocketmq/mq/internal/wire"
	"github.com/pocketmq/mq/transport"
)

// minTryLimit is the least time a try gets before the next one is made.
const minTryLimit = 500 * time.Millisecond

// Send sends a message and waits for the broker's answer. The message goes to the
// topic's queues in turn, or to the one its shard key chooses. Failed tries are
// repeated as [ProducerConfig] says, but with a shard key there is one try only,
// since a second one could overtake or double the first.
//
// ctx and SendTimeout bound the call with all its tries. An error is an [*Error],
// or wraps ErrMessageIllegal when nothing was sent because of the message itself.
// It wraps ErrOutcomeUnknown when the message may be stored all the same, because
// a try was not answered. A status other than SendOK is not an error: the message
// is stored.
//
// A broker that cannot be reached has the topic's route looked up anew, and a try
// that found nobody is made again where the queues are now, also with a shard key.
func (p *Producer) Send(ctx context.Context, m *Message) (*SendResult, error) {
	return p.sendWaiting(ctx, m, func(s *send) {})
}

// SendTo sends a message to the given queue and waits for the answer, in one try.
// The message's shard key does not count. A queue that may not be sent to, or that
// the topic does not have, is an illegal message; a broker that is in no route is
// ErrNoRoute.
func (p *Producer) SendTo(ctx context.Context, q Queue, m *Message) (*SendResult, error) {
	if m != nil && q.Topic != m.Topic {
		return nil, illegal("Topic", "%q is not that of the queue %v", m.Topic, q)
	}
	return p.sendWaiting(ctx, m, func(s *send) { s.fix(q) })
}

// SendSelect sends a message to the queue that choose picks and waits for the
// answer, in one try. choose gets all queues that may be sent to, sorted by broker
// and id, and returns an index. It runs on the caller's goroutine, and once more
// when the queues have moved and nothing was sent.
func (p *Producer) SendSelect(ctx context.Context, m *Message, choose func(queues []Queue) int) (*SendResult, error) {
	if choose == nil {
		return nil, errors.New("mq: SendSelect without a function to choose the queue")
	}
	return p.sendWaiting(ctx, m, func(s *send) { s.choose, s.maxTries = choose, 1 })
}

func (p *Producer) sendWaiting(ctx context.Context, m *Message, direct func(*send)) (*SendResult, error) {
	if err := checkMessage(m, p.cfg.MaxMessageSize); err != nil {
		return nil, err
	}
	if err := p.window.enter(); err != nil {
		return nil, &Error{Op: "send to " + m.Topic, Err: err}
	}
	defer p.window.leave()
	s := p.newSend(ctx, p.cfg.Retries+1)
	defer s.recycle()
	if err := p.prepare(s, m); err != nil {
		return nil, err
	}
	if s.shardKey != "" {
		s.maxTries = 1
	}
	direct(s)
	return s.wait()
}

// SendOneway sends a message and does not wait for an answer. There is one try; an
// error says that the message was not handed to a connection and is not stored, its
// absence says nothing about the broker. Sending faster than the broker reads
// closes the connection.
func (p *Producer) SendOneway(ctx context.Context, m *Message) error {
	if err := checkMessage(m, p.cfg.MaxMessageSize); err != nil {
		return err
	}
	if err := p.window.enter(); err != nil {
		return &Error{Op: "send to " + m.Topic, Err: err}
	}
	defer p.window.leave()
	s := p.newSend(ctx, 1)
	defer s.recycle()
	if err := p.prepare(s, m); err != nil {
		return err
	}
	if err := s.expired(s.began); err != nil {
		return err
	}
	err := s.oneway()
	if errors.Is(err, ErrUnreachable) && s.moved() {
		err = s.oneway()
	}
	return err
}

// oneway hands the message to a connection.
func (s *send) oneway() error {
	if err := s.aim(s.began); err != nil {
		return err
	}
	f := s.attempt()
	f.Flag = transport.FlagOneWay
	ctx, cancel := context.WithDeadline(s.ctx, s.deadline)
	defer cancel()
	conn, err := s.p.client.conn(ctx, s.addr)
	if err == nil {
		err = conn.Send(f)
	}
	if err != nil {
		return unsentError(s.op(), s.addr, err)
	}
	return nil
}

// A send is one message, or one batch, on its way, with all its tries. It belongs
// to one goroutine at a time: the one that makes a try, and after it the
// connection's reader that calls answered.
type send struct {
	p        *Producer
	ctx      context.Context
	entry    *routeEntry
	code     int32
	id       string // unique ids, joined by commas
	body     []byte // our own copy
	shardKey string
	choose   func([]Queue) int
	fixed    bool // target was set for all tries
	given    bool // it was set by the caller
	target   Queue
	addr     string      // of target's master
	route    *topicRoute // by which it was found

	began    time.Time // of this try
	deadline time.Time // of the whole send
	tries    int       // begun so far
	maxTries int
	avoid    string   // broker of the last failed try
	failed   []string // brokers of all failed tries

	reply  *transport.Frame // the answer to the last try, or err
	err    error
	unsure bool // a try was sent and not answered

	done     chan struct{}            // of a waiting send: a value for each answered try
	callback func(*SendResult, error) // of an asynchronous one
	size     int                      // what it took of the window
	gathered *gathered                // of several asynchronous ones, instead of callback and size
	chained  bool

	request wire.SendRequestV2 // what all tries have in common

	// answer is the method answered, bound once: a send is used again for others.
	answer func(*transport.Frame, error)
}

// An attempt is what one try hands to the connection: never written again, since
// in memory the broker reads the very same, and may keep it for longer than the
// send lasts.
type attempt struct {
	frame  transport.Frame
	header wire.SendRequestV2
}

func (s *send) fix(q Queue) { s.target, s.fixed, s.given, s.maxTries = q, true, true, 1 }

func (s *send) op() string { return "send to " + s.entry.topic }

// wait makes tries until one succeeds or none is left.
func (s *send) wait() (*SendResult, error) {
	if s.done == nil {
		s.done = make(chan struct{}, 1)
	}
	for {
		err := s.try()
		if err == nil {
			<-s.done
			var r *SendResult
			if r, err = s.outcome(); err == nil {
				return r, nil
			}
		}
		if !s.mayRetry(err) {
			return nil, s.failure(err)
		}
	}
}

// try sends the message once; answered is called later, at any time from now on,
// and owns the send then. When try returns an error it has sent nothing and there
// will be no answer.
func (s *send) try() error {
	now := s.began
	if s.tries > 0 || s.chained {
		now = time.Now()
	}
	if err := s.expired(now); err != nil {
		return err
	}
	if errors.Is(s.err, transport.ErrClosed) {
		s.p.client.lookAgain(s.ctx, s.entry, s.route, false) // a broker that went may be back elsewhere
	}
	left := s.deadline.Sub(now)
	limit := min(left, max(left/time.Duration(s.maxTries-s.tries), minTryLimit))
	s.tries++
	s.began = now
	for again := false; ; again = true {
		if err := s.aim(now); err != nil {
			return err
		}
		err := s.p.client.goCall(s.ctx, s.addr, s.attempt(), now.Add(limit), s.answer)
		if err == nil {
			return nil
		}
		err = unsentError(s.op(), s.addr, err)
		s.mark(true)
		if again || !errors.Is(err, ErrUnreachable) || !s.moved() {
			return err
		}
	}
}

// expired tells whether time is over before the next try.
func (s *send) expired(now time.Time) error {
	err := s.ctx.Err()
	if err == nil && !now.Before(s.deadline) {
		err = context.DeadlineExceeded
	}
	if err != nil {
		err = unsentError(s.op(), s.addr, err)
	}
	return err
}

// moved looks the topic up after a broker was not reached and tells whether its
// queues are elsewhere now. With tries left, another broker is the better hope. A
// queue that was chosen from the old ones is chosen anew, unless a message may be
// there already.
func (s *send) moved() bool {
	ctx, cancel := context.WithDeadline(s.ctx, s.deadline)
	defer cancel()
	if !s.p.client.lookAgain(ctx, s.entry, s.route, s.tries >= s.maxTries) {
		return false
	}
	if s.fixed && !s.given && !s.unsure {
		s.fixed = false
	}
	return true
}

// attempt makes the frame of a try.
func (s *send) attempt() *transport.Frame {
	a := &attempt{header: s.request}
	a.header.QueueID = int32(s.target.ID)
	a.header.BrokerName = s.target.Broker
	a.frame = transport.Frame{Code: s.code, Header: &a.header, Body: s.body}
	return &a.frame
}

// aim sets target and addr for the next try.
func (s *send) aim(now time.Time) error {
	route := s.entry.publishRoute()
	if route == nil || len(route.publishQueues) == 0 {
		ctx, cancel := context.WithDeadline(s.ctx, s.deadline)
		defer cancel()
		var err error
		if route, err = s.p.client.publishRoute(ctx, s.entry); err != nil {
			s.maxTries = s.tries // the look-up has asked every name server: not again
			return &Error{Op: s.op(), Err: err}
		}
	}
	s.route = route
	if s.fixed {
		return s.aimFixed(route)
	}
	n := len(route.publishQueues)
	var i int
	switch {
	case s.choose != nil:
		s.fixed = true
		if i = s.choose(slices.Clone(route.publishQueues)); i < 0 || i >= n {
			return illegal("Queue", "index %d was chosen, the range is 0 to %d", i, n-1)
		}
	case s.shardKey != "" && s.code != wire.CodeSendBatchMessage:
		s.fixed = true
		i = shardIndex(s.shardKey, n)
	default:
		i = s.p.pickQueue(now, route.publishQueues, s.entry.turn.Add(1), s.avoid)
	}
	s.target, s.addr = route.publishQueues[i], route.masters[i]
	if s.addr == "" {
		return s.noMaster()
	}
	return nil
}

func (s *send) aimFixed(route *topicRoute) error {
	if s.given && !route.publishes(s.target) && s.p.client.lookAgain(s.ctx, s.entry, route, true) {
		if r := s.entry.publishRoute(); r != nil {
			route, s.route = r, r
		}
	}
	if s.addr = route.brokers[s.target.Broker][masterID]; s.addr == "" {
		return s.noMaster()
	}
	if s.given && !route.publishes(s.target) {
		s.maxTries = s.tries
		all := route.publishQueues
		return &Error{Op: s.op(), Err: illegal("Queue", "%v is none that may be sent to; those are %v to %v", s.target, all[0], all[len(all)-1])}
	}
	return nil
}

func (s *send) noMaster() error {
	s.avoid = s.target.Broker
	return &Error{Op: s.op(), Err: fmt.Errorf("%w: broker %q has no master now", ErrNoRoute, s.target.Broker)}
}

func (p *Producer) pickQueue(now time.Time, queues []Queue, turn uint32, avoid string) int {
	if p.faults == nil {
		return nextQueue(queues, turn, avoid)
	}
	p.faultsMu.Lock()
	defer p.faultsMu.Unlock()
	return p.faults.pick(now, queues, turn, avoid)
}

// answered takes the outcome of a try. It runs on the connection's reader.
func (s *send) answered(f *transport.Frame, err error) {
	s.reply, s.err = f, err
	if s.callback == nil && s.gathered == nil {
		s.done <- struct{}{} // has room: one answer to a try
		return
	}
	s.completeAsync()
}

// outcome judges the last try's answer.
func (s *send) outcome() (*SendResult, error) {
	if s.err != nil {
		s.unsure = true
		s.mark(true)
		return nil, s.p.client.callError(s.op(), s.addr, s.err)
	}
	status, stored := sendStatusOf(s.reply.Code)
	s.mark(!stored)
	if !stored {
		if s.reply.Code == wire.TopicNotExist {
			s.p.client.forgetRoute(s.entry.topic)
		}
		return nil, answerError(s.op(), s.addr, s.reply)
	}
	h, err := transport.HeaderOf[wire.SendResponse](s.reply)
	if err != nil {
		s.maxTries = s.tries // it is stored: not again
		return nil, &Error{Op: s.op(), Addr: s.addr, Err: fmt.Errorf("stored, but the answer is malformed: %w", err)}
	}
	return &SendResult{
		Status:   status,
		ID:       s.id,
		OffsetID: h.MsgID,
		Queue:    Queue{Topic: s.target.Topic, Broker: s.target.Broker, ID: int(h.QueueID)},
		Offset:   h.QueueOffset,
	}, nil
}

// sendStatusOf reads the codes that mean "stored".
func sendStatusOf(code int32) (SendStatus, bool) {
	switch code {
	case wire.Success:
		return SendOK, true
	case wire.FlushDiskTimeout:
		return FlushDiskTimeout, true
	case wire.FlushSlaveTimeout:
		return FlushSlaveTimeout, true
	case wire.SlaveNotAvailable:
		return SlaveNotAvailable, true
	}
	return 0, false
}

// mark remembers how the broker did.
func (s *send) mark(failed bool) {
	if failed {
		s.avoid = s.target.Broker
		s.failed = append(s.failed, s.target.Broker)
	}
	if p := s.p; p.faults != nil {
		now := time.Now()
		p.faultsMu.Lock()
		p.faults.update(now, s.target.Broker, now.Sub(s.began), failed)
		p.faultsMu.Unlock()
	}
}

// mayRetry tells whether another try may help, and is allowed.
func (s *send) mayRetry(err error) bool {
	return s.tries < s.maxTries && retryable(err) && s.ctx.Err() == nil &&
		s.p.life.ctx.Err() == nil && time.Now().Before(s.deadline)
}

// failure is the error of the whole send.
func (s *send) failure(err error) error {
	var e *Error
	if !errors.As(err, &e) {
		return err
	}
	whole := *e
	if s.unsure && !errors.Is(err, ErrOutcomeUnknown) {
		whole.Err = fmt.Errorf("%w; an earlier try was not answered, %w", e.Err, ErrOutcomeUnknown)
	}
	if s.tries < 2 {
		return &whole
	}
	whole.Err = fmt.Errorf("%w (%d tries, on %s)", whole.Err, s.tries, strings.Join(s.failed, ", "))
	return &whole
}
