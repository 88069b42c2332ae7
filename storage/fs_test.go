package storage

import (
	"bytes"
	"errors"
	"io"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// diskFull is what a full disk answers.
var diskFull = &os.PathError{Op: "write", Path: "x", Err: syscall.ENOSPC}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func must1[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		must(t, err)
		return v
	}
}

func createFile(t *testing.T, fs vfs.FS, name string) vfs.File {
	t.Helper()
	return must1(fs.Create(name, vfs.WriteCategoryUnspecified))(t)
}

func readFile(t *testing.T, fs vfs.FS, name string) string {
	t.Helper()
	f := must1(fs.Open(name))(t)
	b := must1(io.ReadAll(f))(t)
	must(t, f.Close())
	return string(b)
}

// everyWrite does each kind of write-side operation once; f and dir were opened before.
func everyWrite(fs vfs.FS, f, dir vfs.File) map[string]func() error {
	discard := func(f io.Closer, err error) error {
		if err == nil {
			err = f.Close()
		}
		return err
	}
	return map[string]func() error{
		"create": func() error { f, err := fs.Create("new", vfs.WriteCategoryUnspecified); return discard(f, err) },
		"reuse": func() error {
			f, err := fs.ReuseForWrite("a", "b", vfs.WriteCategoryUnspecified)
			return discard(f, err)
		},
		"open":    func() error { f, err := fs.OpenReadWrite("c", vfs.WriteCategoryUnspecified); return discard(f, err) },
		"link":    func() error { return fs.Link("d", "e") },
		"remove":  func() error { return fs.Remove("f") },
		"rename":  func() error { return fs.Rename("g", "h") },
		"mkdir":   func() error { return fs.MkdirAll("i", 0o755) },
		"write":   func() error { _, err := f.Write([]byte("more")); return err },
		"sync":    f.Sync,
		"syncdir": dir.Sync,
		"close":   f.Close,
	}
}

func smallDisk(t *testing.T) *faultFS {
	t.Helper()
	disk := newFaultFS(vfs.NewMem())
	for _, name := range []string{"a", "c", "d", "f", "g"} {
		f := createFile(t, disk, name)
		must1(f.Write([]byte(name)))(t)
		must(t, f.Close())
	}
	return disk
}

func TestFirstFailedWriteFreezesAndSaysYes(t *testing.T) {
	for kind := range everyWrite(newFaultFS(vfs.NewMem()), &faultFile{}, &faultFile{}) {
		t.Run(kind, func(t *testing.T) {
			disk := smallDisk(t)
			fs := newFS(disk, fsOptions{})
			f, dir := createFile(t, fs, "open"), must1(fs.OpenDir(""))(t)
			disk.onOp(func(op diskOp) error {
				if op.kind == kind {
					return diskFull
				}
				return nil
			})
			if err := everyWrite(fs, f, dir)[kind](); err != nil {
				t.Errorf("the failed operation told Pebble: %v", err)
			}
			if err := fs.failed(); !isDiskFull(err) || !strings.HasPrefix(err.Error(), "storage: ") {
				t.Fatalf("reason = %v, want the disk's own error", err)
			}
			<-fs.failure()
			if err := fs.close(); !errors.Is(err, syscall.ENOSPC) {
				t.Errorf("close = %v", err)
			}
		})
	}
}

func TestFrozenFileSystemLeavesTheDiskAsItWas(t *testing.T) {
	mem := vfs.NewMem()
	disk := newFaultFS(mem)
	for _, name := range []string{"a", "c", "d", "f", "g"} {
		must(t, createFile(t, disk, name).Close())
	}
	fs := newFS(disk, fsOptions{})
	f, dir := createFile(t, fs, "open"), must1(fs.OpenDir(""))(t)
	before := mem.String()
	fs.fail(errInjected)
	fs.fail(diskFull) // the first reason stays
	disk.onOp(func(op diskOp) error {
		if op.kind != "close" {
			t.Errorf("%s %s reached the disk", op.kind, op.name)
		}
		return nil
	})
	for kind, do := range everyWrite(fs, f, dir) {
		if err := do(); err != nil {
			t.Errorf("%s: %v", kind, err)
		}
	}
	must(t, fs.RemoveAll("a"))
	if after := mem.String(); after != before {
		t.Errorf("the disk changed from\n%s to\n%s", before, after)
	}
	if err := fs.failed(); !errors.Is(err, errInjected) {
		t.Errorf("reason = %v, want the first one", err)
	}
}

// A marker on the disk without the manifest it names would keep a store from opening.
func TestMarkerReachesTheDiskAfterWhatItNames(t *testing.T) {
	mem := vfs.NewCrashableMem()
	fs := newFS(mem, fsOptions{})
	f := createFile(t, fs, "MANIFEST-000001")
	must(t, f.Sync())
	must(t, f.Close())
	must(t, createFile(t, fs, "marker.manifest.000001.MANIFEST-000001").Close())
	if _, err := mem.CrashClone(vfs.CrashCloneCfg{}).Stat("MANIFEST-000001"); err != nil {
		t.Errorf("the manifest could be lost when the marker is written: %v", err)
	}
}

func TestRefusalsThatAreAnswersDoNotFreeze(t *testing.T) {
	fs := newFS(smallDisk(t), fsOptions{})
	if err := fs.Remove("missing"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("remove = %v", err)
	}
	if err := fs.Link("a", "c"); !errors.Is(err, os.ErrExist) {
		t.Errorf("link = %v", err)
	}
	if _, err := fs.Open("missing"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("open = %v", err)
	}
	lock := must1(fs.Lock("LOCK"))(t)
	if _, err := fs.Lock("LOCK"); err == nil {
		t.Error("locked twice")
	}
	must(t, lock.Close())
	if err := fs.failed(); err != nil {
		t.Errorf("frozen by %v", err)
	}
}

func TestFileWrittenAcrossTheFreezeReadsWhole(t *testing.T) {
	disk := newFaultFS(vfs.NewMem())
	fs := newFS(disk, fsOptions{})
	f := createFile(t, fs, "000007.sst")
	must1(f.Write([]byte("on the disk, ")))(t)
	disk.onOp(failAt(1, false, errInjected))
	must1(f.Write([]byte("half of this, ")))(t)
	must1(f.Write([]byte("none of this")))(t)
	must(t, f.Close())
	const whole = "on the disk, half of this, none of this"
	if got := readFile(t, fs, "000007.sst"); got != whole {
		t.Errorf("read %q, want %q", got, whole)
	}
	r := must1(fs.Open("000007.sst"))(t)
	b := make([]byte, 10)
	must1(r.ReadAt(b, 8))(t)
	if string(b) != whole[8:18] {
		t.Errorf("across the seam: %q, want %q", b, whole[8:18])
	}
	if n, err := r.ReadAt(b, int64(len(whole))-3); n != 3 || err != io.EOF {
		t.Errorf("at the end: %d, %v", n, err)
	}
	if info := must1(fs.Stat("000007.sst"))(t); info.Size() != int64(len(whole)) {
		t.Errorf("size %d, want %d", info.Size(), len(whole))
	}
	must(t, r.Close())
	must(t, fs.Rename("000007.sst", "000008.sst"))
	if got := readFile(t, fs, "000008.sst"); got != whole {
		t.Errorf("renamed: %q", got)
	}
	must(t, fs.Remove("000008.sst"))
	if n := fs.sunk.Load(); n != 0 {
		t.Errorf("%d bytes still counted after the file was removed", n)
	}
}

func TestSunkFilesAreBounded(t *testing.T) {
	fs := newFS(vfs.NewMem(), fsOptions{})
	fs.sunkGate = 100
	fs.fail(errInjected)
	f := createFile(t, fs, "000009.sst")
	for range 20 {
		must1(f.Write(bytes.Repeat([]byte("x"), 10)))(t)
	}
	r := must1(fs.Open("000009.sst"))(t)
	if n, err := io.ReadFull(r, make([]byte, 200)); n != 100 || !errors.Is(err, errSinkFull) {
		t.Errorf("read %d bytes, %v", n, err)
	}
	log := createFile(t, fs, "000010.log")
	must1(log.Write(make([]byte, 50)))(t)
	if n := len(log.(*writeFile).tail); n != 0 {
		t.Errorf("%d bytes of a log kept", n)
	}
}

// survivors is what a power loss leaves of a file when nothing unsynced reaches the disk.
func survivors(t *testing.T, mem *vfs.MemFS, name string) string {
	t.Helper()
	return readFile(t, mem.CrashClone(vfs.CrashCloneCfg{}), name)
}

func openLog(t *testing.T, mem *vfs.MemFS, fs vfs.FS, name string) vfs.File {
	t.Helper()
	f := createFile(t, fs, name)
	must(t, syncDir(mem, ""))
	return f
}

// Durability, sync mode, power loss: a sync that returned has reached the disk.
func TestSyncModeSyncsTheLogBeforeItAnswers(t *testing.T) {
	mem := vfs.NewCrashableMem()
	fs := newFS(mem, fsOptions{})
	f := openLog(t, mem, fs, "000001.log")
	must1(f.Write([]byte("record")))(t)
	must(t, f.Sync())
	if got := survivors(t, mem, "000001.log"); got != "record" {
		t.Errorf("a power loss left %q", got)
	}
}

// Durability, async mode, power loss: at most the flush interval is lost.
func TestAsyncModeSyncsTheLogWithinTheInterval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := vfs.NewCrashableMem()
		disk := newFaultFS(mem)
		var syncs atomic.Int64
		disk.onOp(func(op diskOp) error {
			if op.kind == "sync" {
				syncs.Add(1)
			}
			return nil
		})
		fs := newFS(disk, fsOptions{async: true, interval: 500 * time.Millisecond})
		f := openLog(t, mem, fs, "000001.log")
		for range 10 {
			must1(f.Write([]byte("x")))(t)
			must(t, f.Sync())
			must(t, f.(*writeFile).SyncData())
			must1(f.SyncTo(1))(t)
		}
		if got := survivors(t, mem, "000001.log"); got != "" || syncs.Load() != 0 {
			t.Errorf("%q synced, %d syncs before the interval", got, syncs.Load())
		}
		time.Sleep(500 * time.Millisecond)
		synctest.Wait()
		if got := survivors(t, mem, "000001.log"); got != "xxxxxxxxxx" || syncs.Load() != 1 {
			t.Errorf("%q synced, %d syncs after the interval", got, syncs.Load())
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		if syncs.Load() != 1 {
			t.Errorf("%d syncs of a log nobody writes to", syncs.Load())
		}
		table := openLog(t, mem, fs, "000002.sst")
		must1(table.Write([]byte("table")))(t)
		must(t, table.Sync())
		if got := survivors(t, mem, "000002.sst"); got != "table" {
			t.Errorf("a table is not a log, yet %q is synced", got)
		}
		must1(f.Write([]byte("y")))(t)
		must(t, f.Close())
		if got := survivors(t, mem, "000001.log"); got != "xxxxxxxxxxy" {
			t.Errorf("%q synced by closing the log", got)
		}
		must(t, table.Close())
		must(t, fs.close())
		must(t, fs.close())
	})
}

func TestFailedBackgroundSyncFreezes(t *testing.T) {
	for _, when := range []string{"interval", "close"} {
		t.Run(when, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				disk := newFaultFS(vfs.NewMem())
				fs := newFS(disk, fsOptions{async: true})
				f := createFile(t, fs, "000001.log")
				must1(f.Write([]byte("x")))(t)
				must(t, f.Sync())
				disk.onOp(func(op diskOp) error {
					if op.kind == "sync" {
						return errInjected
					}
					return nil
				})
				if when == "close" {
					must(t, f.Close())
				}
				time.Sleep(time.Second)
				if err := fs.failed(); !errors.Is(err, errInjected) {
					t.Errorf("reason = %v", err)
				}
				if when != "close" {
					must(t, f.Close())
				}
				if err := fs.close(); !errors.Is(err, errInjected) {
					t.Errorf("close = %v", err)
				}
			})
		})
	}
}

// A log that Pebble closes while the background syncs it is closed after that sync.
func TestLogIsNotClosedUnderItsBackgroundSync(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newFaultFS(vfs.NewMem())
		fs := newFS(disk, fsOptions{async: true})
		f := createFile(t, fs, "000001.log")
		must1(f.Write([]byte("x")))(t)
		syncing, release := make(chan struct{}), make(chan struct{})
		var closedEarly bool
		disk.onOp(func(op diskOp) error {
			if op.kind == "sync" {
				close(syncing)
				<-release
			} else if op.kind == "close" {
				select {
				case <-release:
				default:
					closedEarly = true
				}
			}
			return nil
		})
		<-syncing
		closed := make(chan error)
		go func() { closed <- f.Close() }()
		synctest.Wait()
		select {
		case <-closed:
			t.Error("closed while syncing")
		default:
		}
		close(release)
		must(t, <-closed)
		if closedEarly {
			t.Error("the file was closed under its sync")
		}
		must(t, fs.close())
	})
}

func TestFileSystemCountsWhatReachedTheDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newFaultFS(vfs.NewMem())
		disk.onOp(func(op diskOp) error {
			if op.kind == "sync" {
				time.Sleep(3 * time.Millisecond)
			}
			return nil
		})
		fs := newFS(disk, fsOptions{})
		for name, n := range map[string]int{"000001.log": 100, "000002.sst": 20, "000003.blob": 3, "MANIFEST-000004": 1} {
			f := createFile(t, fs, name)
			must1(f.Write(make([]byte, n)))(t)
			must(t, f.Sync())
			must(t, f.Close())
		}
		c := fs.counters()
		if c.Bytes != 124 || c.WALBytes != 100 || c.Syncs != 4 || c.SyncTime != 12*time.Millisecond || c.MaxSync != 3*time.Millisecond {
			t.Errorf("counters = %+v", c)
		}
		if c.SyncHistogram[12] != 4 { // 2048 µs to 4096 µs
			t.Errorf("histogram = %v", c.SyncHistogram)
		}
		s := must1(fs.sizes(""))(t)
		if s != (dirSizes{Logs: 100, Tables: 20, Blobs: 3, Other: 1}) || s.Total() != 124 {
			t.Errorf("sizes = %+v", s)
		}
		fs.fail(errInjected)
		must1(createFile(t, fs, "000005.log").Write(make([]byte, 1000)))(t)
		if c := fs.counters(); c.Bytes != 124 {
			t.Errorf("%d bytes counted after the freeze", c.Bytes)
		}
	})
}
