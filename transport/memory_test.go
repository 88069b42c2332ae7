package transport_test

import (
	"context"
	"errors"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pocketmq/mq/transport"
)

// A bubble fails when a goroutine is left, so each of these tests also checks
// that everything ends.

func TestMemoryEndsInABubble(t *testing.T) {
	for _, e := range []transport.Encoding{transport.EncodeDefault, transport.EncodeMsgPack} {
		synctest.Test(t, func(t *testing.T) {
			net := transport.NewMemory(transport.MemoryConfig{Encoding: e})
			stalled := make(replies, 1)
			pool := transport.NewPool(2, 2)
			table := suite(stalled)
			table.Handle(codePool, pool, func(_ context.Context, _ transport.Conn, _ *transport.Frame, reply func(*transport.Frame)) {
				time.Sleep(time.Second)
				reply(&transport.Frame{})
			})
			l, err := net.Listen(t.Context(), "127.0.0.1:0", table)
			if err != nil {
				t.Fatal(err)
			}
			c, err := net.Dial(t.Context(), l.Addr(), nil)
			if err != nil {
				t.Fatal(err)
			}
			call(t, c, &transport.Frame{Code: codePool})
			start := time.Now()
			ended := make(chan error, 1)
			if err := c.Go(t.Context(), &transport.Frame{Code: codeStall}, start.Add(time.Hour), func(_ *transport.Frame, err error) { ended <- err }); err != nil {
				t.Fatal(err)
			}
			if err := <-ended; !errors.Is(err, transport.ErrTimeout) {
				t.Errorf("ended with %v", err)
			}
			if d := time.Since(start); d < time.Hour || d > time.Hour+time.Millisecond {
				t.Errorf("a deadline in an hour passed after %v", d)
			}
			c.Close()
			if err := l.Close(); err != nil {
				t.Error(err)
			}
			pool.Close()
		})
	}
}

func TestMemoryNetworksNeverMeet(t *testing.T) {
	a, b := transport.NewMemory(transport.MemoryConfig{}), transport.NewMemory(transport.MemoryConfig{})
	l := listen(t, a, suite(nil))
	if _, err := b.Dial(t.Context(), l.Addr(), nil); err == nil {
		t.Error("one network dialled into another")
	}
	listenAt(t, b, l.Addr())
}

func listenAt(t *testing.T, tr transport.Transport, addr string) transport.Listener {
	t.Helper()
	l, err := tr.Listen(t.Context(), addr, suite(nil))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

func TestMemoryAddresses(t *testing.T) {
	net := transport.NewMemory(transport.MemoryConfig{})
	east := net.Host("10.0.0.1")
	for addr, want := range map[string]string{
		"127.0.0.1:9876": "127.0.0.1:9876", "localhost:9877": "127.0.0.1:9877", ":9878": "10.0.0.1:9878",
		"0.0.0.0:9879": "10.0.0.1:9879", "[::1]:9880": "[::1]:9880",
	} {
		if l := listenAt(t, east, addr); l.Addr() != want {
			t.Errorf("listening on %s gave %s", addr, l.Addr())
		}
	}
	for _, bad := range []string{"", "1.2.3.4", "broker:10911", "1.2.3.4:x", "1.2.3.4:70000"} {
		if _, err := net.Listen(t.Context(), bad, nil); err == nil {
			t.Errorf("listened on %q", bad)
		}
	}
	c := dial(t, east, "127.0.0.1:9876", nil)
	if from := netip.MustParseAddrPort(c.LocalAddr()); from.Addr().String() != "10.0.0.1" || from.Port() == 0 {
		t.Errorf("dialled from %s", from)
	}
	if c.RemoteAddr() != "127.0.0.1:9876" {
		t.Errorf("the peer is %s", c.RemoteAddr())
	}
}

// world is a network of two hosts with a connection between them.
func world(t *testing.T, e transport.Encoding) (*transport.Memory, transport.Listener, transport.Conn) {
	net := transport.NewMemory(transport.MemoryConfig{Encoding: e})
	l := listenAt(t, net.Host("10.0.0.1"), ":0")
	return net, l, dial(t, net.Host("10.0.0.2"), l.Addr(), nil)
}

func TestMemoryDelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net, l, c := world(t, transport.EncodeDefault)
		net.Delay("10.0.0.2", l.Addr(), 30*time.Millisecond)
		net.Delay(l.Addr(), "", 12*time.Millisecond)
		start := time.Now()
		call(t, c, &transport.Frame{Code: codeEcho})
		if d := time.Since(start); d != 42*time.Millisecond {
			t.Errorf("a round trip took %v", d)
		}
		net.Delay("10.0.0.2", l.Addr(), 0)
		net.Delay(l.Addr(), "", 0)
		start = time.Now()
		call(t, c, &transport.Frame{Code: codeEcho})
		if d := time.Since(start); d != 0 {
			t.Errorf("without delay a round trip took %v", d)
		}
	})
}

func TestMemoryDrop(t *testing.T) {
	for _, e := range []transport.Encoding{transport.EncodeDefault, transport.EncodeJSON} {
		synctest.Test(t, func(t *testing.T) {
			net, _, c := world(t, e)
			stop := net.Drop("10.0.0.2", "10.0.0.1", func(f *transport.Frame) bool { return f.Code == codeEcho })
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			if _, err := c.Call(ctx, &transport.Frame{Code: codeEcho}); !errors.Is(err, transport.ErrTimeout) {
				t.Errorf("a dropped request gave %v", err)
			}
			if r := call(t, c, &transport.Frame{Code: 99}); r.Code != 3 {
				t.Errorf("another request was answered %d", r.Code)
			}
			stop()
			stop()
			call(t, c, &transport.Frame{Code: codeEcho})
		})
	}
}

func TestMemoryPartitionHoldsAndHeals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net, l, c := world(t, transport.EncodeDefault)
		net.Partition("10.0.0.1", "10.0.0.2")
		start := time.Now()
		time.AfterFunc(10*time.Second, func() { net.Heal("10.0.0.2", "10.0.0.1") })
		call(t, c, &transport.Frame{Code: codeEcho})
		if d := time.Since(start); d != 10*time.Second {
			t.Errorf("the call got through after %v", d)
		}
		net.Partition("10.0.0.1", "10.0.0.2")
		start = time.Now()
		_, err := net.Host("10.0.0.2").Dial(t.Context(), l.Addr(), nil)
		if !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != 3*time.Second {
			t.Errorf("a dial across the partition: %v after %v", err, time.Since(start))
		}
		call(t, dial(t, net.Host("10.0.0.3"), l.Addr(), nil), &transport.Frame{Code: codeEcho})
		time.AfterFunc(time.Second, func() { net.Heal("10.0.0.1", "10.0.0.2") })
		call(t, dial(t, net.Host("10.0.0.2"), l.Addr(), nil), &transport.Frame{Code: codeEcho})
	})
}

func TestMemoryCut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net, l, c := world(t, transport.EncodeDefault)
		other := dial(t, net.Host("10.0.0.3"), l.Addr(), nil)
		call(t, other, &transport.Frame{Code: codeEcho})
		net.Cut("10.0.0.2")
		<-c.Done()
		if _, err := c.Call(t.Context(), &transport.Frame{Code: codeEcho}); !errors.Is(err, transport.ErrClosed) {
			t.Errorf("a call on a cut connection gave %v", err)
		}
		call(t, other, &transport.Frame{Code: codeEcho})
		net.Cut(l.Addr())
		<-other.Done()
		call(t, dial(t, net.Host("10.0.0.2"), l.Addr(), nil), &transport.Frame{Code: codeEcho})
	})
}

func TestMemoryHandsOverByPointer(t *testing.T) {
	net := transport.NewMemory(transport.MemoryConfig{})
	header, body := &sample{Topic: "t"}, []byte("body")
	got := make(chan *transport.Frame, 1)
	table := &transport.Table{}
	table.Handle(1, nil, func(_ context.Context, _ transport.Conn, req *transport.Frame, reply func(*transport.Frame)) {
		got <- req
		reply(&transport.Frame{})
	})
	c := dial(t, net, listen(t, net, table).Addr(), nil)
	call(t, c, &transport.Frame{Code: 1, Header: header, Body: body})
	in := <-got
	if h, err := transport.HeaderOf[sample](in); err != nil || h != header {
		t.Errorf("the header is another: %v, %v", h, err)
	}
	if &in.Body[0] != &body[0] {
		t.Error("the body was copied")
	}
}
