package wire

import (
	"fmt"
	"slices"
)

// Texts of the enums in heartbeats, equal to RocketMQ's names.
const (
	ConsumeActively  = "CONSUME_ACTIVELY"  // pull
	ConsumePassively = "CONSUME_PASSIVELY" // push
	ConsumePop       = "CONSUME_POP"       // 5.x

	Broadcasting = "BROADCASTING"
	Clustering   = "CLUSTERING"

	FromLastOffset  = "CONSUME_FROM_LAST_OFFSET"
	FromFirstOffset = "CONSUME_FROM_FIRST_OFFSET"
	FromTimestamp   = "CONSUME_FROM_TIMESTAMP"

	ExpressionTag   = "TAG"
	ExpressionSQL92 = "SQL92"
)

// The names by ordinal.
var (
	consumeTypeNames  = []string{ConsumeActively, ConsumePassively, ConsumePop}
	messageModelNames = []string{Broadcasting, Clustering}
	fromWhereNames    = []string{
		FromLastOffset, "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST", "CONSUME_FROM_MIN_OFFSET",
		"CONSUME_FROM_MAX_OFFSET", FromFirstOffset, FromTimestamp,
	}
	languageNames = []string{
		"JAVA", "CPP", "DOTNET", "PYTHON", "DELPHI", "ERLANG", "RUBY", "OTHER", "HTTP", "GO", "PHP", "OMS", "RUST", "NODE_JS",
	}
)

// SubscriptionData is what a consumer wants of one topic.
type SubscriptionData struct {
	Topic           string
	SubString       string // the expression
	ExpressionType  string // ExpressionTag when empty
	TagsSet         []string
	CodeSet         []int32 // hashes of the tags, as the client computes them
	SubVersion      int64   // milliseconds from Java clients, nanoseconds from Go's
	ClassFilterMode bool
}

func (s *SubscriptionData) read(d *decoder) {
	d.object(func(key string) {
		switch key {
		case "topic":
			s.Topic = d.text()
		case "subString":
			s.SubString = d.text()
		case "expressionType":
			s.ExpressionType = d.text()
		case "tagsSet":
			s.TagsSet = d.texts()
		case "codeSet":
			d.array(func() { s.CodeSet = append(s.CodeSet, d.int32()) })
		case "subVersion":
			s.SubVersion = d.int64()
		case "classFilterMode":
			s.ClassFilterMode = d.flag()
		default:
			d.skip()
		}
	})
}

func (s SubscriptionData) write(e *encoder) {
	e.object(func() {
		e.flagMember("classFilterMode", s.ClassFilterMode)
		e.key("codeSet")
		writeList(e, s.CodeSet, func(code int32) { e.int(int64(code)) })
		expression := s.ExpressionType
		if expression == "" {
			expression = ExpressionTag
		}
		e.member("expressionType", expression)
		e.member("subString", s.SubString)
		e.intMember("subVersion", s.SubVersion)
		e.key("tagsSet")
		e.texts(s.TagsSet)
		e.member("topic", s.Topic)
	})
}

// ProducerData names one producer group of a client.
type ProducerData struct {
	GroupName string
}

// ConsumerData describes one consumer group of a client.
type ConsumerData struct {
	GroupName        string
	ConsumeType      string
	MessageModel     string
	ConsumeFromWhere string
	UnitMode         bool
	Subscriptions    []SubscriptionData
}

// Check names an enum text that has no meaning. An unknown ConsumeFromWhere is
// tolerated: only clients act on it, and some send UNKNOWN.
func (c *ConsumerData) Check() error {
	if !slices.Contains(consumeTypeNames, c.ConsumeType) {
		return fmt.Errorf("wire: heartbeat: group %q has the unknown consumeType %q", c.GroupName, c.ConsumeType)
	}
	if !slices.Contains(messageModelNames, c.MessageModel) {
		return fmt.Errorf("wire: heartbeat: group %q has the unknown messageModel %q", c.GroupName, c.MessageModel)
	}
	return nil
}

func (c *ConsumerData) read(d *decoder) {
	d.object(func(key string) {
		switch key {
		case "groupName":
			c.GroupName = d.text()
		case "consumeType":
			c.ConsumeType = d.enum(consumeTypeNames)
		case "messageModel":
			c.MessageModel = d.enum(messageModelNames)
		case "consumeFromWhere":
			c.ConsumeFromWhere = d.enum(fromWhereNames)
		case "unitMode":
			c.UnitMode = d.flag()
		case "subscriptionDataSet":
			d.array(func() {
				var s SubscriptionData
				s.read(d)
				c.Subscriptions = append(c.Subscriptions, s)
			})
		default:
			d.skip()
		}
	})
}

func (c ConsumerData) write(e *encoder) {
	e.object(func() {
		e.optMember("consumeFromWhere", c.ConsumeFromWhere)
		e.optMember("consumeType", c.ConsumeType)
		e.member("groupName", c.GroupName)
		e.optMember("messageModel", c.MessageModel)
		e.key("subscriptionDataSet")
		writeList(e, c.Subscriptions, func(s SubscriptionData) { s.write(e) })
		e.flagMember("unitMode", c.UnitMode)
	})
}

// Heartbeat is the body of HEART_BEAT.
type Heartbeat struct {
	ClientID  string
	Producers []ProducerData
	Consumers []ConsumerData
}

// Marshal is the body as it travels.
func (h *Heartbeat) Marshal() []byte {
	return marshalJSON(func(e *encoder) {
		e.object(func() {
			e.member("clientID", h.ClientID)
			e.key("consumerDataSet")
			writeList(e, h.Consumers, func(c ConsumerData) { c.write(e) })
			e.key("producerDataSet")
			writeList(e, h.Producers, func(p ProducerData) {
				e.object(func() { e.member("groupName", p.GroupName) })
			})
		})
	})
}

// ParseHeartbeat reads the body of HEART_BEAT. Enum texts that it does not know
// stay as they came, see ConsumerData.Check.
func ParseHeartbeat(b []byte) (h Heartbeat, err error) {
	err = parseJSON(b, "heartbeat", func(d *decoder) {
		d.object(func(key string) {
			switch key {
			case "clientID":
				h.ClientID = d.text()
			case "producerDataSet":
				d.array(func() { h.Producers = append(h.Producers, readProducer(d)) })
			case "consumerDataSet":
				d.array(func() {
					var c ConsumerData
					c.read(d)
					h.Consumers = append(h.Consumers, c)
				})
			default:
				d.skip()
			}
		})
	})
	return h, err
}

func readProducer(d *decoder) (p ProducerData) {
	d.object(func(key string) {
		if key != "groupName" {
			d.skip()
			return
		}
		p.GroupName = d.text()
	})
	return p
}

// ConsumerList is the body of the answer to GET_CONSUMER_LIST_BY_GROUP.
type ConsumerList struct {
	ConsumerIDs []string
}

// Marshal is the body as it travels.
func (l *ConsumerList) Marshal() []byte {
	return marshalJSON(func(e *encoder) {
		e.object(func() {
			e.key("consumerIdList")
			e.texts(l.ConsumerIDs)
		})
	})
}

// ParseConsumerList reads the body of the answer to GET_CONSUMER_LIST_BY_GROUP.
func ParseConsumerList(b []byte) (l ConsumerList, err error) {
	err = parseJSON(b, "consumer list", func(d *decoder) {
		d.object(func(key string) {
			if key != "consumerIdList" {
				d.skip()
				return
			}
			l.ConsumerIDs = d.texts()
		})
	})
	return l, err
}

// CheckClientConfig is the body of CHECK_CLIENT_CONFIG.
type CheckClientConfig struct {
	ClientID     string
	Group        string
	Namespace    string // left out when empty
	Subscription SubscriptionData
}

// Marshal is the body as it travels.
func (c *CheckClientConfig) Marshal() []byte {
	return marshalJSON(func(e *encoder) {
		e.object(func() {
			e.member("clientId", c.ClientID)
			e.member("group", c.Group)
			e.optMember("namespace", c.Namespace)
			e.key("subscriptionData")
			c.Subscription.write(e)
		})
	})
}

// ParseCheckClientConfig reads the body of CHECK_CLIENT_CONFIG.
func ParseCheckClientConfig(b []byte) (c CheckClientConfig, err error) {
	err = parseJSON(b, "client configuration", func(d *decoder) {
		d.object(func(key string) {
			switch key {
			case "clientId":
				c.ClientID = d.text()
			case "group":
				c.Group = d.text()
			case "namespace":
				c.Namespace = d.text()
			case "subscriptionData":
				c.Subscription.read(d)
			default:
				d.skip()
			}
		})
	})
	return c, err
}
