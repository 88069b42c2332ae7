package wire

import (
	"fmt"
	"math/bits"
	"strconv"
	"strings"
)

// A fieldWriter collects a hot header. Its numbers are formatted into one buffer
// that becomes one string, of which every value is a part: one allocation, not
// one for each number.
type fieldWriter struct {
	fields []string
	digits [maxNumbers * 20]byte
	n      int
	places [maxNumbers]struct{ index, end int }
	count  int
}

const maxNumbers = 8 // numbers of the largest hot header

func (w *fieldWriter) text(key, value string) {
	w.fields = append(w.fields, key, value)
}

func (w *fieldWriter) optionalText(key, value string) {
	if value != "" {
		w.fields = append(w.fields, key, value)
	}
}

func (w *fieldWriter) flag(key string, value bool) {
	w.fields = append(w.fields, key, strconv.FormatBool(value))
}

func (w *fieldWriter) number(key string, value int64) {
	if 0 <= value && value < 100 || w.count == maxNumbers {
		// FormatInt has these at hand and allocates nothing for them.
		w.fields = append(w.fields, key, strconv.FormatInt(value, 10))
		return
	}
	w.n = len(strconv.AppendInt(w.digits[:w.n], value, 10))
	w.places[w.count].index = len(w.fields) + 1
	w.places[w.count].end = w.n
	w.count++
	w.fields = append(w.fields, key, "")
}

func (w *fieldWriter) done() []string {
	if w.count > 0 {
		all, start := string(w.digits[:w.n]), 0
		for _, p := range w.places[:w.count] {
			w.fields[p.index] = all[start:p.end]
			start = p.end
		}
	}
	return w.fields
}

// A fieldReader sets a hot header's fields, each known by a bit, required ones
// first. Of a key that comes twice the first counts, as it does everywhere else.
type fieldReader struct {
	seen uint32
	err  error
}

// take tells whether the field is to be set now.
func (r *fieldReader) take(bit int) bool {
	if r.seen&(1<<bit) != 0 {
		return false
	}
	r.seen |= 1 << bit
	return true
}

func (r *fieldReader) text(bit int, dst *string, value string) {
	if r.take(bit) {
		*dst = value
	}
}

func (r *fieldReader) flag(bit int, dst *bool, value string) {
	if r.take(bit) {
		*dst = isTrue(value)
	}
}

func (r *fieldReader) int32(bit int, dst *int32, key, value string) {
	if r.take(bit) {
		*dst = int32(r.parse(key, value, 32))
	}
}

func (r *fieldReader) int64(bit int, dst *int64, key, value string) {
	if r.take(bit) {
		*dst = r.parse(key, value, 64)
	}
}

func (r *fieldReader) parse(key, value string, size int) int64 {
	n, err := strconv.ParseInt(value, 10, size)
	if err != nil && r.err == nil {
		r.err = badField(key, value)
	}
	return n
}

// done reports the first malformed field, or the first of the required ones
// (bit 0 and on, in the order of their names) that did not come.
func (r *fieldReader) done(required []string) error {
	if r.err != nil {
		return r.err
	}
	if missing := ^r.seen & (1<<len(required) - 1); missing != 0 {
		return missingField(required[bits.TrailingZeros32(missing)])
	}
	return nil
}

// isTrue reads a boolean as Java does: what is not true is false.
func isTrue(value string) bool { return strings.EqualFold(value, "true") }

func missingField(key string) error {
	return fmt.Errorf("wire: header field %s is missing", key)
}

func badField(key, value string) error {
	if len(value) > 32 {
		value = value[:32] + "…"
	}
	return fmt.Errorf("wire: header field %s has the malformed value %q", key, value)
}

// A binding connects the fields of a header that is not hot with their names,
// for writing and for reading alike, so that the two cannot disagree.
type binding struct {
	fields  []string
	writing bool
	err     error
}

// A bound header names its fields to a binding.
type bound interface{ bind(*binding) }

func appendBound(fields []string, h bound) []string {
	b := binding{fields: fields, writing: true}
	h.bind(&b)
	return b.fields
}

func parseBound(fields []string, h bound) error {
	b := binding{fields: fields}
	h.bind(&b)
	return b.err
}

func (b *binding) find(key string) (string, bool) {
	for i := 0; i+1 < len(b.fields); i += 2 {
		if b.fields[i] == key {
			return b.fields[i+1], true
		}
	}
	return "", false
}

// value writes text under key, or reads the value of a required key.
func (b *binding) value(key, text string) (string, bool) {
	if b.writing {
		b.fields = append(b.fields, key, text)
		return "", false
	}
	v, ok := b.find(key)
	if !ok && b.err == nil {
		b.err = missingField(key)
	}
	return v, ok
}

// option is value for an optional key: when zero it is not written.
func (b *binding) option(key, text string, zero bool) (string, bool) {
	if !b.writing {
		return b.find(key)
	}
	if !zero {
		b.fields = append(b.fields, key, text)
	}
	return "", false
}

func (b *binding) text(key string, p *string) {
	if v, ok := b.value(key, *p); ok {
		*p = v
	}
}

func (b *binding) optText(key string, p *string) {
	if v, ok := b.option(key, *p, *p == ""); ok {
		*p = v
	}
}

func (b *binding) flag(key string, p *bool) {
	if v, ok := b.value(key, strconv.FormatBool(*p)); ok {
		*p = isTrue(v)
	}
}

func (b *binding) optFlag(key string, p *bool) {
	if v, ok := b.option(key, "true", !*p); ok {
		*p = isTrue(v)
	}
}

func (b *binding) int32(key string, p *int32) {
	if v, ok := b.value(key, strconv.FormatInt(int64(*p), 10)); ok {
		*p = int32(b.parse(key, v, 32))
	}
}

func (b *binding) int64(key string, p *int64) {
	if v, ok := b.value(key, strconv.FormatInt(*p, 10)); ok {
		*p = b.parse(key, v, 64)
	}
}

func (b *binding) optInt64(key string, p *int64) {
	if v, ok := b.option(key, strconv.FormatInt(*p, 10), *p == 0); ok {
		*p = b.parse(key, v, 64)
	}
}

func (b *binding) parse(key, value string, size int) int64 {
	n, err := strconv.ParseInt(value, 10, size)
	if err != nil && b.err == nil {
		b.err = badField(key, value)
	}
	return n
}

// hasInt32 is for an optional number whose zero differs from its absence.
func (b *binding) hasInt32(key string, p *int32, has *bool) {
	v, ok := b.option(key, strconv.FormatInt(int64(*p), 10), !*has)
	if ok {
		*p, *has = int32(b.parse(key, v, 32)), true
	}
}

// always is for a key that writers must send and readers can do without.
func (b *binding) always(key, text string) (string, bool) { return b.option(key, text, false) }

func (b *binding) alwaysText(key string, p *string) {
	if v, ok := b.always(key, *p); ok {
		*p = v
	}
}

func (b *binding) alwaysFlag(key string, p *bool) {
	if v, ok := b.always(key, strconv.FormatBool(*p)); ok {
		*p = isTrue(v)
	}
}

func (b *binding) alwaysInt32(key string, p *int32) {
	if v, ok := b.always(key, strconv.FormatInt(int64(*p), 10)); ok {
		*p = int32(b.parse(key, v, 32))
	}
}

// optRefusal is for an optional flag that is true when absent: p is set when it is
// sent as false.
func (b *binding) optRefusal(key string, p *bool) {
	if v, ok := b.option(key, "false", !*p); ok {
		*p = !isTrue(v)
	}
}
