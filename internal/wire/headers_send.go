package wire

// SendRequest is the header of SEND_MESSAGE and SEND_REPLY_MESSAGE, with long
// field names. The body is the message's body, or a batch when Batch is set.
type SendRequest struct {
	ProducerGroup         string
	Topic                 string
	DefaultTopic          string // template of a topic to be created
	DefaultTopicQueueNums int32
	QueueID               int32 // negative: the broker chooses
	SysFlag               int32
	BornTimestamp         int64 // milliseconds since 1970
	Flag                  int32 // the user's
	Properties            string
	ReconsumeTimes        int32
	UnitMode              bool
	MaxReconsumeTimes     int32
	HasMaxReconsumeTimes  bool // MaxReconsumeTimes was, or is to be, sent
	Batch                 bool
	BrokerName            string
}

// SendRequestV2 is the header of SEND_MESSAGE_V2, SEND_BATCH_MESSAGE and
// SEND_REPLY_MESSAGE_V2: the same fields under names of one letter.
type SendRequestV2 SendRequest

// The places of a send header's fields in its name tables; the first eight are
// required.
const (
	sendGroup = iota
	sendTopic
	sendDefaultTopic
	sendDefaultQueues
	sendQueue
	sendSysFlag
	sendBorn
	sendFlag
	sendProperties
	sendReconsume
	sendUnit
	sendMaxReconsume
	sendBatch
	sendBroker
	sendFields
	sendRequired = sendProperties
)

var sendLongNames = [sendFields]string{
	"producerGroup", "topic", "defaultTopic", "defaultTopicQueueNums", "queueId", "sysFlag", "bornTimestamp", "flag",
	"properties", "reconsumeTimes", "unitMode", "maxReconsumeTimes", "batch", "bname",
}

var sendShortNames = [sendFields]string{"a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l", "m", "n"}

// AppendFields implements the transport's Header.
func (h *SendRequest) AppendFields(fields []string) []string {
	return h.appendNamed(fields, &sendLongNames)
}

// ParseFields implements the transport's Header.
func (h *SendRequest) ParseFields(fields []string) error {
	var r fieldReader
	for i := 0; i+1 < len(fields); i += 2 {
		for bit := range sendLongNames {
			if sendLongNames[bit] == fields[i] {
				h.set(&r, bit, fields[i], fields[i+1])
				break
			}
		}
	}
	return r.done(sendLongNames[:sendRequired])
}

// AppendFields implements the transport's Header.
func (h *SendRequestV2) AppendFields(fields []string) []string {
	return (*SendRequest)(h).appendNamed(fields, &sendShortNames)
}

// ParseFields implements the transport's Header.
func (h *SendRequestV2) ParseFields(fields []string) error {
	var r fieldReader
	for i := 0; i+1 < len(fields); i += 2 {
		if key := fields[i]; len(key) == 1 && 'a' <= key[0] && key[0] < 'a'+sendFields {
			(*SendRequest)(h).set(&r, int(key[0]-'a'), key, fields[i+1])
		}
	}
	return r.done(sendShortNames[:sendRequired])
}

func (h *SendRequest) appendNamed(fields []string, names *[sendFields]string) []string {
	w := fieldWriter{fields: fields}
	w.text(names[sendGroup], h.ProducerGroup)
	w.text(names[sendTopic], h.Topic)
	w.text(names[sendDefaultTopic], h.DefaultTopic)
	w.number(names[sendDefaultQueues], int64(h.DefaultTopicQueueNums))
	w.number(names[sendQueue], int64(h.QueueID))
	w.number(names[sendSysFlag], int64(h.SysFlag))
	w.number(names[sendBorn], h.BornTimestamp)
	w.number(names[sendFlag], int64(h.Flag))
	w.optionalText(names[sendProperties], h.Properties)
	if h.ReconsumeTimes != 0 {
		w.number(names[sendReconsume], int64(h.ReconsumeTimes))
	}
	if h.UnitMode {
		w.flag(names[sendUnit], true)
	}
	if h.HasMaxReconsumeTimes {
		w.number(names[sendMaxReconsume], int64(h.MaxReconsumeTimes))
	}
	if h.Batch {
		w.flag(names[sendBatch], true)
	}
	w.optionalText(names[sendBroker], h.BrokerName)
	return w.done()
}

func (h *SendRequest) set(r *fieldReader, bit int, key, value string) {
	switch bit {
	case sendGroup:
		r.text(bit, &h.ProducerGroup, value)
	case sendTopic:
		r.text(bit, &h.Topic, value)
	case sendDefaultTopic:
		r.text(bit, &h.DefaultTopic, value)
	case sendDefaultQueues:
		r.int32(bit, &h.DefaultTopicQueueNums, key, value)
	case sendQueue:
		r.int32(bit, &h.QueueID, key, value)
	case sendSysFlag:
		r.int32(bit, &h.SysFlag, key, value)
	case sendBorn:
		r.int64(bit, &h.BornTimestamp, key, value)
	case sendFlag:
		r.int32(bit, &h.Flag, key, value)
	case sendProperties:
		r.text(bit, &h.Properties, value)
	case sendReconsume:
		r.int32(bit, &h.ReconsumeTimes, key, value)
	case sendUnit:
		r.flag(bit, &h.UnitMode, value)
	case sendMaxReconsume:
		h.HasMaxReconsumeTimes = true
		r.int32(bit, &h.MaxReconsumeTimes, key, value)
	case sendBatch:
		r.flag(bit, &h.Batch, value)
	case sendBroker:
		r.text(bit, &h.BrokerName, value)
	}
}

// SendResponse is the header of the answer to any send that stored something.
type SendResponse struct {
	MsgID         string // offset ids in hexadecimal, joined by commas for a batch
	QueueID       int32
	QueueOffset   int64 // of the first message
	TransactionID string
	Region        string // MSG_REGION; left out when empty
	TraceOn       bool   // TRACE_ON; absent means true, as for RocketMQ's Java client
}

// AppendFields implements the transport's Header.
func (h *SendResponse) AppendFields(fields []string) []string {
	w := fieldWriter{fields: fields}
	w.text("msgId", h.MsgID)
	w.number("queueId", int64(h.QueueID))
	w.number("queueOffset", h.QueueOffset)
	w.optionalText("transactionId", h.TransactionID)
	w.optionalText(PropRegion, h.Region)
	w.flag(PropTraceOn, h.TraceOn)
	return w.done()
}

// ParseFields implements the transport's Header.
func (h *SendResponse) ParseFields(fields []string) error {
	var r fieldReader
	h.TraceOn = true
	for i := 0; i+1 < len(fields); i += 2 {
		value := fields[i+1]
		switch key := fields[i]; key {
		case "msgId":
			r.text(0, &h.MsgID, value)
		case "queueId":
			r.int32(1, &h.QueueID, key, value)
		case "queueOffset":
			r.int64(2, &h.QueueOffset, key, value)
		case "transactionId":
			r.text(3, &h.TransactionID, value)
		case PropRegion:
			r.text(4, &h.Region, value)
		case PropTraceOn:
			if r.take(5) {
				h.TraceOn = value != "false"
			}
		}
	}
	return r.done(sendResponseNames)
}

var sendResponseNames = []string{"msgId", "queueId", "queueOffset"}

// SendFailure is the header of the answer to a refused send. RocketMQ's Java
// client reads these two fields from every send response without checking that
// there are any.
type SendFailure struct {
	Region  string
	TraceOn bool
}

// AppendFields implements the transport's Header.
func (h *SendFailure) AppendFields(fields []string) []string { return appendBound(fields, h) }

// ParseFields implements the transport's Header.
func (h *SendFailure) ParseFields(fields []string) error { return parseBound(fields, h) }

func (h *SendFailure) bind(b *binding) {
	b.optText(PropRegion, &h.Region)
	if !b.writing {
		h.TraceOn = true
		if v, ok := b.find(PropTraceOn); ok {
			h.TraceOn = v != "false"
		}
		return
	}
	b.flag(PropTraceOn, &h.TraceOn)
}
