package wire

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
)

type header interface {
	AppendFields(fields []string) []string
	ParseFields(fields []string) error
}

// headerCase has a header with every member set, and the keys that a reader must
// insist on.
type headerCase struct {
	header   header
	required string
}

var fullSend = SendRequest{
	ProducerGroup: "PG", Topic: "T", DefaultTopic: "TBW102", DefaultTopicQueueNums: 4, QueueID: -1, SysFlag: 0x301,
	BornTimestamp: 1700000000000, Flag: -7, Properties: "TAGS\x01A", ReconsumeTimes: 3, UnitMode: true,
	MaxReconsumeTimes: 16, HasMaxReconsumeTimes: true, Batch: true, BrokerName: "b",
}

func headerCases() []headerCase {
	v2 := SendRequestV2(fullSend)
	return []headerCase{
		{&fullSend, "producerGroup topic defaultTopic defaultTopicQueueNums queueId sysFlag bornTimestamp flag"},
		{&v2, "a b c d e f g h"},
		{&SendResponse{"id", 2, 5, "tid", "DefaultRegion", true}, "msgId queueId queueOffset"},
		{&SendFailure{"DefaultRegion", true}, ""},
		{&PullRequest{"CG", "T", 1, 1 << 40, 32, 7, 1 << 41, 20000, "A || B", 1 << 60, "TAG", "b"},
			"consumerGroup topic queueId queueOffset maxMsgNums sysFlag commitOffset suspendTimeoutMillis subVersion"},
		{&PullResponse{1, 200, 300, 1 << 50}, "suggestWhichBrokerId nextBeginOffset minOffset maxOffset"},
		{&QueryOffsetRequest{"CG", "T", 1, "b", true}, "consumerGroup topic queueId"},
		{&OffsetResponse{-1}, "offset"},
		{&UpdateOffsetRequest{"CG", "T", 1, 1 << 40, "b"}, "consumerGroup topic queueId commitOffset"},
		{&SearchOffsetRequest{"T", 1, 1700000000000, "upper", "b"}, "topic queueId timestamp"},
		{&QueueRequest{"T", 1, "b"}, "topic queueId"},
		{&EarliestTimeResponse{1700000000000}, "timestamp"},
		{&QueryMessageRequest{"T", "k", 64, 1, 2, true}, "topic key maxNum beginTimestamp endTimestamp"},
		{&QueryMessageResponse{1, 2}, "indexLastUpdateTimestamp indexLastUpdatePhyoffset"},
		{&ViewMessageRequest{1 << 40}, "offset"},
		{&SendBackRequest{1 << 40, "CG", -1, "id", "T", true, 0, true, "b"}, "offset group delayLevel"},
		{&UnregisterClientRequest{"id", "PG", "CG", "b"}, "clientID"},
		{&ConsumerGroupRequest{"CG"}, "consumerGroup"},
		{&ProducerConnectionRequest{"PG"}, "producerGroup"},
		{&EndTransactionRequest{"PG", 1, 2, 8, true, "m", "t", "b"}, "producerGroup tranStateTableOffset commitLogOffset commitOrRollback msgId"},
		{&CheckTransactionRequest{1, 2, "m", "t", "o", "b"}, "tranStateTableOffset commitLogOffset"},
		{&PushReplyRequest{"PG", "T", "D", 4, 1, 2, 3, 4, "p\x01q", 5, true, "1.2.3.4:5", "6.7.8.9:10", 6},
			"producerGroup topic queueId sysFlag bornTimestamp flag bornHost storeHost storeTimestamp"},
		{&RouteRequest{"T", true}, "topic"},
		{&RegisterBrokerRequest{"b", "a:1", "c", "a:2", 1, true, 77, 10000}, "brokerName brokerAddr clusterName haServerAddr brokerId"},
		{&RegisterBrokerResponse{"h", "m"}, ""},
		{&UnregisterBrokerRequest{"b", "a:1", "c", 1}, "brokerName brokerAddr clusterName brokerId"},
		{&QueryDataVersionRequest{"b", "a:1", "c", 1}, "brokerName brokerAddr clusterName brokerId"},
		{&QueryDataVersionResponse{true}, "changed"},
		{&PutKVRequest{"n", "k", "v"}, "namespace key value"},
		{&KVRequest{"n", "k"}, "namespace key"},
		{&GetKVResponse{"v"}, "value"},
		{&KVListRequest{"n"}, "namespace"},
		{&WritePermRequest{"b"}, "brokerName"},
		{&WipeWritePermResponse{3}, "wipeTopicCount"},
		{&AddWritePermResponse{3}, "addTopicCount"},
		{&DeleteRouteTopicRequest{"T", "c"}, "topic"},
		{&ClusterTopicsRequest{"c"}, "cluster"},
		{&CreateTopicRequest{"T", "D", 8, 8, 6, "SINGLE_TAG", 1, true, "+message.type=FIFO"}, "topic readQueueNums writeQueueNums perm"},
		{&TopicRequest{"T"}, "topic"},
		{&BrokerConfigResponse{"{}"}, "version"},
		{&DeleteGroupRequest{"g", true}, "groupName"},
		{&ConsumeStatsRequest{"g", "T"}, "consumerGroup"},
		{&ResetOffsetRequest{"T", "g", -1, true}, "topic group timestamp isForce"},
		{&ConsumerStatusRequest{"T", "g", "a:1"}, "topic group"},
		{&ConsumeTimeSpanRequest{"T", "g"}, "topic group"},
		{&RunningInfoRequest{"g", "id", true}, "consumerGroup clientId"},
		{&ConsumeDirectlyRequest{"g", "id", "m", "b"}, "consumerGroup"},
	}
}

func blankOf(h header) header {
	return reflect.New(reflect.TypeOf(h).Elem()).Interface().(header)
}

func TestHeadersRoundTripFullAndEmpty(t *testing.T) {
	for _, c := range headerCases() {
		v := reflect.ValueOf(c.header).Elem()
		for i := range v.NumField() {
			if v.Field(i).IsZero() && v.Type().Field(i).Name != "MaxReconsumeTimes" {
				t.Errorf("%T: the case leaves %s zero", c.header, v.Type().Field(i).Name)
			}
		}
		for _, h := range []header{c.header, blankOf(c.header)} {
			fields := h.AppendFields([]string{"before", "x"})
			if fields[0] != "before" || len(fields)%2 != 0 {
				t.Fatalf("%T: fields %q", h, fields)
			}
			got := blankOf(h)
			if err := got.ParseFields(append(fields, "unknown", "y", "odd")); err != nil {
				t.Errorf("%T: %v", h, err)
			}
			if !reflect.DeepEqual(got, h) {
				t.Errorf("%T\n got %+v\nwant %+v", h, got, h)
			}
		}
	}
}

func TestHeadersNameTheFieldThatIsMissing(t *testing.T) {
	for _, c := range headerCases() {
		fields := c.header.AppendFields(nil)
		required := strings.Fields(c.required)
		for i := 0; i < len(fields); i += 2 {
			without := slices.Delete(slices.Clone(fields), i, i+2)
			err := blankOf(c.header).ParseFields(without)
			if needed := slices.Contains(required, fields[i]); needed != (err != nil) {
				t.Errorf("%T without %s: %v", c.header, fields[i], err)
			} else if needed && !strings.Contains(err.Error(), fields[i]) {
				t.Errorf("%T: %v does not name %s", c.header, err, fields[i])
			}
		}
		for _, key := range required {
			if !slices.Contains(fields, key) {
				t.Errorf("%T does not write %s", c.header, key)
			}
		}
	}
}

func TestHeadersNameTheFieldThatIsMalformed(t *testing.T) {
	for _, c := range headerCases() {
		fields := c.header.AppendFields(nil)
		for i := 1; i < len(fields); i += 2 {
			if strings.Trim(fields[i], "-0123456789") != "" {
				continue
			}
			bad := slices.Clone(fields)
			for _, value := range []string{"", "x", "99999999999999999999", "1.5", strings.Repeat("long", 100)} {
				bad[i] = value
				err := blankOf(c.header).ParseFields(bad)
				if err == nil || !strings.Contains(err.Error(), fields[i-1]) || len(err.Error()) > 200 {
					t.Errorf("%T with %s = %q: %v", c.header, fields[i-1], value, err)
				}
			}
		}
	}
}

func TestOfAFieldThatComesTwiceTheFirstCounts(t *testing.T) {
	for _, c := range headerCases() {
		fields := c.header.AppendFields(nil)
		for i := range len(fields) / 2 {
			fields = append(fields, fields[2*i], "false")
		}
		got := blankOf(c.header)
		if err := got.ParseFields(fields); err != nil || !reflect.DeepEqual(got, c.header) {
			t.Errorf("%T: %+v, %v", c.header, got, err)
		}
	}
}

func TestAbsentIsNotZeroForTheRetryLimit(t *testing.T) {
	var send SendRequest
	if err := send.ParseFields(append((&SendRequest{}).AppendFields(nil), "maxReconsumeTimes", "0")); err != nil || !send.HasMaxReconsumeTimes {
		t.Errorf("a limit of 0 counts as absent: %+v, %v", send, err)
	}
	var back SendBackRequest
	if err := back.ParseFields((&SendBackRequest{}).AppendFields(nil)); err != nil || back.HasMaxReconsumeTimes {
		t.Errorf("an absent limit counts as present: %+v, %v", back, err)
	}
}

func TestTracingIsOnUnlessRefused(t *testing.T) {
	for value, want := range map[string]bool{"": true, "true": true, "false": false} {
		fields := []string{"msgId", "i", "queueId", "0", "queueOffset", "0"}
		if value != "" {
			fields = append(fields, PropTraceOn, value)
		}
		var h SendResponse
		if err := h.ParseFields(fields); err != nil || h.TraceOn != want {
			t.Errorf("TRACE_ON %q: %v, %v; want %v", value, h.TraceOn, err, want)
		}
	}
}

func TestHotHeadersAllocateOnlyTheirFields(t *testing.T) {
	fields := make([]string, 0, 64)
	v2 := SendRequestV2(fullSend)
	for _, h := range []header{&fullSend, &v2, &SendResponse{QueueOffset: 1 << 40}, &PullRequest{QueueOffset: 1 << 40}, &PullResponse{MaxOffset: 1 << 40}} {
		if n := testing.AllocsPerRun(100, func() { h.AppendFields(fields[:0]) }); n > 1 {
			t.Errorf("%T: AppendFields allocates %v times, want once for the numbers", h, n)
		}
		text, got := h.AppendFields(nil), blankOf(h)
		if n := testing.AllocsPerRun(100, func() {
			if err := got.ParseFields(text); err != nil {
				t.Error(err)
			}
		}); n > 0 {
			t.Errorf("%T: ParseFields allocates %v times", h, n)
		}
	}
}

func TestResponsesHaveNames(t *testing.T) {
	seen := make(map[string]int32)
	named := 0
	for code := int32(-2); code < 2000; code++ {
		name := ResponseName(code)
		if other, ok := seen[name]; ok {
			t.Errorf("%d and %d are both %s", code, other, name)
		}
		seen[name] = code
		if name != fmt.Sprint(code) {
			named++
		}
	}
	if named != 30 {
		t.Errorf("%d codes have names, want 30", named)
	}
}

func BenchmarkHeaders(b *testing.B) {
	v2 := SendRequestV2(fullSend)
	for _, h := range []header{&fullSend, &v2, &PullRequest{ConsumerGroup: "g", Topic: "T", QueueOffset: 1 << 40}} {
		name := strings.TrimPrefix(fmt.Sprintf("%T", h), "*wire.")
		fields := h.AppendFields(nil)
		b.Run(name+"/append", func(b *testing.B) {
			dst := make([]string, 0, len(fields))
			b.ReportAllocs()
			for b.Loop() {
				h.AppendFields(dst)
			}
		})
		b.Run(name+"/parse", func(b *testing.B) {
			got := blankOf(h)
			b.ReportAllocs()
			for b.Loop() {
				if err := got.ParseFields(fields); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
