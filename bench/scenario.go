package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"
)

// A scenario is one line of the table: a load that every variant carries in turn.
type scenario struct {
	name     string
	tcp      bool
	size     int // bytes of a body
	variants []variant
	prepare  func(ctx context.Context, s system) error
	run      func(ctx context.Context, s system, d time.Duration) (int, error)
}

// scenarios are all of them. backlog is the number of messages to consume.
func scenarios(backlog int) []scenario {
	var all []scenario
	for _, tcp := range []bool{false, true} {
		for _, size := range []int{128, 1024} {
			where := fmt.Sprintf("%s/%d B", network(tcp), size)
			sends := func(name string, run func(context.Context, system, time.Duration) (int, error), variants ...variant) scenario {
				return scenario{name: where + "/" + name, tcp: tcp, size: size, variants: variants,
					prepare: func(ctx context.Context, s system) error {
						_, err := run(ctx, s, warmUp)
						return err
					}, run: run}
			}
			all = append(all,
				sends("send, 1 waiting", waiting(1), pocketSync, pocketAsync, jetStream),
				sends("send, 64 waiting", waiting(64), pocketSync, pocketAsync, jetStream),
				sends("send, 4096 in flight", asyncSender, pocketSync, pocketAsync, pocketSyncBatch, pocketAsyncBatch, jetStream),
				scenario{name: where + "/consume", tcp: tcp, size: size, variants: []variant{pocketSync, jetStream},
					prepare: func(ctx context.Context, s system) error { return fill(ctx, s, backlog) },
					run: func(ctx context.Context, s system, _ time.Duration) (int, error) {
						return backlog, s.consume(ctx, backlog)
					}})
		}
	}
	return all
}

func waiting(n int) func(context.Context, system, time.Duration) (int, error) {
	return func(ctx context.Context, s system, d time.Duration) (int, error) {
		return waitingSenders(ctx, s, n, d)
	}
}

func network(tcp bool) string {
	if tcp {
		return "TCP"
	}
	return "in process"
}

// A series is what a variant did, a sample for each round.
type series []sample

// compare runs the scenario's variants one after the other, round by round, each
// time on a new directory under dir, so that none pays for what another left.
func (sc scenario) compare(ctx context.Context, dir string, rounds int, d time.Duration) ([]series, error) {
	results := make([]series, len(sc.variants))
	for range rounds {
		for i, v := range sc.variants {
			s, err := sc.once(ctx, v, dir, d)
			if err != nil {
				return nil, fmt.Errorf("%s, %s: %w", sc.name, v.name, err)
			}
			results[i] = append(results[i], s)
		}
	}
	return results, nil
}

// once measures one variant on a new directory, which it removes.
func (sc scenario) once(ctx context.Context, v variant, dir string, d time.Duration) (result sample, err error) {
	ctx, cancel := context.WithTimeout(ctx, d+2*time.Minute)
	defer cancel()
	dir, err = os.MkdirTemp(dir, "bench-")
	if err != nil {
		return sample{}, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	s, err := v.open(ctx, dir, sc.tcp, newBodies(sc.size))
	if err != nil {
		return sample{}, err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	if err := sc.prepare(ctx, s); err != nil {
		return sample{}, err
	}
	return measure(func() (int, error) { return sc.run(ctx, s, d) })
}

// median returns the median of what f tells of each sample.
func (s series) median(f func(sample) float64) float64 {
	values := make([]float64, len(s))
	for i := range s {
		values[i] = f(s[i])
	}
	return middle(values)
}

func middle(values []float64) float64 {
	slices.Sort(values)
	n := len(values)
	if n%2 == 1 {
		return values[n/2]
	}
	return (values[n/2-1] + values[n/2]) / 2
}

// ratio is the median of a's rate over b's, round by round.
func ratio(a, b series) float64 {
	values := make([]float64, len(a))
	for i := range a {
		values[i] = a[i].rate() / b[i].rate()
	}
	return middle(values)
}
