package mq

import (
	"sync"
	"time"

	"github.com/pocketmq/mq/internal/wire"
)

// lockLifetime is how long a queue stays locked without being locked again
// (RocketMQ: rocketmq.broker.rebalance.lockMaxLiveTime).
const lockLifetime = 60 * time.Second

// queueLocks remembers which client of an ordered group holds which queue, in
// memory only, as RocketMQ does: after a restart of the broker all are free. A
// lock outlives its client's connection, because that client may still be working
// on messages it has.
type queueLocks struct {
	mu     sync.Mutex
	groups map[string]map[wire.MessageQueue]queueLock
}

type queueLock struct {
	client  string
	renewed time.Time
}

func newQueueLocks() *queueLocks {
	return &queueLocks{groups: make(map[string]map[wire.MessageQueue]queueLock)}
}

// lock gives client every queue that is free, expired, or already its own, and
// returns those. It never returns nil.
func (l *queueLocks) lock(now time.Time, group, client string, queues []wire.MessageQueue) []wire.MessageQueue {
	granted := make([]wire.MessageQueue, 0, len(queues))
	l.mu.Lock()
	defer l.mu.Unlock()
	held := l.groups[group]
	for _, q := range queues {
		if k, ok := held[q]; ok && k.client != client && now.Sub(k.renewed) <= lockLifetime {
			continue
		}
		if held == nil {
			held = make(map[wire.MessageQueue]queueLock)
			l.groups[group] = held
		}
		held[q] = queueLock{client, now}
		granted = append(granted, q)
	}
	return granted
}

// unlock frees those of the queues that client holds.
func (l *queueLocks) unlock(group, client string, queues []wire.MessageQueue) {
	l.mu.Lock()
	defer l.mu.Unlock()
	held := l.groups[group]
	for _, q := range queues {
		if k, ok := held[q]; ok && k.client == client {
			delete(held, q)
		}
	}
	if len(held) == 0 {
		delete(l.groups, group)
	}
}

// expire forgets locks that ran out, so that the table does not grow with the
// clients that ever were.
func (l *queueLocks) expire(now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for group, held := range l.groups {
		for q, k := range held {
			if now.Sub(k.renewed) > lockLifetime {
				delete(held, q)
			}
		}
		if len(held) == 0 {
			delete(l.groups, group)
		}
	}
}
