package mq

import "github.com/pocketmq/mq/internal/wire"

// nextQueue picks a queue round robin: the one that turn points at, or the first
// after it that is not on the broker to avoid. When all are on that broker it is
// the one that turn points at. turn may be any number and wrap around.
func nextQueue(queues []Queue, turn uint32, avoid string) int {
	n := uint32(len(queues))
	first := int(turn % n)
	if avoid == "" {
		return first
	}
	for step := range n {
		// Adding after the division keeps the walk whole where turn wraps around.
		if i := int((turn%n + step) % n); queues[i].Broker != avoid {
			return i
		}
	}
	return first
}

// shardIndex is the queue of n for a shard key: Java's String.hashCode modulo n,
// its absolute value, as RocketMQ's SelectMessageQueueByHash chooses. The
// remainder comes first: the smallest hash has no absolute value, a remainder has.
func shardIndex(key string, n int) int {
	i := int(int32(wire.TagHash(key)) % int32(n))
	if i < 0 {
		i = -i
	}
	return i
}
