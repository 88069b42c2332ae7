package transport

import (
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// appendJSON writes the header as RocketMQ's Java side does: compact, keys in
// alphabetical order, absent members left out, every ext value a string.
func appendJSON(dst []byte, f *Frame, s stamp, fields []string) []byte {
	dst = append(dst, `{"code":`...)
	dst = strconv.AppendInt(dst, int64(f.Code), 10)
	if len(fields) > 0 {
		dst = append(dst, `,"extFields":{`...)
		for i := 0; i+1 < len(fields); i += 2 {
			if i > 0 {
				dst = append(dst, ',')
			}
			dst = appendJSONString(dst, fields[i])
			dst = append(dst, ':')
			dst = appendJSONString(dst, fields[i+1])
		}
		dst = append(dst, '}')
	}
	dst = append(dst, `,"flag":`...)
	dst = strconv.AppendInt(dst, int64(s.flag), 10)
	dst = append(dst, `,"language":"`...)
	dst = append(dst, s.language.String()...)
	dst = append(dst, `","opaque":`...)
	dst = strconv.AppendInt(dst, int64(s.opaque), 10)
	if f.Remark != "" {
		dst = append(dst, `,"remark":`...)
		dst = appendJSONString(dst, f.Remark)
	}
	dst = append(dst, `,"serializeTypeCurrentRPC":"JSON","version":`...)
	dst = strconv.AppendInt(dst, int64(s.version), 10)
	return append(dst, '}')
}

const hexDigits = "0123456789abcdef"

// appendJSONString writes s quoted; bytes that are no UTF-8 become U+FFFD.
func appendJSONString(dst []byte, s string) []byte {
	dst = append(dst, '"')
	from := 0
	for i := 0; i < len(s); {
		b := s[i]
		if b >= ' ' && b != '"' && b != '\\' && b < utf8.RuneSelf {
			i++
			continue
		}
		if b >= utf8.RuneSelf {
			r, n := utf8.DecodeRuneInString(s[i:])
			if r == utf8.RuneError && n == 1 {
				dst = append(dst, s[from:i]...)
				dst = utf8.AppendRune(dst, utf8.RuneError)
				from = i + 1
			}
			i += n
			continue
		}
		dst = append(dst, s[from:i]...)
		switch b {
		case '"', '\\':
			dst = append(dst, '\\', b)
		case '\n':
			dst = append(dst, '\\', 'n')
		case '\r':
			dst = append(dst, '\\', 'r')
		case '\t':
			dst = append(dst, '\\', 't')
		default:
			dst = append(dst, '\\', 'u', '0', '0', hexDigits[b>>4], hexDigits[b&15])
		}
		i++
		from = i
	}
	dst = append(dst, s[from:]...)
	return append(dst, '"')
}

// jsonText walks over JSON text. It is lenient where peers differ: any order,
// unknown members, null for anything, numbers as text and text as numbers.
// encoding/json would refuse some of that and allocates for every string.
type jsonText struct {
	s string
	i int
}

func parseJSON(f *Frame, s string) error {
	j := jsonText{s: s}
	err := j.members(func(key string) error {
		switch key {
		case "code":
			return j.number(key, &f.Code)
		case "version":
			return j.number(key, &f.Version)
		case "opaque":
			return j.number(key, &f.Opaque)
		case "flag":
			return j.number(key, &f.Flag)
		case "remark":
			text, _, err := j.value()
			f.Remark = text
			return err
		case "language":
			text, _, err := j.value()
			f.Language = languageOf(text)
			return err
		case "extFields":
			return j.fields(f)
		}
		return j.skip(1)
	})
	if err != nil {
		return err
	}
	if j.peek() != 0 {
		return j.wrong("text behind the header")
	}
	return nil
}

// languageOf reads a name, or a number as text. An absent language is Java's,
// which is what its own decoder takes it for.
func languageOf(text string) Language {
	if text == "" {
		return Java
	}
	if n, err := strconv.ParseInt(text, 10, 8); err == nil {
		return Language(n)
	}
	return ParseLanguage(text)
}

func (j *jsonText) wrong(what string) error {
	return malformed("JSON header, byte %d: %s", j.i, what)
}

// peek skips white space and returns the next byte, 0 at the end.
func (j *jsonText) peek() byte {
	for ; j.i < len(j.s); j.i++ {
		switch c := j.s[j.i]; c {
		case ' ', '\t', '\n', '\r':
		case 0:
			return 1 // never valid, and not the end
		default:
			return c
		}
	}
	return 0
}

func (j *jsonText) accept(c byte) bool {
	if j.peek() != c {
		return false
	}
	j.i++
	return true
}

// members calls each for every member of an object; each consumes the value.
func (j *jsonText) members(each func(key string) error) error {
	if !j.accept('{') {
		return j.wrong("want an object")
	}
	if j.accept('}') {
		return nil
	}
	for {
		if j.peek() != '"' {
			return j.wrong("want a member's name")
		}
		key, err := j.text()
		if err != nil {
			return err
		}
		if !j.accept(':') {
			return j.wrong("want a colon")
		}
		if err := each(key); err != nil {
			return err
		}
		if j.accept('}') {
			return nil
		}
		if !j.accept(',') {
			return j.wrong("want a comma or the object's end")
		}
	}
}

func (j *jsonText) number(key string, n *int32) error {
	text, null, err := j.value()
	if err != nil || null {
		return err
	}
	v, err := strconv.ParseInt(text, 10, 32)
	if err != nil {
		return j.wrong(key + " is not a 32 bit integer")
	}
	*n = int32(v)
	return nil
}

func (j *jsonText) fields(f *Frame) error {
	if j.peek() == 'n' {
		return j.literal("null")
	}
	if f.Fields == nil {
		// Each pair needs four quotation marks, of those that are left.
		f.Fields = make([]string, 0, min(64, strings.Count(j.s[j.i:], `"`)/2))
	}
	return j.members(func(key string) error {
		text, null, err := j.value()
		if err == nil && !null {
			f.Fields = append(f.Fields, key, text)
		}
		return err
	})
}

// value reads any value as text: a string unescaped, everything else as it
// stands.
func (j *jsonText) value() (text string, null bool, err error) {
	switch j.peek() {
	case '"':
		text, err = j.text()
		return text, false, err
	case 'n':
		return "", true, j.literal("null")
	}
	from := j.i
	err = j.skip(1)
	return j.s[from:j.i], false, err
}

func (j *jsonText) literal(word string) error {
	if !strings.HasPrefix(j.s[j.i:], word) {
		return j.wrong("want a value")
	}
	j.i += len(word)
	return nil
}

// skip passes over a value.
func (j *jsonText) skip(depth int) error {
	if depth > maxNesting {
		return j.wrong("nested too deeply")
	}
	switch c := j.peek(); {
	case c == '"':
		_, err := j.text()
		return err
	case c == 't':
		return j.literal("true")
	case c == 'f':
		return j.literal("false")
	case c == 'n':
		return j.literal("null")
	case c == '-' || c >= '0' && c <= '9':
		for j.i < len(j.s) && strings.IndexByte("+-.eE0123456789", j.s[j.i]) >= 0 {
			j.i++
		}
		return nil
	case c == '{':
		return j.members(func(string) error { return j.skip(depth + 1) })
	case c == '[':
		return j.skipArray(depth)
	}
	return j.wrong("want a value")
}

func (j *jsonText) skipArray(depth int) error {
	j.i++
	if j.accept(']') {
		return nil
	}
	for {
		if err := j.skip(depth + 1); err != nil {
			return err
		}
		if j.accept(']') {
			return nil
		}
		if !j.accept(',') {
			return j.wrong("want a comma or the array's end")
		}
	}
}

// text reads a string. Without escapes it is a part of the header's text.
func (j *jsonText) text() (string, error) {
	j.i++
	from := j.i
	end := strings.IndexByte(j.s[from:], '"')
	if end < 0 {
		return "", j.wrong("string without end")
	}
	if strings.IndexByte(j.s[from:from+end], '\\') < 0 {
		j.i = from + end + 1
		return j.s[from : from+end], nil
	}
	return j.unescape()
}

// unescape reads the rest of a string that has escapes. What it stands for is
// never longer than how it is written, so one allocation does.
func (j *jsonText) unescape() (string, error) {
	end := j.i
	for end < len(j.s) && j.s[end] != '"' {
		if j.s[end] == '\\' {
			end++
		}
		end++
	}
	if end >= len(j.s) {
		return "", j.wrong("string without end")
	}
	var out strings.Builder
	out.Grow(end - j.i)
	for {
		n := strings.IndexByte(j.s[j.i:end], '\\')
		if n < 0 {
			out.WriteString(j.s[j.i:end])
			j.i = end + 1
			return out.String(), nil
		}
		out.WriteString(j.s[j.i : j.i+n])
		c := j.s[j.i+n+1] // the loop above saw that it is there
		j.i += n + 2
		if c == 'u' {
			r, err := j.escapedRune()
			if err != nil {
				return "", err
			}
			out.WriteRune(r)
			continue
		}
		k := strings.IndexByte(`"\/bfnrt`, c)
		if k < 0 {
			return "", j.wrong("unknown escape")
		}
		out.WriteByte("\"\\/\b\f\n\r\t"[k])
	}
}

// escapedRune reads what stands behind \u, with the second half of a surrogate
// pair. A half alone becomes U+FFFD.
func (j *jsonText) escapedRune() (rune, error) {
	r, err := j.hex4()
	if err != nil || !utf16.IsSurrogate(r) {
		return r, err
	}
	if !strings.HasPrefix(j.s[j.i:], `\u`) {
		return utf8.RuneError, nil
	}
	back := j.i
	j.i += 2
	low, err := j.hex4()
	if err != nil {
		return 0, err
	}
	if pair := utf16.DecodeRune(r, low); pair != utf8.RuneError {
		return pair, nil
	}
	j.i = back
	return utf8.RuneError, nil
}

func (j *jsonText) hex4() (rune, error) {
	if len(j.s)-j.i < 4 {
		return 0, j.wrong("short escape")
	}
	v, err := strconv.ParseUint(j.s[j.i:j.i+4], 16, 16)
	if err != nil {
		return 0, j.wrong("escape is not hexadecimal")
	}
	j.i += 4
	return rune(v), nil
}
