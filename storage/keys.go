package storage

import "encoding/binary"

// The key space. The first byte of every key is its kind; numbers follow in
// big-endian order so that keys sort as numbers do. Kinds that are not listed
// are free; 0x2a to 0x2f are meant for half messages and POP.
//
//	kind             key after the kind                       value
//	layout           -                                        version, segment size
//	logHead          -                                        log start, log end, last store time
//	topicIDs         -                                        next topic id
//	segmentInfo      segment                                  first position, first store time
//	chunk            segment, topic, queue, first offset      chunk
//	positionMap      segment, first position                  one group's chunks in this segment
//	queueSegment     topic, queue, segment                    first offset, position and store time
//	queueHead        topic, queue                             next offset, minimum offset
//	index            segment, ...                             see index.go
//	merged           segment, ...                             see index.go
//	timer            ...                                      see timer.go
//	timerState       ...                                      see timer.go
//	groupOffset      group (with length), topic, queue        offset
//	topic            name                                     id
//	meta             kind (with length), key                  caller's bytes
//
// Chunks, maps and index lists begin with their segment, so that retention is
// one range delete for each of these kinds. queueHead and logHead are written
// only by batches that delete what they could be derived from.
const (
	kindLayout       byte = 0x01
	kindLogHead      byte = 0x02
	kindTopicIDs     byte = 0x03
	kindSegmentInfo  byte = 0x04
	kindChunk        byte = 0x10
	kindPositionMap  byte = 0x11
	kindQueueSegment byte = 0x12
	kindQueueHead    byte = 0x13
	kindIndex        byte = 0x20
	kindMerged       byte = 0x21
	kindTimer        byte = 0x28
	kindTimerState   byte = 0x29
	kindGroupOffset  byte = 0x30
	kindTopic        byte = 0x38
	kindMeta         byte = 0x39
)

var be = binary.BigEndian

const chunkKeyLen = 1 + 4 + 4 + 4 + 8

func putChunkKey(dst []byte, segment, topic uint32, queue int32, offset int64) {
	_ = dst[chunkKeyLen-1]
	dst[0] = kindChunk
	be.PutUint32(dst[1:], segment)
	be.PutUint32(dst[5:], topic)
	be.PutUint32(dst[9:], uint32(queue))
	be.PutUint64(dst[13:], uint64(offset))
}

func chunkKey(segment, topic uint32, queue int32, offset int64) []byte {
	key := make([]byte, chunkKeyLen)
	putChunkKey(key, segment, topic, queue, offset)
	return key
}

const positionKeyLen = 1 + 4 + 8

func putPositionKey(dst []byte, segment uint32, position int64) {
	_ = dst[positionKeyLen-1]
	dst[0] = kindPositionMap
	be.PutUint32(dst[1:], segment)
	be.PutUint64(dst[5:], uint64(position))
}

func positionKey(segment uint32, position int64) []byte {
	key := make([]byte, positionKeyLen)
	putPositionKey(key, segment, position)
	return key
}

// segmentKey is the first key of a kind in a segment, for the kinds that begin
// with one.
func segmentKey(kind byte, segment uint32) []byte {
	return be.AppendUint32([]byte{kind}, segment)
}

// topicKey is the first key of a topic in the kinds that begin with one.
func topicKey(kind byte, topic uint32) []byte {
	return be.AppendUint32([]byte{kind}, topic)
}

// queueKey is the first key of a queue in the kinds that begin with one.
func queueKey(kind byte, topic uint32, queue int32) []byte {
	key := be.AppendUint32([]byte{kind}, topic)
	return be.AppendUint32(key, uint32(queue))
}

func queueSegmentKey(topic uint32, queue int32, segment uint32) []byte {
	return be.AppendUint32(queueKey(kindQueueSegment, topic, queue), segment)
}

// splitQueueSegmentKey undoes queueSegmentKey.
func splitQueueSegmentKey(key []byte) (topic uint32, queue int32, segment uint32, ok bool) {
	if len(key) != 13 || key[0] != kindQueueSegment {
		return 0, 0, 0, false
	}
	return be.Uint32(key[1:]), int32(be.Uint32(key[5:])), be.Uint32(key[9:]), true
}

// groupKey is the first key of a group's offsets. The length in front keeps one
// group's name from being the beginning of another's.
func groupKey(group string) []byte {
	key := be.AppendUint16([]byte{kindGroupOffset}, uint16(len(group)))
	return append(key, group...)
}

func groupOffsetKey(group string, topic uint32, queue int32) []byte {
	key := be.AppendUint32(groupKey(group), topic)
	return be.AppendUint32(key, uint32(queue))
}

// splitGroupOffsetKey undoes groupOffsetKey.
func splitGroupOffsetKey(key []byte) (group string, topic uint32, queue int32, ok bool) {
	if len(key) < 3 || key[0] != kindGroupOffset {
		return "", 0, 0, false
	}
	n := int(be.Uint16(key[1:]))
	if len(key) != 3+n+8 {
		return "", 0, 0, false
	}
	rest := key[3+n:]
	return string(key[3 : 3+n]), be.Uint32(rest), int32(be.Uint32(rest[4:])), true
}

func topicNameKey(name string) []byte {
	return append([]byte{kindTopic}, name...)
}

// metaKey is the key of a piece of metadata; with an empty key the first of its
// kind.
func metaKey(kind, key string) []byte {
	k := make([]byte, 0, 3+len(kind)+len(key))
	k = be.AppendUint16(append(k, kindMeta), uint16(len(kind)))
	k = append(k, kind...)
	return append(k, key...)
}

// after returns the smallest key that is larger than every key beginning with
// prefix. The kinds end below 0xff, so there always is one.
func after(prefix []byte) []byte {
	end := append([]byte(nil), prefix...)
	for i := len(end) - 1; i >= 0; i-- {
		if end[i] != 0xff {
			end[i]++
			return end[:i+1]
		}
	}
	panic("storage: key prefix has no successor")
}
