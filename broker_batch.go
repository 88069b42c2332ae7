package mq

import (
	"slices"
	"strings"

	"github.com/pocketmq/mq/internal/wire"
	"github.com/pocketmq/mq/storage"
)

// batch makes the records of a batch: ordinary messages that are stored together
// or not at all, in consecutive places of one queue.
func (op *sendOp) batch(common *messageTraits) error {
	if strings.HasPrefix(op.header.Topic, wire.RetryPrefix) {
		return refused(wire.MessageIllegal, "batch request does not support retry group %s", op.header.Topic)
	}
	if err := batchable(common); err != nil {
		return err
	}
	messages, err := wire.ParseBatch(op.body)
	if err != nil {
		return refused(wire.MessageIllegal, "%v", err)
	}
	// RocketMQ adds the properties of the request and its own to each message. Of a
	// key that comes twice the last one counts. What all that takes is added up
	// first: a small request could ask for gigabytes.
	shared := sharedProperties(op.header.Properties)
	size := 0
	for i := range messages {
		size += len(messages[i].Body) + len(messages[i].Properties) + len(shared)
	}
	if size > storage.MaxRequestBytes {
		return refused(wire.MessageIllegal, "the batch's %d messages take %d bytes with its properties, the limit is %d",
			len(messages), size, storage.MaxRequestBytes)
	}
	set := []property{{key: wire.PropWait}, {wire.PropCluster, op.b.cfg.Cluster}}
	op.Records = make([]storage.Record, len(messages))
	// All records lie in one piece of memory, and so do their hashes. One that needs
	// more than it was given room for gets its own.
	size += len(messages) * (wire.StoredBytes(op.topic.name, op.born, op.b.host) + len(wire.PropCluster) + len(op.b.cfg.Cluster) + 2)
	room := slices.Grow(op.room[:0], size)
	op.room = room
	hashes := make([]uint64, 0, 2*len(messages))
	for i := range messages {
		item := &messages[i]
		if shared != "" {
			item.Properties += "\x02" + shared
		}
		t := traitsOf(item.Properties)
		if err := batchable(&t); err != nil {
			return err
		}
		m := op.message(item.Flag, item.Body, item.Properties)
		r := &op.Records[i]
		r.Bytes = room
		if err := fillRecord(r, op.topic, &m, &t, 0, set, hashes); err != nil {
			return err
		}
		if len(r.Bytes) <= cap(room) {
			room = room[len(r.Bytes):len(r.Bytes)]
		}
		if len(r.Keys) <= cap(hashes) {
			hashes = hashes[len(r.Keys):len(r.Keys)]
		}
	}
	return nil
}

// sharedProperties is what of a batch's own properties goes into its messages.
func sharedProperties(text string) string {
	return string(appendEdited(nil, 0, text, []property{{key: wire.PropWait}, {key: wire.PropCluster}}))
}

// batchable refuses what cannot be part of a batch.
func batchable(t *messageTraits) error {
	level, err := t.level()
	switch {
	case err != nil:
		return err
	case level > 0 || t.timer != "":
		return refused(wire.MessageIllegal, "batch messages cannot be delayed")
	case t.transaction:
		return refused(wire.MessageIllegal, "batch messages cannot be transactional")
	}
	return nil
}
