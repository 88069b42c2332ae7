package mq

import (
	"errors"
	"strings"

	"github.com/pocketmq/mq/internal/wire"
)

// isTagExpression tells whether an expression of this type is a list of tags.
func isTagExpression(kind string) bool { return kind == "" || kind == wire.ExpressionTag }

// A tagSet matches messages by the hash of their tag. It is never written after
// it was made.
//
// RocketMQ matches the hash in a subscription's codeSet, which Go clients compute
// from other bytes than Java clients, so that tags that are not ASCII never match
// for them. Here the hashes of the texts in tagsSet are added to the set, by the
// rule the broker itself uses for stored messages. A superset does no harm:
// hashes collide anyway, and every client compares the text once more.
type tagSet struct {
	hashes []int64
	// match is the filter of a read; nil when everything matches.
	match func(tagHash int64, record []byte) bool
}

// allTags matches every message.
var allTags = &tagSet{}

func newTagSet() *tagSet {
	s := new(tagSet)
	s.match = func(tagHash int64, _ []byte) bool { return s.has(tagHash) }
	return s
}

var errNoTag = errors.New("the expression names no tag")

// parseTags reads an expression: tags joined by "||"; all of them when it is
// empty or "*".
func parseTags(expression string) (*tagSet, error) {
	if expression == "" || expression == "*" {
		return allTags, nil
	}
	s := newTagSet()
	for tag := range strings.SplitSeq(expression, "||") {
		if tag = strings.TrimSpace(tag); tag != "" {
			s.add(wire.TagHash(tag))
		}
	}
	if len(s.hashes) == 0 {
		return nil, errNoTag
	}
	return s, nil
}

// tagsOf makes the set of a heartbeat's subscription.
func tagsOf(d *wire.SubscriptionData) *tagSet {
	if d.SubString == "" || d.SubString == "*" {
		return allTags
	}
	s := newTagSet()
	for _, code := range d.CodeSet {
		s.add(int64(code))
	}
	for _, tag := range d.TagsSet {
		s.add(wire.TagHash(tag))
	}
	if len(s.hashes) > 0 {
		return s
	}
	// A client that sent the expression alone.
	if parsed, err := parseTags(d.SubString); err == nil {
		return parsed
	}
	return s
}

func (s *tagSet) add(hash int64) {
	if !s.has(hash) {
		s.hashes = append(s.hashes, hash)
	}
}

// has is a linear search: subscriptions name a handful of tags.
func (s *tagSet) has(hash int64) bool {
	for _, h := range s.hashes {
		if h == hash {
			return true
		}
	}
	return false
}
