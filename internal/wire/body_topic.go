package wire

// A DataVersion tells whether a table has changed.
type DataVersion struct {
	Counter      int64
	Timestamp    int64 // milliseconds since 1970
	StateVersion int64 // 5.x; left out when zero
}

func (v *DataVersion) read(d *decoder) {
	d.object(func(key string) {
		switch key {
		case "counter":
			v.Counter = d.int64()
		case "timestamp":
			v.Timestamp = d.int64()
		case "stateVersion":
			v.StateVersion = d.int64()
		default:
			d.skip()
		}
	})
}

func (v DataVersion) write(e *encoder) {
	e.object(func() {
		e.intMember("counter", v.Counter)
		if v.StateVersion != 0 {
			e.intMember("stateVersion", v.StateVersion)
		}
		e.intMember("timestamp", v.Timestamp)
	})
}

// Marshal is the version as it travels, in bodies and as a header field.
func (v DataVersion) Marshal() []byte { return marshalJSON(v.write) }

// ParseDataVersion reads a version.
func ParseDataVersion(b []byte) (v DataVersion, err error) {
	err = parseJSON(b, "data version", v.read)
	return v, err
}

// Values of a topic's filter type.
const (
	FilterSingleTag = "SINGLE_TAG"
	FilterMultiTag  = "MULTI_TAG"
)

var filterTypeNames = []string{FilterSingleTag, FilterMultiTag}

// A TopicConfig is what a broker knows about a topic.
type TopicConfig struct {
	TopicName       string
	ReadQueueNums   int32
	WriteQueueNums  int32
	Perm            int32
	TopicFilterType string // FilterSingleTag when empty
	TopicSysFlag    int32
	Order           bool
	Attributes      map[string]string // 5.x; left out when empty
}

func (c *TopicConfig) filterType() string {
	if c.TopicFilterType == "" {
		return FilterSingleTag
	}
	return c.TopicFilterType
}

func (c *TopicConfig) read(d *decoder) {
	d.object(func(key string) {
		switch key {
		case "topicName":
			c.TopicName = d.text()
		case "readQueueNums":
			c.ReadQueueNums = d.int32()
		case "writeQueueNums":
			c.WriteQueueNums = d.int32()
		case "perm":
			c.Perm = d.int32()
		case "topicFilterType":
			c.TopicFilterType = d.enum(filterTypeNames)
		case "topicSysFlag":
			c.TopicSysFlag = d.int32()
		case "order":
			c.Order = d.flag()
		case "attributes":
			if c.Attributes = d.textTable(); len(c.Attributes) == 0 {
				c.Attributes = nil
			}
		default:
			d.skip()
		}
	})
}

func (c TopicConfig) write(e *encoder) {
	e.object(func() {
		if len(c.Attributes) > 0 {
			e.key("attributes")
			e.textTable(c.Attributes)
		}
		e.flagMember("order", c.Order)
		e.intMember("perm", int64(c.Perm))
		e.intMember("readQueueNums", int64(c.ReadQueueNums))
		e.member("topicFilterType", c.filterType())
		e.member("topicName", c.TopicName)
		e.intMember("topicSysFlag", int64(c.TopicSysFlag))
		e.intMember("writeQueueNums", int64(c.WriteQueueNums))
	})
}

// Marshal is the configuration as it travels.
func (c *TopicConfig) Marshal() []byte { return marshalJSON(c.write) }

// ParseTopicConfig reads one topic's configuration.
func ParseTopicConfig(b []byte) (c TopicConfig, err error) {
	err = parseJSON(b, "topic configuration", c.read)
	return c, err
}

// A TopicConfigTable is the body of the answer to GET_ALL_TOPIC_CONFIG and a part
// of a broker's registration.
type TopicConfigTable struct {
	DataVersion DataVersion
	Topics      map[string]TopicConfig
}

func (t *TopicConfigTable) read(d *decoder) {
	d.object(func(key string) {
		switch key {
		case "dataVersion":
			t.DataVersion.read(d)
		case "topicConfigTable":
			t.Topics = make(map[string]TopicConfig)
			d.object(func(name string) {
				c := TopicConfig{TopicName: name}
				c.read(d)
				t.Topics[name] = c
			})
		default:
			d.skip()
		}
	})
}

func (t *TopicConfigTable) write(e *encoder) {
	e.object(func() {
		e.key("dataVersion")
		t.DataVersion.write(e)
		e.key("topicConfigTable")
		writeTable(e, t.Topics, func(_ string, c TopicConfig) { c.write(e) })
	})
}

// Marshal is the table as it travels.
func (t *TopicConfigTable) Marshal() []byte { return marshalJSON(t.write) }

// ParseTopicConfigTable reads a table of topics.
func ParseTopicConfigTable(b []byte) (t TopicConfigTable, err error) {
	err = parseJSON(b, "topic table", t.read)
	return t, err
}

// A TopicList is a list of names; most often those of topics.
type TopicList struct {
	BrokerAddr string // left out when empty
	Topics     []string
}

// Marshal is the list as it travels.
func (l *TopicList) Marshal() []byte {
	return marshalJSON(func(e *encoder) {
		e.object(func() {
			e.optMember("brokerAddr", l.BrokerAddr)
			e.key("topicList")
			e.texts(l.Topics)
		})
	})
}

// ParseTopicList reads a list of names.
func ParseTopicList(b []byte) (l TopicList, err error) {
	err = parseJSON(b, "topic list", func(d *decoder) {
		d.object(func(key string) {
			switch key {
			case "brokerAddr":
				l.BrokerAddr = d.text()
			case "topicList":
				l.Topics = d.texts()
			default:
				d.skip()
			}
		})
	})
	return l, err
}

// A KVTable is a table of texts.
type KVTable struct {
	Table map[string]string
}

// Marshal is the table as it travels.
func (t *KVTable) Marshal() []byte {
	return marshalJSON(func(e *encoder) {
		e.object(func() {
			e.key("table")
			e.textTable(t.Table)
		})
	})
}

// ParseKVTable reads a table of texts.
func ParseKVTable(b []byte) (t KVTable, err error) {
	err = parseJSON(b, "table", func(d *decoder) {
		d.object(func(key string) {
			if key != "table" {
				d.skip()
				return
			}
			t.Table = d.textTable()
		})
	})
	return t, err
}
