package mq

import (
	"bytes"
	"errors"
	"math/rand"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/pocketmq/mq/internal/wire"
)

func TestCheckMessageNamesFieldAndRule(t *testing.T) {
	ok := func() *Message { return &Message{Topic: "t", Body: []byte("x")} }
	for _, c := range []struct {
		change func(m *Message)
		want   string // empty: legal
	}{
		{func(m *Message) {}, ""},
		{func(m *Message) { m.Topic = "%RETRY%g|a_B-9" }, ""},
		{func(m *Message) { m.Topic = strings.Repeat("t", 127) }, ""},
		{func(m *Message) { m.Topic = "" }, "Topic is empty"},
		{func(m *Message) { m.Topic = strings.Repeat("t", 128) }, "Topic has 128 bytes, the limit is 127"},
		{func(m *Message) { m.Topic = "a b" }, "illegal character at byte 1"},
		{func(m *Message) { m.Topic = "größe" }, "illegal character at byte 2"},
		{func(m *Message) { m.Topic = "SCHEDULE_TOPIC_XXXX" }, "belongs to the broker"},
		{func(m *Message) { m.Body = nil }, "Body is empty"},
		{func(m *Message) { m.Body = make([]byte, 101) }, "Body has 101 bytes, the limit is 100"},
		{func(m *Message) { m.Body = make([]byte, 100) }, ""},
		{func(m *Message) { m.DelayLevel = 18 }, ""},
		{func(m *Message) { m.DelayLevel = 19 }, "DelayLevel is 19, the range is 0 to 18"},
		{func(m *Message) { m.DelayLevel = -1 }, "DelayLevel is -1"},
		{func(m *Message) { m.Tag = "größe" }, ""},
		{func(m *Message) { m.Tag = " a" }, "Tag"},
		{func(m *Message) { m.Tag = "a||b" }, "Tag"},
		{func(m *Message) { m.Tag = "*" }, "Tag"},
		{func(m *Message) { m.Tag = "a\x01" }, "separator"},
		{func(m *Message) { m.Tag = "ö\x02" }, "separator"},
		{func(m *Message) { m.Tag = "\xff" }, "not UTF-8"},
		{func(m *Message) { m.Keys = []string{"a", "b c"} }, "a key is one word"},
		{func(m *Message) { m.Keys = []string{""} }, "a key is one word"},
		{func(m *Message) { m.Keys = []string{"a\x02"} }, "separator"},
		{func(m *Message) { m.ShardKey = "a\x02" }, "ShardKey"},
		{func(m *Message) { m.Properties = map[string]string{"a": "b"} }, ""},
		{func(m *Message) { m.Properties = map[string]string{"": "b"} }, "empty name"},
		{func(m *Message) { m.Properties = map[string]string{"a": ""} }, "empty value"},
		{func(m *Message) { m.Properties = map[string]string{"UNIQ_KEY": "b"} }, `"UNIQ_KEY"`},
		{func(m *Message) { m.Properties = map[string]string{"a": "\x01"} }, "separator"},
		{func(m *Message) { m.Properties = map[string]string{"a\x02": "b"} }, "separator"},
	} {
		m := ok()
		c.change(m)
		err := checkMessage(m, 100)
		switch {
		case c.want == "" && err != nil:
			t.Errorf("%+v: %v", m, err)
		case c.want != "" && (!errors.Is(err, ErrMessageIllegal) || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%+v: %v, want %q", m, err, c.want)
		}
	}
	if err := checkMessage(nil, 100); !errors.Is(err, ErrMessageIllegal) {
		t.Errorf("nil message: %v", err)
	}
}

func TestPropertiesHaveTheLimitOfTheFormat(t *testing.T) {
	id := []byte(strings.Repeat("0", 32))
	room := wire.MaxPropertiesBytes - len("UNIQ_KEY\x01") - len(id) - len("\x02p\x01")
	m := &Message{Topic: "t", Properties: map[string]string{"p": strings.Repeat("x", room)}}
	if text, err := propertiesText(m, id); err != nil || len(text) != wire.MaxPropertiesBytes {
		t.Errorf("%d bytes, %v", len(text), err)
	}
	m.Properties["p"] += "x"
	if _, err := propertiesText(m, id); !errors.Is(err, ErrMessageIllegal) || !strings.Contains(err.Error(), "32768 bytes") {
		t.Errorf("got %v", err)
	}
}

func TestBodiesAreCompressedWhenItHelps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newFakeCluster(t, 1, 1)
		p := c.producer(t, nil)
		never := c.producer(t, func(cfg *ProducerConfig) { cfg.CompressAbove = -1 })
		noise := make([]byte, 8192)
		rand.New(rand.NewSource(1)).Read(noise)
		for _, s := range []struct {
			p      *Producer
			body   []byte
			packed bool
		}{
			{p, bytes.Repeat([]byte("a"), 4095), false},
			{p, bytes.Repeat([]byte("a"), 4096), true},
			{p, noise, false},
			{never, bytes.Repeat([]byte("a"), 8192), false},
		} {
			before := bytes.Clone(s.body)
			if _, err := s.p.Send(t.Context(), &Message{Topic: "t", Body: s.body}); err != nil {
				t.Fatal(err)
			}
			all := c.brokers[0].got()
			got := all[len(all)-1]
			if packed := got.header.SysFlag&wire.SysCompressed != 0; packed != s.packed || packed != (len(got.body) < len(s.body)) {
				t.Errorf("body of %d bytes: flag %#x, %d bytes sent", len(s.body), got.header.SysFlag, len(got.body))
			}
			back, err := wire.Decompress([]byte(got.body), got.header.SysFlag, 1<<20)
			if err != nil || !bytes.Equal(back, before) || !bytes.Equal(s.body, before) {
				t.Errorf("body of %d bytes came as %d bytes, %v", len(before), len(back), err)
			}
		}
	})
}

func TestBatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newFakeCluster(t, 1, 1)
		c.names.remove("t")
		c.names.set(autoCreateTopic, 4, c.brokers[0]) // the first message ever may be a batch
		p := c.producer(t, nil)
		batch := []*Message{
			{Topic: "t", Body: []byte("0")},
			{Topic: "t", Body: []byte("1"), Tag: "first", Properties: map[string]string{"a": "1", "b": "2"}},
			{Topic: "t", Body: bytes.Repeat([]byte("2"), 8192), Tag: "last", Keys: []string{"k"}},
		}
		r, err := p.SendBatch(t.Context(), batch)
		if err != nil {
			t.Fatal(err)
		}
		got := c.brokers[0].got()[0]
		if got.code != wire.CodeSendBatchMessage || !got.header.Batch || got.header.SysFlag != 0 {
			t.Errorf("request %+v", got.header)
		}
		items, err := wire.ParseBatch([]byte(got.body))
		if err != nil || len(items) != 3 {
			t.Fatalf("%d messages, %v", len(items), err)
		}
		ids := strings.Split(r.ID, ",")
		seen := make(map[string]bool)
		for i, item := range items {
			props := wire.ParseProperties(item.Properties)
			seen[props["UNIQ_KEY"]] = true
			if !bytes.Equal(item.Body, batch[i].Body) || props["UNIQ_KEY"] != ids[i] || props["TAGS"] != batch[i].Tag {
				t.Errorf("message %d: %v", i, props)
			}
		}
		if len(seen) != 3 {
			t.Errorf("%d different ids", len(seen))
		}
	})
}

func TestBatchRules(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newFakeCluster(t, 1, 1)
		p := c.producer(t, func(cfg *ProducerConfig) { cfg.MaxMessageSize = 1000 })
		for want, batch := range map[string][]*Message{
			"empty":                  {},
			"message 0: mq: illegal": {nil},
			"Body is empty":          {textMessage("t", "x"), {Topic: "t"}},
			"one topic":              {textMessage("t", "x"), textMessage("u", "x")},
			"NoFlush":                {textMessage("t", "x"), {Topic: "t", Body: []byte("x"), NoFlush: true}},
			"delayed":                {{Topic: "t", Body: []byte("x"), DelayLevel: 1}},
			"retry topic":            {textMessage("%RETRY%g", "x")},
			"the limit is 1000":      {textMessage("t", strings.Repeat("x", 500)), textMessage("t", strings.Repeat("x", 500))},
		} {
			if _, err := p.SendBatch(t.Context(), batch); !errors.Is(err, ErrMessageIllegal) || !strings.Contains(err.Error(), want) {
				t.Errorf("%q: %v", want, err)
			}
		}
		if n := len(c.brokers[0].got()); n != 0 {
			t.Errorf("%d were sent", n)
		}
	})
}
