package storage

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// childVariable tells a copy of the test binary what to do; see runChild.
const childVariable = "STORAGE_TEST_CHILD"

// runChild runs one test of this binary in a process of its own, which may die or hang. It returns the output and whether
// the child succeeded within the time.
func runChild(ctx context.Context, test, order string) (string, error) {
	cmd := exec.CommandContext(ctx, os.Args[0], "-test.run=^"+test+"$", "-test.v", "-test.timeout=0")
	cmd.Env = append(os.Environ(), childVariable+"="+order)
	cmd.WaitDelay = 5 * time.Second
	out, err := cmd.CombinedOutput()
	if ctx.Err() != nil {
		err = fmt.Errorf("hung: %w", ctx.Err())
	}
	return string(out), err
}

// childOrder returns what a child has to do; every other run of the test is skipped.
func childOrder(t *testing.T) string {
	order := os.Getenv(childVariable)
	if order == "" {
		t.Skip("runs in a child process only")
	}
	return order
}

const faultSteps = 60

// Failing disk: each write-side operation of a workload fails, once or from then on, in a child process. The child must not
// die, hang, or say yes to what is not there: not to a process that goes on, nor after a power loss at that moment.
func TestFailingDisk(t *testing.T) {
	perChild, budget := 20, 75*time.Second
	if testing.Short() {
		perChild, budget = 3, 5*time.Second
	}
	begun := time.Now()
	var jobs []string
	for _, flush := range []FlushMode{FlushSync, FlushAsync} {
		for _, onwards := range []bool{false, true} {
			total := countOperations(t, flush)
			for from := 1; from <= total; from += perChild {
				jobs = append(jobs, fmt.Sprintf("%d %t %d %d", flush, onwards, from, min(from+perChild-1, total)))
			}
		}
	}
	// In random order, so that a run that ends early has seen a bit of everything.
	rand.Shuffle(len(jobs), func(i, j int) { jobs[i], jobs[j] = jobs[j], jobs[i] })
	var next, done atomic.Int64
	var group sync.WaitGroup
	for range 2 {
		group.Go(func() {
			for i := int(next.Add(1)) - 1; i < len(jobs) && time.Since(begun) < budget && !t.Failed(); i = int(next.Add(1)) - 1 {
				ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
				out, err := runChild(ctx, "TestFailingDiskChild", jobs[i])
				cancel()
				if err != nil || !strings.Contains(out, "PASS: TestFailingDiskChild") {
					t.Errorf("%s: %v\n%s", jobs[i], err, out)
				}
				done.Add(1)
			}
		})
	}
	group.Wait()
	if done.Load() == 0 {
		t.Error("nothing was tried")
	}
	t.Logf("%d of %d batches of %d operations", done.Load(), len(jobs), perChild)
}

// countOperations runs the workload on a healthy disk.
func countOperations(t *testing.T, flush FlushMode) int {
	var count atomic.Int64
	synctest.Test(t, func(t *testing.T) {
		disk := newFaultFS(vfs.NewCrashableMem())
		disk.onOp(func(diskOp) error { count.Add(1); return nil })
		f := faultRun{flush: flush, mem: disk.FS.(*vfs.MemFS), disk: disk}
		f.work(t)
	})
	if count.Load() < 100 {
		t.Fatalf("the workload has only %d operations", count.Load())
	}
	return int(count.Load())
}

// TestFailingDiskChild is the child of TestFailingDisk.
func TestFailingDiskChild(t *testing.T) {
	var flush FlushMode
	var onwards bool
	var from, to int64
	if _, err := fmt.Sscanf(childOrder(t), "%d %t %d %d", &flush, &onwards, &from, &to); err != nil {
		t.Fatal(err)
	}
	for n := from; n <= to; n++ {
		fmt.Printf("%v, operation %d fails, from then on: %t\n", flush, n, onwards)
		synctest.Test(t, func(t *testing.T) {
			mem := vfs.NewCrashableMem()
			disk := newFaultFS(mem)
			err := errInjected
			if n%2 == 0 {
				err = errors.Join(errInjected, diskFull)
			}
			disk.onOp(failAt(n, onwards, err))
			f := faultRun{flush: flush, mem: mem, disk: disk, reopen: n%3 != 0}
			f.work(t)
		})
	}
}

// faultRun is one workload on a disk that may fail.
type faultRun struct {
	flush  FlushMode
	mem    *vfs.MemFS
	disk   *faultFS
	reopen bool // recover by Reopen and not by Close and Open

	failed atomic.Pointer[time.Time]
	w      *workload
}

func (f *faultRun) options() Options {
	o := crashOptions(f.disk, f.flush)
	o.Failed = func(error) { now := time.Now(); f.failed.Store(&now) }
	return o
}

func (f *faultRun) work(t *testing.T) {
	ctx := context.Background()
	f.w = newWorkload(11)
	s, err := Open(f.options())
	if err != nil {
		f.expected(t, "Open", err)
		f.disk.onOp(nil)
		f.recovered(t, must1(Open(f.options()))(t))
		return
	}
	err = f.w.run(ctx, s, faultSteps/2)
	if err == nil {
		err = rotate(s)
	}
	if err == nil {
		err = f.w.run(ctx, s, faultSteps/2)
	}
	f.expected(t, "the workload", err)
	synctest.Wait()
	frozen := s.Err()
	if err != nil && frozen == nil {
		t.Errorf("requests fail with %v, yet Err is nil", err)
	}
	if frozen != nil {
		f.powerLoss(t)
	}
	if frozen != nil && f.reopen {
		f.disk.onOp(nil)
		must(t, s.Reopen(ctx))
	} else {
		f.expected(t, "Close", s.Close())
		f.disk.onOp(nil)
		s = must1(Open(f.options()))(t)
	}
	f.recovered(t, s)
}

// expected accepts nil and errors that carry the disk's.
func (f *faultRun) expected(t *testing.T, what string, err error) {
	t.Helper()
	if err != nil && !errors.Is(err, errInjected) {
		t.Errorf("%s: %v, which does not carry the disk's error", what, err)
	}
}

// recovered checks a store on the healthy disk, works with it, and checks once more.
func (f *faultRun) recovered(t *testing.T, s *Store) {
	t.Helper()
	f.w.verify(t, s, time.Time{})
	checkStore(t, s)
	f.w.l.forgetLost(t, s)
	must(t, f.w.run(context.Background(), s, 20))
	f.w.verify(t, s, time.Time{})
	checkStore(t, s)
	must(t, s.Close())
}

// powerLoss checks what a power loss right after the failure leaves.
func (f *faultRun) powerLoss(t *testing.T) {
	t.Helper()
	known := f.w.snapshot()
	rng := rand.New(rand.NewPCG(1, 2))
	at := time.Now()
	if p := f.failed.Load(); p != nil {
		at = *p
	}
	for _, share := range []int{0, 50} {
		disk := f.mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: share, RNG: rng})
		s := must1(Open(crashOptions(disk, f.flush)))(t)
		i := image{time: at}
		known.verify(t, s, i.lossBound(f.flush))
		checkStore(t, s)
		must(t, s.Close())
	}
}
