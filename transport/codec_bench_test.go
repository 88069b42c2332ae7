package transport

import "testing"

// BenchmarkCodec is the cost of writing and reading the header of a send.
func BenchmarkCodec(b *testing.B) {
	f := &Frame{Code: 310, Language: Go, Version: 409, Opaque: 12345, Fields: []string{"a", "producers", "b", "orders", "c", "TBW102",
		"d", "4", "e", "3", "f", "0", "g", "1700000000000", "h", "0",
		"i", "UNIQ_KEY\x017F0000010000002A9F000000000000\x02WAIT\x01true\x02TAGS\x01paid\x02", "j", "0", "k", "false", "m", "false"}}
	for _, codec := range []Codec{JSON, RocketMQ, MsgPack} {
		s := stampOf(f)
		s.codec = codec
		var wire []byte
		b.Run(codec.String()+"/write", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				var err error
				if wire, err = appendHead(wire[:0], f, s, defaultMaxFrame); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(len(wire)), "bytes")
		})
		b.Run(codec.String()+"/read", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				var g Frame
				if err := parseHeader(&g, codec, wire[prefixSize:]); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
