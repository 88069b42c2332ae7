package transport_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pocketmq/mq/transport"
)

const (
	codeEcho  = 10
	codeStall = 11
	codePanic = 12
	codePool  = 13
)

type replies chan func(*transport.Frame)

// suite is a table with an echo, a handler that stalls until the test replies, and
// one that panics.
func suite(stalled replies) *transport.Table {
	t := &transport.Table{Language: transport.Go, Version: 409}
	t.Handle(codeEcho, nil, func(_ context.Context, _ transport.Conn, req *transport.Frame, reply func(*transport.Frame)) {
		reply(&transport.Frame{Code: 0, Remark: req.Remark, Header: req.Header, Fields: req.Fields, Body: req.Body})
	})
	t.Handle(codeStall, nil, func(_ context.Context, _ transport.Conn, _ *transport.Frame, reply func(*transport.Frame)) {
		stalled <- reply
	})
	t.Handle(codePanic, nil, func(context.Context, transport.Conn, *transport.Frame, func(*transport.Frame)) {
		panic("on purpose")
	})
	return t
}

func TestCallCarriesEverything(t *testing.T) {
	eachNetwork(t, settings{}, func(t *testing.T, tr transport.Transport) {
		got := make(chan *transport.Frame, 1)
		table := suite(nil)
		table.Handle(77, nil, func(_ context.Context, _ transport.Conn, req *transport.Frame, reply func(*transport.Frame)) {
			got <- req
			reply(&transport.Frame{Code: 17, Remark: "no \"such\"\ntopic: ü\x01\x02", Fields: []string{"a", "1"}, Body: []byte("pong")})
		})
		l := listen(t, tr, table)
		c := dial(t, tr, l.Addr(), &transport.Table{Language: transport.Rust, Version: 7})
		want := &sample{Topic: "orders €\x01", Queue: 3, Note: `back\slash`}
		for i := range 3 { // from the second call on, another codec may be in use
			req := &transport.Frame{Code: 77, Header: want, Fields: []string{"extra", "x y"}, Body: []byte("ping")}
			resp := call(t, c, req)
			if resp.Code != 17 || resp.Remark != "no \"such\"\ntopic: ü\x01\x02" || string(resp.Body) != "pong" ||
				!resp.IsResponse() || resp.Language != transport.Go || resp.Version != 409 {
				t.Errorf("call %d: response %+v", i, resp)
			}
			if v, ok := resp.Field("a"); !ok || v != "1" {
				t.Errorf("call %d: ext field a is %q, %v", i, v, ok)
			}
			in := <-got
			h, err := transport.HeaderOf[sample](in)
			if err != nil || *h != *want {
				t.Errorf("call %d: header %+v, %v", i, h, err)
			}
			if v, _ := in.Field("extra"); v != "x y" || string(in.Body) != "ping" || in.Language != transport.Rust || in.Version != 7 {
				t.Errorf("call %d: request %+v", i, in)
			}
			if req.Opaque != 0 || req.Version != 0 || len(req.Fields) != 2 {
				t.Errorf("call %d: the caller's frame was written: %+v", i, req)
			}
		}
	})
}

func TestBodiesOfAllSizes(t *testing.T) {
	eachNetwork(t, settings{}, func(t *testing.T, tr transport.Transport) {
		c := dial(t, tr, listen(t, tr, suite(nil)).Addr(), nil)
		for _, n := range []int{0, 1, 4095, 4096, 16 << 10, 16<<10 + 1, 65536, 256<<10 - 1, 256<<10 + 1, 1 << 20, 4<<20 + 17} {
			body := bytes.Repeat([]byte{byte(n), 1, 2, 3, 5, 7, 11}, n/7+1)[:n]
			resp := call(t, c, &transport.Frame{Code: codeEcho, Body: body, Fields: []string{"properties", strings.Repeat("p\x01", 16<<10)}})
			if !bytes.Equal(resp.Body, body) {
				t.Fatalf("body of %d bytes came back as %d other bytes", n, len(resp.Body))
			}
		}
	})
}

func TestRequestsKeepTheirOrder(t *testing.T) {
	const n = 2000
	eachNetwork(t, settings{}, func(t *testing.T, tr transport.Transport) {
		var order []string
		done := make(chan struct{})
		table := &transport.Table{}
		table.Handle(1, nil, func(_ context.Context, _ transport.Conn, req *transport.Frame, reply func(*transport.Frame)) {
			if order = append(order, string(req.Body)); len(order) == n {
				close(done)
			}
			reply(&transport.Frame{})
		})
		c := dial(t, tr, listen(t, tr, table).Addr(), nil)
		for i := range n {
			req := &transport.Frame{Code: 1, Body: fmt.Append(nil, i)}
			var err error
			if i%3 == 0 {
				err = c.Send(req)
			} else {
				err = c.Go(t.Context(), req, time.Now().Add(time.Minute), func(*transport.Frame, error) {})
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		wait(t, done, "all requests")
		for i, got := range order {
			if got != fmt.Sprint(i) {
				t.Fatalf("request %d arrived at place %s", i, got)
			}
		}
	})
}

func TestServerCallsClient(t *testing.T) {
	eachNetwork(t, settings{}, func(t *testing.T, tr transport.Transport) {
		accepted := make(chan transport.Conn, 1)
		table := suite(nil)
		table.Opened = func(c transport.Conn) { accepted <- c }
		back := &transport.Table{}
		back.Handle(40, nil, func(_ context.Context, _ transport.Conn, req *transport.Frame, reply func(*transport.Frame)) {
			reply(&transport.Frame{Body: append([]byte("client got "), req.Body...)})
		})
		c := dial(t, tr, listen(t, tr, table).Addr(), back)
		for range 3 {
			call(t, c, &transport.Frame{Code: codeEcho})
		}
		s := wait(t, accepted, "the accepted connection")
		if s.RemoteAddr() != c.LocalAddr() || s.LocalAddr() != c.RemoteAddr() {
			t.Errorf("addresses do not match: %s-%s and %s-%s", c.LocalAddr(), c.RemoteAddr(), s.LocalAddr(), s.RemoteAddr())
		}
		resp := call(t, s, &transport.Frame{Code: 40, Body: []byte("it")})
		if string(resp.Body) != "client got it" {
			t.Errorf("the client answered %q", resp.Body)
		}
	})
}

func TestUnknownCodeAndPanicAreAnswered(t *testing.T) {
	eachNetwork(t, settings{}, func(t *testing.T, tr transport.Transport) {
		table := suite(nil)
		pool := transport.NewPool(1, 1)
		defer pool.Close()
		table.Handle(codePool, pool, func(context.Context, transport.Conn, *transport.Frame, func(*transport.Frame)) {
			panic("in the pool")
		})
		c := dial(t, tr, listen(t, tr, table).Addr(), nil)
		if r := call(t, c, &transport.Frame{Code: 999}); r.Code != 3 || !strings.Contains(r.Remark, "999") {
			t.Errorf("an unknown code was answered %d %q", r.Code, r.Remark)
		}
		for _, code := range []int32{codePanic, codePool} {
			if r := call(t, c, &transport.Frame{Code: code}); r.Code != 1 || !strings.Contains(r.Remark, "panicked") {
				t.Errorf("a panic was answered %d %q", r.Code, r.Remark)
			}
		}
		call(t, c, &transport.Frame{Code: codeEcho}) // the connection lives
	})
}

func TestTimeOutsAndLateReplies(t *testing.T) {
	const n = 10000
	eachNetwork(t, settings{}, func(t *testing.T, tr transport.Transport) {
		stalled := make(replies, n)
		c := dial(t, tr, listen(t, tr, suite(stalled)).Addr(), nil)
		var wg sync.WaitGroup
		var wrong atomic.Int32
		wg.Add(n)
		for range n {
			err := c.Go(t.Context(), &transport.Frame{Code: codeStall}, time.Now().Add(50*time.Millisecond), func(f *transport.Frame, err error) {
				if f != nil || !errors.Is(err, transport.ErrTimeout) || !errors.Is(err, context.DeadlineExceeded) {
					wrong.Add(1)
				}
				wg.Done()
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		wg.Wait()
		if wrong.Load() > 0 {
			t.Errorf("%d of %d calls ended otherwise than by time-out", wrong.Load(), n)
		}
		for range n {
			wait(t, stalled, "a stalled request")(&transport.Frame{Remark: "late"})
		}
		call(t, c, &transport.Frame{Code: codeEcho}) // stands behind all late replies
		if left := transport.InFlight(c); left != 0 {
			t.Errorf("%d calls are left in the table", left)
		}
	})
}

func TestCallEndsWithItsContext(t *testing.T) {
	eachNetwork(t, settings{}, func(t *testing.T, tr transport.Transport) {
		stalled := make(replies, 4)
		c := dial(t, tr, listen(t, tr, suite(stalled)).Addr(), nil)
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		defer cancel()
		if _, err := c.Call(ctx, &transport.Frame{Code: codeStall}); !errors.Is(err, transport.ErrTimeout) {
			t.Errorf("a call past its deadline gave %v", err)
		}
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		if err := c.Go(ctx, &transport.Frame{Code: codeStall}, time.Now().Add(time.Hour), func(_ *transport.Frame, err error) { ended <- err }); err != nil {
			t.Fatal(err)
		}
		stop()
		if err := wait(t, ended, "the cancelled call"); !errors.Is(err, context.Canceled) {
			t.Errorf("a cancelled Go gave %v", err)
		}
		if err := c.Go(ctx, &transport.Frame{Code: codeEcho}, time.Time{}, nil); !errors.Is(err, context.Canceled) {
			t.Errorf("a Go under a cancelled context gave %v", err)
		}
		if left := transport.InFlight(c); left != 0 {
			t.Errorf("%d calls are left in the table", left)
		}
	})
}

func TestDefaultCallTimeout(t *testing.T) {
	eachNetwork(t, settings{callTimeout: 30 * time.Millisecond}, func(t *testing.T, tr transport.Transport) {
		c := dial(t, tr, listen(t, tr, suite(make(replies, 1))).Addr(), nil)
		ended := make(chan error, 1)
		if err := c.Go(t.Context(), &transport.Frame{Code: codeStall}, time.Time{}, func(_ *transport.Frame, err error) { ended <- err }); err != nil {
			t.Fatal(err)
		}
		if err := wait(t, ended, "the time-out"); !errors.Is(err, transport.ErrTimeout) {
			t.Errorf("ended with %v", err)
		}
	})
}
