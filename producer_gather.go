package mq

import (
	"bytes"
	"context"
	"strings"
	"sync"
	"time"

	"github.com/pocketmq/mq/internal/wire"
)

const (
	gatherDepth    = 8         // batches of a topic under way at a time
	gatherBytes    = 256 << 10 // of one batch
	gatherMessages = 1024
)

// A gatherer makes batches of the asynchronous sends to one topic, for
// [ProducerConfig.AutoBatch]. While fewer than gatherDepth batches are under way a
// message leaves at once; when more come than that carries, they gather. So batches
// grow with the load, and no message waits for a timer.
type gatherer struct {
	p     *Producer
	entry *routeEntry

	mu       sync.Mutex // never held across a try
	closed   []*gathered
	open     *gathered // takes messages, behind the closed ones; nil: none does
	flying   int
	flushing bool // a goroutine sends batches: one at a time, which keeps their order
}

// A gathered batch is what one request carries. It is used again, with its memory.
type gathered struct {
	g        *gatherer
	ctx      context.Context
	began    time.Time
	body     []byte // tries send a copy
	ids      []byte // the unique ids, all of one length, one behind the other
	messages []finished
	size     int // what the messages took of the window
}

// gathers tells whether a message may go with others. It must be one that a batch
// can hold and that does not ask for a place of its own among others.
func (p *Producer) gathers(m *Message) bool {
	return p.cfg.AutoBatch && m.ShardKey == "" && m.DelayLevel == 0 && !m.NoFlush && !strings.HasPrefix(m.Topic, retryPrefix) &&
		(p.cfg.CompressAbove < 0 || len(m.Body) < p.cfg.CompressAbove) && gatheredSize(m) <= min(gatherBytes, p.cfg.MaxMessageSize) &&
		propertiesSize(m, wire.MaxUniqueKey) <= wire.MaxPropertiesBytes
}

func gatheredSize(m *Message) int {
	return wire.BatchItemBytes + len(m.Body) + propertiesSize(m, wire.MaxUniqueKey)
}

// gather adds a message, which has its place in the window, to its topic's batch.
func (p *Producer) gather(ctx context.Context, m *Message, done func(*SendResult, error)) {
	g := p.gatherer(m.Topic)
	now := time.Now()
	g.mu.Lock()
	b := g.open
	if b != nil && !b.takes(ctx, m) {
		g.closed = append(g.closed, b)
		b = nil
	}
	if b == nil {
		b = g.begin(ctx, now)
		g.open = b
	}
	b.add(m, now, done)
	start := g.mayStart()
	g.mu.Unlock()
	if start {
		g.start()
	}
}

func (p *Producer) gatherer(topic string) *gatherer {
	if g, ok := p.gatherers.Load(topic); ok {
		return g.(*gatherer)
	}
	g, _ := p.gatherers.LoadOrStore(topic, &gatherer{p: p, entry: p.client.routes.entry(topic)})
	return g.(*gatherer)
}

// begin makes an empty batch.
func (g *gatherer) begin(ctx context.Context, now time.Time) *gathered {
	b, ok := g.p.batches.Get().(*gathered)
	if !ok {
		b = &gathered{}
	}
	b.g, b.ctx, b.began = g, ctx, now
	return b
}

// recycle gives back a batch whose outcome was told.
func (b *gathered) recycle() {
	p := b.g.p
	clear(b.messages)
	*b = gathered{body: b.body[:0], ids: b.ids[:0], messages: b.messages[:0]}
	p.batches.Put(b)
}

// takes tells whether the message fits in: by size, and because it ends with the
// same context.
func (b *gathered) takes(ctx context.Context, m *Message) bool {
	return len(b.messages) < gatherMessages && len(b.body)+gatheredSize(m) <= min(gatherBytes, b.g.p.cfg.MaxMessageSize) &&
		ctx.Done() == b.ctx.Done()
}

func (b *gathered) add(m *Message, now time.Time, done func(*SendResult, error)) {
	at := len(b.ids)
	b.ids = b.g.p.keys.Append(b.ids, now)
	item := len(b.body)
	b.body = wire.OpenBatchItem(b.body, m.Flag, m.Body)
	b.body = appendProperties(b.body, m, b.ids[at:])
	wire.CloseBatchItem(b.body[item:])
	b.messages = append(b.messages, finished{callback: done})
	b.size += len(m.Body)
}

// mayStart tells, under mu, whether a goroutine is to be started that sends.
func (g *gatherer) mayStart() bool {
	if g.flushing || g.flying >= gatherDepth || g.open == nil && len(g.closed) == 0 {
		return false
	}
	g.flushing = true
	return true
}

func (g *gatherer) start() {
	if g.p.life.run(g.flush) {
		return
	}
	for b := g.next(); b != nil; b = g.next() {
		b.finish(nil, &Error{Op: "send to " + g.entry.topic, Err: ErrClosed})
	}
}

// flush sends batches until enough are under way or nothing waits.
func (g *gatherer) flush(context.Context) {
	for b := g.next(); b != nil; b = g.next() {
		s := g.p.newSend(b.ctx, g.p.cfg.Retries+1)
		s.gathered = b
		b.fill(s)
		if err := s.launch(); err != nil {
			s.finish(nil, err)
		}
	}
}

// next takes the oldest batch; nil ends the flushing.
func (g *gatherer) next() *gathered {
	g.mu.Lock()
	defer g.mu.Unlock()
	b := g.open
	switch {
	case g.flying >= gatherDepth || b == nil && len(g.closed) == 0:
		g.flushing = false
		return nil
	case len(g.closed) > 0:
		b = g.closed[0]
		g.closed[0] = nil
		g.closed = g.closed[1:]
	default:
		g.open = nil
	}
	g.flying++
	return b
}

// landed makes room for the next batch.
func (g *gatherer) landed() {
	g.mu.Lock()
	g.flying--
	start := g.mayStart()
	g.mu.Unlock()
	if start {
		g.start()
	}
}

// fill makes s the send of the batch.
func (b *gathered) fill(s *send) {
	p := b.g.p
	if end := b.began.Add(p.cfg.SendTimeout); end.Before(s.deadline) {
		s.deadline = end // the time limit runs from the first message
	}
	s.entry, s.body, s.code = b.g.entry, bytes.Clone(b.body), wire.CodeSendBatchMessage
	s.request = wire.SendRequestV2{
		ProducerGroup:         p.cfg.Group,
		Topic:                 b.g.entry.topic,
		DefaultTopic:          autoCreateTopic,
		DefaultTopicQueueNums: int32(p.cfg.DefaultQueues),
		BornTimestamp:         b.began.UnixMilli(),
		Batch:                 true,
	}
}

// resultSlab is how many results share memory: one that is kept keeps no more.
const resultSlab = 16

// finish tells the outcome of every message, then leaves the window; see
// send.finish.
func (b *gathered) finish(r *SendResult, err error) {
	n := len(b.messages)
	ids, offsetIDs := len(b.ids)/n, 0
	if err == nil && len(r.OffsetID) == (len(r.OffsetID)/n)*n+n-1 { // joined by commas
		offsetIDs = len(r.OffsetID) / n
	}
	for at := 0; at < n; at += resultSlab {
		slab := b.messages[at:min(n, at+resultSlab)]
		if err != nil {
			for i := range slab {
				slab[i].err = err
			}
			continue
		}
		own := string(b.ids[at*ids : (at+len(slab))*ids])
		var theirs string
		if offsetIDs > 0 {
			theirs = strings.Clone(r.OffsetID[at*(offsetIDs+1) : (at+len(slab))*(offsetIDs+1)-1])
		}
		results := make([]SendResult, len(slab))
		for i := range slab {
			results[i] = SendResult{Status: r.Status, ID: own[i*ids : (i+1)*ids], Queue: r.Queue, Offset: r.Offset + int64(at+i)}
			if offsetIDs > 0 {
				results[i].OffsetID = theirs[i*(offsetIDs+1):][:offsetIDs]
			}
			slab[i].result = &results[i]
		}
	}
	g, size := b.g, b.size
	g.p.callbacks.push(b.messages...)
	b.recycle()
	g.landed()
	g.p.window.release(n, size)
}
