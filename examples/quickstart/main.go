// Quickstart runs name server, broker, producer and consumer in one process and
// in memory: it sends ten messages and receives them.
package main

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/pocketmq/mq"
	"github.com/pocketmq/mq/transport"
)

func main() {
	if err := run(); err != nil {
		log.Fatal(err)
	}
}

func run() error {
	begun := time.Now()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	net := transport.NewMemory(transport.MemoryConfig{}) // leave it out everywhere for TCP

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

	producer, err := mq.NewProducer(mq.ProducerConfig{Transport: net, NameServers: names, Group: "shop"})
	if err != nil {
		return err
	}
	if err := producer.Start(ctx); err != nil {
		return err
	}
	defer producer.Close()

	consumer, err := mq.NewConsumer(mq.ConsumerConfig{Transport: net, NameServers: names, Group: "billing", Start: mq.FromFirst})
	if err != nil {
		return err
	}
	received := make(chan *mq.Delivery)
	err = consumer.Subscribe("orders", mq.Tags("paid"), func(ctx context.Context, d *mq.Delivery) error {
		received <- d
		return nil
	})
	if err != nil {
		return err
	}
	for i := range 10 {
		m := &mq.Message{Topic: "orders", Tag: "paid", Keys: []string{fmt.Sprint(i)}, Body: fmt.Appendf(nil, "order %d", i)}
		res, err := producer.Send(ctx, m)
		if err != nil {
			return err
		}
		fmt.Printf("sent      %s  %v offset %d  %s\n", m.Body, res.Queue, res.Offset, res.Status)
	}
	if err := consumer.Start(ctx); err != nil {
		return err
	}
	defer consumer.Close()
	for range 10 {
		select {
		case d := <-received:
			fmt.Printf("received  %s  %v offset %d  key %s\n", d.Body, d.Queue, d.Offset, d.Keys[0])
		case <-ctx.Done():
			return fmt.Errorf("not everything arrived: %w", ctx.Err())
		}
	}
	fmt.Printf("done in %v\n", time.Since(begun).Round(time.Millisecond))
	return nil
}
