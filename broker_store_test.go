package mq

import (
	"context"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/pocketmq/mq/internal/wire"
	"github.com/pocketmq/mq/storage"
	"github.com/pocketmq/mq/transport"
)

// A faultyDisk is a disk that can be full or slow.
type faultyDisk struct {
	vfs.FS
	full  atomic.Bool
	stall atomic.Pointer[chan struct{}] // syncs wait until it is closed
}

func newFaultyDisk() *faultyDisk {
	d := &faultyDisk{}
	d.FS = errorfs.Wrap(vfs.NewMem(), errorfs.InjectorFunc(func(op errorfs.Op) error {
		switch op.Kind {
		case errorfs.OpFileWrite, errorfs.OpCreate:
			if d.full.Load() {
				return syscall.ENOSPC
			}
		case errorfs.OpFileSync, errorfs.OpFileSyncData, errorfs.OpFileSyncTo:
			if wait := d.stall.Load(); wait != nil {
				<-*wait
			}
		}
		return nil
	}))
	return d
}

func (d *faultyDisk) config() BrokerConfig {
	return BrokerConfig{Dir: "data", storage: func(o *storage.Options) { o.FS = d.FS }}
}

func TestFullDiskIsLeftWithoutARestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newFaultyDisk()
		r := startBroker(t, disk.config())
		r.createTopic("t", 1, 6)
		r.stored(message("t"), "before")
		disk.full.Store(true)
		r.refusedWith(wire.ServiceNotAvailable, r.send(message("t"), "lost"), "no space left")
		if got := bodies(r.queue("t", 0)); got != "before" {
			t.Fatalf("reads while full: %q", got)
		}
		time.Sleep(time.Minute) // several attempts to reopen
		if got := bodies(r.queue("t", 0)); got != "before" {
			t.Fatalf("reads while full for long: %q", got)
		}
		r.refusedWith(wire.ServiceNotAvailable, r.send(message("t"), "lost"), "no space left")
		r.refusedWith(wire.ServiceNotAvailable, r.send(message("new"), "lost"), "no space left")
		disk.full.Store(false)
		time.Sleep(reopenPeriod + time.Second)
		r.stored(message("t"), "after")
		if got := bodies(r.queue("t", 0)); got != "before after" {
			t.Fatalf("stored %q", got)
		}
	})
}

func TestStuckDiskIsAnsweredAsFlushTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newFaultyDisk()
		r := startBroker(t, disk.config())
		r.createTopic("t", 1, 6)
		r.stored(message("t"), "0")
		wait := make(chan struct{})
		disk.stall.Store(&wait)
		var positions []int64
		f := &transport.Frame{}
		for i := 1; i <= 5; i++ { // a few may be with the disk; what waits behind is refused, and not taken
			began := time.Now()
			if f = r.send(message("t"), itemName("", i)); f.Code != wire.FlushDiskTimeout {
				break
			}
			if d := time.Since(began); d > 7*time.Second {
				t.Errorf("answered after %v", d)
			}
			res, err := transport.HeaderOf[wire.SendResponse](f)
			if err != nil || res.QueueOffset != int64(i) {
				t.Errorf("ids %+v (%v)", res, err)
				break
			}
			_, position, err := wire.ParseOffsetMessageID(res.MsgID)
			if err != nil {
				t.Error(err)
			}
			positions = append(positions, position)
		}
		disk.stall.Store(nil)
		close(wait)
		r.refusedWith(wire.SystemBusy, f, "flow control")
		time.Sleep(time.Second)
		r.stored(message("t"), "end")
		all := r.queue("t", 0)
		if len(positions) == 0 || bodies(all) != numbered("", len(positions)+1)+" end" {
			t.Fatalf("stored %q after %d time-outs", bodies(all), len(positions))
		}
		for i, position := range positions {
			if all[i+1].Position != position {
				t.Fatalf("message %d is at %d, its id says %d", i+1, all[i+1].Position, position)
			}
		}
	})
}

func TestMoreSendsThanTheStoreTakesAreBusy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newFaultyDisk()
		r := startBroker(t, disk.config())
		r.createTopic("t", 1, 6)
		wait := make(chan struct{})
		disk.stall.Store(&wait)
		codes := make(chan int32, 1000)
		body := []byte(strings.Repeat("x", 1<<20))
		for range 100 { // 100 MiB, of which 64 may wait and a group of 4 is with the disk
			if err := r.conn.Go(t.Context(), &transport.Frame{Code: wire.CodeSendMessage, Header: message("t"), Body: body},
				time.Now().Add(time.Minute), func(f *transport.Frame, err error) {
					if err != nil {
						t.Error(err)
						f = &transport.Frame{Code: -1}
					}
					codes <- f.Code
				}); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		busy := len(codes)
		if busy < 20 || busy > 40 {
			t.Fatalf("%d of 100 refused at once", busy)
		}
		for range busy {
			if code := <-codes; code != wire.SystemBusy {
				t.Fatalf("answer %d", code)
			}
		}
		disk.stall.Store(nil)
		close(wait)
		stored := 0
		for range 100 - busy {
			if <-codes == wire.Success {
				stored++
			}
		}
		if got := len(r.queue("t", 0)); got != stored || stored == 0 {
			t.Fatalf("%d stored, %d acknowledged", got, stored)
		}
	})
}

func TestAsyncFlushSurvivesARestart(t *testing.T) {
	cfg := BrokerConfig{Dir: t.TempDir(), Flush: AsyncFlush, Transport: transport.NewMemory(transport.MemoryConfig{})}
	r := startBroker(t, cfg)
	r.stored(message("t"), "x")
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	if got := bodies(startBroker(t, cfg).messages("t")); got != "x" {
		t.Fatalf("stored %q", got)
	}
}

// A topic whose deletion the disk does not confirm in time is gone for senders, and
// can be made again when the disk goes on.
func TestTopicDeletedOnAStuckDiskCanBeMadeAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newFaultyDisk()
		r := startBroker(t, disk.config())
		r.createTopic("t", 1, 6)
		r.stored(message("t"), "old")
		wait := make(chan struct{})
		disk.stall.Store(&wait)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		f, err := r.conn.Call(ctx, &transport.Frame{Code: wire.CodeDeleteTopicInBroker, Header: &wire.DeleteTopicRequest{Topic: "t"}})
		if err != nil || f.Code == wire.Success {
			t.Fatalf("deletion on a stuck disk: %v, %v", f, err)
		}
		disk.stall.Store(nil)
		close(wait)
		time.Sleep(time.Second)
		r.createTopic("t", 1, 6)
		r.stored(message("t"), "new")
		if got := bodies(r.queue("t", 0)); got != "new" {
			t.Errorf("the new topic holds %q", got)
		}
	})
}
