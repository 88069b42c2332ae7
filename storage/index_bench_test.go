package storage

import (
	"fmt"
	"math/rand/v2"
	"testing"
)

func BenchmarkIndexBuild(b *testing.B) {
	// One group of 4,096 records with two keys each.
	hashes := make([]uint64, 8192)
	for i := range hashes {
		hashes[i] = rand.Uint64()
	}
	var builder indexBuilder
	var value []byte
	b.ReportAllocs()
	for b.Loop() {
		builder.reset()
		for i, h := range hashes {
			builder.add(h, int64(i/2*300))
		}
		builder.pairs = builder.sorter.sort(builder.pairs)
		value = appendIndexList(value[:0], builder.pairs)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(len(hashes)), "ns/key")
}

// benchSegments is a store whose records of 128 bytes have a unique key each, in merged segments.
func benchSegments(b *testing.B, segments int) (*Store, *Topic, int) {
	s := mustOpen(b, Options{SegmentBytes: 4 << 20, MemoryLimit: -1})
	b.Cleanup(func() { mustClose(b, s) })
	mergeBy(s, mergePassPairs, indexPageEntries)
	topic := mustTopic(b, s, "T")
	count := 0
	for s.segment(s.LogEnd()) < uint32(segments) {
		req := &Request{}
		for range 2000 {
			req.Records = append(req.Records, bodyRecord(topic, int32(count%8), string(make([]byte, 100)), fmt.Sprint("key", count)))
			count++
		}
		mustApply(b, s, req)
	}
	return s, topic, count
}

func BenchmarkIndexMerge(b *testing.B) {
	keys := 0
	for b.Loop() {
		b.StopTimer()
		s, _, count := benchSegments(b, 8)
		keys += count
		b.StartTimer()
		if err := s.index.mergeReady(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(keys), "ns/key")
}

// The passes over the lists of a segment of 256 MiB with records of 128 bytes.
func BenchmarkIndexSelection(b *testing.B) {
	const lists, pairs = 256, 8192
	var all []indexList
	var builder indexBuilder
	for i := range lists {
		builder.reset()
		for j := range pairs {
			builder.add(rand.Uint64(), int64(i*pairs+j)*128)
		}
		builder.pairs = builder.sorter.sort(builder.pairs)
		list, err := parseIndexList(appendIndexList(nil, builder.pairs))
		if err != nil {
			b.Fatal(err)
		}
		all = append(all, list)
	}
	for b.Loop() {
		sel := selection{limit: mergePassPairs}
		for more := true; more; more = sel.next() {
			for _, l := range all {
				sel.take(l)
			}
			sel.finish()
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/(lists*pairs), "ns/key")
}

func BenchmarkQuery(b *testing.B) {
	for _, merged := range []bool{false, true} {
		b.Run(fmt.Sprintf("8 segments/merged=%v", merged), func(b *testing.B) {
			s, topic, count := benchSegments(b, 8)
			if merged {
				if err := s.index.mergeReady(b.Context()); err != nil {
					b.Fatal(err)
				}
			}
			for b.Loop() {
				hits, err := s.Query(b.Context(), KeyQuery{Topic: topic, Key: fmt.Sprint("key", rand.IntN(count))})
				if err != nil || len(hits) != 1 {
					b.Fatal(len(hits), err)
				}
			}
		})
	}
}
