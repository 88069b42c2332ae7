// Durable sends messages to a broker that keeps them in a directory, closes
// everything, starts again, and receives them: nothing that was acknowledged is
// lost.
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"sync/atomic"
	"time"

	"github.com/pocketmq/mq"
	"github.com/pocketmq/mq/transport"
)

func main() {
	dir, err := os.MkdirTemp("", "pocketmq-durable-")
	if err != nil {
		log.Fatal(err)
	}
	err = run(dir)
	if removeErr := os.RemoveAll(dir); err == nil {
		err = removeErr
	}
	if err != nil {
		log.Fatal(err)
	}
}

const messages = 100

func run(dir string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if err := first(ctx, dir); err != nil {
		return err
	}
	return second(ctx, dir)
}

// first sends and closes.
func first(ctx context.Context, dir string) error {
	net, names, stop, err := serve(ctx, dir)
	if err != nil {
		return err
	}
	defer stop()
	producer, err := mq.NewProducer(mq.ProducerConfig{Transport: net, NameServers: names, Group: "shop"})
	if err != nil {
		return err
	}
	if err := producer.Start(ctx); err != nil {
		return err
	}
	defer producer.Close()
	for i := range messages {
		if _, err := producer.Send(ctx, &mq.Message{Topic: "orders", Body: fmt.Appendf(nil, "order %d", i)}); err != nil {
			return err
		}
	}
	fmt.Printf("first run: %d messages acknowledged, each on disk before its answer\n", messages)
	return nil
}

// second starts from the same directory and counts what is there.
func second(ctx context.Context, dir string) error {
	net, names, stop, err := serve(ctx, dir)
	if err != nil {
		return err
	}
	defer stop()
	consumer, err := mq.NewConsumer(mq.ConsumerConfig{Transport: net, NameServers: names, Group: "billing", Start: mq.FromFirst})
	if err != nil {
		return err
	}
	var n atomic.Int64
	all := make(chan struct{})
	err = consumer.Subscribe("orders", mq.Filter{}, func(ctx context.Context, d *mq.Delivery) error {
		if n.Add(1) == messages {
			close(all)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if err := consumer.Start(ctx); err != nil {
		return err
	}
	defer consumer.Close()
	select {
	case <-all:
		fmt.Printf("second run: %d messages received, nothing lost\n", n.Load())
		return nil
	case <-ctx.Done():
		return fmt.Errorf("only %d of %d messages are there: %w", n.Load(), messages, ctx.Err())
	}
}

// serve starts a name server and a broker on the directory.
func serve(ctx context.Context, dir string) (net transport.Transport, names []string, stop func(), err error) {
	net = transport.NewMemory(transport.MemoryConfig{})
	ns, err := mq.NewNameServer(mq.NameServerConfig{Transport: net})
	if err != nil {
		return nil, nil, nil, err
	}
	if err := ns.Start(ctx); err != nil {
		return nil, nil, nil, err
	}
	broker, err := mq.NewBroker(mq.BrokerConfig{Transport: net, NameServers: []string{ns.Addr()}, Dir: dir})
	if err == nil {
		err = broker.Start(ctx)
	}
	if err != nil {
		ns.Close()
		return nil, nil, nil, err
	}
	return net, []string{ns.Addr()}, func() { broker.Close(); ns.Close() }, nil
}
