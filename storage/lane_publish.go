package storage

import "sync/atomic"

// publish makes a committed group visible and hands it on. Watermarks move
// first, so that whoever is told can read.
func (l *lane) publish(g *group) {
	s := l.s
	l.publishRecords(g)
	s.logEnd.Store(g.logEnd)
	s.logStart.Store(g.logStart) // before the trims, see queue.head
	for _, t := range g.trims {
		t.q.trimmed(t.min, t.segment)
	}
	for _, f := range g.published {
		f()
	}
	if len(g.delayed) > 0 {
		s.timers.kick()
	}
	for _, segment := range g.sealed {
		s.index.sealed(segment)
	}
	s.counts.groups.Add(1)
	s.counts.records.Add(int64(g.records))
	s.counts.bytes.Add(g.bytes)
	s.waker.grown(g.chunks)
	l.flights.remove(g, nil)
	s.trimmer.look()
}

// publishRecords moves the watermarks of the group's queues and keeps its
// chunks in the ring.
func (l *lane) publishRecords(g *group) {
	if len(g.chunks) == 0 {
		return
	}
	data := g.data
	kept := ringGroup{bytes: int64(len(data)), queues: make([]*queue, len(g.chunks))}
	pointers := g.pointers
	for i := 0; i < len(g.chunks); {
		q := g.chunks[i].q
		q.mu.Lock()
		for ; len(pointers) > 0 && pointers[0].q == q; pointers = pointers[1:] {
			q.addSegmentLocked(pointers[0].p)
		}
		for ; i < len(g.chunks) && g.chunks[i].q == q; i++ {
			c := &g.chunks[i]
			q.recent = append(q.recent, recentChunk{c.first, c.next, data[c.at : c.at+c.size : c.at+c.size]})
			q.next = c.next
			kept.queues[i] = q
		}
		q.mu.Unlock()
	}
	l.s.ring.add(kept)
}

// counts are the lane's totals since Open.
type counts struct {
	groups, records, bytes atomic.Int64
}
