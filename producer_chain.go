package mq

import "sync"

// sendChains keeps asynchronous sends with equal shard keys in order, by having
// one of them under way at a time. What waits behind a failed one fails with it.
type sendChains struct {
	mu     sync.Mutex // never held across a try or a callback
	queues map[chainKey][]*send
}

type chainKey struct{ topic, shardKey string }

func (s *send) chainKey() chainKey { return chainKey{s.entry.topic, s.shardKey} }

// begin tells whether the send may go now. If not, it waits in the chain.
func (c *sendChains) begin(s *send) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.queues == nil {
		c.queues = make(map[chainKey][]*send)
	}
	waiting, busy := c.queues[s.chainKey()]
	if !busy {
		c.queues[s.chainKey()] = nil
		return true
	}
	c.queues[s.chainKey()] = append(waiting, s)
	return false
}

// end lets the next send of the chain go, or, after a failure, none of those that
// wait. The chain begins anew with the next send.
func (c *sendChains) end(s *send, err error) {
	c.mu.Lock()
	waiting := c.queues[s.chainKey()]
	if err == nil && len(waiting) > 0 {
		if s.p.life.run(waiting[0].relaunch) { // only starts a goroutine
			c.queues[s.chainKey()] = waiting[1:]
			c.mu.Unlock()
			return
		}
		err = ErrClosed
	}
	delete(c.queues, s.chainKey())
	c.mu.Unlock()
	for _, w := range waiting {
		w.chained = false // it has left the chain
		w.finish(nil, &Error{Op: w.op(), Err: unsentAfter{err}})
	}
}
