package wire

// A SubscriptionGroupConfig is what a broker knows about a consumer group.
type SubscriptionGroupConfig struct {
	GroupName                      string
	ConsumeEnable                  bool
	ConsumeFromMinEnable           bool
	ConsumeBroadcastEnable         bool
	NotifyConsumerIDsChangedEnable bool
	RetryQueueNums                 int32
	RetryMaxTimes                  int32
	BrokerID                       int64
	WhichBrokerWhenConsumeSlowly   int64
}

// DefaultSubscriptionGroupConfig is the configuration of a group that nobody
// configured. The zero value disables the group and is rarely meant.
func DefaultSubscriptionGroupConfig(name string) SubscriptionGroupConfig {
	return SubscriptionGroupConfig{
		GroupName:                      name,
		ConsumeEnable:                  true,
		ConsumeFromMinEnable:           true,
		ConsumeBroadcastEnable:         true,
		NotifyConsumerIDsChangedEnable: true,
		RetryQueueNums:                 1,
		RetryMaxTimes:                  16,
		WhichBrokerWhenConsumeSlowly:   1,
	}
}

func (c *SubscriptionGroupConfig) read(d *decoder) {
	d.object(func(key string) {
		switch key {
		case "groupName":
			c.GroupName = d.text()
		case "consumeEnable":
			c.ConsumeEnable = d.flag()
		case "consumeFromMinEnable":
			c.ConsumeFromMinEnable = d.flag()
		case "consumeBroadcastEnable":
			c.ConsumeBroadcastEnable = d.flag()
		case "notifyConsumerIdsChangedEnable":
			c.NotifyConsumerIDsChangedEnable = d.flag()
		case "retryQueueNums":
			c.RetryQueueNums = d.int32()
		case "retryMaxTimes":
			c.RetryMaxTimes = d.int32()
		case "brokerId":
			c.BrokerID = d.int64()
		case "whichBrokerWhenConsumeSlowly":
			c.WhichBrokerWhenConsumeSlowly = d.int64()
		default:
			d.skip()
		}
	})
}

func (c SubscriptionGroupConfig) write(e *encoder) {
	e.object(func() {
		e.intMember("brokerId", c.BrokerID)
		e.flagMember("consumeBroadcastEnable", c.ConsumeBroadcastEnable)
		e.flagMember("consumeEnable", c.ConsumeEnable)
		e.flagMember("consumeFromMinEnable", c.ConsumeFromMinEnable)
		e.member("groupName", c.GroupName)
		e.flagMember("notifyConsumerIdsChangedEnable", c.NotifyConsumerIDsChangedEnable)
		e.intMember("retryMaxTimes", int64(c.RetryMaxTimes))
		e.intMember("retryQueueNums", int64(c.RetryQueueNums))
		e.intMember("whichBrokerWhenConsumeSlowly", c.WhichBrokerWhenConsumeSlowly)
	})
}

// Marshal is the configuration as it travels, in UPDATE_AND_CREATE_SUBSCRIPTIONGROUP.
func (c *SubscriptionGroupConfig) Marshal() []byte { return marshalJSON(c.write) }

// ParseSubscriptionGroupConfig reads a configuration; what it leaves out has the
// default.
func ParseSubscriptionGroupConfig(b []byte) (SubscriptionGroupConfig, error) {
	c := DefaultSubscriptionGroupConfig("")
	err := parseJSON(b, "subscription group", c.read)
	return c, err
}

// A SubscriptionGroupTable is the body of the answer to
// GET_ALL_SUBSCRIPTIONGROUP_CONFIG.
type SubscriptionGroupTable struct {
	DataVersion DataVersion
	Groups      map[string]SubscriptionGroupConfig
}

// Marshal is the table as it travels.
func (t *SubscriptionGroupTable) Marshal() []byte {
	return marshalJSON(func(e *encoder) {
		e.object(func() {
			e.key("dataVersion")
			t.DataVersion.write(e)
			e.key("subscriptionGroupTable")
			writeTable(e, t.Groups, func(_ string, c SubscriptionGroupConfig) { c.write(e) })
		})
	})
}

// ParseSubscriptionGroupTable reads a table of groups.
func ParseSubscriptionGroupTable(b []byte) (t SubscriptionGroupTable, err error) {
	err = parseJSON(b, "subscription groups", func(d *decoder) {
		d.object(func(key string) {
			switch key {
			case "dataVersion":
				t.DataVersion.read(d)
			case "subscriptionGroupTable":
				t.Groups = make(map[string]SubscriptionGroupConfig)
				d.object(func(name string) {
					c := DefaultSubscriptionGroupConfig(name)
					c.read(d)
					t.Groups[name] = c
				})
			default:
				d.skip()
			}
		})
	})
	return t, err
}

// A Connection is one client's connection, as seen by a broker.
type Connection struct {
	ClientAddr string // ip:port
	ClientID   string
	Language   string
	Version    int32
}

func readConnections(d *decoder) []Connection {
	var list []Connection
	d.array(func() {
		var c Connection
		d.object(func(key string) {
			switch key {
			case "clientAddr":
				c.ClientAddr = d.text()
			case "clientId":
				c.ClientID = d.text()
			case "language":
				c.Language = d.enum(languageNames)
			case "version":
				c.Version = d.int32()
			default:
				d.skip()
			}
		})
		list = append(list, c)
	})
	return list
}

func writeConnections(e *encoder, list []Connection) {
	writeList(e, list, func(c Connection) {
		e.object(func() {
			e.member("clientAddr", c.ClientAddr)
			e.member("clientId", c.ClientID)
			e.optMember("language", c.Language)
			e.intMember("version", int64(c.Version))
		})
	})
}

// ConsumerConnection is the body of the answer to GET_CONSUMER_CONNECTION_LIST.
type ConsumerConnection struct {
	Connections      []Connection
	Subscriptions    map[string]SubscriptionData // by topic
	ConsumeType      string
	MessageModel     string
	ConsumeFromWhere string
}

// Marshal is the body as it travels.
func (c *ConsumerConnection) Marshal() []byte {
	return marshalJSON(func(e *encoder) {
		e.object(func() {
			e.key("connectionSet")
			writeConnections(e, c.Connections)
			e.optMember("consumeFromWhere", c.ConsumeFromWhere)
			e.optMember("consumeType", c.ConsumeType)
			e.optMember("messageModel", c.MessageModel)
			e.key("subscriptionTable")
			writeTable(e, c.Subscriptions, func(_ string, s SubscriptionData) { s.write(e) })
		})
	})
}

// ParseConsumerConnection reads the body of the answer to
// GET_CONSUMER_CONNECTION_LIST.
func ParseConsumerConnection(b []byte) (c ConsumerConnection, err error) {
	err = parseJSON(b, "consumer connections", func(d *decoder) {
		d.object(func(key string) {
			switch key {
			case "connectionSet":
				c.Connections = readConnections(d)
			case "subscriptionTable":
				c.Subscriptions = make(map[string]SubscriptionData)
				d.object(func(topic string) {
					s := SubscriptionData{Topic: topic}
					s.read(d)
					c.Subscriptions[topic] = s
				})
			case "consumeType":
				c.ConsumeType = d.enum(consumeTypeNames)
			case "messageModel":
				c.MessageModel = d.enum(messageModelNames)
			case "consumeFromWhere":
				c.ConsumeFromWhere = d.enum(fromWhereNames)
			default:
				d.skip()
			}
		})
	})
	return c, err
}

// ProducerConnection is the body of the answer to GET_PRODUCER_CONNECTION_LIST.
type ProducerConnection struct {
	Connections []Connection
}

// Marshal is the body as it travels.
func (p *ProducerConnection) Marshal() []byte {
	return marshalJSON(func(e *encoder) {
		e.object(func() {
			e.key("connectionSet")
			writeConnections(e, p.Connections)
		})
	})
}

// ParseProducerConnection reads the body of the answer to
// GET_PRODUCER_CONNECTION_LIST.
func ParseProducerConnection(b []byte) (p ProducerConnection, err error) {
	err = parseJSON(b, "producer connections", func(d *decoder) {
		d.object(func(key string) {
			if key != "connectionSet" {
				d.skip()
				return
			}
			p.Connections = readConnections(d)
		})
	})
	return p, err
}
