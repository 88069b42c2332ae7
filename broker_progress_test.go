package mq

import (
	"testing"
	"time"

	"github.com/pocketmq/mq/internal/wire"
)

func TestTopicStatsShowEachQueue(t *testing.T) {
	inBubble(t, BrokerConfig{Name: "b"}, func(t *testing.T, r *rawBroker) {
		r.createTopic("orders", 2, permRW)
		r.sendTo("orders", "", "a")
		time.Sleep(time.Second)
		last := time.Now().UnixMilli()
		r.sendTo("orders", "", "b")
		time.Sleep(time.Second)
		stats, err := wire.ParseTopicStats(r.must(wire.CodeGetTopicStatsInfo, &wire.TopicStatsRequest{Topic: "orders"}, nil).Body)
		if err != nil || len(stats.Queues) != 2 {
			t.Fatalf("%+v, %v", stats, err)
		}
		for q, want := range map[int32]wire.QueueStats{0: {MaxOffset: 2, LastUpdateTimestamp: last}, 1: {}} {
			if got := stats.Queues[wire.MessageQueue{Topic: "orders", BrokerName: "b", QueueID: q}]; got != want {
				t.Errorf("queue %d: %+v, want %+v", q, got, want)
			}
		}
		r.refused(r.call(wire.CodeGetTopicStatsInfo, &wire.TopicStatsRequest{Topic: "unknown"}, nil), wire.TopicNotExist, "unknown")
	})
}

func (r *rawBroker) progress(group, topic string) wire.ConsumeStats {
	r.t.Helper()
	stats, err := wire.ParseConsumeStats(r.must(wire.CodeGetConsumeStats, &wire.ConsumeStatsRequest{ConsumerGroup: group, Topic: topic}, nil).Body)
	if err != nil {
		r.t.Fatal(err)
	}
	return stats
}

func TestConsumeStatsShowTheProgressOfAGroup(t *testing.T) {
	inBubble(t, BrokerConfig{Name: "b"}, func(t *testing.T, r *rawBroker) {
		r.createTopic("orders", 2, permRW)
		r.createTopic("other", 1, permRW)
		var times []int64
		for range 3 {
			times = append(times, time.Now().UnixMilli())
			r.sendTo("orders", "", "x")
			time.Sleep(time.Second)
		}
		r.commit("g", "orders", 0, 2)
		r.commit("g", "other", 0, 0)
		stats := r.progress("g", "orders")
		queue := func(topic string, q int32) wire.MessageQueue {
			return wire.MessageQueue{Topic: topic, BrokerName: "b", QueueID: q}
		}
		want := map[wire.MessageQueue]wire.ConsumeOffset{
			queue("orders", 0): {BrokerOffset: 3, ConsumerOffset: 2, LastTimestamp: times[1]},
			queue("orders", 1): {},
		}
		for q, o := range want {
			if stats.Queues[q] != o {
				t.Errorf("%v: %+v, want %+v", q, stats.Queues[q], o)
			}
		}
		if len(stats.Queues) != 2 {
			t.Errorf("%d queues, want those of one topic", len(stats.Queues))
		}
		if n := len(r.progress("g", "").Queues); n != 3 {
			t.Errorf("%d queues of all topics, want 3", n)
		}
		r.beat("c", "g", tagSub("orders", "*"))
		if n := len(r.progress("g", "").Queues); n != 2 {
			t.Errorf("%d queues of what the group still subscribes to, want 2", n)
		}
		if n := len(r.progress("stranger", "").Queues); n != 0 {
			t.Errorf("%d queues of a group without offsets", n)
		}
	})
}

func TestConsumeStatsShowTheRateOfThePulls(t *testing.T) {
	inBubble(t, BrokerConfig{}, func(t *testing.T, r *rawBroker) {
		r.createTopic("orders", 1, permRW)
		for range 20 {
			r.sendTo("orders", "", "x")
		}
		h := filtered(pullHeader("g", "orders", 0), "*")
		for h.QueueOffset < 20 {
			h2 := *h
			h.QueueOffset = r.pull(&h2).next
		}
		time.Sleep(sampleEvery + time.Second)
		if tps := r.progress("g", "orders").ConsumeTPS; tps != 2 {
			t.Errorf("rate %v, want 20 messages in 10 s", tps)
		}
		table := map[string]string{}
		r.stats.runtime(table, time.Now())
		if table["msgGetTotalTodayNow"] != "20" || table["msgPutTotalTodayNow"] != "20" {
			t.Errorf("put %s, get %s, want 20", table["msgPutTotalTodayNow"], table["msgGetTotalTodayNow"])
		}
	})
}
