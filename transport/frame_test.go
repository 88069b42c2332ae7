package transport

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
)

// vector is one entry of testdata/protocol.json: frames of official peers.
type vector struct {
	Name, Kind, Hex string
	Fields          struct {
		SerializeType Codec
		BodyHex       string `json:"body_hex"`
		Header        struct {
			Code, Version, Opaque, Flag int32
			Language                    string
			Remark                      *string
			ExtFields                   map[string]string
		}
	}
}

func frameVectors(t testing.TB) []vector {
	t.Helper()
	text, err := os.ReadFile("testdata/protocol.json")
	if err != nil {
		t.Fatal(err)
	}
	var all struct{ Vectors []json.RawMessage }
	if err := json.Unmarshal(text, &all); err != nil {
		t.Fatal(err)
	}
	var frames []vector
	for _, raw := range all.Vectors {
		var kind struct{ Kind string }
		if err := json.Unmarshal(raw, &kind); err != nil {
			t.Fatal(err)
		}
		if kind.Kind != "frame" {
			continue
		}
		var v vector
		if err := json.Unmarshal(raw, &v); err != nil {
			t.Fatal(err)
		}
		frames = append(frames, v)
	}
	if len(frames) < 7 {
		t.Fatalf("only %d frame vectors", len(frames))
	}
	return frames
}

func stampOf(f *Frame) stamp {
	return stamp{opaque: f.Opaque, flag: f.Flag, version: f.Version, language: f.Language, codec: f.Codec}
}

func fieldMap(f *Frame) map[string]string {
	m := make(map[string]string)
	for i := 0; i+1 < len(f.Fields); i += 2 {
		m[f.Fields[i]] = f.Fields[i+1]
	}
	return m
}

func TestFramesOfOfficialPeers(t *testing.T) {
	for _, v := range frameVectors(t) {
		wire, err := hex.DecodeString(v.Hex)
		if err != nil {
			t.Fatal(err)
		}
		var f Frame
		if err := parseFrame(&f, wire, defaultMaxFrame, false); err != nil {
			t.Errorf("%s: %v", v.Name, err)
			continue
		}
		h := v.Fields.Header
		remark := ""
		if h.Remark != nil {
			remark = *h.Remark
		}
		if f.Code != h.Code || f.Version != h.Version || f.Opaque != h.Opaque || f.Flag != h.Flag ||
			f.Language.String() != h.Language || f.Remark != remark || f.Codec != v.Fields.SerializeType ||
			hex.EncodeToString(f.Body) != v.Fields.BodyHex || !maps.Equal(fieldMap(&f), h.ExtFields) && len(h.ExtFields)+len(f.Fields) > 0 {
			t.Errorf("%s: read as %+v", v.Name, f)
		}
		again, err := appendFrame(nil, &f, stampOf(&f), defaultMaxFrame)
		if err != nil {
			t.Errorf("%s: %v", v.Name, err)
			continue
		}
		// Java's bytes are written again exactly; Go's JSON has another order.
		if exact := h.Language == "JAVA" || f.Codec == RocketMQ; exact && !bytes.Equal(again, wire) {
			t.Errorf("%s: written as\n%q, want\n%q", v.Name, again, wire)
		}
		var g Frame
		if err := parseFrame(&g, again, defaultMaxFrame, false); err != nil || !sameFrame(&f, &g) {
			t.Errorf("%s: read again as %+v, %v", v.Name, g, err)
		}
	}
}

func sameFrame(a, b *Frame) bool {
	return a.Code == b.Code && a.Language == b.Language && a.Version == b.Version && a.Opaque == b.Opaque &&
		a.Flag == b.Flag && a.Remark == b.Remark && slices.Equal(a.Fields, b.Fields) && bytes.Equal(a.Body, b.Body)
}

// wireFrame builds a frame by hand, with lengths that may lie.
func wireFrame(codec byte, header, body string) []byte {
	b := binary.BigEndian.AppendUint32(nil, uint32(4+len(header)+len(body)))
	b = binary.BigEndian.AppendUint32(b, uint32(codec)<<24|uint32(len(header)))
	return append(append(b, header...), body...)
}

func TestMalformedFramesAreRefused(t *testing.T) {
	long := strings.Repeat("[", 40) + strings.Repeat("]", 40)
	fixed := "\x00\x0f\x09\x01\x3d\x00\x00\x00\x09\x00\x00\x00\x02"
	for name, wire := range map[string][]byte{
		"no bytes":                {},
		"half a prefix":           {0, 0, 0, 9},
		"negative length":         {0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0},
		"2 GiB":                   {0x7f, 0xff, 0xff, 0xff, 0, 0, 0, 0},
		"length 0":                {0, 0, 0, 0, 0, 0, 0, 0},
		"length 3":                {0, 0, 0, 3, 0, 0, 0, 0},
		"limit and one":           {0x00, 0xff, 0xff, 0xfd, 0, 0, 0, 0},
		"header beyond the frame": {0, 0, 0, 4, 0, 0, 0, 1},
		"header over 1 MiB":       {0, 0x20, 0, 4, 0, 0x20, 0, 0},
		"serialize type 3":        wireFrame(3, "{}", ""),
		"serialize type 255":      wireFrame(255, "{}", ""),
		"msgpack not agreed on":   wireFrame(2, "\x97\x01\x02\x03\x04\x05\xa0\xa0", ""),
		"empty JSON":              wireFrame(0, "", ""),
		"JSON array":              wireFrame(0, "[]", ""),
		"JSON cut":                wireFrame(0, `{"code":1`, ""),
		"JSON text behind":        wireFrame(0, `{"code":1}x`, ""),
		"JSON zero byte behind":   wireFrame(0, "{\"code\":1}\x00", ""),
		"JSON no colon":           wireFrame(0, `{"code" 1}`, ""),
		"JSON no comma":           wireFrame(0, `{"code":1 "flag":1}`, ""),
		"JSON trailing comma":     wireFrame(0, `{"code":1,}`, ""),
		"JSON code too large":     wireFrame(0, `{"code":2147483648}`, ""),
		"JSON code no number":     wireFrame(0, `{"code":"x"}`, ""),
		"JSON code an object":     wireFrame(0, `{"code":{}}`, ""),
		"JSON bad escape":         wireFrame(0, `{"remark":"\x"}`, ""),
		"JSON short escape":       wireFrame(0, `{"remark":"\u00"}`, ""),
		"JSON escape at the end":  wireFrame(0, `{"remark":"\`, ""),
		"JSON string without end": wireFrame(0, `{"remark":"a`, ""),
		"JSON half a literal":     wireFrame(0, `{"remark":nul}`, ""),
		"JSON ext an array":       wireFrame(0, `{"extFields":[]}`, ""),
		"JSON too deep":           wireFrame(0, `{"x":`+long+`}`, ""),
		"JSON too deep in ext":    wireFrame(0, `{"extFields":{"x":`+long+`}}`, ""),
		"JSON bare":               wireFrame(0, `x`, ""),
		"binary short":            wireFrame(1, fixed[:12], ""),
		"binary remark beyond":    wireFrame(1, fixed+"\x00\x00\x00\x05\x00\x00\x00\x00", ""),
		"binary remark negative":  wireFrame(1, fixed+"\xff\xff\xff\xff\x00\x00\x00\x00", ""),
		"binary ext beyond":       wireFrame(1, fixed+"\x00\x00\x00\x00\x00\x00\x00\x01", ""),
		"binary ext negative":     wireFrame(1, fixed+"\x00\x00\x00\x00\x80\x00\x00\x00", ""),
		"binary key beyond":       wireFrame(1, fixed+"\x00\x00\x00\x00\x00\x00\x00\x03\x00\x05a", ""),
		"binary key negative":     wireFrame(1, fixed+"\x00\x00\x00\x00\x00\x00\x00\x03\xff\xffa", ""),
		"binary value missing":    wireFrame(1, fixed+"\x00\x00\x00\x00\x00\x00\x00\x03\x00\x01a", ""),
		"binary value beyond":     wireFrame(1, fixed+"\x00\x00\x00\x00\x00\x00\x00\x08\x00\x01a\x00\x00\x00\x02b", ""),
		"binary value negative":   wireFrame(1, fixed+"\x00\x00\x00\x00\x00\x00\x00\x08\x00\x01a\xff\xff\xff\xffb", ""),
	} {
		var f Frame
		if err := parseFrame(&f, wire, defaultMaxFrame, false); !errors.Is(err, errMalformed) {
			t.Errorf("%s: %v, read %+v", name, err, f)
		}
	}
	for name, header := range map[string]string{
		"empty": "", "a map": "\x80", "short": "\x93\x01\x02\x03", "odd fields": "\x97\x01\x02\x03\x04\x05\xa0\xa2\x01a",
		"field beyond": "\x97\x01\x02\x03\x04\x05\xa0\xa4\x01a\x02b", "endless length": "\x97\x01\x02\x03\x04\x05\xa0\xa6\xff\xff\xff\xff\xff\xff",
		"text behind": "\x97\x01\x02\x03\x04\x05\xa0\xa0x", "huge array": "\x97\x01\x02\x03\x04\x05\xa0\xdd\xff\xff\xff\xff",
		"huge text": "\x97\x01\x02\x03\x04\x05\xdb\xff\xff\xff\xff", "code is text": "\x97\xa1x\x02\x03\x04\x05\xa0\xa0",
	} {
		var f Frame
		if err := parseFrame(&f, wireFrame(2, header, ""), defaultMaxFrame, true); !errors.Is(err, errMalformed) {
			t.Errorf("msgpack, %s: %v, read %+v", name, err, f)
		}
	}
}

func TestLenientJSON(t *testing.T) {
	for text, want := range map[string]Frame{
		`{}`: {},
		` { "opaque" : 7 , "unknown":{"a":[1,2.5e3,{"b":null}],"c":"\""}, "code":"105","extFields":null,"remark":null }`: {Code: 105, Opaque: 7},
		`{"extFields":{"n":5,"b":true,"f":-1.5,"z":null,"s":"x","o":{"k":[1]}},"language":"GO","version":317}`: {Language: Go, Version: 317,
			Fields: []string{"n", "5", "b", "true", "f", "-1.5", "s", "x", "o", `{"k":[1]}`}},
		`{"language":12,"remark":"\u00fc\ud83d\ude00\ud83dx\/\b\f\n\r\t\\\""}`: {Language: Rust, Remark: "ü😀\uFFFDx/\b\f\n\r\t\\\""},
		`{"language":"KLINGON","flag":3}`:                                      {Language: Other, Flag: 3},
		"{\"remark\":\"raw\x01control\"}":                                      {Remark: "raw\x01control"},
		`{"code":null,"version":-1}`:                                           {Version: -1},
	} {
		var f Frame
		if err := parseFrame(&f, wireFrame(0, text, "b"), defaultMaxFrame, false); err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		want.Body = []byte("b")
		if !sameFrame(&f, &want) {
			t.Errorf("%s: read as %+v", text, f)
		}
	}
}

func TestEncodingBounds(t *testing.T) {
	s := stamp{codec: RocketMQ, version: 409}
	wire, err := appendFrame(nil, &Frame{Code: 200050}, s, defaultMaxFrame)
	if err != nil || wire[4] != byte(JSON) {
		t.Errorf("a code beyond 16 bits: %q, %v", wire, err)
	}
	if _, err := appendFrame(nil, &Frame{}, stamp{version: 40000}, defaultMaxFrame); err == nil {
		t.Error("a version beyond 16 bits was written")
	}
	if _, err := appendFrame(nil, &Frame{Fields: []string{"a"}}, s, defaultMaxFrame); err == nil {
		t.Error("a field without a value was written")
	}
	if _, err := appendFrame(nil, &Frame{Fields: []string{strings.Repeat("k", 40000), ""}}, s, defaultMaxFrame); err == nil {
		t.Error("a key beyond 16 bits was written")
	}
	// The limit counts all bytes of the frame, as Java's does.
	for _, codec := range []Codec{JSON, RocketMQ, MsgPack} {
		s.codec = codec
		probe, err := appendFrame(nil, &Frame{}, s, defaultMaxFrame)
		if err != nil {
			t.Fatal(err)
		}
		fits := Frame{Body: make([]byte, 100000-len(probe))}
		wire, err := appendFrame(nil, &fits, s, 100000)
		if err != nil || len(wire) != 100000 {
			t.Errorf("%v: the largest frame: %d bytes, %v", codec, len(wire), err)
		}
		var f Frame
		if err := parseFrame(&f, wire, 100000, true); err != nil {
			t.Errorf("%v: the largest frame: %v", codec, err)
		}
		if err := parseFrame(&f, wire, 99999, true); !errors.Is(err, errMalformed) {
			t.Errorf("%v: one more than the limit was read: %v", codec, err)
		}
		kept := []byte("kept")
		fits.Body = append(fits.Body, 0)
		if out, err := appendFrame(kept, &fits, s, 100000); !errors.Is(err, ErrFrameTooLarge) || string(out) != "kept" {
			t.Errorf("%v: one more than the limit was written: %v", codec, err)
		}
	}
}
