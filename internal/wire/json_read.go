package wire

import (
	"bytes"
	"encoding/json"
	"math"
	"strconv"
	"strings"
)

const maxJSONDepth = 64

// A decoder reads bodies in the JSON dialect of RocketMQ's peers: standard JSON,
// and besides map keys that are bare numbers or words, objects as map keys,
// single quotes, numbers as text and text as numbers, enums as ordinals.
//
// It walks the text once and fills typed values as it goes. A rewriter in front
// of encoding/json was rejected: half of the leniency is about the types of
// values, and object keys would have to be escaped into text and parsed again.
//
// Members that are null count as absent, elements that are null are skipped. After
// the first error every method returns at once with a zero value.
type decoder struct {
	b     []byte
	i     int
	depth int
	count int // objects and arrays seen, see maxObjects
	err   error
}

// maxObjects bounds the objects and arrays in a document of n bytes. Real ones are longer
// than 12 bytes in the mean, and a typed value is much larger than the two bytes
// of an empty one.
func maxObjects(n int) int { return 16 + n/12 }

// parseJSON reads one whole document.
func parseJSON(b []byte, what string, read func(*decoder)) error {
	d := decoder{b: b}
	read(&d)
	if d.peek(); d.err == nil && d.i < len(d.b) {
		d.fail("text after its end")
	}
	if d.err != nil {
		return malformed("%s: %v", what, d.err)
	}
	return nil
}

// A jsonError is a fault and the place where it was found.
type jsonError struct {
	what string
	at   int
}

func (e *jsonError) Error() string { return e.what + " at byte " + strconv.Itoa(e.at) }

func (d *decoder) fail(what string) {
	if d.err == nil {
		d.err = &jsonError{what, d.i}
	}
}

// peek is the next byte that is not blank, 0 at the end or after an error.
func (d *decoder) peek() byte {
	if d.err != nil {
		return 0
	}
	for d.i < len(d.b) {
		switch c := d.b[d.i]; c {
		case ' ', '\t', '\n', '\r':
			d.i++
		default:
			return c
		}
	}
	return 0
}

func (d *decoder) accept(c byte) bool {
	if d.peek() != c {
		return false
	}
	d.i++
	return true
}

// null skips the word null, when it is next.
func (d *decoder) null() bool {
	if d.peek() != 'n' || !bytes.HasPrefix(d.b[d.i:], []byte("null")) {
		return false
	}
	d.i += len("null")
	return true
}

// list walks the items between open and close.
func (d *decoder) list(open, close byte, item func()) {
	if d.null() {
		return
	}
	if !d.accept(open) {
		d.fail("expected " + strconv.QuoteRune(rune(open)))
		return
	}
	if d.depth++; d.depth > maxJSONDepth {
		d.fail("nested too deeply")
	}
	if d.count++; d.count > maxObjects(len(d.b)) {
		d.fail("too many empty values")
	}
	for first := true; d.err == nil && !d.accept(close); first = false {
		if !first && !d.accept(',') {
			d.fail("expected a comma")
			return
		}
		if item(); d.err == nil && d.i >= len(d.b) {
			d.fail("unexpected end")
		}
	}
	d.depth--
}

// object calls member for each member that is not null; member must read or skip
// the value. A key that is an object itself comes as the empty text.
func (d *decoder) object(member func(key string)) {
	d.list('{', '}', func() {
		key := d.key()
		if d.colon() && !d.null() {
			member(key)
		}
	})
}

// array calls element for each element that is not null.
func (d *decoder) array(element func()) {
	d.list('[', ']', func() {
		if !d.null() {
			element()
		}
	})
}

func (d *decoder) colon() bool {
	if !d.accept(':') {
		d.fail("expected a colon")
	}
	return d.err == nil
}

func (d *decoder) key() string {
	switch c := d.peek(); {
	case c == '"' || c == '\'':
		return d.quoted()
	case c == '{':
		d.skip()
		return ""
	default:
		return d.word()
	}
}

// word is a bare number, literal or name.
func (d *decoder) word() string {
	d.peek()
	start := d.i
	for d.err == nil && d.i < len(d.b) {
		c := d.b[d.i]
		if c != '-' && c != '+' && c != '.' && c != '_' && c != '$' && c != '@' && c != '%' &&
			(c < '0' || '9' < c) && (c < 'A' || 'Z' < c) && (c < 'a' || 'z' < c) {
			break
		}
		d.i++
	}
	if d.i == start {
		d.fail("expected a value")
	}
	return string(d.b[start:d.i])
}

// quoted is a text in double or single quotes.
func (d *decoder) quoted() string {
	quote := d.b[d.i]
	start, escaped := d.i+1, false
	for end := start; end < len(d.b); end++ {
		switch c := d.b[end]; {
		case c == '\\':
			escaped = true
			end++
		case c == quote:
			d.i = end + 1
			if escaped {
				return d.unescape(d.b[start:end], quote)
			}
			return strings.ToValidUTF8(string(d.b[start:end]), "\uFFFD")
		}
	}
	d.fail("text without an end")
	return ""
}

// unescape leaves the escapes to encoding/json, and control characters, which it
// would refuse and which the implementations in the field let pass, as they are.
func (d *decoder) unescape(raw []byte, quote byte) string {
	std := make([]byte, 0, len(raw)+2)
	std = append(std, '"')
	for i := 0; i < len(raw); i++ {
		switch c := raw[i]; {
		case c == '\\' && raw[i+1] == '\'':
			std = append(std, '\'')
			i++
		case c == '\\':
			std = append(std, c, raw[i+1])
			i++
		case c == '"' && quote == '\'':
			std = append(std, '\\', '"')
		case c < ' ':
			std = append(std, `\u00`...)
			std = append(std, "0123456789abcdef"[c>>4], "0123456789abcdef"[c&15])
		default:
			std = append(std, c)
		}
	}
	var text string
	if err := json.Unmarshal(append(std, '"'), &text); err != nil {
		d.fail("text with a wrong escape")
	}
	return text
}

// scalar is the text of a value that is neither object nor array, quoted or not;
// that of null is empty.
func (d *decoder) scalar() string {
	switch c := d.peek(); c {
	case '"', '\'':
		return d.quoted()
	case '{', '[':
		d.fail("expected a plain value")
		return ""
	}
	if d.null() {
		return ""
	}
	return d.word()
}

// text is a text; numbers and booleans count as they are written.
func (d *decoder) text() string { return d.scalar() }

func (d *decoder) int64() int64 { return d.integer(64) }

func (d *decoder) int32() int32 { return int32(d.integer(32)) }

func (d *decoder) integer(size int) int64 {
	text := strings.TrimSpace(d.scalar())
	n, err := strconv.ParseInt(text, 10, size)
	switch {
	case err == nil || d.err != nil:
		return n
	case text == "" || text == "false" || text == "null":
		return 0
	case text == "true":
		return 1
	}
	limit := math.Ldexp(1, size-1)
	if f, err := strconv.ParseFloat(text, 64); err == nil && -limit <= f && f < limit {
		return int64(f)
	}
	d.fail("expected a number")
	return 0
}

func (d *decoder) float() float64 {
	text := strings.TrimSpace(d.scalar())
	if text == "" || d.err != nil {
		return 0
	}
	f, err := strconv.ParseFloat(text, 64)
	if err != nil || math.IsNaN(f) || math.IsInf(f, 0) {
		d.fail("expected a number")
		return 0
	}
	return f
}

func (d *decoder) flag() bool {
	text := d.scalar()
	return text == "1" || strings.EqualFold(text, "true")
}

// enum is the name of an enum value; an ordinal is looked up in names. What is not
// known stays as it came.
func (d *decoder) enum(names []string) string {
	text := d.scalar()
	if n, err := strconv.Atoi(text); err == nil && 0 <= n && n < len(names) {
		return names[n]
	}
	return text
}

func (d *decoder) texts() []string {
	var list []string
	d.array(func() { list = append(list, d.text()) })
	return list
}

func (d *decoder) textTable() map[string]string {
	table := make(map[string]string)
	d.object(func(key string) { table[key] = d.text() })
	return table
}

// intTable reads a table whose keys are numbers, quoted or not.
func (d *decoder) intTable(value func(key int64)) {
	d.object(func(key string) {
		n, err := strconv.ParseInt(key, 10, 64)
		if err != nil {
			d.fail("expected a number as key")
			return
		}
		value(n)
	})
}

// queueTable reads a table whose keys are message queues, as objects or as the
// text of an object.
func (d *decoder) queueTable(value func(q MessageQueue)) {
	d.list('{', '}', func() {
		q := d.queueKey()
		if d.colon() && !d.null() {
			value(q)
		}
	})
}

func (d *decoder) queueKey() (q MessageQueue) {
	if d.peek() == '{' {
		q.read(d)
		return q
	}
	sub := decoder{b: []byte(d.key())}
	q.read(&sub)
	if sub.err != nil {
		d.fail("expected a queue as key")
	}
	return q
}

// skip passes over any value.
func (d *decoder) skip() {
	switch d.peek() {
	case '{':
		d.object(func(string) { d.skip() })
	case '[':
		d.array(d.skip)
	default:
		d.scalar()
	}
}
