package storage

import (
	"errors"
	"fmt"
	"path/filepath"
	"sync"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// engine is what is open between Open and Close, or between two Reopens. Its
// owner holds the store's lifecycle token; a copy that Stats reads is made when
// everything is set.
type engine struct {
	dir     string
	raw     vfs.FS
	fs      *fileSystem
	lock    *pebble.Lock
	db      *pebble.DB // nil while nothing is open
	lane    *lane
	flights *flights
	life    int64
	shut    bool // Close was there
}

// start opens the directory and lets everything run. After an error nothing is
// left open.
func (s *Store) start(e *engine) error {
	if err := s.openFiles(e); err != nil {
		return errors.Join(err, s.closeFiles(e))
	}
	e.life++
	e.flights = newFlights(s)
	e.lane = newLane(s, e)
	if err := s.load(e); err != nil {
		return errors.Join(err, s.closeFiles(e))
	}
	s.readers.open(e.db)
	s.intake.open()
	shared := *e
	s.files.Store(&shared)
	go e.flights.run(e.fs)
	go e.lane.run()
	go e.lane.commit()
	s.index.start()
	s.timers.start()
	s.trimmer.start()
	return nil
}

// stop ends what start began. Everything that was submitted gets its answer.
func (s *Store) stop(e *engine) error {
	if e.db == nil {
		return nil
	}
	s.trimmer.stop()
	s.timers.stop()
	s.index.stop()
	s.intake.drain()
	<-e.lane.ended
	close(e.flights.stop)
	<-e.flights.done
	s.readers.close()
	err := s.closeFiles(e)
	s.intake.refuse(ErrClosed)
	for _, t := range s.Topics() {
		for _, q := range t.used() {
			q.clear()
		}
	}
	s.offsets.reset()
	s.ring.reset()
	return err
}

// openFiles locks the directory and opens what is in it.
func (s *Store) openFiles(e *engine) error {
	e.dir, e.raw = s.opts.Dir, s.opts.FS
	if s.opts.inMemory() {
		e.dir, e.raw = "memory", vfs.NewMem()
		s.log.Info("storage: no directory given, everything stays in memory", "limit", s.opts.MemoryLimit)
	}
	if err := makeDir(e.raw, e.dir); err != nil {
		return err
	}
	var err error
	if e.dir, err = realDir(e.raw, e.dir); err != nil {
		return err
	}
	if e.lock, err = pebble.LockDirectory(e.dir, e.raw); err != nil {
		return fmt.Errorf("%w: %s: %w", ErrLocked, e.dir, err)
	}
	dirty, err := isDirty(e.raw, e.dir)
	if err != nil {
		return err
	}
	if dirty {
		if err := repairWAL(e.raw, e.dir); err != nil {
			return err
		}
	}
	async := s.opts.Flush == FlushAsync && !s.opts.inMemory()
	e.fs = newFS(e.raw, fsOptions{async: async, interval: s.opts.FlushInterval, log: s.log})
	if async {
		if err := e.fs.markDirty(e.dir); err != nil {
			return err
		}
	}
	if e.db, err = openPebble(e.dir, s.opts, e.fs, e.lock); err != nil {
		e.db = nil
		return fmt.Errorf("storage: opening %s: %w", e.dir, err)
	}
	if err := e.fs.failed(); err != nil {
		return frozen(err)
	}
	return nil
}

// realDir resolves links, so that one directory has one name and the lock is
// seen by a second store of the same process too.
func realDir(fs vfs.FS, dir string) (string, error) {
	if fs != vfs.Default {
		return dir, nil
	}
	dir, err := filepath.EvalSymlinks(dir)
	if err == nil {
		dir, err = filepath.Abs(dir)
	}
	if err != nil {
		return "", fmt.Errorf("storage: resolving the directory: %w", err)
	}
	return dir, nil
}

// closeFiles closes what is open, in whatever state openFiles left it.
func (s *Store) closeFiles(e *engine) error {
	var faults []error
	if e.db != nil {
		faults = append(faults, e.db.Close())
		e.db = nil
	}
	if e.fs != nil {
		faults = append(faults, e.fs.close())
		if e.fs.failed() == nil && errors.Join(faults...) == nil {
			faults = append(faults, e.fs.clean(e.dir))
		}
		e.fs = nil
	}
	if e.lock != nil {
		faults = append(faults, e.lock.Close())
		e.lock = nil
	}
	if err := errors.Join(faults...); err != nil {
		return fmt.Errorf("storage: closing %s: %w", e.dir, err)
	}
	return nil
}

// load reads what must be known before the lane runs.
func (s *Store) load(e *engine) error {
	if err := s.loadLayout(e); err != nil {
		return err
	}
	if err := s.topics.load(e.db); err != nil {
		return err
	}
	if err := s.timers.load(e.db); err != nil {
		return err
	}
	if err := e.lane.load(); err != nil {
		return err
	}
	s.logStart.Store(e.lane.logStart)
	s.logEnd.Store(e.lane.position)
	return nil
}

// layoutVersion is the version of the key space; it changes when an older
// program would misread the store.
const layoutVersion = 1

// loadLayout checks the version of the key space and takes over the segment
// size, or writes both into a new store.
func (s *Store) loadLayout(e *engine) error {
	key := []byte{kindLayout}
	value, found, err := get(e.db, key)
	if err != nil {
		return err
	}
	if !found {
		value = be.AppendUint64(be.AppendUint32(nil, layoutVersion), uint64(s.opts.SegmentBytes))
		// The lane does not run yet, so this is the only commit.
		if err := e.db.Set(key, value, pebble.Sync); err != nil && !s.opts.inMemory() {
			return fmt.Errorf("storage: writing the layout: %w", err)
		}
		if err := e.fs.failed(); err != nil {
			return frozen(err)
		}
	}
	if len(value) != 12 || be.Uint64(value[4:]) == 0 {
		return corrupt("layout", key)
	}
	if v := be.Uint32(value); v != layoutVersion {
		return fmt.Errorf("storage: %s has layout %d, this program knows %d", e.dir, v, layoutVersion)
	}
	if bytes := int64(be.Uint64(value[4:])); bytes != s.segmentBytes {
		s.segmentBytes = bytes
	}
	return nil
}

// readers are those who read the database outside the lane. Close waits for
// them: Pebble panics when it is read after its end.
type readers struct {
	mu   sync.Mutex
	db   *pebble.DB
	n    int
	idle chan struct{} // closed by the last reader when Close waits
}

func (r *readers) open(db *pebble.DB) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.db, r.idle = db, nil
}

func (r *readers) leave() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.n--
	if r.n == 0 && r.idle != nil {
		close(r.idle)
	}
}

func (r *readers) close() {
	r.mu.Lock()
	r.db = nil
	var idle chan struct{}
	if r.n > 0 {
		idle = make(chan struct{})
		r.idle = idle
	}
	r.mu.Unlock()
	if idle != nil {
		<-idle
	}
}

// read gives access to the database until release is called.
func (s *Store) read() (db *pebble.DB, release func(), err error) {
	r := &s.readers
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.db == nil {
		return nil, nil, ErrClosed
	}
	r.n++
	return r.db, r.leave, nil
}

// probeBytes is what a disk must take before a frozen store is given up for it.
const probeBytes = 64 << 10

// probe says whether the directory's disk takes a small file.
func probe(fs vfs.FS, dir string) error {
	name := fs.PathJoin(dir, "probe")
	f, err := fs.Create(name, vfs.WriteCategoryUnspecified)
	if err != nil {
		return fmt.Errorf("storage: the disk still fails: %w", err)
	}
	_, err = f.Write(make([]byte, probeBytes))
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close(), fs.Remove(name)); err != nil {
		return fmt.Errorf("storage: the disk still fails: %w", err)
	}
	return nil
}
