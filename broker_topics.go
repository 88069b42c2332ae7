package mq

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pocketmq/mq/internal/wire"
	"github.com/pocketmq/mq/storage"
)

// A brokerTopic is one topic of the broker. The handle of a deleted topic stays
// harmless: the store refuses it with storage.ErrTopicDeleted.
type brokerTopic struct {
	name     string
	store    *storage.Topic
	counters *topicCounters
	system   bool // made at every start, listed as a system topic, not to be changed
	config   atomic.Pointer[wire.TopicConfig]
	changed  int64 // data version counter of its last change; guarded by topicTable.mu
}

// conf returns the topic's configuration as of now.
func (t *brokerTopic) conf() *wire.TopicConfig { return t.config.Load() }

// topicTable knows the broker's topics. Look-ups take no lock. Changes of one
// topic happen one after the other; no lock is held while they are stored.
type topicTable struct {
	b      *Broker
	byName sync.Map // string to *brokerTopic

	mu      sync.Mutex
	version wire.DataVersion
	removed int64                    // data version counter of the last deletion
	busy    map[string]chan struct{} // names being changed; closed when that is done
}

// topicRecord is a topic's configuration as it is stored.
type topicRecord struct {
	Read, Write, Perm, SysFlag int32
	Filter                     string
	Order                      bool
}

// versionRecord is the table's data version as it is stored, with each change. A
// kill between two changes may leave the older one; name servers only compare
// for equality.
type versionRecord struct {
	Timestamp, Counter int64
}

const (
	metaTopic       = "topic"
	metaBroker      = "broker"
	keyTopicVersion = "topics"

	// announceTime bounds how long the creation of a topic waits until the name
	// servers know it.
	announceTime = time.Second
)

func newTopicTable(b *Broker) *topicTable {
	return &topicTable{b: b, busy: make(map[string]chan struct{})}
}

// load reads the stored topics.
func (tt *topicTable) load(ctx context.Context) error {
	now := time.Now().UnixMilli()
	tt.version = wire.DataVersion{Timestamp: now}
	text, ok, err := tt.b.store.Meta(metaBroker, keyTopicVersion)
	if err != nil {
		return fmt.Errorf("mq: data version of the topics: %w", err)
	}
	if ok {
		var v versionRecord
		if err := decodeMeta(text, &v); err != nil {
			return fmt.Errorf("mq: data version of the topics: %w", err)
		}
		tt.version = wire.DataVersion{Timestamp: v.Timestamp, Counter: v.Counter}
	}
	configs := make(map[string]topicRecord)
	err = tt.b.store.ScanMeta(metaTopic, func(name string, value []byte) error {
		var r topicRecord
		if err := decodeMeta(value, &r); err != nil {
			return fmt.Errorf("mq: configuration of topic %s: %w", name, err)
		}
		configs[name] = r
		return nil
	})
	if err != nil {
		return fmt.Errorf("mq: load topics: %w", err)
	}
	for name, r := range configs {
		// A deletion that a crash cut short has freed the data but not yet the
		// configuration; such a topic comes back empty.
		t, err := tt.b.store.OpenTopic(ctx, name)
		if err != nil {
			return fmt.Errorf("mq: open topic %s: %w", name, err)
		}
		tt.add(t, wire.TopicConfig{TopicName: name, ReadQueueNums: r.Read, WriteQueueNums: r.Write, Perm: r.Perm,
			TopicFilterType: r.Filter, TopicSysFlag: r.SysFlag, Order: r.Order}, false)
	}
	return nil
}

// add makes a topic known.
func (tt *topicTable) add(t *storage.Topic, c wire.TopicConfig, system bool) *brokerTopic {
	topic := &brokerTopic{name: c.TopicName, store: t, counters: tt.b.stats.topic(c.TopicName), system: system}
	topic.config.Store(&c)
	tt.byName.Store(c.TopicName, topic)
	return topic
}

// lookup returns the topic of that name.
func (tt *topicTable) lookup(name string) (*brokerTopic, bool) {
	v, ok := tt.byName.Load(name)
	if !ok {
		return nil, false
	}
	return v.(*brokerTopic), true
}

// all returns the topics in the order of their names.
func (tt *topicTable) all() []*brokerTopic {
	var topics []*brokerTopic
	tt.byName.Range(func(_, v any) bool {
		topics = append(topics, v.(*brokerTopic))
		return true
	})
	slices.SortFunc(topics, func(a, b *brokerTopic) int { return cmp.Compare(a.name, b.name) })
	return topics
}

// ensure returns the topic, made durable when there was none, and then, as far as
// announceTime allows, known to the connected name servers.
func (tt *topicTable) ensure(ctx context.Context, name string, queues int, perm int32) (*brokerTopic, error) {
	return tt.ensureLike(ctx, wire.TopicConfig{TopicName: name, ReadQueueNums: int32(queues), WriteQueueNums: int32(queues),
		Perm: perm, TopicFilterType: singleTag})
}

func (tt *topicTable) ensureLike(ctx context.Context, c wire.TopicConfig) (*brokerTopic, error) {
	if t, ok := tt.lookup(c.TopicName); ok {
		return t, nil
	}
	t, err := tt.change(ctx, c.TopicName, func(old *brokerTopic) (*wire.TopicConfig, error) {
		if old != nil {
			return nil, nil
		}
		return &c, nil
	})
	if err != nil {
		return nil, err
	}
	tt.b.registry.announce(ctx, announceTime)
	return t, nil
}

// change applies what decide makes of the topic's present state: a nil config
// leaves it as it is.
func (tt *topicTable) change(ctx context.Context, name string, decide func(old *brokerTopic) (*wire.TopicConfig, error)) (*brokerTopic, error) {
	unlock, err := tt.lock(ctx, name)
	if err != nil {
		return nil, err
	}
	defer unlock()
	old, _ := tt.lookup(name)
	c, err := decide(old)
	if err != nil || c == nil {
		return old, err
	}
	var store *storage.Topic
	if old != nil {
		store = old.store
	} else if store, err = tt.b.store.OpenTopic(ctx, name); err != nil {
		return nil, fmt.Errorf("mq: create topic %s: %w", name, err)
	}
	value, err := encodeMeta(topicRecord{Read: c.ReadQueueNums, Write: c.WriteQueueNums, Perm: c.Perm,
		SysFlag: c.TopicSysFlag, Filter: c.TopicFilterType, Order: c.Order})
	if err != nil {
		return nil, err
	}
	if err := tt.apply(ctx, storage.PutMeta(metaTopic, name, value)); err != nil {
		return nil, fmt.Errorf("mq: store configuration of topic %s: %w", name, err)
	}
	t := old
	if t == nil {
		t = tt.add(store, *c, false)
	} else {
		t.config.Store(c)
	}
	tt.mu.Lock()
	t.changed = tt.advance().Counter
	tt.mu.Unlock()
	tt.b.log.Info("topic changed", "topic", name, "new", old == nil, "read", c.ReadQueueNums,
		"write", c.WriteQueueNums, "perm", c.Perm)
	return t, nil
}

// advance moves the data version on, under mu. A change does so twice: for what
// is stored with it, and when it becomes visible. Since every visible change has
// a number of its own, whoever registers topics up to a number misses none.
func (tt *topicTable) advance() wire.DataVersion {
	tt.version.Timestamp = time.Now().UnixMilli()
	tt.version.Counter++
	return tt.version
}

// remove deletes a topic with its data and the group offsets on it. The data go
// first: a crash in between leaves an empty topic and not old messages for the
// next topic of that name.
func (tt *topicTable) remove(ctx context.Context, name string) error {
	unlock, err := tt.lock(ctx, name)
	if err != nil {
		return err
	}
	defer unlock()
	// Once the store has begun it ends; who asked may be gone by then.
	err = tt.b.store.DeleteTopic(tt.b.life.ctx, name)
	if errors.Is(err, storage.ErrFlushTimeout) {
		tt.forget(name) // the store takes nothing for it any more
	}
	if err != nil && !errors.Is(err, storage.ErrNotFound) {
		return fmt.Errorf("mq: delete topic %s: %w", name, err)
	}
	if err := tt.apply(tt.b.life.ctx, storage.DeleteMeta(metaTopic, name)); err != nil {
		return fmt.Errorf("mq: delete configuration of topic %s: %w", name, err)
	}
	tt.forget(name)
	tt.b.log.Info("topic deleted", "topic", name)
	return nil
}

// forget takes a topic out of the table and ends what waits for it.
func (tt *topicTable) forget(name string) {
	tt.byName.Delete(name)
	tt.mu.Lock()
	tt.removed = tt.advance().Counter
	tt.mu.Unlock()
	tt.b.stats.forgetTopic(name)
	tt.b.consumersTopicDeleted(name)
}

// lock waits until no other change of the name is under way.
func (tt *topicTable) lock(ctx context.Context, name string) (unlock func(), err error) {
	for {
		tt.mu.Lock()
		other, taken := tt.busy[name]
		if !taken {
			mine := make(chan struct{})
			tt.busy[name] = mine
			tt.mu.Unlock()
			return func() {
				tt.mu.Lock()
				delete(tt.busy, name)
				tt.mu.Unlock()
				close(mine)
			}, nil
		}
		tt.mu.Unlock()
		select {
		case <-other:
		case <-ctx.Done():
			return nil, fmt.Errorf("mq: another change of topic %s is under way: %w", name, ctx.Err())
		}
	}
}

// apply stores a change together with the advanced data version.
func (tt *topicTable) apply(ctx context.Context, change storage.Change) error {
	tt.mu.Lock()
	now := tt.advance()
	tt.mu.Unlock()
	v := versionRecord{now.Timestamp, now.Counter}
	value, err := encodeMeta(v)
	if err != nil {
		return err
	}
	return tt.b.store.Apply(ctx, &storage.Request{Changes: []storage.Change{change,
		storage.PutMeta(metaBroker, keyTopicVersion, value)}})
}

// touch makes the next registration a full one under a new data version.
func (tt *topicTable) touch() {
	tt.mu.Lock()
	defer tt.mu.Unlock()
	tt.removed = tt.advance().Counter
}

// dataVersion returns the version of the table.
func (tt *topicTable) dataVersion() wire.DataVersion {
	tt.mu.Lock()
	defer tt.mu.Unlock()
	return tt.version
}

// checkTopicName applies RocketMQ's rules for the names of topics.
func checkTopicName(name string) error {
	switch {
	case strings.TrimSpace(name) == "":
		return errors.New("the specified topic is blank")
	case len(name) > wire.MaxTopicBytes:
		return fmt.Errorf("the specified topic is longer than topic max length %d", wire.MaxTopicBytes)
	}
	for i := range len(name) {
		c := name[i]
		if 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '_' || c == '-' || c == '%' || c == '|' {
			continue
		}
		return fmt.Errorf("the specified topic[%s] contains illegal characters, allowing only ^[%%|a-zA-Z0-9_-]+$", name)
	}
	return nil
}
