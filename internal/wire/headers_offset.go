package wire

// Headers that share the form of another.
type (
	// QueryOffsetResponse answers QUERY_CONSUMER_OFFSET.
	QueryOffsetResponse = OffsetResponse
	// SearchOffsetResponse answers SEARCH_OFFSET_BY_TIMESTAMP.
	SearchOffsetResponse = OffsetResponse
	// MaxOffsetRequest is the header of GET_MAX_OFFSET.
	MaxOffsetRequest = QueueRequest
	// MaxOffsetResponse answers GET_MAX_OFFSET; the end is exclusive.
	MaxOffsetResponse = OffsetResponse
	// MinOffsetRequest is the header of GET_MIN_OFFSET.
	MinOffsetRequest = QueueRequest
	// MinOffsetResponse answers GET_MIN_OFFSET.
	MinOffsetResponse = OffsetResponse
	// EarliestTimeRequest is the header of GET_EARLIEST_MSG_STORETIME.
	EarliestTimeRequest = QueueRequest
)

// QueryOffsetRequest is the header of QUERY_CONSUMER_OFFSET.
type QueryOffsetRequest struct {
	ConsumerGroup string
	Topic         string
	QueueID       int32
	BrokerName    string
	// NotFoundAsError is set when the caller wants QueryNotFound rather than offset
	// zero for a group without an offset (5.x: setZeroIfNotFound=false).
	NotFoundAsError bool
}

// AppendFields implements the transport's Header.
func (h *QueryOffsetRequest) AppendFields(fields []string) []string { return appendBound(fields, h) }

// ParseFields implements the transport's Header.
func (h *QueryOffsetRequest) ParseFields(fields []string) error { return parseBound(fields, h) }

func (h *QueryOffsetRequest) bind(b *binding) {
	b.text("consumerGroup", &h.ConsumerGroup)
	b.text("topic", &h.Topic)
	b.int32("queueId", &h.QueueID)
	b.optText("bname", &h.BrokerName)
	b.optRefusal("setZeroIfNotFound", &h.NotFoundAsError)
}

// OffsetResponse is the header of every answer that is one offset.
type OffsetResponse struct {
	Offset int64
}

// AppendFields implements the transport's Header.
func (h *OffsetResponse) AppendFields(fields []string) []string { return appendBound(fields, h) }

// ParseFields implements the transport's Header.
func (h *OffsetResponse) ParseFields(fields []string) error { return parseBound(fields, h) }

func (h *OffsetResponse) bind(b *binding) {
	b.int64("offset", &h.Offset)
}

// UpdateOffsetRequest is the header of UPDATE_CONSUMER_OFFSET.
type UpdateOffsetRequest struct {
	ConsumerGroup string
	Topic         string
	QueueID       int32
	CommitOffset  int64
	BrokerName    string
}

// AppendFields implements the transport's Header.
func (h *UpdateOffsetRequest) AppendFields(fields []string) []string { return appendBound(fields, h) }

// ParseFields implements the transport's Header.
func (h *UpdateOffsetRequest) ParseFields(fields []string) error { return parseBound(fields, h) }

func (h *UpdateOffsetRequest) bind(b *binding) {
	b.text("consumerGroup", &h.ConsumerGroup)
	b.text("topic", &h.Topic)
	b.int32("queueId", &h.QueueID)
	b.int64("commitOffset", &h.CommitOffset)
	b.optText("bname", &h.BrokerName)
}

// SearchOffsetRequest is the header of SEARCH_OFFSET_BY_TIMESTAMP.
type SearchOffsetRequest struct {
	Topic        string
	QueueID      int32
	Timestamp    int64  // milliseconds since 1970
	BoundaryType string // lower or upper, from 5.x clients
	BrokerName   string
}

// AppendFields implements the transport's Header.
func (h *SearchOffsetRequest) AppendFields(fields []string) []string { return appendBound(fields, h) }

// ParseFields implements the transport's Header.
func (h *SearchOffsetRequest) ParseFields(fields []string) error { return parseBound(fields, h) }

func (h *SearchOffsetRequest) bind(b *binding) {
	b.text("topic", &h.Topic)
	b.int32("queueId", &h.QueueID)
	b.int64("timestamp", &h.Timestamp)
	b.optText("boundaryType", &h.BoundaryType)
	b.optText("bname", &h.BrokerName)
}

// QueueRequest is the header of the requests that name one queue.
type QueueRequest struct {
	Topic      string
	QueueID    int32
	BrokerName string
}

// AppendFields implements the transport's Header.
func (h *QueueRequest) AppendFields(fields []string) []string { return appendBound(fields, h) }

// ParseFields implements the transport's Header.
func (h *QueueRequest) ParseFields(fields []string) error { return parseBound(fields, h) }

func (h *QueueRequest) bind(b *binding) {
	b.text("topic", &h.Topic)
	b.int32("queueId", &h.QueueID)
	b.optText("bname", &h.BrokerName)
}

// EarliestTimeResponse is the header of the answer to GET_EARLIEST_MSG_STORETIME.
type EarliestTimeResponse struct {
	Timestamp int64 // milliseconds since 1970, -1 when there is no message
}

// AppendFields implements the transport's Header.
func (h *EarliestTimeResponse) AppendFields(fields []string) []string { return appendBound(fields, h) }

// ParseFields implements the transport's Header.
func (h *EarliestTimeResponse) ParseFields(fields []string) error { return parseBound(fields, h) }

func (h *EarliestTimeResponse) bind(b *binding) {
	b.int64("timestamp", &h.Timestamp)
}

// QueryMessageRequest is the header of QUERY_MESSAGE.
type QueryMessageRequest struct {
	Topic          string
	Key            string
	MaxNum         int32
	BeginTimestamp int64
	EndTimestamp   int64
	UniqueKey      bool // Key is a unique key, not one of KEYS
}

// AppendFields implements the transport's Header.
func (h *QueryMessageRequest) AppendFields(fields []string) []string { return appendBound(fields, h) }

// ParseFields implements the transport's Header.
func (h *QueryMessageRequest) ParseFields(fields []string) error { return parseBound(fields, h) }

func (h *QueryMessageRequest) bind(b *binding) {
	b.text("topic", &h.Topic)
	b.text("key", &h.Key)
	b.int32("maxNum", &h.MaxNum)
	b.int64("beginTimestamp", &h.BeginTimestamp)
	b.int64("endTimestamp", &h.EndTimestamp)
	b.alwaysFlag("_UNIQUE_KEY_QUERY", &h.UniqueKey)
}

// QueryMessageResponse is the header of the answer to QUERY_MESSAGE.
type QueryMessageResponse struct {
	IndexLastUpdateTimestamp int64
	IndexLastUpdateOffset    int64
}

// AppendFields implements the transport's Header.
func (h *QueryMessageResponse) AppendFields(fields []string) []string { return appendBound(fields, h) }

// ParseFields implements the transport's Header.
func (h *QueryMessageResponse) ParseFields(fields []string) error { return parseBound(fields, h) }

func (h *QueryMessageResponse) bind(b *binding) {
	b.int64("indexLastUpdateTimestamp", &h.IndexLastUpdateTimestamp)
	b.int64("indexLastUpdatePhyoffset", &h.IndexLastUpdateOffset)
}

// ViewMessageRequest is the header of VIEW_MESSAGE_BY_ID.
type ViewMessageRequest struct {
	Offset int64 // position in the commit log
}

// AppendFields implements the transport's Header.
func (h *ViewMessageRequest) AppendFields(fields []string) []string { return appendBound(fields, h) }

// ParseFields implements the transport's Header.
func (h *ViewMessageRequest) ParseFields(fields []string) error { return parseBound(fields, h) }

func (h *ViewMessageRequest) bind(b *binding) {
	b.int64("offset", &h.Offset)
}
