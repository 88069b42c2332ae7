package mq

import (
	"testing"
	"time"
)

func TestRatesAreOverTenSecondsOneMinuteAndTenMinutes(t *testing.T) {
	start := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	s := newBrokerStats(start)
	topic := s.topic("t")
	table := make(map[string]string)
	s.runtime(table, start)
	if table["putTps"] != "0.0 0.0 0.0" {
		t.Errorf("putTps at the start: %q", table["putTps"])
	}
	now := start
	for i := range 100 { // 1 a second for long, then 3
		n := 10
		if i >= 97 {
			n = 30
		}
		s.stored(topic, n, int64(n)*100, 2*time.Millisecond)
		now = now.Add(sampleEvery)
		s.sample(now)
	}
	s.runtime(table, now)
	if want := "3.0 2.0 1.1"; table["putTps"] != want {
		t.Errorf("putTps %q, want %q", table["putTps"], want)
	}
	if table["putMessageAverageSize"] != "100.0" {
		t.Errorf("putMessageAverageSize %q", table["putMessageAverageSize"])
	}
	if want := "[ 0 days, 0 hours, 16 minutes, 40 seconds ]"; table["runtime"] != want {
		t.Errorf("runtime %q, want %q", table["runtime"], want)
	}
	if n := topic.messages.total.Load(); n != 97*10+3*30 {
		t.Errorf("the topic's counter has %d", n)
	}
}

func TestGetRatesCountPullsAndMessagesApart(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	s := newBrokerStats(now)
	c := s.consumer("g", "t")
	for range 10 {
		s.pulled(c, 32, 3200)
		s.pullsEmpty.add(1)
	}
	s.sample(now.Add(sampleEvery))
	table := make(map[string]string)
	s.runtime(table, now)
	for key, want := range map[string]string{
		"getFoundTps": "1.0 1.0 1.0", "getMissTps": "1.0 1.0 1.0", "getTotalTps": "2.0 2.0 2.0", "getTransferedTps": "32.0 32.0 32.0",
	} {
		if table[key] != want {
			t.Errorf("%s %q, want %q", key, table[key], want)
		}
	}
}

func TestConsumeRateOfAGroupIsOfOneTopicOrOfAll(t *testing.T) {
	now := time.Now()
	s := newBrokerStats(now)
	s.pulled(s.consumer("g", "t"), 20, 1)
	s.pulled(s.consumer("g", "u"), 30, 1)
	s.pulled(s.consumer("h", "t"), 70, 1)
	s.sample(now)
	if r := s.consumeRate("g", "t"); r != 2 {
		t.Errorf("of t: %v, want 2", r)
	}
	if r := s.consumeRate("g", ""); r != 5 {
		t.Errorf("of all: %v, want 5", r)
	}
	s.forgetTopic("t")
	if r := s.consumeRate("g", ""); r != 3 {
		t.Errorf("without t: %v, want 3", r)
	}
	s.forgetGroup("g")
	if r := s.consumeRate("g", ""); r != 0 {
		t.Errorf("of a forgotten group: %v", r)
	}
}

func TestTotalsOfYesterdayAndTodayTurnAtMidnight(t *testing.T) {
	now := time.Date(2026, 3, 1, 23, 0, 0, 0, time.UTC)
	s := newBrokerStats(now)
	topic := s.topic("t")
	check := func(yesterday, today, total string) {
		t.Helper()
		table := make(map[string]string)
		s.runtime(table, now)
		if y, m, n := table["msgPutTotalYesterdayMorning"], table["msgPutTotalTodayMorning"], table["msgPutTotalTodayNow"]; y != yesterday || m != today || n != total {
			t.Errorf("got %s, %s, %s, want %s, %s, %s", y, m, n, yesterday, today, total)
		}
	}
	s.stored(topic, 5, 5, 0)
	check("0", "0", "5")
	for _, n := range []int{7, 1} {
		now = now.Add(24 * time.Hour)
		s.sample(now)
		s.stored(topic, n, 5, 0)
	}
	check("5", "12", "13")
}
