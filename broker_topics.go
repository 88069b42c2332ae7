package mq

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/pocketmq/mq/internal/wire"
	"github.com/pocketmq/mq/storage"
)

// A brokerTopic is one topic of the broker. A deleted topic's handle stays
// harmless: the store refuses it with storage.ErrTopicDeleted.
type brokerTopic struct {
	name     string
	store    *storage.Topic
	counters *topicCounters
	system   bool
	config   atomic.Pointer[wire.TopicConfig]
	changed  int64 // data version counter of its last change, guarded by topicTable.mu
}

// conf returns the topic's configuration as of now.
func (t *brokerTopic) conf() wire.TopicConfig { return *t.config.Load() }

// topicTable knows the broker's topics. Look-ups take no lock; changes of one
// topic happen one after the other, and no lock is held while they are stored.
type topicTable struct {
	b      *Broker
	byName sync.Map // string → *brokerTopic

	mu      sync.Mutex
	version wire.DataVersion
	removed int64                    // data version counter of the last deletion
	busy    map[string]chan struct{} // topics being changed; closed when done
}

// lookup returns the topic of that name.
func (tt *topicTable) lookup(name string) (*brokerTopic, bool) {
	v, ok := tt.byName.Load(name)
	if !ok {
		return nil, false
	}
	return v.(*brokerTopic), true
}

// ensure returns the topic, made durable with queues and perm when there was
// none, and then also known to the name servers that are connected.
func (tt *topicTable) ensure(ctx context.Context, name string, queues int, perm int32) (*brokerTopic, error) {
}
