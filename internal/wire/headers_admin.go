package wire

// Headers that share the form of another.
type (
	// TopicStatsRequest is the header of GET_TOPIC_STATS_INFO.
	TopicStatsRequest = TopicRequest
	// DeleteTopicRequest is the header of DELETE_TOPIC_IN_BROKER.
	DeleteTopicRequest = TopicRequest
	// TopicConsumersRequest is the header of QUERY_TOPIC_CONSUME_BY_WHO.
	TopicConsumersRequest = TopicRequest
)

// CreateTopicRequest is the header of UPDATE_AND_CREATE_TOPIC.
type CreateTopicRequest struct {
	Topic           string
	DefaultTopic    string // sent by every tool, of no effect
	ReadQueueNums   int32
	WriteQueueNums  int32
	Perm            int32
	TopicFilterType string
	TopicSysFlag    int32
	Order           bool
	Attributes      string // 5.x
}

// AppendFields implements the transport's Header.
func (h *CreateTopicRequest) AppendFields(fields []string) []string { return appendBound(fields, h) }

// ParseFields implements the transport's Header.
func (h *CreateTopicRequest) ParseFields(fields []string) error { return parseBound(fields, h) }

func (h *CreateTopicRequest) bind(b *binding) {
	b.text("topic", &h.Topic)
	b.alwaysText("defaultTopic", &h.DefaultTopic)
	b.int32("readQueueNums", &h.ReadQueueNums)
	b.int32("writeQueueNums", &h.WriteQueueNums)
	b.int32("perm", &h.Perm)
	b.alwaysText("topicFilterType", &h.TopicFilterType)
	b.alwaysInt32("topicSysFlag", &h.TopicSysFlag)
	b.alwaysFlag("order", &h.Order)
	b.optText("attributes", &h.Attributes)
}

// TopicRequest is the header of the requests that name one topic.
type TopicRequest struct {
	Topic string
}

// AppendFields implements the transport's Header.
func (h *TopicRequest) AppendFields(fields []string) []string { return appendBound(fields, h) }

// ParseFields implements the transport's Header.
func (h *TopicRequest) ParseFields(fields []string) error { return parseBound(fields, h) }

func (h *TopicRequest) bind(b *binding) {
	b.text("topic", &h.Topic)
}

// BrokerConfigResponse is the header of the answer to GET_BROKER_CONFIG.
type BrokerConfigResponse struct {
	Version string // a DataVersion as JSON
}

// AppendFields implements the transport's Header.
func (h *BrokerConfigResponse) AppendFields(fields []string) []string { return appendBound(fields, h) }

// ParseFields implements the transport's Header.
func (h *BrokerConfigResponse) ParseFields(fields []string) error { return parseBound(fields, h) }

func (h *BrokerConfigResponse) bind(b *binding) {
	b.text("version", &h.Version)
}

// DeleteGroupRequest is the header of DELETE_SUBSCRIPTIONGROUP.
type DeleteGroupRequest struct {
	GroupName    string
	RemoveOffset bool
}

// AppendFields implements the transport's Header.
func (h *DeleteGroupRequest) AppendFields(fields []string) []string { return appendBound(fields, h) }

// ParseFields implements the transport's Header.
func (h *DeleteGroupRequest) ParseFields(fields []string) error { return parseBound(fields, h) }

func (h *DeleteGroupRequest) bind(b *binding) {
	b.text("groupName", &h.GroupName)
	b.optFlag("removeOffset", &h.RemoveOffset)
}

// ConsumeStatsRequest is the header of GET_CONSUME_STATS.
type ConsumeStatsRequest struct {
	ConsumerGroup string
	Topic         string
}

// AppendFields implements the transport's Header.
func (h *ConsumeStatsRequest) AppendFields(fields []string) []string { return appendBound(fields, h) }

// ParseFields implements the transport's Header.
func (h *ConsumeStatsRequest) ParseFields(fields []string) error { return parseBound(fields, h) }

func (h *ConsumeStatsRequest) bind(b *binding) {
	b.text("consumerGroup", &h.ConsumerGroup)
	b.optText("topic", &h.Topic)
}

// ResetOffsetRequest is the header of RESET_CONSUMER_CLIENT_OFFSET and INVOKE_BROKER_TO_RESET_OFFSET.
type ResetOffsetRequest struct {
	Topic     string
	Group     string
	Timestamp int64 // milliseconds since 1970, -1 for the end
	Force     bool
}

// AppendFields implements the transport's Header.
func (h *ResetOffsetRequest) AppendFields(fields []string) []string { return appendBound(fields, h) }

// ParseFields implements the transport's Header.
func (h *ResetOffsetRequest) ParseFields(fields []string) error { return parseBound(fields, h) }

func (h *ResetOffsetRequest) bind(b *binding) {
	b.text("topic", &h.Topic)
	b.text("group", &h.Group)
	b.int64("timestamp", &h.Timestamp)
	b.flag("isForce", &h.Force)
}

// ConsumerStatusRequest is the header of GET_CONSUMER_STATUS_FROM_CLIENT and INVOKE_BROKER_TO_GET_CONSUMER_STATUS.
type ConsumerStatusRequest struct {
	Topic      string
	Group      string
	ClientAddr string
}

// AppendFields implements the transport's Header.
func (h *ConsumerStatusRequest) AppendFields(fields []string) []string { return appendBound(fields, h) }

// ParseFields implements the transport's Header.
func (h *ConsumerStatusRequest) ParseFields(fields []string) error { return parseBound(fields, h) }

func (h *ConsumerStatusRequest) bind(b *binding) {
	b.text("topic", &h.Topic)
	b.text("group", &h.Group)
	b.optText("clientAddr", &h.ClientAddr)
}

// ConsumeTimeSpanRequest is the header of QUERY_CONSUME_TIME_SPAN.
type ConsumeTimeSpanRequest struct {
	Topic string
	Group string
}

// AppendFields implements the transport's Header.
func (h *ConsumeTimeSpanRequest) AppendFields(fields []string) []string {
	return appendBound(fields, h)
}

// ParseFields implements the transport's Header.
func (h *ConsumeTimeSpanRequest) ParseFields(fields []string) error { return parseBound(fields, h) }

func (h *ConsumeTimeSpanRequest) bind(b *binding) {
	b.text("topic", &h.Topic)
	b.text("group", &h.Group)
}

// RunningInfoRequest is the header of GET_CONSUMER_RUNNING_INFO.
type RunningInfoRequest struct {
	ConsumerGroup string
	ClientID      string
	JStack        bool
}

// AppendFields implements the transport's Header.
func (h *RunningInfoRequest) AppendFields(fields []string) []string { return appendBound(fields, h) }

// ParseFields implements the transport's Header.
func (h *RunningInfoRequest) ParseFields(fields []string) error { return parseBound(fields, h) }

func (h *RunningInfoRequest) bind(b *binding) {
	b.text("consumerGroup", &h.ConsumerGroup)
	b.text("clientId", &h.ClientID)
	b.optFlag("jstackEnable", &h.JStack)
}

// ConsumeDirectlyRequest is the header of CONSUME_MESSAGE_DIRECTLY.
type ConsumeDirectlyRequest struct {
	ConsumerGroup string
	ClientID      string
	MsgID         string // an offset id
	BrokerName    string
}

// AppendFields implements the transport's Header.
func (h *ConsumeDirectlyRequest) AppendFields(fields []string) []string {
	return appendBound(fields, h)
}

// ParseFields implements the transport's Header.
func (h *ConsumeDirectlyRequest) ParseFields(fields []string) error { return parseBound(fields, h) }

func (h *ConsumeDirectlyRequest) bind(b *binding) {
	b.text("consumerGroup", &h.ConsumerGroup)
	b.optText("clientId", &h.ClientID)
	b.optText("msgId", &h.MsgID)
	b.optText("brokerName", &h.BrokerName)
}
