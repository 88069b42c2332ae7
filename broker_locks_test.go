package mq

import (
	"slices"
	"testing"
	"time"

	"github.com/pocketmq/mq/internal/wire"
)

func lockQueues(ids ...int32) []wire.MessageQueue {
	var queues []wire.MessageQueue
	for _, id := range ids {
		queues = append(queues, wire.MessageQueue{Topic: "t", BrokerName: "b", QueueID: id})
	}
	return queues
}

func TestALockedQueueIsRefusedToOthersUntilItExpires(t *testing.T) {
	l := newQueueLocks()
	start := time.Unix(1000, 0)
	lock := func(at time.Duration, group, client string, ids, want []int32) {
		t.Helper()
		got := l.lock(start.Add(at), group, client, lockQueues(ids...))
		if !slices.Equal(got, lockQueues(want...)) {
			t.Errorf("at %v %s of %s was granted %v, want %v", at, client, group, got, want)
		}
	}
	lock(0, "g", "a", []int32{0, 1}, []int32{0, 1})
	lock(time.Second, "g", "b", []int32{0, 1, 2}, []int32{2})
	lock(time.Second, "other", "b", []int32{0}, []int32{0})
	lock(30*time.Second, "g", "a", []int32{0}, []int32{0}) // renewed
	lock(lockLifetime, "g", "b", []int32{1}, nil)
	lock(lockLifetime+1, "g", "b", []int32{0, 1}, []int32{1})
	lock(90*time.Second+1, "g", "b", []int32{0}, []int32{0})
}

func TestNoQueueIsGrantedAsAnEmptyList(t *testing.T) {
	l := newQueueLocks()
	l.lock(time.Now(), "g", "a", lockQueues(0))
	if got := l.lock(time.Now(), "g", "b", lockQueues(0)); got == nil || len(got) != 0 {
		t.Errorf("granted %#v, want an empty list that is not nil", got)
	}
}

func TestOnlyTheOwnerUnlocks(t *testing.T) {
	l := newQueueLocks()
	now := time.Unix(1000, 0)
	l.lock(now, "g", "a", lockQueues(0, 1))
	l.unlock("g", "b", lockQueues(0, 1))
	l.unlock("unknown", "a", lockQueues(0, 1))
	if got := l.lock(now, "g", "b", lockQueues(0, 1)); len(got) != 0 {
		t.Fatalf("b got %v although a holds them", got)
	}
	l.unlock("g", "a", lockQueues(0))
	if got := l.lock(now, "g", "b", lockQueues(0, 1)); !slices.Equal(got, lockQueues(0)) {
		t.Errorf("b got %v, want what a gave up", got)
	}
}

func TestExpiredLocksAreForgotten(t *testing.T) {
	l := newQueueLocks()
	now := time.Unix(1000, 0)
	l.lock(now, "g", "a", lockQueues(0))
	l.lock(now.Add(time.Minute), "h", "a", lockQueues(0))
	l.expire(now.Add(time.Minute + 1))
	if len(l.groups) != 1 || l.groups["h"] == nil {
		t.Errorf("left %v, want only the lock of h", l.groups)
	}
	l.unlock("h", "a", lockQueues(0))
	if len(l.groups) != 0 {
		t.Errorf("left %v after everything was unlocked", l.groups)
	}
}
