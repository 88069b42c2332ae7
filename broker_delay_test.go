package mq

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/pocketmq/mq/internal/wire"
	"github.com/pocketmq/mq/storage"
	"github.com/pocketmq/mq/transport"
)

func TestEveryDelayLevelDeliversInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := startBroker(t, BrokerConfig{})
		r.createTopic("t", len32(delayLevels[:]), 6)
		began := time.Now()
		for i := range delayLevels {
			h := message("t", wire.PropDelay, itemName("", i+1), wire.PropTags, "x")
			h.QueueID = int32(i)
			r.stored(h, itemName("m", i))
		}
		for i, d := range delayLevels {
			time.Sleep(time.Until(began.Add(d - 20*time.Millisecond)))
			if got := r.queue("t", int32(i)); len(got) != 0 {
				t.Fatalf("level %d came early", i+1)
			}
			time.Sleep(40 * time.Millisecond)
			got := r.queue("t", int32(i))
			if len(got) != 1 || string(got[0].Body) != itemName("m", i) || got[0].QueueOffset != 0 {
				t.Fatalf("level %d: %+v", i+1, got)
			}
			// What RocketMQ 4.9 leaves in a delivered message.
			if prop(got[0], wire.PropDelay) != itemName("", i+1) || prop(got[0], wire.PropRealTopic) != "t" ||
				prop(got[0], wire.PropRealQueue) != itemName("", i) {
				t.Fatalf("level %d: properties %q", i+1, got[0].Properties)
			}
			if late := got[0].StoreTimestamp - began.Add(d).UnixMilli(); late < 0 || late > 20 {
				t.Fatalf("level %d: stored %d ms late", i+1, late)
			}
		}
	})
}

func len32[T any](s []T) int32 { return int32(len(s)) }

func TestLevelsOutOfRange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := startBroker(t, BrokerConfig{})
		r.createTopic("t", 1, 6)
		r.stored(message("t", wire.PropDelay, "0"), "zero")
		r.stored(message("t", wire.PropDelay, "-1"), "negative")
		r.stored(message("t", wire.PropDelay, "99"), "last")
		if got := bodies(r.queue("t", 0)); got != "zero negative" {
			t.Fatalf("at once: %q", got)
		}
		time.Sleep(2*time.Hour - time.Second)
		if got := len(r.queue("t", 0)); got != 2 {
			t.Fatal("beyond the last level came before 2 h")
		}
		time.Sleep(2 * time.Second)
		if got := bodies(r.queue("t", 0)); got != "zero negative last" {
			t.Fatalf("after 2 h: %q", got)
		}
	})
}

func TestDelayedMessageSurvivesARestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := vfs.NewMem()
		cfg := BrokerConfig{Dir: "data", Transport: transport.NewMemory(transport.MemoryConfig{}),
			storage: func(o *storage.Options) { o.FS = disk }}
		r := startBroker(t, cfg)
		r.createTopic("t", 1, 6)
		r.stored(message("t", wire.PropDelay, "5"), "x") // 1 minute
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(30 * time.Second)
		again := startBroker(t, cfg)
		if got := len(again.queue("t", 0)); got != 0 {
			t.Fatal("came early")
		}
		time.Sleep(31 * time.Second)
		if got := bodies(again.queue("t", 0)); got != "x" {
			t.Fatalf("stored %q", got)
		}
	})
}

func TestDelayedMessageOfADeletedTopicVanishes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := startBroker(t, BrokerConfig{})
		r.createTopic("t", 1, 6)
		r.stored(message("t", wire.PropDelay, "2"), "old")
		r.must(wire.CodeDeleteTopicInBroker, &wire.DeleteTopicRequest{Topic: "t"}, nil)
		r.createTopic("t", 1, 6)
		r.stored(message("t", wire.PropDelay, "2"), "new")
		time.Sleep(time.Minute)
		if got := bodies(r.queue("t", 0)); got != "new" {
			t.Fatalf("stored %q", got)
		}
	})
}
