package wire

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net/netip"
	"strings"
	"testing"
)

func sampleMessage() *StoredMessage {
	return &StoredMessage{
		QueueID: 3, Flag: 7, QueueOffset: 42, Position: 4096, SysFlag: SysTransactionCommit,
		BornTimestamp: 1700000000000, BornHost: netip.MustParseAddrPort("10.0.0.1:50000"),
		StoreTimestamp: 1700000000123, StoreHost: netip.MustParseAddrPort("127.0.0.1:10911"),
		ReconsumeTimes: 2, PreparedTransactionOffset: 99, Body: bytes.Repeat([]byte("b"), 1024), Topic: "TopicTest",
		Properties: "KEYS\x01k1 k2\x02UNIQ_KEY\x010A000001002A14DAD5DC075BCD150001\x02TAGS\x01TagA\x02CLUSTER\x01DefaultCluster",
	}
}

func TestStoredMessageRoundTripsAtItsLimits(t *testing.T) {
	for name, change := range map[string]func(*StoredMessage){
		"longest topic":      func(m *StoredMessage) { m.Topic = strings.Repeat("t", MaxTopicBytes) },
		"longest properties": func(m *StoredMessage) { m.Properties = "k\x01" + strings.Repeat("v", MaxPropertiesBytes-2) },
		"largest body":       func(m *StoredMessage) { m.Body = make([]byte, MaxBodyBytes) },
		"nothing variable":   func(m *StoredMessage) { m.Body, m.Properties = nil, "" },
		"negative numbers":   func(m *StoredMessage) { m.Flag, m.QueueID, m.ReconsumeTimes, m.Position = -1, -2, -3, -4 },
		"IPv6 born host":     func(m *StoredMessage) { m.BornHost = netip.MustParseAddrPort("[2001:db8::1]:65535") },
		"IPv6 store host":    func(m *StoredMessage) { m.StoreHost = netip.MustParseAddrPort("[::1]:1") },
	} {
		t.Run(name, func(t *testing.T) {
			m := sampleMessage()
			change(m)
			b := AppendStored([]byte("before"), m)[len("before"):]
			if len(b) != m.Size() {
				t.Errorf("record of %d bytes, Size says %d", len(b), m.Size())
			}
			got, n, err := ParseStored(b)
			if err != nil || n != len(b) {
				t.Fatalf("ParseStored = %d, %v", n, err)
			}
			want := *m
			want.BodyCRC = CRC31(m.Body)
			want.SysFlag = got.SysFlag&(SysBornHostV6|SysStoreHostV6) | m.SysFlag
			requireStored(t, got, want)
		})
	}
}

func TestFieldsOfTheStoreAreWhereTheConstantsSay(t *testing.T) {
	for _, born := range []string{"10.0.0.1:1", "[2001:db8::1]:1"} {
		m := sampleMessage()
		m.BornHost = netip.MustParseAddrPort(born)
		b := AppendStored(nil, m)
		binary.BigEndian.PutUint64(b[QueueOffsetAt:], 1001)
		binary.BigEndian.PutUint64(b[PositionAt:], 1002)
		binary.BigEndian.PutUint64(b[m.StoreTimePlace():], 1003)
		got, _, err := ParseStored(b)
		if err != nil || got.QueueOffset != 1001 || got.Position != 1002 || got.StoreTimestamp != 1003 {
			t.Errorf("born at %s: %d, %d, %d, %v; want 1001, 1002, 1003", born, got.QueueOffset, got.Position, got.StoreTimestamp, err)
		}
		if flags := int32(binary.BigEndian.Uint32(b[SysFlagAt:])); flags != got.SysFlag {
			t.Errorf("born at %s: system flag %#x at its place, parsed %#x", born, flags, got.SysFlag)
		}
	}
}

func TestStoredMessageBeyondTheLayoutIsRefused(t *testing.T) {
	for name, change := range map[string]func(*StoredMessage){
		"no topic":             func(m *StoredMessage) { m.Topic = "" },
		"topic of 128 bytes":   func(m *StoredMessage) { m.Topic = strings.Repeat("t", MaxTopicBytes+1) },
		"properties too long":  func(m *StoredMessage) { m.Properties = strings.Repeat("p", MaxPropertiesBytes+1) },
		"body beyond a frame":  func(m *StoredMessage) { m.Body = make([]byte, MaxFrameBytes+1) },
		"everything too large": func(m *StoredMessage) { m.Topic, m.Properties = strings.Repeat("t", 300), strings.Repeat("p", 70000) },
	} {
		m := sampleMessage()
		change(m)
		if m.Check() == nil {
			t.Errorf("%s passes Check", name)
		}
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: AppendStored wrote a record that cannot be read", name)
				}
			}()
			AppendStored(nil, m)
		}()
	}
}

func TestDamagedRecordsAreRefused(t *testing.T) {
	whole := AppendStored(nil, sampleMessage())
	for n := range whole {
		if _, _, err := ParseStored(whole[:n]); !errors.Is(err, ErrMalformed) {
			t.Fatalf("the first %d bytes of a record parse: %v", n, err)
		}
	}
	const bodyLength = 84
	for name, damage := range map[string]func([]byte){
		"unknown magic":          func(b []byte) { b[4] = 0 },
		"negative size":          func(b []byte) { b[0] = 0x80 },
		"size of nothing":        func(b []byte) { copy(b, []byte{0, 0, 0, 0}) },
		"one byte less":          func(b []byte) { b[3]-- },
		"negative body length":   func(b []byte) { b[bodyLength] = 0xff },
		"body over the end":      func(b []byte) { b[bodyLength+1] = 0x7f },
		"body a byte short":      func(b []byte) { b[bodyLength+3]-- },
		"negative topic length":  func(b []byte) { b[bodyLength+4+1024] = 0x80 },
		"topic over the end":     func(b []byte) { b[bodyLength+4+1024] = 0x7f; b[3] -= 100 },
		"negative properties":    func(b []byte) { b[bodyLength+4+1024+1+9] = 0x80 },
		"port beyond 16 bits":    func(b []byte) { b[52] = 1 },
		"IPv6 bits without room": func(b []byte) { b[SysFlagAt+3] |= byte(SysBornHostV6 | SysStoreHostV6) },
	} {
		b := bytes.Clone(whole)
		damage(b)
		if m, _, err := ParseStored(b); !errors.Is(err, ErrMalformed) {
			t.Errorf("%s: parsed %+v, %v", name, m.Topic, err)
		}
	}
	changed := bytes.Clone(whole)
	changed[bodyLength+4]++
	if m, _, err := ParseStored(changed); err != nil || m.Intact() {
		t.Errorf("a changed body is intact, %v", err)
	}
}

func TestRecordsAreCutOneByOne(t *testing.T) {
	first := AppendStored(nil, sampleMessage())
	second := AppendStored(nil, &StoredMessage{Topic: "T"})
	rest := append(bytes.Clone(first), second...)
	for i, want := range [][]byte{first, second} {
		var record []byte
		var err error
		if record, rest, err = NextStored(rest); err != nil || !bytes.Equal(record, want) {
			t.Fatalf("record %d is %x, %v; want %x", i, record, err, want)
		}
	}
	if len(rest) != 0 {
		t.Errorf("%d bytes left", len(rest))
	}
}

func BenchmarkAppendStored(b *testing.B) {
	m := sampleMessage()
	dst := make([]byte, 0, m.Size())
	b.SetBytes(int64(m.Size()))
	b.ReportAllocs()
	for b.Loop() {
		dst = AppendStored(dst[:0], m)
	}
}

func BenchmarkParseStored(b *testing.B) {
	record := AppendStored(nil, sampleMessage())
	b.SetBytes(int64(len(record)))
	b.ReportAllocs()
	for b.Loop() {
		if _, _, err := ParseStored(record); err != nil {
			b.Fatal(err)
		}
	}
}
