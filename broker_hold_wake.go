package mq

import (
	"context"
	"time"

	"github.com/pocketmq/mq/internal/wire"
	"github.com/pocketmq/mq/storage"
	"github.com/pocketmq/mq/transport"
)

// rereads bounds how often one look at a held pull goes on past entries that all
// were filtered away, so that a rare tag cannot keep the store's waker busy.
const rereads = 4

// holdPull holds p, or answers it when there is something by now.
func (b *Broker) holdPull(p *pull) {
	wait := min(time.Duration(min(p.header.SuspendTimeoutMillis, longestHold.Milliseconds()))*time.Millisecond, longestHold)
	verdict, first := b.holds.add(p, time.Now().Add(wait))
	switch verdict {
	case holdsFull:
		p.reply(respond(wire.SystemBusy, "[OVERLOAD]too many pulls are waiting for messages"))
		return
	case holdsClosed:
		p.reply(respond(wire.ServiceNotAvailable, "the broker is shutting down"))
		return
	}
	if first {
		b.rouseHolds()
	}
	select {
	case <-p.conn.Done():
		// Its close may have been reported before the pull was held.
		b.dropHolds(p.conn)
		return
	default:
	}
	// What was stored between the read and add has woken nobody.
	b.lookAt(p)
}

// lookAt answers a held pull if its queue has something for it. It does no I/O
// and does not block: what the ring does not have is read by the pool. Entries
// that do not match are looked at once in the life of the pull.
func (b *Broker) lookAt(p *pull) {
	for range rereads {
		tags, refusal := b.checkPull(p)
		if refusal != nil {
			b.settle(p, refusal)
			return
		}
		read := p.read(tags)
		res, recent := b.store.ReadRecent(read)
		if !recent {
			break
		}
		if b.outcome(p, read.Offset, res) {
			return
		}
	}
	b.lookAtCold(p)
}

// outcome deals with a read at offset for a held pull and tells whether that was
// all for now; otherwise there are more entries to look at.
func (b *Broker) outcome(p *pull, offset int64, res storage.ReadResult) bool {
	switch {
	case res.Status == storage.NoMatch:
		p.advance(res.Next)
		return res.Next >= res.Max || res.Next <= offset
	case res.Status == storage.AtEnd, res.Status == storage.Empty && pullCode(p, res) == wire.PullNotFound:
		return true
	}
	if b.holds.take(p) {
		b.answerPull(p, res)
	}
	return true
}

// settle answers a held pull with f unless somebody else did.
func (b *Broker) settle(p *pull, f *transport.Frame) {
	if b.holds.take(p) {
		p.reply(f)
	}
}

// lookAtCold reads for a held pull in the pool, one read at a time for each pull.
// When the pool is full the next sweep tries again.
func (b *Broker) lookAtCold(p *pull) {
	if !p.cold.CompareAndSwap(false, true) {
		return
	}
	if !b.pools.pull.Submit(func() { b.readHeld(p) }) {
		p.cold.Store(false)
	}
}

func (b *Broker) readHeld(p *pull) {
	for done := false; !done; {
		tags, refusal := b.checkPull(p)
		if refusal != nil {
			b.settle(p, refusal)
			return
		}
		read := p.read(tags)
		res, err := b.store.Read(b.life.ctx, read)
		if err != nil {
			b.settle(p, readRefusal(p, err))
			return
		}
		done = b.outcome(p, read.Offset, res)
	}
	p.cold.Store(false)
	if b.holds.has(p) {
		b.lookAt(p) // a growth that came while cold was set woke nobody
	}
}

// dropHolds ends the pulls of a closed connection.
func (b *Broker) dropHolds(c transport.Conn) {
	for _, p := range b.holds.drop(c) {
		p.reply(respond(wire.SystemError, "the connection has closed"))
	}
}

// rouseHolds makes runHolds look at the deadlines again.
func (b *Broker) rouseHolds() {
	select {
	case b.holds.rouse <- struct{}{}:
	default: // it will look anyway
	}
}

// runHolds owns the time of held pulls: it answers those whose time is up, and
// every five seconds looks at all, as RocketMQ does. With nothing held it sleeps.
// It returns when ctx ends, and then everything held has been answered.
func (b *Broker) runHolds(ctx context.Context) {
	timer := time.NewTimer(holdSweepEvery)
	defer timer.Stop()
	defer b.closeHolds()
	var sweep time.Time
	var pulls []*pull
	for {
		now := time.Now()
		var next time.Time
		pulls, next = b.holds.due(now, pulls[:0])
		for _, p := range pulls {
			b.expirePull(p)
		}
		clear(pulls)
		if next.IsZero() {
			sweep = time.Time{}
			timer.Stop()
		} else {
			if sweep.IsZero() {
				sweep = now.Add(holdSweepEvery)
			} else if !now.Before(sweep) {
				sweep = now.Add(holdSweepEvery)
				pulls = b.lookAtAll(pulls[:0])
			}
			if sweep.Before(next) {
				next = sweep
			}
			timer.Reset(time.Until(next))
		}
		select {
		case <-timer.C:
		case <-b.holds.rouse:
		case <-ctx.Done():
			return
		}
	}
}

func (b *Broker) lookAtAll(pulls []*pull) []*pull {
	pulls = b.holds.all(pulls)
	for i, p := range pulls {
		b.lookAt(p)
		pulls[i] = nil
	}
	return pulls
}

// closeHolds answers everything held and holds nothing from now on.
func (b *Broker) closeHolds() {
	for _, p := range b.holds.close() {
		p.reply(respond(wire.ServiceNotAvailable, "the broker is shutting down"))
	}
}

// expirePull answers a pull that was taken because its time is up: with what
// there is, or that there is nothing.
func (b *Broker) expirePull(p *pull) {
	tags, refusal := b.checkPull(p)
	if refusal != nil {
		p.reply(refusal)
		return
	}
	if res, recent := b.store.ReadRecent(p.read(tags)); recent {
		b.answerPull(p, res)
		return
	}
	b.inPool(b.pools.pull, p.reply, func() {
		res, err := b.store.Read(b.life.ctx, p.read(tags))
		if err != nil {
			p.reply(readRefusal(p, err))
			return
		}
		b.answerPull(p, res)
	})
}
