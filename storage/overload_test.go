package storage

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// slowFS delays every sync by a settable time.
type slowFS struct {
	vfs.FS
	delay atomic.Int64
}

type slowFile struct {
	vfs.File
	fs *slowFS
}

func (fs *slowFS) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := fs.FS.Create(name, c)
	if err != nil {
		return nil, err
	}
	return slowFile{f, fs}, nil
}

func (fs *slowFS) ReuseForWrite(old, name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := fs.FS.ReuseForWrite(old, name, c)
	if err != nil {
		return nil, err
	}
	return slowFile{f, fs}, nil
}

func (f slowFile) wait() {
	if d := f.fs.delay.Load(); d > 0 {
		time.Sleep(time.Duration(d))
	}
}

func (f slowFile) Sync() error     { f.wait(); return f.File.Sync() }
func (f slowFile) SyncData() error { f.wait(); return f.File.SyncData() }

func (f slowFile) SyncTo(length int64) (bool, error) { f.wait(); return f.File.SyncTo(length) }

// slowStore opens a store in a bubble with a topic, whose syncs then take the
// delay.
func slowStore(t *testing.T, o Options, delay time.Duration) (*Store, *Topic, *slowFS) {
	t.Helper()
	fs := &slowFS{FS: vfs.NewMem()}
	o.Dir, o.FS = "data", fs
	s := openTest(t, o)
	topic := openTopic(t, s, "orders")
	fs.delay.Store(int64(delay))
	t.Cleanup(func() { fs.delay.Store(0) })
	return s, topic, fs
}

func submitText(s *Store, topic *Topic, text string, done Completion) *Request {
	r := &Request{Completion: done}
	*r.One() = textRecord(topic, 0, text)
	s.Submit(r)
	return r
}

func TestTooManyWaitingRequestsAreRefusedAtOnce(t *testing.T) {
	for name, o := range map[string]Options{
		"requests": {WaitRequests: 10, WaitTime: time.Minute},
		"bytes":    {WaitBytes: 10 * 128, WaitTime: time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, topic, _ := slowStore(t, o, time.Second)
				text := string(make([]byte, 128-textHeader))
				start := time.Now()
				done := newOutcomes(100)
				// The lane holds two groups, then the rest waits.
				for range 2 {
					submitText(s, topic, text, done)
					synctest.Wait()
				}
				for range 98 {
					submitText(s, topic, text, done)
				}
				synctest.Wait()
				if busy := done.count(ErrBusy); busy != 88 || time.Since(start) != 0 {
					t.Errorf("%d are refused after %v", busy, time.Since(start))
				}
				<-done.all
				if busy := done.count(ErrBusy); busy != 88 {
					t.Errorf("%d are refused in the end", busy)
				}
			})
		})
	}
}

func TestRequestsThatWaitTooLongAreRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, topic, _ := slowStore(t, Options{}, time.Second)
		start := time.Now()
		done := newOutcomes(2)
		for range 2 {
			submitText(s, topic, "taken", done)
			synctest.Wait()
		}
		late := newOutcomes(3)
		for range 3 {
			submitText(s, topic, "waiting", late)
		}
		<-late.all
		if waited := time.Since(start); waited < 200*time.Millisecond || waited > 300*time.Millisecond {
			t.Errorf("refused after %v", waited)
		}
		if busy := late.count(ErrBusy); busy != 3 {
			t.Errorf("%d are refused: %v", busy, late.errs)
		}
		<-done.all
		if done.errs[0] != nil || done.errs[1] != nil {
			t.Errorf("those taken end with %v", done.errs)
		}
	})
}

func TestStuckSyncIsAnsweredAfterTheTimeoutWithPlaces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, topic, _ := slowStore(t, Options{}, time.Minute)
		start := time.Now()
		r := &Request{}
		*r.One() = textRecord(topic, 0, "stuck")
		err := s.Apply(context.Background(), r)
		waited := time.Since(start)
		if !errors.Is(err, ErrFlushTimeout) || waited < 5*time.Second || waited > 6*time.Second {
			t.Fatalf("answered after %v: %v", waited, err)
		}
		if r.Records[0].StoreTime == 0 {
			t.Errorf("no place is filled in: %+v", r.Records[0])
		}
		if res, err := s.Read(context.Background(), Read{Topic: topic}); err != nil || res.Status != Empty {
			t.Errorf("before the sync a reader gets %v %v", res.Status, err)
		}
		time.Sleep(2 * time.Minute)
		if res, err := s.Read(context.Background(), Read{Topic: topic}); err != nil || res.Status != Found {
			t.Errorf("after the sync a reader gets %v %v", res.Status, err)
		}
	})
}

func TestIdleStoreLetsTimePassInOneStep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, topic, _ := slowStore(t, Options{}, 0)
		appendText(t, s, topic, 0, "text")
		start := time.Now()
		time.Sleep(10 * 365 * 24 * time.Hour)
		if real := time.Since(start); real < 10*365*24*time.Hour {
			t.Errorf("only %v passed", real)
		}
	})
}
