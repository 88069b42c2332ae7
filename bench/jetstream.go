package main

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// jetStreamSystem is an embedded NATS server with one JetStream stream in files.
// Its store syncs every two minutes, which is the server's default.
type jetStreamSystem struct {
	server *server.Server
	conn   *nats.Conn
	bodies *bodies
	js     jetstream.JetStream
	stream jetstream.Stream
	failed atomic.Pointer[error]
	groups int
}

func openJetStream(ctx context.Context, dir string, tcp bool, bodies *bodies) (system, error) {
	j := &jetStreamSystem{bodies: bodies}
	if err := j.start(ctx, dir, tcp); err != nil {
		return nil, errors.Join(err, j.close())
	}
	return j, nil
}

func (j *jetStreamSystem) start(ctx context.Context, dir string, tcp bool) error {
	var err error
	j.server, err = server.NewServer(&server.Options{Host: "127.0.0.1", Port: server.RANDOM_PORT, DontListen: !tcp,
		JetStream: true, StoreDir: dir, NoSigs: true, NoLog: true})
	if err != nil {
		return err
	}
	j.server.Start()
	if !j.server.ReadyForConnections(10 * time.Second) {
		return errors.New("the NATS server is not ready after 10s")
	}
	if tcp {
		j.conn, err = nats.Connect(j.server.ClientURL())
	} else {
		j.conn, err = nats.Connect("", nats.InProcessServer(j.server))
	}
	if err != nil {
		return err
	}
	j.js, err = jetstream.New(j.conn, jetstream.WithPublishAsyncMaxPending(window),
		jetstream.WithPublishAsyncErrHandler(func(_ jetstream.JetStream, _ *nats.Msg, err error) { j.failed.CompareAndSwap(nil, &err) }))
	if err != nil {
		return err
	}
	j.stream, err = j.js.CreateStream(ctx, jetstream.StreamConfig{Name: "BENCH", Subjects: []string{subject}, Storage: jetstream.FileStorage})
	return err
}

func (j *jetStreamSystem) send(ctx context.Context) error {
	_, err := j.js.Publish(ctx, subject, j.bodies.next())
	return err
}

func (j *jetStreamSystem) sendAsync(context.Context) error {
	_, err := j.js.PublishAsync(subject, j.bodies.next(), jetstream.WithStallWait(10*time.Second))
	return err
}

func (j *jetStreamSystem) drain(ctx context.Context) error {
	select {
	case <-j.js.PublishAsyncComplete():
	case <-ctx.Done():
		return ctx.Err()
	}
	if err := j.failed.Load(); err != nil {
		return *err
	}
	return nil
}

// consume uses larger windows than the client's defaults (500 messages a pull,
// 1,000 unacknowledged), which would slow it down.
func (j *jetStreamSystem) consume(ctx context.Context, n int) error {
	j.groups++
	consumer, err := j.stream.CreateConsumer(ctx, jetstream.ConsumerConfig{Durable: fmt.Sprintf("bench-%d", j.groups),
		AckPolicy: jetstream.AckExplicitPolicy, MaxAckPending: 4 * window})
	if err != nil {
		return err
	}
	var got int // the callbacks of one consumer run one after the other
	var failed error
	all := make(chan struct{})
	consuming, err := consumer.Consume(func(m jetstream.Msg) {
		if err := m.Ack(); err != nil && failed == nil {
			failed = err
		}
		if got++; got == n {
			close(all)
		}
	}, jetstream.PullMaxMessages(window))
	if err != nil {
		return err
	}
	defer consuming.Stop()
	select {
	case <-all:
	case <-ctx.Done():
		return ctx.Err()
	}
	if failed != nil {
		return failed
	}
	return j.conn.FlushWithContext(ctx) // the last acknowledgements have arrived
}

func (j *jetStreamSystem) close() error {
	if j.conn != nil {
		j.conn.Close()
	}
	if j.server != nil {
		j.server.Shutdown()
		j.server.WaitForShutdown()
	}
	return nil
}
