package storage

import (
	"runtime"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/cockroachdb/pebble/v2"
)

// compactingDB has work waiting and runs what it is granted until told to end it.
type compactingDB struct {
	mu      sync.Mutex
	allowed int
	waiting int
	running []pebble.CompactionGrantHandle
}

func (d *compactingDB) GetAllowedWithoutPermission() int { return d.allowed }

func (d *compactingDB) GetWaitingCompaction() (bool, pebble.WaitingCompaction) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.waiting > 0, pebble.WaitingCompaction{}
}

func (d *compactingDB) Schedule(h pebble.CompactionGrantHandle) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.waiting == 0 {
		return false
	}
	d.waiting--
	d.running = append(d.running, h)
	return true
}

// ask does what the database does with new work.
func (d *compactingDB) ask(c *compactions) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if ok, h := c.TrySchedule(); ok {
		d.running = append(d.running, h)
	} else {
		d.waiting++
	}
}

func (d *compactingDB) expect(t *testing.T, running, waiting int) {
	t.Helper()
	synctest.Wait()
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.running) != running || d.waiting != waiting {
		t.Fatalf("%d compactions run and %d wait, want %d and %d", len(d.running), d.waiting, running, waiting)
	}
}

// end ends a compaction and reports whether one ran.
func (d *compactingDB) end() bool {
	d.mu.Lock()
	if len(d.running) == 0 {
		d.mu.Unlock()
		return false
	}
	h := d.running[0]
	d.running = d.running[1:]
	d.mu.Unlock()
	h.Done()
	return true
}

func TestCompactionsRunUpToTheLimitAndFollowEachOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := &compactingDB{allowed: 2}
		c := &compactions{}
		c.Register(2, db)
		for range 5 {
			db.ask(c)
		}
		db.expect(t, 2, 3)
		db.end()
		db.expect(t, 2, 2)
		// A flush raised the limit; the database tells with its lock held.
		db.mu.Lock()
		db.allowed = 3
		c.UpdateGetAllowedWithoutPermission()
		db.mu.Unlock()
		db.expect(t, 3, 1)
		for range 4 {
			db.end()
		}
		db.expect(t, 0, 0)
		db.ask(c)
		db.expect(t, 1, 0)
		c.Unregister()
		db.ask(c)
		db.end()
		db.expect(t, 0, 1)
	})
}

func TestNoCompactionIsForgottenWhenAllAskAtOnce(t *testing.T) {
	db := &compactingDB{allowed: 2}
	c := &compactions{}
	c.Register(2, db)
	var asking sync.WaitGroup
	for range 8 {
		asking.Go(func() {
			for range 2000 {
				db.ask(c)
				c.UpdateGetAllowedWithoutPermission()
				for db.end() {
				}
			}
		})
	}
	asking.Wait()
	for c.busy() || db.end() {
		runtime.Gosched()
	}
	c.Unregister()
	if len(db.running) > 0 || db.waiting > 0 {
		t.Errorf("%d compactions run and %d wait at the end", len(db.running), db.waiting)
	}
}

// busy reports whether a goroutine grants at the moment.
func (c *compactions) busy() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.granting != nil
}
