package storage

import (
	"errors"
	"io"
	"os"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// errSinkFull is what a read of a file finds that was written after the freeze and did not fit into memory.
var errSinkFull = errors.New("storage: written after the disk failed and not kept: open the store again")

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

// openSunk opens a file for reading that was being written at the freeze or later.
func (f *writeFile) openSunk(opts ...vfs.OpenOption) (vfs.File, error) {
	if f.inner == nil {
		return &sunkReader{f: f}, nil
	}
	disk, err := f.fs.inner.Open(f.name, opts...)
	if err != nil {
		return nil, err
	}
	return &sunkReader{File: disk, f: f}, nil
}

// sunkReader reads a file whose end, or whose whole, exists only in memory.
type sunkReader struct {
	vfs.File // the part on the disk; nil when there is none
	f        *writeFile
	pos      int64
}

// Read implements io.Reader.
func (r *sunkReader) Read(p []byte) (int, error) {
	n, err := r.ReadAt(p, r.pos)
	r.pos += int64(n)
	if n > 0 && err == io.EOF {
		err = nil
	}
	return n, err
}

// ReadAt implements io.ReaderAt.
func (r *sunkReader) ReadAt(p []byte, off int64) (int, error) {
	r.f.mu.Lock()
	base, tail, extra := r.f.size, r.f.tail, r.f.extra
	r.f.mu.Unlock()
	n := 0
	if off < base && len(p) > 0 {
		var err error
		n, err = r.File.ReadAt(p[:min(int64(len(p)), base-off)], off)
		if err != nil && !(err == io.EOF && off+int64(n) == base) {
			return n, err
		}
	}
	if n < len(p) && off+int64(n) >= base {
		if at := off + int64(n) - base; at < int64(len(tail)) {
			n += copy(p[n:], tail[at:])
		}
	}
	switch {
	case n == len(p):
		return n, nil
	case extra > 0:
		return n, errSinkFull
	}
	return n, io.EOF
}

// Write implements io.Writer and refuses.
func (r *sunkReader) Write([]byte) (int, error) { return 0, os.ErrPermission }

// WriteAt implements io.WriterAt and refuses.
func (r *sunkReader) WriteAt([]byte, int64) (int, error) { return 0, os.ErrPermission }

// Close implements io.Closer.
func (r *sunkReader) Close() error {
	if r.File == nil {
		return nil
	}
	return r.File.Close()
}

// Stat implements vfs.File.
func (r *sunkReader) Stat() (vfs.FileInfo, error) { return r.f.Stat() }

// Sync implements vfs.File.
func (r *sunkReader) Sync() error { return nil }

// SyncData implements vfs.File.
func (r *sunkReader) SyncData() error { return nil }

// SyncTo implements vfs.File.
func (r *sunkReader) SyncTo(int64) (bool, error) { return false, nil }

// Preallocate implements vfs.File.
func (r *sunkReader) Preallocate(_, _ int64) error { return nil }

// Prefetch implements vfs.File. The part on the disk may be shorter than asked for, so nothing is fetched ahead.
func (r *sunkReader) Prefetch(_, _ int64) error { return nil }

// Fd implements vfs.File. No descriptor holds the whole file.
func (r *sunkReader) Fd() uintptr { return vfs.InvalidFd }

// sunkInfo describes a file that is partly in memory.
type sunkInfo struct {
	name string
	size int64
}

func (i sunkInfo) Name() string           { return i.name }
func (i sunkInfo) Size() int64            { return i.size }
func (i sunkInfo) Mode() os.FileMode      { return 0o644 }
func (i sunkInfo) ModTime() time.Time     { return time.Time{} }
func (i sunkInfo) IsDir() bool            { return false }
func (i sunkInfo) Sys() any               { return nil }
func (i sunkInfo) DeviceID() vfs.DeviceID { return vfs.DeviceID{} }

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
