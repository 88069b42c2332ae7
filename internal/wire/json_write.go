package wire

import (
	"maps"
	"slices"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
)

// An encoder writes compact JSON: RocketMQ's Go client splits some bodies as
// text, so that a blank changes their meaning. Callers write members in the order
// of their names. Whether a comma is due is seen from the last byte.
type encoder struct {
	b     []byte
	ascii bool // everything outside ASCII as \u escapes
}

func (e *encoder) comma() {
	if len(e.b) == 0 {
		return
	}
	switch e.b[len(e.b)-1] {
	case '{', '[', ':':
	default:
		e.b = append(e.b, ',')
	}
}

// object writes an object. It may stand where a key is due, before colon.
func (e *encoder) object(members func()) {
	e.comma()
	e.b = append(e.b, '{')
	members()
	e.b = append(e.b, '}')
}

// colon makes a key of the value that was written last.
func (e *encoder) colon() { e.b = append(e.b, ':') }

func (e *encoder) key(name string) {
	e.text(name)
	e.colon()
}

func (e *encoder) intKey(n int64, quoted bool) {
	if quoted {
		e.key(strconv.FormatInt(n, 10))
		return
	}
	e.int(n)
	e.colon()
}

func (e *encoder) int(n int64) {
	e.comma()
	e.b = strconv.AppendInt(e.b, n, 10)
}

func (e *encoder) float(f float64) {
	e.comma()
	start := len(e.b)
	e.b = strconv.AppendFloat(e.b, f, 'f', -1, 64)
	if !slices.Contains(e.b[start:], '.') {
		e.b = append(e.b, ".0"...)
	}
}

func (e *encoder) flag(v bool) {
	e.comma()
	e.b = strconv.AppendBool(e.b, v)
}

func (e *encoder) text(s string) {
	const hex = "0123456789abcdef"
	e.comma()
	e.b = append(e.b, '"')
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			e.b = append(e.b, '\\', byte(r))
		case r < ' ':
			e.b = append(e.b, '\\', 'u', '0', '0', hex[r>>4], hex[r&15])
		case r < 0x80 || !e.ascii:
			e.b = utf8.AppendRune(e.b, r)
		default:
			for _, u := range utf16.AppendRune(nil, r) {
				e.b = append(e.b, '\\', 'u', hex[u>>12], hex[u>>8&15], hex[u>>4&15], hex[u&15])
			}
		}
	}
	e.b = append(e.b, '"')
}

func (e *encoder) member(name, value string) {
	e.key(name)
	e.text(value)
}

// optMember leaves the member out when it is empty.
func (e *encoder) optMember(name, value string) {
	if value != "" {
		e.member(name, value)
	}
}

func (e *encoder) intMember(name string, n int64) {
	e.key(name)
	e.int(n)
}

func (e *encoder) flagMember(name string, v bool) {
	e.key(name)
	e.flag(v)
}

func (e *encoder) textTable(table map[string]string) {
	e.object(func() {
		for _, key := range slices.Sorted(maps.Keys(table)) {
			e.member(key, table[key])
		}
	})
}

func (e *encoder) texts(list []string) {
	writeList(e, list, e.text)
}

func writeList[T any](e *encoder, list []T, item func(T)) {
	e.comma()
	e.b = append(e.b, '[')
	for _, v := range list {
		item(v)
	}
	e.b = append(e.b, ']')
}

// writeTable writes a table in the order of its keys.
func writeTable[T any](e *encoder, table map[string]T, value func(key string, v T)) {
	e.object(func() {
		for _, key := range slices.Sorted(maps.Keys(table)) {
			e.key(key)
			value(key, table[key])
		}
	})
}

// writeQueueTable writes a table with message queues as keys, which are objects:
// the only form that RocketMQ's admin tools read.
func writeQueueTable[T any](e *encoder, table map[MessageQueue]T, value func(T)) {
	e.object(func() {
		for _, q := range slices.SortedFunc(maps.Keys(table), MessageQueue.Compare) {
			q.write(e)
			e.colon()
			value(table[q])
		}
	})
}

// marshalJSON is the text that write writes.
func marshalJSON(write func(*encoder)) []byte {
	var e encoder
	write(&e)
	return e.b
}
