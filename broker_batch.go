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
	// RocketMQ adds the properties of the request and its own to each message.
	set := []property{{key: wire.PropWait}, {wire.PropCluster, op.b.cfg.Cluster}}
	for rest := op.header.Properties; rest != ""; {
		var p property
		if p.key, p.value, rest = nextProperty(rest); p.key != "" && p.key != wire.PropWait && p.key != wire.PropCluster {
			set = append(set, p)
		}
	}
	op.Records = make([]storage.Record, len(messages))
	for i := range messages {
		item := &messages[i]
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
