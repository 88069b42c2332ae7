package wire

import (
	"encoding/binary"
	"fmt"
	"strings"
)

// BatchItemBytes is what an item of a batch takes beside body and properties.
const BatchItemBytes = batchFixed

const batchFixed = 22 // bytes of a batch item with neither body nor properties

// A BatchMessage is one message of a batch body. All share the topic and the
// queue of the request.
type BatchMessage struct {
	Flag       int32
	Body       []byte
	Properties string
}

// AppendBatch appends the batch encoding of the messages to dst. It fails when
// there is none, or properties are too long.
func AppendBatch(dst []byte, messages []BatchMessage) ([]byte, error) {
	if len(messages) == 0 {
		return dst, fmt.Errorf("wire: empty batch")
	}
	size := len(dst)
	for i := range messages {
		m := &messages[i]
		if len(m.Properties) > MaxPropertiesBytes {
			return dst, fmt.Errorf("wire: batch message %d: properties of %d bytes, the limit is %d", i, len(m.Properties), MaxPropertiesBytes)
		}
		size += batchFixed + len(m.Body) + len(m.Properties)
	}
	if size-len(dst) > MaxFrameBytes {
		return dst, fmt.Errorf("wire: batch of %d bytes, the limit is %d", size-len(dst), MaxFrameBytes)
	}
	dst = append(make([]byte, 0, size), dst...)
	for i := range messages {
		m := &messages[i]
		at := len(dst)
		dst = append(OpenBatchItem(dst, m.Flag, m.Body), m.Properties...)
		CloseBatchItem(dst[at:])
	}
	return dst, nil
}

// OpenBatchItem appends one item of a batch up to its properties, which the caller
// appends before it calls CloseBatchItem.
func OpenBatchItem(dst []byte, flag int32, body []byte) []byte {
	be := binary.BigEndian
	dst = append(dst, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0) // size; magic and checksum, which nobody reads
	dst = be.AppendUint32(dst, uint32(flag))
	dst = be.AppendUint32(dst, uint32(len(body)))
	dst = append(dst, body...)
	return append(dst, 0, 0)
}

// CloseBatchItem fills in the lengths of an item that was opened. item begins with
// it and ends behind its properties, of MaxPropertiesBytes at most.
func CloseBatchItem(item []byte) {
	be := binary.BigEndian
	body := int(be.Uint32(item[16:]))
	be.PutUint32(item, uint32(len(item)))
	be.PutUint16(item[20+body:], uint16(len(item)-batchFixed-body))
}

// ParseBatch takes a batch body apart. The bodies are parts of b, the properties
// of one text. An empty batch is malformed.
func ParseBatch(b []byte) ([]BatchMessage, error) {
	count, err := countBatch(b)
	if err != nil {
		return nil, err
	}
	messages := make([]BatchMessage, count)
	var text strings.Builder // one allocation for all properties
	properties := len(b) - count*batchFixed
	rest := b
	for i := range messages {
		var item []byte
		item, rest = nextBatchItem(rest)
		if err := messages[i].parse(item); err != nil {
			return nil, fmt.Errorf("batch message %d: %w", i, err)
		}
		properties -= len(messages[i].Body)
	}
	text.Grow(properties)
	for i := range messages {
		var item []byte
		item, b = nextBatchItem(b)
		from := text.Len()
		text.Write(item[batchFixed+len(messages[i].Body):])
		messages[i].Properties = text.String()[from:]
	}
	return messages, nil
}

// nextBatchItem cuts the first item off b, which countBatch has found to be whole.
func nextBatchItem(b []byte) (item, rest []byte) {
	n := binary.BigEndian.Uint32(b)
	return b[:n], b[n:]
}

// parse reads an item, but for the text of its properties.
func (m *BatchMessage) parse(item []byte) error {
	be := binary.BigEndian
	spare := len(item) - batchFixed
	body := int(int32(be.Uint32(item[16:])))
	if body < 0 || body > spare {
		return malformed("body of %d bytes where %d are left", body, spare)
	}
	properties := int(be.Uint16(item[20+body:]))
	if properties != spare-body || properties > MaxPropertiesBytes {
		return malformed("properties of %d bytes where %d are left", properties, spare-body)
	}
	m.Flag, m.Body = int32(be.Uint32(item[12:])), item[20:20+body:20+body]
	return nil
}

// countBatch counts the items, so that hostile bytes cannot make ParseBatch
// allocate more than they are worth.
func countBatch(b []byte) (int, error) {
	count := 0
	for len(b) > 0 {
		if len(b) < batchFixed {
			return 0, malformed("batch message %d: %d bytes, needs at least %d", count, len(b), batchFixed)
		}
		size := int(int32(binary.BigEndian.Uint32(b)))
		if size < batchFixed || size > len(b) {
			return 0, malformed("batch message %d: claims %d bytes where %d are left", count, size, len(b))
		}
		b = b[size:]
		count++
	}
	if count == 0 {
		return 0, malformed("batch: it is empty")
	}
	return count, nil
}
