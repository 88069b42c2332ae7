package mq

import (
	"slices"
	"strings"
	"testing"

	"github.com/pocketmq/mq/internal/wire"
	"github.com/pocketmq/mq/transport"
)

func TestTopicIsCreatedAndChangedByRequest(t *testing.T) {
	r := startBroker(t, BrokerConfig{})
	v0 := r.topics.dataVersion()
	r.createTopic("t", 3, 6)
	v1 := r.topics.dataVersion()
	r.stored(message("t"), "x")
	r.must(wire.CodeUpdateAndCreateTopic, &wire.CreateTopicRequest{Topic: "t", ReadQueueNums: 8, WriteQueueNums: 5, Perm: 4}, nil)
	v2 := r.topics.dataVersion()
	if v1.Counter <= v0.Counter || v2.Counter <= v1.Counter {
		t.Fatalf("data versions %v %v %v", v0, v1, v2)
	}
	f := r.must(wire.CodeGetAllTopicConfig, nil, nil)
	table, err := wire.ParseTopicConfigTable(f.Body)
	if err != nil {
		t.Fatal(err)
	}
	c := table.Topics["t"]
	if c.ReadQueueNums != 8 || c.WriteQueueNums != 5 || c.Perm != 4 || c.TopicFilterType != singleTag || table.DataVersion.Counter != v2.Counter {
		t.Fatalf("listed as %+v in %+v", c, table.DataVersion)
	}
	if got := bodies(r.messages("t")); got != "x" {
		t.Fatalf("a change lost messages: %q", got)
	}
	// As in RocketMQ the missing write permission keeps clients away, and the
	// broker takes what comes; queues up to the larger number are legal.
	h := message("t")
	h.QueueID = 7
	r.stored(h, "y")
	h.QueueID = 8
	r.refusedWith(wire.SystemError, r.send(h, "y"), "queueId[8]")
}

func TestRefusedTopicChanges(t *testing.T) {
	r := startBroker(t, BrokerConfig{Cluster: "c1", Name: "b1"})
	good := wire.CreateTopicRequest{Topic: "t", ReadQueueNums: 1, WriteQueueNums: 1, Perm: 6}
	with := func(edit func(*wire.CreateTopicRequest)) *wire.CreateTopicRequest {
		h := good
		edit(&h)
		return &h
	}
	refusedChanges := map[string]*wire.CreateTopicRequest{
		"no queue":     with(func(h *wire.CreateTopicRequest) { h.ReadQueueNums, h.WriteQueueNums = 0, 0 }),
		"negative":     with(func(h *wire.CreateTopicRequest) { h.ReadQueueNums = -1 }),
		"many queues":  with(func(h *wire.CreateTopicRequest) { h.WriteQueueNums = maxQueues + 1 }),
		"permission":   with(func(h *wire.CreateTopicRequest) { h.Perm = 16 }),
		"bad name":     with(func(h *wire.CreateTopicRequest) { h.Topic = "a b" }),
		"too long":     with(func(h *wire.CreateTopicRequest) { h.Topic = strings.Repeat("x", 128) }),
		"without name": with(func(h *wire.CreateTopicRequest) { h.Topic = " " }),
	}
	system := []string{autoCreateTopic, scheduleTopic, wire.TopicBenchmark, wire.TopicHalf, wire.TopicHalfOp, wire.TopicTrace,
		wire.TopicCheckMaxTime, wire.TopicSelfTest, wire.TopicOffsetMoved, "rmq_sys_x", "c1", "b1", "c1_REPLY_TOPIC"}
	for _, name := range system {
		refusedChanges[name] = with(func(h *wire.CreateTopicRequest) { h.Topic = name })
		if f := r.call(wire.CodeDeleteTopicInBroker, &wire.DeleteTopicRequest{Topic: name}, nil); f.Code != wire.SystemError {
			t.Errorf("delete of %s: answer %d", name, f.Code)
		}
	}
	before := len(r.topics.all())
	for name, h := range refusedChanges {
		if f := r.call(wire.CodeUpdateAndCreateTopic, h, nil); f.Code != wire.SystemError || f.Remark == "" {
			t.Errorf("%s: answer %d %q", name, f.Code, f.Remark)
		}
	}
	if after := len(r.topics.all()); after != before {
		t.Errorf("%d topics, %d before", after, before)
	}
}

func TestSystemTopicsAreListed(t *testing.T) {
	r := startBroker(t, BrokerConfig{Cluster: "c1", Name: "b1"})
	r.createTopic("mine", 1, 6)
	f := r.must(wire.CodeGetSystemTopicListFromBroker, nil, nil)
	list, err := wire.ParseTopicList(f.Body)
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(list.Topics)
	want := "BenchmarkTest OFFSET_MOVED_EVENT SCHEDULE_TOPIC_XXXX SELF_TEST_TOPIC TBW102 b1 c1 c1_REPLY_TOPIC"
	if got := strings.Join(list.Topics, " "); got != want {
		t.Fatalf("listed %q, want %q", got, want)
	}
}

func TestSettingsAreShownChangedAndKept(t *testing.T) {
	cfg := BrokerConfig{Dir: t.TempDir(), Name: "b1", NameServers: nil, Transport: transport.NewMemory(transport.MemoryConfig{})}
	r := startBroker(t, cfg)
	settings := func(r *rawBroker) (map[string]string, string) {
		f := r.must(wire.CodeGetBrokerConfig, nil, nil)
		m, err := wire.ParseConfig(f.Body)
		if err != nil {
			t.Fatal(err)
		}
		h, err := transport.HeaderOf[wire.BrokerConfigResponse](f)
		if err != nil {
			t.Fatal(err)
		}
		return m, h.Version
	}
	was, version := settings(r)
	for key, want := range map[string]string{"brokerName": "b1", "brokerClusterName": defaultCluster, "brokerId": "0", "listenPort": "10911",
		"autoCreateTopicEnable": "true", "brokerPermission": "6", "maxMessageSize": "4194304", "flushDiskType": "SYNC_FLUSH",
		"registerNameServerPeriod": "30000", "messageDelayLevel": "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"} {
		if was[key] != want {
			t.Errorf("%s is %q, want %q", key, was[key], want)
		}
	}
	r.must(wire.CodeUpdateBrokerConfig, nil, []byte("maxMessageSize=10\nunknownKey=kept\nbrokerName=b1\n"))
	r.createTopic("t", 1, 6)
	r.refusedWith(wire.MessageIllegal, r.send(message("t"), "more than 10 bytes"), "limit is 10")
	for text, code := range map[string]int32{
		"brokerConfigPath=/etc":                        wire.NoPermission,
		"configBlackList=x":                            wire.NoPermission,
		"maxMessageSize=big":                           wire.SystemError,
		"maxMessageSize=0":                             wire.SystemError,
		"autoCreateTopicEnable=yes":                    wire.SystemError,
		"brokerPermission=9":                           wire.SystemError,
		"brokerName=other":                             wire.SystemError,
		"nonsense":                                     wire.SystemError,
		"maxMessageSize=5\nautoCreateTopicEnable=nope": wire.SystemError,
		"k=" + strings.Repeat("x", maxSettingsLen):     wire.SystemError,
	} {
		if f := r.call(wire.CodeUpdateBrokerConfig, nil, []byte(text)); f.Code != code {
			t.Errorf("%.30q: answer %d %s, want %d", text, f.Code, f.Remark, code)
		}
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	again := startBroker(t, cfg)
	now, later := settings(again)
	if now["maxMessageSize"] != "10" || now["unknownKey"] != "kept" {
		t.Errorf("after a restart: %q %q", now["maxMessageSize"], now["unknownKey"])
	}
	if later == version {
		t.Errorf("the version stayed %s", version)
	}
}

func TestTraceAndRegionOfAnswersFollowTheSettings(t *testing.T) {
	r := startBroker(t, BrokerConfig{})
	if res := r.stored(message("t"), "x"); res.Region != "DefaultRegion" || !res.TraceOn {
		t.Fatalf("answer %+v", res)
	}
	r.must(wire.CodeUpdateBrokerConfig, nil, []byte("regionId=east\ntraceOn=false"))
	if res := r.stored(message("t"), "x"); res.Region != "east" || res.TraceOn {
		t.Fatalf("answer %+v", res)
	}
	f := r.send(message("a/b"), "x")
	fields := f.Header.AppendFields(nil)
	if text := strings.Join(fields, " "); !strings.Contains(text, "MSG_REGION east") || !strings.Contains(text, "TRACE_ON false") {
		t.Fatalf("refusal %q", text)
	}
}

func TestSendsBeforeTheAcceptTimeAreRefused(t *testing.T) {
	r := startBroker(t, BrokerConfig{})
	r.must(wire.CodeUpdateBrokerConfig, nil, []byte("startAcceptSendRequestTimeStamp=4102444800000"))
	r.refusedWith(wire.SystemError, r.send(message("a/b"), "x"), "until 2100-01-01")
	r.must(wire.CodeUpdateBrokerConfig, nil, []byte("startAcceptSendRequestTimeStamp=1"))
	r.stored(message("t"), "x")
}

func TestRuntimeInfoHasWhatToolsRead(t *testing.T) {
	r := startBroker(t, BrokerConfig{})
	r.stored(message("t"), "hello")
	f := r.must(wire.CodeGetBrokerRuntimeInfo, nil, nil)
	kv, err := wire.ParseKVTable(f.Body)
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range strings.Fields("brokerVersionDesc brokerVersion msgPutTotalYesterdayMorning msgPutTotalTodayMorning " +
		"msgGetTotalYesterdayMorning msgGetTotalTodayMorning msgGetTotalTodayNow putTps getTransferedTps getTotalTps " +
		"sendThreadPoolQueueSize sendThreadPoolQueueHeadWaitTimeMills pullThreadPoolQueueSize pullThreadPoolQueueHeadWaitTimeMills " +
		"pageCacheLockTimeMills earliestMessageTimeStamp commitLogMinOffset commitLogMaxOffset bootTimestamp runtime") {
		if kv.Table[key] == "" {
			t.Errorf("%s is missing", key)
		}
	}
	if kv.Table["msgPutTotalTodayNow"] != "1" || kv.Table["brokerVersionDesc"] != "V4_9_8" || kv.Table["commitLogMaxOffset"] == "0" {
		t.Errorf("table %v", kv.Table)
	}
}

func TestUnknownCodeIsAnswered(t *testing.T) {
	r := startBroker(t, BrokerConfig{})
	if f := r.call(4711, nil, nil); f.Code != wire.RequestCodeNotSupported || f.Remark != " request type 4711 not supported" {
		t.Fatalf("answer %d %q", f.Code, f.Remark)
	}
}

// TestBrokerOverEveryTransport runs what a producer does over TCP, and over the
// memory network with each header codec.
func TestBrokerOverEveryTransport(t *testing.T) {
	for name, network := range map[string]func() transport.Transport{
		"TCP": func() transport.Transport { return transport.NewTCP(transport.TCPConfig{}) },
		"JSON": func() transport.Transport {
			return transport.NewMemory(transport.MemoryConfig{Encoding: transport.EncodeJSON})
		},
		"ROCKETMQ": func() transport.Transport {
			return transport.NewMemory(transport.MemoryConfig{Encoding: transport.EncodeRocketMQ})
		},
		"MSGPACK": func() transport.Transport {
			return transport.NewMemory(transport.MemoryConfig{Encoding: transport.EncodeMsgPack})
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := startBroker(t, BrokerConfig{Transport: network(), Listen: "127.0.0.1:0"})
			r.createTopic("t", 1, 6)
			r.stored(message("t", wire.PropTags, "a", wire.PropKeys, "k"), "one")
			short := wire.SendRequestV2(*message("fresh"))
			short.QueueID = 3
			r.storedBy(r.call(wire.CodeSendMessageV2, &short, []byte("two")))
			r.refusedWith(wire.SystemError, r.send(message("a/b"), "x"), "illegal characters")
			r.must(wire.CodeConsumerSendMsgBack, &wire.SendBackRequest{Offset: r.queue("t", 0)[0].Position, Group: "g", DelayLevel: -1}, nil)
			if got := bodies(r.queue("t", 0)) + bodies(r.queue("fresh", 3)) + bodies(r.messages(DeadLetterTopic("g"))); got != "onetwoone" {
				t.Fatalf("stored %q", got)
			}
			if m := r.queue("t", 0)[0]; m.BornHost.String() != r.conn.LocalAddr() {
				t.Fatalf("born at %v, sent from %s", m.BornHost, r.conn.LocalAddr())
			}
		})
	}
}
