package mq

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pocketmq/mq/internal/wire"
)

// routeCache holds the routes of all topics that this client ever asked for.
type routeCache struct {
	entries sync.Map // topic → *routeEntry
	brokers atomic.Pointer[brokerTable]

	mu       sync.Mutex // orders rebuilding of brokers; never held across a call
	watchers []func(topic string, r *topicRoute)
}

// brokerTable has every broker of the routes in use: name → id → address.
type brokerTable map[string]map[int64]string

// A routeEntry is one topic's place in the cache.
type routeEntry struct {
	topic   string
	own     atomic.Pointer[topicRoute] // nil: not known to be anywhere
	standIn atomic.Pointer[topicRoute] // TBW102's, while publishing and own is nil
	publish atomic.Bool                // the stand-in is wanted
	watched atomic.Bool                // stays in the cache also while there is no route
	kept    atomic.Bool                // the name servers no longer know the route
	turn    atomic.Uint32              // round robin over the queues

	mu     sync.Mutex // never held across a look-up
	lookup *lookup    // under way, shared by all who wait
	again  time.Time  // of the last look-up that a broken connection caused
}

type lookup struct {
	done chan struct{} // closed when err is set and the routes are stored
	err  error         // nil also when the topic is nowhere
}

func (c *routeCache) entry(topic string) *routeEntry {
	if v, ok := c.entries.Load(topic); ok {
		return v.(*routeEntry)
	}
	e := &routeEntry{topic: topic}
	e.turn.Store(rand.Uint32())
	v, _ := c.entries.LoadOrStore(topic, e)
	return v.(*routeEntry)
}

// publishRoute is the route to send by: the topic's own, else the stand-in's.
func (e *routeEntry) publishRoute() *topicRoute {
	if r := e.own.Load(); r != nil {
		return r
	}
	return e.standIn.Load()
}

// watchTopics makes the topics part of every refresh. Before start it says what
// start has to look up.
func (c *client) watchTopics(topics ...string) {
	for _, topic := range topics {
		c.routes.entry(topic).watched.Store(true)
	}
}

// unwatchTopic takes a topic out of the refresh, and its brokers out of the
// heartbeats unless other topics are on them.
func (c *client) unwatchTopic(topic string) {
	c.routes.entries.Delete(topic)
	c.rebuildBrokers()
}

// watchRoutes has fn told of each topic whose route changed; r is nil when the
// topic is nowhere any more. fn must not block. Only before start.
func (c *client) watchRoutes(fn func(topic string, r *topicRoute)) {
	c.routes.watchers = append(c.routes.watchers, fn)
}

// route returns a topic's own route, from the cache or by a look-up that is
// shared with all who ask at the same time. The error wraps ErrNoRoute when name
// servers answered and none knows the topic, ErrNoNameServer when none answered.
func (c *client) route(ctx context.Context, topic string) (*topicRoute, error) {
	e := c.routes.entry(topic)
	if r := e.own.Load(); r != nil {
		return r, nil
	}
	if err := c.lookUp(ctx, e); err != nil {
		return nil, fmt.Errorf("mq: look up %s: %w", topic, err)
	}
	if r := e.own.Load(); r != nil {
		return r, nil
	}
	return nil, fmt.Errorf("%w: %s", ErrNoRoute, topic)
}

// publishRoute is route for sending: a topic that is nowhere yet goes by the
// route of TBW102, whose brokers create topics when they are sent to.
func (c *client) publishRoute(ctx context.Context, e *routeEntry) (*topicRoute, error) {
	e.publish.Store(true)
	r := e.publishRoute()
	if r == nil {
		if err := c.lookUp(ctx, e); err != nil {
			return nil, fmt.Errorf("mq: look up %s: %w", e.topic, err)
		}
		r = e.publishRoute()
	}
	switch {
	case r == nil:
		return nil, c.nowhere(ctx, e.topic)
	case len(r.publishQueues) == 0:
		return nil, fmt.Errorf("%w: %s has no queue that may be written, on a broker with a master", ErrNoRoute, e.topic)
	}
	return r, nil
}

// nowhere says why a topic cannot be sent to. Every broker has the self-test topic.
func (c *client) nowhere(ctx context.Context, topic string) error {
	if _, err := c.names.route(ctx, wire.TopicSelfTest); errors.Is(err, ErrTopicNotFound) {
		return fmt.Errorf("%w: no broker is registered with the name servers, so none has %s", ErrNoRoute, topic)
	}
	return unknownTopic(topic)
}

// lookAgainAfter is the shortest time between two look-ups of a topic because of
// broken connections: many sends find out about one at the same time.
const lookAgainAfter = 100 * time.Millisecond

// lookAgain looks a topic up because its broker was not reached by the route
// before, since a broker that was restarted may be at another address. It tells
// whether the topic has another route now. When there was a look-up just now only
// the patient wait for the next; nobody waits longer than minTryLimit.
func (c *client) lookAgain(ctx context.Context, e *routeEntry, before *topicRoute, patient bool) bool {
	ctx, cancel := context.WithTimeout(ctx, minTryLimit)
	defer cancel()
	changed := func() bool {
		after := e.publishRoute()
		return after != nil && !after.equal(before)
	}
	for began := time.Now(); !changed(); {
		wait, mine := e.nextLookAgain(began)
		if mine {
			if err := c.lookUp(ctx, e); err != nil {
				c.log.Debug("route not looked up again", "topic", e.topic, "err", err)
			}
			return changed()
		}
		if wait <= 0 || !patient || !sleep(ctx, wait) {
			return changed()
		}
	}
	return true
}

// nextLookAgain takes the turn to look the topic up again, or joins a look-up that
// is under way: mine. Otherwise it says how long it is until the next turn; 0 when
// another one's was since began, which serves as well.
func (e *routeEntry) nextLookAgain(began time.Time) (wait time.Duration, mine bool) {
	now := time.Now()
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.lookup != nil || now.Sub(e.again) >= lookAgainAfter {
		e.again = now
		return 0, true
	}
	if e.again.After(began) {
		return 0, false
	}
	return e.again.Add(lookAgainAfter).Sub(now), false
}

// lookUp waits for a look-up of the topic that begins now or is under way.
func (c *client) lookUp(ctx context.Context, e *routeEntry) error {
	e.mu.Lock()
	l := e.lookup
	if l == nil {
		l = &lookup{done: make(chan struct{})}
		if !c.life.run(func(ctx context.Context) { c.completeLookup(ctx, e, l) }) {
			e.mu.Unlock()
			return ErrClosed
		}
		e.lookup = l
	}
	e.mu.Unlock()
	select {
	case <-l.done:
		return l.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (c *client) completeLookup(ctx context.Context, e *routeEntry, l *lookup) {
	own, standIn, err := c.fetch(ctx, e)
	if err == nil {
		c.install(e, own, standIn)
	} else if ctx.Err() != nil {
		err = ErrClosed
	}
	e.mu.Lock()
	e.lookup = nil
	e.mu.Unlock()
	l.err = err
	close(l.done)
}

// fetch asks the name servers. Both routes are nil when they answered that they
// know none.
func (c *client) fetch(ctx context.Context, e *routeEntry) (own, standIn *topicRoute, err error) {
	data, err := c.names.route(ctx, e.topic)
	if err == nil {
		return newTopicRoute(e.topic, data, 0), nil, nil
	}
	if !errors.Is(err, ErrTopicNotFound) {
		return nil, nil, err
	}
	if !e.publish.Load() || e.own.Load() != nil {
		return nil, nil, nil
	}
	data, err = c.names.route(ctx, autoCreateTopic)
	switch {
	case err == nil:
		return nil, newTopicRoute(e.topic, data, c.cfg.defaultQueues), nil
	case errors.Is(err, ErrTopicNotFound):
		return nil, nil, nil
	}
	return nil, nil, err
}

// install puts what the name servers said into the cache. A route they no longer
// know stays in use as long as a connection to one of its brokers lives: it is
// more likely that a name server was restarted than that such a topic is gone. A
// route whose brokers are gone too goes at once, and with it every attempt to
// reach them.
func (c *client) install(e *routeEntry, own, standIn *topicRoute) {
	before := e.publishRoute()
	if own == nil && before != nil && (!before.standIn || standIn == nil) && c.anyLive(before) {
		e.kept.Store(true)
		return
	}
	e.kept.Store(false)
	e.own.Store(own)
	e.standIn.Store(standIn)
	if after := e.publishRoute(); !after.equal(before) {
		c.rebuildBrokers()
		for _, fn := range c.routes.watchers {
			fn(e.topic, own)
		}
	}
}

func (c *client) anyLive(r *topicRoute) bool {
	for _, addrs := range r.brokers {
		for _, addr := range addrs {
			if c.conns.live(addr) != nil {
				return true
			}
		}
	}
	return false
}

// forgetRoute drops a topic's route, because a broker said that it does not have
// the topic; the next use looks it up again.
func (c *client) forgetRoute(topic string) {
	e := c.routes.entry(topic)
	e.own.Store(nil)
	e.standIn.Store(nil)
	c.rebuildBrokers()
}

// rebuildBrokers makes the table of brokers anew from all routes, lets go of
// those that are in none, and greets those that were in none before.
func (c *client) rebuildBrokers() {
	c.routes.mu.Lock()
	table := make(brokerTable)
	for _, kept := range []bool{true, false} { // what name servers say now counts for more
		c.routes.entries.Range(func(_, v any) bool {
			e := v.(*routeEntry)
			if r := e.publishRoute(); r != nil && e.kept.Load() == kept {
				maps.Copy(table, r.brokers)
			}
			return true
		})
	}
	before := c.routes.brokers.Swap(&table)
	c.routes.mu.Unlock()

	known := make(map[string]bool)
	if before != nil {
		for addr := range before.addrs() {
			known[addr] = true
		}
	}
	for addr := range table.addrs() {
		if !known[addr] {
			c.greet(addr)
		}
		delete(known, addr)
	}
	for addr := range known {
		c.conns.forget(addr)
	}
}

// addrs ranges over the addresses of all brokers, with their ids.
func (t brokerTable) addrs() func(yield func(addr string, id int64) bool) {
	return func(yield func(string, int64) bool) {
		for _, byID := range t {
			for id, addr := range byID {
				if addr != "" && !yield(addr, id) {
					return
				}
			}
		}
	}
}

func (c *client) brokerTable() brokerTable {
	if t := c.routes.brokers.Load(); t != nil {
		return *t
	}
	return nil
}

// masterAddr returns the address of a broker's master, when a route has it.
func (c *client) masterAddr(broker string) (string, bool) { return c.brokerAddr(broker, masterID) }

// brokerAddr returns the address of a broker by its id in the replica set.
func (c *client) brokerAddr(broker string, id int64) (string, bool) {
	addr := c.brokerTable()[broker][id]
	return addr, addr != ""
}

// refresh looks up every topic of the cache anew, and drops those that were asked
// for once and are nowhere. It ends at the first look-up
// that no name server answers: the others would wait for nothing, and all keep
// the routes they have.
func (c *client) refresh(ctx context.Context) error {
	asked := false
	var failed error
	c.routes.entries.Range(func(_, v any) bool {
		e := v.(*routeEntry)
		if e.publishRoute() == nil && !e.watched.Load() {
			c.routes.entries.CompareAndDelete(e.topic, e)
			return true
		}
		asked = true
		failed = c.lookUp(ctx, e)
		return failed == nil
	})
	if !asked { // nothing to look up: any answer shows that a name server is there
		if _, err := c.names.route(ctx, autoCreateTopic); err != nil && !errors.Is(err, ErrTopicNotFound) {
			failed = err
		}
	}
	return failed
}

func (c *client) refreshLoop(ctx context.Context) {
	ticker := time.NewTicker(routeInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		if err := c.refresh(ctx); err != nil && ctx.Err() == nil {
			c.log.Warn("routes not refreshed, keeping the last ones", "err", err)
		}
	}
}
