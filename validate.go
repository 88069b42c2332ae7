package mq

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/pocketmq/mq/internal/wire"
)

// maxTopicLength and maxGroupLength are RocketMQ's limits, in bytes.
const (
	maxTopicLength = wire.MaxTopicBytes
	maxGroupLength = wire.MaxGroupBytes
)

// illegal is an error about one field of a message.
func illegal(field, format string, args ...any) error {
	return fmt.Errorf("%w: %s %s", ErrMessageIllegal, field, fmt.Sprintf(format, args...))
}

// nameFault says why name cannot name a topic, a group or a broker; empty when it
// can.
func nameFault(name string, limit int) string {
	switch at := illegalNameByte(name); {
	case name == "":
		return "is empty"
	case len(name) > limit:
		return fmt.Sprintf("has %d bytes, the limit is %d: %.40q…", len(name), limit, name)
	case at >= 0:
		return fmt.Sprintf("%q has an illegal character at byte %d, legal are a-z A-Z 0-9 _ - %% |", name, at)
	}
	return ""
}

// illegalNameByte finds the first byte that may not stand in a topic's or group's
// name; -1 when there is none.
func illegalNameByte(name string) int {
	for i := range len(name) {
		switch c := name[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9':
		case c == '_' || c == '-' || c == '%' || c == '|':
		default:
			return i
		}
	}
	return -1
}

// closedTopics are those of the broker's own that clients may read but not write.
var closedTopics = map[string]bool{
	wire.TopicSchedule: true, wire.TopicHalf: true, wire.TopicHalfOp: true,
	wire.TopicCheckMaxTime: true, wire.TopicSelfTest: true, wire.TopicOffsetMoved: true,
}

// checkSendTopic reports why a topic cannot be sent to.
func checkSendTopic(topic string) error {
	if fault := nameFault(topic, maxTopicLength); fault != "" {
		return illegal("Topic", "%s", fault)
	}
	if closedTopics[topic] {
		return illegal("Topic", "%q belongs to the broker, which refuses messages to it", topic)
	}
	return nil
}

// checkGroup reports why a name cannot be a client's group.
func checkGroup(field, group string) error {
	if group == "" {
		return fmt.Errorf("mq: %s is required: it names the application, for example \"shop\"", field)
	}
	if fault := nameFault(group, maxGroupLength); fault != "" {
		return fmt.Errorf("mq: %s %s", field, fault)
	}
	if group == "DEFAULT_PRODUCER" || group == "DEFAULT_CONSUMER" || group == innerProducer {
		return fmt.Errorf("mq: %s %q is reserved by RocketMQ, choose another", field, group)
	}
	return nil
}

// checkMessage reports what is wrong with a message, before anything is sent.
// The size of its properties is checked when they are written.
func checkMessage(m *Message, maxBody int) error {
	if m == nil {
		return illegal("Message", "is nil")
	}
	if err := checkSendTopic(m.Topic); err != nil {
		return err
	}
	switch {
	case len(m.Body) == 0:
		return illegal("Body", "is empty, a message has at least one byte")
	case len(m.Body) > maxBody:
		return illegal("Body", "has %d bytes, the limit is %d", len(m.Body), maxBody)
	case m.DelayLevel < 0 || m.DelayLevel > len(delayLevels):
		return illegal("DelayLevel", "is %d, the range is 0 to %d", m.DelayLevel, len(delayLevels))
	}
	if m.Tag != "" {
		if err := checkTag(m.Tag); err != nil {
			return err
		}
	}
	for _, key := range m.Keys {
		if err := checkKey(key); err != nil {
			return err
		}
	}
	if err := checkText("ShardKey", m.ShardKey); err != nil {
		return err
	}
	if len(m.Properties) == 0 {
		return nil
	}
	for name, value := range m.Properties {
		if err := checkUserProperty(name, value); err != nil {
			return err
		}
	}
	return nil
}

func checkTag(tag string) error {
	switch {
	case strings.TrimSpace(tag) != tag:
		return illegal("Tag", "%q begins or ends with a blank, subscriptions could not name it", tag)
	case tag == "*" || strings.Contains(tag, "||"):
		return illegal("Tag", "%q has a meaning in subscriptions, which could not name it", tag)
	}
	return checkText("Tag", tag)
}

func checkKey(key string) error {
	if key == "" || strings.ContainsAny(key, " \t\r\n") {
		return illegal("Keys", "has %q, a key is one word without blanks", key)
	}
	return checkText("Keys", key)
}

func checkUserProperty(name, value string) error {
	switch {
	case name == "":
		return illegal("Properties", "has an empty name (value %.40q)", value)
	case value == "":
		return illegal("Properties", "has an empty value for %q, readers would drop it; leave it out", name)
	case reservedProperties[name]:
		return illegal("Properties", "has %q, a name that RocketMQ keeps for itself", name)
	}
	if err := checkText("Properties", name); err != nil {
		return err
	}
	return checkText("Properties", value)
}

// checkText reports why text cannot travel in properties.
func checkText(field, text string) error {
	for i := range len(text) {
		switch {
		case text[i] == 1 || text[i] == 2:
			return illegal(field, "has %.40q with a separator \\x01 or \\x02 at byte %d", text, i)
		case text[i] >= utf8.RuneSelf:
			if !utf8.ValidString(text) {
				return illegal(field, "has %.40q, which is not UTF-8", text)
			}
			return checkSeparators(field, text)
		}
	}
	return nil
}

func checkSeparators(field, text string) error {
	if i := strings.IndexAny(text, "\x01\x02"); i >= 0 {
		return illegal(field, "has %.40q with a separator \\x01 or \\x02 at byte %d", text, i)
	}
	return nil
}

// reservedProperties are the names of RocketMQ 4.9 and 5 that carry a meaning.
var reservedProperties = setOf(
	wire.PropKeys, wire.PropTags, wire.PropWait, wire.PropDelay, wire.PropUniqueKey, wire.PropRetryTopic,
	wire.PropRealTopic, wire.PropRealQueue, wire.PropOriginMessageID, wire.PropReconsumeTime,
	wire.PropMaxReconsumeTimes, wire.PropTransaction, wire.PropProducerGroup, wire.PropCheckTimes,
	wire.PropPreparedQueueOffset, wire.PropCheckImmunity, wire.PropTransactionID, wire.PropCorrelationID,
	wire.PropReplyToClient, wire.PropTTL, wire.PropMessageType, wire.PropPushReplyTime, wire.PropArriveTime,
	wire.PropCluster, wire.PropRegion, wire.PropTraceOn, wire.PropMinOffset, wire.PropMaxOffset,
	wire.PropConsumeStartTime, wire.PropInstanceID, wire.PropStartDeliverTime, wire.PropShardingKey,
	wire.PropShardingKeyV5, wire.PropTimerDelaySec, wire.PropTimerDelayMs, wire.PropTimerDeliverMs,
	wire.PropInnerNum, wire.PropDLQOriginTopic, wire.PropDLQOriginMessageID,
	"BUYER_ID", "TRANSFER_FLAG", "CORRECTION_FLAG", "MQ2_FLAG", "INNER_MULTI_DISPATCH", "INNER_MULTI_QUEUE_OFFSET",
	"TIMER_ENQUEUE_MS", "TIMER_DEQUEUE_MS", "TIMER_ROLL_TIMES", "TIMER_OUT_MS", "TIMER_DEL_UNIQKEY",
	"TIMER_DELAY_LEVEL", "POP_CK", "POP_CK_OFFSET", "1ST_POP_TIME", "INNER_BASE", "__CRC32#",
)

func setOf(names ...string) map[string]bool {
	set := make(map[string]bool, len(names))
	for _, name := range names {
		set[name] = true
	}
	return set
}
