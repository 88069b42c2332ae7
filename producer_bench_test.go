package mq

import (
	"context"
	"sync"
	"testing"

	"github.com/pocketmq/mq/internal/wire"
	"github.com/pocketmq/mq/transport"
)

// startTrivialBroker answers every send from its reader, so that the benchmarks
// measure the client's side and the transport.
func startTrivialBroker(b *testing.B) *Producer {
	net := transport.NewMemory(transport.MemoryConfig{})
	names := newFakeNames(b, net, "127.0.0.1:9876")
	broker := &fakeBroker{t: b, net: net, name: "broker-a", addr: "127.0.0.1:10911"}
	names.set("t", 8, broker)
	answer := &transport.Frame{Header: &wire.SendResponse{MsgID: "0A00000100002A9F0000000000000000", TraceOn: true}}
	table := &transport.Table{Language: transport.Java, Version: protocolVersion}
	table.Handle(wire.CodeSendMessageV2, nil, func(_ context.Context, _ transport.Conn, _ *transport.Frame, reply func(*transport.Frame)) {
		f := *answer
		reply(&f)
	})
	table.Handle(wire.CodeHeartBeat, nil, func(_ context.Context, _ transport.Conn, _ *transport.Frame, reply func(*transport.Frame)) {
		reply(&transport.Frame{})
	})
	l, err := net.Listen(context.Background(), broker.addr, table)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { l.Close() })
	p, err := NewProducer(ProducerConfig{Transport: net, NameServers: []string{names.addr}, Group: "g", AsyncWindow: 4096})
	if err != nil {
		b.Fatal(err)
	}
	if err := p.Start(context.Background()); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { p.Close() })
	return p
}

func BenchmarkSendAsync128B(b *testing.B) {
	p := startTrivialBroker(b)
	m := &Message{Topic: "t", Body: make([]byte, 128)}
	var all sync.WaitGroup
	all.Add(b.N)
	done := func(_ *SendResult, err error) {
		if err != nil {
			b.Error(err)
		}
		all.Done()
	}
	b.ReportAllocs()
	b.ResetTimer()
	for range b.N {
		if err := p.SendAsync(context.Background(), m, done); err != nil {
			b.Fatal(err)
		}
	}
	all.Wait()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "msg/s")
}

func BenchmarkSend128B(b *testing.B) {
	p := startTrivialBroker(b)
	m := &Message{Topic: "t", Body: make([]byte, 128)}
	b.ReportAllocs()
	b.ResetTimer()
	for range b.N {
		if _, err := p.Send(context.Background(), m); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "msg/s")
}

func BenchmarkSend128BFrom64(b *testing.B) {
	p := startTrivialBroker(b)
	m := &Message{Topic: "t", Body: make([]byte, 128)}
	b.ReportAllocs()
	b.SetParallelism(32)
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if _, err := p.Send(context.Background(), m); err != nil {
				b.Error(err)
			}
		}
	})
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "msg/s")
}
