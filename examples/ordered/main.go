// Ordered sends the steps of several orders with the order's number as shard key
// and receives them with an ordered consumer: the steps of one order arrive one
// after the other, also when one of them fails at first.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"sync"
	"time"

	"github.com/pocketmq/mq"
	"github.com/pocketmq/mq/transport"
)

var steps = []string{"created", "paid", "packed", "shipped"}

const orders = 4

func main() {
	if err := run(); err != nil {
		log.Fatal(err)
	}
}

func run() error {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	net := transport.NewMemory(transport.MemoryConfig{})
	ns, err := mq.NewNameServer(mq.NameServerConfig{Transport: net})
	if err != nil {
		return err
	}
	if err := ns.Start(ctx); err != nil {
		return err
	}
	defer ns.Close()
	names := []string{ns.Addr()}
	broker, err := mq.NewBroker(mq.BrokerConfig{Transport: net, NameServers: names})
	if err != nil {
		return err
	}
	if err := broker.Start(ctx); err != nil {
		return err
	}
	defer broker.Close()
	if err := send(ctx, net, names); err != nil {
		return err
	}
	return receive(ctx, net, names)
}

func send(ctx context.Context, net transport.Transport, names []string) error {
	producer, err := mq.NewProducer(mq.ProducerConfig{Transport: net, NameServers: names, Group: "shop"})
	if err != nil {
		return err
	}
	if err := producer.Start(ctx); err != nil {
		return err
	}
	defer producer.Close()
	for _, step := range steps {
		for order := range orders {
			m := &mq.Message{Topic: "steps", ShardKey: fmt.Sprint("order-", order), Body: []byte(step)}
			if _, err := producer.Send(ctx, m); err != nil {
				return err
			}
		}
	}
	fmt.Printf("sent %d steps of %d orders, mixed\n", orders*len(steps), orders)
	return nil
}

func receive(ctx context.Context, net transport.Transport, names []string) error {
	consumer, err := mq.NewConsumer(mq.ConsumerConfig{Transport: net, NameServers: names, Group: "tracker",
		Ordered: true, Start: mq.FromFirst, Suspend: 50 * time.Millisecond})
	if err != nil {
		return err
	}
	var mu sync.Mutex
	seen, refused, left := make(map[string]int), false, orders*len(steps)
	done := make(chan error, 1)
	err = consumer.Subscribe("steps", mq.Filter{}, func(ctx context.Context, d *mq.Delivery) error {
		mu.Lock()
		defer mu.Unlock()
		if string(d.Body) == "packed" && d.ShardKey == "order-2" && !refused {
			refused = true
			fmt.Printf("%s  %-8s  refused once, its queue waits\n", d.ShardKey, d.Body)
			return errors.New("the packing machine is stuck")
		}
		fmt.Printf("%s  %-8s  queue %d, attempt %d\n", d.ShardKey, d.Body, d.Queue.ID, d.Attempt)
		if steps[seen[d.ShardKey]] != string(d.Body) {
			done <- fmt.Errorf("%s: %s came out of order", d.ShardKey, d.Body)
		}
		seen[d.ShardKey]++
		if left--; left == 0 {
			done <- nil
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
	case err := <-done:
		if err == nil {
			fmt.Println("every order went through its steps in order")
		}
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}
