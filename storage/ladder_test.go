package storage

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// ladderWindow is how many records are in flight on the ladder.
const ladderWindow = 4096

const ladderQueuesPerTopic = 8

// ladderSender submits single records round robin over queues, at most ladderWindow at a time.
type ladderSender struct {
	topics []*Topic
	free   chan *ladderRequest
	failed chan error
}

type ladderRequest struct {
	Request
	sender *ladderSender
	key    [1]uint64
}

// Completed implements Completion.
func (r *ladderRequest) Completed(_ *Request, err error) {
	if err != nil {
		select {
		case r.sender.failed <- err:
		default:
		}
	}
	r.sender.free <- r
}

func newLadderSender(b *testing.B, s *Store, queues int) *ladderSender {
	b.Helper()
	n := &ladderSender{free: make(chan *ladderRequest, ladderWindow), failed: make(chan error, 1)}
	for i := range (queues + ladderQueuesPerTopic - 1) / ladderQueuesPerTopic {
		n.topics = append(n.topics, must1(s.OpenTopic(context.Background(), fmt.Sprintf("topic-%d", i)))(b))
	}
	for range ladderWindow {
		r := &ladderRequest{sender: n}
		r.Completion = r
		n.free <- r
	}
	return n
}

// send submits count records, each with one key, and waits for all of them.
func (n *ladderSender) send(b *testing.B, s *Store, queues, count int, payload []byte) {
	for i := range count {
		r := <-n.free
		q := i % queues
		r.key[0] = ladderKey(i)
		*r.One() = Record{
			Topic: n.topics[q/ladderQueuesPerTopic], Queue: int32(q % ladderQueuesPerTopic), TagHash: int64(i), Bytes: payload,
			Keys: r.key[:], QueueOffsetAt: 20, PositionAt: 28, StoreTimeAt: 56,
		}
		s.Submit(&r.Request)
	}
	all := make([]*ladderRequest, ladderWindow)
	for i := range all {
		all[i] = <-n.free
	}
	for _, r := range all {
		n.free <- r
	}
	select {
	case err := <-n.failed:
		b.Fatal(err)
	default:
	}
}

// ladderKey spreads keys as a hash does.
func ladderKey(i int) uint64 { return uint64(i+1) * 0x9e3779b97f4a7c15 }

func ladderOptions(b *testing.B, mode string) Options {
	o := Options{WaitTime: time.Minute}
	switch mode {
	case "sync":
		o.Dir = b.TempDir()
	case "async":
		o.Dir, o.Flush = b.TempDir(), FlushAsync
	}
	return o
}

// BenchmarkLadder is the write rate over queues, record size and flush mode.
func BenchmarkLadder(b *testing.B) {
	for _, queues := range []int{1, 8, 1000, 10_000} {
		for _, size := range []int{128, 1024} {
			for _, mode := range []string{"sync", "async", "memory"} {
				b.Run(fmt.Sprintf("queues=%d/size=%d/flush=%s", queues, size, mode), func(b *testing.B) {
					s := must1(Open(ladderOptions(b, mode)))(b)
					sender := newLadderSender(b, s, queues)
					groups := s.counts.groups.Load()
					b.SetBytes(int64(size))
					b.ReportAllocs()
					b.ResetTimer()
					sender.send(b, s, queues, b.N, make([]byte, size))
					b.StopTimer()
					b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "records/s")
					b.ReportMetric(float64(b.N)/float64(max(s.counts.groups.Load()-groups, 1)), "records/group")
					must(b, s.Close())
				})
			}
		}
	}
}

// BenchmarkBarePebble writes the same records twice, one after the other: through the lane, and as the same keys and values
// (chunks, position map, segment pointers, index list) in groups of the lane's size in a bare loop, which is what Pebble
// allows. The metric lane/bare-% is what the lane makes of that.
func BenchmarkBarePebble(b *testing.B) {
	for _, queues := range []int{8, 1000} {
		for _, size := range []int{128, 1024} {
			for _, mode := range []string{"sync", "async"} {
				b.Run(fmt.Sprintf("queues=%d/size=%d/flush=%s", queues, size, mode), func(b *testing.B) {
					laneAgainstBare(b, queues, size, mode)
				})
			}
		}
	}
}

func laneAgainstBare(b *testing.B, queues, size int, mode string) {
	payload := make([]byte, size)
	s := must1(Open(ladderOptions(b, mode)))(b)
	sender := newLadderSender(b, s, queues)
	groups := s.counts.groups.Load()
	b.ResetTimer()
	sender.send(b, s, queues, b.N, payload)
	lane := b.Elapsed()
	b.StopTimer()
	group := max(1, b.N/int(max(s.counts.groups.Load()-groups, 1)))
	must(b, s.Close())

	o := must1(ladderOptions(b, mode).withDefaults())(b)
	must(b, makeDir(o.FS, o.Dir))
	fs := newFS(vfs.Default, fsOptions{async: mode == "async"})
	db := must1(openPebble(o.Dir, o, fs, nil))(b)
	w := bareWriter{next: make([]int64, queues), pointed: make([]bool, queues), counts: make([]int, queues), payload: payload}
	start := time.Now()
	for left := b.N; left > 0; left -= group {
		batch := db.NewBatch(pebble.WithInitialSizeBytes(group*(size+40) + 64*queues + 4096))
		must(b, w.write(batch, min(group, left)))
		must(b, batch.Commit(pebble.Sync))
	}
	bare := time.Since(start)
	must(b, db.Close())
	must(b, fs.close())

	b.SetBytes(int64(size))
	b.ReportMetric(float64(b.N)/lane.Seconds(), "lane-records/s")
	b.ReportMetric(float64(b.N)/bare.Seconds(), "bare-records/s")
	b.ReportMetric(100*bare.Seconds()/lane.Seconds(), "lane/bare-%")
	b.ReportMetric(float64(group), "records/group")
}

// bareWriter makes the lane's keys and values without any of its bookkeeping.
type bareWriter struct {
	next     []int64 // next offset per queue
	pointed  []bool  // pointer of the segment written, per queue
	counts   []int   // records of the group per queue
	segment  uint32
	position int64
	sent     int
	payload  []byte
	index    indexBuilder
	maps     []byte
}

func (w *bareWriter) write(batch *pebble.Batch, records int) error {
	clear(w.counts)
	for i := range records {
		w.counts[(w.sent+i)%len(w.counts)]++
	}
	if segment := uint32(w.position / (256 << 20)); segment != w.segment {
		w.segment = segment
		clear(w.pointed)
	}
	first := w.position
	w.maps = append(w.maps[:0], make([]byte, mapHeaderLen)...)
	perChunk := max(1, (chunkBytes-chunkHeaderLen)/(len(w.payload)+chunkEntryLen))
	for q, n := range w.counts {
		for ; n > 0; n -= perChunk {
			if err := w.chunk(batch, q, min(n, perChunk)); err != nil {
				return err
			}
		}
	}
	putMapHeader(w.maps, w.position, 1)
	if err := batch.Set(positionKey(w.segment, first), w.maps, nil); err != nil {
		return err
	}
	defer w.index.reset()
	return w.index.appendTo(batch, w.segment, first)
}

func (w *bareWriter) chunk(batch *pebble.Batch, q, n int) error {
	topic, queue := uint32(q/ladderQueuesPerTopic), int32(q%ladderQueuesPerTopic)
	if !w.pointed[q] {
		w.pointed[q] = true
		p := segmentPointer{w.segment, w.next[q], w.position, 1}
		if err := batch.Set(queueSegmentKey(topic, queue, w.segment), p.value(), nil); err != nil {
			return err
		}
	}
	op := batch.SetDeferred(chunkKeyLen, chunkSize(n, n*len(w.payload)))
	putChunkKey(op.Key, w.segment, topic, queue, w.next[q])
	putChunkHeader(op.Value, n, w.next[q], w.position, 1)
	data, end := op.Value[chunkHeaderLen+n*chunkEntryLen:], 0
	for i := range n {
		copy(data[end:], w.payload)
		w.index.add(ladderKey(w.sent), w.position+int64(end))
		w.sent++
		end += len(w.payload)
		putChunkEntry(op.Value, i, end, int64(i))
	}
	w.maps = appendMapEntry(w.maps, mapEntry{w.position, topic, queue, w.next[q]})
	w.next[q] += int64(n)
	w.position += int64(end)
	return op.Finish()
}
