// Retry shows what happens to messages that a listener refuses: one succeeds on
// its second attempt, the other uses its retries up and ends in the dead-letter
// topic, from which another consumer reads it.
package main

import (
	"context"
	"errors"
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
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
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
	producer, err := mq.NewProducer(mq.ProducerConfig{Transport: net, NameServers: names, Group: "shop"})
	if err != nil {
		return err
	}
	if err := producer.Start(ctx); err != nil {
		return err
	}
	defer producer.Close()
	for _, body := range []string{"works the second time", "never works"} {
		if _, err := producer.Send(ctx, &mq.Message{Topic: "mails", Body: []byte(body)}); err != nil {
			return err
		}
	}

	worker, err := consume(ctx, net, names, "mailer", "mails", func(ctx context.Context, d *mq.Delivery) error {
		if d.Attempt > 1 && string(d.Body) == "works the second time" {
			fmt.Printf("%q: done on attempt %d\n", d.Body, d.Attempt)
			return nil
		}
		fmt.Printf("%q: refused on attempt %d\n", d.Body, d.Attempt)
		// Without RetryAfter the waits grow from 10 s to 2 h, as in RocketMQ.
		return mq.RetryAfter(time.Second, errors.New("the mail server is away"))
	})
	if err != nil {
		return err
	}
	defer worker.Close()
	dead := make(chan *mq.Delivery, 1)
	undertaker, err := consume(ctx, net, names, "undertaker", mq.DeadLetterTopic("mailer"), func(ctx context.Context, d *mq.Delivery) error {
		dead <- d
		return nil
	})
	if err != nil {
		return err
	}
	defer undertaker.Close()
	select {
	case d := <-dead:
		// In the dead-letter topic Attempt is one more than the worker's last.
		fmt.Printf("%q: in %s after %d attempts, id %s\n", d.Body, mq.DeadLetterTopic("mailer"), d.Attempt-1, d.ID)
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func consume(ctx context.Context, net transport.Transport, names []string, group, topic string, listen mq.Listener) (*mq.Consumer, error) {
	c, err := mq.NewConsumer(mq.ConsumerConfig{Transport: net, NameServers: names, Group: group, Start: mq.FromFirst, MaxRetries: 2})
	if err != nil {
		return nil, err
	}
	if err := c.Subscribe(topic, mq.Filter{}, listen); err != nil {
		return nil, err
	}
	return c, c.Start(ctx)
}
