package mq

import (
	"encoding/binary"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pocketmq/mq/internal/wire"
	"github.com/pocketmq/mq/storage"
)

// messageTraits are what a message's properties say about its treatment.
type messageTraits struct {
	tag, keys, unique string
	delay             string // level
	transaction       bool
	timer             string // the property that asks for an arbitrary delivery time
}

// traitsOf reads a properties text in one pass. As everywhere, of a key that
// comes twice the last one counts.
func traitsOf(text string) (t messageTraits) {
	for len(text) > 0 {
		var key, value string
		key, value, text = nextProperty(text)
		switch key {
		case wire.PropTags:
			t.tag = value
		case wire.PropKeys:
			t.keys = value
		case wire.PropUniqueKey:
			t.unique = value
		case wire.PropDelay:
			t.delay = value
		case wire.PropTransaction:
			t.transaction = value == "true"
		case wire.PropTimerDelaySec, wire.PropTimerDelayMs, wire.PropTimerDeliverMs, wire.PropStartDeliverTime:
			t.timer = key
		}
	}
	return t
}

// nextProperty takes the first item off a properties text. The key is empty when
// the item is one that readers drop.
func nextProperty(text string) (key, value, rest string) {
	item := text
	if i := strings.IndexByte(text, '\x02'); i >= 0 {
		item, rest = text[:i], text[i+1:]
	}
	if i := strings.IndexByte(item, '\x01'); i > 0 && i < len(item)-1 {
		return item[:i], item[i+1:], rest
	}
	return "", "", rest
}

// level is the delay level, 0 for none; beyond the last it is the last.
func (t *messageTraits) level() (int, error) {
	if t.delay == "" {
		return 0, nil
	}
	n, err := strconv.Atoi(t.delay)
	if err != nil {
		return 0, refused(wire.MessageIllegal, "property %s: %q is not a delay level", wire.PropDelay, t.delay)
	}
	return min(max(n, 0), len(delayLevels)), nil
}

// A property is one to be set in a properties text; an empty value removes it.
type property struct{ key, value string }

// fillRecord makes r the record of m in the topic: m's properties with set
// applied, indexed under its unique key and its keys. hashes is room for those,
// r.Bytes may bring room for the bytes. A level above 0 makes it a timer.
func fillRecord(r *storage.Record, topic *brokerTopic, m *wire.StoredMessage, t *messageTraits, level int, set []property, hashes []uint64) error {
	if level > 0 {
		// What RocketMQ leaves in a message that went through its schedule topic.
		set = append(set, property{wire.PropRealTopic, m.Topic}, property{wire.PropRealQueue, strconv.Itoa(int(m.QueueID))})
		r.DeliverAt = time.Now().Add(delayLevels[level-1]).UnixMilli()
	}
	text := m.Properties
	m.Properties = ""
	room := m.Size() + len(text)
	for i := range set {
		room += len(set[i].key) + len(set[i].value) + 2
	}
	record := wire.AppendStored(slices.Grow(r.Bytes[:0], room), m)
	// Properties come last, so they are appended in place, which spares a copy of
	// their text, and then the two lengths that they change are put right.
	at := len(record)
	record = appendEdited(record, at, text, set)
	if len(record)-at > wire.MaxPropertiesBytes {
		return refused(wire.MessageIllegal, "the message's properties take %d bytes with those of the broker, the limit is %d",
			len(record)-at, wire.MaxPropertiesBytes)
	}
	binary.BigEndian.PutUint32(record, uint32(len(record)))
	binary.BigEndian.PutUint16(record[at-2:], uint16(len(record)-at))

	r.Topic, r.Queue, r.Bytes = topic.store, m.QueueID, record
	r.TagHash = wire.TagHash(t.tag)
	r.QueueOffsetAt, r.PositionAt, r.StoreTimeAt = wire.QueueOffsetAt, wire.PositionAt, m.StoreTimePlace()
	r.Keys = keyHashes(hashes, m.Topic, t)
	return nil
}

// appendEdited appends the properties of text, without those in set and without
// what readers drop, and then set. They begin at start in dst.
func appendEdited(dst []byte, start int, text string, set []property) []byte {
items:
	for len(text) > 0 {
		var key, value string
		key, value, text = nextProperty(text)
		if key == "" {
			continue
		}
		for i := range set {
			if set[i].key == key {
				continue items
			}
		}
		dst = appendProperty(dst, start, key, value)
	}
	for i := range set {
		if set[i].value != "" {
			dst = appendProperty(dst, start, set[i].key, set[i].value)
		}
	}
	return dst
}

func appendProperty(dst []byte, start int, key, value string) []byte {
	if len(dst) > start {
		dst = append(dst, '\x02')
	}
	dst = append(dst, key...)
	dst = append(dst, '\x01')
	return append(dst, value...)
}

// keyHashes appends what the message is found under: its unique key and the
// words of its keys.
func keyHashes(hashes []uint64, topic string, t *messageTraits) []uint64 {
	if t.unique != "" {
		hashes = append(hashes, storage.KeyHash(topic, t.unique))
	}
	for rest := t.keys; rest != ""; {
		var key string
		key, rest, _ = strings.Cut(rest, " ")
		if key != "" {
			hashes = append(hashes, storage.KeyHash(topic, key))
		}
	}
	return hashes
}

// record makes the message's record, after the checks of the message itself.
func (op *sendOp) record() error {
	h := op.header
	t := traitsOf(h.Properties)
	if t.transaction && !h.Batch || h.SysFlag&wire.SysTransactionMask != 0 {
		return refused(wire.NoPermission, "the broker[%s] sending transaction message is forbidden", op.b.addr)
	}
	if limit := op.b.settings.Load().maxMessageSize; len(op.body) > limit {
		return refused(wire.MessageIllegal, "the message body has %d bytes, the limit is %d", len(op.body), limit)
	}
	if len(h.Properties) > wire.MaxPropertiesBytes {
		return refused(wire.MessageIllegal, "the message's properties take %d bytes, the limit is %d",
			len(h.Properties), wire.MaxPropertiesBytes)
	}
	if h.Batch {
		return op.batch(&t)
	}
	if t.timer != "" {
		return refused(wire.MessageIllegal, "property %s: the broker delivers by delay level (1 to %d) only", t.timer, len(delayLevels))
	}
	level, err := t.level()
	if err != nil {
		return err
	}
	set := make([]property, 0, 5) // does not escape
	set = append(set, property{key: wire.PropWait}, property{wire.PropCluster, op.b.cfg.Cluster})
	if op.dead {
		level, set = 0, append(set, property{key: wire.PropDelay})
	}
	m := op.message(h.Flag, op.body, h.Properties)
	r := op.One()
	r.Bytes = op.room
	err = fillRecord(r, op.topic, &m, &t, level, set, op.hashes[:0])
	op.room = r.Bytes
	return err
}

// message is what a record of the send says, with the place still to come.
func (op *sendOp) message(flag int32, body []byte, properties string) wire.StoredMessage {
	h := op.header
	return wire.StoredMessage{QueueID: op.queue, Flag: flag, SysFlag: h.SysFlag, BornTimestamp: h.BornTimestamp,
		BornHost: op.born, StoreHost: op.b.host, ReconsumeTimes: h.ReconsumeTimes, Body: body, Topic: op.topic.name,
		Properties: properties}
}
