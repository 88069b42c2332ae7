package wire

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"math/big"
	"net/netip"
	"os"
	"testing"
)

type vector struct {
	Name   string          `json:"name"`
	Kind   string          `json:"kind"`
	Fields json.RawMessage `json:"fields"`
	Hex    string          `json:"hex"`
	Text   string          `json:"text"`

	JavaHash  int64 `json:"javaHash"`
	Value     int32 `json:"value"`
	BodyCRC32 int32 `json:"bodyCrc32"`
	Derived   struct {
		TotalSize     int    `json:"totalSize"`
		BodyCRC       int32  `json:"bodyCRC"`
		SysFlag       int32  `json:"effectiveSysFlag"`
		PropertiesHex string `json:"propertiesHex"`
		OffsetMsgID   string `json:"offsetMsgId"`
	} `json:"derived"`
}

// vectorTests has a test for each kind of vector; nil for a kind that other
// packages cover: frames and signatures belong to the transport and to access
// control, replication and queue files to nobody here.
var vectorTests = map[string]func(*testing.T, vector){
	"stored_message":                   testStoredVector,
	"commitlog_blank":                  testBlankVector,
	"batch_body":                       testBatchVector,
	"msg_id":                           testMessageIDVector,
	"uniq_key":                         testUniqueKeyVector,
	"tag_hash":                         testTagHashVector,
	"crc32_31bit":                      testCRCVector,
	"register_broker_compressed_plain": testRegisterPlainVector,
	"register_broker_compressed":       testRegisterVector,
	"frame":                            nil,
	"acl_signature":                    nil,
	"ha":                               nil,
	"consume_queue_entry":              nil,
}

func TestProtocolVectors(t *testing.T) {
	raw, err := os.ReadFile("testdata/protocol.json")
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Vectors []vector `json:"vectors"`
	}
	if err := json.Unmarshal(raw, &file); err != nil {
		t.Fatal(err)
	}
	ran := make(map[string]int)
	for _, v := range file.Vectors {
		test, known := vectorTests[v.Kind]
		if !known {
			t.Errorf("vector %s: nobody tests the kind %s", v.Name, v.Kind)
		}
		if test != nil {
			ran[v.Kind]++
			t.Run(v.Name, func(t *testing.T) { test(t, v) })
		}
	}
	for kind, test := range vectorTests {
		if test != nil && ran[kind] == 0 {
			t.Errorf("no vector of the kind %s", kind)
		}
	}
}

func (v vector) fields(t *testing.T, into any) {
	t.Helper()
	if err := json.Unmarshal(v.Fields, into); err != nil {
		t.Fatal(err)
	}
}

func unhex(t *testing.T, text string) []byte {
	t.Helper()
	b, err := hex.DecodeString(text)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func hostOf(t *testing.T, pair []any) netip.AddrPort {
	t.Helper()
	a, err := netip.ParseAddr(pair[0].(string))
	if err != nil {
		t.Fatal(err)
	}
	return netip.AddrPortFrom(a, uint16(pair[1].(float64)))
}

func testStoredVector(t *testing.T, v vector) {
	var f struct {
		Magic                     string
		QueueID                   int32 `json:"queueId"`
		Flag                      int32
		QueueOffset               int64
		PhysicalOffset            int64
		BornTimestamp             int64
		BornHost, StoreHost       []any
		StoreTimestamp            int64
		ReconsumeTimes            int32
		PreparedTransactionOffset int64
		Body                      string `json:"body_hex"`
		Topic                     string
		Properties                map[string]string
	}
	v.fields(t, &f)
	record := unhex(t, v.Hex)
	m, n, err := ParseStored(append(record[:len(record):len(record)], "next"...))
	if err != nil || n != v.Derived.TotalSize || n != len(record) {
		t.Fatalf("ParseStored = %d, %v; want %d bytes", n, err, v.Derived.TotalSize)
	}
	want := StoredMessage{
		BodyCRC: v.Derived.BodyCRC, QueueID: f.QueueID, Flag: f.Flag, QueueOffset: f.QueueOffset, Position: f.PhysicalOffset,
		SysFlag: v.Derived.SysFlag, BornTimestamp: f.BornTimestamp, BornHost: hostOf(t, f.BornHost), StoreTimestamp: f.StoreTimestamp,
		StoreHost: hostOf(t, f.StoreHost), ReconsumeTimes: f.ReconsumeTimes, PreparedTransactionOffset: f.PreparedTransactionOffset,
		Body: unhex(t, f.Body), Topic: f.Topic, Properties: string(unhex(t, v.Derived.PropertiesHex)),
	}
	requireStored(t, m, want)
	if !m.Intact() {
		t.Error("a correct record is not intact")
	}
	if id := OffsetMessageID(m.StoreHost, m.Position); id != v.Derived.OffsetMsgID {
		t.Errorf("offset id %s, want %s", id, v.Derived.OffsetMsgID)
	}
	for key, value := range f.Properties {
		if got, ok := Property(m.Properties, key); !ok || got != value {
			t.Errorf("property %s = %q, %v; want %q", key, got, ok, value)
		}
	}
	if got := ParseProperties(m.Properties); len(got) != len(f.Properties) {
		t.Errorf("properties %v, want %v", got, f.Properties)
	}
	if f.Magic == "V1" {
		if got := AppendStored(nil, &want); !bytes.Equal(got, record) {
			t.Errorf("AppendStored\n got %x\nwant %x", got, record)
		}
	} else if want.Check() == nil {
		t.Error("a topic that needs V2 passes Check")
	}
}

func requireStored(t *testing.T, got, want StoredMessage) {
	t.Helper()
	if !bytes.Equal(got.Body, want.Body) {
		t.Errorf("body %x, want %x", got.Body, want.Body)
	}
	got.Body, want.Body = nil, nil
	g, w := mustJSON(t, got), mustJSON(t, want)
	if g != w {
		t.Errorf("message\n got %s\nwant %s", g, w)
	}
}

func mustJSON(t *testing.T, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func testBlankVector(t *testing.T, v vector) {
	blank := append(unhex(t, v.Hex), make([]byte, 200)...)
	if _, _, err := ParseStored(blank); err == nil {
		t.Error("the end mark of a log file is read as a message")
	}
}

func testBatchVector(t *testing.T, v vector) {
	var f struct {
		Messages []struct {
			Body       string `json:"body_hex"`
			Flag       int32
			Properties map[string]string
		}
	}
	v.fields(t, &f)
	var want []BatchMessage
	for _, m := range f.Messages {
		want = append(want, BatchMessage{Flag: m.Flag, Body: unhex(t, m.Body), Properties: FormatProperties(m.Properties)})
	}
	got, err := ParseBatch(unhex(t, v.Hex))
	if err != nil || mustJSON(t, got) != mustJSON(t, want) {
		t.Errorf("ParseBatch = %v, %v; want %v", got, err, want)
	}
	b, err := AppendBatch(nil, want)
	if err != nil || hex.EncodeToString(b) != v.Hex {
		t.Errorf("AppendBatch = %x, %v; want %s", b, err, v.Hex)
	}
}

func testMessageIDVector(t *testing.T, v vector) {
	var f struct {
		StoreHost      []any
		PhysicalOffset int64
	}
	v.fields(t, &f)
	host := hostOf(t, f.StoreHost)
	if id := OffsetMessageID(host, f.PhysicalOffset); id != v.Text {
		t.Errorf("id %s, want %s", id, v.Text)
	}
	gotHost, position, err := ParseOffsetMessageID(v.Text)
	if err != nil || gotHost != host || position != f.PhysicalOffset {
		t.Errorf("parsed %v, %d, %v; want %v, %d", gotHost, position, err, host, f.PhysicalOffset)
	}
}

func testUniqueKeyVector(t *testing.T, v vector) {
	var f struct {
		IP         string
		PID        int
		LoaderHash int64
		Millis     uint32 `json:"millisSinceMonthStart"`
		Counter    uint16
	}
	v.fields(t, &f)
	u := NewUniqueKeys(netip.MustParseAddr(f.IP), f.PID)
	var random [4]byte
	big.NewInt(f.LoaderHash).FillBytes(random[:])
	if key := string(appendUniqueKey(nil, u.host, random, f.Millis, f.Counter)); key != v.Text {
		t.Errorf("key %s, want %s", key, v.Text)
	}
}

func testTagHashVector(t *testing.T, v vector) {
	var f struct{ Tag string }
	v.fields(t, &f)
	if h := TagHash(f.Tag); h != v.JavaHash {
		t.Errorf("hash %d, want %d", h, v.JavaHash)
	}
}

func testCRCVector(t *testing.T, v vector) {
	var f struct {
		Data string `json:"data_hex"`
	}
	v.fields(t, &f)
	if crc := CRC31(unhex(t, f.Data)); crc != v.Value {
		t.Errorf("checksum %d, want %d", crc, v.Value)
	}
}

var registerVectorBody = RegisterBrokerBody{TopicConfigTable: TopicConfigTable{
	DataVersion: DataVersion{Counter: 1, Timestamp: 1700000000000},
	Topics: map[string]TopicConfig{
		"TopicTest": {TopicName: "TopicTest", ReadQueueNums: 4, WriteQueueNums: 4, Perm: 6, TopicFilterType: FilterSingleTag},
		"TBW102":    {TopicName: "TBW102", ReadQueueNums: 8, WriteQueueNums: 8, Perm: 7, TopicFilterType: FilterSingleTag},
	},
}}

func testRegisterPlainVector(t *testing.T, v vector) {
	plain := unhex(t, v.Hex)
	got, err := parseRegisterPacked(plain)
	if err != nil || mustJSON(t, got) != mustJSON(t, registerVectorBody) {
		t.Errorf("parsed %+v, %v; want %+v", got, err, registerVectorBody)
	}
	// Topics may come in any order; ours is that of their names.
	packed := registerVectorBody.packed()
	again, err := parseRegisterPacked(packed)
	if err != nil || len(packed) != len(plain) || mustJSON(t, again) != mustJSON(t, got) {
		t.Errorf("packed %x, %v; want the content of %x", packed, err, plain)
	}
}

func testRegisterVector(t *testing.T, v vector) {
	b := unhex(t, v.Hex)
	if crc := CRC31(b); crc != v.BodyCRC32 {
		t.Errorf("checksum %d, want %d", crc, v.BodyCRC32)
	}
	got, err := ParseRegisterBroker(b, true)
	if err != nil || mustJSON(t, got) != mustJSON(t, registerVectorBody) {
		t.Errorf("parsed %+v, %v; want %+v", got, err, registerVectorBody)
	}
	b, err = got.MarshalCompressed()
	if err != nil {
		t.Fatal(err)
	}
	again, err := ParseRegisterBroker(b, true)
	if err != nil || mustJSON(t, again) != mustJSON(t, got) {
		t.Errorf("own form parsed %+v, %v; want %+v", again, err, got)
	}
}
