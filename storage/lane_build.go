package storage

import (
	"fmt"
	"time"

	"github.com/cockroachdb/pebble/v2"
)

// build makes a group of requests. It judges each request in turn, with the
// changes of those before it in sight, and refuses what is to be refused; then
// it gives every record its place, queue by queue, so that the chunks of a
// queue are contiguous in the log. After the judging nothing can fail but
// Pebble itself, and that freezes the store.
func (l *lane) build(requests []*Request) *group {
	l.forgetCommitted()
	l.number++
	l.queues = l.queues[:0]
	g := &group{built: time.Now(), requests: append(make([]*Request, 0, len(requests)), requests...)}
	l.storeTime = max(l.storeTime, g.built.UnixMilli())
	for _, r := range g.requests {
		if r.verdict = l.accept(g, r); r.verdict == nil {
			l.collect(g, r)
		}
	}
	g.offsets = l.s.offsets.take()
	g.batch = l.db.NewBatch(pebble.WithInitialSizeBytes(l.batchSize(g)))
	if err := l.fill(g); err != nil {
		l.fs.fail(fmt.Errorf("storage: building a group: %w", err))
	}
	// Taken before the commit: Pebble takes the data of a large batch away.
	g.data = g.batch.Repr()
	g.logEnd, g.logStart = l.position, l.logStart
	if !g.touched.empty() {
		l.pending = append(l.pending, g)
	}
	return g
}

// accept judges a request: its form, the heads of its queues, at last its
// condition, which may rely on being the last obstacle.
func (l *lane) accept(g *group, r *Request) error {
	if err := r.check(); err != nil {
		return err
	}
	for i := range r.Records {
		if err := l.ready(&r.Records[i]); err != nil {
			return err
		}
	}
	if r.If != nil {
		value, found, err := l.lookup(g)(metaKey(r.If.Kind, r.If.Key))
		if err != nil {
			return err
		}
		if !r.If.Holds(value, found) {
			return ErrConditionFailed
		}
	}
	if r.cond != nil {
		ok, err := r.cond(l.lookup(g))
		if err != nil {
			return err
		}
		if !ok {
			return ErrConditionFailed
		}
	}
	if r.build != nil {
		return r.build(l, g)
	}
	return nil
}

// ready loads the head of a record's queue into the lane.
func (l *lane) ready(r *Record) error {
	if r.DeliverAt > 0 {
		return nil
	}
	return l.readyQueue(r.Topic.queue(r.Queue))
}

func (l *lane) readyQueue(q *queue) error {
	if q.lane.life == l.life {
		return nil
	}
	b, err := q.head(l.s, l.db)
	if err != nil {
		return err
	}
	q.lane = laneQueue{life: l.life, next: b.next, segment: -1, pending: q.lane.pending[:0]}
	if n := len(b.segments); n > 0 {
		q.lane.segment = int64(b.segments[n-1].segment)
	}
	return nil
}

// collect adds an accepted request to the group.
func (l *lane) collect(g *group, r *Request) {
	for _, op := range r.ops {
		g.apply(op)
	}
	for _, c := range r.Changes {
		op := keyOp{kind: opSet, key: metaKey(c.kind, c.key), value: c.value}
		if c.remove {
			op.kind = opDelete
		}
		g.apply(op)
	}
	if r.published != nil {
		g.published = append(g.published, r.published)
	}
	for i := range r.Records {
		rec := &r.Records[i]
		g.records++
		g.bytes += int64(len(rec.Bytes))
		g.keys += len(rec.Keys)
		if rec.DeliverAt > 0 {
			g.delayed = append(g.delayed, rec)
			continue
		}
		q := rec.Topic.queue(rec.Queue)
		if q.lane.group != l.number {
			q.lane.group = l.number
			l.queues = append(l.queues, q)
		}
		q.lane.pending = append(q.lane.pending, rec)
	}
}

// batchSize is what the batch will take, somewhat generously: one that must
// grow is copied, and unused memory stays in the ring.
func (l *lane) batchSize(g *group) int {
	chunks := len(l.queues) + int(g.bytes)/(chunkBytes/2)
	size := 256 + int(g.bytes) + g.records*chunkEntryLen + g.keys*18 + chunks*160
	for i := range g.ops {
		size += len(g.ops[i].key) + len(g.ops[i].end) + len(g.ops[i].value) + 16
	}
	for i := range g.offsets {
		size += len(g.offsets[i].group) + 40
	}
	return size + len(g.delayed)*96
}

// fill writes the batch: key changes first, in the order of their requests,
// then group offsets, timers and chunks.
func (l *lane) fill(g *group) error {
	for i := range g.ops {
		if err := g.ops[i].appendTo(g.batch); err != nil {
			return err
		}
	}
	for i := range g.offsets {
		if err := g.offsets[i].appendTo(g.batch); err != nil {
			return err
		}
	}
	for _, r := range g.delayed {
		if err := l.s.timers.add(g.batch, r); err != nil {
			return err
		}
	}
	for _, q := range l.queues {
		if err := l.fillQueue(g, q); err != nil {
			return err
		}
	}
	if err := l.endPart(g); err != nil {
		return err
	}
	return l.s.timers.seal(g.batch)
}

func (op *keyOp) appendTo(b *pebble.Batch) error {
	switch op.kind {
	case opDelete:
		return b.Delete(op.key, nil)
	case opDeleteRange:
		return b.DeleteRange(op.key, op.end, nil)
	}
	return b.Set(op.key, op.value, nil)
}

// fillQueue cuts the records of a queue into chunks.
func (l *lane) fillQueue(g *group, q *queue) error {
	pending := q.lane.pending
	for len(pending) > 0 {
		n, bytes := 1, len(pending[0].Bytes)
		for n < len(pending) && chunkSize(n+1, bytes+len(pending[n].Bytes)) <= chunkBytes {
			bytes += len(pending[n].Bytes)
			n++
		}
		if err := l.fillChunk(g, q, pending[:n], bytes); err != nil {
			return err
		}
		pending = pending[n:]
	}
	clear(q.lane.pending) // the records belong to their senders again
	q.lane.pending = q.lane.pending[:0]
	return nil
}

// fillChunk writes one chunk, and whatever its place makes necessary.
func (l *lane) fillChunk(g *group, q *queue, records []*Record, bytes int) error {
	if err := l.enterSegment(g, q); err != nil {
		return err
	}
	first := q.lane.next
	size := chunkSize(len(records), bytes)
	op := g.batch.SetDeferred(chunkKeyLen, size)
	putChunkKey(op.Key, l.segment, q.topic.id, q.number, first)
	value := op.Value
	putChunkHeader(value, len(records), first, l.position, l.storeTime)
	data, end := value[chunkHeaderLen+len(records)*chunkEntryLen:], 0
	for i, r := range records {
		r.Offset, r.Position, r.StoreTime = first+int64(i), l.position+int64(end), l.storeTime
		r.put(data[end : end+len(r.Bytes)])
		end += len(r.Bytes)
		putChunkEntry(value, i, end, r.TagHash)
		for _, key := range r.Keys {
			l.index.add(key, r.Position)
		}
	}
	if err := op.Finish(); err != nil {
		return err
	}
	q.lane.next += int64(len(records))
	g.chunks = append(g.chunks, builtChunk{q, first, q.lane.next, g.batch.Len() - size, size})
	l.maps = appendMapEntry(l.maps, mapEntry{l.position, q.topic.id, q.number, first})
	l.position += int64(bytes)
	return nil
}

// enterSegment does what the next chunk of a queue needs when it is the first
// of a segment, or the queue's first there.
func (l *lane) enterSegment(g *group, q *queue) error {
	if segment := l.s.segment(l.position); !l.started || segment != l.segment {
		if err := l.endPart(g); err != nil {
			return err
		}
		if l.started {
			g.sealed = append(g.sealed, l.segment)
		}
		l.segment, l.started = segment, true
		info := be.AppendUint64(be.AppendUint64(nil, uint64(l.position)), uint64(l.storeTime))
		if err := g.batch.Set(segmentKey(kindSegmentInfo, segment), info, nil); err != nil {
			return err
		}
	}
	if len(l.maps) == 0 {
		l.mapFirst = l.position
	}
	if q.lane.segment == int64(l.segment) {
		return nil
	}
	q.lane.segment = int64(l.segment)
	p := segmentPointer{l.segment, q.lane.next, l.position, l.storeTime}
	g.pointers = append(g.pointers, builtPointer{q, p})
	return g.batch.Set(queueSegmentKey(q.topic.id, q.number, l.segment), p.value(), nil)
}

// endPart writes the position map and the key list of the group's part in the
// current segment.
func (l *lane) endPart(g *group) error {
	if len(l.maps) == 0 {
		return nil
	}
	size := mapHeaderLen + len(l.maps)
	op := g.batch.SetDeferred(positionKeyLen, size)
	putPositionKey(op.Key, l.segment, l.mapFirst)
	putMapHeader(op.Value, l.position, l.storeTime)
	copy(op.Value[mapHeaderLen:], l.maps)
	if err := op.Finish(); err != nil {
		return err
	}
	l.maps = l.maps[:0]
	if err := l.index.appendTo(g.batch, l.segment, l.mapFirst); err != nil {
		return err
	}
	l.index.reset()
	return nil
}
