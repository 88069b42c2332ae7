package storage

import (
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// The hash is in the stored format: a change would make every stored key unfindable.
func TestKeyHashNeverChanges(t *testing.T) {
	for _, c := range []struct {
		topic, key string
		want       uint64
	}{
		{"", "", 0x3775721ad96a0bc9},
		{"T", "k", 0xe7b5019394afbbf4},
		{"TopicTest", "7F0000010A8C18B4AAC2123456780000", 0x38794822ce15cebb},
		{"%RETRY%group", "order-1", 0xce3389e550f0b833},
		{"Bestellungen", "Größe 42", 0x0bac85e0b544f597},
	} {
		if got := KeyHash(c.topic, c.key); got != c.want {
			t.Errorf("KeyHash(%q, %q) = %#x, want %#x", c.topic, c.key, got, c.want)
		}
	}
}

func TestKeyHashTellsTopicFromKey(t *testing.T) {
	seen := map[uint64][2]string{}
	for _, c := range [][2]string{{"ab", "c"}, {"a", "bc"}, {"abc", ""}, {"", "abc"}, {"AaTopic", "K"}, {"BBTopic", "K"}, {"a\x00", ""}, {"a", "\x00"},
		{"a", ""}, {"abcdefgh", "x"}, {"abcdefg", "hx"}, {"abcdefgh\x00", "x"}} {
		h := KeyHash(c[0], c[1])
		if other, dup := seen[h]; dup {
			t.Errorf("%q and %q have the same hash %#x", c, other, h)
		}
		seen[h] = c
	}
}

// Unique keys differ in a few low characters only, and the sorter and the pages live on even upper bits.
func TestKeyHashSpreadsSimilarKeys(t *testing.T) {
	const n, buckets = 1 << 16, 1 << 8
	var counts [buckets]int
	key := []byte("7F0000010A8C18B4AAC2123456780000")
	for i := range n {
		for d := range 4 {
			key[28+d] = "0123456789ABCDEF"[i>>(4*d)&15]
		}
		counts[KeyHash("T", string(key))>>56]++
	}
	for b, c := range counts {
		if c < n/buckets/2 || c > n/buckets*2 {
			t.Errorf("bucket %d of the upper byte holds %d keys, want about %d", b, c, n/buckets)
		}
	}
}

// drawPairs makes pairs with rising positions, among them crowds of one hash and close neighbours.
func drawPairs(t *rapid.T) []indexPair {
	n := rapid.IntRange(0, 400).Draw(t, "n")
	kinds := rapid.SliceOfN(rapid.IntRange(0, 3), n, n).Draw(t, "kinds")
	rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1))
	position := rapid.Int64Range(0, 1<<40).Draw(t, "position")
	pairs := make([]indexPair, 0, n)
	for _, kind := range kinds {
		hash := rng.Uint64()
		switch kind {
		case 1:
			hash = 7
		case 2:
			hash &= 0xff
		case 3:
			hash |= ^uint64(0xff)
		}
		if rng.IntN(3) > 0 {
			position += int64(rng.IntN(5000))
		}
		pairs = append(pairs, indexPair{hash, position})
	}
	return pairs
}

func sortedPairs(pairs []indexPair) []indexPair {
	s := slices.Clone(pairs)
	slices.SortFunc(s, indexPair.compare)
	return s
}

func TestPairSorterSortsAsComparingDoes(t *testing.T) {
	var sorter pairSorter
	rapid.Check(t, func(t *rapid.T) {
		pairs := drawPairs(t)
		want := sortedPairs(pairs)
		if got := sorter.sort(pairs); !slices.Equal(got, want) {
			t.Fatalf("sorted to %v, want %v", got, want)
		}
	})
}

func TestIndexListHoldsEachPairOnceAndFindsIt(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := slices.Compact(sortedPairs(drawPairs(t)))
		value := appendIndexList(nil, append(slices.Clone(want), want[max(len(want)-1, 0):]...))
		if len(want) == 0 {
			if len(value) != 0 {
				t.Fatalf("nothing became a list of %d bytes", len(value))
			}
			return
		}
		list, err := parseIndexList(value)
		if err != nil {
			t.Fatal(err)
		}
		if list.len() != len(want) {
			t.Fatalf("list holds %d pairs, want %d", list.len(), len(want))
		}
		for i, p := range want {
			if got := list.pair(i); got != p {
				t.Fatalf("pair %d is %v, want %v", i, got, p)
			}
			if got := list.search(p); got != i {
				t.Fatalf("search of pair %d gives %d", i, got)
			}
		}
	})
}

func TestIndexListRefusesImpossibleSizes(t *testing.T) {
	for n := range 64 {
		_, err := parseIndexList(make([]byte, n))
		if ok := n >= 20 && (n-8)%12 == 0; (err == nil) != ok {
			t.Errorf("parse of %d bytes: %v", n, err)
		}
	}
}

func FuzzIndexList(f *testing.F) {
	f.Add(appendIndexList(nil, []indexPair{{1, 2}, {1, 1}, {3, 9}}), uint64(1), int64(5))
	// No value, however damaged, makes reading it fail, and a search stays in the list.
	f.Fuzz(func(t *testing.T, value []byte, hash uint64, position int64) {
		list, err := parseIndexList(value)
		if err != nil {
			return
		}
		if i := list.search(indexPair{hash, position}); i < 0 || i > list.len() {
			t.Fatalf("search in %d pairs gives %d", list.len(), i)
		}
	})
}

// Passes over lists yield every pair in order, whatever the hashes and in bounded memory.
func TestSelectionYieldsEverythingInOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		all := drawPairs(t)
		limit := rapid.IntRange(1, 50).Draw(t, "limit")
		var lists []indexList
		for rest := all; len(rest) > 0; {
			n := rapid.IntRange(1, len(rest)).Draw(t, "list")
			list, err := parseIndexList(appendIndexList(nil, sortedPairs(rest[:n])))
			if err != nil {
				t.Fatal(err)
			}
			lists = append(lists, list)
			rest = rest[n:]
		}
		var got []indexPair
		sel := selection{limit: limit}
		for {
			for _, l := range lists {
				sel.take(l)
				if len(sel.pairs) >= 2*limit {
					t.Fatalf("a pass holds %d pairs, limit %d", len(sel.pairs), limit)
				}
			}
			sel.finish()
			got = append(got, sel.pairs...)
			if !sel.next() {
				break
			}
		}
		want := slices.Compact(sortedPairs(all))
		if got := slices.Compact(got); !slices.Equal(got, want) {
			t.Fatalf("passes yield %v, want %v", got, want)
		}
	})
}
