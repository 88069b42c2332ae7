package wire

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/klauspost/compress/zlib"
)

// registerLimit bounds what a compressed registration may grow to.
const registerLimit = 16 << 20

// RegisterBrokerBody is the body of REGISTER_BROKER.
type RegisterBrokerBody struct {
	TopicConfigTable TopicConfigTable
	FilterServers    []string
}

// Marshal is the body in its plain form.
func (r *RegisterBrokerBody) Marshal() []byte {
	return marshalJSON(func(e *encoder) {
		e.object(func() {
			e.key("filterServerList")
			e.texts(r.FilterServers)
			e.key("topicConfigSerializeWrapper")
			r.TopicConfigTable.write(e)
		})
	})
}

// ParseRegisterBroker reads the body of REGISTER_BROKER. An empty one registers no
// topics. compressed is what the header says.
func ParseRegisterBroker(b []byte, compressed bool) (r RegisterBrokerBody, err error) {
	switch {
	case len(b) == 0:
		return r, nil
	case compressed:
		plain, err := decompressZlib(b, registerLimit)
		if err != nil {
			return r, err
		}
		return parseRegisterPacked(plain)
	}
	err = parseJSON(b, "registration", func(d *decoder) {
		d.object(func(key string) {
			switch key {
			case "filterServerList":
				r.FilterServers = d.texts()
			case "topicConfigSerializeWrapper":
				r.TopicConfigTable.read(d)
			default:
				d.skip()
			}
		})
	})
	return r, err
}

// MarshalCompressed is the body in its compressed form, which carries neither a
// topic's order nor its system flag. It has the five words of a topic that a 4.9
// name server insists on.
func (r *RegisterBrokerBody) MarshalCompressed() ([]byte, error) {
	var buf bytes.Buffer
	w, err := zlib.NewWriterLevel(&buf, zlib.BestCompression)
	if err != nil {
		return nil, fmt.Errorf("wire: registration: %w", err)
	}
	if err := writeAll(w, r.packed()); err != nil {
		return nil, fmt.Errorf("wire: registration: %w", err)
	}
	return buf.Bytes(), nil
}

func (r *RegisterBrokerBody) packed() []byte {
	t := &r.TopicConfigTable
	b := appendSized(nil, t.DataVersion.Marshal())
	b = binary.BigEndian.AppendUint32(b, uint32(len(t.Topics)))
	for _, name := range slices.Sorted(maps.Keys(t.Topics)) {
		c := t.Topics[name]
		words := fmt.Sprintf("%s %d %d %d %s", name, c.ReadQueueNums, c.WriteQueueNums, c.Perm, c.filterType())
		b = appendSized(b, []byte(words))
	}
	return appendSized(b, marshalJSON(func(e *encoder) { e.texts(r.FilterServers) }))
}

func appendSized(b, part []byte) []byte {
	return append(binary.BigEndian.AppendUint32(b, uint32(len(part))), part...)
}

// parseRegisterPacked reads the compressed form after decompression. The section
// with queue mappings, which 5.x brokers add at the end, is ignored.
func parseRegisterPacked(b []byte) (r RegisterBrokerBody, err error) {
	part, b, ok := cutSized(b)
	if !ok {
		return r, malformed("registration: no data version")
	}
	if r.TopicConfigTable.DataVersion, err = ParseDataVersion(part); err != nil {
		return r, err
	}
	if len(b) < 4 {
		return r, malformed("registration: no number of topics")
	}
	count := int(int32(binary.BigEndian.Uint32(b)))
	b = b[4:]
	if count < 0 || count > len(b)/4 {
		return r, malformed("registration: %d topics in %d bytes", count, len(b))
	}
	r.TopicConfigTable.Topics = make(map[string]TopicConfig, min(count, len(b)/16))
	for i := range count {
		if part, b, ok = cutSized(b); !ok {
			return r, malformed("registration: ends within topic %d of %d", i, count)
		}
		c, err := parseTopicWords(string(part))
		if err != nil {
			return r, err
		}
		r.TopicConfigTable.Topics[c.TopicName] = c
	}
	if part, _, ok = cutSized(b); !ok {
		return r, malformed("registration: no filter servers")
	}
	err = parseJSON(part, "filter servers", func(d *decoder) { r.FilterServers = d.texts() })
	return r, err
}

func cutSized(b []byte) (part, rest []byte, ok bool) {
	if len(b) < 4 {
		return nil, nil, false
	}
	n := int(int32(binary.BigEndian.Uint32(b)))
	if b = b[4:]; n < 0 || n > len(b) {
		return nil, nil, false
	}
	return b[:n], b[n:], true
}

// parseTopicWords reads name, readable queues, writable queues, permission and
// filter type; 5.x adds attributes as JSON.
func parseTopicWords(text string) (c TopicConfig, err error) {
	words := strings.SplitN(text, " ", 6)
	if len(words) < 5 {
		return c, malformed("registration: topic %q has %d words, needs 5", text, len(words))
	}
	var numbers [3]int32
	for i := range numbers {
		n, err := strconv.ParseInt(words[1+i], 10, 32)
		if err != nil {
			return c, malformed("registration: topic %q has the number %q", words[0], words[1+i])
		}
		numbers[i] = int32(n)
	}
	c = TopicConfig{TopicName: words[0], ReadQueueNums: numbers[0], WriteQueueNums: numbers[1], Perm: numbers[2], TopicFilterType: words[4]}
	if len(words) == 6 {
		err = parseJSON([]byte(words[5]), "topic attributes", func(d *decoder) {
			if t := d.textTable(); len(t) > 0 {
				c.Attributes = t
			}
		})
	}
	return c, err
}
