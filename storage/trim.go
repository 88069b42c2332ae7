package storage

import (
	"context"
	"errors"
	"fmt"
)

// TrimTo deletes the log's segments that end at or before a position. The
// segment that is being written stays, so does the part of a segment before the
// position. Offsets and positions go on; minimum offsets move up.
func (s *Store) TrimTo(ctx context.Context, position int64) error {
	end := s.LogEnd()
	segment := s.segment(min(position, end))
	if segment <= s.segment(s.LogStart()) {
		return nil
	}
	p, err := s.planTrim(segment)
	if err != nil {
		return fmt.Errorf("storage: trimming: %w", err)
	}
	r := &Request{urgent: true}
	r.build = func(l *lane, g *group) error { return l.trimTo(g, p) }
	return s.Apply(ctx, r)
}

// trimPlan is what a trim finds out before it comes to the lane, so that the
// lane does not scan.
type trimPlan struct {
	segment uint32 // first one to stay
	queues  []trimQueue
}

// trimQueue is a queue with records in segments that go.
type trimQueue struct {
	topic uint32
	queue int32
	stays bool // it has a pointer to a segment that stays
}

// planTrim finds the queues that lose records. Pointers to the segments that go
// are all written: the lane is past those segments.
func (s *Store) planTrim(segment uint32) (trimPlan, error) {
	p := trimPlan{segment: segment}
	db, release, err := s.read()
	if err != nil {
		return p, err
	}
	defer release()
	err = scan(db, []byte{kindQueueSegment}, []byte{kindQueueSegment + 1}, func(key, _ []byte) error {
		topic, queue, in, ok := splitQueueSegmentKey(key)
		if !ok {
			return corrupt("queue segment", key)
		}
		last := len(p.queues) - 1
		known := last >= 0 && p.queues[last].topic == topic && p.queues[last].queue == queue
		switch {
		case in >= segment && known:
			p.queues[last].stays = true
		case in < segment && !known:
			p.queues = append(p.queues, trimQueue{topic: topic, queue: queue})
		}
		return nil
	})
	return p, err
}

// trimTo puts the deletion into the group, unless another trim was there
// before.
func (l *lane) trimTo(g *group, p trimPlan) error {
	start := int64(p.segment) * l.s.segmentBytes
	if start <= l.logStart {
		return nil
	}
	var queues group // only its key changes, kept apart until all are known
	for _, tq := range p.queues {
		t := l.s.topicByID(tq.topic)
		if t == nil || t.deleted.Load() {
			continue
		}
		q := t.queue(tq.queue)
		trim := builtTrim{q: q, segment: p.segment}
		if !tq.stays {
			if err := l.readyQueue(q); err != nil {
				return err
			}
			trim.min = q.lane.next
			// A queue that keeps nothing has its head stored, since nothing
			// else tells its next offset any more.
			if q.lane.segment < int64(p.segment) {
				queues.set(queueKey(kindQueueHead, t.id, tq.queue), headValue(q.lane.next, q.lane.next))
			}
		}
		queues.deleteRange(queueSegmentKey(t.id, tq.queue, 0), queueSegmentKey(t.id, tq.queue, p.segment))
		g.trims = append(g.trims, trim)
	}
	l.logStart, g.freed = start, true
	for _, op := range queues.ops {
		g.apply(op)
	}
	for _, kind := range []byte{kindChunk, kindPositionMap, kindSegmentInfo, kindIndex, kindMerged} {
		g.deleteRange(segmentKey(kind, 0), segmentKey(kind, p.segment))
	}
	l.setLogHead(g)
	return nil
}

// trimmer keeps a store in memory within its bound. With a directory it does
// nothing.
type trimmer struct {
	s      *Store
	wake   chan struct{} // capacity 1
	cancel context.CancelFunc
	done   chan struct{}
}

func newTrimmer(s *Store) *trimmer { return &trimmer{s: s, wake: make(chan struct{}, 1)} }

func (t *trimmer) bounded() bool { return t.s.opts.inMemory() && t.s.opts.MemoryLimit > 0 }

// look wakes the trimmer when the log is too long. It never blocks.
func (t *trimmer) look() {
	if t.bounded() && t.s.LogEnd()-t.s.LogStart() > t.s.opts.MemoryLimit {
		select {
		case t.wake <- struct{}{}:
		default: // a wake-up is pending already
		}
	}
}

func (t *trimmer) start() {
	if !t.bounded() {
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	t.cancel, t.done = cancel, done
	go func() {
		defer close(done)
		t.run(ctx)
	}()
}

func (t *trimmer) stop() {
	if t.cancel == nil {
		return
	}
	t.cancel()
	<-t.done
	t.cancel = nil
}

func (t *trimmer) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.wake:
		}
		// Rounded up, since a segment goes as a whole or not at all.
		excess := t.s.LogEnd() - t.s.opts.MemoryLimit
		err := t.s.TrimTo(ctx, excess+t.s.segmentBytes-1)
		if err != nil && !errors.Is(err, context.Canceled) {
			t.s.log.Warn("storage: trimming the memory", "error", err)
		}
	}
}
