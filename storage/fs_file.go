package storage

import (
	"io"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// writeFile is a file open for writing. Up to the freeze its bytes go to the disk; what comes later goes to tail.
// Pebble calls Write and Sync of one file one after the other; reads of the tail may run beside them.
type writeFile struct {
	fs    *fileSystem
	name  string   // as on the disk: a rename after the freeze does not change it
	inner vfs.File // nil when the file was created after the freeze
	wal   bool     // a write-ahead log
	log   *logFile // nil unless async mode and a write-ahead log

	mu    sync.Mutex
	size  int64  // bytes on the disk, then the offset tail begins at
	tail  []byte // what was written since the freeze
	extra int64  // how much of that was not kept
	gone  bool   // removed: tail is no longer counted
}

var _ vfs.File = (*writeFile)(nil)

func (fs *fileSystem) newWriteFile(name string, inner vfs.File) *writeFile {
	f := &writeFile{fs: fs, name: name, inner: inner, wal: isLog(name)}
	if fs.async != nil && f.wal {
		f.log = newLogFile(f)
	}
	fs.register(name, f)
	return f
}

// newSink gives a file that exists only in memory.
func (fs *fileSystem) newSink(name string) *writeFile {
	f := &writeFile{fs: fs, name: name, wal: isLog(name)}
	fs.register(name, f)
	return f
}

func (fs *fileSystem) register(name string, f *writeFile) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	fs.files[name] = f
}

// Write writes to the disk until the freeze and to memory from then on. It never fails: a write that the disk refuses
// raises the freeze, which is where the caller of the store learns of it.
func (f *writeFile) Write(p []byte) (int, error) {
	if f.inner == nil || f.fs.frozen() {
		f.sink(p)
		return len(p), nil
	}
	if f.log != nil {
		f.log.written()
	}
	n, err := f.inner.Write(p)
	if err == nil && n < len(p) {
		err = io.ErrShortWrite
	}
	f.fs.meter.wrote(n, f.wal)
	f.mu.Lock()
	f.size += int64(n)
	f.mu.Unlock()
	if err != nil {
		f.fs.failOp("write", f.name, err)
		f.sink(p[n:])
	}
	return len(p), nil
}

// WriteAt is not used by Pebble for the files of a store. After the freeze it writes nothing.
func (f *writeFile) WriteAt(p []byte, off int64) (int, error) {
	if f.inner == nil || f.fs.frozen() {
		return len(p), nil
	}
	n, err := f.inner.WriteAt(p, off)
	f.fs.meter.wrote(n, f.wal)
	if err != nil {
		f.fs.failOp("write", f.name, err)
	}
	return len(p), nil
}

// sink keeps what is written after the freeze, within the bound. Logs are never read again in the same process.
func (f *writeFile) sink(p []byte) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.wal || f.extra > 0 || f.gone || f.fs.sunk.Add(int64(len(p))) > f.fs.sunkGate {
		f.extra += int64(len(p))
		return
	}
	f.tail = append(f.tail, p...)
}

// dropped frees what a removed file takes of the bound.
func (f *writeFile) dropped() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.gone = true
	f.fs.sunk.Add(-int64(len(f.tail)))
	f.tail = nil
}

// Sync makes what was written durable, or says so and leaves it to the background in async mode.
func (f *writeFile) Sync() error { return f.sync(vfs.File.Sync) }

// SyncData is Sync without the file's metadata.
func (f *writeFile) SyncData() error { return f.sync(vfs.File.SyncData) }

func (f *writeFile) sync(do func(vfs.File) error) error {
	if f.inner == nil || f.log != nil || f.fs.frozen() {
		return nil
	}
	start := time.Now()
	err := do(f.inner)
	if err != nil {
		f.fs.failOp("sync", f.name, err)
		return nil
	}
	f.fs.meter.synced(time.Since(start))
	return nil
}

// SyncTo starts writing back a prefix. It promises nothing unless it reports a full sync.
func (f *writeFile) SyncTo(length int64) (fullSync bool, err error) {
	if f.inner == nil || f.log != nil || f.fs.frozen() {
		return false, nil
	}
	start := time.Now()
	full, err := f.inner.SyncTo(length)
	if err != nil {
		f.fs.failOp("sync", f.name, err)
		return false, nil
	}
	if full {
		f.fs.meter.synced(time.Since(start))
	}
	return full, nil
}

// Preallocate reserves room. That it cannot is only a hint missed: a full disk shows at the write.
func (f *writeFile) Preallocate(offset, length int64) error {
	if f.inner == nil || f.fs.frozen() {
		return nil
	}
	return f.inner.Preallocate(offset, length)
}

// Close closes the file on the disk. A log in async mode is synced first, so that a log is on the disk before its
// successor takes a record.
func (f *writeFile) Close() error {
	if f.inner == nil {
		return nil
	}
	if f.log != nil {
		f.log.close()
	}
	err := f.inner.Close()
	if err != nil {
		f.fs.failOp("close", f.name, err)
	}
	f.fs.mu.Lock()
	defer f.fs.mu.Unlock()
	if !f.fs.frozen() && f.fs.files[f.name] == f {
		delete(f.fs.files, f.name)
	}
	return nil
}

// Read is not offered: a file open for writing is read through a second handle.
func (f *writeFile) Read(p []byte) (int, error) {
	if f.inner == nil {
		return 0, io.EOF
	}
	return f.inner.Read(p)
}

// ReadAt reads from the disk only, see Read.
func (f *writeFile) ReadAt(p []byte, off int64) (int, error) {
	if f.inner == nil {
		return 0, io.EOF
	}
	return f.inner.ReadAt(p, off)
}

// Stat describes the file with all that was written, before the freeze and after.
func (f *writeFile) Stat() (vfs.FileInfo, error) {
	if f.inner != nil && !f.fs.frozen() {
		return f.inner.Stat()
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return sunkInfo{name: f.fs.inner.PathBase(f.name), size: f.size + int64(len(f.tail)) + f.extra}, nil
}

// Prefetch implements vfs.File.
func (f *writeFile) Prefetch(offset, length int64) error {
	if f.inner == nil || f.fs.frozen() {
		return nil
	}
	return f.inner.Prefetch(offset, length)
}

// Fd implements vfs.File.
func (f *writeFile) Fd() uintptr {
	if f.inner == nil {
		return vfs.InvalidFd
	}
	return f.inner.Fd()
}

// dirFile is a directory open for syncing.
type dirFile struct {
	vfs.File
	fs   *fileSystem
	name string
}

// Sync makes the names in the directory durable.
func (d *dirFile) Sync() error {
	if d.fs.frozen() {
		return nil
	}
	start := time.Now()
	if err := d.File.Sync(); err != nil {
		d.fs.failOp("sync directory", d.name, err)
		return nil
	}
	d.fs.meter.synced(time.Since(start))
	return nil
}

// SyncData is Sync.
func (d *dirFile) SyncData() error { return d.Sync() }
