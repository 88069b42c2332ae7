package transport

// An Encoding says how a transport encodes the headers of its requests. Replies
// always answer in the codec of their request.
type Encoding uint8

// The encodings.
const (
	// EncodeDefault is EncodeMsgPack on TCP, and no encoding at all in memory.
	EncodeDefault Encoding = iota
	// EncodeJSON is RocketMQ's default for all requests.
	EncodeJSON
	// EncodeRocketMQ is RocketMQ's binary header for all requests; one whose code
	// exceeds 16 bits goes as JSON.
	EncodeRocketMQ
	// EncodeMsgPack begins with JSON and goes over to MSGPACK on connections whose
	// other end is ours and agrees.
	EncodeMsgPack
)

// plan returns the codec to begin with and whether to ask for MSGPACK.
func (e Encoding) plan() (base Codec, upgrade bool) {
	switch e {
	case EncodeJSON:
		return JSON, false
	case EncodeRocketMQ:
		return RocketMQ, false
	default:
		return JSON, true
	}
}
