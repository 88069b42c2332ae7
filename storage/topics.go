package storage

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2"
	"github.com/hashicorp/go-msgpack/v2/codec"
)

// Topic is the handle of a topic. It stays valid across Reopen; after
// DeleteTopic it is refused with ErrTopicDeleted, and a topic made again under
// the same name has a handle of its own. Safe for concurrent use.
type Topic struct {
	name    string
	id      uint32
	deleted atomic.Bool

	mu     sync.Mutex               // guards growing queues
	queues atomic.Pointer[[]*queue] // index is the queue number; nil entries were never used
}

// Name returns the topic's name.
func (t *Topic) Name() string { return t.name }

// queue returns the queue with the given number, which is in range.
func (t *Topic) queue(number int32) *queue {
	if list := t.queues.Load(); list != nil && int(number) < len(*list) {
		if q := (*list)[number]; q != nil {
			return q
		}
	}
	return t.addQueue(number)
}

func (t *Topic) addQueue(number int32) *queue {
	t.mu.Lock()
	defer t.mu.Unlock()
	var old []*queue
	if list := t.queues.Load(); list != nil {
		old = *list
	}
	if int(number) < len(old) && old[number] != nil {
		return old[number]
	}
	list := make([]*queue, max(len(old), int(number)+1))
	copy(list, old)
	q := &queue{topic: t, number: number}
	list[number] = q
	t.queues.Store(&list)
	return q
}

// used returns the queues that were touched in this process.
func (t *Topic) used() []*queue {
	var used []*queue
	if list := t.queues.Load(); list != nil {
		for _, q := range *list {
			if q != nil {
				used = append(used, q)
			}
		}
	}
	return used
}

// topicRecord is what is stored of a topic under its name.
type topicRecord struct {
	ID uint32 `codec:"id"`
}

// msgpack encodes the store's own metadata.
var msgpack = &codec.MsgpackHandle{}

// topics is the registry of a store: what exists, durably.
type topics struct {
	mu       sync.Mutex
	byName   map[string]*Topic
	byID     map[uint32]*Topic
	creating map[string]*creation
}

// creation is a topic on its way to the disk; everybody who wants it waits for
// done.
type creation struct {
	done  chan struct{}
	topic *Topic
	err   error
}

func newTopics() *topics {
	return &topics{byName: map[string]*Topic{}, byID: map[uint32]*Topic{}, creating: map[string]*creation{}}
}

// Topic returns the handle of an existing topic.
func (s *Store) Topic(name string) (*Topic, bool) {
	s.topics.mu.Lock()
	defer s.topics.mu.Unlock()
	t := s.topics.byName[name]
	if t == nil || t.deleted.Load() {
		return nil, false
	}
	return t, true
}

// Topics returns the handles of all topics, in no order.
func (s *Store) Topics() []*Topic {
	s.topics.mu.Lock()
	defer s.topics.mu.Unlock()
	all := make([]*Topic, 0, len(s.topics.byName))
	for _, t := range s.topics.byName {
		all = append(all, t)
	}
	return all
}

func (s *Store) topicByID(id uint32) *Topic {
	s.topics.mu.Lock()
	defer s.topics.mu.Unlock()
	return s.topics.byID[id]
}

// OpenTopic returns the handle of a topic and makes the topic, durably, when it
// is missing. When ctx ends first the topic may come to exist nevertheless.
func (s *Store) OpenTopic(ctx context.Context, name string) (*Topic, error) {
	if name == "" || len(name) > 1<<16-1 {
		return nil, fmt.Errorf("%w: topic name of %d bytes", ErrInvalid, len(name))
	}
	c, mine, t := s.topics.open(name)
	if t != nil {
		return t, nil
	}
	if mine {
		s.Submit(s.createTopic(name, c))
	}
	select {
	case <-c.done:
		return c.topic, c.err
	case <-ctx.Done():
		return nil, fmt.Errorf("storage: making topic %s: %w", name, ctx.Err())
	}
}

// open returns the topic, or its creation and whether the caller has to carry
// that out.
func (ts *topics) open(name string) (c *creation, mine bool, t *Topic) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	if t := ts.byName[name]; t != nil && !t.deleted.Load() {
		return nil, false, t
	}
	if c := ts.creating[name]; c != nil {
		return c, false, nil
	}
	c = &creation{done: make(chan struct{})}
	ts.creating[name] = c
	return c, true, nil
}

func (s *Store) createTopic(name string, c *creation) *Request {
	var t *Topic
	r := &Request{urgent: true}
	r.build = func(l *lane, g *group) error {
		// A creation that was answered with ErrFlushTimeout may be on its way.
		if _, found, err := l.lookup(g)(topicNameKey(name)); found || err != nil {
			return err
		}
		var value []byte
		if err := codec.NewEncoderBytes(&value, msgpack).Encode(topicRecord{ID: l.nextTopic}); err != nil {
			return fmt.Errorf("storage: encoding topic %s: %w", name, err)
		}
		t = &Topic{name: name, id: l.nextTopic}
		l.nextTopic++
		g.set(topicNameKey(name), value)
		g.set([]byte{kindTopicIDs}, be.AppendUint32(nil, l.nextTopic))
		return nil
	}
	r.published = func() {
		if t != nil {
			s.topics.add(t)
		}
	}
	r.Completion = completionFunc(func(_ *Request, err error) {
		s.topics.mu.Lock()
		delete(s.topics.creating, name)
		c.topic, c.err = s.topics.byName[name], err
		s.topics.mu.Unlock()
		if err != nil {
			c.topic = nil
		}
		close(c.done)
	})
	return r
}

// completionFunc is a Completion made of a function.
type completionFunc func(r *Request, err error)

func (f completionFunc) Completed(r *Request, err error) { f(r, err) }

func (ts *topics) add(t *Topic) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	ts.byName[t.name] = t
	ts.byID[t.id] = t
}

func (ts *topics) remove(t *Topic) {
	t.deleted.Store(true)
	ts.mu.Lock()
	defer ts.mu.Unlock()
	if ts.byName[t.name] == t {
		delete(ts.byName, t.name)
	}
	delete(ts.byID, t.id)
}

// DeleteTopic deletes a topic with its records and group offsets. Waiting
// timers of the topic vanish when they are due. It returns ErrNotFound when
// there is no such topic. A topic made again under the name starts at offset 0.
func (s *Store) DeleteTopic(ctx context.Context, name string) error {
	t, ok := s.Topic(name)
	if !ok {
		return fmt.Errorf("%w: topic %s", ErrNotFound, name)
	}
	r := &Request{urgent: true, solo: true}
	r.build = func(l *lane, g *group) error { return l.deleteTopic(g, t) }
	r.published = func() {
		s.topics.remove(t)
		s.offsets.forget(func(_ string, id queueID) bool { return id.topic == t.id })
		for _, q := range t.used() {
			q.clear()
		}
	}
	return s.Apply(ctx, r)
}

// deleteTopic puts the end of a topic into the group. It runs solo, so the
// database shows everything the topic ever got.
func (l *lane) deleteTopic(g *group, t *Topic) error {
	if t.deleted.Load() {
		return fmt.Errorf("%w: %s", ErrTopicDeleted, t.name)
	}
	segments, err := topicSegments(l.db, t.id)
	if err != nil {
		return err
	}
	groups, err := topicGroupOffsets(l.db, t.id)
	if err != nil {
		return err
	}
	// Refused from here on: what follows in this or later groups must not
	// write below the range deletes.
	t.deleted.Store(true)
	g.freed = true
	for segment := range segments {
		g.deleteRange(be.AppendUint32(segmentKey(kindChunk, segment), t.id),
			after(be.AppendUint32(segmentKey(kindChunk, segment), t.id)))
	}
	for _, key := range groups {
		g.remove(key)
	}
	for _, kind := range []byte{kindQueueSegment, kindQueueHead} {
		g.deleteRange(topicKey(kind, t.id), after(topicKey(kind, t.id)))
	}
	g.remove(topicNameKey(t.name))
	l.setLogHead(g)
	return nil
}

// topicSegments returns the segments that hold chunks of a topic.
func topicSegments(db *pebble.DB, topic uint32) (map[uint32]bool, error) {
	segments := map[uint32]bool{}
	err := scan(db, topicKey(kindQueueSegment, topic), after(topicKey(kindQueueSegment, topic)),
		func(key, _ []byte) error {
			_, _, segment, ok := splitQueueSegmentKey(key)
			if !ok {
				return corrupt("queue segment", key)
			}
			segments[segment] = true
			return nil
		})
	return segments, err
}

// load reads the registry. Handles that exist already stay the same ones;
// those whose topic is not on disk are marked deleted.
func (ts *topics) load(db *pebble.DB) error {
	found := map[string]uint32{}
	err := scan(db, []byte{kindTopic}, []byte{kindTopic + 1}, func(key, value []byte) error {
		var r topicRecord
		if err := codec.NewDecoderBytes(value, msgpack).Decode(&r); err != nil {
			return fmt.Errorf("%w: %w", corrupt("topic", key), err)
		}
		found[string(key[1:])] = r.ID
		return nil
	})
	if err != nil {
		return err
	}
	ts.mu.Lock()
	defer ts.mu.Unlock()
	for name, t := range ts.byName {
		id, ok := found[name]
		t.deleted.Store(!ok || id != t.id)
		if t.deleted.Load() {
			delete(ts.byName, name)
			delete(ts.byID, t.id)
		}
	}
	for name, id := range found {
		if ts.byName[name] == nil {
			t := &Topic{name: name, id: id}
			ts.byName[name], ts.byID[id] = t, t
		}
	}
	return nil
}
