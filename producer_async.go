package mq

import (
	"context"
	"errors"
	"fmt"
)

// SendAsync sends a message and calls done with the outcome, exactly once. There
// are two kinds of errors: one that SendAsync returns means that nothing was sent
// and done is never called; all others are told to done. done must not be nil; who
// wants no outcome uses SendOneway.
//
// SendAsync waits, bounded by ctx, while as many sends are unanswered as
// [ProducerConfig] allows; that fails with ErrTooManyInFlight. It also waits for a
// route or a connection that is not there yet. Otherwise it returns at once.
// SendTimeout bounds the rest, from when there was a place.
//
// ctx belongs to the send, not only to the call: when it ends later, done gets its
// error, and the outcome is unknown (ErrOutcomeUnknown). Give context.WithoutCancel(ctx) to a send that
// is to survive the caller's context.
//
// done runs on the producer's own goroutine, one call at a time unless
// CallbackWorkers says otherwise. The place in the window was free before, so that
// it may send, waiting or not. A panic in it is recovered and logged. Be quick:
// when many outcomes wait to be told, SendAsync slows down.
//
// Failed tries are repeated only when there was no answer (connection lost, time
// over); what a broker refused is final. A repeated send lands behind those that
// were sent after it; see FailQueuedOnError.
func (p *Producer) SendAsync(ctx context.Context, m *Message, done func(*SendResult, error)) error {
	if done == nil {
		return errors.New("mq: SendAsync without a function for the outcome; SendOneway wants none")
	}
	if err := checkMessage(m, p.cfg.MaxMessageSize); err != nil {
		return err
	}
	p.callbacks.throttle(ctx)
	size := len(m.Body)
	if err := p.window.acquire(ctx, size); err != nil {
		return &Error{Op: "send to " + m.Topic, Err: err}
	}
	if p.gathers(m) {
		p.gather(ctx, m, done)
		return nil
	}
	s := p.newSend(ctx, p.cfg.Retries+1)
	s.callback, s.size = done, size
	if err := p.prepare(s, m); err != nil {
		s.recycle()
		p.window.release(1, size)
		return err
	}
	if p.cfg.FailQueuedOnError && s.shardKey != "" {
		s.chained = true
		if !p.chains.begin(s) {
			return nil // its turn comes when the one before it was answered
		}
	}
	if err := s.launch(); err != nil {
		if s.chained {
			p.chains.end(s, err)
		}
		s.recycle()
		p.window.release(1, size)
		return err
	}
	return nil
}

// launch makes tries until one is under way; the rest happens when it is answered.
func (s *send) launch() error {
	for {
		err := s.try()
		if err == nil {
			return nil
		}
		if !s.mayRetry(err) {
			return s.failure(err)
		}
	}
}

// relaunch is launch for a send whose caller is gone.
func (s *send) relaunch(context.Context) {
	if err := s.launch(); err != nil {
		s.finish(nil, err)
	}
}

// completeAsync ends an asynchronous send, or has it tried again by a goroutine
// that may wait, as this one, the connection's reader, may not.
func (s *send) completeAsync() {
	r, err := s.outcome()
	if err != nil && s.err != nil && s.mayRetry(err) && s.p.life.run(s.relaunch) {
		return
	}
	if err != nil {
		err = s.failure(err)
	}
	s.finish(r, err)
}

// finish tells the outcome. The result is queued before the send leaves the
// window, since the queue closes when the window is idle; leaving it waits for no
// callback.
func (s *send) finish(r *SendResult, err error) {
	if b := s.gathered; b != nil {
		s.recycle()
		b.finish(r, err)
		return
	}
	s.p.callbacks.push(finished{s.callback, r, err})
	if s.chained {
		s.p.chains.end(s, err)
	}
	p, size := s.p, s.size
	s.recycle()
	p.window.release(1, size)
}

// errWindow says why there was no place.
func errWindow(cause error) error {
	if errors.Is(cause, context.DeadlineExceeded) {
		return fmt.Errorf("%w, none was answered in time; nothing was sent: %w", ErrTooManyInFlight, cause)
	}
	return fmt.Errorf("%w, nothing was sent: %w", ErrTooManyInFlight, cause)
}
