package mq

import (
	"sync"
	"testing"
	"time"

	"github.com/pocketmq/mq/internal/wire"
	"github.com/pocketmq/mq/transport"
)

// BenchmarkBrokerSend sends over the memory network with up to 4,096 requests in
// flight: handler, lane and answer, without a producer.
func BenchmarkBrokerSend(b *testing.B) {
	for _, size := range []int{128, 1024} {
		b.Run(itemName("B", size), func(b *testing.B) {
			net := transport.NewMemory(transport.MemoryConfig{})
			br, err := NewBroker(BrokerConfig{Transport: net, Dir: b.TempDir()})
			if err != nil {
				b.Fatal(err)
			}
			if err := br.Start(b.Context()); err != nil {
				b.Fatal(err)
			}
			defer func() {
				if err := br.Close(); err != nil {
					b.Error(err)
				}
			}()
			c, err := net.Dial(b.Context(), br.Addr(), &transport.Table{Language: transport.Go, Version: protocolVersion})
			if err != nil {
				b.Fatal(err)
			}
			body := make([]byte, size)
			permits := make(chan struct{}, 4096)
			var wg sync.WaitGroup
			deadline := time.Now().Add(time.Hour)
			done := func(f *transport.Frame, err error) {
				if err != nil || f.Code != wire.Success {
					b.Error(err, f)
				}
				<-permits
				wg.Done()
			}
			b.SetBytes(int64(size))
			b.ReportAllocs()
			b.ResetTimer()
			for i := range b.N {
				permits <- struct{}{}
				wg.Add(1)
				h := &wire.SendRequestV2{ProducerGroup: "p", Topic: "t", DefaultTopic: autoCreateTopic, DefaultTopicQueueNums: 4,
					QueueID: int32(i & 3), BornTimestamp: 1, Properties: "UNIQ_KEY\x017F0000010000000000000000000000A1\x02WAIT\x01true\x02TAGS\x01tag"}
				if err := c.Go(b.Context(), &transport.Frame{Code: wire.CodeSendMessageV2, Header: h, Body: body}, deadline, done); err != nil {
					b.Fatal(err)
				}
			}
			wg.Wait()
			b.StopTimer()
		})
	}
}
