package transport_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/pocketmq/mq/transport"
)

// sendLike is a header of the size and shape of a send request.
var sendLike = []string{"a", "producers", "b", "orders", "c", "TBW102", "d", "4", "e", "3", "f", "0", "g", "1700000000000", "h", "0",
	"i", "UNIQ_KEY\x017F0000010000002A9F000000000000\x02WAIT\x01true\x02TAGS\x01paid\x02", "j", "0", "k", "false", "m", "false"}

// BenchmarkGo is the rate of asynchronous round trips over one connection, the
// request with a send's header and a body of the given size, the answer short.
func BenchmarkGo(b *testing.B) {
	for _, n := range networks() {
		for _, size := range []int{128, 1 << 10, 16 << 10} {
			b.Run(fmt.Sprintf("%s/%d", n.name, size), func(b *testing.B) {
				b.SetBytes(int64(size))
				benchGo(b, n.make(b, settings{}), make([]byte, size))
			})
		}
	}
}

func benchConn(b *testing.B, tr transport.Transport) transport.Conn {
	t := &transport.Table{Language: transport.Go, Version: 409}
	t.Handle(310, nil, func(_ context.Context, _ transport.Conn, _ *transport.Frame, reply func(*transport.Frame)) {
		reply(&transport.Frame{Fields: []string{"msgId", "7F00000100002A9F0000000000000000", "queueId", "3", "queueOffset", "5"}})
	})
	c := dial(b, tr, listen(b, tr, t).Addr(), nil)
	call(b, c, &transport.Frame{Code: 310}) // the codec is agreed on
	return c
}

func benchGo(b *testing.B, tr transport.Transport, body []byte) {
	c := benchConn(b, tr)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var wg sync.WaitGroup
	done := func(_ *transport.Frame, err error) {
		if err != nil {
			b.Error(err)
		}
		wg.Done()
	}
	deadline := time.Now().Add(time.Minute)
	b.ReportAllocs()
	b.ResetTimer()
	wg.Add(b.N)
	for range b.N {
		if err := c.Go(ctx, &transport.Frame{Code: 310, Fields: sendLike, Body: body}, deadline, done); err != nil {
			b.Fatal(err)
		}
	}
	wg.Wait()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "calls/s")
}

// BenchmarkCall is the latency of one waiting round trip.
func BenchmarkCall(b *testing.B) {
	for _, n := range networks() {
		b.Run(n.name, func(b *testing.B) {
			c := benchConn(b, n.make(b, settings{}))
			req := &transport.Frame{Code: 310, Fields: sendLike, Body: make([]byte, 128)}
			b.ReportAllocs()
			for b.Loop() {
				if _, err := c.Call(context.Background(), req); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
