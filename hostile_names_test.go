package mq

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pocketmq/mq/internal/wire"
	"github.com/pocketmq/mq/transport"
)

// A name server that is not ours, or not itself, may answer anything. Clients
// take no harm: neither do they fill the memory, nor hang, nor fall over.
func TestAbsurdRoutesHarmNoClient(t *testing.T) {
	brokers := func(addr string) string {
		return fmt.Sprintf(`"brokerDatas":[{"brokerAddrs":{"0":%q},"brokerName":"b","cluster":"c"}]`, addr)
	}
	queues := func(read, write string) string {
		return fmt.Sprintf(`"queueDatas":[{"brokerName":"b","perm":6,"readQueueNums":%s,"writeQueueNums":%s,"topicSynFlag":0}]`, read, write)
	}
	for what, body := range map[string]string{
		"nothing":                 ``,
		"an empty route":          `{}`,
		"no JSON":                 `route`,
		"null":                    `null`,
		"a list":                  `[]`,
		"deep JSON":               strings.Repeat(`{"queueDatas":[`, 100_000),
		"no queues":               `{` + brokers("10.9.9.9:1") + `,"queueDatas":[]}`,
		"no brokers":              `{"brokerDatas":[],` + queues("4", "4") + `}`,
		"2^31 queues":             `{` + brokers("10.9.9.9:1") + `,` + queues("2147483647", "2147483647") + `}`,
		"2^31 ordered queues":     `{` + brokers("10.9.9.9:1") + `,"orderTopicConf":"b:2147483647;b:65536;b:65536",` + queues("4", "4") + `}`,
		"negative queues":         `{` + brokers("10.9.9.9:1") + `,` + queues("-1", "-2147483648") + `}`,
		"an address that is none": `{` + brokers("nowhere") + `,` + queues("4", "4") + `}`,
		"an empty address":        `{` + brokers("") + `,` + queues("4", "4") + `}`,
	} {
		t.Run(what, func(t *testing.T) {
			before := heapInUse()
			synctest.Test(t, func(t *testing.T) {
				net := transport.NewMemory(transport.MemoryConfig{})
				table := &transport.Table{}
				table.Handle(wire.CodeGetRouteInfoByTopic, nil, func(_ context.Context, _ transport.Conn, _ *transport.Frame, reply func(*transport.Frame)) {
					reply(&transport.Frame{Body: []byte(body)})
				})
				l, err := net.Listen(t.Context(), "127.0.0.1:9876", table)
				if err != nil {
					t.Fatal(err)
				}
				defer l.Close()
				p, err := NewProducer(ProducerConfig{Transport: net, NameServers: []string{l.Addr()}, Group: "p"})
				if err != nil {
					t.Fatal(err)
				}
				defer p.Close()
				started := make(chan error, 1)
				go func() { started <- p.Start(t.Context()) }()
				select {
				case err = <-started:
				case <-time.After(10 * time.Second): // it goes on trying
					p.Close()
					err = <-started
				}
				if err == nil {
					begun := time.Now()
					if _, err := p.Send(t.Context(), &Message{Topic: "orders", Body: []byte("x")}); err == nil {
						t.Error("a send succeeded")
					}
					if took := time.Since(begun); took > 5*time.Second {
						t.Errorf("a send took %v", took)
					}
				} else if !errors.Is(err, ErrNoNameServer) && !errors.Is(err, ErrClosed) {
					t.Logf("start: %v", err)
				}
				if grown := heapInUse() - before; grown > 64<<20 {
					t.Errorf("a route of %d bytes made the memory grow by %d", len(body), grown)
				}
			})
		})
	}
}
