package storage

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// quietLogger keeps Pebble from printing, and from ending the process.
type quietLogger struct{ fatal func(error) }

func (quietLogger) Infof(string, ...any)  {}
func (quietLogger) Errorf(string, ...any) {}
func (l quietLogger) Fatalf(format string, args ...any) {
	if l.fatal != nil {
		l.fatal(fmt.Errorf(format, args...))
	}
}

func barePebble(fs vfs.FS) (*pebble.DB, error) {
	return pebble.Open("db", &pebble.Options{
		FS: fs, Logger: quietLogger{}, FormatMajorVersion: pebble.FormatNewest, MemTableSize: 256 << 10,
	})
}

// tornImage writes numbered keys in async mode and loses power at a random point, keeping a share of what was not
// synced. It returns the disk and the number of keys that were written.
func tornImage(t *testing.T, seed uint64, keep int) (*vfs.MemFS, int) {
	t.Helper()
	var image *vfs.MemFS
	written := 0
	synctest.Test(t, func(t *testing.T) {
		rng := rand.New(rand.NewPCG(seed, uint64(keep)))
		mem := vfs.NewCrashableMem()
		must(t, mem.MkdirAll("db", 0o755))
		must(t, syncDir(mem, ""))
		fs := newFS(mem, fsOptions{async: true})
		must(t, fs.markDirty("db"))
		db := must1(barePebble(fs))(t)
		// The first log of a new store is in an older format without sync marks, so some rounds go on to the next ones.
		for end := 20 + rng.IntN(1500); written < end; {
			value := make([]byte, rng.IntN(2000))
			must(t, db.Set(fmt.Appendf(nil, "%06d", written), value, pebble.Sync))
			written++
			if rng.IntN(100) == 0 {
				time.Sleep(time.Duration(rng.IntN(700)) * time.Millisecond)
			}
		}
		synctest.Wait()
		image = mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: keep, RNG: rng})
		must(t, db.Close())
		must(t, fs.close())
	})
	return image, written
}

// prefixLength opens an image and counts its keys, which have to be the first ones written.
func prefixLength(t *testing.T, fs vfs.FS) int {
	t.Helper()
	db := must1(barePebble(fs))(t)
	defer func() { must(t, db.Close()) }()
	it := must1(db.NewIter(nil))(t)
	defer func() { must(t, it.Close()) }()
	n := 0
	for it.First(); it.Valid(); it.Next() {
		if want := fmt.Sprintf("%06d", n); string(it.Key()) != want {
			t.Fatalf("key %s where %s belongs: not a prefix", it.Key(), want)
		}
		n++
	}
	must(t, it.Error())
	return n
}

// Durability, async mode, power loss: the store opens and holds a prefix, whatever the disk kept of the unsynced part.
func TestRepairedLogOpensAfterPowerLoss(t *testing.T) {
	refused := 0
	for seed := range uint64(8) {
		for _, keep := range []int{0, 10, 50, 90, 99} {
			image, written := tornImage(t, seed, keep)
			if db, err := barePebble(image.CrashClone(vfs.CrashCloneCfg{})); err != nil {
				refused++
			} else {
				must(t, db.Close())
			}
			if dirty := must1(isDirty(image, "db"))(t); !dirty {
				t.Fatalf("seed %d, %d %%: the marker is gone", seed, keep)
			}
			must(t, repairWAL(image, "db"))
			if dirty := must1(isDirty(image, "db"))(t); dirty {
				t.Errorf("seed %d, %d %%: the marker outlived the repair", seed, keep)
			}
			// What was repaired is on the disk: a second power loss takes nothing more.
			again := image.CrashClone(vfs.CrashCloneCfg{})
			n := prefixLength(t, image)
			if n > written {
				t.Errorf("seed %d, %d %%: %d keys of %d", seed, keep, n, written)
			}
			if m := prefixLength(t, again); m != n {
				t.Errorf("seed %d, %d %%: %d keys after a second power loss, %d before", seed, keep, m, n)
			}
		}
	}
	if refused == 0 {
		t.Error("every image opened without a repair: this test proves nothing")
	}
}

// A repair that is itself cut off, at any of its writes, can be done again with the same result.
func TestRepairCanBeInterrupted(t *testing.T) {
	image, _ := tornImage(t, 3, 50)
	control := image.CrashClone(vfs.CrashCloneCfg{})
	must(t, repairWAL(control, "db"))
	want := prefixLength(t, control)
	rng := rand.New(rand.NewPCG(1, 2))
	for n := int64(1); ; n++ {
		broken := image.CrashClone(vfs.CrashCloneCfg{})
		disk := newFaultFS(broken)
		disk.onOp(failAt(n, true, errInjected))
		err := repairWAL(disk, "db")
		if err == nil {
			if n < 5 {
				t.Errorf("a repair of only %d writes cannot be complete", n-1)
			}
			return
		}
		if !errors.Is(err, errInjected) {
			t.Fatalf("write %d: %v", n, err)
		}
		for _, keep := range []int{0, 50} {
			rebooted := broken.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: keep, RNG: rng})
			if dirty := must1(isDirty(rebooted, "db"))(t); dirty {
				must(t, repairWAL(rebooted, "db"))
			}
			if got := prefixLength(t, rebooted); got != want {
				t.Errorf("interrupted at write %d: %d keys, want %d", n, got, want)
			}
		}
	}
}

func TestCleanCloseRemovesTheMarker(t *testing.T) {
	mem := vfs.NewMem()
	must(t, mem.MkdirAll("db", 0o755))
	fs := newFS(mem, fsOptions{async: true})
	must(t, fs.markDirty("db"))
	must(t, fs.markDirty("db"))
	if !must1(isDirty(mem, "db"))(t) {
		t.Fatal("no marker")
	}
	must(t, fs.close())
	must(t, fs.clean("db"))
	must(t, fs.clean("db"))
	if must1(isDirty(mem, "db"))(t) {
		t.Error("the marker is still there")
	}
}

func TestMarkerStaysWhenTheDiskFailed(t *testing.T) {
	mem := vfs.NewMem()
	must(t, mem.MkdirAll("db", 0o755))
	fs := newFS(mem, fsOptions{async: true})
	must(t, fs.markDirty("db"))
	fs.fail(errInjected)
	must(t, errors.Join(ignore(fs.close(), errInjected), ignore(fs.clean("db"), errInjected)))
	if !must1(isDirty(mem, "db"))(t) {
		t.Error("the marker went though the store was not closed cleanly")
	}
}

// ignore is nil when err is the wanted error, and says so otherwise.
func ignore(err, want error) error {
	if errors.Is(err, want) {
		return nil
	}
	return fmt.Errorf("got %v, want %v", err, want)
}

// A log that cannot be read is not a torn one: cutting it could throw away what was acknowledged.
func TestRepairLeavesAnUnreadableLogAlone(t *testing.T) {
	image, _ := tornImage(t, 4, 90)
	before := image.String()
	err := repairWAL(unreadableLogs{image}, "db")
	if !errors.Is(err, errInjected) {
		t.Errorf("repair = %v", err)
	}
	if after := image.String(); after != before {
		t.Errorf("the repair changed\n%s to\n%s", before, after)
	}
}

type unreadableLogs struct{ *vfs.MemFS }

func (fs unreadableLogs) Open(name string, opts ...vfs.OpenOption) (vfs.File, error) {
	f, err := fs.MemFS.Open(name, opts...)
	if err == nil && isLog(name) {
		f = unreadable{f}
	}
	return f, err
}

type unreadable struct{ vfs.File }

func (unreadable) Read([]byte) (int, error) { return 0, errInjected }

var _ io.Reader = unreadable{}
