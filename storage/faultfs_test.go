package storage

import (
	"errors"
	"os"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// errInjected is the error of a faulty disk in these tests.
var errInjected = errors.New("injected disk error")

// diskOp is one write-side operation that is about to reach the disk.
type diskOp struct {
	kind string // "create", "reuse", "open", "link", "remove", "rename", "mkdir", "write", "sync", "syncdir", "close"
	name string
	size int // of a write
}

// faultFS is a disk whose write-side operations ask a hook first. What the hook returns is what the operation fails
// with; a hook that blocks stalls it. The hook can be changed at any time.
type faultFS struct {
	vfs.FS
	hook atomic.Pointer[func(diskOp) error]
	// serial makes the operations, hook included, come one at a time.
	serial bool
	one    sync.Mutex
}

func newFaultFS(inner vfs.FS) *faultFS { return &faultFS{FS: inner} }

// onOp sets the hook; nil makes the disk healthy.
func (fs *faultFS) onOp(hook func(diskOp) error) {
	if hook == nil {
		fs.hook.Store(nil)
		return
	}
	fs.hook.Store(&hook)
}

// turn waits for the operation's turn on a serial disk and returns what ends it.
func (fs *faultFS) turn() func() {
	if !fs.serial {
		return func() {}
	}
	fs.one.Lock()
	return fs.one.Unlock
}

func (fs *faultFS) ask(kind, name string, size int) error {
	if hook := fs.hook.Load(); hook != nil {
		return (*hook)(diskOp{kind: kind, name: fs.PathBase(name), size: size})
	}
	return nil
}

func (fs *faultFS) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	defer fs.turn()()
	if err := fs.ask("create", name, 0); err != nil {
		return nil, err
	}
	f, err := fs.FS.Create(name, c)
	return fs.wrap(f, name, err)
}

func (fs *faultFS) ReuseForWrite(from, to string, c vfs.DiskWriteCategory) (vfs.File, error) {
	defer fs.turn()()
	if err := fs.ask("reuse", to, 0); err != nil {
		return nil, err
	}
	f, err := fs.FS.ReuseForWrite(from, to, c)
	return fs.wrap(f, to, err)
}

func (fs *faultFS) OpenReadWrite(name string, c vfs.DiskWriteCategory, opts ...vfs.OpenOption) (vfs.File, error) {
	defer fs.turn()()
	if err := fs.ask("open", name, 0); err != nil {
		return nil, err
	}
	f, err := fs.FS.OpenReadWrite(name, c, opts...)
	return fs.wrap(f, name, err)
}

func (fs *faultFS) OpenDir(name string) (vfs.File, error) {
	f, err := fs.FS.OpenDir(name)
	if err != nil {
		return nil, err
	}
	return &faultFile{File: f, fs: fs, name: name, dir: true}, nil
}

func (fs *faultFS) Link(from, to string) error {
	defer fs.turn()()
	if err := fs.ask("link", to, 0); err != nil {
		return err
	}
	return fs.FS.Link(from, to)
}

func (fs *faultFS) Remove(name string) error {
	defer fs.turn()()
	if err := fs.ask("remove", name, 0); err != nil {
		return err
	}
	return fs.FS.Remove(name)
}

func (fs *faultFS) RemoveAll(name string) error {
	defer fs.turn()()
	if err := fs.ask("remove", name, 0); err != nil {
		return err
	}
	return fs.FS.RemoveAll(name)
}

func (fs *faultFS) Rename(from, to string) error {
	defer fs.turn()()
	if err := fs.ask("rename", to, 0); err != nil {
		return err
	}
	return fs.FS.Rename(from, to)
}

func (fs *faultFS) MkdirAll(dir string, perm os.FileMode) error {
	defer fs.turn()()
	if err := fs.ask("mkdir", dir, 0); err != nil {
		return err
	}
	return fs.FS.MkdirAll(dir, perm)
}

func (fs *faultFS) Unwrap() vfs.FS { return fs.FS }

func (fs *faultFS) wrap(f vfs.File, name string, err error) (vfs.File, error) {
	if err != nil {
		return nil, err
	}
	return &faultFile{File: f, fs: fs, name: name}, nil
}

type faultFile struct {
	vfs.File
	fs   *faultFS
	name string
	dir  bool
}

// Write of a failing disk takes half of the bytes: a torn write is the harder case.
func (f *faultFile) Write(p []byte) (int, error) {
	defer f.fs.turn()()
	if err := f.fs.ask("write", f.name, len(p)); err != nil {
		n, _ := f.File.Write(p[:len(p)/2])
		return n, err
	}
	return f.File.Write(p)
}

func (f *faultFile) Sync() error {
	kind := "sync"
	if f.dir {
		kind = "syncdir"
	}
	defer f.fs.turn()()
	if err := f.fs.ask(kind, f.name, 0); err != nil {
		return err
	}
	return f.File.Sync()
}

func (f *faultFile) SyncData() error {
	defer f.fs.turn()()
	if err := f.fs.ask("sync", f.name, 0); err != nil {
		return err
	}
	return f.File.SyncData()
}

func (f *faultFile) SyncTo(n int64) (bool, error) {
	defer f.fs.turn()()
	if err := f.fs.ask("sync", f.name, 0); err != nil {
		return false, err
	}
	return f.File.SyncTo(n)
}

func (f *faultFile) Close() error {
	if f.dir {
		return f.File.Close()
	}
	defer f.fs.turn()()
	err := f.fs.ask("close", f.name, 0)
	return errors.Join(err, f.File.Close())
}

// failAt returns a hook that fails the n-th operation (from 1), or all from the n-th on.
func failAt(n int64, onwards bool, err error) func(diskOp) error {
	var count atomic.Int64
	return func(diskOp) error {
		if c := count.Add(1); c == n || onwards && c > n {
			return err
		}
		return nil
	}
}

// room is a hook that refuses writes and new files once limit bytes were written. The limit can be raised.
type room struct {
	mu          sync.Mutex
	used, limit int64
}

func (r *room) op(op diskOp) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if op.kind == "write" {
		if r.used+int64(op.size) > r.limit {
			return &os.PathError{Op: "write", Path: op.name, Err: syscall.ENOSPC}
		}
		r.used += int64(op.size)
	}
	return nil
}

func (r *room) setLimit(n int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.limit = n
}
