// Package interop runs official clients of Apache RocketMQ, unmodified, against
// our broker over TCP.
package interop

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	rocketmq "github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
	"github.com/apache/rocketmq-client-go/v2/rlog"

	"github.com/pocketmq/mq"
)

func init() { rlog.SetLogLevel("error") }

// cluster is our name server and our broker on free ports of 127.0.0.1.
type cluster struct {
	t      *testing.T
	ns     *mq.NameServer
	broker *mq.Broker
}

func start(t *testing.T) *cluster {
	t.Helper()
	ns, err := mq.NewNameServer(mq.NameServerConfig{Listen: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	if err := ns.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ns.Close() })
	b, err := mq.NewBroker(mq.BrokerConfig{Listen: "127.0.0.1:0", Name: "broker-a", NameServers: []string{ns.Addr()}, Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Close() })
	return &cluster{t, ns, b}
}

func (c *cluster) resolver() primitive.NsResolver {
	return primitive.NewPassthroughResolver([]string{c.ns.Addr()})
}

// instance is a name of its own for each client: the official client shares one
// connection set among all of a process that have equal names.
func instance(t *testing.T, what string) string {
	return strings.ReplaceAll(t.Name(), "/", "-") + "-" + what
}

func (c *cluster) producer(opts ...producer.Option) rocketmq.Producer {
	c.t.Helper()
	opts = append([]producer.Option{producer.WithNsResolver(c.resolver()), producer.WithGroupName("go-producers"),
		producer.WithInstanceName(instance(c.t, "producer")), producer.WithRetry(2)}, opts...)
	p, err := rocketmq.NewProducer(opts...)
	if err != nil {
		c.t.Fatal(err)
	}
	if err := p.Start(); err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { p.Shutdown() })
	return p
}

func (c *cluster) consumer(group, member string, opts ...consumer.Option) rocketmq.PushConsumer {
	c.t.Helper()
	opts = append([]consumer.Option{consumer.WithNsResolver(c.resolver()), consumer.WithGroupName(group),
		consumer.WithInstance(instance(c.t, member)), consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset)}, opts...)
	p, err := rocketmq.NewPushConsumer(opts...)
	if err != nil {
		c.t.Fatal(err)
	}
	return p
}

type handler func(context.Context, ...*primitive.MessageExt) (consumer.ConsumeResult, error)

func (c *cluster) consume(p rocketmq.PushConsumer, topic, tags string, h handler) {
	c.t.Helper()
	if err := p.Subscribe(topic, consumer.MessageSelector{Type: consumer.TAG, Expression: tags}, h); err != nil {
		c.t.Fatal(err)
	}
	if err := p.Start(); err != nil {
		c.t.Fatal(err)
	}
	var once sync.Once
	c.t.Cleanup(func() { once.Do(func() { p.Shutdown() }) })
}

func (c *cluster) send(p rocketmq.Producer, topic string, from, n int, edit func(*primitive.Message)) []*primitive.SendResult {
	c.t.Helper()
	var results []*primitive.SendResult
	for i := range n {
		m := primitive.NewMessage(topic, fmt.Appendf(nil, "%s %d", topic, from+i))
		if edit != nil {
			edit(m)
		}
		res, err := p.SendSync(c.t.Context(), m)
		if err != nil {
			c.t.Fatal(err)
		}
		if res.Status != primitive.SendOK {
			c.t.Fatalf("message %d: status %v", from+i, res.Status)
		}
		results = append(results, res)
	}
	return results
}

// inbox collects what listeners got.
type inbox struct {
	mu   sync.Mutex
	got  []*primitive.MessageExt
	more chan struct{}
}

func newInbox() *inbox { return &inbox{more: make(chan struct{}, 1)} }

func (in *inbox) listen(_ context.Context, msgs ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
	in.mu.Lock()
	in.got = append(in.got, msgs...)
	in.mu.Unlock()
	select {
	case in.more <- struct{}{}:
	default:
	}
	return consumer.ConsumeSuccess, nil
}

func (in *inbox) all() []*primitive.MessageExt {
	in.mu.Lock()
	defer in.mu.Unlock()
	return slices.Clone(in.got)
}

// bodies are the different bodies so far, sorted.
func (in *inbox) bodies() []string {
	var texts []string
	for _, m := range in.all() {
		texts = append(texts, string(m.Body))
	}
	slices.Sort(texts)
	return slices.Compact(texts)
}

func (in *inbox) wait(t *testing.T, n int, limit time.Duration) {
	t.Helper()
	timeout := time.After(limit)
	for len(in.bodies()) < n {
		select {
		case <-in.more:
		case <-timeout:
			t.Fatalf("%d of %d messages after %v: %v", len(in.bodies()), n, limit, in.bodies())
		}
	}
}
