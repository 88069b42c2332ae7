package mq

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/pocketmq/mq/internal/wire"
	"github.com/pocketmq/mq/storage"
	"github.com/pocketmq/mq/transport"
)

// A rawBroker is a broker and one connection to it, for tests that speak the
// protocol themselves.
type rawBroker struct {
	*Broker
	t       *testing.T
	net     transport.Transport
	conn    transport.Conn
	version int32
}

// startBroker starts a broker, on a memory network of its own unless cfg has a
// transport, and connects to it. Both end with the test.
func startBroker(t *testing.T, cfg BrokerConfig) *rawBroker {
	t.Helper()
	if cfg.Transport == nil {
		cfg.Transport = transport.NewMemory(transport.MemoryConfig{})
	}
	b, err := NewBroker(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	r := &rawBroker{Broker: b, t: t, net: cfg.Transport, version: protocolVersion}
	r.conn = r.dial()
	t.Cleanup(r.end)
	return r
}

func (r *rawBroker) end() {
	if err := r.conn.Close(); err != nil {
		r.t.Errorf("close connection: %v", err)
	}
	if err := r.Close(); err != nil {
		r.t.Errorf("close broker: %v", err)
	}
}

func (r *rawBroker) dial() transport.Conn {
	r.t.Helper()
	c, err := r.net.Dial(context.Background(), r.addr, &transport.Table{Language: transport.Go, Version: r.version})
	if err != nil {
		r.t.Fatal(err)
	}
	return c
}

// call sends a request and returns the answer, whatever its code.
func (r *rawBroker) call(code int32, h transport.Header, body []byte) *transport.Frame {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	f, err := r.conn.Call(ctx, &transport.Frame{Code: code, Header: h, Body: body, Version: r.version})
	if err != nil {
		r.t.Fatalf("request %d: %v", code, err)
	}
	return f
}

// must is call, for requests that succeed.
func (r *rawBroker) must(code int32, h transport.Header, body []byte) *transport.Frame {
	r.t.Helper()
	f := r.call(code, h, body)
	if f.Code != wire.Success {
		r.t.Fatalf("request %d: answer %d: %s", code, f.Code, f.Remark)
	}
	return f
}

// message makes a send header as a client would, with properties as key, value
// and so on.
func message(topic string, properties ...string) *wire.SendRequest {
	var text []byte
	for i := 0; i+1 < len(properties); i += 2 {
		text = wire.AppendProperty(text, properties[i], properties[i+1])
	}
	return &wire.SendRequest{ProducerGroup: "producers", Topic: topic, DefaultTopic: autoCreateTopic, DefaultTopicQueueNums: 4,
		BornTimestamp: time.Now().UnixMilli(), Properties: string(text)}
}

// send sends in the long form.
func (r *rawBroker) send(h *wire.SendRequest, body string) *transport.Frame {
	r.t.Helper()
	return r.call(wire.CodeSendMessage, h, []byte(body))
}

// stored sends and returns where the message is.
func (r *rawBroker) stored(h *wire.SendRequest, body string) *wire.SendResponse {
	r.t.Helper()
	return r.storedBy(r.send(h, body))
}

func (r *rawBroker) storedBy(f *transport.Frame) *wire.SendResponse {
	r.t.Helper()
	if f.Code != wire.Success {
		r.t.Fatalf("send: answer %d: %s", f.Code, f.Remark)
	}
	res, err := transport.HeaderOf[wire.SendResponse](f)
	if err != nil {
		r.t.Fatal(err)
	}
	return res
}

// refusedWith checks the code of an answer and what every answer to a send must
// carry.
func (r *rawBroker) refusedWith(code int32, f *transport.Frame, remark string) {
	r.t.Helper()
	if f.Code != code || !strings.Contains(f.Remark, remark) {
		r.t.Fatalf("answer %d %q, want %d with %q", f.Code, f.Remark, code, remark)
	}
	fields := f.Fields
	if f.Header != nil {
		fields = f.Header.AppendFields(nil)
	}
	if text := strings.Join(fields, " "); !strings.Contains(text, "MSG_REGION DefaultRegion") || !strings.Contains(text, "TRACE_ON true") {
		r.t.Fatalf("answer to a send without region and trace: %q", text)
	}
}

// createTopic makes a topic by request.
func (r *rawBroker) createTopic(name string, queues, perm int32) {
	r.t.Helper()
	r.must(wire.CodeUpdateAndCreateTopic, &wire.CreateTopicRequest{Topic: name, DefaultTopic: autoCreateTopic, ReadQueueNums: queues,
		WriteQueueNums: queues, Perm: perm, TopicFilterType: singleTag}, nil)
}

// queue reads everything in a queue of a topic.
func (r *rawBroker) queue(topic string, queue int32) []wire.StoredMessage {
	r.t.Helper()
	t, ok := r.topics.lookup(topic)
	if !ok {
		return nil
	}
	lowest, highest, err := r.store.Bounds(t.store, queue)
	if err != nil {
		r.t.Fatal(err)
	}
	var all []wire.StoredMessage
	for offset := lowest; offset < highest; {
		res, err := r.store.Read(context.Background(), storage.Read{Topic: t.store, Queue: queue, Offset: offset,
			Near: storage.Limit{Count: 1000, Bytes: 64 << 20}, Far: storage.Limit{Count: 1000, Bytes: 64 << 20}})
		if err != nil {
			r.t.Fatal(err)
		}
		for b := res.Data; len(b) > 0; {
			m, n, err := wire.ParseStored(b)
			if err != nil {
				r.t.Fatal(err)
			}
			all, b = append(all, m), b[n:]
		}
		if res.Next <= offset {
			r.t.Fatalf("read of %s/%d stays at %d", topic, queue, offset)
		}
		offset = res.Next
	}
	return all
}

// messages reads a topic, queue by queue.
func (r *rawBroker) messages(topic string) []wire.StoredMessage {
	r.t.Helper()
	var all []wire.StoredMessage
	if t, ok := r.topics.lookup(topic); ok {
		for q := range t.conf().WriteQueueNums {
			all = append(all, r.queue(topic, q)...)
		}
	}
	return all
}

// prop returns a property of a stored message, "" when it is not there.
func prop(m wire.StoredMessage, key string) string {
	v, _ := wire.Property(m.Properties, key)
	return v
}

func bodies(all []wire.StoredMessage) string {
	var b strings.Builder
	for i, m := range all {
		if i > 0 {
			b.WriteByte(' ')
		}
		b.Write(m.Body)
	}
	return b.String()
}

func numbered(prefix string, n int) string {
	var b strings.Builder
	for i := range n {
		if i > 0 {
			b.WriteByte(' ')
		}
		b.WriteString(prefix + strconv.Itoa(i))
	}
	return b.String()
}

func itemName(prefix string, i int) string { return fmt.Sprintf("%s%d", prefix, i) }
