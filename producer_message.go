package mq

import (
	"bytes"
	"context"
	"strconv"
	"strings"
	"time"

	"github.com/pocketmq/mq/internal/wire"
)

// propertiesText writes a message's properties as they travel: once, into one
// buffer of the right size.
func propertiesText(m *Message, id string) (string, error) {
	size := propertySize(wire.PropUniqueKey, id) + propertySize(wire.PropTags, m.Tag) +
		propertySize(wire.PropShardingKey, m.ShardKey) + len(wire.PropWait) + 8 + len(wire.PropDelay) + 4
	for _, key := range m.Keys {
		size += len(key) + 1
	}
	size += len(wire.PropKeys) + 2
	for name, value := range m.Properties {
		size += propertySize(name, value)
	}
	var b strings.Builder
	b.Grow(size)
	b.WriteString(wire.PropUniqueKey)
	b.WriteByte(1)
	b.WriteString(id)
	writeProperty(&b, wire.PropTags, m.Tag)
	for i, key := range m.Keys {
		if i == 0 {
			writeProperty(&b, wire.PropKeys, key)
			continue
		}
		b.WriteByte(' ')
		b.WriteString(key)
	}
	writeProperty(&b, wire.PropShardingKey, m.ShardKey)
	if m.DelayLevel > 0 {
		writeProperty(&b, wire.PropDelay, strconv.Itoa(m.DelayLevel))
	}
	if m.NoFlush {
		writeProperty(&b, wire.PropWait, "false")
	}
	for name, value := range m.Properties {
		writeProperty(&b, name, value)
	}
	if b.Len() > wire.MaxPropertiesBytes {
		return "", illegal("Properties", "take %d bytes with tag and keys, the limit is %d", b.Len(), wire.MaxPropertiesBytes)
	}
	return b.String(), nil
}

func propertySize(name, value string) int { return len(name) + len(value) + 2 }

func writeProperty(b *strings.Builder, name, value string) {
	if value != "" {
		b.WriteByte(2)
		b.WriteString(name)
		b.WriteByte(1)
		b.WriteString(value)
	}
}

// prepare fills the send with its own copy of a message that was checked.
func (p *Producer) prepare(s *send, m *Message) error {
	s.id = p.keys.Next(s.began)
	text, err := propertiesText(m, s.id)
	if err != nil {
		return err
	}
	body, flags, err := p.copyBody(m.Body)
	if err != nil {
		return err
	}
	s.body = body
	s.code = wire.CodeSendMessageV2
	s.first.header = wire.SendRequestV2{
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
	now := time.Now()
	s := &send{p: p, ctx: ctx, began: now, deadline: now.Add(p.cfg.SendTimeout), maxTries: tries}
	if at, ok := ctx.Deadline(); ok && at.Before(s.deadline) {
		s.deadline = at
	}
	return s
}
