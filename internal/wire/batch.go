package wire

import (
	"encoding/binary"
	"fmt"
)

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
	be := binary.BigEndian
	dst = append(make([]byte, 0, size), dst...)
	for i := range messages {
		m := &messages[i]
		dst = be.AppendUint32(dst, uint32(batchFixed+len(m.Body)+len(m.Properties)))
		dst = be.AppendUint64(dst, 0) // magic and checksum, which nobody reads
		dst = be.AppendUint32(dst, uint32(m.Flag))
		dst = be.AppendUint32(dst, uint32(len(m.Body)))
		dst = append(dst, m.Body...)
		dst = be.AppendUint16(dst, uint16(len(m.Properties)))
		dst = append(dst, m.Properties...)
	}
	return dst, nil
}

// ParseBatch takes a batch body apart. The bodies are parts of b. An empty batch
// is malformed.
func ParseBatch(b []byte) ([]BatchMessage, error) {
	count, err := countBatch(b)
	if err != nil {
		return nil, err
	}
	be := binary.BigEndian
	messages := make([]BatchMessage, 0, count)
	for len(b) > 0 {
		// countBatch has checked that all items are whole.
		item := b[:be.Uint32(b)]
		b = b[len(item):]
		spare := len(item) - batchFixed
		body := int(int32(be.Uint32(item[16:])))
		if body < 0 || body > spare {
			return nil, malformed("batch message %d: body of %d bytes where %d are left", len(messages), body, spare)
		}
		properties := int(be.Uint16(item[20+body:]))
		if properties != spare-body || properties > MaxPropertiesBytes {
			return nil, malformed("batch message %d: properties of %d bytes where %d are left", len(messages), properties, spare-body)
		}
		messages = append(messages, BatchMessage{
			Flag:       int32(be.Uint32(item[12:])),
			Body:       item[20 : 20+body : 20+body],
			Properties: string(item[22+body:]),
		})
	}
	return messages, nil
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
