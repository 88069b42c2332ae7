package storage

import (
	"fmt"
	"time"

	"github.com/cockroachdb/pebble/v2"
)

// lane is the way of a request to the disk, in three steps: build gives out
// offsets and positions and makes a Pebble batch, persist commits it, publish
// moves the watermarks and hands the group to completer and waker. Build runs
// on the builder goroutine, persist and publish on the committer, so that a
// group is built while the one before it syncs. The committer alone commits to
// Pebble: with several committers a slow disk in a synctest bubble hangs for
// good.
//
// A group's batch is self-contained and applying it is deterministic, so a
// replicated store can put its own log between build and persist.
//
// The lane calls nobody's code except Condition.Holds.
type lane struct {
	s       *Store
	db      *pebble.DB
	fs      *fileSystem
	flights *flights

	groups chan *group // built groups, to the committer
	ended  chan struct{}

	// What the builder gave out last; ahead of what is published by the groups
	// in flight.
	life      int64
	position  int64  // next log position
	segment   uint32 // segment of the last chunk
	started   bool   // segment has its info written
	storeTime int64  // store time of the last group, never goes back
	nextTopic uint32
	logStart  int64

	number   int64 // of the current group
	queues   []*queue
	requests []*Request
	index    indexBuilder
	maps     []byte // entries of the current position map
	mapFirst int64

	// pending are the groups built and not yet committed, oldest first, for
	// lookups of conditions; the flights know which are done.
	pending []*group
}

// run builds groups until the intake is drained.
func (l *lane) run() {
	defer close(l.groups)
	timer := time.NewTimer(offsetsDelay)
	timer.Stop()
	defer timer.Stop()
	armed := false
	in := l.s.intake
	for {
		requests, o := in.take(l.requests[:0])
		l.requests = requests
		if o.offsets && !armed {
			armed = true
			timer.Reset(offsetsDelay)
		}
		if len(requests) > 0 || o.flush {
			// Every group takes the group offsets along.
			armed = false
			timer.Stop()
			l.carry(requests)
			clear(requests) // they belong to their senders again
			continue
		}
		if o.end {
			l.carry(nil)
			return
		}
		if o.offsets {
			continue // armed the timer; look again before sleeping
		}
		select {
		case <-in.wake:
		case <-timer.C:
			armed = false
			l.carry(nil)
		}
	}
}

// carry builds the requests into groups and sends those on: all of them in one,
// except that solo requests have one for themselves. Without requests it makes
// a group of changed group offsets alone.
func (l *lane) carry(requests []*Request) {
	if len(requests) == 0 && l.s.offsets.changed() {
		l.send(l.build(nil))
	}
	for len(requests) > 0 {
		n := 0
		for n < len(requests) && !requests[n].solo {
			n++
		}
		if n == 0 {
			l.settle()
			n = 1
		}
		l.send(l.build(requests[:n]))
		requests = requests[n:]
	}
}

// send hands a group to the committer.
func (l *lane) send(g *group) {
	l.flights.add(g)
	l.groups <- g
}

// settle waits until the committer is through with everything sent.
func (l *lane) settle() {
	g := &group{settled: make(chan struct{})}
	l.groups <- g
	<-g.settled
	l.forgetCommitted()
}

// lookup returns what is under a key after everything built so far, the current
// group included.
func (l *lane) lookup(current *group) lookup {
	return func(key []byte) ([]byte, bool, error) {
		if value, found, known := current.touched.find(key); known {
			return value, found, nil
		}
		for i := len(l.pending) - 1; i >= 0; i-- {
			if value, found, known := l.pending[i].touched.find(key); known {
				return value, found, nil
			}
		}
		return get(l.db, key)
	}
}

// forgetCommitted drops the groups that the database shows by itself.
func (l *lane) forgetCommitted() {
	n := 0
	for n < len(l.pending) && l.pending[n].committed.Load() {
		n++
	}
	l.pending = append(l.pending[:0], l.pending[n:]...)
}

// flushDelay is how long after a deletion of records its space may wait to be
// given back by a flush. Pebble can do that by itself, but then rotates its log
// on a goroutine of its own and becomes a second committer.
const flushDelay = 5 * time.Second

// commit is the committer: persist and publish for every group until the
// builder ends.
func (l *lane) commit() {
	defer close(l.ended)
	flush := time.NewTimer(flushDelay)
	flush.Stop()
	defer flush.Stop()
	for {
		select {
		case g, ok := <-l.groups:
			if !ok {
				return
			}
			if g.settled != nil {
				close(g.settled)
				continue
			}
			l.finish(g)
			if g.freed {
				flush.Reset(flushDelay)
			}
		case <-flush.C:
			if _, err := l.db.AsyncFlush(); err != nil {
				l.fs.fail(fmt.Errorf("storage: flush: %w", err))
			}
		}
	}
}

// finish takes a group from the builder to its answer.
func (l *lane) finish(g *group) {
	if err := l.persist(g); err != nil {
		l.fs.fail(err)
		err = frozen(l.fs.failed())
		l.s.intake.refuse(err) // before anyone hears of it, so that Err knows
		l.flights.remove(g, err)
		return
	}
	l.publish(g)
}

// persist commits a group's batch. It says yes only when the file system's flag
// is down after the commit: Pebble itself reports a failed sync to its logger
// and lets the commit succeed.
func (l *lane) persist(g *group) error {
	if err := l.fs.failed(); err != nil {
		return err
	}
	if g.batch.Empty() {
		return nil
	}
	option := pebble.Sync
	if l.s.opts.inMemory() {
		option = pebble.NoSync
	}
	if err := g.batch.Commit(option); err != nil {
		return fmt.Errorf("storage: commit: %w", err)
	}
	g.committed.Store(true)
	return l.fs.failed()
}
