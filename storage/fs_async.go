package storage

import (
	"sync"
	"sync/atomic"
	"time"
)

// asyncFlusher syncs write-ahead logs in the background: each log at the latest interval after the first byte written
// since its last sync. Its timer runs only while a log is dirty, so an idle store costs nothing.
type asyncFlusher struct {
	interval time.Duration
	wake     chan struct{} // a log became dirty
	stopping chan struct{}
	stopped  chan struct{}
	once     sync.Once

	mu    sync.Mutex
	dirty []*logFile
}

// newAsyncFlusher starts the flusher's goroutine, which ends with close.
func newAsyncFlusher(interval time.Duration) *asyncFlusher {
	a := &asyncFlusher{
		interval: interval,
		wake:     make(chan struct{}, 1),
		stopping: make(chan struct{}),
		stopped:  make(chan struct{}),
	}
	go a.run()
	return a
}

func (a *asyncFlusher) run() {
	defer close(a.stopped)
	timer := time.NewTimer(a.interval)
	timer.Stop()
	defer timer.Stop()
	for {
		select {
		case <-a.wake:
			timer.Reset(a.interval)
		case <-timer.C:
			for _, l := range a.take() {
				l.flush()
			}
		case <-a.stopping:
			return
		}
	}
}

// add notes a dirty log and arms the timer with the first of them.
func (a *asyncFlusher) add(l *logFile) {
	a.mu.Lock()
	a.dirty = append(a.dirty, l)
	first := len(a.dirty) == 1
	a.mu.Unlock()
	if !first {
		return
	}
	select {
	case a.wake <- struct{}{}:
	default:
	}
}

func (a *asyncFlusher) take() []*logFile {
	a.mu.Lock()
	defer a.mu.Unlock()
	dirty := a.dirty
	a.dirty = nil
	return dirty
}

func (a *asyncFlusher) close() {
	a.once.Do(func() { close(a.stopping) })
	<-a.stopped
}

// logFile is what a write-ahead log needs in async mode.
type logFile struct {
	file  *writeFile
	dirty atomic.Bool
	// gate holds one token, taken by whoever syncs or closes: the file must not be closed under a sync. A channel and
	// not a mutex, since the holder does I/O.
	gate   chan struct{}
	closed bool // guarded by gate
}

func newLogFile(f *writeFile) *logFile {
	return &logFile{file: f, gate: make(chan struct{}, 1)}
}

// written is called before bytes are written, so that no byte can be missed by the sync it arms.
func (l *logFile) written() {
	if !l.dirty.Load() && !l.dirty.Swap(true) {
		l.file.fs.async.add(l)
	}
}

// flush syncs for real; an error freezes the file system.
func (l *logFile) flush() {
	l.gate <- struct{}{}
	defer func() { <-l.gate }()
	if !l.closed {
		l.sync()
	}
}

// close syncs for the last time and lets no further sync touch the file.
func (l *logFile) close() {
	l.gate <- struct{}{}
	defer func() { <-l.gate }()
	l.closed = true
	l.sync()
}

func (l *logFile) sync() {
	fs := l.file.fs
	if fs.frozen() || !l.dirty.Swap(false) {
		return
	}
	start := time.Now()
	if err := l.file.inner.SyncData(); err != nil {
		fs.failOp("sync", l.file.name, err)
		return
	}
	fs.meter.synced(time.Since(start))
}
