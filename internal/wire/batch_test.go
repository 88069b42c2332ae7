package wire

import (
	"bytes"
	"errors"
	"maps"
	"net/netip"
	"strings"
	"testing"
	"time"
)

// The broker adds properties of its own to each message of a batch; none may
// merge with, or cut, what the sender set.
func TestBatchKeepsEveryPropertyBesideTheBrokersOwn(t *testing.T) {
	sets := []map[string]string{
		{},
		{"TAGS": "TagA"},
		{"A": "1", "B": "2", "C": "3", "D": "4", "TAGS": "last"},
		{"AAA": "1", "TAGS": "middle", "ZZZ": "5"},
		{"TAGS": "first", "X": "1", "Y": "2", "Z": "3", "ZZ": "4"},
	}
	for _, end := range []string{"", "\x02"} { // without and with a separator at the end
		var messages []BatchMessage
		for i, set := range sets {
			text := FormatProperties(set)
			if text != "" {
				text += end
			}
			messages = append(messages, BatchMessage{Flag: int32(i), Body: bytes.Repeat([]byte{'x'}, i), Properties: text})
		}
		b, err := AppendBatch([]byte("before"), messages)
		if err != nil {
			t.Fatal(err)
		}
		got, err := ParseBatch(b[len("before"):])
		if err != nil || len(got) != len(sets) {
			t.Fatalf("%d messages, %v; want %d", len(got), err, len(sets))
		}
		for i, m := range got {
			stored := string(AppendProperty([]byte(m.Properties), PropCluster, "DefaultCluster"))
			want := maps.Clone(sets[i])
			want[PropCluster] = "DefaultCluster"
			if properties := ParseProperties(stored); !maps.Equal(properties, want) {
				t.Errorf("message %d has %v, want %v", i, properties, want)
			}
			if m.Flag != int32(i) || len(m.Body) != i {
				t.Errorf("message %d has flag %d and %d bytes", i, m.Flag, len(m.Body))
			}
		}
	}
}

func TestBatchMessagesKeepTheirUniqueKeys(t *testing.T) {
	keys := NewUniqueKeys(netip.MustParseAddr("10.0.0.1"), 42)
	var messages []BatchMessage
	for range 10 {
		messages = append(messages, BatchMessage{Properties: FormatProperties(map[string]string{PropUniqueKey: keys.Next(time.Now())})})
	}
	b, err := AppendBatch(nil, messages)
	if err != nil {
		t.Fatal(err)
	}
	got, err := ParseBatch(b)
	if err != nil {
		t.Fatal(err)
	}
	seen := make(map[string]bool)
	for _, m := range got {
		key, _ := Property(m.Properties, PropUniqueKey)
		seen[key] = true
	}
	if len(seen) != 10 {
		t.Errorf("%d different keys, want 10", len(seen))
	}
}

func TestBatchThatCannotTravelIsRefused(t *testing.T) {
	for name, messages := range map[string][]BatchMessage{
		"empty":               nil,
		"properties too long": {{Properties: strings.Repeat("p", MaxPropertiesBytes+1)}},
		"larger than a frame": {{Body: make([]byte, MaxFrameBytes)}},
	} {
		if _, err := AppendBatch(nil, messages); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	longest := []BatchMessage{{Properties: strings.Repeat("p", MaxPropertiesBytes)}, {Body: make([]byte, MaxBodyBytes)}}
	b, err := AppendBatch(nil, longest)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := ParseBatch(b); err != nil || len(got) != 2 || got[0].Properties != longest[0].Properties {
		t.Errorf("a batch at the limits does not come back: %v", err)
	}
}

func TestDamagedBatchesAreRefused(t *testing.T) {
	whole, err := AppendBatch(nil, []BatchMessage{{Body: []byte("one"), Properties: "a\x01b"}})
	if err != nil {
		t.Fatal(err)
	}
	for n := range whole {
		if _, err := ParseBatch(whole[:n]); !errors.Is(err, ErrMalformed) {
			t.Errorf("the first %d bytes of a batch parse: %v", n, err)
		}
	}
	for name, damage := range map[string]func([]byte){
		"size of nothing":     func(b []byte) { b[3] = 0 },
		"negative size":       func(b []byte) { b[0] = 0xff },
		"negative body":       func(b []byte) { b[16] = 0x80 },
		"body over the end":   func(b []byte) { b[18] = 1 },
		"body a byte short":   func(b []byte) { b[19]-- },
		"negative properties": func(b []byte) { b[23] = 0x80 },
		"properties short":    func(b []byte) { b[24]-- },
	} {
		b := bytes.Clone(whole)
		damage(b)
		if _, err := ParseBatch(b); !errors.Is(err, ErrMalformed) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
