package storage

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/cockroachdb/pebble/v2/record"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/wal"
)

// dirtyMarker is the name of a file that exists while a store may have been written in async mode and not been closed
// cleanly since. It is what permits repairWAL: without it a damaged log is an error and stays one.
const dirtyMarker = "async-dirty"

// repairTemp is where the good part of a log is copied to before it takes the log's place.
const repairTemp = "async-repair.tmp"

// isDirty reports whether the store in dir was open in async mode when its process or machine died.
func isDirty(fs vfs.FS, dir string) (bool, error) {
	_, err := fs.Stat(fs.PathJoin(dir, dirtyMarker))
	switch {
	case err == nil:
		return true, nil
	case errors.Is(err, os.ErrNotExist):
		return false, nil
	}
	return false, fmt.Errorf("storage: look for %s in %s: %w", dirtyMarker, dir, err)
}

// markDirty writes the marker and makes it durable. It is called before Pebble opens a store in async mode.
func (fs *fileSystem) markDirty(dir string) error {
	if err := fs.failed(); err != nil {
		return err
	}
	if err := writeMarker(fs.inner, dir); err != nil {
		return fmt.Errorf("storage: write %s in %s: %w", dirtyMarker, dir, err)
	}
	return nil
}

func writeMarker(fs vfs.FS, dir string) error {
	f, err := fs.Create(fs.PathJoin(dir, dirtyMarker), vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	_, err = f.Write([]byte("open in async mode: the last log may end in records that were never on the disk\n"))
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	return syncDir(fs, dir)
}

// clean removes the marker after Pebble was closed without a failure: closing a log syncs it, so nothing is torn.
func (fs *fileSystem) clean(dir string) error {
	if err := fs.failed(); err != nil {
		return err
	}
	return removeMarker(fs.inner, dir)
}

func removeMarker(fs vfs.FS, dir string) error {
	err := fs.Remove(fs.PathJoin(dir, dirtyMarker))
	if err == nil {
		err = syncDir(fs, dir)
	} else if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("storage: remove %s in %s: %w", dirtyMarker, dir, err)
	}
	return nil
}

// repairWAL makes the store in dir, which isDirty, openable after a power loss, and removes the marker. The caller
// holds the lock of the directory: another process's living log must not be cut.
//
// In async mode Pebble is told that its syncs were done, and it notes in the log how far that was. Finding less after
// a power loss it rightly calls corruption. Here it was promised to nobody, so the last log is cut after its last whole
// record. Only the last one can be torn: a log is synced for real before its successor is created. Cutting is a copy
// and a rename, so that a crash in the middle leaves the old log or the new one, and a second repair finds the same
// end. Pebble replays what is left and begins a new log.
func repairWAL(fs vfs.FS, dir string) error {
	if err := removeIfExists(fs, fs.PathJoin(dir, repairTemp)); err != nil {
		return fmt.Errorf("storage: repair the log in %s: %w", dir, err)
	}
	logs, err := wal.Scan(wal.Dir{FS: fs, Dirname: dir})
	if err != nil {
		return fmt.Errorf("storage: repair the log in %s: %w", dir, err)
	}
	if len(logs) > 0 {
		last := logs[len(logs)-1]
		_, path := last.SegmentLocation(last.NumSegments() - 1)
		if err := repairLog(fs, dir, path, uint64(last.Num)); err != nil {
			return fmt.Errorf("storage: repair the log %s: %w", path, err)
		}
	}
	return removeMarker(fs, dir)
}

func repairLog(fs vfs.FS, dir, path string, number uint64) error {
	end, whole, err := goodLength(fs, path, number)
	if err != nil {
		return err
	}
	if whole {
		return syncFile(fs, path)
	}
	temp := fs.PathJoin(dir, repairTemp)
	if err := copyPrefix(fs, path, temp, end); err != nil {
		return err
	}
	if err := fs.Rename(temp, path); err != nil {
		return err
	}
	return syncDir(fs, dir)
}

// goodLength returns where the last whole record of a log ends, and whether the log ends cleanly there.
func goodLength(fs vfs.FS, path string, number uint64) (end int64, whole bool, err error) {
	f, err := fs.Open(path, vfs.SequentialReadsOption)
	if err != nil {
		return 0, false, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	r := newLogReader(f, number)
	for {
		rec, err := r.Next()
		if err == nil {
			_, err = io.Copy(io.Discard, rec)
		}
		switch {
		case err == nil:
			end = r.Offset()
		case errors.Is(err, io.EOF):
			return end, true, nil
		case isTorn(err):
			return end, false, nil
		default:
			return 0, false, err // the disk cannot read it: that is not what a power loss looks like
		}
	}
}

// newLogReader makes Pebble's reader of log records; the number, which each record carries, tells records of this log
// from what is left of an older one in a recycled file.
func newLogReader(r io.Reader, number uint64) *record.Reader {
	return makeReader(record.NewReader, r, number)
}

// makeReader converts the number to Pebble's type for it, which has no exported name.
func makeReader[N ~uint64](make func(io.Reader, N) *record.Reader, r io.Reader, number uint64) *record.Reader {
	return make(r, N(number))
}

func isTorn(err error) bool {
	return errors.Is(err, record.ErrInvalidChunk) || errors.Is(err, record.ErrZeroedChunk) ||
		errors.Is(err, record.ErrUnexpectedEOF)
}

func copyPrefix(fs vfs.FS, from, to string, n int64) (err error) {
	src, err := fs.Open(from, vfs.SequentialReadsOption)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, src.Close()) }()
	dst, err := fs.Create(to, vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dst.Close()) }()
	if _, err := io.CopyN(dst, src, n); err != nil {
		return err
	}
	return dst.Sync()
}

// syncFile makes bytes durable that an earlier process may have left in the operating system's memory.
func syncFile(fs vfs.FS, path string) error {
	f, err := fs.OpenReadWrite(path, vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

func removeIfExists(fs vfs.FS, path string) error {
	if err := fs.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}
