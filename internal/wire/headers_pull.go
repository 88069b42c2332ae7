package wire

// PullRequest is the header of PULL_MESSAGE and LITE_PULL_MESSAGE.
type PullRequest struct {
	ConsumerGroup        string
	Topic                string
	QueueID              int32
	QueueOffset          int64 // first offset wanted
	MaxMsgNums           int32
	SysFlag              int32 // Pull… bits
	CommitOffset         int64 // counts with PullCommitOffset
	SuspendTimeoutMillis int64 // counts with PullSuspend
	Subscription         string
	SubVersion           int64
	ExpressionType       string // TAG (when empty) or SQL92
	BrokerName           string
}

var pullRequestNames = []string{
	"consumerGroup", "topic", "queueId", "queueOffset", "maxMsgNums", "sysFlag", "commitOffset", "suspendTimeoutMillis", "subVersion",
}

// AppendFields implements the transport's Header.
func (h *PullRequest) AppendFields(fields []string) []string {
	w := fieldWriter{fields: fields}
	w.text("consumerGroup", h.ConsumerGroup)
	w.text("topic", h.Topic)
	w.number("queueId", int64(h.QueueID))
	w.number("queueOffset", h.QueueOffset)
	w.number("maxMsgNums", int64(h.MaxMsgNums))
	w.number("sysFlag", int64(h.SysFlag))
	w.number("commitOffset", h.CommitOffset)
	w.number("suspendTimeoutMillis", h.SuspendTimeoutMillis)
	w.number("subVersion", h.SubVersion)
	w.optionalText("subscription", h.Subscription)
	w.optionalText("expressionType", h.ExpressionType)
	w.optionalText("bname", h.BrokerName)
	return w.done()
}

// ParseFields implements the transport's Header.
func (h *PullRequest) ParseFields(fields []string) error {
	var r fieldReader
	for i := 0; i+1 < len(fields); i += 2 {
		value := fields[i+1]
		switch key := fields[i]; key {
		case "consumerGroup":
			r.text(0, &h.ConsumerGroup, value)
		case "topic":
			r.text(1, &h.Topic, value)
		case "queueId":
			r.int32(2, &h.QueueID, key, value)
		case "queueOffset":
			r.int64(3, &h.QueueOffset, key, value)
		case "maxMsgNums":
			r.int32(4, &h.MaxMsgNums, key, value)
		case "sysFlag":
			r.int32(5, &h.SysFlag, key, value)
		case "commitOffset":
			r.int64(6, &h.CommitOffset, key, value)
		case "suspendTimeoutMillis":
			r.int64(7, &h.SuspendTimeoutMillis, key, value)
		case "subVersion":
			r.int64(8, &h.SubVersion, key, value)
		case "subscription":
			r.text(9, &h.Subscription, value)
		case "expressionType":
			r.text(10, &h.ExpressionType, value)
		case "bname":
			r.text(11, &h.BrokerName, value)
		}
	}
	return r.done(pullRequestNames)
}

// PullResponse is the header of a pull's answer of any of the codes Success,
// PullNotFound, PullRetryImmediately and PullOffsetMoved.
type PullResponse struct {
	SuggestWhichBrokerID int64
	NextBeginOffset      int64
	MinOffset            int64
	MaxOffset            int64 // exclusive
}

var pullResponseNames = []string{"suggestWhichBrokerId", "nextBeginOffset", "minOffset", "maxOffset"}

// AppendFields implements the transport's Header.
func (h *PullResponse) AppendFields(fields []string) []string {
	w := fieldWriter{fields: fields}
	w.number("suggestWhichBrokerId", h.SuggestWhichBrokerID)
	w.number("nextBeginOffset", h.NextBeginOffset)
	w.number("minOffset", h.MinOffset)
	w.number("maxOffset", h.MaxOffset)
	return w.done()
}

// ParseFields implements the transport's Header.
func (h *PullResponse) ParseFields(fields []string) error {
	var r fieldReader
	for i := 0; i+1 < len(fields); i += 2 {
		value := fields[i+1]
		switch key := fields[i]; key {
		case "suggestWhichBrokerId":
			r.int64(0, &h.SuggestWhichBrokerID, key, value)
		case "nextBeginOffset":
			r.int64(1, &h.NextBeginOffset, key, value)
		case "minOffset":
			r.int64(2, &h.MinOffset, key, value)
		case "maxOffset":
			r.int64(3, &h.MaxOffset, key, value)
		}
	}
	return r.done(pullResponseNames)
}
