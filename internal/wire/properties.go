package wire

import (
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
)

// Properties travel and are stored as text: key \x01 value, joined by \x02, with
// or without another \x02 at the end. As in RocketMQ's Java code an item ends its
// key at the first \x01, one without a key or a value does not count, and of
// items with the same key the last one counts.
const (
	keyEnd  = '\x01'
	itemEnd = '\x02'
)

// CheckProperty reports why a property cannot be stored as text.
func CheckProperty(key, value string) error {
	switch {
	case key == "":
		return fmt.Errorf("wire: property without a key (value %q)", value)
	case value == "":
		return fmt.Errorf("wire: property %q has an empty value, which readers drop; leave it out", key)
	case strings.ContainsAny(key, "\x01\x02") || strings.ContainsAny(value, "\x01\x02"):
		return fmt.Errorf("wire: property %q contains one of the separators \\x01 and \\x02", key)
	}
	return nil
}

// AppendProperty appends one property to the text in dst, after a separator where
// one is needed.
func AppendProperty(dst []byte, key, value string) []byte {
	if len(dst) > 0 && dst[len(dst)-1] != itemEnd {
		dst = append(dst, itemEnd)
	}
	dst = append(dst, key...)
	dst = append(dst, keyEnd)
	return append(dst, value...)
}

// AppendProperties appends all properties, in the order of their keys, to the
// text in dst. The caller has checked them with CheckProperty; those that readers
// would drop are left out.
func AppendProperties(dst []byte, properties map[string]string) []byte {
	for _, key := range slices.Sorted(maps.Keys(properties)) {
		if value := properties[key]; key != "" && value != "" {
			dst = AppendProperty(dst, key, value)
		}
	}
	return dst
}

// FormatProperties is AppendProperties as a string.
func FormatProperties(properties map[string]string) string {
	if len(properties) == 0 {
		return ""
	}
	return string(AppendProperties(nil, properties))
}

// ParseProperties reads all properties of a text. The result is never nil.
func ParseProperties(text string) map[string]string {
	properties := make(map[string]string, min(strings.Count(text, "\x01"), len(text)/4+1))
	for item := range items(text) {
		if key, value, ok := splitItem(item); ok {
			properties[key] = value
		}
	}
	return properties
}

// Properties ranges over the properties of a text in their order, without a map.
func Properties(text string) iter.Seq2[string, string] {
	return func(yield func(string, string) bool) {
		for item := range items(text) {
			if key, value, ok := splitItem(item); ok && !yield(key, value) {
				return
			}
		}
	}
}

// Property finds one property in a text without parsing it into a map.
func Property(text, key string) (value string, ok bool) {
	for len(text) > 0 {
		item := text
		if end := strings.IndexByte(text, itemEnd); end >= 0 {
			item, text = text[:end], text[end+1:]
		} else {
			text = ""
		}
		if len(item) > len(key)+1 && item[len(key)] == keyEnd && item[:len(key)] == key && key != "" {
			value, ok = item[len(key)+1:], true
		}
	}
	return value, ok
}

// RemoveProperty is the text without a property.
func RemoveProperty(text, key string) string {
	if _, ok := Property(text, key); !ok {
		return text
	}
	kept := make([]byte, 0, len(text))
	for item := range items(text) {
		if k, v, ok := splitItem(item); ok && k != key {
			kept = AppendProperty(kept, k, v)
		}
	}
	return string(kept)
}

// SetProperty is the text with a property set, at the end.
func SetProperty(text, key, value string) string {
	text = RemoveProperty(text, key)
	dst := make([]byte, 0, len(text)+len(key)+len(value)+2)
	return string(AppendProperty(append(dst, text...), key, value))
}

func items(text string) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		for len(text) > 0 {
			item, rest, _ := strings.Cut(text, "\x02")
			if !yield(item) {
				return
			}
			text = rest
		}
	}
}

func splitItem(item string) (key, value string, ok bool) {
	key, value, _ = strings.Cut(item, "\x01")
	return key, value, key != "" && value != ""
}
