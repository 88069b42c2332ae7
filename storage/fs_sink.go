package storage

import (
	"errors"
	"io"
	"os"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// errSinkFull is what a read of a file finds that was written after the freeze and did not fit into memory.
var errSinkFull = errors.New("storage: written after the disk failed and not kept: open the store again")

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
