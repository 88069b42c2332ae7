package transport_test

import (
	"bytes"
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pocketmq/mq/transport"
)

func TestWindowBoundsCallsInFlight(t *testing.T) {
	eachNetwork(t, settings{window: 2}, func(t *testing.T, tr transport.Transport) {
		stalled := make(replies, 8)
		c := dial(t, tr, listen(t, tr, suite(stalled)).Addr(), nil)
		answered := make(chan error, 8)
		done := func(_ *transport.Frame, err error) { answered <- err }
		far := time.Now().Add(time.Hour)
		for range 2 {
			if err := c.Go(t.Context(), &transport.Frame{Code: codeStall}, far, done); err != nil {
				t.Fatal(err)
			}
		}
		err := c.Go(t.Context(), &transport.Frame{Code: codeStall}, time.Now().Add(20*time.Millisecond), done)
		if !errors.Is(err, transport.ErrWindowFull) {
			t.Errorf("a third Go gave %v", err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		defer cancel()
		if _, err := c.Call(ctx, &transport.Frame{Code: codeStall}); !errors.Is(err, transport.ErrWindowFull) {
			t.Errorf("a third Call gave %v", err)
		}
		waiting := make(chan error, 1)
		go func() { waiting <- c.Go(context.Background(), &transport.Frame{Code: codeStall}, far, done) }()
		wait(t, stalled, "a request")(&transport.Frame{})
		if err := wait(t, answered, "an answer"); err != nil {
			t.Error(err)
		}
		if err := wait(t, waiting, "the waiting Go"); err != nil {
			t.Errorf("the waiting Go gave %v", err)
		}
		for range 2 {
			wait(t, stalled, "a request")(&transport.Frame{})
			wait(t, answered, "an answer")
		}
		if left := transport.InFlight(c); left != 0 {
			t.Errorf("%d permits are not free", left)
		}
	})
}

func TestCallbackMaySendWithFullWindow(t *testing.T) {
	eachNetwork(t, settings{window: 1}, func(t *testing.T, tr transport.Transport) {
		c := dial(t, tr, listen(t, tr, suite(nil)).Addr(), nil)
		finished := make(chan error, 1)
		left := 50
		var done func(*transport.Frame, error)
		done = func(_ *transport.Frame, err error) {
			if left--; err != nil || left == 0 {
				finished <- err
				return
			}
			if err := c.Go(context.Background(), &transport.Frame{Code: codeEcho}, time.Now().Add(10*time.Second), done); err != nil {
				finished <- err
			}
		}
		if err := c.Go(t.Context(), &transport.Frame{Code: codeEcho}, time.Now().Add(10*time.Second), done); err != nil {
			t.Fatal(err)
		}
		if err := wait(t, finished, "the chain of callbacks"); err != nil {
			t.Error(err)
		}
	})
}

func TestBothEndsFloodEachOther(t *testing.T) {
	const n = 3000
	eachNetwork(t, settings{window: 64, outbound: 256 << 10}, func(t *testing.T, tr transport.Transport) {
		accepted := make(chan transport.Conn, 1)
		table := suite(nil)
		table.Opened = func(c transport.Conn) { accepted <- c }
		c := dial(t, tr, listen(t, tr, table).Addr(), suite(nil))
		call(t, c, &transport.Frame{Code: codeEcho})
		s := wait(t, accepted, "the accepted connection")
		var good atomic.Int32
		var all sync.WaitGroup
		flood := func(c transport.Conn) {
			body := bytes.Repeat([]byte("x"), 300)
			all.Add(n)
			for range n {
				err := c.Go(context.Background(), &transport.Frame{Code: codeEcho, Body: body}, time.Now().Add(20*time.Second), func(f *transport.Frame, err error) {
					if err == nil && bytes.Equal(f.Body, body) {
						good.Add(1)
					}
					all.Done()
				})
				if err != nil {
					t.Error(err)
					all.Done()
				}
			}
		}
		var floods sync.WaitGroup
		floods.Go(func() { flood(c) })
		floods.Go(func() { flood(s) })
		floods.Wait()
		all.Wait()
		if good.Load() != 2*n {
			t.Errorf("%d of %d calls were answered", good.Load(), 2*n)
		}
	})
}

func TestCallsWaitForASlowPeerAndOneWayOverflows(t *testing.T) {
	eachNetwork(t, settings{outbound: 1 << 20}, func(t *testing.T, tr transport.Transport) {
		release := make(chan struct{})
		defer close(release)
		table := suite(nil)
		table.Handle(1, nil, func(_ context.Context, _ transport.Conn, _ *transport.Frame, reply func(*transport.Frame)) {
			<-release // an inline handler that hangs is a peer that stops reading
			reply(&transport.Frame{})
		})
		c := dial(t, tr, listen(t, tr, table).Addr(), nil)
		body := make([]byte, 200<<10)
		var err error
		taken := 0
		for ; err == nil && taken < 1000; taken++ {
			err = c.Go(t.Context(), &transport.Frame{Code: 1, Body: body}, time.Now().Add(200*time.Millisecond), func(*transport.Frame, error) {})
		}
		if !errors.Is(err, transport.ErrWindowFull) {
			t.Fatalf("after %d calls: %v", taken, err)
		}
		for err = nil; err == nil && taken < 2000; taken++ {
			err = c.Send(&transport.Frame{Code: 1, Body: body})
		}
		if !errors.Is(err, transport.ErrOverflow) {
			t.Fatalf("after %d requests: %v", taken, err)
		}
		wait(t, c.Done(), "the overflown connection to close")
		if err := c.Send(&transport.Frame{Code: 1}); !errors.Is(err, transport.ErrClosed) || !errors.Is(err, transport.ErrOverflow) {
			t.Errorf("afterwards: %v", err)
		}
	})
}

func TestTooLargeFramesAreRefused(t *testing.T) {
	eachNetwork(t, settings{}, func(t *testing.T, tr transport.Transport) {
		if _, ok := tr.(*transport.Memory); ok && t.Name() == "TestTooLargeFramesAreRefused/memory" {
			t.Skip("frames by pointer have no size on the wire")
		}
		table := suite(nil)
		table.Handle(1, nil, func(_ context.Context, _ transport.Conn, _ *transport.Frame, reply func(*transport.Frame)) {
			reply(&transport.Frame{Body: make([]byte, 16<<20)})
		})
		c := dial(t, tr, listen(t, tr, table).Addr(), nil)
		if _, err := c.Call(t.Context(), &transport.Frame{Code: codeEcho, Body: make([]byte, 16<<20)}); !errors.Is(err, transport.ErrFrameTooLarge) {
			t.Errorf("a request of 16 MiB and a header gave %v", err)
		}
		if err := c.Send(&transport.Frame{Code: codeEcho, Fields: []string{"k", string(make([]byte, 2<<20))}}); !errors.Is(err, transport.ErrFrameTooLarge) {
			t.Errorf("a header of 2 MiB gave %v", err)
		}
		if r := call(t, c, &transport.Frame{Code: 1}); r.Code != 1 {
			t.Errorf("a response that is too large came as code %d", r.Code)
		}
		// The largest legal message: 4 MiB and 32 KiB of properties.
		r := call(t, c, &transport.Frame{Code: codeEcho, Body: make([]byte, 4<<20), Fields: []string{"i", string(make([]byte, 32<<10))}})
		if len(r.Body) != 4<<20 {
			t.Errorf("4 MiB came back as %d bytes", len(r.Body))
		}
		if left := transport.InFlight(c); left != 0 {
			t.Errorf("%d permits are not free", left)
		}
	})
}

func TestFullPoolIsAnsweredBusy(t *testing.T) {
	eachNetwork(t, settings{}, func(t *testing.T, tr transport.Transport) {
		pool := transport.NewPool(1, 1)
		running, release := make(chan struct{}, 2), make(chan struct{})
		table := suite(nil)
		table.Handle(codePool, pool, func(_ context.Context, _ transport.Conn, _ *transport.Frame, reply func(*transport.Frame)) {
			running <- struct{}{}
			<-release
			reply(&transport.Frame{})
		})
		c := dial(t, tr, listen(t, tr, table).Addr(), nil)
		answers := make(chan int32, 3)
		ask := func() {
			err := c.Go(t.Context(), &transport.Frame{Code: codePool}, time.Now().Add(time.Hour), func(f *transport.Frame, err error) {
				if err != nil {
					t.Error(err)
					return
				}
				answers <- f.Code
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		ask()
		wait(t, running, "the first task")
		ask()
		ask()
		if code := wait(t, answers, "the busy answer"); code != 2 {
			t.Errorf("a full pool was answered %d", code)
		}
		close(release)
		for range 2 {
			if code := wait(t, answers, "a queued task"); code != 0 {
				t.Errorf("a queued task was answered %d", code)
			}
		}
		pool.Close()
	})
}
