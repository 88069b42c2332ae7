package mq

import (
	"testing"

	"github.com/pocketmq/mq/internal/wire"
)

func (s *tagSet) takes(tag string) bool {
	return s.match == nil || s.match(wire.TagHash(tag), nil)
}

func TestTagExpressions(t *testing.T) {
	for _, c := range []struct {
		expression string
		yes, no    []string
	}{
		{"", []string{"A", "", "中文"}, nil},
		{"*", []string{"A", "", "中文"}, nil},
		{"A", []string{"A"}, []string{"B", "", "a"}},
		{"A||B", []string{"A", "B"}, []string{"C", "A||B"}},
		{"  A ||\tB  || ", []string{"A", "B"}, []string{"", " A "}},
		{"中文 || 😀", []string{"中文", "😀"}, []string{"中"}},
	} {
		s, err := parseTags(c.expression)
		if err != nil {
			t.Errorf("%q: %v", c.expression, err)
			continue
		}
		for _, tag := range c.yes {
			if !s.takes(tag) {
				t.Errorf("%q does not take %q", c.expression, tag)
			}
		}
		for _, tag := range c.no {
			if s.takes(tag) {
				t.Errorf("%q takes %q", c.expression, tag)
			}
		}
	}
}

func TestAnExpressionWithoutATagDoesNotParse(t *testing.T) {
	for _, e := range []string{"||", " ", "|| ||"} {
		if _, err := parseTags(e); err == nil {
			t.Errorf("%q was taken", e)
		}
	}
}

// Go clients hash the UTF-8 bytes of a tag, Java clients and the broker its
// UTF-16 units.
func TestSubscriptionsOfJavaAndOfGoMatchTagsThatAreNotASCII(t *testing.T) {
	const goHash, javaHash = -1887180642, 646394
	for name, code := range map[string]int32{"Go": goHash, "Java": javaHash} {
		s := tagsOf(&wire.SubscriptionData{Topic: "t", SubString: "中文", TagsSet: []string{"中文"}, CodeSet: []int32{code}})
		if !s.takes("中文") {
			t.Errorf("the subscription of a %s client does not match its tag", name)
		}
		if s.takes("A") || s.takes("") {
			t.Errorf("the subscription of a %s client matches other tags", name)
		}
	}
}

func TestASubscriptionWithHashesOnlyOrTextOnlyMatches(t *testing.T) {
	for name, d := range map[string]wire.SubscriptionData{
		"hashes":     {SubString: "A", CodeSet: []int32{int32(wire.TagHash("A"))}},
		"texts":      {SubString: "A", TagsSet: []string{"A"}},
		"expression": {SubString: "A || C"},
	} {
		s := tagsOf(&d)
		if !s.takes("A") || s.takes("B") {
			t.Errorf("%s: takes A %v, B %v", name, s.takes("A"), s.takes("B"))
		}
	}
	if s := tagsOf(&wire.SubscriptionData{SubString: "*"}); s.match != nil {
		t.Error("* has a filter")
	}
}
