package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/pocketmq/mq"
	"github.com/pocketmq/mq/internal/wire"
	"github.com/pocketmq/mq/transport"
)

// coldMessages of 1 KiB are more than the broker's ring and Pebble's block cache
// hold together.
const coldMessages = 160_000

// coldQueues is how many queues the topic has, the default.
const coldQueues = 4

// A coldRound is what a waiting sender saw in one round.
type coldRound struct {
	latencies []time.Duration // sorted
	pulled    int             // messages that a cold consumer read meanwhile
}

func (r *coldRound) quantile(q float64) float64 {
	return float64(r.latencies[int(q*float64(len(r.latencies)-1))])
}

// coldConsumer prints the latency of one waiting sender, alone and with somebody
// who reads a large backlog from the disk over the very same connection. Requests
// are made by hand, because producers and consumers do not share connections.
func coldConsumer(ctx context.Context, o options, only *regexp.Regexp, d time.Duration, out io.Writer) error {
	header := "| network | a waiting sender, 1024 B, sync | p50 | p99 | p99 of alone | read meanwhile, msg/s |\n|---|---|---|---|---|---|\n"
	for _, tcp := range []bool{false, true} {
		if !only.MatchString(network(tcp) + "/1024 B/cold") {
			continue
		}
		rounds, err := coldRounds(ctx, o, tcp, d)
		if err != nil {
			return fmt.Errorf("cold consumer, %s: %w", network(tcp), err)
		}
		alone := coldMedian(rounds[0], 0.99)
		for i, name := range []string{"alone", "beside a cold consumer on its connection"} {
			p50, p99, pulled := coldMedian(rounds[i], 0.5), coldMedian(rounds[i], 0.99), 0
			for _, r := range rounds[i] {
				pulled += r.pulled
			}
			fmt.Fprintf(out, "%s| %s | %s | %v | %v | %.1f × | %s |\n", header, network(tcp), name, time.Duration(p50).Round(time.Microsecond),
				time.Duration(p99).Round(time.Microsecond), p99/alone, thousands(int(float64(pulled)/d.Seconds()/float64(len(rounds[i])))))
			header = ""
		}
	}
	return nil
}

func coldMedian(rounds []coldRound, q float64) float64 {
	values := make([]float64, len(rounds))
	for i := range rounds {
		values[i] = rounds[i].quantile(q)
	}
	return middle(values)
}

// coldRounds runs rounds without (0) and with (1) the cold consumer, in turn.
func coldRounds(ctx context.Context, o options, tcp bool, d time.Duration) (rounds [2][]coldRound, err error) {
	dir, err := os.MkdirTemp(o.dir, "bench-")
	if err != nil {
		return rounds, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	bodies := newBodies(1024)
	s, err := openPocket(mq.SyncFlush, false)(ctx, dir, tcp, bodies)
	if err != nil {
		return rounds, err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	if err := fill(ctx, s, min(coldMessages, o.backlog)); err != nil {
		return rounds, err
	}
	p := s.(*pocket)
	net := p.net
	if net == nil {
		net = transport.NewTCP(transport.TCPConfig{})
	}
	conn, err := net.Dial(ctx, p.broker.Addr(), nil)
	if err != nil {
		return rounds, err
	}
	defer conn.Close()
	for range o.rounds {
		for i := range rounds {
			r, err := coldOnce(ctx, conn, i == 1, min(coldMessages, o.backlog), bodies, d)
			if err != nil {
				return rounds, err
			}
			rounds[i] = append(rounds[i], r)
		}
	}
	return rounds, nil
}

// coldOnce sends for the given time, with a pull of each queue under way when
// cold says so, as a consumer has it.
func coldOnce(ctx context.Context, conn transport.Conn, cold bool, backlog int, bodies *bodies, d time.Duration) (coldRound, error) {
	var r coldRound
	var over atomic.Bool
	var pulled atomic.Int64
	tasks, ctx := errgroup.WithContext(ctx)
	tasks.Go(func() error {
		defer over.Store(true)
		for end := time.Now().Add(d); time.Now().Before(end) && ctx.Err() == nil; {
			start := time.Now()
			if err := callSend(ctx, conn, len(r.latencies)%coldQueues, bodies.next()); err != nil {
				return err
			}
			r.latencies = append(r.latencies, time.Since(start))
		}
		return ctx.Err()
	})
	for queue := range coldQueues {
		if !cold {
			break
		}
		tasks.Go(func() error {
			for offset := int64(0); !over.Load(); {
				next, err := callPull(ctx, conn, queue, offset)
				if err != nil {
					return err
				}
				pulled.Add(next - offset)
				if offset = next; offset > int64(backlog/coldQueues/2) {
					offset = 0 // what comes later may still be in memory
				}
			}
			return nil
		})
	}
	err := tasks.Wait()
	r.pulled = int(pulled.Load())
	slices.Sort(r.latencies)
	return r, err
}

func callSend(ctx context.Context, conn transport.Conn, queue int, body []byte) error {
	h := &wire.SendRequestV2{ProducerGroup: "bench", Topic: subject, DefaultTopic: wire.TopicAutoCreate, DefaultTopicQueueNums: coldQueues,
		QueueID: int32(queue), BornTimestamp: time.Now().UnixMilli()}
	answer, err := conn.Call(ctx, &transport.Frame{Code: wire.CodeSendMessageV2, Header: h, Body: body})
	if err == nil && answer.Code != wire.Success {
		err = fmt.Errorf("send answered %d: %s", answer.Code, answer.Remark)
	}
	return err
}

// callPull pulls from a queue and returns the next offset.
func callPull(ctx context.Context, conn transport.Conn, queue int, offset int64) (int64, error) {
	h := &wire.PullRequest{ConsumerGroup: "bench-cold", Topic: subject, QueueID: int32(queue), QueueOffset: offset, MaxMsgNums: 32,
		SysFlag: wire.PullSubscription, Subscription: "*"}
	answer, err := conn.Call(ctx, &transport.Frame{Code: wire.CodePullMessage, Header: h})
	if err != nil {
		return 0, err
	}
	if answer.Code != wire.Success {
		return 0, fmt.Errorf("pull of queue %d at %d answered %d: %s", queue, offset, answer.Code, answer.Remark)
	}
	found, err := transport.HeaderOf[wire.PullResponse](answer)
	if err != nil {
		return 0, err
	}
	return found.NextBeginOffset, nil
}
