package storage

import (
	"cmp"
	"fmt"
	"math/bits"
	"slices"
	"sort"

	"github.com/cockroachdb/pebble/v2"
)

// The key index answers "which records carry this key". A key is known by a 64-bit hash of topic and key only; whoever finds
// an entry must look at the record itself, so a collision costs a read and never a wrong answer.
//
// The lane writes one value per group (a list: every hash and position of the group, sorted) and a background step turns the
// lists of a finished segment into pages (see index_merge.go). One Pebble key per message key was rejected: every client sets
// a unique key on every message, and the extra keys halve the rate of small messages.
//
// Lists and pages share one value format, a base position and entries of 12 bytes:
//
//	base      8 bytes, big endian: the smallest position
//	entries   8 bytes hash, 4 bytes position − base; big endian; by hash upwards, then by position downwards

// Sizes of the value format.
const (
	indexBaseSize  = 8
	indexEntrySize = 12
	indexKeySize   = 1 + 4 + 8
)

// KeyHash is the hash under which the key index files a record: a stable 64-bit hash of the topic's name and one message key.
// It is part of the stored format, so it never changes. It is no defence against chosen collisions, and needs to be none:
// answers are checked against the record.
func KeyHash(topic, key string) uint64 {
	const start = 0x9e3779b97f4a7c15
	h := hashWords(start, topic)
	// Each part is closed by its length, so ("ab", "c") and ("a", "bc") differ.
	return hashWords(h, key)
}

// hashWords folds text into h: FNV-1a's xor and multiply, eight bytes a step, closed by a finish that spreads every input bit
// over all of the result (the index sorts and divides by the upper bits).
func hashWords(h uint64, text string) uint64 {
	const prime = 0xff51afd7ed558ccd
	rest := text
	for len(rest) >= 8 {
		w := uint64(rest[0]) | uint64(rest[1])<<8 | uint64(rest[2])<<16 | uint64(rest[3])<<24 |
			uint64(rest[4])<<32 | uint64(rest[5])<<40 | uint64(rest[6])<<48 | uint64(rest[7])<<56
		h = (h ^ w) * prime
		h ^= h >> 32
		rest = rest[8:]
	}
	var w uint64
	for i := range len(rest) {
		w |= uint64(rest[i]) << (8 * i)
	}
	h = (h ^ w) * prime
	h ^= h >> 29
	h = (h ^ uint64(len(text))) * 0xc4ceb9fe1a85ec53
	return h ^ h>>32
}

// indexPair is one entry of the index in memory.
type indexPair struct {
	hash     uint64
	position int64
}

// compare orders pairs by hash, and pairs of one hash newest (largest position) first: the order of a query's answer.
func (p indexPair) compare(q indexPair) int {
	if c := cmp.Compare(p.hash, q.hash); c != 0 {
		return c
	}
	return cmp.Compare(q.position, p.position)
}

// indexBuilder collects the keys of one group and makes its list. It keeps its slices from group to group, so a steady lane
// allocates nothing. It belongs to the lane's goroutine.
type indexBuilder struct {
	pairs  []indexPair
	sorter pairSorter
	key    [indexKeySize]byte
	value  []byte
}

// reset forgets what was collected.
func (b *indexBuilder) reset() { b.pairs = b.pairs[:0] }

// add files a record's position under a key's hash. Adding the same pair twice is the same as once.
func (b *indexBuilder) add(hash uint64, position int64) {
	b.pairs = append(b.pairs, indexPair{hash, position})
}

// appendTo puts the list of what was collected into the group's batch, filed under the segment and the position where this
// part of the group begins. With nothing collected it does nothing. The collected positions must lie within 4 GiB of each other.
func (b *indexBuilder) appendTo(batch *pebble.Batch, segment uint32, first int64) error {
	if len(b.pairs) == 0 {
		return nil
	}
	b.pairs = b.sorter.sort(b.pairs)
	b.value = appendIndexList(b.value[:0], b.pairs)
	return batch.Set(appendIndexKey(b.key[:0], segment, first), b.value, nil)
}

// appendIndexKey appends the key of a list.
func appendIndexKey(dst []byte, segment uint32, first int64) []byte {
	dst = append(dst, kindIndex)
	dst = be.AppendUint32(dst, segment)
	return be.AppendUint64(dst, uint64(first))
}

// appendIndexList appends sorted pairs in the value format, leaving out repeated ones.
func appendIndexList(dst []byte, pairs []indexPair) []byte {
	if len(pairs) == 0 {
		return dst
	}
	base := pairs[0].position
	for _, p := range pairs {
		base = min(base, p.position)
	}
	dst = slices.Grow(dst, indexBaseSize+indexEntrySize*len(pairs))
	dst = be.AppendUint64(dst, uint64(base))
	for i, p := range pairs {
		if i > 0 && p == pairs[i-1] {
			continue
		}
		dst = be.AppendUint64(dst, p.hash)
		dst = be.AppendUint32(dst, uint32(p.position-base))
	}
	return dst
}

// indexList reads a list or page in place.
type indexList struct {
	base    int64
	entries []byte
}

// parseIndexList checks the shape of a value and opens it for reading; the result aliases value.
func parseIndexList(value []byte) (indexList, error) {
	if len(value) < indexBaseSize+indexEntrySize || (len(value)-indexBaseSize)%indexEntrySize != 0 {
		return indexList{}, fmt.Errorf("%w: key index value of %d bytes", ErrCorrupt, len(value))
	}
	return indexList{base: int64(be.Uint64(value)), entries: value[indexBaseSize:]}, nil
}

func (l indexList) len() int { return len(l.entries) / indexEntrySize }

func (l indexList) hash(i int) uint64 {
	return be.Uint64(l.entries[i*indexEntrySize:])
}

func (l indexList) pair(i int) indexPair {
	e := l.entries[i*indexEntrySize:]
	return indexPair{be.Uint64(e), l.base + int64(be.Uint32(e[8:]))}
}

// search is the index of the first entry that is not before p, len() if there is none.
func (l indexList) search(p indexPair) int {
	return sort.Search(l.len(), func(i int) bool { return l.pair(i).compare(p) >= 0 })
}

// pairSorter sorts pairs. Hashes are spread evenly, so one pass that deals them into buckets by their upper bits leaves a
// handful in each, several times cheaper than comparing; a bucket that is larger nevertheless is sorted by comparison. It
// keeps its memory between calls.
type pairSorter struct {
	spare  []indexPair
	counts []uint32
}

// Bounds of the sorter: below sortDirect dealing is not worth it, up to insertLimit insertion beats pdqsort.
const (
	sortDirect    = 32
	insertLimit   = 24
	maxBucketBits = 16
)

// sort returns the pairs in order, in a slice that the sorter gives away in exchange for the argument.
func (s *pairSorter) sort(pairs []indexPair) []indexPair {
	n := len(pairs)
	if n < sortDirect {
		insertPairs(pairs)
		return pairs
	}
	lo, hi := pairs[0].hash, pairs[0].hash
	for _, p := range pairs {
		lo, hi = min(lo, p.hash), max(hi, p.hash)
	}
	width := min(bits.Len(uint(n/4)), maxBucketBits)
	shift := max(bits.Len64(hi-lo)-width, 0)
	s.counts = slices.Grow(s.counts[:0], 1<<width)[:1<<width]
	clear(s.counts)
	for _, p := range pairs {
		s.counts[(p.hash-lo)>>shift]++
	}
	var start uint32
	for i, c := range s.counts {
		s.counts[i] = start
		start += c
	}
	out := slices.Grow(s.spare[:0], n)[:n]
	// Positions come in rising; dealing from the back leaves equal hashes in falling order, as wanted.
	for i := n - 1; i >= 0; i-- {
		slot := &s.counts[(pairs[i].hash-lo)>>shift]
		out[*slot] = pairs[i]
		*slot++
	}
	from := uint32(0)
	for _, to := range s.counts { // each count has become its bucket's end
		if bucket := out[from:to]; len(bucket) > insertLimit {
			slices.SortFunc(bucket, indexPair.compare)
		} else if len(bucket) > 1 {
			insertPairs(bucket)
		}
		from = to
	}
	s.spare = pairs
	return out
}

// insertPairs is insertion sort.
func insertPairs(pairs []indexPair) {
	for i := 1; i < len(pairs); i++ {
		p := pairs[i]
		j := i
		for j > 0 && p.compare(pairs[j-1]) < 0 {
			pairs[j] = pairs[j-1]
			j--
		}
		pairs[j] = p
	}
}
