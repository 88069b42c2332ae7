package storage

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// fsOptions says how a fileSystem treats the files that pass through it.
type fsOptions struct {
	// async answers syncs of write-ahead logs at once and does them in the background, at most interval later.
	async bool
	// interval is the longest time written log bytes stay unsynced in async mode; 500 ms when zero.
	interval time.Duration
	// log takes the reason of a freeze; nil discards it.
	log *slog.Logger
}

// defaultFlushInterval is the background sync interval of async mode when none is given.
const defaultFlushInterval = 500 * time.Millisecond

// fileSystem stands between Pebble and the disk. It freezes at the first failed write, takes the syncs of the
// write-ahead log off the path of an acknowledgement in async mode, and counts.
//
// The freeze: Pebble has no answer to a failed write that an embedding program can live with. A failed log sync
// reaches only its fatal logger, and if that one returns, the commit reports success for data that is not on the
// disk; a failed log rotation ends the process; some commits never return. So Pebble is never told. The first failed
// write-side operation raises a flag with the reason, and from then on this file system says yes to everything and
// does nothing: the disk stays as a crash at that instant would have left it, Pebble runs on into the void and can be
// closed, and whoever acknowledges must look at failed after each commit and before saying yes. A failure ends by
// opening the directory again with a new fileSystem. What is written after the freeze is kept in memory, up to a
// bound, so that a table flushed into the void can still be read.
//
// All methods may be called from several goroutines at a time. mu is never held across I/O.
type fileSystem struct {
	inner vfs.FS
	log   *slog.Logger
	meter fsMeter
	async *asyncFlusher // nil in sync mode

	reason   atomic.Pointer[error]
	raised   chan struct{} // closed when reason is set
	sunk     atomic.Int64  // bytes kept in memory since the freeze
	sunkGate int64         // the most that may be kept

	mu sync.Mutex
	// files holds the files open for writing; after the freeze also the closed ones, since part of them may exist
	// only in memory.
	files map[string]*writeFile
}

var _ vfs.FS = (*fileSystem)(nil)

// sinkBytes bounds the memory that files written after a freeze may take: three full memtables and a little more.
const sinkBytes = 128 << 20

// newFS wraps inner. The caller calls close after Pebble has been closed.
func newFS(inner vfs.FS, o fsOptions) *fileSystem {
	if o.log == nil {
		o.log = slog.New(slog.DiscardHandler)
	}
	fs := &fileSystem{
		inner:    inner,
		log:      o.log,
		raised:   make(chan struct{}),
		sunkGate: sinkBytes,
		files:    make(map[string]*writeFile),
	}
	if o.async {
		if o.interval <= 0 {
			o.interval = defaultFlushInterval
		}
		fs.async = newAsyncFlusher(o.interval)
	}
	return fs
}

// close ends the background flusher, waits for it and returns the reason of a freeze, if there was one. Pebble has to
// be closed before: closing a log is what syncs it for the last time.
func (fs *fileSystem) close() error {
	if fs.async != nil {
		fs.async.close()
	}
	return fs.failed()
}

// fail freezes the file system with the given reason. Only the first reason is kept.
func (fs *fileSystem) fail(err error) {
	if fs.reason.CompareAndSwap(nil, &err) {
		close(fs.raised)
		fs.log.Error("storage stopped writing", "reason", err)
	}
}

// failed returns why the file system is frozen, or nil. The error wraps the operating system's, so that a full disk
// can be told by errors.Is(err, syscall.ENOSPC), see isDiskFull.
func (fs *fileSystem) failed() error {
	if p := fs.reason.Load(); p != nil {
		return *p
	}
	return nil
}

// frozen reports whether failed would return an error.
func (fs *fileSystem) frozen() bool { return fs.reason.Load() != nil }

// failure returns a channel that is closed when the file system freezes.
func (fs *fileSystem) failure() <-chan struct{} { return fs.raised }

// failOp freezes because one operation on one file failed.
func (fs *fileSystem) failOp(op, name string, err error) {
	if fs.frozen() {
		return // keep the first reason, and spare the formatting
	}
	fs.fail(fmt.Errorf("storage: %s %s: %w", op, name, err))
}

// isDiskFull reports whether err came from a full disk or a reached quota: the failure goes away when there is room.
func isDiskFull(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}

// isLog reports whether name is a write-ahead log of Pebble's.
func isLog(name string) bool { return strings.HasSuffix(name, ".log") }

// markerPrefix begins the names of the files whose existence tells Pebble which manifest is the valid one.
const markerPrefix = "marker."

// Create implements vfs.FS. After a freeze, and when it fails itself, it gives a file that exists only in memory.
//
// Before a marker is created, the directory is synced: Pebble syncs it only afterwards, so that after a power loss the
// marker could be there without the manifest it names, and the store would not open.
func (fs *fileSystem) Create(name string, category vfs.DiskWriteCategory) (vfs.File, error) {
	if !fs.frozen() && strings.HasPrefix(fs.inner.PathBase(name), markerPrefix) {
		if err := syncDir(fs.inner, fs.inner.PathDir(name)); err != nil {
			fs.failOp("sync the directory of", name, err)
		}
	}
	if fs.frozen() {
		return fs.newSink(name), nil
	}
	inner, err := fs.inner.Create(name, category)
	if err != nil {
		fs.failOp("create", name, err)
		return fs.newSink(name), nil
	}
	return fs.newWriteFile(name, inner), nil
}

// ReuseForWrite implements vfs.FS.
func (fs *fileSystem) ReuseForWrite(oldname, newname string, category vfs.DiskWriteCategory) (vfs.File, error) {
	if fs.frozen() {
		return fs.newSink(newname), nil
	}
	inner, err := fs.inner.ReuseForWrite(oldname, newname, category)
	if err != nil {
		fs.failOp("reuse", newname, err)
		return fs.newSink(newname), nil
	}
	return fs.newWriteFile(newname, inner), nil
}

// Open implements vfs.FS. A file that was written after a freeze is read from memory, the others are not wrapped.
func (fs *fileSystem) Open(name string, opts ...vfs.OpenOption) (vfs.File, error) {
	if !fs.frozen() {
		return fs.inner.Open(name, opts...)
	}
	fs.mu.Lock()
	f := fs.files[name]
	fs.mu.Unlock()
	if f == nil {
		return fs.inner.Open(name, opts...)
	}
	return f.openSunk(opts...)
}

// OpenReadWrite implements vfs.FS.
func (fs *fileSystem) OpenReadWrite(name string, category vfs.DiskWriteCategory, opts ...vfs.OpenOption) (vfs.File, error) {
	if fs.frozen() {
		return fs.Open(name, opts...)
	}
	inner, err := fs.inner.OpenReadWrite(name, category, opts...)
	if err != nil {
		fs.failOp("open", name, err)
		return fs.newSink(name), nil
	}
	return fs.newWriteFile(name, inner), nil
}

// OpenDir implements vfs.FS; a directory is opened to be synced.
func (fs *fileSystem) OpenDir(name string) (vfs.File, error) {
	inner, err := fs.inner.OpenDir(name)
	if err != nil {
		return nil, err
	}
	return &dirFile{File: inner, fs: fs, name: name}, nil
}

// Link implements vfs.FS. That the file system cannot link at all, or that a name is taken or missing, is an answer
// and not a failure: Pebble copies instead, or reports it to whoever wanted the link.
func (fs *fileSystem) Link(oldname, newname string) error {
	if fs.frozen() {
		return nil
	}
	err := fs.inner.Link(oldname, newname)
	if err != nil && !linkAnswer(err) {
		fs.failOp("link", newname, err)
		return nil
	}
	return err
}

func linkAnswer(err error) bool {
	for _, e := range []error{
		os.ErrExist, os.ErrNotExist, os.ErrPermission, errors.ErrUnsupported, syscall.EXDEV, syscall.EMLINK,
	} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// Remove implements vfs.FS. A missing file is reported and does not freeze.
func (fs *fileSystem) Remove(name string) error {
	if fs.frozen() {
		fs.dropSunk(name)
		return nil
	}
	err := fs.inner.Remove(name)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		fs.failOp("remove", name, err)
		return nil
	}
	return err
}

// RemoveAll implements vfs.FS.
func (fs *fileSystem) RemoveAll(name string) error {
	if fs.frozen() {
		return nil
	}
	if err := fs.inner.RemoveAll(name); err != nil {
		fs.failOp("remove", name, err)
	}
	return nil
}

// Rename implements vfs.FS.
func (fs *fileSystem) Rename(oldname, newname string) error {
	if fs.frozen() {
		fs.renameSunk(oldname, newname)
		return nil
	}
	if err := fs.inner.Rename(oldname, newname); err != nil {
		fs.failOp("rename", newname, err)
		fs.renameSunk(oldname, newname)
	}
	return nil
}

// MkdirAll implements vfs.FS.
func (fs *fileSystem) MkdirAll(dir string, perm os.FileMode) error {
	if fs.frozen() {
		return nil
	}
	if err := fs.inner.MkdirAll(dir, perm); err != nil {
		fs.failOp("create directory", dir, err)
	}
	return nil
}

// Lock implements vfs.FS. A lock that is taken is an answer and not a failure.
func (fs *fileSystem) Lock(name string) (io.Closer, error) { return fs.inner.Lock(name) }

// List implements vfs.FS. It does not list files that exist only in memory.
func (fs *fileSystem) List(dir string) ([]string, error) { return fs.inner.List(dir) }

// Stat implements vfs.FS.
func (fs *fileSystem) Stat(name string) (vfs.FileInfo, error) {
	if fs.frozen() {
		fs.mu.Lock()
		f := fs.files[name]
		fs.mu.Unlock()
		if f != nil {
			return f.Stat()
		}
	}
	return fs.inner.Stat(name)
}

// PathBase implements vfs.FS.
func (fs *fileSystem) PathBase(path string) string { return fs.inner.PathBase(path) }

// PathJoin implements vfs.FS.
func (fs *fileSystem) PathJoin(elem ...string) string { return fs.inner.PathJoin(elem...) }

// PathDir implements vfs.FS.
func (fs *fileSystem) PathDir(path string) string { return fs.inner.PathDir(path) }

// GetDiskUsage implements vfs.FS.
func (fs *fileSystem) GetDiskUsage(path string) (vfs.DiskUsage, error) {
	return fs.inner.GetDiskUsage(path)
}

// Unwrap implements vfs.FS.
func (fs *fileSystem) Unwrap() vfs.FS { return fs.inner }

// dropSunk forgets a file that exists only in memory, so that its bytes are freed once its readers are done.
func (fs *fileSystem) dropSunk(name string) {
	fs.mu.Lock()
	f := fs.files[name]
	delete(fs.files, name)
	fs.mu.Unlock()
	if f != nil {
		f.dropped()
	}
}

func (fs *fileSystem) renameSunk(oldname, newname string) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if f := fs.files[oldname]; f != nil {
		delete(fs.files, oldname)
		fs.files[newname] = f
	}
}
