package mq

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pocketmq/mq/internal/wire"
)

const (
	maxPendingSends = 10_000
	maxPendingBytes = 64 << 20
	createTimeout   = 10 * time.Second
)

// pendingSends holds back sends whose topic, or consumer group, is being made. A
// topic's sends stay in their order; sends to other topics pass.
type pendingSends struct {
	b      *Broker
	topics atomic.Int32 // names in waiting, so that the common send takes no lock

	mu      sync.Mutex
	waiting map[string][]*sendOp
	count   int
	bytes   int
}

func newPendingSends(b *Broker) *pendingSends {
	return &pendingSends{b: b, waiting: make(map[string][]*sendOp)}
}

// join queues op behind others of its topic, or returns false when there are none.
func (p *pendingSends) join(op *sendOp) bool {
	if p.topics.Load() == 0 {
		return false
	}
	p.mu.Lock()
	if _, ok := p.waiting[op.header.Topic]; !ok {
		p.mu.Unlock()
		return false
	}
	taken := p.add(op)
	p.mu.Unlock()
	if !taken {
		op.fail(errPendingFull)
	}
	return true
}

var errPendingFull = refused(wire.SystemBusy, remarkOverload)

// queue makes op wait and, for the first of its topic, starts the making.
func (p *pendingSends) queue(op *sendOp) {
	name := op.header.Topic
	p.mu.Lock()
	_, started := p.waiting[name]
	taken := p.add(op)
	p.mu.Unlock()
	switch {
	case !taken:
		op.fail(errPendingFull)
	case !started && !p.b.pools.create.Submit(func() { p.drain(name) }):
		for op := p.next(name); op != nil; op = p.next(name) {
			op.fail(errPendingFull)
		}
	}
}

// add appends op, under mu, unless too much waits.
func (p *pendingSends) add(op *sendOp) bool {
	if p.count >= maxPendingSends || p.count > 0 && p.bytes+len(op.body) > maxPendingBytes {
		return false
	}
	name := op.header.Topic
	if _, ok := p.waiting[name]; !ok {
		p.topics.Add(1)
	}
	p.waiting[name] = append(p.waiting[name], op)
	p.count++
	p.bytes += len(op.body)
	return true
}

// next takes the topic's oldest send. When there is none the topic is done: until
// then, later sends queue behind those that wait.
func (p *pendingSends) next(name string) *sendOp {
	p.mu.Lock()
	defer p.mu.Unlock()
	ops := p.waiting[name]
	if len(ops) == 0 {
		delete(p.waiting, name)
		p.topics.Add(-1)
		return nil
	}
	op := ops[0]
	ops[0] = nil
	p.waiting[name] = ops[1:]
	p.count--
	p.bytes -= len(op.body)
	return op
}

// drain makes what the sends need and passes them on in order. Each is judged by
// its own request: the first may name a template that allows nothing.
func (p *pendingSends) drain(name string) {
	for op := p.next(name); op != nil; op = p.next(name) {
		ctx, cancel := context.WithTimeout(p.b.life.ctx, createTimeout)
		op.slow = true
		op.proceed(ctx)
		cancel()
	}
}

// sendGate counts the sends under way, so that Shutdown can wait for them.
type sendGate struct {
	count    atomic.Int64
	draining atomic.Bool
	idle     chan struct{} // capacity 1
}

// enter lets a send in, unless the gate is draining.
func (g *sendGate) enter() bool {
	g.count.Add(1)
	if g.draining.Load() {
		g.leave()
		return false
	}
	return true
}

func (g *sendGate) leave() {
	if g.count.Add(-1) == 0 && g.draining.Load() {
		select {
		case g.idle <- struct{}{}:
		default: // drain looks anyway
		}
	}
}

// drain lets nobody in any more and waits until those inside have left.
func (g *sendGate) drain(ctx context.Context) error {
	g.draining.Store(true)
	for g.count.Load() != 0 {
		select {
		case <-g.idle:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}
