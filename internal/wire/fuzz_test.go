package wire

import (
	"bytes"
	"encoding/binary"
	"errors"
	"maps"
	"reflect"
	"testing"
)

// Invariants: no panic; an error wraps ErrMalformed; the size is within the
// input; what is parsed and can be written gives the same bytes again, apart from
// the checksum, which is computed anew, and IPv4 addresses in IPv6 form.
func FuzzParseStored(f *testing.F) {
	f.Add(AppendStored(nil, sampleMessage()))
	f.Add(AppendStored(nil, &StoredMessage{Topic: "T", Body: []byte("x")}))
	f.Fuzz(func(t *testing.T, b []byte) {
		m, n, err := ParseStored(b)
		if err != nil {
			if !errors.Is(err, ErrMalformed) || n != 0 {
				t.Fatalf("%d, %v", n, err)
			}
			return
		}
		if n < storedFixed || n > len(b) || len(m.Body)+len(m.Topic)+len(m.Properties) > n {
			t.Fatalf("%d bytes of %d: %+v", n, len(b), m)
		}
		if m.Check() != nil || binary.BigEndian.Uint32(b[4:]) != magicV1 || m.BornHost.Addr().Is4In6() || m.StoreHost.Addr().Is4In6() {
			return
		}
		want := bytes.Clone(b[:n])
		binary.BigEndian.PutUint32(want[8:], uint32(CRC31(m.Body)))
		if got := AppendStored(nil, &m); !bytes.Equal(got, want) {
			t.Fatalf("written again\n got %x\nwant %x", got, want)
		}
	})
}

// Invariants: no panic; an error wraps ErrMalformed; the parts add up to the
// input; written again and read again it is the same.
func FuzzParseBatch(f *testing.F) {
	seed, err := AppendBatch(nil, []BatchMessage{{Flag: 1, Body: []byte("m1"), Properties: "TAGS\x01A"}, {}})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(seed)
	f.Add(emptyBatch(3))
	f.Fuzz(func(t *testing.T, b []byte) {
		messages, err := ParseBatch(b)
		if err != nil {
			if !errors.Is(err, ErrMalformed) || messages != nil {
				t.Fatalf("%v, %v", messages, err)
			}
			return
		}
		size := 0
		for _, m := range messages {
			size += batchFixed + len(m.Body) + len(m.Properties)
		}
		if size != len(b) {
			t.Fatalf("%d messages take %d bytes of %d", len(messages), size, len(b))
		}
		again, err := AppendBatch(nil, messages)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := ParseBatch(again); err != nil || !reflect.DeepEqual(got, messages) {
			t.Fatalf("%v, %v; want %v", got, err, messages)
		}
	})
}

// Invariants: no panic; Property agrees with ParseProperties on every key;
// removing removes and keeps the others; the text of the map is the map.
func FuzzProperties(f *testing.F) {
	f.Add("a\x01b\x02c\x01d\x02", "a")
	f.Add("\x02\x01\x02a\x01\x01b", "a")
	f.Fuzz(func(t *testing.T, text, key string) {
		all := ParseProperties(text)
		for k, v := range all {
			if got, ok := Property(text, k); !ok || got != v {
				t.Fatalf("Property(%q) = %q, %v; want %q", k, got, ok, v)
			}
		}
		if CheckProperty(key, "v") != nil {
			return
		}
		got, ok := Property(text, key)
		if want, wantOK := all[key]; got != want || ok != wantOK {
			t.Fatalf("Property(%q) = %q, %v; want %q, %v", key, got, ok, want, wantOK)
		}
		if again := ParseProperties(FormatProperties(all)); !maps.Equal(again, all) {
			t.Fatalf("formatted %v, want %v", again, all)
		}
		set := ParseProperties(SetProperty(text, key, "v"))
		all[key] = "v"
		if !maps.Equal(set, all) {
			t.Fatalf("set gives %v, want %v", set, all)
		}
		delete(all, key)
		if removed := ParseProperties(RemoveProperty(text, key)); !maps.Equal(removed, all) {
			t.Fatalf("removed gives %v, want %v", removed, all)
		}
	})
}

// Invariants, for every body: no panic; an error wraps ErrMalformed; what is
// read and written is read again, and written the same.
func FuzzBodies(f *testing.F) {
	cases := bodyCases()
	for _, c := range cases {
		f.Add([]byte(c.text))
	}
	f.Add([]byte(`{a:'x',"b":[null,{}],{"c":1}:2}`))
	f.Add([]byte(`{"offsetTable":[[{"topic":"T"},1]]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, c := range cases {
			v, err := c.parse(b)
			if err != nil {
				if !errors.Is(err, ErrMalformed) {
					t.Fatalf("%s: %v", c.name, err)
				}
				continue
			}
			text := c.marshal(v)
			again, err := c.parse(text)
			if err != nil {
				t.Fatalf("%s: %s: %v", c.name, text, err)
			}
			if second := c.marshal(again); !bytes.Equal(second, text) {
				t.Fatalf("%s\nfirst  %s\nsecond %s", c.name, text, second)
			}
		}
	})
}

// Invariants: no panic; an error wraps ErrMalformed or ErrTooLarge; what is read
// is packed and read again the same.
func FuzzRegistration(f *testing.F) {
	f.Add(registerVectorBody.packed(), false)
	f.Add(registerVectorBody.Marshal(), false)
	f.Add([]byte{0x78, 0x9c}, true)
	f.Fuzz(func(t *testing.T, b []byte, compressed bool) {
		if _, err := ParseRegisterBroker(b, compressed); err != nil && !errors.Is(err, ErrMalformed) && !errors.Is(err, ErrTooLarge) {
			t.Fatal(err)
		}
		r, err := parseRegisterPacked(b)
		if err != nil {
			if !errors.Is(err, ErrMalformed) {
				t.Fatal(err)
			}
			return
		}
		packed := r.packed()
		again, err := parseRegisterPacked(packed)
		if err != nil || !bytes.Equal(again.packed(), packed) {
			t.Fatalf("%+v, %v; want %+v", again, err, r)
		}
	})
}

// Invariants: no panic; never more than the limit; an error wraps ErrMalformed
// or ErrTooLarge.
func FuzzDecompress(f *testing.F) {
	for _, kind := range compressionKinds {
		packed, flags, err := Compress(bytes.Repeat([]byte("text"), 500), kind)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(packed, flags)
	}
	f.Fuzz(func(t *testing.T, b []byte, sysFlag int32) {
		const limit = 4096
		plain, err := Decompress(b, sysFlag|SysCompressed, limit)
		if err != nil && !errors.Is(err, ErrMalformed) && !errors.Is(err, ErrTooLarge) {
			t.Fatal(err)
		}
		if len(plain) > limit {
			t.Fatalf("%d bytes, the limit is %d", len(plain), limit)
		}
	})
}

// Invariants, for every header: no panic; what is read and written is read again
// the same.
func FuzzHeaders(f *testing.F) {
	cases := headerCases()
	for _, c := range cases {
		f.Add(joinFields(c.header.AppendFields(nil)))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		var fields []string
		for part := range bytes.SplitSeq(text, []byte{0}) {
			fields = append(fields, string(part))
		}
		for _, c := range cases {
			h := blankOf(c.header)
			if h.ParseFields(fields) != nil {
				continue
			}
			again := blankOf(c.header)
			if err := again.ParseFields(h.AppendFields(nil)); err != nil || !reflect.DeepEqual(again, h) {
				t.Fatalf("%T: %+v, %v; want %+v", h, again, err, h)
			}
		}
	})
}

func joinFields(fields []string) []byte {
	var b []byte
	for _, field := range fields {
		b = append(append(b, field...), 0)
	}
	return b
}

// Invariants: no panic; an id that is read is written the same, in upper case.
func FuzzOffsetMessageID(f *testing.F) {
	f.Add("7F00000100002A9F0000000000000400")
	f.Add("0000000000000000000000000000000100002A9F0000000000000400")
	f.Fuzz(func(t *testing.T, id string) {
		host, position, err := ParseOffsetMessageID(id)
		if err != nil || host.Addr().Is4In6() {
			return
		}
		if got := OffsetMessageID(host, position); got != string(bytes.ToUpper([]byte(id))) {
			t.Fatalf("%s, want %s", got, id)
		}
	})
}

// Invariants: no panic; what is read and written is read again the same.
func FuzzConfig(f *testing.F) {
	f.Add([]byte("a=b\n# c\nd=e=f\r\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		config, err := ParseConfig(b)
		if err != nil {
			return
		}
		if again, err := ParseConfig(FormatConfig(config)); err != nil || !maps.Equal(again, config) {
			t.Fatalf("%v, %v; want %v", again, err, config)
		}
	})
}
