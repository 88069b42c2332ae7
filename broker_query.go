package mq

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/pocketmq/mq/internal/wire"
	"github.com/pocketmq/mq/storage"
	"github.com/pocketmq/mq/transport"
)

const (
	maxQueryCount    = 64 // RocketMQ: maxMsgsNumBatch
	uniqueQueryCount = 32 // RocketMQ: defaultQueryMaxNum
	maxQueryBytes    = 15 << 20
)

// handleQueryMessage answers with the messages of a topic that carry a key,
// newest first. Unlike RocketMQ's, the answer is exact: the record itself is
// asked, not only the hash.
func (b *Broker) handleQueryMessage(ctx context.Context, _ transport.Conn, req *transport.Frame, reply func(*transport.Frame)) {
	handled(req, reply, func(h *wire.QueryMessageRequest) *transport.Frame {
		limit := int(min(h.MaxNum, maxQueryCount))
		if h.UniqueKey {
			limit = uniqueQueryCount
		}
		topic, ok := b.topics.lookup(h.Topic)
		if !ok || limit <= 0 || h.Key == "" {
			return noMessage(h)
		}
		hits, err := b.store.Query(ctx, storage.KeyQuery{
			Topic: topic.store, Key: h.Key, Max: limit, MaxBytes: maxQueryBytes,
			Begin: h.BeginTimestamp, End: max(1, h.EndTimestamp),
			Match: func(record []byte) bool { return carriesKey(record, h) },
		})
		switch {
		case err != nil:
			return storeRefusal(fmt.Sprintf("query of topic %s for key %s", h.Topic, h.Key), err)
		case len(hits) == 0:
			return noMessage(h)
		}
		f := answer(&wire.QueryMessageResponse{
			IndexLastUpdateTimestamp: time.Now().UnixMilli(), // the index is never behind
			IndexLastUpdateOffset:    b.store.LogEnd(),
		}, joinHits(hits))
		if len(hits) == limit {
			f.Remark = fmt.Sprintf("the newest %d messages, there may be more", limit)
		}
		return f
	})
}

func noMessage(h *wire.QueryMessageRequest) *transport.Frame {
	return respond(wire.QueryNotFound, fmt.Sprintf("no message of topic %s with key %s, maybe time range so small", h.Topic, h.Key))
}

func joinHits(hits []storage.Hit) []byte {
	size := 0
	for i := range hits {
		size += len(hits[i].Record)
	}
	body := make([]byte, 0, size)
	for i := range hits {
		body = append(body, hits[i].Record...)
	}
	return body
}

// carriesKey tells whether the record's own properties have the key. The store
// has compared the topic.
func carriesKey(record []byte, h *wire.QueryMessageRequest) bool {
	m, _, err := wire.ParseStored(record)
	if err != nil {
		return false
	}
	if unique, _ := wire.Property(m.Properties, wire.PropUniqueKey); unique == h.Key {
		return true
	}
	if h.UniqueKey {
		return false
	}
	keys, _ := wire.Property(m.Properties, wire.PropKeys)
	for key := range strings.SplitSeq(keys, " ") {
		if key == h.Key {
			return true
		}
	}
	return false
}

func (b *Broker) handleViewMessage(_ context.Context, _ transport.Conn, req *transport.Frame, reply func(*transport.Frame)) {
	handled(req, reply, func(h *wire.ViewMessageRequest) *transport.Frame {
		record, err := b.store.RecordAt(h.Offset)
		if err != nil {
			return respond(wire.SystemError, fmt.Sprintf("can not find message by the offset, %d: %v", h.Offset, err))
		}
		return answer(nil, record)
	})
}
