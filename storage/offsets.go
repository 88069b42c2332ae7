package storage

import (
	"context"
	"fmt"
	"sync"

	"github.com/cockroachdb/pebble/v2"
)

// offsets are the committed offsets of consumer groups. Changes are merged in
// memory to the newest per group and queue; they ride on the next group of the
// lane, or get one of their own after offsetsDelay. A killed process may lose
// that much progress, which means redelivery and never loss.
type offsets struct {
	mu     sync.Mutex
	groups map[string]*groupOffsets
	dirty  []dirtyOffset // each entry once, see committed.dirty
}

// groupOffsets is what is known of a group; when loaded, that is everything.
type groupOffsets struct {
	loaded bool
	byID   map[queueID]*committed
}

type queueID struct {
	topic uint32
	queue int32
}

type committed struct {
	offset int64
	dirty  bool // on the list of what is to be written
}

type dirtyOffset struct {
	group string
	topic *Topic
	id    queueID
	value *committed
}

// builtOffset is one offset on its way to the disk.
type builtOffset struct {
	group  string
	id     queueID
	offset int64
}

// maxGroupName is the longest name of a consumer group.
const maxGroupName = 1<<16 - 1

func newOffsets() *offsets { return &offsets{groups: map[string]*groupOffsets{}} }

// CommitOffset notes how far a consumer group got in a queue: the offset of the
// next record it wants. Any value is taken, a smaller one too. It is readable
// at once and durable within about a second, or after FlushOffsets. A group
// name beyond 64 KiB and a deleted topic are ignored.
func (s *Store) CommitOffset(group string, t *Topic, queue int32, offset int64) {
	if len(group) > maxGroupName || t.deleted.Load() {
		return
	}
	if s.offsets.set(group, t, queue, offset) {
		s.intake.offsetsChanged(false)
	}
}

// FlushOffsets makes committed offsets durable now instead of with the next
// group of requests. It does not wait; an Apply of an empty request after it
// does.
func (s *Store) FlushOffsets() {
	if s.offsets.changed() {
		s.intake.offsetsChanged(true)
	}
}

// set returns whether this is the first change since offsets were written.
func (o *offsets) set(group string, t *Topic, queue int32, offset int64) (first bool) {
	id := queueID{t.id, queue}
	o.mu.Lock()
	defer o.mu.Unlock()
	g := o.groups[group]
	if g == nil {
		g = &groupOffsets{byID: map[queueID]*committed{}}
		o.groups[group] = g
	}
	c := g.byID[id]
	if c == nil {
		c = &committed{}
		g.byID[id] = c
	}
	c.offset = offset
	if c.dirty {
		return false
	}
	c.dirty = true
	o.dirty = append(o.dirty, dirtyOffset{group, t, id, c})
	return len(o.dirty) == 1
}

func (o *offsets) changed() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.dirty) > 0
}

// take returns the changes for a group of the lane.
func (o *offsets) take() []builtOffset {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.dirty) == 0 {
		return nil
	}
	built := make([]builtOffset, 0, len(o.dirty))
	for _, d := range o.dirty {
		d.value.dirty = false
		if !d.topic.deleted.Load() {
			built = append(built, builtOffset{d.group, d.id, d.value.offset})
		}
	}
	clear(o.dirty)
	o.dirty = o.dirty[:0]
	return built
}

func (b *builtOffset) appendTo(batch *pebble.Batch) error {
	var value [8]byte
	be.PutUint64(value[:], uint64(b.offset))
	return batch.Set(groupOffsetKey(b.group, b.id.topic, b.id.queue), value[:], nil)
}

// CommittedOffset returns what CommitOffset noted last, and whether it did.
func (s *Store) CommittedOffset(group string, t *Topic, queue int32) (int64, bool, error) {
	if t.deleted.Load() {
		return 0, false, fmt.Errorf("%w: %s", ErrTopicDeleted, t.name)
	}
	id := queueID{t.id, queue}
	for {
		if offset, found, loaded := s.offsets.find(group, id); found || loaded {
			return offset, found, nil
		}
		// What was loaded may be forgotten before it is looked at, when the store
		// opens again: then it says nothing, least of all that there is no offset.
		if err := s.loadOffsets(group); err != nil {
			return 0, false, err
		}
	}
}

func (o *offsets) find(group string, id queueID) (offset int64, found, loaded bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	g := o.groups[group]
	if g == nil {
		return 0, false, false
	}
	if c := g.byID[id]; c != nil {
		return c.offset, true, g.loaded
	}
	return 0, false, g.loaded
}

// loadOffsets reads a group's offsets; what is in memory is newer and stays.
func (s *Store) loadOffsets(group string) error {
	if len(group) > maxGroupName {
		return fmt.Errorf("%w: group name of %d bytes", ErrTooLarge, len(group))
	}
	db, release, err := s.read()
	if err != nil {
		return err
	}
	defer release()
	stored := map[queueID]int64{}
	prefix := groupKey(group)
	err = scan(db, prefix, after(prefix), func(key, value []byte) error {
		_, topic, queue, ok := splitGroupOffsetKey(key)
		if !ok || len(value) != 8 {
			return corrupt("group offset", key)
		}
		stored[queueID{topic, queue}] = int64(be.Uint64(value))
		return nil
	})
	if err != nil {
		return fmt.Errorf("storage: offsets of group %s: %w", group, err)
	}
	s.offsets.merge(group, stored)
	return nil
}

func (o *offsets) merge(group string, stored map[queueID]int64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	g := o.groups[group]
	if g == nil {
		g = &groupOffsets{byID: map[queueID]*committed{}}
		o.groups[group] = g
	}
	if g.loaded {
		return
	}
	g.loaded = true
	for id, offset := range stored {
		if g.byID[id] == nil {
			g.byID[id] = &committed{offset: offset}
		}
	}
}

// GroupOffset is the committed offset of a group in one queue.
type GroupOffset struct {
	Topic  *Topic
	Queue  int32
	Offset int64
}

// GroupOffsets returns all committed offsets of a group, in no order.
func (s *Store) GroupOffsets(group string) ([]GroupOffset, error) {
	var offsets map[queueID]int64
	for loaded := false; !loaded; { // as in CommittedOffset
		if err := s.loadOffsets(group); err != nil {
			return nil, err
		}
		offsets, loaded = s.offsets.all(group)
	}
	var all []GroupOffset
	for id, offset := range offsets {
		if t := s.topicByID(id.topic); t != nil {
			all = append(all, GroupOffset{t, id.queue, offset})
		}
	}
	return all, nil
}

// all returns the offsets of a group, unless those are not loaded.
func (o *offsets) all(group string) (all map[queueID]int64, loaded bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	g := o.groups[group]
	if g == nil || !g.loaded {
		return nil, false
	}
	all = make(map[queueID]int64, len(g.byID))
	for id, c := range g.byID {
		all[id] = c.offset
	}
	return all, true
}

// DeleteGroup deletes all committed offsets of a group, durably. An offset that
// is committed meanwhile may stay.
func (s *Store) DeleteGroup(ctx context.Context, name string) error {
	if len(name) > maxGroupName {
		return fmt.Errorf("%w: group name of %d bytes", ErrTooLarge, len(name))
	}
	r := &Request{urgent: true}
	r.build = func(_ *lane, g *group) error {
		// Forgotten before the group takes the changed offsets along, which
		// would come after the range delete.
		s.offsets.empty(name)
		g.deleteRange(groupKey(name), after(groupKey(name)))
		return nil
	}
	return s.Apply(ctx, r)
}

// empty drops a group's offsets and knows that there are none, so that nobody
// loads those that are about to be deleted.
func (o *offsets) empty(name string) {
	o.forget(func(group string, _ queueID) bool { return group == name })
	o.mu.Lock()
	defer o.mu.Unlock()
	g := o.groups[name]
	if g == nil {
		g = &groupOffsets{byID: map[queueID]*committed{}}
		o.groups[name] = g
	}
	g.loaded = true
}

// forget drops the offsets that gone says.
func (o *offsets) forget(gone func(group string, id queueID) bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for name, g := range o.groups {
		for id := range g.byID {
			if gone(name, id) {
				delete(g.byID, id)
			}
		}
	}
	kept := o.dirty[:0]
	for _, d := range o.dirty {
		if !gone(d.group, d.id) {
			kept = append(kept, d)
		}
	}
	clear(o.dirty[len(kept):])
	o.dirty = kept
}

// reset forgets what was loaded, for a store that opens again. Changes that
// are not written yet stay.
func (o *offsets) reset() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.groups = map[string]*groupOffsets{}
	for _, d := range o.dirty {
		g := o.groups[d.group]
		if g == nil {
			g = &groupOffsets{byID: map[queueID]*committed{}}
			o.groups[d.group] = g
		}
		g.byID[d.id] = d.value
	}
}

// topicGroupOffsets returns the keys of all groups' offsets in a topic.
func topicGroupOffsets(db *pebble.DB, topic uint32) ([][]byte, error) {
	var keys [][]byte
	err := scan(db, []byte{kindGroupOffset}, []byte{kindGroupOffset + 1}, func(key, _ []byte) error {
		_, id, _, ok := splitGroupOffsetKey(key)
		if !ok {
			return corrupt("group offset", key)
		}
		if id == topic {
			keys = append(keys, append([]byte(nil), key...))
		}
		return nil
	})
	return keys, err
}
