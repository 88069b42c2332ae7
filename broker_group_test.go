package mq

import (
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/pocketmq/mq/internal/wire"
	"github.com/pocketmq/mq/storage"
)

// onDisk keeps a broker's store on fs, which outlives the broker.
func onDisk(fs vfs.FS) BrokerConfig {
	return BrokerConfig{Dir: "data", storage: func(o *storage.Options) { o.FS = fs }}
}

func (r *rawBroker) groupTable() wire.SubscriptionGroupTable {
	r.t.Helper()
	table, err := wire.ParseSubscriptionGroupTable(r.must(wire.CodeGetAllSubscriptionGroupConfig, nil, nil).Body)
	if err != nil {
		r.t.Fatal(err)
	}
	return table
}

func TestGroupsAreKeptOverRestarts(t *testing.T) {
	fs := vfs.NewMem()
	var version wire.DataVersion
	t.Run("before", func(t *testing.T) {
		r := startBroker(t, onDisk(fs))
		r.updateGroup(func(c *wire.SubscriptionGroupConfig) {
			c.RetryQueueNums, c.RetryMaxTimes, c.ConsumeBroadcastEnable, c.BrokerID = 2, 5, false, 1
		}, "made")
		r.updateGroup(func(*wire.SubscriptionGroupConfig) {}, "deleted")
		r.beat("c", "automatic")
		before := r.groupTable().DataVersion
		r.must(wire.CodeDeleteSubscriptionGroup, &wire.DeleteGroupRequest{GroupName: "deleted"}, nil)
		r.must(wire.CodeDeleteSubscriptionGroup, &wire.DeleteGroupRequest{GroupName: "unknown"}, nil)
		if version = r.groupTable().DataVersion; version.Counter <= before.Counter {
			t.Errorf("version %+v after %+v", version, before)
		}
	})
	r := startBroker(t, onDisk(fs))
	table := r.groupTable()
	if got := slices.Sorted(maps.Keys(table.Groups)); !slices.Equal(got, []string{"automatic", "made"}) {
		t.Errorf("groups %v", got)
	}
	if table.DataVersion != version {
		t.Errorf("version %+v, want %+v", table.DataVersion, version)
	}
	want := wire.DefaultSubscriptionGroupConfig("made")
	want.RetryQueueNums, want.RetryMaxTimes, want.ConsumeBroadcastEnable, want.BrokerID = 2, 5, false, 1
	if got := table.Groups["made"]; got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if got := table.Groups["automatic"]; got != wire.DefaultSubscriptionGroupConfig("automatic") {
		t.Errorf("got %+v, want the defaults", got)
	}
}

func TestDeletingAGroupKeepsItsOffsetsUnlessAskedTo(t *testing.T) {
	r := startBroker(t, BrokerConfig{})
	r.createTopic("orders", 1, permRW)
	topic, _ := r.topics.lookup("orders")
	for _, remove := range []bool{false, true} {
		r.updateGroup(func(*wire.SubscriptionGroupConfig) {}, "g")
		r.must(wire.CodeUpdateConsumerOffset, &wire.UpdateOffsetRequest{ConsumerGroup: "g", Topic: "orders", CommitOffset: 4}, nil)
		r.must(wire.CodeDeleteSubscriptionGroup, &wire.DeleteGroupRequest{GroupName: "g", RemoveOffset: remove}, nil)
		if _, found, err := r.store.CommittedOffset("g", topic.store, 0); found == remove || err != nil {
			t.Errorf("removeOffset %v: found %v, %v", remove, found, err)
		}
	}
}

func TestGroupsThatMakeNoSenseAreRefused(t *testing.T) {
	r := startBroker(t, BrokerConfig{})
	for remark, body := range map[string]string{
		"blank":          `{"groupName":" "}`,
		"illegal":        `{"groupName":"a b"}`,
		"longer":         `{"groupName":"` + strings.Repeat("x", wire.MaxGroupBytes+1) + `"}`,
		"retryQueueNums": `{"groupName":"g","retryQueueNums":100000}`,
		"subscription":   `[`,
	} {
		r.refused(r.call(wire.CodeUpdateAndCreateSubscriptionGroup, nil, []byte(body)), wire.SystemError, remark)
	}
	if n := len(r.groupTable().Groups); n != 0 {
		t.Errorf("%d groups were made", n)
	}
}

func TestAGroupIsCreatedOnceByManyAtOnce(t *testing.T) {
	r := startBroker(t, BrokerConfig{})
	var wait sync.WaitGroup
	groups := make([]*brokerGroup, 20)
	for i := range groups {
		wait.Go(func() {
			g, err := r.groups.ensure(t.Context(), "g")
			if err != nil {
				t.Error(err)
			}
			groups[i] = g
		})
	}
	wait.Wait()
	for _, g := range groups {
		if g == nil || g != groups[0] {
			t.Fatal("not all got the same group")
		}
	}
	if v := r.groupTable().DataVersion; v.Counter != 1 {
		t.Errorf("version %d, want one change", v.Counter)
	}
}
