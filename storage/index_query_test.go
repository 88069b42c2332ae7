package storage

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"
)

// keyMatch accepts the bodies "key key …|anything" that carry a key.
func keyMatch(key string) func([]byte) bool {
	return func(record []byte) bool {
		keys, _, _ := strings.Cut(string(record[bodyHeader:]), "|")
		return slices.Contains(strings.Fields(keys), key)
	}
}

// keyedRecord is a record whose body tells its keys.
func keyedRecord(topic *Topic, queue int32, keys, rest string) Record {
	return bodyRecord(topic, queue, keys+"|"+rest, strings.Fields(keys)...)
}

func query(t tester, s *Store, q KeyQuery) []string {
	t.Helper()
	q.Match = keyMatch(q.Key)
	hits, err := s.Query(t.Context(), q)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	last := int64(-1)
	for _, h := range hits {
		r := parseBody(t, h.Record)
		if r.position != h.Position || r.time != h.StoreTime {
			t.Fatalf("hit at %d, %d is the record of %d, %d", h.Position, h.StoreTime, r.position, r.time)
		}
		if last >= 0 && h.Position >= last {
			t.Fatalf("hit at %d after one at %d", h.Position, last)
		}
		last = h.Position
		got = append(got, r.body)
	}
	return got
}

// expect compares answers and tells the first difference.
func expect(t tester, got []string, want ...string) {
	t.Helper()
	for i := range min(len(got), len(want)) {
		if got[i] != want[i] {
			t.Fatalf("answer %d is %.40q, want %.40q", i, got[i], want[i])
		}
	}
	if len(got) != len(want) {
		t.Fatalf("%d answers, want %d", len(got), len(want))
	}
}

// mergeBy stops the background merge, so that a test does it itself, with small bounds.
func mergeBy(s *Store, passPairs, pageEntries int) {
	s.index.stop()
	s.index.passPairs, s.index.pageEntries = passPairs, pageEntries
}

func TestQueryFindsExactlyTheTopicAndKey(t *testing.T) {
	s := mustOpen(t, Options{})
	defer mustClose(t, s)
	// 'AaX' and 'BBX' have one hash in Java.
	a, b := mustTopic(t, s, "AaX"), mustTopic(t, s, "BBX")
	for i := range 3 {
		for _, topic := range []*Topic{a, b} {
			for _, key := range []string{"k", "K", "k k", "kk", "Aa", "BB"} {
				mustApply(t, s, &Request{Records: []Record{keyedRecord(topic, int32(i), key, fmt.Sprint(topic.Name(), i))}})
			}
		}
	}
	expect(t, query(t, s, KeyQuery{Topic: a, Key: "k"}), "k k|AaX2", "k|AaX2", "k k|AaX1", "k|AaX1", "k k|AaX0", "k|AaX0")
	expect(t, query(t, s, KeyQuery{Topic: b, Key: "BB"}), "BB|BBX2", "BB|BBX1", "BB|BBX0")
	expect(t, query(t, s, KeyQuery{Topic: b, Key: "absent"}))
}

func TestQueryReturnsTheNewestUpToTheMaximum(t *testing.T) {
	s := mustOpen(t, Options{})
	defer mustClose(t, s)
	topic := mustTopic(t, s, "T")
	var all []string
	for i := range 40 {
		r := keyedRecord(topic, int32(i%3), "unique", fmt.Sprint(i))
		mustApply(t, s, &Request{Records: []Record{r}})
		all = append(all, "unique|"+fmt.Sprint(i))
	}
	slices.Reverse(all)
	expect(t, query(t, s, KeyQuery{Topic: topic, Key: "unique", Max: 3}), all[:3]...)
	expect(t, query(t, s, KeyQuery{Topic: topic, Key: "unique"}), all[:32]...)
	expect(t, query(t, s, KeyQuery{Topic: topic, Key: "unique", Max: 100}), all...)
	expect(t, query(t, s, KeyQuery{Topic: topic, Key: "unique", MaxBytes: 2*bodyHeader + 25}), all[:2]...)
	expect(t, query(t, s, KeyQuery{Topic: topic, Key: "unique", MaxBytes: 1}), all[:1]...)
}

// A record that does not match must be looked at as well: the index knows hashes only.
func TestQueryLeavesOutRecordsThatOnlyShareTheHash(t *testing.T) {
	s := mustOpen(t, Options{})
	defer mustClose(t, s)
	topic := mustTopic(t, s, "T")
	otherKey, otherTopic := keyedRecord(topic, 0, "other", ""), keyedRecord(mustTopic(t, s, "U"), 0, "k", "U")
	otherKey.Keys = []uint64{KeyHash("T", "k")}
	otherTopic.Keys = otherKey.Keys
	mustApply(t, s, &Request{Records: []Record{otherKey, otherTopic, keyedRecord(topic, 0, "k", "")}})
	expect(t, query(t, s, KeyQuery{Topic: topic, Key: "k"}), "k|")
}

func TestQueryBoundsTheStoreTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := mustOpen(t, Options{})
		defer mustClose(t, s)
		topic := mustTopic(t, s, "T")
		var at []int64
		for i := range 5 {
			req := &Request{Records: []Record{keyedRecord(topic, 0, "k", fmt.Sprint(i))}}
			mustApply(t, s, req)
			at = append(at, req.Records[0].StoreTime)
			time.Sleep(time.Second)
		}
		expect(t, query(t, s, KeyQuery{Topic: topic, Key: "k", Begin: at[1], End: at[3]}), "k|3", "k|2", "k|1")
		expect(t, query(t, s, KeyQuery{Topic: topic, Key: "k", Begin: at[1] + 1, End: at[3] - 1}), "k|2")
		expect(t, query(t, s, KeyQuery{Topic: topic, Key: "k", Begin: at[4]}), "k|4")
		expect(t, query(t, s, KeyQuery{Topic: topic, Key: "k", End: at[0]}), "k|0")
		expect(t, query(t, s, KeyQuery{Topic: topic, Key: "k", Begin: at[4] + 1}))
	})
}

func TestQueryDoesNotFindADeletedTopic(t *testing.T) {
	s := mustOpen(t, Options{})
	defer mustClose(t, s)
	old := mustTopic(t, s, "T")
	mustApply(t, s, &Request{Records: []Record{keyedRecord(old, 0, "k", "old")}})
	if err := s.DeleteTopic(t.Context(), "T"); err != nil {
		t.Fatal(err)
	}
	topic := mustTopic(t, s, "T")
	expect(t, query(t, s, KeyQuery{Topic: topic, Key: "k"}))
	expect(t, query(t, s, KeyQuery{Topic: old, Key: "k"}))
	mustApply(t, s, &Request{Records: []Record{keyedRecord(topic, 0, "k", "new")}})
	expect(t, query(t, s, KeyQuery{Topic: topic, Key: "k"}), "k|new")
}

// fillSegments writes count records, every tenth with the key "common", all with one of their own.
func fillSegments(t tester, s *Store, topic *Topic, count, size int) (common []string) {
	t.Helper()
	for i := 0; i < count; {
		req := &Request{}
		for range 1 + i%7 {
			keys := fmt.Sprint("own", i)
			if i%10 == 0 {
				keys += " common"
			}
			r := keyedRecord(topic, int32(i%3), keys, strings.Repeat("x", size))
			req.Records = append(req.Records, r)
			i++
		}
		mustApply(t, s, req)
		for _, r := range req.Records {
			if body := string(r.Bytes[bodyHeader:]); strings.Contains(body, "common") {
				common = append(common, body)
			}
		}
	}
	return common
}

// indexKeys counts the stored lists and pages.
func indexKeys(t tester, s *Store) (lists, pages int) {
	t.Helper()
	db, release, err := s.read()
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	if err := scan(db, []byte{kindIndex}, mergeMarkKey(), func(key, _ []byte) error {
		if key[0] == kindIndex {
			lists++
		} else {
			pages++
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return lists, pages
}

func TestMergeChangesNoAnswer(t *testing.T) {
	s := mustOpen(t, Options{SegmentBytes: 32 << 10})
	defer mustClose(t, s)
	mergeBy(s, 50, 7)
	topic := mustTopic(t, s, "T")
	fillSegments(t, s, topic, 2000, 200)
	before := query(t, s, KeyQuery{Topic: topic, Key: "common", Max: 1000})
	listsBefore, pages := indexKeys(t, s)
	if pages != 0 {
		t.Fatalf("%d pages before any merge", pages)
	}
	if err := s.index.mergeReady(t.Context()); err != nil {
		t.Fatal(err)
	}
	lists, pages := indexKeys(t, s)
	if lists >= listsBefore/4 || pages == 0 {
		t.Fatalf("merge left %d of %d lists, made %d pages", lists, listsBefore, pages)
	}
	if len(before) < 190 {
		t.Fatalf("only %d records carry the common key", len(before))
	}
	expect(t, query(t, s, KeyQuery{Topic: topic, Key: "common", Max: 1000}), before...)
	for i := range 2000 {
		key := fmt.Sprint("own", i)
		if got := query(t, s, KeyQuery{Topic: topic, Key: key}); len(got) != 1 {
			t.Fatalf("query of %s: %q", key, got)
		}
	}
}

// A key of very many records fills pages of its own, and the answer is read in rounds.
func TestQueryOfAKeyWithMoreRecordsThanARound(t *testing.T) {
	s := mustOpen(t, Options{SegmentBytes: 64 << 10})
	defer mustClose(t, s)
	mergeBy(s, 100, 20)
	topic := mustTopic(t, s, "T")
	const n = 5 * hitsPerRound / 2
	var want []string
	for i := 0; i < n; i += 10 {
		req := &Request{}
		for j := range 10 {
			r := keyedRecord(topic, 0, "k", fmt.Sprint(i+j, strings.Repeat("-", 100)))
			want = append(want, string(r.Bytes[bodyHeader:]))
			req.Records = append(req.Records, r)
		}
		mustApply(t, s, req)
	}
	slices.Reverse(want)
	expect(t, query(t, s, KeyQuery{Topic: topic, Key: "k", Max: 2 * n}), want...)
	if err := s.index.mergeReady(t.Context()); err != nil {
		t.Fatal(err)
	}
	expect(t, query(t, s, KeyQuery{Topic: topic, Key: "k", Max: 2 * n}), want...)
}

// A merge that stops between any two of its requests leaves the lists in force, and the next attempt succeeds.
func TestMergeThatStopsHalfwayLosesNothing(t *testing.T) {
	s := mustOpen(t, Options{SegmentBytes: 64 << 10})
	defer mustClose(t, s)
	mergeBy(s, 100, 5)
	topic := mustTopic(t, s, "T")
	common := fillSegments(t, s, topic, 600, 200)
	want := query(t, s, KeyQuery{Topic: topic, Key: "common", Max: 1000})
	if len(want) != len(common) {
		t.Fatalf("%d records carry the key, found %d", len(common), len(want))
	}
	segment, found, err := s.index.oldestUnmerged()
	if err != nil || !found {
		t.Fatalf("no finished segment: %v", err)
	}
	// Some pages of other bounds, and no switch: what a crash in the middle leaves.
	w := pageWriter{ctx: t.Context(), store: s, segment: segment, perPage: 3}
	sel := selection{limit: 20}
	if err := s.index.pass(t.Context(), segment, &sel); err != nil {
		t.Fatal(err)
	}
	for _, p := range sel.pairs {
		if err := w.add(p); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.send(); err != nil {
		t.Fatal(err)
	}
	expect(t, query(t, s, KeyQuery{Topic: topic, Key: "common", Max: 1000}), want...)
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.index.mergeReady(canceled); !errors.Is(err, context.Canceled) {
		t.Fatalf("merge with an ended context: %v", err)
	}
	expect(t, query(t, s, KeyQuery{Topic: topic, Key: "common", Max: 1000}), want...)
	if err := s.index.mergeReady(t.Context()); err != nil {
		t.Fatal(err)
	}
	expect(t, query(t, s, KeyQuery{Topic: topic, Key: "common", Max: 1000}), want...)
	for i := range 600 {
		key := fmt.Sprint("own", i)
		if got := query(t, s, KeyQuery{Topic: topic, Key: key}); len(got) != 1 {
			t.Fatalf("query of %s: %d records", key, len(got))
		}
	}
}

func TestFinishedSegmentsAreMergedInTheBackground(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := mustOpen(t, Options{SegmentBytes: 32 << 10})
		defer mustClose(t, s)
		topic := mustTopic(t, s, "T")
		fillSegments(t, s, topic, 2000, 200)
		synctest.Wait()
		if _, found, err := s.index.oldestUnmerged(); err != nil || found {
			t.Fatalf("a finished segment is not merged (%v)", err)
		}
		if _, pages := indexKeys(t, s); pages == 0 {
			t.Fatal("no pages")
		}
	})
}

// The index against a slice: random keys, topics, merges and bounds.
func TestQueryEqualsModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		s := mustOpen(t, Options{SegmentBytes: 8 << 10})
		defer mustClose(t, s)
		mergeBy(s, rapid.IntRange(1, 40).Draw(rt, "pass"), rapid.IntRange(1, 10).Draw(rt, "page"))
		topics := []*Topic{mustTopic(t, s, "A"), mustTopic(t, s, "B")}
		type entry struct {
			topic    int
			keys     []string
			body     string
			position int64
			time     int64
		}
		var model []entry
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "seed"), 2))
		drawKeys := rapid.SliceOfN(rapid.StringMatching("[ab]{1,2}"), 0, 4)
		rt.Repeat(map[string]func(*rapid.T){
			"append": func(rt *rapid.T) {
				req := &Request{}
				var added []entry
				for i := range rapid.IntRange(1, 30).Draw(rt, "records") {
					topic := rng.IntN(2)
					keys := drawKeys.Draw(rt, "keys")
					r := keyedRecord(topics[topic], int32(rng.IntN(3)), strings.Join(keys, " "), fmt.Sprint(len(model)+i, strings.Repeat("y", rng.IntN(200))))
					req.Records = append(req.Records, r)
					added = append(added, entry{topic: topic, keys: keys, body: string(r.Bytes[bodyHeader:])})
				}
				mustApply(t, s, req)
				for i := range added {
					added[i].position, added[i].time = req.Records[i].Position, req.Records[i].StoreTime
				}
				model = append(model, added...)
			},
			"merge": func(rt *rapid.T) {
				if err := s.index.mergeReady(t.Context()); err != nil {
					rt.Fatal(err)
				}
			},
			"": func(rt *rapid.T) {
				q := KeyQuery{Max: rapid.IntRange(1, 50).Draw(rt, "max"), Key: rapid.StringMatching("[ab]{1,2}").Draw(rt, "key")}
				topic := rng.IntN(2)
				q.Topic = topics[topic]
				if len(model) > 0 && rng.IntN(2) == 0 {
					q.Begin, q.End = model[rng.IntN(len(model))].time, model[rng.IntN(len(model))].time
				}
				var hits []entry
				for _, e := range model {
					if e.topic == topic && slices.Contains(e.keys, q.Key) && e.time >= q.Begin && (q.End == 0 || e.time <= q.End) {
						hits = append(hits, e)
					}
				}
				slices.SortFunc(hits, func(a, b entry) int { return int(b.position - a.position) })
				var want []string
				for _, e := range hits[:min(len(hits), q.Max)] {
					want = append(want, e.body)
				}
				if got := query(t, s, q); !slices.Equal(got, want) {
					rt.Fatalf("query %+v: got %q, want %q", q, got, want)
				}
			},
		})
	})
}
