package mq

import (
	"context"
	"fmt"
	"strings"

	"github.com/pocketmq/mq/internal/wire"
)

// SendBatch sends several messages in one request and waits for the answer, as
// [Producer.Send] does. They go to one queue, with consecutive offsets, or not at
// all. All have the same topic and the same NoFlush, no delay, and no retry topic;
// shard keys do not choose the queue. Batches are not compressed, as no RocketMQ
// client does, and fit into MaxMessageSize together; splitting is up to the
// caller.
func (p *Producer) SendBatch(ctx context.Context, messages []*Message) (*SendResult, error) {
	if err := p.window.enter(); err != nil {
		return nil, sendError(messages, err)
	}
	defer p.window.leave()
	s := p.newSend(ctx, p.cfg.Retries+1)
	defer s.recycle()
	if err := p.prepareBatch(s, messages); err != nil {
		return nil, sendError(messages, err)
	}
	return s.wait()
}

func sendError(messages []*Message, err error) error {
	if len(messages) > 0 && messages[0] != nil {
		return &Error{Op: "send batch to " + messages[0].Topic, Err: err}
	}
	return &Error{Op: "send batch", Err: err}
}

// prepareBatch checks the messages and fills the send with their encoding.
func (p *Producer) prepareBatch(s *send, messages []*Message) error {
	if len(messages) == 0 {
		return illegal("Batch", "is empty")
	}
	items := make([]wire.BatchMessage, len(messages))
	ids := make([]string, len(messages))
	for i, m := range messages {
		if err := checkMessage(m, p.cfg.MaxMessageSize); err != nil {
			return fmt.Errorf("batch message %d: %w", i, err)
		}
		if err := checkBatched(m, messages[0], i); err != nil {
			return err
		}
		text, id, err := p.identify(m, s.began)
		if err != nil {
			return fmt.Errorf("batch message %d: %w", i, err)
		}
		ids[i] = id
		items[i] = wire.BatchMessage{Flag: m.Flag, Body: m.Body, Properties: text}
	}
	body, err := wire.AppendBatch(nil, items)
	if err != nil {
		return illegal("Batch", "%v", err)
	}
	if len(body) > p.cfg.MaxMessageSize {
		return illegal("Batch", "takes %d bytes, the limit is %d; send it in parts", len(body), p.cfg.MaxMessageSize)
	}
	s.body, s.id, s.code = body, strings.Join(ids, ","), wire.CodeSendBatchMessage
	s.request = wire.SendRequestV2{
		ProducerGroup:         p.cfg.Group,
		Topic:                 messages[0].Topic,
		DefaultTopic:          autoCreateTopic,
		DefaultTopicQueueNums: int32(p.cfg.DefaultQueues),
		BornTimestamp:         s.began.UnixMilli(),
		Batch:                 true,
	}
	if messages[0].NoFlush {
		s.request.Properties = wire.PropWait + "\x01false"
	}
	s.entry = p.client.routes.entry(messages[0].Topic)
	return nil
}

func checkBatched(m, first *Message, i int) error {
	switch {
	case m.Topic != first.Topic:
		return illegal("Batch", "message %d has the topic %q, the first has %q; a batch has one topic", i, m.Topic, first.Topic)
	case m.NoFlush != first.NoFlush:
		return illegal("Batch", "message %d has NoFlush %v, the first has %v; a batch has one", i, m.NoFlush, first.NoFlush)
	case m.DelayLevel != 0:
		return illegal("Batch", "message %d has DelayLevel %d; a batch cannot be delayed", i, m.DelayLevel)
	case strings.HasPrefix(m.Topic, retryPrefix):
		return illegal("Batch", "has the retry topic %q; send to those singly", m.Topic)
	}
	return nil
}
