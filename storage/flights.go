package storage

import (
	"sync"
	"time"
)

// flights are the groups between build and publish, and the watcher over them:
// it answers requests whose group takes too long, refuses those that wait too
// long for a group, and answers everything when the store freezes. The lane
// may meanwhile be stuck in the file system for as long as it likes.
type flights struct {
	s    *Store
	wake chan struct{} // capacity 1
	stop chan struct{}
	done chan struct{}

	mu     sync.Mutex
	idle   bool // the watcher waits on wake
	frozen error
	groups []*group
}

func newFlights(s *Store) *flights {
	return &flights{s: s, wake: make(chan struct{}, 1), stop: make(chan struct{}), done: make(chan struct{})}
}

// add takes a built group under watch.
func (f *flights) add(g *group) {
	f.mu.Lock()
	frozen := f.frozen
	f.groups = append(f.groups, g)
	idle := f.idle
	f.idle = false
	f.mu.Unlock()
	if frozen != nil {
		f.answer(g, frozen)
	}
	if idle {
		select {
		case f.wake <- struct{}{}:
		default: // a wake-up is pending already
		}
	}
}

// remove takes a group out and answers it, unless that was done.
func (f *flights) remove(g *group, err error) {
	f.mu.Lock()
	for i := range f.groups {
		if f.groups[i] == g {
			f.groups = append(f.groups[:i], f.groups[i+1:]...)
			break
		}
	}
	f.mu.Unlock()
	f.answer(g, err)
}

func (f *flights) count() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.groups)
}

// answer hands the group's requests to the completer, once.
func (f *flights) answer(g *group, err error) {
	if len(g.requests) > 0 && g.answered.CompareAndSwap(false, true) {
		f.s.completer.put(outcome{many: g.requests, err: err})
	}
}

// mark remembers what had come until a time.
type mark struct {
	at    time.Time
	until int64
}

// run is the watcher. It ticks only while something is in flight, so that an
// idle store in a bubble does not hold up time.
func (f *flights) run(fs *fileSystem) {
	defer close(f.done)
	failure := fs.failure()
	tick := max(min(f.s.opts.WaitTime, f.s.opts.SyncTimeout)/4, time.Millisecond)
	timer := time.NewTimer(tick)
	timer.Stop()
	defer timer.Stop()
	var marks []mark
	for {
		if f.rest() {
			marks = marks[:0]
		} else {
			timer.Reset(tick)
		}
		select {
		case <-f.stop:
			return
		case <-failure:
			failure = nil
			f.freeze(frozen(fs.failed()))
		case <-f.wake:
		case now := <-timer.C:
			f.late(now)
			marks = f.expire(marks, now)
		}
	}
}

// rest says whether nothing is in flight; add then wakes the watcher.
func (f *flights) rest() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.idle = len(f.groups) == 0
	return f.idle
}

// late answers groups that take longer than SyncTimeout. They go on: what they
// write may well reach the disk.
func (f *flights) late(now time.Time) {
	f.mu.Lock()
	var late []*group
	for _, g := range f.groups {
		if now.Sub(g.built) >= f.s.opts.SyncTimeout {
			late = append(late, g)
		}
	}
	f.mu.Unlock()
	for _, g := range late {
		f.answer(g, ErrFlushTimeout)
	}
}

// expire refuses requests that the lane did not take for WaitTime. It knows
// their age by the marks made at earlier ticks, so that Submit need not look
// at the clock.
func (f *flights) expire(marks []mark, now time.Time) []mark {
	n := 0
	for n < len(marks) && now.Sub(marks[n].at) >= f.s.opts.WaitTime {
		n++
	}
	if n > 0 {
		for _, r := range f.s.intake.expire(marks[n-1].until) {
			f.s.completer.put(outcome{one: r, err: ErrBusy})
		}
		marks = append(marks[:0], marks[n:]...)
	}
	return append(marks, mark{now, f.s.intake.mark()})
}

// freeze answers everything that is in flight or waits, and what comes later.
func (f *flights) freeze(err error) {
	f.s.intake.refuse(err)
	f.mu.Lock()
	f.frozen = err
	groups := append([]*group(nil), f.groups...)
	f.mu.Unlock()
	for _, g := range groups {
		f.answer(g, err)
	}
	f.s.completer.put(outcome{many: f.s.intake.takeAll(), err: err})
	f.s.log.Error("storage: store stopped after a failed write", "error", err)
	if f.s.opts.Failed != nil {
		f.s.opts.Failed(err)
	}
}
