package wire

// Headers that share the form of another.
type (
	// ConsumerListRequest is the header of GET_CONSUMER_LIST_BY_GROUP.
	ConsumerListRequest = ConsumerGroupRequest
	// ConsumerConnectionRequest is the header of GET_CONSUMER_CONNECTION_LIST.
	ConsumerConnectionRequest = ConsumerGroupRequest
	// NotifyIDsChanged is the header of NOTIFY_CONSUMER_IDS_CHANGED.
	NotifyIDsChanged = ConsumerGroupRequest
)

// SendBackRequest is the header of CONSUMER_SEND_MSG_BACK.
type SendBackRequest struct {
	Offset               int64 // position of the message in the commit log
	Group                string
	DelayLevel           int32 // 0: the broker decides; negative: to the dead-letter queue
	OriginMsgID          string
	OriginTopic          string
	UnitMode             bool
	MaxReconsumeTimes    int32
	HasMaxReconsumeTimes bool // MaxReconsumeTimes was, or is to be, sent
	BrokerName           string
}

// AppendFields implements the transport's Header.
func (h *SendBackRequest) AppendFields(fields []string) []string { return appendBound(fields, h) }

// ParseFields implements the transport's Header.
func (h *SendBackRequest) ParseFields(fields []string) error { return parseBound(fields, h) }

func (h *SendBackRequest) bind(b *binding) {
	b.int64("offset", &h.Offset)
	b.text("group", &h.Group)
	b.int32("delayLevel", &h.DelayLevel)
	b.optText("originMsgId", &h.OriginMsgID)
	b.optText("originTopic", &h.OriginTopic)
	b.optFlag("unitMode", &h.UnitMode)
	b.hasInt32("maxReconsumeTimes", &h.MaxReconsumeTimes, &h.HasMaxReconsumeTimes)
	b.optText("bname", &h.BrokerName)
}

// UnregisterClientRequest is the header of UNREGISTER_CLIENT.
type UnregisterClientRequest struct {
	ClientID      string
	ProducerGroup string
	ConsumerGroup string
	BrokerName    string
}

// AppendFields implements the transport's Header.
func (h *UnregisterClientRequest) AppendFields(fields []string) []string {
	return appendBound(fields, h)
}

// ParseFields implements the transport's Header.
func (h *UnregisterClientRequest) ParseFields(fields []string) error { return parseBound(fields, h) }

func (h *UnregisterClientRequest) bind(b *binding) {
	b.text("clientID", &h.ClientID)
	b.optText("producerGroup", &h.ProducerGroup)
	b.optText("consumerGroup", &h.ConsumerGroup)
	b.optText("bname", &h.BrokerName)
}

// ConsumerGroupRequest is the header of the requests that name one consumer group.
type ConsumerGroupRequest struct {
	ConsumerGroup string
}

// AppendFields implements the transport's Header.
func (h *ConsumerGroupRequest) AppendFields(fields []string) []string { return appendBound(fields, h) }

// ParseFields implements the transport's Header.
func (h *ConsumerGroupRequest) ParseFields(fields []string) error { return parseBound(fields, h) }

func (h *ConsumerGroupRequest) bind(b *binding) {
	b.text("consumerGroup", &h.ConsumerGroup)
}

// ProducerConnectionRequest is the header of GET_PRODUCER_CONNECTION_LIST.
type ProducerConnectionRequest struct {
	ProducerGroup string
}

// AppendFields implements the transport's Header.
func (h *ProducerConnectionRequest) AppendFields(fields []string) []string {
	return appendBound(fields, h)
}

// ParseFields implements the transport's Header.
func (h *ProducerConnectionRequest) ParseFields(fields []string) error { return parseBound(fields, h) }

func (h *ProducerConnectionRequest) bind(b *binding) {
	b.text("producerGroup", &h.ProducerGroup)
}

// EndTransactionRequest is the header of END_TRANSACTION.
type EndTransactionRequest struct {
	ProducerGroup        string
	TranStateTableOffset int64 // queue offset of the half message
	CommitLogOffset      int64 // position of the half message
	CommitOrRollback     int32 // SysTransactionNone (unknown), …Commit or …Rollback
	FromTransactionCheck bool
	MsgID                string // the unique key
	TransactionID        string
	BrokerName           string
}

// AppendFields implements the transport's Header.
func (h *EndTransactionRequest) AppendFields(fields []string) []string { return appendBound(fields, h) }

// ParseFields implements the transport's Header.
func (h *EndTransactionRequest) ParseFields(fields []string) error { return parseBound(fields, h) }

func (h *EndTransactionRequest) bind(b *binding) {
	b.text("producerGroup", &h.ProducerGroup)
	b.int64("tranStateTableOffset", &h.TranStateTableOffset)
	b.int64("commitLogOffset", &h.CommitLogOffset)
	b.int32("commitOrRollback", &h.CommitOrRollback)
	b.optFlag("fromTransactionCheck", &h.FromTransactionCheck)
	b.text("msgId", &h.MsgID)
	b.optText("transactionId", &h.TransactionID)
	b.optText("bname", &h.BrokerName)
}

// CheckTransactionRequest is the header of CHECK_TRANSACTION_STATE.
type CheckTransactionRequest struct {
	TranStateTableOffset int64
	CommitLogOffset      int64
	MsgID                string
	TransactionID        string
	OffsetMsgID          string
	BrokerName           string
}

// AppendFields implements the transport's Header.
func (h *CheckTransactionRequest) AppendFields(fields []string) []string {
	return appendBound(fields, h)
}

// ParseFields implements the transport's Header.
func (h *CheckTransactionRequest) ParseFields(fields []string) error { return parseBound(fields, h) }

func (h *CheckTransactionRequest) bind(b *binding) {
	b.int64("tranStateTableOffset", &h.TranStateTableOffset)
	b.int64("commitLogOffset", &h.CommitLogOffset)
	b.optText("msgId", &h.MsgID)
	b.optText("transactionId", &h.TransactionID)
	b.optText("offsetMsgId", &h.OffsetMsgID)
	b.optText("bname", &h.BrokerName)
}

// PushReplyRequest is the header of PUSH_REPLY_MESSAGE_TO_CLIENT.
type PushReplyRequest struct {
	ProducerGroup         string
	Topic                 string
	DefaultTopic          string
	DefaultTopicQueueNums int32
	QueueID               int32
	SysFlag               int32
	BornTimestamp         int64
	Flag                  int32
	Properties            string
	ReconsumeTimes        int32
	UnitMode              bool
	BornHost              string // ip:port
	StoreHost             string // ip:port
	StoreTimestamp        int64
}

// AppendFields implements the transport's Header.
func (h *PushReplyRequest) AppendFields(fields []string) []string { return appendBound(fields, h) }

// ParseFields implements the transport's Header.
func (h *PushReplyRequest) ParseFields(fields []string) error { return parseBound(fields, h) }

func (h *PushReplyRequest) bind(b *binding) {
	b.text("producerGroup", &h.ProducerGroup)
	b.text("topic", &h.Topic)
	b.alwaysText("defaultTopic", &h.DefaultTopic)
	b.alwaysInt32("defaultTopicQueueNums", &h.DefaultTopicQueueNums)
	b.int32("queueId", &h.QueueID)
	b.int32("sysFlag", &h.SysFlag)
	b.int64("bornTimestamp", &h.BornTimestamp)
	b.int32("flag", &h.Flag)
	b.optText("properties", &h.Properties)
	b.alwaysInt32("reconsumeTimes", &h.ReconsumeTimes)
	b.alwaysFlag("unitMode", &h.UnitMode)
	b.text("bornHost", &h.BornHost)
	b.text("storeHost", &h.StoreHost)
	b.int64("storeTimestamp", &h.StoreTimestamp)
}
