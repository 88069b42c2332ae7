package storage

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
)

// Store is an open store. All methods are safe for concurrent use.
type Store struct {
	opts Options
	log  *slog.Logger

	intake    *intake
	topics    *topics
	offsets   *offsets
	timers    *timers
	index     *keyIndex
	completer *completer
	waker     *waker
	ring      ring
	readers   readers
	trimmer   *trimmer
	counts    counts
	files     atomic.Pointer[engine] // a copy of the running one, for statistics

	segmentBytes     int64
	logStart, logEnd atomic.Int64

	// lifecycle holds one token: whoever has it opens or closes.
	lifecycle chan *engine
}

// Open opens the store in a directory, or a new one in memory. It returns an
// error that wraps ErrLocked when the directory is in use.
func Open(o Options) (*Store, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	s := &Store{opts: o, log: o.Logger, intake: newIntake(o), topics: newTopics(), offsets: newOffsets(),
		completer: newCompleter(), waker: newWaker(o.Grown), ring: ring{limit: o.RingBytes},
		lifecycle: make(chan *engine, 1)}
	s.timers = newTimers(s)
	s.index = newKeyIndex(s)
	s.trimmer = newTrimmer(s)
	e := &engine{}
	if err := s.start(e); err != nil {
		return nil, err
	}
	go s.completer.run()
	go s.waker.run()
	s.lifecycle <- e
	return s, nil
}

// Err returns why the store is frozen or closed, nil while it is neither.
func (s *Store) Err() error {
	s.intake.mu.Lock()
	defer s.intake.mu.Unlock()
	return s.intake.refusal
}

// LogStart and LogEnd are the positions of the first byte of the log that may
// be there, and of the first that is not.
func (s *Store) LogStart() int64 { return s.logStart.Load() }

// LogEnd is the position after the last durable record.
func (s *Store) LogEnd() int64 { return s.logEnd.Load() }

// segment returns the segment that a position is in.
func (s *Store) segment(position int64) uint32 { return uint32(position / s.segmentBytes) }

// Submit takes a request and returns at once. The request's Completion is told
// the outcome exactly once, with ErrBusy when too much is waiting. Requests of
// one goroutine are carried out in the order in which they were submitted.
func (s *Store) Submit(r *Request) {
	if err := s.intake.put(r); err != nil {
		s.completer.put(outcome{one: r, err: err})
	}
}

// Apply submits a request and waits for the outcome; it takes over the
// request's Completion. When ctx ends first it returns an error that wraps
// ctx's, and the request still takes its course.
func (s *Store) Apply(ctx context.Context, r *Request) error {
	done := make(chan error, 1)
	r.Completion = completionFunc(func(_ *Request, err error) { done <- err })
	s.Submit(r)
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return fmt.Errorf("storage: waiting for a request: %w", ctx.Err())
	}
}

// Close carries out what was submitted, makes group offsets durable, and ends
// every goroutine of the store. Calling it again returns the same as an open
// and closed store: nil. Requests submitted meanwhile get ErrClosed.
func (s *Store) Close() error {
	e := <-s.lifecycle
	defer func() { s.lifecycle <- e }()
	if e.shut {
		return nil
	}
	e.shut = true
	err := s.stop(e)
	s.completer.end()
	s.waker.end()
	return err
}

// Reopen leaves a failure: it closes what is open and opens the directory
// again. Topic handles stay valid. Requests in between are refused. After an
// error the store stays refusing, and Reopen may be tried again. A disk that does
// not take a small file yet is left alone: a frozen store can still be read, a
// closed one cannot.
func (s *Store) Reopen(ctx context.Context) error {
	var e *engine
	select {
	case e = <-s.lifecycle:
	case <-ctx.Done():
		return fmt.Errorf("storage: reopening: %w", ctx.Err())
	}
	defer func() { s.lifecycle <- e }()
	if e.shut {
		return ErrClosed
	}
	if s.opts.inMemory() {
		return fmt.Errorf("%w: a store without a directory cannot be opened again", ErrInvalid)
	}
	if e.db != nil {
		if err := probe(e.raw, e.dir); err != nil {
			return err
		}
	}
	if err := s.stop(e); err != nil {
		s.log.Warn("storage: closing before opening again", "error", err)
	}
	if err := s.start(e); err != nil {
		s.intake.refuse(frozen(err))
		return err
	}
	return nil
}
