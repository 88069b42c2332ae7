package mq

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pocketmq/mq/internal/wire"
	"github.com/pocketmq/mq/transport"
)

// beside is the broker seen over another connection, on which it may be notified:
// each notification's group goes to the channel.
func (r *rawBroker) beside() (*rawBroker, <-chan string) {
	r.t.Helper()
	notes := make(chan string, 100)
	table := &transport.Table{Language: transport.Go, Version: r.version}
	table.Handle(wire.CodeNotifyConsumerIDsChanged, nil, func(_ context.Context, _ transport.Conn, req *transport.Frame, _ func(*transport.Frame)) {
		h, err := transport.HeaderOf[wire.NotifyIDsChanged](req)
		if err != nil {
			r.t.Errorf("notification: %v", err)
			return
		}
		notes <- h.ConsumerGroup
	})
	c, err := r.net.Dial(context.Background(), r.addr, table)
	if err != nil {
		r.t.Fatal(err)
	}
	other := *r
	other.conn = c
	r.t.Cleanup(func() {
		if err := c.Close(); err != nil {
			r.t.Errorf("close: %v", err)
		}
	})
	return &other, notes
}

// beat sends the heartbeat of a push consumer.
func (r *rawBroker) beat(client, group string, subs ...wire.SubscriptionData) {
	r.t.Helper()
	r.beatAs(client, wire.ConsumerData{GroupName: group, ConsumeType: wire.ConsumePassively, MessageModel: wire.Clustering,
		ConsumeFromWhere: wire.FromLastOffset, Subscriptions: subs})
}

func (r *rawBroker) beatAs(client string, groups ...wire.ConsumerData) {
	r.t.Helper()
	beat := wire.Heartbeat{ClientID: client, Consumers: groups}
	r.must(wire.CodeHeartBeat, nil, beat.Marshal())
}

func tagSub(topic, expression string) wire.SubscriptionData {
	d := wire.SubscriptionData{Topic: topic, SubString: expression, ExpressionType: wire.ExpressionTag, SubVersion: 1}
	if expression != "*" {
		for tag := range strings.SplitSeq(expression, "||") {
			tag = strings.TrimSpace(tag)
			d.TagsSet = append(d.TagsSet, tag)
			d.CodeSet = append(d.CodeSet, int32(wire.TagHash(tag)))
		}
	}
	return d
}

// pullHeader asks for up to 32 messages of queue 0, with the subscription of the
// last heartbeat.
func pullHeader(group, topic string, offset int64) *wire.PullRequest {
	return &wire.PullRequest{ConsumerGroup: group, Topic: topic, QueueOffset: offset, MaxMsgNums: 32}
}

// holding makes a pull wait.
func holding(h *wire.PullRequest, wait time.Duration) *wire.PullRequest {
	h.SysFlag |= wire.PullSuspend
	h.SuspendTimeoutMillis = wait.Milliseconds()
	return h
}

// filtered gives a pull its own subscription.
func filtered(h *wire.PullRequest, expression string) *wire.PullRequest {
	h.SysFlag |= wire.PullSubscription
	h.Subscription = expression
	return h
}

type pulled struct {
	code           int32
	remark         string
	next, min, max int64
	bodies         string
	frame          *transport.Frame
}

// read takes an answer apart. It may be called on any goroutine.
func (r *rawBroker) read(f *transport.Frame) pulled {
	r.t.Helper()
	p := pulled{code: f.Code, remark: f.Remark, frame: f}
	switch f.Code {
	case wire.Success, wire.PullNotFound, wire.PullRetryImmediately, wire.PullOffsetMoved:
		h, err := transport.HeaderOf[wire.PullResponse](f)
		if err != nil {
			r.t.Error(err)
			return p
		}
		if h.SuggestWhichBrokerID != 0 {
			r.t.Errorf("suggested broker %d, want 0", h.SuggestWhichBrokerID)
		}
		p.next, p.min, p.max = h.NextBeginOffset, h.MinOffset, h.MaxOffset
	}
	var all []wire.StoredMessage
	for b := f.Body; len(b) > 0; {
		m, n, err := wire.ParseStored(b)
		if err != nil {
			r.t.Error(err)
			return p
		}
		all, b = append(all, m), b[n:]
	}
	p.bodies = bodies(all)
	return p
}

func (r *rawBroker) pull(h *wire.PullRequest) pulled {
	r.t.Helper()
	return r.read(r.call(wire.CodePullMessage, h, nil))
}

// waiting sends a pull and returns where its answer will come.
func (r *rawBroker) waiting(h *wire.PullRequest) <-chan pulled {
	r.t.Helper()
	answers := make(chan pulled, 1)
	err := r.conn.Go(context.Background(), &transport.Frame{Code: wire.CodePullMessage, Header: h, Version: r.version},
		time.Now().Add(time.Hour), func(f *transport.Frame, err error) {
			if err != nil {
				f = &transport.Frame{Code: -1, Remark: err.Error()}
			}
			answers <- r.read(f)
		})
	if err != nil {
		r.t.Fatal(err)
	}
	return answers
}

func (p pulled) want(t *testing.T, code int32, next int64, remark string) {
	t.Helper()
	if p.code != code || p.next != next || !strings.Contains(p.remark, remark) {
		t.Errorf("answer %d %q, next %d; want %d %q, next %d", p.code, p.remark, p.next, code, remark, next)
	}
}

// refused checks an error answer.
func (r *rawBroker) refused(f *transport.Frame, code int32, remark string) {
	r.t.Helper()
	if f.Code != code || !strings.Contains(f.Remark, remark) {
		r.t.Errorf("answer %d %q, want %d with %q", f.Code, f.Remark, code, remark)
	}
}

// sendTo stores a message in queue 0 of a topic.
func (r *rawBroker) sendTo(topic, tag, body string) *wire.SendResponse {
	r.t.Helper()
	var properties []string
	if tag != "" {
		properties = []string{wire.PropTags, tag}
	}
	return r.stored(message(topic, properties...), body)
}

func (r *rawBroker) clients(group string) []string {
	r.t.Helper()
	f := r.call(wire.CodeGetConsumerListByGroup, &wire.ConsumerListRequest{ConsumerGroup: group}, nil)
	if f.Code != wire.Success {
		return nil
	}
	list, err := wire.ParseConsumerList(f.Body)
	if err != nil {
		r.t.Fatal(err)
	}
	slices.Sort(list.ConsumerIDs)
	return list.ConsumerIDs
}
