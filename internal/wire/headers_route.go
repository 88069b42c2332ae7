package wire

// Headers that share the form of another.
type (
	// GetKVRequest is the header of GET_KV_CONFIG.
	GetKVRequest = KVRequest
	// DeleteKVRequest is the header of DELETE_KV_CONFIG.
	DeleteKVRequest = KVRequest
)

// RouteRequest is the header of GET_ROUTEINFO_BY_TOPIC.
type RouteRequest struct {
	Topic        string
	StandardJSON bool
}

// AppendFields implements the transport's Header.
func (h *RouteRequest) AppendFields(fields []string) []string { return appendBound(fields, h) }

// ParseFields implements the transport's Header.
func (h *RouteRequest) ParseFields(fields []string) error { return parseBound(fields, h) }

func (h *RouteRequest) bind(b *binding) {
	b.text("topic", &h.Topic)
	b.optFlag("acceptStandardJsonOnly", &h.StandardJSON)
}

// RegisterBrokerRequest is the header of REGISTER_BROKER.
type RegisterBrokerRequest struct {
	BrokerName             string
	BrokerAddr             string
	ClusterName            string
	HAServerAddr           string
	BrokerID               int64
	Compressed             bool  // the body is in the compressed form
	BodyCRC                int32 // CRC31 of the body as sent; 0 is not checked
	HeartbeatTimeoutMillis int64
}

// AppendFields implements the transport's Header.
func (h *RegisterBrokerRequest) AppendFields(fields []string) []string { return appendBound(fields, h) }

// ParseFields implements the transport's Header.
func (h *RegisterBrokerRequest) ParseFields(fields []string) error { return parseBound(fields, h) }

func (h *RegisterBrokerRequest) bind(b *binding) {
	b.text("brokerName", &h.BrokerName)
	b.text("brokerAddr", &h.BrokerAddr)
	b.text("clusterName", &h.ClusterName)
	b.text("haServerAddr", &h.HAServerAddr)
	b.int64("brokerId", &h.BrokerID)
	b.alwaysFlag("compressed", &h.Compressed)
	b.alwaysInt32("bodyCrc32", &h.BodyCRC)
	b.optInt64("heartbeatTimeoutMillis", &h.HeartbeatTimeoutMillis)
}

// RegisterBrokerResponse is the header of the answer to REGISTER_BROKER.
type RegisterBrokerResponse struct {
	HAServerAddr string // of the master, for a slave
	MasterAddr   string
}

// AppendFields implements the transport's Header.
func (h *RegisterBrokerResponse) AppendFields(fields []string) []string {
	return appendBound(fields, h)
}

// ParseFields implements the transport's Header.
func (h *RegisterBrokerResponse) ParseFields(fields []string) error { return parseBound(fields, h) }

func (h *RegisterBrokerResponse) bind(b *binding) {
	b.optText("haServerAddr", &h.HAServerAddr)
	b.optText("masterAddr", &h.MasterAddr)
}

// UnregisterBrokerRequest is the header of UNREGISTER_BROKER.
type UnregisterBrokerRequest struct {
	BrokerName  string
	BrokerAddr  string
	ClusterName string
	BrokerID    int64
}

// AppendFields implements the transport's Header.
func (h *UnregisterBrokerRequest) AppendFields(fields []string) []string {
	return appendBound(fields, h)
}

// ParseFields implements the transport's Header.
func (h *UnregisterBrokerRequest) ParseFields(fields []string) error { return parseBound(fields, h) }

func (h *UnregisterBrokerRequest) bind(b *binding) {
	b.text("brokerName", &h.BrokerName)
	b.text("brokerAddr", &h.BrokerAddr)
	b.text("clusterName", &h.ClusterName)
	b.int64("brokerId", &h.BrokerID)
}

// QueryDataVersionRequest is the header of QUERY_DATA_VERSION.
type QueryDataVersionRequest struct {
	BrokerName  string
	BrokerAddr  string
	ClusterName string
	BrokerID    int64
}

// AppendFields implements the transport's Header.
func (h *QueryDataVersionRequest) AppendFields(fields []string) []string {
	return appendBound(fields, h)
}

// ParseFields implements the transport's Header.
func (h *QueryDataVersionRequest) ParseFields(fields []string) error { return parseBound(fields, h) }

func (h *QueryDataVersionRequest) bind(b *binding) {
	b.text("brokerName", &h.BrokerName)
	b.text("brokerAddr", &h.BrokerAddr)
	b.text("clusterName", &h.ClusterName)
	b.int64("brokerId", &h.BrokerID)
}

// QueryDataVersionResponse is the header of the answer to QUERY_DATA_VERSION.
type QueryDataVersionResponse struct {
	Changed bool
}

// AppendFields implements the transport's Header.
func (h *QueryDataVersionResponse) AppendFields(fields []string) []string {
	return appendBound(fields, h)
}

// ParseFields implements the transport's Header.
func (h *QueryDataVersionResponse) ParseFields(fields []string) error { return parseBound(fields, h) }

func (h *QueryDataVersionResponse) bind(b *binding) {
	b.flag("changed", &h.Changed)
}

// PutKVRequest is the header of PUT_KV_CONFIG.
type PutKVRequest struct {
	Namespace string
	Key       string
	Value     string
}

// AppendFields implements the transport's Header.
func (h *PutKVRequest) AppendFields(fields []string) []string { return appendBound(fields, h) }

// ParseFields implements the transport's Header.
func (h *PutKVRequest) ParseFields(fields []string) error { return parseBound(fields, h) }

func (h *PutKVRequest) bind(b *binding) {
	b.text("namespace", &h.Namespace)
	b.text("key", &h.Key)
	b.text("value", &h.Value)
}

// KVRequest is the header of GET_KV_CONFIG and DELETE_KV_CONFIG.
type KVRequest struct {
	Namespace string
	Key       string
}

// AppendFields implements the transport's Header.
func (h *KVRequest) AppendFields(fields []string) []string { return appendBound(fields, h) }

// ParseFields implements the transport's Header.
func (h *KVRequest) ParseFields(fields []string) error { return parseBound(fields, h) }

func (h *KVRequest) bind(b *binding) {
	b.text("namespace", &h.Namespace)
	b.text("key", &h.Key)
}

// GetKVResponse is the header of the answer to GET_KV_CONFIG.
type GetKVResponse struct {
	Value string
}

// AppendFields implements the transport's Header.
func (h *GetKVResponse) AppendFields(fields []string) []string { return appendBound(fields, h) }

// ParseFields implements the transport's Header.
func (h *GetKVResponse) ParseFields(fields []string) error { return parseBound(fields, h) }

func (h *GetKVResponse) bind(b *binding) {
	b.text("value", &h.Value)
}

// KVListRequest is the header of GET_KVLIST_BY_NAMESPACE.
type KVListRequest struct {
	Namespace string
}

// AppendFields implements the transport's Header.
func (h *KVListRequest) AppendFields(fields []string) []string { return appendBound(fields, h) }

// ParseFields implements the transport's Header.
func (h *KVListRequest) ParseFields(fields []string) error { return parseBound(fields, h) }

func (h *KVListRequest) bind(b *binding) {
	b.text("namespace", &h.Namespace)
}

// WritePermRequest is the header of WIPE_WRITE_PERM_OF_BROKER and ADD_WRITE_PERM_OF_BROKER.
type WritePermRequest struct {
	BrokerName string
}

// AppendFields implements the transport's Header.
func (h *WritePermRequest) AppendFields(fields []string) []string { return appendBound(fields, h) }

// ParseFields implements the transport's Header.
func (h *WritePermRequest) ParseFields(fields []string) error { return parseBound(fields, h) }

func (h *WritePermRequest) bind(b *binding) {
	b.text("brokerName", &h.BrokerName)
}

// WipeWritePermResponse is the header of the answer to WIPE_WRITE_PERM_OF_BROKER.
type WipeWritePermResponse struct {
	TopicCount int32
}

// AppendFields implements the transport's Header.
func (h *WipeWritePermResponse) AppendFields(fields []string) []string { return appendBound(fields, h) }

// ParseFields implements the transport's Header.
func (h *WipeWritePermResponse) ParseFields(fields []string) error { return parseBound(fields, h) }

func (h *WipeWritePermResponse) bind(b *binding) {
	b.int32("wipeTopicCount", &h.TopicCount)
}

// AddWritePermResponse is the header of the answer to ADD_WRITE_PERM_OF_BROKER.
type AddWritePermResponse struct {
	TopicCount int32
}

// AppendFields implements the transport's Header.
func (h *AddWritePermResponse) AppendFields(fields []string) []string { return appendBound(fields, h) }

// ParseFields implements the transport's Header.
func (h *AddWritePermResponse) ParseFields(fields []string) error { return parseBound(fields, h) }

func (h *AddWritePermResponse) bind(b *binding) {
	b.int32("addTopicCount", &h.TopicCount)
}

// DeleteRouteTopicRequest is the header of DELETE_TOPIC_IN_NAMESRV.
type DeleteRouteTopicRequest struct {
	Topic       string
	ClusterName string
}

// AppendFields implements the transport's Header.
func (h *DeleteRouteTopicRequest) AppendFields(fields []string) []string {
	return appendBound(fields, h)
}

// ParseFields implements the transport's Header.
func (h *DeleteRouteTopicRequest) ParseFields(fields []string) error { return parseBound(fields, h) }

func (h *DeleteRouteTopicRequest) bind(b *binding) {
	b.text("topic", &h.Topic)
	b.optText("clusterName", &h.ClusterName)
}

// ClusterTopicsRequest is the header of GET_TOPICS_BY_CLUSTER.
type ClusterTopicsRequest struct {
	Cluster string
}

// AppendFields implements the transport's Header.
func (h *ClusterTopicsRequest) AppendFields(fields []string) []string { return appendBound(fields, h) }

// ParseFields implements the transport's Header.
func (h *ClusterTopicsRequest) ParseFields(fields []string) error { return parseBound(fields, h) }

func (h *ClusterTopicsRequest) bind(b *binding) {
	b.text("cluster", &h.Cluster)
}
