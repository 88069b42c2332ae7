package mq

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/pocketmq/mq/internal/wire"
	"github.com/pocketmq/mq/transport"
)

// A consumerMember is a consumer group's member as heartbeats show it.
type consumerMember interface {
	// consumerData describes the member now; its subscriptions may change.
	consumerData() wire.ConsumerData
}

// joinProducer makes the client a member of a producer group, from the next
// heartbeat on.
func (c *client) joinProducer(group string) {
	c.membersMu.Lock()
	defer c.membersMu.Unlock()
	c.producers[group] = true
}

// joinConsumer makes the client a member of a consumer group, from the next
// heartbeat on.
func (c *client) joinConsumer(group string, m consumerMember) {
	c.membersMu.Lock()
	defer c.membersMu.Unlock()
	c.consumers[group] = m
}

// heartbeat is the body that tells a broker who we are; nil while the client is a
// member of nothing.
func (c *client) heartbeat() []byte {
	c.membersMu.Lock()
	hb := wire.Heartbeat{ClientID: c.id}
	for group := range c.producers {
		hb.Producers = append(hb.Producers, wire.ProducerData{GroupName: group})
	}
	members := slices.Collect(maps.Values(c.consumers))
	c.membersMu.Unlock()
	if len(hb.Producers)+len(members) == 0 {
		return nil
	}
	for _, m := range members {
		hb.Consumers = append(hb.Consumers, m.consumerData())
	}
	return hb.Marshal()
}

// brokersToGreet lists the brokers that get heartbeats: masters, and slaves when
// there is a consumer, which may read from them.
func (c *client) brokersToGreet() []string {
	c.membersMu.Lock()
	slaves := len(c.consumers) > 0
	c.membersMu.Unlock()
	var addrs []string
	for addr, id := range c.brokerTable().addrs() {
		if id == masterID || slaves {
			addrs = append(addrs, addr)
		}
	}
	slices.Sort(addrs)
	return slices.Compact(addrs)
}

// heartbeatNow sends a heartbeat to every broker and waits for the answers, each
// for at most 3 s.
func (c *client) heartbeatNow(ctx context.Context) error { return c.beat(ctx, c.brokersToGreet()) }

func (c *client) beat(ctx context.Context, addrs []string) error {
	body := c.heartbeat()
	if body == nil {
		return nil
	}
	errs := make([]error, len(addrs))
	var all sync.WaitGroup
	for i, addr := range addrs {
		all.Go(func() { errs[i] = c.beatOne(ctx, addr, body) })
	}
	all.Wait()
	for i, err := range errs {
		if err != nil && c.life.ctx.Err() == nil {
			c.log.Warn("heartbeat failed", "broker", addrs[i], "err", err)
		}
	}
	return errors.Join(errs...)
}

// beatOne sends one heartbeat. A connection on which a heartbeat is not answered
// in time is dead and closed; a send that times out proves less, since a broker
// may be slow with one queue and hold pulls on purpose.
func (c *client) beatOne(ctx context.Context, addr string, body []byte) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	c.countBeating(addr, 1)
	defer c.countBeating(addr, -1)
	conn, err := c.conns.connect(ctx, addr)
	if err != nil {
		return unsentError("heartbeat", addr, err)
	}
	f, err := conn.Call(ctx, &transport.Frame{Code: wire.CodeHeartBeat, Body: body})
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		conn.Close()
		return c.callError("heartbeat", addr, err)
	case err != nil:
		return c.callError("heartbeat", addr, err)
	case f.Code != wire.Success:
		return answerError("heartbeat", addr, f)
	}
	return nil
}

// countBeating counts the heartbeats under way to addr and returns their number.
func (c *client) countBeating(addr string, change int) int {
	c.membersMu.Lock()
	defer c.membersMu.Unlock()
	n := c.beating[addr] + change
	if c.beating[addr] = n; n == 0 {
		delete(c.beating, addr)
	}
	return n
}

// greet sends a heartbeat to a broker that is new in the routes, or to which a
// new connection was made: it knows nothing of us. One that is under way, and may
// have made the connection, tells it already. Until start has sent its own round
// there is nothing to do.
func (c *client) greet(addr string) {
	if !c.greeting.Load() || c.countBeating(addr, 0) > 0 || !slices.Contains(c.brokersToGreet(), addr) {
		return
	}
	c.life.run(func(ctx context.Context) { c.beat(ctx, []string{addr}) })
}

func (c *client) heartbeatLoop(ctx context.Context) {
	ticker := time.NewTicker(heartbeatInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			c.heartbeatNow(ctx)
		}
	}
}

// leaveAll tells every broker with a live connection that all our groups leave.
// For consumer groups it waits 1 s at most, so that the other members can be told:
// a broker that hears nothing notices the closed connection. Nobody waits for a
// producer to be gone, and its sends under way must not wait for that either.
func (c *client) leaveAll() {
	c.membersMu.Lock()
	var leaving []wire.UnregisterClientRequest
	for group := range c.producers {
		leaving = append(leaving, wire.UnregisterClientRequest{ClientID: c.id, ProducerGroup: group})
	}
	for group := range c.consumers {
		leaving = append(leaving, wire.UnregisterClientRequest{ClientID: c.id, ConsumerGroup: group})
	}
	clear(c.producers)
	clear(c.consumers)
	c.membersMu.Unlock()
	c.leave(leaving)
}

func (c *client) leave(leaving []wire.UnregisterClientRequest) {
	ctx, cancel := context.WithTimeout(context.Background(), leaveTimeout)
	defer cancel()
	var all sync.WaitGroup
	for addr := range c.brokerTable().addrs() {
		conn := c.conns.live(addr)
		if conn == nil {
			continue
		}
		for i := range leaving {
			all.Go(func() {
				if err := c.leaveOne(ctx, addr, conn, &leaving[i]); err != nil {
					c.log.Debug("broker not told of leaving", "broker", addr, "err", err)
				}
			})
		}
	}
	all.Wait()
}

func (c *client) leaveOne(ctx context.Context, addr string, conn transport.Conn, h *wire.UnregisterClientRequest) error {
	req := &transport.Frame{Code: wire.CodeUnregisterClient, Header: h}
	if h.ConsumerGroup == "" {
		req.Flag = transport.FlagOneWay
		return conn.Send(req)
	}
	f, err := conn.Call(ctx, req)
	if err == nil && f.Code != wire.Success {
		err = answerError("leave", addr, f)
	}
	return err
}
