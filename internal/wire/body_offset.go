package wire

import (
	"maps"
	"math"
	"slices"
)

// QueueStats are the bounds of one queue.
type QueueStats struct {
	MinOffset           int64
	MaxOffset           int64 // exclusive
	LastUpdateTimestamp int64 // milliseconds since 1970, of the last message
}

// TopicStats is the body of the answer to GET_TOPIC_STATS_INFO.
type TopicStats struct {
	Queues map[MessageQueue]QueueStats
}

// Marshal is the body as it travels.
func (t *TopicStats) Marshal() []byte {
	return marshalJSON(func(e *encoder) {
		e.object(func() {
			e.key("offsetTable")
			writeQueueTable(e, t.Queues, func(s QueueStats) {
				e.object(func() {
					e.intMember("lastUpdateTimestamp", s.LastUpdateTimestamp)
					e.intMember("maxOffset", s.MaxOffset)
					e.intMember("minOffset", s.MinOffset)
				})
			})
		})
	})
}

// ParseTopicStats reads the body of the answer to GET_TOPIC_STATS_INFO.
func ParseTopicStats(b []byte) (t TopicStats, err error) {
	t.Queues = make(map[MessageQueue]QueueStats)
	err = parseJSON(b, "topic statistics", func(d *decoder) {
		d.object(func(key string) {
			if key != "offsetTable" {
				d.skip()
				return
			}
			d.queueTable(func(q MessageQueue) { t.Queues[q] = readQueueStats(d) })
		})
	})
	return t, err
}

func readQueueStats(d *decoder) (s QueueStats) {
	d.object(func(key string) {
		switch key {
		case "minOffset":
			s.MinOffset = d.int64()
		case "maxOffset":
			s.MaxOffset = d.int64()
		case "lastUpdateTimestamp":
			s.LastUpdateTimestamp = d.int64()
		default:
			d.skip()
		}
	})
	return s
}

// ConsumeOffset is how far a group is in one queue.
type ConsumeOffset struct {
	BrokerOffset   int64
	ConsumerOffset int64
	LastTimestamp  int64 // milliseconds since 1970, of the last message consumed
}

// ConsumeStats is the body of the answer to GET_CONSUME_STATS.
type ConsumeStats struct {
	ConsumeTPS float64
	Queues     map[MessageQueue]ConsumeOffset
}

// Marshal is the body as it travels. A rate that is no number is written as 0.
func (c *ConsumeStats) Marshal() []byte {
	return marshalJSON(func(e *encoder) {
		tps := c.ConsumeTPS
		if math.IsNaN(tps) || math.IsInf(tps, 0) {
			tps = 0
		}
		e.object(func() {
			e.key("consumeTps")
			e.float(tps)
			e.key("offsetTable")
			writeQueueTable(e, c.Queues, func(o ConsumeOffset) {
				e.object(func() {
					e.intMember("brokerOffset", o.BrokerOffset)
					e.intMember("consumerOffset", o.ConsumerOffset)
					e.intMember("lastTimestamp", o.LastTimestamp)
				})
			})
		})
	})
}

// ParseConsumeStats reads the body of the answer to GET_CONSUME_STATS.
func ParseConsumeStats(b []byte) (c ConsumeStats, err error) {
	c.Queues = make(map[MessageQueue]ConsumeOffset)
	err = parseJSON(b, "consume statistics", func(d *decoder) {
		d.object(func(key string) {
			switch key {
			case "consumeTps":
				c.ConsumeTPS = d.float()
			case "offsetTable":
				d.queueTable(func(q MessageQueue) { c.Queues[q] = readConsumeOffset(d) })
			default:
				d.skip()
			}
		})
	})
	return c, err
}

func readConsumeOffset(d *decoder) (o ConsumeOffset) {
	d.object(func(key string) {
		switch key {
		case "brokerOffset":
			o.BrokerOffset = d.int64()
		case "consumerOffset":
			o.ConsumerOffset = d.int64()
		case "lastTimestamp":
			o.LastTimestamp = d.int64()
		default:
			d.skip()
		}
	})
	return o
}

// ConsumerOffsets is the body of the answer to GET_ALL_CONSUMER_OFFSET: the
// offset of each queue by "topic@group".
type ConsumerOffsets struct {
	Offsets map[string]map[int32]int64
}

// Marshal is the body as it travels.
func (c *ConsumerOffsets) Marshal() []byte {
	return marshalJSON(func(e *encoder) {
		e.object(func() {
			e.key("offsetTable")
			writeTable(e, c.Offsets, func(_ string, queues map[int32]int64) {
				e.object(func() {
					for _, q := range slices.Sorted(maps.Keys(queues)) {
						e.intKey(int64(q), false)
						e.int(queues[q])
					}
				})
			})
		})
	})
}

// ParseConsumerOffsets reads the body of the answer to GET_ALL_CONSUMER_OFFSET.
func ParseConsumerOffsets(b []byte) (c ConsumerOffsets, err error) {
	c.Offsets = make(map[string]map[int32]int64)
	err = parseJSON(b, "consumer offsets", func(d *decoder) {
		d.object(func(key string) {
			if key != "offsetTable" {
				d.skip()
				return
			}
			d.object(func(name string) {
				queues := make(map[int32]int64)
				d.intTable(func(q int64) {
					if q != int64(int32(q)) {
						d.fail("expected the number of a queue as key")
						return
					}
					queues[int32(q)] = d.int64()
				})
				c.Offsets[name] = queues
			})
		})
	})
	return c, err
}

// ResetOffsets is the body of RESET_CONSUMER_CLIENT_OFFSET and of the answer to
// INVOKE_BROKER_TO_RESET_OFFSET.
type ResetOffsets struct {
	Offsets map[MessageQueue]int64
}

// Marshal is the body as it travels.
func (r *ResetOffsets) Marshal() []byte {
	return marshalJSON(func(e *encoder) {
		e.object(func() {
			e.key("offsetTable")
			writeQueueTable(e, r.Offsets, e.int)
		})
	})
}

// ParseResetOffsets reads the three forms in the field: queues as keys, pairs of
// queue and offset, and the flat objects for C++ clients.
func ParseResetOffsets(b []byte) (r ResetOffsets, err error) {
	r.Offsets = make(map[MessageQueue]int64)
	err = parseJSON(b, "reset offsets", func(d *decoder) {
		d.object(func(key string) {
			switch {
			case key != "offsetTable":
				d.skip()
			case d.peek() == '[':
				d.array(func() {
					q, offset := readQueueOffset(d)
					r.Offsets[q] = offset
				})
			default:
				d.queueTable(func(q MessageQueue) { r.Offsets[q] = d.int64() })
			}
		})
	})
	return r, err
}

// readQueueOffset reads [queue, offset] or a queue's object with the member offset.
func readQueueOffset(d *decoder) (q MessageQueue, offset int64) {
	if d.peek() == '[' {
		i := 0
		d.array(func() {
			switch i++; i {
			case 1:
				q.read(d)
			case 2:
				offset = d.int64()
			default:
				d.fail("expected a pair of queue and offset")
			}
		})
		return q, offset
	}
	d.object(func(key string) {
		if key == "offset" {
			offset = d.int64()
			return
		}
		q.member(d, key)
	})
	return q, offset
}
