package transport

import (
	"sync"

	"github.com/hashicorp/go-msgpack/v2/codec"
)

// packedHeader is the MSGPACK header: an array, so that no names travel.
type packedHeader struct {
	_struct  bool `codec:",toarray"`
	Code     int32
	Language int8
	Version  int32
	Opaque   int32
	Flag     int32
	Remark   string
	Fields   []string
}

var msgpackHandle = &codec.MsgpackHandle{}

// A packer is an encoder with the space it writes to.
type packer struct {
	header packedHeader
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
	p.header = packedHeader{Code: f.Code, Language: int8(s.language), Version: s.version, Opaque: s.opaque,
		Flag: s.flag, Remark: f.Remark, Fields: fields}
	p.out = p.out[:0]
	p.enc.ResetBytes(&p.out)
	err := p.enc.Encode(&p.header)
	dst = append(dst, p.out...)
	p.header = packedHeader{}
	if cap(p.out) <= maxPacked {
		packers.Put(p)
	}
	return dst, err
}

// An unpacker is a decoder with the header it reads into.
type unpacker struct {
	header packedHeader
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
	u.header = packedHeader{}
	u.dec.ResetBytes(b)
	if err := u.dec.Decode(&u.header); err != nil {
		return malformed("MSGPACK header: %v", err) // the decoder's state is not reused
	}
	read := u.dec.NumBytesRead()
	h := &u.header
	if len(h.Fields)%2 != 0 {
		return malformed("MSGPACK header: an ext field without a value")
	}
	if read != len(b) {
		return malformed("MSGPACK header: %d bytes behind its end", len(b)-read)
	}
	f.Code, f.Language, f.Version = h.Code, Language(h.Language), h.Version
	f.Opaque, f.Flag, f.Remark = h.Opaque, h.Flag, h.Remark
	if len(h.Fields) > 0 {
		f.Fields = h.Fields
	}
	u.header = packedHeader{}
	u.dec.ResetBytes([]byte{})
	unpackers.Put(u)
	return nil
}
