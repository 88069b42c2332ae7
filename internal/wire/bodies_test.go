package wire

import (
	"reflect"
	"testing"
)

// A bodyCase is one body: the value, the text it must be written as, and how it
// is written and read.
type bodyCase struct {
	name    string
	value   any
	text    string
	marshal func(any) []byte
	parse   func([]byte) (any, error)
}

func caseOf[T any, P interface {
	*T
	Marshal() []byte
}](name string, value T, text string, parse func([]byte) (T, error)) bodyCase {
	return bodyCase{name, value, text,
		func(v any) []byte { w := v.(T); return P(&w).Marshal() },
		func(b []byte) (any, error) { return parse(b) }}
}

func routeCase(standard bool, value RouteData, text string) bodyCase {
	name := "route in the dialect"
	if standard {
		name = "route in standard JSON"
	}
	return bodyCase{name, value, text,
		func(v any) []byte { r := v.(RouteData); return r.Marshal(standard) },
		func(b []byte) (any, error) { return ParseRouteData(b) }}
}

var (
	sampleQueue        = MessageQueue{Topic: "T", BrokerName: "b", QueueID: 1}
	sampleQueueText    = `{"brokerName":"b","queueId":1,"topic":"T"}`
	sampleSubscription = SubscriptionData{Topic: "T", SubString: "A || B", ExpressionType: "TAG", TagsSet: []string{"A", "B"}, CodeSet: []int32{65, -66}, SubVersion: 1700000000000}
	subscriptionText   = `{"classFilterMode":false,"codeSet":[65,-66],"expressionType":"TAG","subString":"A || B","subVersion":1700000000000,"tagsSet":["A","B"],"topic":"T"}`
	sampleTopic        = TopicConfig{TopicName: "T", ReadQueueNums: 4, WriteQueueNums: 8, Perm: 6, TopicFilterType: "SINGLE_TAG", TopicSysFlag: 1, Order: true}
	topicText          = `{"order":true,"perm":6,"readQueueNums":4,"topicFilterType":"SINGLE_TAG","topicName":"T","topicSysFlag":1,"writeQueueNums":8}`
	groupText          = `{"brokerId":0,"consumeBroadcastEnable":true,"consumeEnable":true,"consumeFromMinEnable":true,"groupName":"g",` +
		`"notifyConsumerIdsChangedEnable":true,"retryMaxTimes":16,"retryQueueNums":1,"whichBrokerWhenConsumeSlowly":1}`
	sampleBroker     = BrokerData{Cluster: "c", BrokerName: "bé", BrokerAddrs: map[int64]string{0: "h:1", 1: "h:2"}}
	sampleConnection = Connection{ClientAddr: "1.2.3.4:5", ClientID: "id", Language: "GO", Version: 317}
	connectionText   = `{"clientAddr":"1.2.3.4:5","clientId":"id","language":"GO","version":317}`
)

func bodyCases() []bodyCase {
	route := RouteData{OrderTopicConf: "b:4", BrokerDatas: []BrokerData{sampleBroker},
		QueueDatas: []QueueData{{BrokerName: "bé", ReadQueueNums: 4, WriteQueueNums: 8, Perm: 6, TopicSysFlag: 1}}}
	table := TopicConfigTable{DataVersion: DataVersion{Counter: 1, Timestamp: 2}, Topics: map[string]TopicConfig{"T": sampleTopic}}
	tableText := `{"dataVersion":{"counter":1,"timestamp":2},"topicConfigTable":{"T":` + topicText + `}}`
	return []bodyCase{
		routeCase(true, route, `{"brokerDatas":[{"brokerAddrs":{"0":"h:1","1":"h:2"},"brokerName":"b\u00e9","cluster":"c"}],"filterServerTable":{},"orderTopicConf":"b:4",`+
			`"queueDatas":[{"brokerName":"b\u00e9","perm":6,"readQueueNums":4,"topicSysFlag":1,"writeQueueNums":8}]}`),
		routeCase(false, route, `{"brokerDatas":[{"brokerAddrs":{0:"h:1",1:"h:2"},"brokerName":"bé","cluster":"c"}],"filterServerTable":{},"orderTopicConf":"b:4",`+
			`"queueDatas":[{"brokerName":"bé","perm":6,"readQueueNums":4,"topicSysFlag":1,"writeQueueNums":8}]}`),
		routeCase(true, RouteData{}, `{"brokerDatas":[],"filterServerTable":{},"queueDatas":[]}`),
		caseOf("cluster", ClusterInfo{BrokerAddrTable: map[string]BrokerData{"bé": sampleBroker}, ClusterAddrTable: map[string][]string{"c": {"bé"}}},
			`{"brokerAddrTable":{"bé":{"brokerAddrs":{0:"h:1",1:"h:2"},"brokerName":"bé","cluster":"c"}},"clusterAddrTable":{"c":["bé"]}}`, ParseClusterInfo),
		caseOf("data version", DataVersion{Counter: 1, Timestamp: 2, StateVersion: 3}, `{"counter":1,"stateVersion":3,"timestamp":2}`, ParseDataVersion),
		caseOf("topic", sampleTopic, topicText, ParseTopicConfig),
		caseOf("topic with attributes", TopicConfig{TopicFilterType: "MULTI_TAG", Attributes: map[string]string{"message.type": "FIFO"}},
			`{"attributes":{"message.type":"FIFO"},"order":false,"perm":0,"readQueueNums":0,"topicFilterType":"MULTI_TAG","topicName":"","topicSysFlag":0,"writeQueueNums":0}`, ParseTopicConfig),
		caseOf("topic table", table, tableText, ParseTopicConfigTable),
		caseOf("registration", RegisterBrokerBody{TopicConfigTable: table, FilterServers: []string{"f:1"}},
			`{"filterServerList":["f:1"],"topicConfigSerializeWrapper":`+tableText+`}`,
			func(b []byte) (RegisterBrokerBody, error) { return ParseRegisterBroker(b, false) }),
		caseOf("topic list", TopicList{BrokerAddr: "b:1", Topics: []string{"T", "U"}}, `{"brokerAddr":"b:1","topicList":["T","U"]}`, ParseTopicList),
		caseOf("topic list without broker", TopicList{}, `{"topicList":[]}`, ParseTopicList),
		caseOf("table", KVTable{Table: map[string]string{"a": "1 2 3", "b\n\"\\": "x"}}, `{"table":{"a":"1 2 3","b\u000a\"\\":"x"}}`, ParseKVTable),
		caseOf("heartbeat", Heartbeat{ClientID: "id", Producers: []ProducerData{{"PG"}}, Consumers: []ConsumerData{{
			"CG", ConsumePassively, Clustering, FromLastOffset, true, []SubscriptionData{sampleSubscription}}}},
			`{"clientID":"id","consumerDataSet":[{"consumeFromWhere":"CONSUME_FROM_LAST_OFFSET","consumeType":"CONSUME_PASSIVELY","groupName":"CG","messageModel":"CLUSTERING",`+
				`"subscriptionDataSet":[`+subscriptionText+`],"unitMode":true}],"producerDataSet":[{"groupName":"PG"}]}`, ParseHeartbeat),
		caseOf("consumer list", ConsumerList{ConsumerIDs: []string{"a@1", "b@2"}}, `{"consumerIdList":["a@1","b@2"]}`, ParseConsumerList),
		caseOf("client configuration", CheckClientConfig{ClientID: "id", Group: "g", Namespace: "n", Subscription: sampleSubscription},
			`{"clientId":"id","group":"g","namespace":"n","subscriptionData":`+subscriptionText+`}`, ParseCheckClientConfig),
		caseOf("lock request", LockBatchRequest{ClientID: "id", ConsumerGroup: "g", Queues: []MessageQueue{sampleQueue, sampleQueue}},
			`{"clientId":"id","consumerGroup":"g","mqSet":[`+sampleQueueText+`,`+sampleQueueText+`]}`, ParseLockBatchRequest),
		caseOf("lock response", LockBatchResponse{Locked: []MessageQueue{sampleQueue}}, `{"lockOKMQSet":[`+sampleQueueText+`]}`, ParseLockBatchResponse),
		caseOf("group", DefaultSubscriptionGroupConfig("g"), groupText, ParseSubscriptionGroupConfig),
		caseOf("group that is off", SubscriptionGroupConfig{GroupName: "g"}, `{"brokerId":0,"consumeBroadcastEnable":false,"consumeEnable":false,"consumeFromMinEnable":false,"groupName":"g",`+
			`"notifyConsumerIdsChangedEnable":false,"retryMaxTimes":0,"retryQueueNums":0,"whichBrokerWhenConsumeSlowly":0}`, ParseSubscriptionGroupConfig),
		caseOf("groups", SubscriptionGroupTable{DataVersion{1, 2, 0}, map[string]SubscriptionGroupConfig{"g": DefaultSubscriptionGroupConfig("g")}},
			`{"dataVersion":{"counter":1,"timestamp":2},"subscriptionGroupTable":{"g":`+groupText+`}}`, ParseSubscriptionGroupTable),
		caseOf("consumer connections", ConsumerConnection{[]Connection{sampleConnection}, map[string]SubscriptionData{"T": sampleSubscription}, ConsumeActively, Broadcasting, FromTimestamp},
			`{"connectionSet":[`+connectionText+`],"consumeFromWhere":"CONSUME_FROM_TIMESTAMP","consumeType":"CONSUME_ACTIVELY","messageModel":"BROADCASTING",`+
				`"subscriptionTable":{"T":`+subscriptionText+`}}`, ParseConsumerConnection),
		caseOf("producer connections", ProducerConnection{[]Connection{sampleConnection}}, `{"connectionSet":[`+connectionText+`]}`, ParseProducerConnection),
		caseOf("topic statistics", TopicStats{map[MessageQueue]QueueStats{sampleQueue: {1, 2, 3}, {"T", "a", 7}: {}}},
			`{"offsetTable":{{"brokerName":"a","queueId":7,"topic":"T"}:{"lastUpdateTimestamp":0,"maxOffset":0,"minOffset":0},`+
				sampleQueueText+`:{"lastUpdateTimestamp":3,"maxOffset":2,"minOffset":1}}}`, ParseTopicStats),
		caseOf("consume statistics", ConsumeStats{12.5, map[MessageQueue]ConsumeOffset{sampleQueue: {9, 8, 7}}},
			`{"consumeTps":12.5,"offsetTable":{`+sampleQueueText+`:{"brokerOffset":9,"consumerOffset":8,"lastTimestamp":7}}}`, ParseConsumeStats),
		caseOf("consume statistics of nothing", ConsumeStats{Queues: map[MessageQueue]ConsumeOffset{}}, `{"consumeTps":0.0,"offsetTable":{}}`, ParseConsumeStats),
		caseOf("consumer offsets", ConsumerOffsets{map[string]map[int32]int64{"T@g": {0: 5, 10: 7}}}, `{"offsetTable":{"T@g":{0:5,10:7}}}`, ParseConsumerOffsets),
		caseOf("reset offsets", ResetOffsets{map[MessageQueue]int64{sampleQueue: 42}}, `{"offsetTable":{`+sampleQueueText+`:42}}`, ParseResetOffsets),
	}
}

func TestBodiesAreWrittenAsPeersReadThem(t *testing.T) {
	for _, c := range bodyCases() {
		if got := string(c.marshal(c.value)); got != c.text {
			t.Errorf("%s\n got %s\nwant %s", c.name, got, c.text)
		}
	}
}

func TestBodiesComeBackAsTheyWere(t *testing.T) {
	for _, c := range bodyCases() {
		got, err := c.parse([]byte(c.text))
		if err != nil || !reflect.DeepEqual(got, c.value) {
			t.Errorf("%s\n got %+v, %v\nwant %+v", c.name, got, err, c.value)
		}
	}
}

// Every prefix of a document is malformed, and so is anything behind its end.
func TestCutBodiesAreRefused(t *testing.T) {
	for _, c := range bodyCases() {
		for n := 1; n < len(c.text); n++ {
			if _, err := c.parse([]byte(c.text[:n])); err == nil {
				t.Errorf("%s: the first %d bytes parse: %s", c.name, n, c.text[:n])
			}
		}
		for _, tail := range []string{"x", "{}", ",", "null"} {
			if _, err := c.parse([]byte(c.text + tail)); err == nil {
				t.Errorf("%s: parses with %q behind its end", c.name, tail)
			}
		}
	}
}

func TestConfigTextRoundTrips(t *testing.T) {
	config := map[string]string{"brokerName": "b", "list": "a=1;b=2", "empty": ""}
	got, err := ParseConfig(append([]byte("# comment\n\n ! another\r\n"), FormatConfig(config)...))
	if err != nil || !reflect.DeepEqual(got, config) {
		t.Errorf("%v, %v; want %v", got, err, config)
	}
	for _, text := range []string{"no equals sign", "=value", "a=b\nrubbish\n"} {
		if got, err := ParseConfig([]byte(text)); err == nil {
			t.Errorf("%q is the configuration %v", text, got)
		}
	}
}
