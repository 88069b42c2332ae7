package wire

import (
	"errors"
	"reflect"
	"strings"
	"testing"
)

func TestReadersTakeEveryFormOfTheDialect(t *testing.T) {
	stats := TopicStats{map[MessageQueue]QueueStats{sampleQueue: {1, 2, 3}}}
	for _, text := range []string{
		`{"offsetTable":{{"brokerName":"b","queueId":1,"topic":"T"}:{"lastUpdateTimestamp":3,"maxOffset":2,"minOffset":1}}}`,
		`{offsetTable:{{brokerName:'b',queueId:"1",topic:"T"}:{lastUpdateTimestamp:"3",maxOffset:2.0,minOffset:true}}}`,
		"{ \"unknown\" : [ { 1 : null , {\"a\":{}} : [] } , 1e3 , 'x' ] ,\n\t\"offsetTable\" : { {\"topic\":\"T\",\"extra\":[1],\"queueId\":1,\"brokerName\":\"b\"} : " +
			"{ \"lastUpdateTimestamp\":3,\"maxOffset\":2,\"minOffset\":1, \"later\":null } } }",
		`{"offsetTable":{"{\"brokerName\":\"b\",\"queueId\":1,\"topic\":\"T\"}":{"lastUpdateTimestamp":3,"maxOffset":2,"minOffset":1}}}`,
	} {
		if got, err := ParseTopicStats([]byte(text)); err != nil || !reflect.DeepEqual(got, stats) {
			t.Errorf("%s\n is %+v, %v", text, got, err)
		}
	}
}

func TestNullIsAbsentEverywhere(t *testing.T) {
	for _, c := range bodyCases() {
		if _, err := c.parse([]byte("null")); err != nil {
			t.Errorf("%s: null: %v", c.name, err)
		}
	}
	h, err := ParseHeartbeat([]byte(`{"clientID":null,"producerDataSet":null,"consumerDataSet":[null,{"groupName":"g","subscriptionDataSet":[{"topic":"T","codeSet":null,"tagsSet":[null,"A"]}]}]}`))
	want := Heartbeat{Consumers: []ConsumerData{{GroupName: "g", Subscriptions: []SubscriptionData{{Topic: "T", TagsSet: []string{"A"}}}}}}
	if err != nil || !reflect.DeepEqual(h, want) {
		t.Errorf("%+v, %v; want %+v", h, err, want)
	}
	g, err := ParseSubscriptionGroupConfig([]byte(`{"groupName":"g","retryMaxTimes":null,"consumeEnable":null}`))
	if err != nil || g != DefaultSubscriptionGroupConfig("g") {
		t.Errorf("%+v, %v; want the defaults", g, err)
	}
}

func TestResetOffsetsComeInThreeForms(t *testing.T) {
	want := ResetOffsets{map[MessageQueue]int64{sampleQueue: 42}}
	for _, text := range []string{
		`{"offsetTable":{` + sampleQueueText + `:42}}`,
		`{"offsetTable":[[` + sampleQueueText + `,42]]}`,
		`{"offsetTable":[{"brokerName":"b","queueId":1,"topic":"T","offset":42}]}`,
	} {
		if got, err := ParseResetOffsets([]byte(text)); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s is %+v, %v", text, got, err)
		}
	}
	if got, err := ParseResetOffsets([]byte(`{"offsetTable":[[` + sampleQueueText + `,1,2]]}`)); err == nil {
		t.Errorf("three values are a pair: %+v", got)
	}
}

// Texts are Java's names; ordinals are read; what nobody knows survives parsing
// and is named when someone asks.
func TestEnumsOfHeartbeats(t *testing.T) {
	parse := func(kind, model, from string) ConsumerData {
		t.Helper()
		h, err := ParseHeartbeat([]byte(`{"clientID":"id","future":{"a":[1]},"consumerDataSet":[{"groupName":"g","consumeType":` + kind +
			`,"messageModel":` + model + `,"consumeFromWhere":` + from + `,"future":1}]}`))
		if err != nil || len(h.Consumers) != 1 {
			t.Fatalf("%+v, %v", h, err)
		}
		return h.Consumers[0]
	}
	for _, c := range []ConsumerData{parse(`"CONSUME_PASSIVELY"`, `"CLUSTERING"`, `"CONSUME_FROM_FIRST_OFFSET"`), parse(`1`, `1`, `4`), parse(`"1"`, `1`, `"4"`)} {
		if c.ConsumeType != ConsumePassively || c.MessageModel != Clustering || c.ConsumeFromWhere != FromFirstOffset || c.Check() != nil {
			t.Errorf("%+v, %v", c, c.Check())
		}
	}
	if c := parse(`0`, `0`, `"UNKNOWN"`); c.Check() != nil || c.ConsumeType != ConsumeActively || c.MessageModel != Broadcasting || c.ConsumeFromWhere != "UNKNOWN" {
		t.Errorf("%+v, %v", c, c.Check())
	}
	if err := (&ConsumerData{GroupName: "g", ConsumeType: "CONSUME_SIDEWAYS", MessageModel: Clustering}).Check(); err == nil || !strings.Contains(err.Error(), "CONSUME_SIDEWAYS") {
		t.Errorf("an unknown consume type: %v", err)
	}
	if err := (&ConsumerData{GroupName: "g", ConsumeType: ConsumePassively, MessageModel: "9"}).Check(); err == nil || !strings.Contains(err.Error(), `"9"`) {
		t.Errorf("an unknown message model: %v", err)
	}
}

func TestGoClientsHeartbeatIsRead(t *testing.T) {
	h, err := ParseHeartbeat([]byte(`{"clientID":"10.0.0.1@77","producerDataSet":[{"groupName":"PG"}],"consumerDataSet":[{"groupName":"CG","consumeType":"CONSUME_PASSIVELY",` +
		`"messageModel":"CLUSTERING","consumeFromWhere":"CONSUME_FROM_LAST_OFFSET","subscriptionDataSet":[{"ClassFilterMode":false,"topic":"T","subString":"TagA",` +
		`"tagsSet":["TagA"],"codeSet":["2598919"],"subVersion":1700000000000000000,"expressionType":"TAG"}],"unitMode":false}]}`))
	if err != nil || len(h.Consumers) != 1 || len(h.Consumers[0].Subscriptions) != 1 {
		t.Fatalf("%+v, %v", h, err)
	}
	if s := h.Consumers[0].Subscriptions[0]; len(s.CodeSet) != 1 || s.CodeSet[0] != 2598919 || s.SubVersion != 1700000000000000000 {
		t.Errorf("%+v", s)
	}
}

func TestFastjsonTextsAreUnescaped(t *testing.T) {
	for text, want := range map[string]string{
		`"a\"b\\c\/d\n\u00e9\ud83d\ude00"`: "a\"b\\c/d\né😀",
		`'it''`:                            "",
		`'say "hi" it\'s'`:                 `say "hi" it's`,
		`"it\'s"`:                          "it's",
		"\"tab\there\"":                    "tab\there",
		"\"esc\\\\ and\ttab\"":             "esc\\ and\ttab",
		"\"bad\xff\"":                      "bad\uFFFD",
		`12`:                               "12",
		`true`:                             "true",
	} {
		got, err := ParseTopicList([]byte(`{"brokerAddr":` + text + `}`))
		if want == "" {
			if err == nil {
				t.Errorf("%s is read as %q", text, got.BrokerAddr)
			}
			continue
		}
		if err != nil || got.BrokerAddr != want {
			t.Errorf("%s is %q, %v; want %q", text, got.BrokerAddr, err, want)
		}
	}
}

func TestTextOutsideTheDialectIsRefused(t *testing.T) {
	for _, text := range []string{
		``, ` `, `[`, `]`, `{]`, `[}`, `{"a"}`, `{"a":}`, `{"a":1,}`, `{,}`, `{"a":1 "b":2}`, `{"a":"\u12"}`, `{"a":"\q"}`, `{"a":"x}`, `{:1}`, "\x00", `{"a":` + "\x00}",
		`[]`, `"text"`, `1`, `{"topicList":{}}`, `{"topicList":"x"}`, `{"brokerAddr":[]}`, `{"brokerAddr":{}}`, `{{}:{}`, `{{"a":1}}`,
		strings.Repeat("[", 100000), strings.Repeat(`{"a":`, 100000), strings.Repeat(`{`, 100000),
	} {
		if l, err := ParseTopicList([]byte(text)); !errors.Is(err, ErrMalformed) {
			t.Errorf("%.40q is the list %+v, %v", text, l, err)
		}
	}
	for _, text := range []string{`"x"`, `1x`, `2147483648`, `"-2147483649"`, `[1]`, `{}`, `1e10`, `NaN`} {
		if c, err := ParseTopicConfig([]byte(`{"perm":` + text + `}`)); !errors.Is(err, ErrMalformed) {
			t.Errorf("%s is the permission %d, %v", text, c.Perm, err)
		}
	}
	for _, text := range []string{`"x"`, `"NaN"`, `"Inf"`, `1e999`, `[]`} {
		if c, err := ParseConsumeStats([]byte(`{"consumeTps":` + text + `}`)); !errors.Is(err, ErrMalformed) {
			t.Errorf("%s is the rate %v, %v", text, c.ConsumeTPS, err)
		}
	}
	for _, text := range []string{`{"offsetTable":{"T@g":{"x":1}}}`, `{"offsetTable":{"T@g":{4294967296:1}}}`} {
		if c, err := ParseConsumerOffsets([]byte(text)); !errors.Is(err, ErrMalformed) {
			t.Errorf("%s is %v, %v", text, c.Offsets, err)
		}
	}
}

func TestIntegerKeysAreReadQuotedAndBare(t *testing.T) {
	for _, text := range []string{`{0:"h:1",1:"h:2"}`, `{"0":"h:1","1":"h:2"}`, `{ 1 : "h:2" , "0":'h:1',2:null}`} {
		r, err := ParseRouteData([]byte(`{"brokerDatas":[{"brokerAddrs":` + text + `,"brokerName":"b"}],"queueDatas":[{"topicSynFlag":3}]}`))
		if err != nil || len(r.BrokerDatas) != 1 || !reflect.DeepEqual(r.BrokerDatas[0].BrokerAddrs, sampleBroker.BrokerAddrs) || r.QueueDatas[0].TopicSysFlag != 3 {
			t.Errorf("%s is %+v, %v", text, r, err)
		}
	}
}

func TestRegistrationWithAttributesOfLaterBrokers(t *testing.T) {
	b := appendSized(nil, []byte(`{"counter":1}`))
	b = append(b, 0, 0, 0, 1)
	b = appendSized(b, []byte(`T 4 8 6 SINGLE_TAG {"message.type":"FIFO"}`))
	b = appendSized(b, []byte(`null`))
	b = append(b, 0, 0, 0, 0)
	r, err := parseRegisterPacked(b)
	topic := r.TopicConfigTable.Topics["T"]
	if err != nil || topic.Attributes["message.type"] != "FIFO" || topic.WriteQueueNums != 8 {
		t.Errorf("%+v, %v", r, err)
	}
	for n := range len(b) - 4 {
		if _, err := parseRegisterPacked(b[:n]); !errors.Is(err, ErrMalformed) {
			t.Errorf("the first %d bytes parse: %v", n, err)
		}
	}
	if r, err := ParseRegisterBroker(nil, true); err != nil || len(r.TopicConfigTable.Topics) != 0 {
		t.Errorf("an empty registration is %+v, %v", r, err)
	}
}
