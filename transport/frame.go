package transport

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
)

// The frame on the wire: total length of what follows (int32), mark (serialize
// type in the high byte, header length in the rest), header, body.
const (
	lengthSize = 4
	prefixSize = 8
	maxHeader  = 1 << 20 // properties of 32 KiB, escaped as badly as JSON can, need a fifth
	headerMask = 1<<24 - 1
	maxNesting = 32
	codecShift = 24
)

// errMalformed is wrapped by every error about bytes that are no frame.
var errMalformed = errors.New("transport: malformed frame")

func malformed(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{errMalformed}, args...)...)
}

// A prefix is what the first eight bytes of a frame announce.
type prefix struct {
	codec        Codec
	header, body int
}

// parsePrefix checks the announced lengths before anything is allocated.
// RocketMQ counts the length field in its limit, so do we.
func parsePrefix(b []byte, maxFrame int, msgpack bool) (prefix, error) {
	total := binary.BigEndian.Uint32(b)
	mark := binary.BigEndian.Uint32(b[lengthSize:])
	if int64(total)+lengthSize > int64(maxFrame) {
		return prefix{}, malformed("length %d exceeds the limit of %d%s", int32(total), maxFrame, hint(b))
	}
	if total < lengthSize {
		return prefix{}, malformed("length %d is too small", total)
	}
	p := prefix{codec: Codec(mark >> codecShift), header: int(mark & headerMask)}
	p.body = int(total) - lengthSize - p.header
	switch {
	case p.body < 0:
		return prefix{}, malformed("header length %d exceeds the frame's %d", p.header, total)
	case p.header > maxHeader:
		return prefix{}, malformed("header length %d exceeds the limit of %d", p.header, maxHeader)
	case p.codec > MsgPack:
		return prefix{}, malformed("serialize type %d is unknown", p.codec)
	case p.codec == MsgPack && !msgpack:
		return prefix{}, malformed("serialize type %d was not agreed on", p.codec)
	}
	return p, nil
}

// hint names what speaks another protocol to us.
func hint(b []byte) string {
	switch {
	case b[0] == tlsAlert && b[1] == tlsMajor, b[0] == tlsHandshake && b[1] == tlsMajor:
		return ": the peer speaks TLS"
	case b[0] >= 'A' && b[0] <= 'Z' && b[1] >= 'A' && b[1] <= 'Z':
		return ": the peer speaks HTTP or another text protocol"
	}
	return ""
}

// parseHeader reads a header of the given codec. The frame's strings are parts
// of one copy of the bytes.
func parseHeader(f *Frame, codec Codec, b []byte) error {
	f.Codec = codec
	switch codec {
	case JSON:
		return parseJSON(f, string(b))
	case RocketMQ:
		return parseRocketMQ(f, string(b))
	case MsgPack:
		return parseMsgPack(f, b)
	}
	return malformed("serialize type %d is unknown", codec)
}

// parseFrame reads one whole frame; its body is a part of b.
func parseFrame(f *Frame, b []byte, maxFrame int, msgpack bool) error {
	if len(b) < prefixSize {
		return malformed("%d bytes are no frame", len(b))
	}
	p, err := parsePrefix(b, maxFrame, msgpack)
	if err != nil {
		return err
	}
	if want := prefixSize + p.header + p.body; want != len(b) {
		return malformed("%d bytes where the length says %d", len(b), want)
	}
	if err := parseHeader(f, p.codec, b[prefixSize:prefixSize+p.header]); err != nil {
		return err
	}
	if p.body > 0 {
		f.Body = b[prefixSize+p.header:]
	}
	return nil
}

// appendFrame appends a whole frame.
func appendFrame(dst []byte, f *Frame, s stamp, maxFrame int) ([]byte, error) {
	dst, err := appendHead(dst, f, s, maxFrame)
	if err != nil {
		return dst, err
	}
	return append(dst, f.Body...), nil
}

// fieldSpace lends the slice in which a typed header writes its fields.
var fieldSpace = sync.Pool{New: func() any { return new([]string) }}

// appendHead appends a frame without its body. The stamp overrides the frame's
// own values. On an error dst comes back as it was.
func appendHead(dst []byte, f *Frame, s stamp, maxFrame int) ([]byte, error) {
	if len(f.Fields)%2 != 0 {
		return dst, fmt.Errorf("transport: frame of code %d: ext field %q has no value", f.Code, f.Fields[len(f.Fields)-1])
	}
	if s.version != int32(int16(s.version)) {
		return dst, fmt.Errorf("transport: frame of code %d: version %d exceeds 16 bits", f.Code, s.version)
	}
	if s.codec == RocketMQ && f.Code != int32(int16(f.Code)) {
		s.codec = JSON // its codes have 16 bits; every peer reads JSON
	}
	space := fieldSpace.Get().(*[]string)
	fields := append((*space)[:0], f.Fields...)
	if f.Header != nil {
		fields = f.Header.AppendFields(fields)
	}
	if s.upgrade {
		fields = append(fields, upgradeKey, upgradeValue)
	}
	start := len(dst)
	dst = append(dst, make([]byte, prefixSize)...)
	var err error
	switch s.codec {
	case RocketMQ:
		dst, err = appendRocketMQ(dst, f, s, fields)
	case MsgPack:
		dst, err = appendMsgPack(dst, f, s, fields)
	default:
		dst = appendJSON(dst, f, s, fields)
	}
	clear(fields)
	*space = fields[:0]
	fieldSpace.Put(space)
	if err != nil {
		return dst[:start], fmt.Errorf("transport: frame of code %d: %w", f.Code, err)
	}
	header := len(dst) - start - prefixSize
	total := lengthSize + header + len(f.Body)
	if header > maxHeader || total+lengthSize > maxFrame {
		return dst[:start], fmt.Errorf("%w: code %d, header %d of at most %d bytes, frame %d of at most %d",
			ErrFrameTooLarge, f.Code, header, maxHeader, total+lengthSize, maxFrame)
	}
	binary.BigEndian.PutUint32(dst[start:], uint32(total))
	binary.BigEndian.PutUint32(dst[start+lengthSize:], uint32(s.codec)<<codecShift|uint32(header))
	return dst, nil
}
