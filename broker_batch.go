package mq

import (
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
		if err := fillRecord(&op.Records[i], op.topic, &m, &t, 0, set, nil); err != nil {
			return err
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
