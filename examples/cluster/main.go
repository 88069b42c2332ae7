// Cluster runs two name servers and two brokers over TCP on free ports, sends
// without pause, and stops one broker on the way: sends go on with the other one,
// and everything that was acknowledged and still has a broker is received.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"sync"
	"time"

	"github.com/pocketmq/mq"
)

const messages = 200

func main() {
	if err := run(); err != nil {
		log.Fatal(err)
	}
}

func run() (err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	var closers []func() error
	defer func() {
		for i := len(closers) - 1; i >= 0; i-- {
			err = errors.Join(err, closers[i]())
		}
	}()

	var names []string
	for range 2 {
		ns, err := mq.NewNameServer(mq.NameServerConfig{Listen: "127.0.0.1:0"})
		if err != nil {
			return err
		}
		if err := ns.Start(ctx); err != nil {
			return err
		}
		closers = append(closers, ns.Close)
		names = append(names, ns.Addr())
	}
	var brokers []*mq.Broker
	for _, name := range []string{"broker-a", "broker-b"} {
		b, err := mq.NewBroker(mq.BrokerConfig{Listen: "127.0.0.1:0", Name: name, NameServers: names})
		if err != nil {
			return err
		}
		if err := b.Start(ctx); err != nil {
			return err
		}
		closers = append(closers, b.Close)
		brokers = append(brokers, b)
	}
	fmt.Printf("name servers %v, brokers %s and %s\n", names, brokers[0].Addr(), brokers[1].Addr())

	received := &tally{ids: make(map[string]string)}
	consumer, err := mq.NewConsumer(mq.ConsumerConfig{NameServers: names, Group: "billing", Start: mq.FromFirst})
	if err != nil {
		return err
	}
	if err := consumer.Subscribe("orders", mq.Filter{}, received.add); err != nil {
		return err
	}
	producer, err := mq.NewProducer(mq.ProducerConfig{NameServers: names, Group: "shop"})
	if err != nil {
		return err
	}
	if err := producer.Start(ctx); err != nil {
		return err
	}
	closers = append(closers, producer.Close)

	sent := &tally{ids: make(map[string]string)}
	for i := range messages {
		if i == 0 || i == messages/2 {
			if err := milestone(ctx, i, consumer, brokers[1], sent, received); err != nil {
				return err
			}
		}
		res, err := producer.Send(ctx, &mq.Message{Topic: "orders", Body: fmt.Appendf(nil, "order %d", i)})
		if err != nil {
			return fmt.Errorf("message %d: %w", i, err)
		}
		sent.put(res.ID, res.Queue.Broker)
	}
	closers = append(closers, consumer.Close)
	if err := received.wait(ctx, sent); err != nil {
		return err
	}
	fmt.Printf("sent %v, every one received\n", sent.perBroker())
	return nil
}

// milestone starts the consumer at the beginning, and half-way through waits until
// the consumer is up to date and stops a broker.
func milestone(ctx context.Context, i int, consumer *mq.Consumer, b *mq.Broker, sent, received *tally) error {
	if i == 0 {
		return consumer.Start(ctx)
	}
	if err := received.wait(ctx, sent); err != nil {
		return err
	}
	fmt.Printf("after %d messages (%v): stopping broker-b\n", i, sent.perBroker())
	return b.Close()
}

// tally remembers which message went through which broker.
type tally struct {
	mu  sync.Mutex
	ids map[string]string
}

func (t *tally) put(id, broker string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ids[id] = broker
}

func (t *tally) add(_ context.Context, d *mq.Delivery) error {
	t.put(d.ID, d.Queue.Broker)
	return nil
}

func (t *tally) perBroker() map[string]int {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := make(map[string]int)
	for _, broker := range t.ids {
		n[broker]++
	}
	return n
}

// wait returns when everything in sent is here too.
func (t *tally) wait(ctx context.Context, sent *tally) error {
	for {
		missing := 0
		sent.mu.Lock()
		t.mu.Lock()
		for id := range sent.ids {
			if _, ok := t.ids[id]; !ok {
				missing++
			}
		}
		t.mu.Unlock()
		sent.mu.Unlock()
		if missing == 0 {
			return nil
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("%d messages missing: %w", missing, ctx.Err())
		}
	}
}
