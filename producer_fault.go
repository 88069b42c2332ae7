package mq

import (
	"cmp"
	"slices"
	"time"
)

// A faultTable remembers how the brokers did, so that sends can go round those
// that are slow or failed. It is not safe for concurrent use and takes the time
// as an argument.
type faultTable struct {
	items map[string]faultItem
	turn  uint32
}

type faultItem struct {
	latency time.Duration
	since   time.Time // when it becomes available again
}

// latencySteps says for how long a broker is avoided after an answer that took so
// long. These are the values of RocketMQ 5: with those of 4.9 one failure keeps a
// restarted broker out for ten minutes.
var latencySteps = []struct{ latency, avoid time.Duration }{
	{50 * time.Millisecond, 0},
	{100 * time.Millisecond, 0},
	{550 * time.Millisecond, 2 * time.Second},
	{1800 * time.Millisecond, 5 * time.Second},
	{3 * time.Second, 6 * time.Second},
	{5 * time.Second, 10 * time.Second},
	{15 * time.Second, 30 * time.Second},
}

// isolation is the latency that a failed send counts as.
const isolation = 10 * time.Second

func newFaultTable() *faultTable { return &faultTable{items: make(map[string]faultItem)} }

// update records a send's latency, or its failure.
func (t *faultTable) update(now time.Time, broker string, latency time.Duration, failed bool) {
	if failed {
		latency = isolation
	}
	var avoid time.Duration
	for _, step := range latencySteps {
		if latency >= step.latency {
			avoid = step.avoid
		}
	}
	t.items[broker] = faultItem{latency: latency, since: now.Add(avoid)}
}

func (t *faultTable) available(now time.Time, broker string) bool {
	item, known := t.items[broker]
	return !known || !now.Before(item.since)
}

// pick chooses a queue: the first from turn on whose broker is available and not
// the one to avoid; else one of the better half of the brokers, which is less bad
// than the next by turn; else that one.
func (t *faultTable) pick(now time.Time, queues []Queue, turn uint32, avoid string) int {
	n := uint32(len(queues))
	for step := range n {
		i := int((turn%n + step) % n)
		if b := queues[i].Broker; b != avoid && t.available(now, b) {
			return i
		}
	}
	if broker := t.leastBad(now, queues); broker != "" {
		for step := range n {
			if i := int((turn%n + step) % n); queues[i].Broker == broker {
				return i
			}
		}
	}
	return nextQueue(queues, turn, avoid)
}

// leastBad takes the brokers of the queues in turn, among the better half: those
// available come first, then lower latency, then an earlier return.
func (t *faultTable) leastBad(now time.Time, queues []Queue) string {
	var brokers []string
	for _, q := range queues {
		if _, known := t.items[q.Broker]; known && !slices.Contains(brokers, q.Broker) {
			brokers = append(brokers, q.Broker)
		}
	}
	if len(brokers) == 0 {
		return ""
	}
	slices.SortStableFunc(brokers, func(a, b string) int {
		x, y := t.items[a], t.items[b]
		return cmp.Or(
			cmp.Compare(rank(t.available(now, a)), rank(t.available(now, b))),
			cmp.Compare(x.latency, y.latency),
			x.since.Compare(y.since),
		)
	})
	t.turn++
	return brokers[t.turn%uint32(max(len(brokers)/2, 1))]
}

func rank(available bool) int {
	if available {
		return 0
	}
	return 1
}
