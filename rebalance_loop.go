package mq

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/pocketmq/mq/internal/wire"
	"github.com/pocketmq/mq/transport"
)

const (
	rebalancePeriod = 20 * time.Second
	leaveLimit      = 3 * time.Second

	// A topic that is nowhere yet is looked for more often than RocketMQ does: its
	// first message would otherwise wait for the next round.
	missingPeriod    = time.Second
	missingPeriodMax = 5 * time.Second
)

// wakeRebalance makes the next rebalance come at once.
func (c *Consumer) wakeRebalance() {
	select {
	case c.rebalanceNow <- struct{}{}:
	default:
	}
}

// rebalanceLoop rebalances every 20 s, when members come or go, when routes or
// subscriptions change, and more often while a topic has no route.
func (c *Consumer) rebalanceLoop(ctx context.Context) {
	timer := time.NewTimer(missingPeriod)
	defer timer.Stop()
	for wait := missingPeriod; ; {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		case <-c.rebalanceNow:
			// A new member is about to ask where the group is: the better the answer,
			// the less comes twice.
			c.persistAll(ctx)
		}
		if _, complete := c.rebalance(ctx); complete {
			wait = missingPeriod
			timer.Reset(rebalancePeriod)
		} else {
			timer.Reset(wait)
			wait = min(2*wait, missingPeriodMax)
		}
	}
}

// rebalance works out this member's share of every topic, drops what is no longer
// in it and takes what is new, which it returns. A topic whose members cannot be
// found out keeps its queues, and the round is not complete.
func (c *Consumer) rebalance(ctx context.Context) (taken []*assignedQueue, complete bool) {
	complete = true
	topics := sortedKeys(c.subscribed())
	c.dropQueues(ctx, func(q Queue) bool { return !slices.Contains(topics, q.Topic) })
	c.retire(ctx)
	for _, topic := range topics {
		share, err := c.share(ctx, topic)
		if err != nil {
			complete = false
			if ctx.Err() == nil && !errors.Is(err, ErrNoRoute) {
				c.log.Warn("topic not rebalanced, keeping its queues", "topic", topic, "err", err)
			}
			continue
		}
		c.dropQueues(ctx, func(q Queue) bool { return q.Topic == topic && !slices.Contains(share, q) })
		taken = append(taken, c.takeQueues(share)...)
	}
	return taken, complete
}

// share computes which of a topic's queues are this member's.
func (c *Consumer) share(ctx context.Context, topic string) ([]Queue, error) {
	route, err := c.client.route(ctx, topic)
	if err != nil {
		return nil, err
	}
	members, err := c.members(ctx, route)
	if err == nil && !slices.Contains(members, c.client.clientID()) || code(err) == wire.SystemError {
		// The broker does not know this member, or nobody of the group: it was
		// restarted, or the topic came to it after our last heartbeat.
		if err := c.client.heartbeatNow(ctx); err != nil {
			return nil, err
		}
		members, err = c.members(ctx, route)
	}
	if err != nil {
		return nil, err
	}
	if !slices.Contains(members, c.client.clientID()) {
		// Giving everything up would be worse than a round too late.
		return nil, fmt.Errorf("mq: the broker does not list this member (%s) in group %s", c.client.clientID(), c.cfg.Group)
	}
	if len(route.readQueues) == 0 {
		return nil, nil
	}
	return c.cfg.Allocator.Allocate(Allocation{Group: c.cfg.Group, Client: c.client.clientID(),
		Queues: slices.Clone(route.readQueues), Clients: members})
}

// members asks the topic's brokers, one after the other, for the group's members.
// Masters come first: every member heartbeats to them.
func (c *Consumer) members(ctx context.Context, route *topicRoute) ([]string, error) {
	var masters, slaves []string
	for _, byID := range route.brokers {
		for id, addr := range byID {
			if id == masterID {
				masters = append(masters, addr)
			} else {
				slaves = append(slaves, addr)
			}
		}
	}
	slices.Sort(masters) // members ask the same broker first and see the same list
	err := error(&Error{Op: "list members of " + c.cfg.Group, Err: ErrNoRoute})
	for _, addr := range append(masters, slaves...) {
		var f *transport.Frame
		f, err = c.client.call(ctx, addr, wire.CodeGetConsumerListByGroup, &wire.ConsumerGroupRequest{ConsumerGroup: c.cfg.Group}, nil)
		if err != nil {
			continue
		}
		if f.Code != wire.Success {
			err = answerError("list members", addr, f)
			continue
		}
		var list wire.ConsumerList
		if list, err = wire.ParseConsumerList(f.Body); err != nil {
			err = &Error{Op: "list members", Addr: addr, Err: err}
			continue
		}
		slices.SortFunc(list.ConsumerIDs, compareUTF16)
		return slices.Compact(list.ConsumerIDs), nil
	}
	return nil, err
}

// takeQueues starts the pull loop of every queue that is not here yet.
func (c *Consumer) takeQueues(share []Queue) (taken []*assignedQueue) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, queue := range share {
		if c.assigned[queue] != nil {
			continue
		}
		q := newAssignedQueue(queue, c.cfg.Ordered)
		var ctx context.Context
		ctx, q.cancel = context.WithCancel(c.life.ctx)
		if !c.life.run(func(context.Context) { c.fetch(ctx, q) }) {
			q.cancel()
			return taken
		}
		c.assigned[queue] = q
		taken = append(taken, q)
	}
	return taken
}

// dropQueues gives up the queues for which lost is true. Listeners that run are
// waited for, for a second; then what is finished is committed, and from then on
// nothing is.
func (c *Consumer) dropQueues(ctx context.Context, lost func(Queue) bool) {
	var all sync.WaitGroup
	for _, q := range c.assignedQueues() {
		if lost(q.queue) {
			all.Go(func() { c.dropQueue(ctx, q) })
		}
	}
	all.Wait()
}

// dropQueue gives up one queue. An ordered one whose listener still runs stays for
// another round, so that order holds. When the consumer is closed meanwhile, the
// rest is left to leaveQueues.
func (c *Consumer) dropQueue(ctx context.Context, q *assignedQueue) {
	released := q.released(ctx, queueRelease)
	if ctx.Err() != nil {
		return
	}
	if !released && c.cfg.Ordered {
		c.log.Info("lost queue still has a listener running, giving it up in the next round", "queue", q.queue)
		q.stay()
		c.tasks.push(q)
		return
	}
	last := q.drop()
	<-q.ended
	// The consumer's end must not lose this progress, only bound the wait.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveLimit)
	defer cancel()
	c.commitLast(ctx, q, last)
	if c.cfg.Ordered {
		c.unlock(ctx, []*assignedQueue{q})
	}
	c.mu.Lock()
	delete(c.assigned, q.queue)
	c.mu.Unlock()
}

// leaveQueues gives up everything at the end. The workers and pull loops have
// ended.
func (c *Consumer) leaveQueues() {
	ctx, cancel := context.WithTimeout(context.Background(), leaveLimit)
	defer cancel()
	queues := c.assignedQueues()
	var all sync.WaitGroup
	for _, q := range queues {
		last := q.drop()
		all.Go(func() { c.commitLast(ctx, q, last) })
	}
	all.Wait()
	if c.cfg.Ordered && len(queues) > 0 {
		c.unlock(ctx, queues)
	}
	c.mu.Lock()
	clear(c.assigned)
	c.mu.Unlock()
}

func (c *Consumer) assignedQueues() []*assignedQueue {
	c.mu.Lock()
	defer c.mu.Unlock()
	queues := make([]*assignedQueue, 0, len(c.assigned))
	for _, q := range c.assigned {
		queues = append(queues, q)
	}
	return queues
}

// code is the response code an error came with, 0 when it is none.
func code(err error) int32 {
	var e *Error
	if errors.As(err, &e) {
		return int32(e.Code)
	}
	return 0
}
