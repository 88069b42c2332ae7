package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync/atomic"

	"github.com/pocketmq/mq"
)

// A system is one of the queues under comparison, running in this process on a
// directory of its own. It makes its messages' bodies itself.
type system interface {
	// send sends a message and waits until it is acknowledged.
	send(ctx context.Context) error
	// sendAsync sends a message, waiting for a place among window unacknowledged
	// ones. Failures are reported by drain at the latest.
	sendAsync(ctx context.Context) error
	// drain waits until everything sent by sendAsync is acknowledged.
	drain(ctx context.Context) error
	// consume has a new group, or durable consumer, with a listener that does
	// nothing receive and acknowledge the first n messages.
	consume(ctx context.Context, n int) error
	close() error
}

// window is how many messages sendAsync leaves unacknowledged.
const window = 4096

// A variant names a system and how it is set up.
type variant struct {
	name string
	open func(ctx context.Context, dir string, tcp bool, bodies *bodies) (system, error)
}

// bodies gives out message bodies of one size that do not compress, one after the
// other from a large random text, so that nobody's compression flatters it.
type bodies struct {
	size   int
	random []byte
	given  atomic.Uint64
}

func newBodies(size int) *bodies {
	random := make([]byte, 256<<10)
	rand.NewChaCha8([32]byte{}).Read(random) // never fails
	return &bodies{size: size, random: random}
}

func (b *bodies) next() []byte {
	at := int(b.given.Add(1) * 4099 % uint64(len(b.random)-b.size))
	return b.random[at : at+b.size]
}

// subject is the topic, or JetStream's subject.
const subject = "bench"

var (
	pocketSync       = variant{"PocketMQ sync", openPocket(mq.SyncFlush, false)}
	pocketAsync      = variant{"PocketMQ async", openPocket(mq.AsyncFlush, false)}
	pocketSyncBatch  = variant{"PocketMQ sync, AutoBatch", openPocket(mq.SyncFlush, true)}
	pocketAsyncBatch = variant{"PocketMQ async, AutoBatch", openPocket(mq.AsyncFlush, true)}
	jetStream        = variant{"JetStream", openJetStream}
)

// fill sends n messages and waits for the last acknowledgement.
func fill(ctx context.Context, s system, n int) error {
	for i := range n {
		if err := s.sendAsync(ctx); err != nil {
			return fmt.Errorf("message %d: %w", i, err)
		}
	}
	return s.drain(ctx)
}
