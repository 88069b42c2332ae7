package wire

import (
	"maps"
	"testing"
)

func TestPropertiesReadEveryFormInTheField(t *testing.T) {
	for text, want := range map[string]map[string]string{
		"":                            {},
		"a\x01b":                      {"a": "b"},
		"a\x01b\x02":                  {"a": "b"},
		"a\x01b\x02c\x01d":            {"a": "b", "c": "d"},
		"\x02\x02a\x01b\x02\x02":      {"a": "b"},
		"a\x01b\x01c":                 {"a": "b\x01c"},
		"a\x01\x02c\x01d":             {"c": "d"},
		"\x01b\x02c\x01d":             {"c": "d"},
		"plain\x02c\x01d":             {"c": "d"},
		"a\x011\x02a\x012":            {"a": "2"},
		"TAGS\x01T\x02TAGSX\x01other": {"TAGS": "T", "TAGSX": "other"},
	} {
		got := ParseProperties(text)
		if !maps.Equal(got, want) {
			t.Errorf("ParseProperties(%q) = %v, want %v", text, got, want)
		}
		for _, key := range []string{"a", "c", "TAGS", "TAG", "", "plain"} {
			value, ok := Property(text, key)
			if wantValue, wantOK := want[key]; value != wantValue || ok != wantOK {
				t.Errorf("Property(%q, %q) = %q, %v; want %q, %v", text, key, value, ok, wantValue, wantOK)
			}
		}
	}
}

func TestPropertiesAreAppendedSetAndRemoved(t *testing.T) {
	for _, text := range []string{"TAGS\x01A\x02WAIT\x01true", "TAGS\x01A\x02WAIT\x01true\x02", "WAIT\x01true\x02TAGS\x01A\x02"} {
		text = RemoveProperty(text, PropWait)
		text = SetProperty(text, PropCluster, "C1")
		text = SetProperty(text, PropCluster, "C2")
		want := map[string]string{"TAGS": "A", "CLUSTER": "C2"}
		if got := ParseProperties(text); !maps.Equal(got, want) {
			t.Errorf("%q is %v, want %v", text, got, want)
		}
	}
	if text := "a\x01b\x02"; RemoveProperty(text, "WAIT") != text {
		t.Error("a text without the property was rewritten")
	}
	if got := FormatProperties(map[string]string{"b": "2", "a": "1", "": "x", "empty": ""}); got != "a\x011\x02b\x012" {
		t.Errorf("FormatProperties = %q", got)
	}
}

func TestPropertiesThatCannotBeStoredAreNamed(t *testing.T) {
	if err := CheckProperty("key", "value with any text: 中文"); err != nil {
		t.Error(err)
	}
	for _, pair := range [][2]string{{"", "v"}, {"k", ""}, {"k\x01", "v"}, {"k", "v\x02"}, {"k\x02", "v"}, {"k", "\x01"}} {
		if CheckProperty(pair[0], pair[1]) == nil {
			t.Errorf("the property %q = %q passes", pair[0], pair[1])
		}
	}
}

func BenchmarkProperty(b *testing.B) {
	text := sampleMessage().Properties
	b.ReportAllocs()
	for b.Loop() {
		if _, ok := Property(text, PropTags); !ok {
			b.Fatal("not found")
		}
	}
}
