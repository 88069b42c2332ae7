package transport_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/pocketmq/mq/transport"
)

func echoTable() *transport.Table {
	t := &transport.Table{Language: transport.Go, Version: 409}
	t.Handle(10, nil, func(_ context.Context, _ transport.Conn, req *transport.Frame, reply func(*transport.Frame)) {
		reply(&transport.Frame{Body: req.Body})
	})
	return t
}

func BenchmarkMemoryGo(b *testing.B) {
	net := transport.NewMemory(transport.MemoryConfig{})
	l, err := net.Listen(context.Background(), "127.0.0.1:0", echoTable())
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close()
	c, err := net.Dial(context.Background(), l.Addr(), nil)
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var wg sync.WaitGroup
	done := func(_ *transport.Frame, err error) {
		if err != nil {
			b.Error(err)
		}
		wg.Done()
	}
	b.ReportAllocs()
	b.ResetTimer()
	wg.Add(b.N)
	deadline := time.Now().Add(time.Minute)
	for range b.N {
		if err := c.Go(ctx, &transport.Frame{Code: 10}, deadline, done); err != nil {
			b.Fatal(err)
		}
	}
	wg.Wait()
}

func BenchmarkMemoryCall(b *testing.B) {
	net := transport.NewMemory(transport.MemoryConfig{})
	l, _ := net.Listen(context.Background(), "127.0.0.1:0", echoTable())
	defer l.Close()
	c, err := net.Dial(context.Background(), l.Addr(), nil)
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := c.Call(context.Background(), &transport.Frame{Code: 10}); err != nil {
			b.Fatal(err)
		}
	}
}
