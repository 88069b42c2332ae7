package mq

import (
	"slices"
	"testing"
	"time"

	"github.com/pocketmq/mq/internal/wire"
	"github.com/pocketmq/mq/transport"
)

// query returns the bodies of the messages with a key.
func (r *rawBroker) query(h *wire.QueryMessageRequest) []string {
	r.t.Helper()
	f := r.call(wire.CodeQueryMessage, h, nil)
	if f.Code == wire.QueryNotFound {
		return nil
	}
	if f.Code != wire.Success {
		r.t.Fatalf("query: %d %s", f.Code, f.Remark)
	}
	res, err := transport.HeaderOf[wire.QueryMessageResponse](f)
	if err != nil {
		r.t.Fatal(err)
	}
	if res.IndexLastUpdateOffset != r.store.LogEnd() || res.IndexLastUpdateTimestamp <= 0 {
		r.t.Errorf("index updated at %d, %d", res.IndexLastUpdateTimestamp, res.IndexLastUpdateOffset)
	}
	var found []string
	for b := f.Body; len(b) > 0; {
		m, n, err := wire.ParseStored(b)
		if err != nil {
			r.t.Fatal(err)
		}
		found, b = append(found, string(m.Body)), b[n:]
	}
	return found
}

func keyQuery(topic, key string) *wire.QueryMessageRequest {
	return &wire.QueryMessageRequest{Topic: topic, Key: key, MaxNum: 64, EndTimestamp: time.Now().Add(time.Hour).UnixMilli()}
}

func (r *rawBroker) wantQuery(h *wire.QueryMessageRequest, want ...string) {
	r.t.Helper()
	if got := r.query(h); !slices.Equal(got, want) {
		r.t.Errorf("%s in %s: got %q, want %q", h.Key, h.Topic, got, want)
	}
}

// AaTopic and BBTopic have the same Java hash.
func TestAQueryFindsExactlyTheMessagesOfTopicAndKey(t *testing.T) {
	r := startBroker(t, BrokerConfig{})
	r.createTopic("AaTopic", 1, permRW)
	r.createTopic("BBTopic", 1, permRW)
	for _, topic := range []string{"AaTopic", "BBTopic", "AaTopic"} {
		r.stored(message(topic, wire.PropKeys, "K", wire.PropUniqueKey, "U"), topic+" K")
		r.stored(message(topic, wire.PropKeys, "KK other"), topic+" KK")
	}
	r.stored(message("AaTopic", wire.PropKeys, "k k"), "twice the same")
	r.wantQuery(keyQuery("AaTopic", "K"), "AaTopic K", "AaTopic K")
	r.wantQuery(keyQuery("BBTopic", "K"), "BBTopic K")
	r.wantQuery(keyQuery("AaTopic", "other"), "AaTopic KK", "AaTopic KK")
	r.wantQuery(keyQuery("AaTopic", "k"), "twice the same")
	r.wantQuery(keyQuery("AaTopic", "KK other"))
	r.wantQuery(keyQuery("AaTopic", ""))
	r.wantQuery(keyQuery("unknown", "K"))
	unique := keyQuery("AaTopic", "U")
	r.wantQuery(unique, "AaTopic K", "AaTopic K")
	unique.UniqueKey = true
	r.wantQuery(unique, "AaTopic K", "AaTopic K")
	unique.Key = "K"
	r.wantQuery(unique)
}

func TestAQueryIsNewestFirstBoundedAndSaysSo(t *testing.T) {
	r := startBroker(t, BrokerConfig{})
	r.createTopic("orders", 2, permRW)
	for i := range 100 {
		h := message("orders", wire.PropKeys, "k", wire.PropUniqueKey, "u")
		h.QueueID = int32(i % 2)
		r.stored(h, itemName("m", i))
	}
	h := keyQuery("orders", "k")
	for ask, want := range map[int32]int{1: 1, 3: 3, 64: 64, 1000: 64, 0: 0, -1: 0} {
		h.MaxNum = ask
		got := r.query(h)
		if len(got) != want || want > 0 && got[0] != "m99" {
			t.Errorf("asked for %d, got %d, first %q", ask, len(got), slices.Concat(got, []string{""})[0])
		}
	}
	h.MaxNum = 3
	r.refused(r.call(wire.CodeQueryMessage, h, nil), wire.Success, "there may be more")
	r.wantQuery(h, "m99", "m98", "m97")
	h.Key, h.UniqueKey, h.MaxNum = "u", true, 1
	if got := r.query(h); len(got) != uniqueQueryCount {
		t.Errorf("by unique key %d, want %d whatever was asked", len(got), uniqueQueryCount)
	}
}

func TestAQueryIsBoundedByStoreTime(t *testing.T) {
	inBubble(t, BrokerConfig{}, func(_ *testing.T, r *rawBroker) {
		r.createTopic("orders", 1, permRW)
		start := time.Now().UnixMilli()
		for i := range 5 {
			r.stored(message("orders", wire.PropKeys, "k"), itemName("m", i))
			time.Sleep(time.Second)
		}
		h := keyQuery("orders", "k")
		h.BeginTimestamp, h.EndTimestamp = start+1000, start+3000
		r.wantQuery(h, "m3", "m2", "m1")
		h.BeginTimestamp, h.EndTimestamp = 0, 0
		r.wantQuery(h)
	})
}

func TestAQueryWithoutARequiredFieldIsRefusedByItsName(t *testing.T) {
	r := startBroker(t, BrokerConfig{})
	fields := keyQuery("orders", "k").AppendFields(nil)
	for i := 0; i < len(fields); i += 2 {
		if fields[i] == "_UNIQUE_KEY_QUERY" {
			continue
		}
		rest := append(append([]string(nil), fields[:i]...), fields[i+2:]...)
		f, err := r.conn.Call(t.Context(), &transport.Frame{Code: wire.CodeQueryMessage, Fields: rest})
		if err != nil {
			t.Fatal(err)
		}
		r.refused(f, wire.SystemError, fields[i])
	}
}

func TestAMessageIsViewedByItsPosition(t *testing.T) {
	r := startBroker(t, BrokerConfig{})
	r.createTopic("orders", 1, permRW)
	r.sendTo("orders", "", "first")
	sent := r.sendTo("orders", "", "second")
	_, position, err := wire.ParseOffsetMessageID(sent.MsgID)
	if err != nil {
		t.Fatal(err)
	}
	m, _, err := wire.ParseStored(r.must(wire.CodeViewMessageByID, &wire.ViewMessageRequest{Offset: position}, nil).Body)
	if err != nil || string(m.Body) != "second" {
		t.Errorf("got %q, %v", m.Body, err)
	}
	for _, bad := range []int64{position + 1, -1, 1 << 50} {
		r.refused(r.call(wire.CodeViewMessageByID, &wire.ViewMessageRequest{Offset: bad}, nil), wire.SystemError, "can not find message by the offset")
	}
}
