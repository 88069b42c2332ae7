package transport_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pocketmq/mq/transport"
)

func TestCloseFailsWhatIsInFlight(t *testing.T) {
	for _, side := range []string{"near", "far", "listener"} {
		t.Run(side, func(t *testing.T) {
			eachNetwork(t, settings{}, func(t *testing.T, tr transport.Transport) {
				stalled := make(replies, 2)
				accepted, ended := make(chan transport.Conn, 1), make(chan transport.Conn, 1)
				var handlerCtx context.Context
				table := suite(stalled)
				table.Opened = func(c transport.Conn) { accepted <- c }
				table.Closed = func(c transport.Conn) { ended <- c }
				table.Handle(1, nil, func(ctx context.Context, _ transport.Conn, _ *transport.Frame, reply func(*transport.Frame)) {
					handlerCtx = ctx
					reply(&transport.Frame{})
				})
				l := listen(t, tr, table)
				c := dial(t, tr, l.Addr(), nil)
				call(t, c, &transport.Frame{Code: 1})
				results := make(chan error, 2)
				if err := c.Go(t.Context(), &transport.Frame{Code: codeStall}, time.Now().Add(time.Hour), func(_ *transport.Frame, err error) { results <- err }); err != nil {
					t.Fatal(err)
				}
				go func() {
					_, err := c.Call(context.Background(), &transport.Frame{Code: codeStall})
					results <- err
				}()
				for range 2 {
					wait(t, stalled, "a request")
				}
				s := wait(t, accepted, "the accepted connection")
				switch side {
				case "near":
					c.Close()
				case "far":
					s.Close()
				case "listener":
					if err := l.Close(); err != nil {
						t.Error(err)
					}
				}
				for range 2 {
					if err := wait(t, results, "the end of a call"); !errors.Is(err, transport.ErrClosed) {
						t.Errorf("a call in flight ended with %v", err)
					}
				}
				wait(t, c.Done(), "the near end")
				wait(t, s.Done(), "the far end")
				if got := wait(t, ended, "the Closed hook"); got != s {
					t.Error("Closed was told of another connection than Opened")
				}
				wait(t, handlerCtx.Done(), "the handlers' context")
				if err := c.Close(); err != nil {
					t.Error(err)
				}
				if _, err := c.Call(context.Background(), &transport.Frame{Code: codeEcho}); !errors.Is(err, transport.ErrClosed) {
					t.Errorf("a call on a closed connection gave %v", err)
				}
				if err := c.Send(&transport.Frame{Code: codeEcho}); !errors.Is(err, transport.ErrClosed) {
					t.Errorf("a send on a closed connection gave %v", err)
				}
			})
		})
	}
}

func TestQueuedRepliesLeaveBeforeTheListenerCloses(t *testing.T) {
	const n = 200
	eachNetwork(t, settings{}, func(t *testing.T, tr transport.Transport) {
		stalled := make(replies, n)
		l := listen(t, tr, suite(stalled))
		c := dial(t, tr, l.Addr(), nil)
		var good atomic.Int32
		var all sync.WaitGroup
		all.Add(n)
		for range n {
			err := c.Go(t.Context(), &transport.Frame{Code: codeStall}, time.Now().Add(time.Hour), func(_ *transport.Frame, err error) {
				if err == nil {
					good.Add(1)
				}
				all.Done()
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		for range n {
			wait(t, stalled, "a request")(&transport.Frame{Body: make([]byte, 2000)})
		}
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		all.Wait()
		if good.Load() != n {
			t.Errorf("%d of %d answers arrived", good.Load(), n)
		}
	})
}

func TestCallbacksRunExactlyOnce(t *testing.T) {
	const senders, each = 4, 300
	eachNetwork(t, settings{window: 100}, func(t *testing.T, tr transport.Transport) {
		for round := range 8 {
			l := listen(t, tr, suite(nil))
			c := dial(t, tr, l.Addr(), nil)
			var started, refused, ended atomic.Int64
			counts := make([]atomic.Int32, senders*each)
			ctx, cancel := context.WithCancel(t.Context())
			var all sync.WaitGroup
			for s := range senders {
				all.Go(func() {
					for i := range each {
						started.Add(1)
						k := &counts[s*each+i]
						// Some time out at once, so that time-out, answer, cancel and close race.
						deadline := time.Now().Add(time.Duration(i%4) * time.Millisecond)
						err := c.Go(ctx, &transport.Frame{Code: codeEcho}, deadline, func(f *transport.Frame, err error) {
							if (f == nil) == (err == nil) {
								t.Error("neither or both of answer and error")
							}
							k.Add(1)
							ended.Add(1)
						})
						if err != nil {
							k.Add(1)
							refused.Add(1)
						}
					}
				})
			}
			if round%2 == 0 {
				cancel()
			}
			if round%4 < 2 {
				c.Close()
			} else {
				l.Close()
			}
			all.Wait()
			cancel()
			wait(t, transport.Over(c), "the last callback")
			for i := range counts {
				if n := counts[i].Load(); n != 1 {
					t.Fatalf("call %d ended %d times", i, n)
				}
			}
			if started.Load() != refused.Load()+ended.Load() {
				t.Errorf("%d started, %d refused, %d ended", started.Load(), refused.Load(), ended.Load())
			}
		}
	})
}

func TestOnlyTheFirstReplyCounts(t *testing.T) {
	eachNetwork(t, settings{}, func(t *testing.T, tr transport.Transport) {
		table := suite(nil)
		table.Handle(1, nil, func(_ context.Context, _ transport.Conn, _ *transport.Frame, reply func(*transport.Frame)) {
			reply(&transport.Frame{Remark: "first"})
			reply(&transport.Frame{Remark: "second"})
		})
		table.Handle(2, nil, func(_ context.Context, _ transport.Conn, _ *transport.Frame, reply func(*transport.Frame)) {
			reply(nil)
		})
		c := dial(t, tr, listen(t, tr, table).Addr(), nil)
		for range 3 {
			if r := call(t, c, &transport.Frame{Code: 1}); r.Remark != "first" {
				t.Errorf("got the %s reply", r.Remark)
			}
		}
		if r := call(t, c, &transport.Frame{Code: 2}); r.Code != 1 {
			t.Errorf("no response was answered with code %d", r.Code)
		}
	})
}

func TestOneWayIsNotAnswered(t *testing.T) {
	eachNetwork(t, settings{}, func(t *testing.T, tr transport.Transport) {
		seen := make(chan *transport.Frame, 1)
		table := suite(nil)
		table.Handle(1, nil, func(_ context.Context, _ transport.Conn, req *transport.Frame, reply func(*transport.Frame)) {
			reply(&transport.Frame{})
			seen <- req
		})
		c := dial(t, tr, listen(t, tr, table).Addr(), nil)
		if err := c.Send(&transport.Frame{Code: 1}); err != nil {
			t.Fatal(err)
		}
		if req := wait(t, seen, "the one-way request"); !req.IsOneWay() {
			t.Error("the one-way flag is not set")
		}
		call(t, c, &transport.Frame{Code: codeEcho})
	})
}

func TestListenAndDialFailClearly(t *testing.T) {
	eachNetwork(t, settings{}, func(t *testing.T, tr transport.Transport) {
		l := listen(t, tr, suite(nil))
		if other, err := tr.Listen(t.Context(), l.Addr(), suite(nil)); err == nil {
			other.Close()
			t.Error("two listeners on one address")
		}
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		if c, err := tr.Dial(t.Context(), l.Addr(), nil); err == nil {
			c.Close()
			t.Error("a dial to nobody succeeded")
		}
		again, err := tr.Listen(t.Context(), l.Addr(), suite(nil))
		if err != nil {
			t.Fatalf("the address of a closed listener: %v", err)
		}
		call(t, dial(t, tr, again.Addr(), nil), &transport.Frame{Code: codeEcho})
		if err := again.Close(); err != nil {
			t.Error(err)
		}
		if err := again.Close(); err != nil {
			t.Errorf("closing twice: %v", err)
		}
		if _, err := tr.Dial(t.Context(), "nonsense", nil); err == nil {
			t.Error("an address without port was dialled")
		}
	})
}
