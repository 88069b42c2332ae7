package main

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// A sample is one measurement.
type sample struct {
	messages int
	elapsed  time.Duration
	cpu      time.Duration // of the whole process; 0 where the system does not tell
}

func (s sample) rate() float64 { return float64(s.messages) / s.elapsed.Seconds() }

func (s sample) cpuEach() time.Duration { return s.cpu / time.Duration(max(s.messages, 1)) }

// measure runs f, which tells how many messages it handled.
func measure(f func() (int, error)) (sample, error) {
	cpu, start := processTime(), time.Now()
	n, err := f()
	return sample{n, time.Since(start), processTime() - cpu}, err
}

// warmUp is how long a system runs before it is measured.
const warmUp = 100 * time.Millisecond

// waitingSenders sends with n senders, each waiting for its acknowledgement, for
// the given time.
func waitingSenders(ctx context.Context, s system, n int, d time.Duration) (int, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var sent atomic.Int64
	var senders sync.WaitGroup
	end := time.Now().Add(d)
	for range n {
		senders.Go(func() {
			for ctx.Err() == nil && time.Now().Before(end) {
				if err := s.send(ctx); err != nil {
					cancel(err)
					return
				}
				sent.Add(1)
			}
		})
	}
	senders.Wait()
	return int(sent.Load()), context.Cause(ctx)
}

// asyncSender sends without waiting, up to window unacknowledged, for the given
// time, and waits for the last acknowledgement.
func asyncSender(ctx context.Context, s system, d time.Duration) (int, error) {
	end := time.Now().Add(d)
	for n := 0; ; n++ {
		if n%64 == 0 && !time.Now().Before(end) {
			return n, s.drain(ctx)
		}
		if err := s.sendAsync(ctx); err != nil {
			return n, err
		}
	}
}
