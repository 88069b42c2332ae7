package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pocketmq/mq"
	"github.com/pocketmq/mq/transport"
)

// pocket is name server, broker and producer of PocketMQ with their defaults.
type pocket struct {
	net      transport.Transport // nil: TCP
	names    []string
	broker   *mq.Broker
	producer *mq.Producer
	closers  []func() error

	bodies  *bodies
	sent    func(*mq.SendResult, error)
	pending sync.WaitGroup
	refused atomic.Int64          // asynchronous sends that found the broker busy
	failed  atomic.Pointer[error] // the first asynchronous send that failed otherwise
	groups  int
}

// openPocket opens a PocketMQ that flushes as told; with batch its producer lets
// asynchronous sends travel together.
func openPocket(flush mq.FlushMode, batch bool) func(context.Context, string, bool, *bodies) (system, error) {
	return func(ctx context.Context, dir string, tcp bool, bodies *bodies) (system, error) {
		p := &pocket{bodies: bodies}
		p.sent = p.answered
		if !tcp {
			p.net = transport.NewMemory(transport.MemoryConfig{})
		}
		if err := p.start(ctx, dir, flush, batch); err != nil {
			return nil, errors.Join(err, p.close())
		}
		return p, nil
	}
}

func (p *pocket) start(ctx context.Context, dir string, flush mq.FlushMode, batch bool) error {
	ns, err := mq.NewNameServer(mq.NameServerConfig{Transport: p.net, Listen: "127.0.0.1:0"})
	if err != nil {
		return err
	}
	p.closers = append(p.closers, ns.Close)
	if err := ns.Start(ctx); err != nil {
		return err
	}
	p.names = []string{ns.Addr()}
	p.broker, err = mq.NewBroker(mq.BrokerConfig{Transport: p.net, NameServers: p.names, Listen: "127.0.0.1:0", Dir: dir, Flush: flush})
	if err != nil {
		return err
	}
	p.closers = append(p.closers, p.broker.Close)
	if err := p.broker.Start(ctx); err != nil {
		return err
	}
	p.producer, err = mq.NewProducer(mq.ProducerConfig{Transport: p.net, NameServers: p.names, Group: "bench", AsyncWindow: window, AutoBatch: batch})
	if err != nil {
		return err
	}
	p.closers = append(p.closers, p.producer.Close)
	return p.producer.Start(ctx)
}

func (p *pocket) send(ctx context.Context) error {
	m := &mq.Message{Topic: subject, Body: p.bodies.next()}
	for {
		if _, err := p.producer.Send(ctx, m); !errors.Is(err, mq.ErrBrokerBusy) {
			return err
		}
	}
}

func (p *pocket) sendAsync(ctx context.Context) error {
	p.pending.Add(1)
	err := p.producer.SendAsync(ctx, &mq.Message{Topic: subject, Body: p.bodies.next()}, p.sent)
	if err != nil {
		p.pending.Done()
	}
	return err
}

func (p *pocket) answered(_ *mq.SendResult, err error) {
	if err != nil {
		p.fail(err)
	}
	p.pending.Done()
}

func (p *pocket) fail(err error) {
	if errors.Is(err, mq.ErrBrokerBusy) {
		p.refused.Add(1)
		return
	}
	p.failed.CompareAndSwap(nil, &err)
}

// drain sends again what was refused, so that refusals cost time and no message.
func (p *pocket) drain(ctx context.Context) error {
	p.pending.Wait()
	for n := p.refused.Swap(0); n > 0; n = p.refused.Swap(0) {
		for range n {
			if err := p.sendAsync(ctx); err != nil {
				return err
			}
		}
		p.pending.Wait()
	}
	if err := p.failed.Load(); err != nil {
		return *err
	}
	return nil
}

func (p *pocket) consume(ctx context.Context, n int) error {
	p.groups++
	c, err := mq.NewConsumer(mq.ConsumerConfig{Transport: p.net, NameServers: p.names,
		Group: fmt.Sprintf("bench-%d", p.groups), Start: mq.FromFirst})
	if err != nil {
		return err
	}
	defer c.Close()
	var got atomic.Int64
	all := make(chan struct{})
	err = c.Subscribe(subject, mq.Filter{}, func(context.Context, *mq.Delivery) error {
		if got.Add(1) == int64(n) {
			close(all)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if err := c.Start(ctx); err != nil {
		return err
	}
	select {
	case <-all:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%d of %d messages received: %w", got.Load(), n, ctx.Err())
	}
}

func (p *pocket) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	var errs []error
	if p.producer != nil {
		errs = append(errs, p.producer.Shutdown(ctx))
	}
	for i := len(p.closers) - 1; i >= 0; i-- {
		errs = append(errs, p.closers[i]())
	}
	return errors.Join(errs...)
}
