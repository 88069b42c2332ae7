package storage

import (
	"context"
	"errors"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// stalledDisk is a disk whose log syncs can be held back.
type stalledDisk struct {
	*faultFS
	hold atomic.Pointer[chan struct{}]
}

func newStalledDisk() *stalledDisk {
	d := &stalledDisk{faultFS: newFaultFS(vfs.NewMem())}
	d.onOp(func(op diskOp) error {
		if hold := d.hold.Load(); hold != nil && op.kind == "sync" && isLog(op.name) {
			<-*hold
		}
		return nil
	})
	return d
}

func (d *stalledDisk) stall() {
	hold := make(chan struct{})
	d.hold.Store(&hold)
}

func (d *stalledDisk) release() { close(*d.hold.Swap(nil)) }

// A sync that hangs is answered after the timeout, with the places the records will have; nobody sees them before they are
// on the disk, and nothing is answered twice when it comes back.
func TestStuckSyncIsAnsweredWithTheIDs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newStalledDisk()
		var grown atomic.Int64
		o := crashOptions(disk, FlushSync)
		o.Grown = func(g []Growth) { grown.Store(g[len(g)-1].Next) }
		s := must1(Open(o))(t)
		topic := must1(s.OpenTopic(context.Background(), "topic"))(t)
		l := newLedger()
		must(t, <-l.submit(s, topic, 0, 0, 100).done)
		synctest.Wait()

		disk.stall()
		start := time.Now()
		answered := 0
		r := &Request{Records: []Record{markedRecord(topic, 0, 50, 100), markedRecord(topic, 0, 51, 100)}}
		done := make(chan error, 2)
		r.Completion = completionFunc(func(_ *Request, err error) { answered++; done <- err })
		s.Submit(r)
		if err := <-done; !errors.Is(err, ErrFlushTimeout) {
			t.Errorf("answered with %v", err)
		}
		if took := time.Since(start); took < 5*time.Second || took > 6*time.Second {
			t.Errorf("answered after %v", took)
		}
		for i, rec := range r.Records {
			if rec.Offset != int64(i+1) || rec.Position <= 0 || rec.StoreTime == 0 {
				t.Errorf("record %d: offset %d, position %d, time %d", i, rec.Offset, rec.Position, rec.StoreTime)
			}
		}
		if _, next := must2(s.Bounds(topic, 0))(t); next != 1 || grown.Load() != 1 {
			t.Errorf("the queue ends at %d and grew to %d while the sync hangs", next, grown.Load())
		}
		limit := Limit{Count: 10, Bytes: 1000}
		if res := must1(s.Read(context.Background(), Read{Topic: topic, Queue: 0, Offset: 1, Near: limit, Far: limit}))(t); res.Status != AtEnd {
			t.Errorf("a read at the watermark says %v", res.Status)
		}

		disk.release()
		synctest.Wait()
		if _, next := must2(s.Bounds(topic, 0))(t); next != 3 || grown.Load() != 3 {
			t.Errorf("the queue ends at %d and grew to %d after the sync came back", next, grown.Load())
		}
		must(t, <-l.submit(s, topic, 0, 0, 100).done)
		if answered != 1 {
			t.Errorf("answered %d times", answered)
		}
		checkStore(t, s)
		must(t, s.Close())
	})
}

func must2[A, B any](a A, b B, err error) func(testing.TB) (A, B) {
	return func(t testing.TB) (A, B) {
		t.Helper()
		must(t, err)
		return a, b
	}
}

// Slow but working: everything succeeds, and what cannot wait is refused at once instead of piling up.
func TestSlowSyncsRefuseWhatWouldWaitTooLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newFaultFS(vfs.NewMem())
		s := must1(Open(crashOptions(disk, FlushSync)))(t)
		topic := must1(s.OpenTopic(context.Background(), "topic"))(t)
		disk.onOp(func(op diskOp) error {
			if op.kind == "sync" && isLog(op.name) {
				time.Sleep(time.Second)
			}
			return nil
		})
		l := newLedger()
		var entries []*entry
		for range 100 {
			entries = append(entries, l.submit(s, topic, 0, 0, 100))
			time.Sleep(30 * time.Millisecond)
		}
		ok, busy := 0, 0
		for _, e := range entries {
			switch err := <-e.done; {
			case err == nil:
				ok++
			case errors.Is(err, ErrBusy):
				busy++
			default:
				t.Errorf("answered with %v", err)
			}
		}
		if ok == 0 || busy == 0 {
			t.Errorf("%d done, %d refused; want some of both", ok, busy)
		}
		disk.onOp(nil)
		l.verify(t, s, time.Time{})
		checkStore(t, s)
		must(t, s.Close())
	})
}

// A sync that hangs and then fails: what was answered as unknown stays unknown, nothing is acknowledged, Close returns.
func TestStuckSyncThatFailsFreezes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := vfs.NewCrashableMem()
		disk := newFaultFS(mem)
		failed := make(chan error, 1)
		o := crashOptions(disk, FlushSync)
		o.Failed = func(err error) { failed <- err }
		s := must1(Open(o))(t)
		topic := must1(s.OpenTopic(context.Background(), "topic"))(t)
		l := newLedger()
		must(t, <-l.submit(s, topic, 0, 0, 100).done)
		disk.onOp(func(op diskOp) error {
			if op.kind == "sync" && isLog(op.name) {
				time.Sleep(8 * time.Second)
				return errInjected
			}
			return nil
		})
		first := l.submit(s, topic, 0, 0, 100)
		time.Sleep(100 * time.Millisecond)
		second := l.submit(s, topic, 0, 0, 100)
		if err := <-first.done; !errors.Is(err, ErrFlushTimeout) {
			t.Errorf("first: %v", err)
		}
		if err := <-second.done; err == nil {
			t.Error("acknowledged by a disk that failed")
		}
		if err := <-failed; !errors.Is(err, errInjected) {
			t.Errorf("Failed was told %v", err)
		}
		if err := <-l.submit(s, topic, 0, 0, 100).done; !errors.Is(err, ErrFailed) || !errors.Is(err, errInjected) {
			t.Errorf("a frozen store answers %v", err)
		}
		if err := s.Err(); !errors.Is(err, errInjected) {
			t.Errorf("Err = %v", err)
		}
		if all := readAll(t, s, topic, 0); len(all) != 1 {
			t.Errorf("%d records can be read, want the acknowledged one", len(all))
		}
		if err := s.Close(); err != nil && !errors.Is(err, errInjected) {
			t.Errorf("Close = %v", err)
		}
		if err := <-l.submit(s, topic, 0, 0, 100).done; !errors.Is(err, ErrClosed) {
			t.Errorf("a closed store answers %v", err)
		}
		s = must1(Open(crashOptions(mem.CrashClone(vfs.CrashCloneCfg{}), FlushSync)))(t)
		l.verify(t, s, time.Time{})
		checkStore(t, s)
		must(t, s.Close())
	})
}

// A full disk: requests are refused with its error, what is stored can be read, and with room again Reopen is enough.
func TestFullDiskRefusesReadsAndRecovers(t *testing.T) {
	for _, flush := range []FlushMode{FlushSync, FlushAsync} {
		t.Run(flush.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { fillDisk(t, flush) })
		})
	}
}

func fillDisk(t *testing.T, flush FlushMode) {
	disk := newFaultFS(vfs.NewMem())
	space := &room{limit: 1 << 20}
	disk.onOp(space.op)
	s := must1(Open(crashOptions(disk, flush)))(t)
	ctx := context.Background()
	topic := must1(s.OpenTopic(ctx, "topic"))(t)
	l := newLedger()
	var refusal error
	sends := 0
	for ; refusal == nil && sends < 2000; sends++ {
		refusal = <-l.submit(s, topic, int32(sends%3), 0, 2000).done
	}
	if !errors.Is(refusal, ErrFailed) || !errors.Is(refusal, syscall.ENOSPC) || !isDiskFull(s.Err()) {
		t.Fatalf("after %d sends: %v; Err is %v", sends, refusal, s.Err())
	}
	if n := len(readAll(t, s, topic, 0)) + len(readAll(t, s, topic, 1)) + len(readAll(t, s, topic, 2)); n < sends-1 {
		t.Errorf("%d of %d records can be read while the disk is full", n, sends-1)
	}
	if err := s.Reopen(ctx); err == nil {
		// There may be just room enough to open; then the next write says it again.
		for n := 0; err == nil && n < 100; n++ {
			err = <-l.submit(s, topic, 0, 0, 2000).done
		}
		if !errors.Is(err, syscall.ENOSPC) {
			t.Errorf("reopened on a full disk: %v", err)
		}
	}
	space.setLimit(64 << 20)
	must(t, s.Reopen(ctx))
	if err := s.Err(); err != nil {
		t.Errorf("Err after Reopen = %v", err)
	}
	l.forgetLost(t, s)
	for i := range 100 {
		must(t, <-l.submit(s, topic, int32(i%3), 0, 2000).done)
	}
	l.verify(t, s, time.Time{})
	checkStore(t, s)
	must(t, s.Close())
	s = must1(Open(crashOptions(disk, flush)))(t)
	l.verify(t, s, time.Time{})
	must(t, s.Close())
}

// A second store must not open the directory, least of all repair it.
func TestSecondOpenOfADirtyStoreIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := vfs.NewMem()
		s := must1(Open(crashOptions(mem, FlushAsync)))(t)
		topic := must1(s.OpenTopic(context.Background(), "topic"))(t)
		l := newLedger()
		for i := range 20 {
			must(t, <-l.submit(s, topic, int32(i%3), 0, 3000).done)
		}
		before := mem.String()
		if _, err := Open(crashOptions(mem, FlushAsync)); !errors.Is(err, ErrLocked) {
			t.Errorf("second open: %v", err)
		}
		if after := mem.String(); after != before {
			t.Errorf("the second open changed the disk from\n%s to\n%s", before, after)
		}
		must(t, s.Close())
	})
}
