package mq

import (
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Statistics are sampled every sampleEvery. The broker's own meters keep the ten
// minutes that its runtime information shows, those of topics and groups one.
const (
	sampleEvery    = 10 * time.Second
	minuteSamples  = 6
	tenMinuteCount = 60
)

// A meter counts events. Adding is one atomic operation; its rate comes from
// samples that brokerStats takes, so that no event pays for the rate.
type meter struct {
	total   atomic.Int64
	samples []int64 // the newest last; guarded by brokerStats.mu
}

func (m *meter) add(n int64) { m.total.Add(n) }

// sample keeps the newest window+1 totals. The first sample follows a 0: the
// meter was made since the last ones were taken.
func (m *meter) sample(window int) {
	if len(m.samples) == 0 {
		m.samples = append(m.samples, 0)
	}
	if len(m.samples) > window {
		m.samples = m.samples[:copy(m.samples, m.samples[len(m.samples)-window:])]
	}
	m.samples = append(m.samples, m.total.Load())
}

// rate is the mean per second over the last window samples, or over as many as
// there are.
func (m *meter) rate(window int) float64 {
	last := len(m.samples) - 1
	if last < 1 {
		return 0
	}
	first := max(0, last-window)
	return float64(m.samples[last]-m.samples[first]) / (float64(last-first) * sampleEvery.Seconds())
}

// topicCounters count what was stored in a topic on this broker.
type topicCounters struct{ messages, bytes meter }

// consumeCounters count what a group was given of a topic, and what it sent back.
type consumeCounters struct{ messages, bytes, sentBack meter }

type consumeKey struct{ group, topic string }

// brokerStats are the broker's counters. Those of a topic or group are looked up
// once and kept by whoever adds to them.
type brokerStats struct {
	started time.Time

	putMessages, putBytes  meter
	putMicros, putSlowest  atomic.Int64
	pullsFound, pullsEmpty meter // pulls by outcome
	getMessages, getBytes  meter

	mu        sync.RWMutex
	topics    map[string]*topicCounters
	consumers map[consumeKey]*consumeCounters
	day       int // of the year, of the newest sample
	puts      dayTotals
	gets      dayTotals
}

// dayTotals are a counter's values when yesterday and today began.
type dayTotals struct{ yesterday, today int64 }

func newBrokerStats(now time.Time) *brokerStats {
	return &brokerStats{
		started:   now,
		topics:    make(map[string]*topicCounters),
		consumers: make(map[consumeKey]*consumeCounters),
		day:       now.YearDay(),
	}
}

// topic returns the counters of a topic, the same ones until it is forgotten.
func (s *brokerStats) topic(name string) *topicCounters { return lookUp(s, s.topics, name) }

// consumer returns the counters of a group on a topic.
func (s *brokerStats) consumer(group, topic string) *consumeCounters {
	return lookUp(s, s.consumers, consumeKey{group, topic})
}

func lookUp[K comparable, V any](s *brokerStats, table map[K]*V, key K) *V {
	s.mu.RLock()
	v := table[key]
	s.mu.RUnlock()
	if v != nil {
		return v
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if v = table[key]; v == nil {
		v = new(V)
		table[key] = v
	}
	return v
}

// forgetTopic drops the counters of a deleted topic.
func (s *brokerStats) forgetTopic(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.topics, name)
	for k := range s.consumers {
		if k.topic == name {
			delete(s.consumers, k)
		}
	}
}

// forgetGroup drops the counters of a deleted group.
func (s *brokerStats) forgetGroup(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for k := range s.consumers {
		if k.group == name {
			delete(s.consumers, k)
		}
	}
}

// stored counts messages of one request that were stored, and how long that took
// from its arrival.
func (s *brokerStats) stored(t *topicCounters, messages int, bytes int64, took time.Duration) {
	t.messages.add(int64(messages))
	t.bytes.add(bytes)
	s.putMessages.add(int64(messages))
	s.putBytes.add(bytes)
	micros := took.Microseconds()
	s.putMicros.Add(micros)
	for old := s.putSlowest.Load(); micros > old; old = s.putSlowest.Load() {
		if s.putSlowest.CompareAndSwap(old, micros) {
			break
		}
	}
}

// pulled counts a pull that was answered with messages.
func (s *brokerStats) pulled(c *consumeCounters, messages, bytes int) {
	c.messages.add(int64(messages))
	c.bytes.add(int64(bytes))
	s.pullsFound.add(1)
	s.getMessages.add(int64(messages))
	s.getBytes.add(int64(bytes))
}

// sample takes the next sample of every meter. The broker calls it every
// sampleEvery.
func (s *brokerStats) sample(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range []*meter{&s.putMessages, &s.putBytes, &s.pullsFound, &s.pullsEmpty, &s.getMessages, &s.getBytes} {
		m.sample(tenMinuteCount)
	}
	for _, t := range s.topics {
		t.messages.sample(minuteSamples)
		t.bytes.sample(minuteSamples)
	}
	for _, c := range s.consumers {
		c.messages.sample(minuteSamples)
		c.bytes.sample(minuteSamples)
		c.sentBack.sample(minuteSamples)
	}
	if d := now.YearDay(); d != s.day {
		s.day = d
		s.puts = dayTotals{s.puts.today, s.putMessages.total.Load()}
		s.gets = dayTotals{s.gets.today, s.getMessages.total.Load()}
	}
}

// consumeRate is the messages a second that a group was given of a topic, or of
// all topics when topic is empty, over the last minute.
func (s *brokerStats) consumeRate(group, topic string) float64 {
	s.mu.RLock()
	defer s.mu.RUnlock()
	var sum float64
	for k, c := range s.consumers {
		if k.group == group && (topic == "" || k.topic == topic) {
			sum += c.messages.rate(minuteSamples)
		}
	}
	return sum
}

// runtime adds the statistics among RocketMQ's runtime information to table. The
// Tps values are three numbers: over 10 seconds, one minute and ten minutes.
func (s *brokerStats) runtime(table map[string]string, now time.Time) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	number := func(key string, n int64) { table[key] = strconv.FormatInt(n, 10) }
	put, get := s.putMessages.total.Load(), s.getMessages.total.Load()
	number("bootTimestamp", s.started.UnixMilli())
	table["runtime"] = runtimeText(now.Sub(s.started))
	number("msgPutTotalYesterdayMorning", s.puts.yesterday)
	number("msgPutTotalTodayMorning", s.puts.today)
	number("msgPutTotalTodayNow", put)
	number("msgGetTotalYesterdayMorning", s.gets.yesterday)
	number("msgGetTotalTodayMorning", s.gets.today)
	number("msgGetTotalTodayNow", get)
	table["putTps"] = ratesText(&s.putMessages)
	table["getFoundTps"] = ratesText(&s.pullsFound)
	table["getMissTps"] = ratesText(&s.pullsEmpty)
	table["getTotalTps"] = ratesText(&s.pullsFound, &s.pullsEmpty)
	table["getTransferedTps"] = ratesText(&s.getMessages)
	number("putMessageEntireTimeMax", s.putSlowest.Load()/1000)
	number("putMessageTimesTotal", put)
	number("putMessageSizeTotal", s.putBytes.total.Load())
	table["putMessageAverageSize"] = "0.0"
	if put > 0 {
		table["putMessageAverageSize"] = decimal(float64(s.putBytes.total.Load()) / float64(put))
	}
}

func ratesText(meters ...*meter) string {
	var b strings.Builder
	for i, window := range []int{1, minuteSamples, tenMinuteCount} {
		var sum float64
		for _, m := range meters {
			sum += m.rate(window)
		}
		if i > 0 {
			b.WriteByte(' ')
		}
		b.WriteString(decimal(sum))
	}
	return b.String()
}

// decimal writes a number as Java writes a double in this range: always with a
// fraction.
func decimal(f float64) string {
	s := strconv.FormatFloat(f, 'f', -1, 64)
	if !strings.Contains(s, ".") {
		s += ".0"
	}
	return s
}

func runtimeText(d time.Duration) string {
	seconds := int64(d / time.Second)
	return fmt.Sprintf("[ %d days, %d hours, %d minutes, %d seconds ]",
		seconds/86400, seconds/3600%24, seconds/60%60, seconds%60)
}
