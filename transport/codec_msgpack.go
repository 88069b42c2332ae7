package transport

import (
	"encoding/binary"
	"sync"

	"github.com/hashicorp/go-msgpack/v2/codec"
)

// packedHeader is the MSGPACK header: an array, so that no names travel. The ext
// fields are one text, each key and value behind its length as a uvarint: an
// array of texts takes twice the time to read, since each becomes an allocation.
//
// They are written from bytes and read into a string, which MSGPACK's old texts
// do not tell apart; so neither direction copies them twice.
type packedHeader[text []byte | string] struct {
	Code     int32
	Language int8
	Version  int32
	Opaque   int32
	Flag     int32
	Remark   string
	Fields   text
}

var msgpackHandle = func() *codec.MsgpackHandle {
	h := new(codec.MsgpackHandle)
	h.StructToArray = true
	return h
}()

// A packer is an encoder with the space it writes to.
type packer struct {
	header packedHeader[[]byte]
	fields []byte
	out    []byte
	enc    *codec.Encoder
}

var packers = sync.Pool{New: func() any {
	p := new(packer)
	p.enc = codec.NewEncoderBytes(&p.out, msgpackHandle)
	return p
}}

// maxPacked is the largest buffer that stays in the pool.
const maxPacked = 64 << 10

func appendMsgPack(dst []byte, f *Frame, s stamp, fields []string) ([]byte, error) {
	p := packers.Get().(*packer)
	p.header = packedHeader[[]byte]{Code: f.Code, Language: int8(s.language), Version: s.version, Opaque: s.opaque,
		Flag: s.flag, Remark: f.Remark}
	p.fields = p.fields[:0]
	for _, text := range fields {
		p.fields = binary.AppendUvarint(p.fields, uint64(len(text)))
		p.fields = append(p.fields, text...)
	}
	p.header.Fields = p.fields
	p.out = p.out[:0]
	p.enc.ResetBytes(&p.out)
	err := p.enc.Encode(&p.header)
	dst = append(dst, p.out...)
	p.header = packedHeader[[]byte]{}
	if cap(p.out)+cap(p.fields) <= maxPacked {
		packers.Put(p)
	}
	return dst, err
}

// An unpacker is a decoder with the header it reads into.
type unpacker struct {
	header packedHeader[string]
	dec    *codec.Decoder
}

var unpackers = sync.Pool{New: func() any {
	return &unpacker{dec: codec.NewDecoderBytes(nil, msgpackHandle)}
}}

// The first byte of an array of as many elements as packedHeader has, and of
// the longest one that a later version may send.
const (
	packedLow  = 0x97
	packedHigh = 0x9f
)

func parseMsgPack(f *Frame, b []byte) error {
	if len(b) == 0 || b[0] < packedLow || b[0] > packedHigh {
		return malformed("MSGPACK header: want an array of at least 7")
	}
	u := unpackers.Get().(*unpacker)
	u.header = packedHeader[string]{}
	u.dec.ResetBytes(b)
	if err := u.dec.Decode(&u.header); err != nil {
		return malformed("MSGPACK header: %v", err) // the decoder's state is not reused
	}
	read := u.dec.NumBytesRead()
	h := &u.header
	if read != len(b) {
		return malformed("MSGPACK header: %d bytes behind its end", len(b)-read)
	}
	f.Code, f.Language, f.Version = h.Code, Language(h.Language), h.Version
	f.Opaque, f.Flag, f.Remark = h.Opaque, h.Flag, h.Remark
	if err := unpackFields(f, h.Fields); err != nil {
		return err
	}
	u.header = packedHeader[string]{}
	u.dec.ResetBytes([]byte{})
	unpackers.Put(u)
	return nil
}

// unpackFields cuts the text of the ext fields apart. It counts first, so that
// the slice is made once and never from a claim.
func unpackFields(f *Frame, text string) error {
	n, ok := 0, true
	for rest := text; rest != ""; n++ {
		if _, rest, ok = cutPacked(rest); !ok {
			return malformed("MSGPACK header: ext field exceeds the header")
		}
	}
	if n%2 != 0 {
		return malformed("MSGPACK header: an ext field without a value")
	}
	if n == 0 {
		return nil
	}
	f.Fields = make([]string, 0, n)
	for text != "" {
		var s string
		s, text, _ = cutPacked(text)
		f.Fields = append(f.Fields, s)
	}
	return nil
}

// cutPacked cuts a text off s that stands behind its length as a uvarint.
func cutPacked(s string) (text, rest string, ok bool) {
	var n uint64
	for i := 0; i < len(s) && i < 4; i++ { // four bytes cover any header
		n |= uint64(s[i]&0x7f) << (7 * i)
		if s[i] < 0x80 {
			if s = s[i+1:]; n > uint64(len(s)) {
				return "", "", false
			}
			return s[:n], s[n:], true
		}
	}
	return "", "", false
}
