package mq

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/pocketmq/mq/internal/wire"
	"github.com/pocketmq/mq/transport"
)

// sendFields are the ext fields of a good send, with changes as key, value and so
// on; an empty value leaves the field out.
func sendFields(topic string, changes ...string) []string {
	return changed(map[string]string{"producerGroup": "p", "topic": topic, "defaultTopic": autoCreateTopic, "defaultTopicQueueNums": "1",
		"queueId": "0", "sysFlag": "0", "bornTimestamp": "1", "flag": "0", "properties": "TAGS\x01a", "reconsumeTimes": "0"}, changes)
}

func pullFields(topic string, changes ...string) []string {
	return changed(map[string]string{"consumerGroup": "pullers", "topic": topic, "queueId": "0", "queueOffset": "0", "maxMsgNums": "32",
		"sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0", "subscription": "*", "subVersion": "0"}, changes)
}

func changed(fields map[string]string, changes []string) (flat []string) {
	for i := 0; i < len(changes); i += 2 {
		if fields[changes[i]] = changes[i+1]; changes[i+1] == "" {
			delete(fields, changes[i])
		}
	}
	for k, v := range fields {
		flat = append(flat, k, v)
	}
	return flat
}

func TestBodyOfTheLimitIsStoredAndOneByteMoreIsNot(t *testing.T) {
	atHostileSite(t, BrokerConfig{}, func(s *hostileSite) {
		p := dialBad(t, s.broker.Addr())
		defer p.quit()
		body := bytes.Repeat([]byte("0123456789abcdef"), wire.MaxBodyBytes/16)
		properties := "filler\x01" + strings.Repeat("\x1f", 32<<10-100) // JSON makes six bytes of each
		if a := p.ask(wire.CodeSendMessage, append(body, 'x'), sendFields("large")...); a.Code != int(wire.MessageIllegal) || !strings.Contains(a.Remark, "limit") {
			t.Errorf("a body one byte too long: %d %s", a.Code, a.Remark)
		}
		p.served("a body one byte too long")
		if a := p.ask(wire.CodeSendMessage, body, sendFields("large", "properties", properties)...); a.Code != 0 {
			t.Fatalf("a body of the limit: %d %s", a.Code, a.Remark)
		}
		a := p.ask(wire.CodePullMessage, nil, pullFields("large")...)
		if a.Code != 0 {
			t.Fatalf("pull: %d %s", a.Code, a.Remark)
		}
		m, n, err := wire.ParseStored(a.Body)
		if err != nil || n != len(a.Body) || !bytes.Equal(m.Body, body) || !m.Intact() || prop(m, "filler") != properties[7:] {
			t.Errorf("read back: %d of %d bytes, body %d, filler %d, %v", n, len(a.Body), len(m.Body), len(prop(m, "filler")), err)
		}
		if a := p.ask(wire.CodeSendMessage, body[:10], sendFields("large", "properties", "k\x01"+strings.Repeat("v", 32<<10))...); a.Code != int(wire.MessageIllegal) {
			t.Errorf("properties over the limit: %d %s", a.Code, a.Remark)
		}
		// A frame of the limit with a body that nobody wants.
		if a := p.ask(wire.CodeSendMessage, make([]byte, 15<<20), sendFields("large")...); a.Code != int(wire.MessageIllegal) {
			t.Errorf("a body of 15 MiB: %d %s", a.Code, a.Remark)
		}
		p.served("properties over the limit")
	})
}

func TestUnknownTopicWithoutAutomaticCreationSaysWhatToDo(t *testing.T) {
	net := transport.NewTCP(transport.TCPConfig{})
	r := startBroker(t, BrokerConfig{Transport: net, Listen: "127.0.0.1:0", DisableAutoCreateTopic: true, DisableAutoCreateGroup: true})
	for name, f := range map[string]*transport.Frame{
		"send": r.send(message("unknown"), "x"),
		"pull": r.call(wire.CodePullMessage, &wire.PullRequest{ConsumerGroup: "nobody", Topic: "unknown", MaxMsgNums: 1, SysFlag: wire.PullSubscription, Subscription: "*"}, nil),
	} {
		want, text := wire.TopicNotExist, "create it first"
		if name == "pull" {
			want, text = wire.SubscriptionGroupNotExist, "nobody"
		}
		if f.Code != want || !strings.Contains(f.Remark, text) {
			t.Errorf("%s: %d %s", name, f.Code, f.Remark)
		}
	}
	if _, ok := r.topics.lookup("unknown"); ok {
		t.Error("the topic was made")
	}
	ns := startNameServer(t, net, NameServerConfig{Listen: "127.0.0.1:0"})
	p, err := NewProducer(ProducerConfig{Transport: net, NameServers: []string{ns.Addr()}, Group: "p"})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	_, err = p.Send(t.Context(), &Message{Topic: "unknown", Body: []byte("x")})
	if !errors.Is(err, ErrNoRoute) || !strings.Contains(err.Error(), "unknown") {
		t.Errorf("a producer is told %v", err)
	}
}

// servedCodes are all requests that the other side serves, but those whose
// success would change what the others are answered.
func servedCodes(p *badPeer) (codes []int32) {
	for code := range int32(400) {
		switch code {
		case wire.CodeDeleteTopicInBroker, wire.CodeDeleteSubscriptionGroup, wire.CodeUpdateBrokerConfig:
			continue
		}
		if p.ask(code, nil).Code != int(wire.RequestCodeNotSupported) {
			codes = append(codes, code)
		}
	}
	if len(codes) < 30 {
		p.t.Errorf("only %d requests are served: %v", len(codes), codes)
	}
	return codes
}

// absurdities are what the fields of every request are set to.
var absurdities = []string{"", "-1", "2147483647", "-2147483648", "2147483648", "9223372036854775807", "-9223372036854775808",
	"99999999999999999999", "1e9", "NaN", "0x10", " 1", "true", "%RETRY%", "%DLQ%", "SCHEDULE_TOPIC_XXXX", "TBW102", "../../etc/passwd", "a\x00b", "\u2028", "*",
	"||", strings.Repeat("x", 100_000), strings.Repeat("%RETRY%", 40), strings.Repeat("k ", 30_000)}

// absurdBodies are what the body of every request is set to.
func absurdBodies() map[string][]byte {
	return map[string][]byte{
		"none":         nil,
		"no JSON":      []byte("\xff\x00\x01"),
		"half JSON":    []byte(`{"clientID":"c","consumerDataSet":[{"groupName":"g"`),
		"null":         []byte(`null`),
		"a number":     []byte(`1e999`),
		"a list":       []byte(`[[[[[]]]]]`),
		"deep lists":   bytes.Repeat([]byte("["), 1<<20),
		"deep objects": bytes.Repeat([]byte(`{"a":`), 1<<18),
		"wrong types": []byte(`{"clientID":{},"consumerDataSet":{"a":1},"producerDataSet":7,"mqSet":"x","groupName":[],"consumerGroup":[1],` +
			`"retryQueueNums":"-5","topicConfigTable":[]}`),
		"huge numbers": []byte(`{"groupName":"huge","retryQueueNums":2147483647,"retryMaxTimes":-2147483648,"brokerId":9223372036854775807,"consumeEnable":true}`),
		"no name":      []byte(`{"clientID":"","consumerDataSet":[{"groupName":""},{}],"producerDataSet":[{}],"consumerGroup":"","clientId":"","mqSet":[{}]}`),
		"odd names":    []byte(`{"clientID":"\u0000","consumerDataSet":[{"groupName":"a b","consumeType":"SOMEHOW","messageModel":"NONE","subscriptionDataSet":[{"topic":"*","subString":"|| ||"}]}]}`),
		"batch claims": bytesOf(0x7fffffff, 0, 0, 0, 0x7fffffff, 0),
		"settings":     []byte("maxMessageSize=-1\nbrokerPermission=99\nautoCreateTopicEnable=perhaps\n=\n\n\x00=\x00"),
	}
}

// Every request with fields missing, absurd, or with absurd bodies is answered, and
// the connection it came on serves on.
func TestAbsurdRequestsAreAnswered(t *testing.T) {
	seed, perField := rand.Uint64(), 3
	t.Logf("seed %d", seed)
	if testing.Short() {
		perField = 1
	}
	rnd := rand.New(rand.NewPCG(seed, 0))
	atHostileSite(t, BrokerConfig{}, func(s *hostileSite) {
		p := dialBad(t, s.broker.Addr())
		defer p.quit()
		if a := p.ask(wire.CodeSendMessage, []byte("x"), sendFields("absurd")...); a.Code != 0 {
			t.Fatal(a)
		}
		good := map[string]string{"a": "p", "b": "absurd", "c": autoCreateTopic, "d": "1", "e": "0", "f": "0", "g": "1", "h": "0", "i": "", "j": "0",
			"brokerName": s.broker.Name(), "group": "absurd", "delayLevel": "3", "offset": "0", "key": "k", "maxNum": "5", "beginTimestamp": "0",
			"endTimestamp": "9", "timestamp": "0", "consumerGroup": "absurd", "clientID": "absurd", "groupName": "absurd", "readQueueNums": "1",
			"writeQueueNums": "1", "perm": "6", "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false", "topic": "absurd"}
		for _, more := range [][]string{sendFields("absurd"), pullFields("absurd")} {
			for i := 0; i < len(more); i += 2 {
				good[more[i]] = more[i+1]
			}
		}
		names := slices.Sorted(maps.Keys(good))
		answers := make(map[int]int)
		for _, code := range servedCodes(p) {
			if err := p.SetDeadline(time.Now().Add(hostilePatience)); err != nil {
				t.Fatal(err)
			}
			answers[p.ask(code, nil).Code]++
			for what, body := range absurdBodies() {
				if a := p.ask(code, body); a.Code == 1 && strings.Contains(a.Remark, "panic") {
					t.Errorf("request %d, body %s: %s", code, what, a.Remark)
				}
				if a := p.ask(code, body, changed(maps.Clone(good), nil)...); a.Code == 1 && strings.Contains(a.Remark, "panic") {
					t.Errorf("request %d with fields, body %s: %s", code, what, a.Remark)
				}
			}
			for _, name := range names {
				for range perField {
					value := absurdities[rnd.IntN(len(absurdities))]
					a := p.ask(code, []byte("body"), changed(maps.Clone(good), []string{name, value})...)
					if answers[a.Code]++; a.Code == 1 && strings.Contains(a.Remark, "panic") {
						t.Errorf("request %d, %s=%.40q: %s", code, name, value, a.Remark)
					}
				}
			}
		}
		t.Logf("answers by code: %v", answers)
		p.served("absurd requests")
		for _, name := range []string{"", "a\x00b", "../../etc/passwd", " 1"} {
			if _, ok := s.broker.topics.lookup(name); ok {
				t.Errorf("there is a topic %q", name)
			}
			if _, ok := s.broker.groups.lookup(name); ok {
				t.Errorf("there is a group %q", name)
			}
		}
	})
}

func TestMissingFieldIsNamed(t *testing.T) {
	atHostileSite(t, BrokerConfig{}, func(s *hostileSite) {
		p := dialBad(t, s.broker.Addr())
		defer p.quit()
		for code, fields := range map[int32][]string{
			wire.CodeSendMessage: {"producerGroup", "topic", "defaultTopic", "queueId", "sysFlag", "bornTimestamp", "flag"},
			wire.CodePullMessage: {"consumerGroup", "topic", "queueId", "queueOffset", "maxMsgNums", "sysFlag", "commitOffset", "suspendTimeoutMillis", "subVersion"},
		} {
			for _, field := range fields {
				all := sendFields("t", field, "")
				if code == wire.CodePullMessage {
					all = pullFields("t", field, "")
				}
				if a := p.ask(code, []byte("x"), all...); a.Code != 1 || !strings.Contains(a.Remark, field) {
					t.Errorf("request %d without %s: %d %s", code, field, a.Code, a.Remark)
				}
			}
		}
		p.served("missing fields")
	})
}

// A number may be absurd and still have a meaning.
func TestAbsurdNumbersHaveAnswers(t *testing.T) {
	atHostileSite(t, BrokerConfig{}, func(s *hostileSite) {
		p := dialBad(t, s.broker.Addr())
		defer p.quit()
		for _, flag := range []int32{math.MaxInt32 &^ wire.SysTransactionMask, math.MinInt32, 1 << 30, wire.SysBornHostV6 | wire.SysStoreHostV6} {
			if a := p.ask(wire.CodeSendMessage, []byte("x"), sendFields("numbers", "sysFlag", strconv.Itoa(int(flag)))...); a.Code != 0 {
				t.Errorf("sysFlag %#x: %d %s", flag, a.Code, a.Remark)
			}
		}
		a := p.ask(wire.CodePullMessage, nil, pullFields("numbers", "maxMsgNums", "2147483647")...)
		count := 0
		for b := a.Body; len(b) > 0; count++ {
			_, n, err := wire.ParseStored(b)
			if err != nil {
				t.Fatalf("message %d of a pull: %v", count, err)
			}
			b = b[n:]
		}
		if a.Code != 0 || count != 4 {
			t.Errorf("pull of 2^31-1: %d %s, %d messages of 4", a.Code, a.Remark, count)
		}
		for _, c := range []struct {
			field, value string
			want         int32
			next         string
		}{
			{"queueOffset", "-9223372036854775808", wire.PullOffsetMoved, "0"},
			{"queueOffset", "9223372036854775807", wire.PullOffsetMoved, "4"},
			{"queueOffset", "-1", wire.PullOffsetMoved, "0"},
			{"queueId", "-1", wire.SystemError, ""},
			{"queueId", "2147483647", wire.SystemError, ""},
			{"maxMsgNums", "0", wire.Success, "1"},
			{"maxMsgNums", "-2147483648", wire.Success, "1"},
			{"sysFlag", "2147483647", wire.Success, "4"},
			{"suspendTimeoutMillis", "-9223372036854775808", wire.Success, "4"},
		} {
			a := p.ask(wire.CodePullMessage, nil, pullFields("numbers", c.field, c.value)...)
			if a.Code != int(c.want) || a.ExtFields["nextBeginOffset"] != c.next {
				t.Errorf("pull with %s=%s: %d %s next %s, want %d and %s", c.field, c.value, a.Code, a.Remark, a.ExtFields["nextBeginOffset"], c.want, c.next)
			}
		}
	})
}

func TestBrokenBatchStoresNothing(t *testing.T) {
	atHostileSite(t, BrokerConfig{}, func(s *hostileSite) {
		p := dialBad(t, s.broker.Addr())
		defer p.quit()
		fields := []string{"a", "p", "b", "batches", "c", autoCreateTopic, "d", "1", "e", "0", "f", "0", "g", "1", "h", "0", "i", "", "j", "0", "m", "true"}
		good, err := wire.AppendBatch(nil, []wire.BatchMessage{{Body: []byte("one")}, {Body: []byte("two"), Properties: "KEYS\x01k"}})
		if err != nil {
			t.Fatal(err)
		}
		at := func(i int, v uint32) []byte {
			b := bytes.Clone(good)
			binary.BigEndian.PutUint32(b[i:], v)
			return b
		}
		for what, body := range map[string][]byte{
			"nothing": nil, "half": good[:len(good)-3], "a byte more": append(bytes.Clone(good), 0), "a size of 2 GiB": at(0, 0x7fffffff),
			"a negative size": at(0, 0x80000000), "size 0": at(0, 0), "a body of 2 GiB": at(16, 0x7fffffff), "a negative body": at(16, 0xffffffff),
		} {
			if a := p.ask(wire.CodeSendBatchMessage, body, fields...); a.Code != int(wire.MessageIllegal) && a.Code != int(wire.SystemError) {
				t.Errorf("batch with %s: %d %s", what, a.Code, a.Remark)
			}
		}
		a := p.ask(wire.CodeSendBatchMessage, good, fields...)
		if a.Code != 0 || a.ExtFields["queueOffset"] != "0" {
			t.Errorf("a good batch after broken ones: %d %s at %s", a.Code, a.Remark, a.ExtFields["queueOffset"])
		}
	})
}

// What a small request makes the broker hold must stay within reason.
func TestBatchOfManyTinyMessagesWithLargeCommonProperties(t *testing.T) {
	atHostileSite(t, BrokerConfig{}, func(s *hostileSite) {
		p := dialBad(t, s.broker.Addr())
		defer p.quit()
		var item [22]byte
		binary.BigEndian.PutUint32(item[:], 22)
		body := bytes.Repeat(item[:], wire.MaxBodyBytes/22)
		var many, one strings.Builder
		for i := range 4000 {
			fmt.Fprintf(&many, "k%d\x01v\x02", i)
		}
		one.WriteString("k\x01" + strings.Repeat("v", 32_000))
		var large []byte // few messages with many properties each, on top of many common ones
		var err error
		for len(large) < 4_000_000 {
			if large, err = wire.AppendBatch(large, []wire.BatchMessage{{Body: []byte("x"), Properties: strings.ReplaceAll(many.String()[:24_000], "k", "x")}}); err != nil {
				t.Fatal(err)
			}
		}
		for what, c := range map[string]struct {
			properties string
			body       []byte
			code       int32
		}{
			"many common properties":  {many.String(), body, wire.MessageIllegal},
			"a large common property": {one.String(), body, wire.MessageIllegal},
			"many of both":            {many.String()[:8000], large, wire.Success},
		} {
			fields := []string{"a", "p", "b", "tiny", "c", autoCreateTopic, "d", "1", "e", "0", "f", "0", "g", "1", "h", "0", "i", c.properties, "j", "0", "m", "true"}
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			begun := time.Now()
			a := p.ask(wire.CodeSendBatchMessage, c.body, fields...)
			took := time.Since(begun)
			runtime.ReadMemStats(&after)
			t.Logf("%s: %d %s after %v, %d MiB", what, a.Code, a.Remark, took, (after.TotalAlloc-before.TotalAlloc)>>20)
			if a.Code != int(c.code) {
				t.Errorf("%s: %d %s", what, a.Code, a.Remark)
			}
			if grown := after.TotalAlloc - before.TotalAlloc; grown > 256<<20 {
				t.Errorf("%s: %d bytes were allocated for a request of %d", what, grown, len(c.body))
			}
			if took > 5*time.Second {
				t.Errorf("%s: answered after %v", what, took)
			}
		}
	})
}
