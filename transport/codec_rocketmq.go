package transport

import (
	"encoding/binary"
	"fmt"
	"math"
)

// RocketMQ's binary header: code int16, language int8, version int16, opaque
// int32, flag int32, remark (int32 length), ext fields (int32 length of all, then
// each key with an int16 and each value with an int32 length).
const rocketMQFixed = 21

func appendRocketMQ(dst []byte, f *Frame, s stamp, fields []string) ([]byte, error) {
	dst = binary.BigEndian.AppendUint16(dst, uint16(f.Code))
	dst = append(dst, byte(s.language))
	dst = binary.BigEndian.AppendUint16(dst, uint16(s.version))
	dst = binary.BigEndian.AppendUint32(dst, uint32(s.opaque))
	dst = binary.BigEndian.AppendUint32(dst, uint32(s.flag))
	dst = binary.BigEndian.AppendUint32(dst, uint32(len(f.Remark)))
	dst = append(dst, f.Remark...)
	at := len(dst)
	dst = append(dst, 0, 0, 0, 0)
	for i := 0; i+1 < len(fields); i += 2 {
		key, value := fields[i], fields[i+1]
		if len(key) > math.MaxInt16 {
			return dst, fmt.Errorf("ext field name of %d bytes exceeds %d", len(key), math.MaxInt16)
		}
		dst = binary.BigEndian.AppendUint16(dst, uint16(len(key)))
		dst = append(dst, key...)
		dst = binary.BigEndian.AppendUint32(dst, uint32(len(value)))
		dst = append(dst, value...)
	}
	binary.BigEndian.PutUint32(dst[at:], uint32(len(dst)-at-4))
	return dst, nil
}

func parseRocketMQ(f *Frame, s string) error {
	if len(s) < rocketMQFixed {
		return malformed("binary header of %d bytes, want at least %d", len(s), rocketMQFixed)
	}
	f.Code = int32(int16(beUint16(s)))
	f.Language = Language(s[2])
	f.Version = int32(int16(beUint16(s[3:])))
	f.Opaque = int32(beUint32(s[5:]))
	f.Flag = int32(beUint32(s[9:]))
	var ok bool
	if f.Remark, s, ok = cutText(s[13:], 4); !ok {
		return malformed("remark exceeds the header")
	}
	fields, _, ok := cutText(s, 4)
	if !ok {
		return malformed("ext fields exceed the header")
	}
	// Count first, so that the slice is made once and never from a claim.
	n := 0
	for rest := fields; rest != ""; n += 2 {
		if _, rest, ok = cutText(rest, 2); !ok {
			return malformed("ext field name exceeds the header")
		}
		if _, rest, ok = cutText(rest, 4); !ok {
			return malformed("ext field value exceeds the header")
		}
	}
	if n == 0 {
		return nil
	}
	f.Fields = make([]string, 0, n)
	for fields != "" {
		var key, value string
		key, fields, _ = cutText(fields, 2)
		value, fields, _ = cutText(fields, 4)
		f.Fields = append(f.Fields, key, value)
	}
	return nil
}

// cutText cuts a text off s that stands behind its length of size bytes, which
// is signed.
func cutText(s string, size int) (text, rest string, ok bool) {
	if len(s) < size {
		return "", "", false
	}
	n := int64(int16(beUint16(s)))
	if size == 4 {
		n = int64(int32(beUint32(s)))
	}
	if n < 0 || n > int64(len(s)-size) {
		return "", "", false
	}
	return s[size : size+int(n)], s[size+int(n):], true
}

func beUint16(s string) uint16 { return uint16(s[0])<<8 | uint16(s[1]) }

func beUint32(s string) uint32 {
	return uint32(s[0])<<24 | uint32(s[1])<<16 | uint32(s[2])<<8 | uint32(s[3])
}
