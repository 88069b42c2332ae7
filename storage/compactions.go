package storage

import (
	"sync"

	"github.com/cockroachdb/pebble/v2"
)

// compactions grants Pebble's compactions as many at a time as Pebble itself allows. Pebble's own scheduler does the same and
// wakes ten times a second to look whether the number has grown; that is a needless load on an idle program, and in a synctest
// bubble it makes a day of virtual time cost a second. Here the number is looked at when a flush, a compaction's end or a new
// compaction can have changed it, which is enough: whoever waits for a grant waits because others run, and their end grants.
type compactions struct {
	db pebble.DBForCompaction

	mu      sync.Mutex
	running int
	closed  bool
	// granting is open while a goroutine calls the database, and closed when it is through; again makes it look once more.
	// The database is called without mu, since it calls the scheduler with its own lock held.
	granting chan struct{}
	again    bool
}

// Register implements pebble.CompactionScheduler.
func (c *compactions) Register(_ int, db pebble.DBForCompaction) { c.db = db }

// Unregister implements pebble.CompactionScheduler: after it the database is not called any more.
func (c *compactions) Unregister() {
	c.mu.Lock()
	c.closed = true
	granting := c.granting
	c.mu.Unlock()
	if granting != nil {
		<-granting
	}
}

// TrySchedule implements pebble.CompactionScheduler.
func (c *compactions) TrySchedule() (bool, pebble.CompactionGrantHandle) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return false, nil
	}
	if c.running >= c.db.GetAllowedWithoutPermission() {
		c.again = c.granting != nil // what counts as running may be what grant only asks for
		return false, nil
	}
	c.running++
	return true, c
}

// UpdateGetAllowedWithoutPermission implements pebble.CompactionScheduler. The database calls it with its lock held, so the
// looking is done by a goroutine that Unregister waits for.
func (c *compactions) UpdateGetAllowedWithoutPermission() {
	if c.begin() {
		go c.grant()
	}
}

// Done implements pebble.CompactionGrantHandle.
func (c *compactions) Done() {
	c.mu.Lock()
	c.running--
	c.mu.Unlock()
	if c.begin() {
		c.grant()
	}
}

// Started implements pebble.CompactionGrantHandle.
func (c *compactions) Started() {}

// MeasureCPU implements pebble.CompactionGrantHandle.
func (c *compactions) MeasureCPU(pebble.CompactionGoroutineKind) {}

// CumulativeStats implements pebble.CompactionGrantHandle.
func (c *compactions) CumulativeStats(pebble.CompactionGrantHandleStats) {}

// begin reports whether the caller is to call grant; otherwise somebody does already, or the database is closing.
func (c *compactions) begin() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return false
	}
	if c.granting != nil {
		c.again = true
		return false
	}
	c.granting = make(chan struct{})
	return true
}

// grant starts waiting compactions until the limit is reached or none waits.
func (c *compactions) grant() {
	for c.admit() {
		accepted := false
		if waits, _ := c.db.GetWaitingCompaction(); waits {
			accepted = c.db.Schedule(c)
		}
		if !accepted && c.refused() {
			return
		}
	}
}

// admit counts one more compaction as running if it may run; if not, granting is over.
func (c *compactions) admit() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.closed && c.running < c.db.GetAllowedWithoutPermission() {
		c.running++
		c.again = false
		return true
	}
	c.over()
	return false
}

// refused takes back what admit counted. Granting is over then, unless something changed since admit.
func (c *compactions) refused() (over bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.running--
	if c.again && !c.closed {
		return false
	}
	c.over()
	return true
}

// over ends granting; mu is held.
func (c *compactions) over() {
	close(c.granting)
	c.granting, c.again = nil, false
}
