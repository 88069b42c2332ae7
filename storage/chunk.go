package storage

// A chunk holds the records of one queue in one group, at most chunkBytes
// unless a single record is larger. It is one value:
//
//	version 1 byte, unused 3, count u32
//	first offset, first position, first and last store time: i64 each
//	entries: end of the record within the records u32, tag hash i64; count times
//	records
//
// All numbers are big-endian. The records of a chunk are contiguous in the log,
// so an entry's position is the chunk's position plus the end of the entry
// before it.
const (
	chunkBytes      = 64 << 10
	chunkVersion    = 1
	chunkHeaderLen  = 40
	chunkEntryLen   = 12
	chunkCountAt    = 4
	chunkOffsetAt   = 8
	chunkPositionAt = 16
	chunkFirstAt    = 24
	chunkLastAt     = 32
)

// chunk reads the value of a chunk. It keeps the slice it was made of.
type chunk struct {
	value []byte
	n     int // count of records
}

// parseChunk checks that the value has the form of a chunk whose entries stay
// inside it.
func parseChunk(value []byte) (chunk, bool) {
	if len(value) < chunkHeaderLen || value[0] != chunkVersion {
		return chunk{}, false
	}
	n := int(be.Uint32(value[chunkCountAt:]))
	if n == 0 || n > (len(value)-chunkHeaderLen)/chunkEntryLen {
		return chunk{}, false
	}
	c := chunk{value: value, n: n}
	end := 0
	for i := range n {
		next := c.end(i)
		if next < end {
			return chunk{}, false
		}
		end = next
	}
	return c, end == len(value)-c.recordsAt()
}

// chunkSize is the length of a chunk's value.
func chunkSize(records, bytes int) int {
	return chunkHeaderLen + records*chunkEntryLen + bytes
}

// putChunkHeader writes the part before the entries.
func putChunkHeader(dst []byte, count int, offset, position, storeTime int64) {
	_ = dst[chunkHeaderLen-1]
	be.PutUint32(dst, uint32(chunkVersion)<<24)
	be.PutUint32(dst[chunkCountAt:], uint32(count))
	be.PutUint64(dst[chunkOffsetAt:], uint64(offset))
	be.PutUint64(dst[chunkPositionAt:], uint64(position))
	be.PutUint64(dst[chunkFirstAt:], uint64(storeTime))
	be.PutUint64(dst[chunkLastAt:], uint64(storeTime))
}

// putChunkEntry writes entry i, whose record ends at end within the records.
func putChunkEntry(dst []byte, i, end int, tagHash int64) {
	entry := dst[chunkHeaderLen+i*chunkEntryLen:]
	be.PutUint32(entry, uint32(end))
	be.PutUint64(entry[4:], uint64(tagHash))
}

func (c chunk) firstOffset() int64    { return int64(be.Uint64(c.value[chunkOffsetAt:])) }
func (c chunk) nextOffset() int64     { return c.firstOffset() + int64(c.n) }
func (c chunk) position() int64       { return int64(be.Uint64(c.value[chunkPositionAt:])) }
func (c chunk) firstStoreTime() int64 { return int64(be.Uint64(c.value[chunkFirstAt:])) }
func (c chunk) lastStoreTime() int64  { return int64(be.Uint64(c.value[chunkLastAt:])) }
func (c chunk) recordsAt() int        { return chunkHeaderLen + c.n*chunkEntryLen }

// end is where record i ends within the records.
func (c chunk) end(i int) int {
	return int(be.Uint32(c.value[chunkHeaderLen+i*chunkEntryLen:]))
}

// start is where record i starts within the records.
func (c chunk) start(i int) int {
	if i == 0 {
		return 0
	}
	return c.end(i - 1)
}

func (c chunk) tagHash(i int) int64 {
	return int64(be.Uint64(c.value[chunkHeaderLen+i*chunkEntryLen+4:]))
}

// record is the bytes of record i, sharing memory with the value.
func (c chunk) record(i int) []byte {
	at := c.recordsAt()
	return c.value[at+c.start(i) : at+c.end(i) : at+c.end(i)]
}
