package mq

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/pocketmq/mq/transport"
)

// BenchmarkConsume is a consumer that works off a backlog of 128-byte messages, in
// one process, on a broker in memory. ns/op is per message.
func BenchmarkConsume(b *testing.B) {
	for _, queues := range []int{4, 16} {
		b.Run(fmt.Sprintf("queues=%d", queues), func(b *testing.B) { benchmarkConsume(b, queues, false) })
		b.Run(fmt.Sprintf("batch/queues=%d", queues), func(b *testing.B) { benchmarkConsume(b, queues, true) })
	}
}

func benchmarkConsume(b *testing.B, queues int, batches bool) {
	net := transport.NewMemory(transport.MemoryConfig{})
	ns, err := NewNameServer(NameServerConfig{Transport: net, Listen: "127.0.0.1:9876"})
	must(b, err)
	must(b, ns.Start(b.Context()))
	defer ns.Close()
	names := []string{ns.Addr()}
	broker, err := NewBroker(BrokerConfig{Transport: net, NameServers: names, Listen: "127.0.0.1:0", DefaultQueues: queues})
	must(b, err)
	must(b, broker.Start(b.Context()))
	defer broker.Close()
	fillBacklog(b, net, names, b.N, queues)

	consumer, err := NewConsumer(ConsumerConfig{Transport: net, NameServers: names, Group: "bench", Start: FromFirst})
	must(b, err)
	defer consumer.Close()
	var got atomic.Int64
	all := make(chan struct{})
	count := func(n int) error {
		if got.Add(int64(n)) == int64(b.N) {
			close(all)
		}
		return nil
	}
	if batches {
		err = consumer.SubscribeBatch("backlog", Filter{}, func(_ context.Context, batch []*Delivery) error { return count(len(batch)) })
	} else {
		err = consumer.Subscribe("backlog", Filter{}, func(context.Context, *Delivery) error { return count(1) })
	}
	must(b, err)
	b.ReportAllocs()
	b.SetBytes(128)
	b.ResetTimer()
	must(b, consumer.Start(b.Context()))
	<-all
	b.StopTimer()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "msgs/s")
}

// fillBacklog sends n messages in batches.
func fillBacklog(b *testing.B, net transport.Transport, names []string, n, queues int) {
	p, err := NewProducer(ProducerConfig{Transport: net, NameServers: names, Group: "fill", DefaultQueues: queues})
	must(b, err)
	must(b, p.Start(b.Context()))
	defer p.Close()
	body := make([]byte, 128)
	for n > 0 {
		batch := make([]*Message, min(n, 256))
		for i := range batch {
			batch[i] = &Message{Topic: "backlog", Body: body}
		}
		_, err := p.SendBatch(b.Context(), batch)
		must(b, err)
		n -= len(batch)
	}
}

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}
