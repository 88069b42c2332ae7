package mq

import (
	"bytes"
	"context"
	"slices"
	"strconv"
	"time"

	"github.com/pocketmq/mq/internal/wire"
)

// uniqueKeyAt is where the value of UNIQ_KEY is in a properties text: that
// property comes first.
const uniqueKeyAt = len(wire.PropUniqueKey) + 1

// identify gives a message its unique key and returns it as a part of the
// properties text.
func (p *Producer) identify(m *Message, now time.Time) (text, id string, err error) {
	var room [wire.MaxUniqueKey]byte
	key := p.keys.Append(room[:0], now)
	text, err = propertiesText(m, key)
	if err != nil {
		return "", "", err
	}
	return text, text[uniqueKeyAt : uniqueKeyAt+len(key)], nil
}

// propertiesText writes a message's properties as they travel, with its unique
// key.
func propertiesText(m *Message, id []byte) (string, error) {
	var room [256]byte // most texts need no other memory than their string
	b := appendProperties(slices.Grow(room[:0], propertiesSize(m, len(id))), m, id)
	if len(b) > wire.MaxPropertiesBytes {
		return "", illegal("Properties", "take %d bytes with tag and keys, the limit is %d", len(b), wire.MaxPropertiesBytes)
	}
	return string(b), nil
}

func appendProperties(dst []byte, m *Message, id []byte) []byte {
	dst = append(dst, wire.PropUniqueKey...)
	dst = append(dst, 1)
	dst = append(dst, id...)
	dst = addProperty(dst, wire.PropTags, m.Tag)
	for i, key := range m.Keys {
		if i == 0 {
			dst = addProperty(dst, wire.PropKeys, key)
			continue
		}
		dst = append(dst, ' ')
		dst = append(dst, key...)
	}
	dst = addProperty(dst, wire.PropShardingKey, m.ShardKey)
	if m.DelayLevel > 0 {
		dst = addProperty(dst, wire.PropDelay, strconv.Itoa(m.DelayLevel))
	}
	if m.NoFlush {
		dst = addProperty(dst, wire.PropWait, "false")
	}
	if len(m.Properties) > 0 { // even an empty map costs a range
		for name, value := range m.Properties {
			dst = addProperty(dst, name, value)
		}
	}
	return dst
}

// propertiesSize is at least the length of the text, and not much more.
func propertiesSize(m *Message, idSize int) int {
	size := uniqueKeyAt + idSize
	if m.Tag != "" {
		size += propertySize(wire.PropTags, m.Tag)
	}
	for _, key := range m.Keys {
		size += propertySize(wire.PropKeys, key) // too much from the second on
	}
	if m.ShardKey != "" {
		size += propertySize(wire.PropShardingKey, m.ShardKey)
	}
	if m.DelayLevel > 0 {
		size += propertySize(wire.PropDelay, "18")
	}
	if m.NoFlush {
		size += propertySize(wire.PropWait, "false")
	}
	if len(m.Properties) > 0 {
		for name, value := range m.Properties {
			size += propertySize(name, value)
		}
	}
	return size
}

func propertySize(name, value string) int { return len(name) + len(value) + 2 }

// addProperty appends a property behind others, unless it is empty.
func addProperty(dst []byte, name, value string) []byte {
	if value == "" {
		return dst
	}
	dst = append(dst, 2)
	dst = append(dst, name...)
	dst = append(dst, 1)
	return append(dst, value...)
}

// prepare fills the send with its own copy of a message that was checked.
func (p *Producer) prepare(s *send, m *Message) error {
	text, id, err := p.identify(m, s.began)
	if err != nil {
		return err
	}
	s.id = id
	body, flags, err := p.copyBody(m.Body)
	if err != nil {
		return err
	}
	s.body = body
	s.code = wire.CodeSendMessageV2
	s.request = wire.SendRequestV2{
		ProducerGroup:         p.cfg.Group,
		Topic:                 m.Topic,
		DefaultTopic:          autoCreateTopic,
		DefaultTopicQueueNums: int32(p.cfg.DefaultQueues),
		SysFlag:               flags,
		BornTimestamp:         s.began.UnixMilli(),
		Flag:                  m.Flag,
		Properties:            text,
	}
	s.entry = p.client.routes.entry(m.Topic)
	s.shardKey = m.ShardKey
	return nil
}

// copyBody returns the bytes to send, never the caller's own, and the flags that
// say whether they are compressed.
func (p *Producer) copyBody(body []byte) ([]byte, int32, error) {
	if above := p.cfg.CompressAbove; above > 0 && len(body) >= above {
		packed, flags, err := wire.Compress(body, wire.SysCompressionZlib)
		if err != nil {
			return nil, 0, err
		}
		if flags != 0 {
			return packed, flags, nil
		}
	}
	return bytes.Clone(body), 0, nil
}

// newSend begins a send whose time limit runs from now.
func (p *Producer) newSend(ctx context.Context, tries int) *send {
	s, ok := p.sends.Get().(*send)
	if !ok {
		s = &send{p: p}
		s.answer = s.answered
	}
	now := time.Now()
	s.ctx, s.began, s.deadline, s.maxTries = ctx, now, now.Add(p.cfg.SendTimeout), tries
	if at, ok := ctx.Deadline(); ok && at.Before(s.deadline) {
		s.deadline = at
	}
	return s
}

// recycle gives a send back that nobody refers to any more: it was answered, or
// there will be no answer.
func (s *send) recycle() {
	p := s.p
	*s = send{p: p, answer: s.answer, done: s.done, failed: s.failed[:0]}
	p.sends.Put(s)
}
