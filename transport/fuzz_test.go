package transport

import (
	"bytes"
	"encoding/hex"
	"errors"
	"io"
	"testing"
	"testing/iotest"
	"unicode/utf8"
)

// seeds are whole frames in all codecs.
func seeds(f *testing.F) {
	for _, v := range frameVectors(f) {
		wire, err := hex.DecodeString(v.Hex)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(wire)
		var fr Frame
		if err := parseFrame(&fr, wire, defaultMaxFrame, true); err != nil {
			f.Fatal(err)
		}
		s := stampOf(&fr)
		s.codec = MsgPack
		packed, err := appendFrame(nil, &fr, s, defaultMaxFrame)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(packed)
	}
	f.Add(wireFrame(0, `{"extFields":{"a":1,"b":null,"c":{"d":[]}},"remark":"\ud83d\ude00"}`, "x"))
}

// FuzzFrame: whatever the bytes are, parsing gives errMalformed or a frame, and
// a frame that was read can be written and read again to the same frame (but for
// a version or key that no codec can write, and text that is not UTF-8).
func FuzzFrame(f *testing.F) {
	seeds(f)
	f.Fuzz(func(t *testing.T, wire []byte) {
		var a Frame
		err := parseFrame(&a, wire, defaultMaxFrame, true)
		if err != nil {
			if !errors.Is(err, errMalformed) {
				t.Fatalf("unclassified error: %v", err)
			}
			return
		}
		checkRead(t, &a)
	})
}

// checkRead checks what holds for every frame that was read.
func checkRead(t *testing.T, a *Frame) {
	if len(a.Fields)%2 != 0 {
		t.Fatalf("odd fields: %q", a.Fields)
	}
	if a.Version != int32(int16(a.Version)) {
		return
	}
	for _, codec := range []Codec{JSON, RocketMQ, MsgPack} {
		checkRoundTrip(t, a, codec)
	}
}

// fuzzHeader is FuzzFrame for the headers of one codec.
func fuzzHeader(f *testing.F, codec Codec) {
	for _, v := range frameVectors(f) {
		wire, err := hex.DecodeString(v.Hex)
		if err != nil {
			f.Fatal(err)
		}
		var fr Frame
		if err := parseFrame(&fr, wire, defaultMaxFrame, true); err != nil {
			f.Fatal(err)
		}
		fr.Body = nil
		s := stampOf(&fr)
		s.codec = codec
		own, err := appendFrame(nil, &fr, s, defaultMaxFrame)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(own[prefixSize:])
	}
	f.Fuzz(func(t *testing.T, header []byte) {
		var a Frame
		if err := parseHeader(&a, codec, header); err != nil {
			if !errors.Is(err, errMalformed) {
				t.Fatalf("unclassified error: %v", err)
			}
			return
		}
		checkRead(t, &a)
	})
}

// The invariants of FuzzFrame, for headers alone.

func FuzzJSONHeader(f *testing.F)     { fuzzHeader(f, JSON) }
func FuzzRocketMQHeader(f *testing.F) { fuzzHeader(f, RocketMQ) }
func FuzzMsgPackHeader(f *testing.F)  { fuzzHeader(f, MsgPack) }

func checkRoundTrip(t *testing.T, a *Frame, codec Codec) {
	s := stampOf(a)
	s.codec = codec
	again, err := appendFrame(nil, a, s, 2*defaultMaxFrame)
	if err != nil {
		return // too long a key or header for this codec; the input is far smaller than the limit otherwise
	}
	var b Frame
	if err := parseFrame(&b, again, 2*defaultMaxFrame, true); err != nil {
		t.Fatalf("%v: own bytes %q: %v", codec, again, err)
	}
	want := *a
	if b.Codec == JSON {
		want.Language = ParseLanguage(a.Language.String())
		valid := utf8.ValidString(a.Remark)
		for _, s := range a.Fields {
			valid = valid && utf8.ValidString(s)
		}
		if !valid {
			return
		}
	}
	if !sameFrame(&want, &b) {
		t.Fatalf("%v: %+v came back as %+v", codec, want, b)
	}
}

// FuzzFrameReader: a stream gives the same frames however it is cut into reads,
// ends with io.EOF only between frames, and no frame aliases another's memory.
func FuzzFrameReader(f *testing.F) {
	seeds(f)
	f.Add(append(wireFrame(0, "{}", "one"), wireFrame(0, `{"code":2}`, "two")...))
	f.Fuzz(func(t *testing.T, stream []byte) {
		whole, end := readAll(bytes.NewReader(stream))
		bytewise, end2 := readAll(iotest.OneByteReader(bytes.NewReader(stream)))
		if len(whole) != len(bytewise) || errors.Is(end, errMalformed) != errors.Is(end2, errMalformed) {
			t.Fatalf("%d frames and %v, or %d frames and %v", len(whole), end, len(bytewise), end2)
		}
		if !errors.Is(end, errMalformed) && end != io.EOF && end != io.ErrUnexpectedEOF {
			t.Fatalf("unclassified end: %v", end)
		}
		for i := range whole {
			if !sameFrame(&whole[i].Frame, &bytewise[i].Frame) {
				t.Fatalf("frame %d differs", i)
			}
			clear(whole[i].Body)
			if i > 0 && !bytes.Equal(whole[i-1].Body, make([]byte, len(whole[i-1].Body))) {
				t.Fatal("bodies share memory")
			}
		}
	})
}

func readAll(src io.Reader) ([]*envelope, error) {
	var a accord
	a.mayRead.Store(true)
	r := &frameReader{src: src, maxFrame: defaultMaxFrame}
	var all []*envelope
	for {
		e := new(envelope)
		if err := r.next(e, &a); err != nil {
			return all, err
		}
		all = append(all, e)
	}
}
