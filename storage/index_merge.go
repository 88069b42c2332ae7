package storage

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"time"

	"github.com/cockroachdb/pebble/v2"
)

// Bounds of the merge.
const (
	// indexPageEntries makes pages of about 8 KiB: what a query reads per merged segment.
	indexPageEntries = 680
	// mergePassPairs is how many pairs one pass over a segment's lists takes out; a pass holds at most twice as many, and
	// the sorter a copy, 16 bytes each: 16 MiB for the time of the merge.
	mergePassPairs = 256 << 10
	// mergeRequestBytes bounds the pages of one lane request, so that senders never wait behind a merge for long.
	mergeRequestBytes = 512 << 10
	// mergeRetry is the pause after a merge failed for another reason than the store's end.
	mergeRetry = time.Second
)

// keyIndex owns the goroutine that turns the lists of finished segments into pages, and answers queries.
//
// A page is a value of the same format as a list, filed under the segment and the page's last entry: seeking the entry looked
// for finds the one page that can hold it, however unevenly keys are spread. Segments are merged in rising order and one
// durable number, the merge mark, says that every segment below it has pages and no lists. The mark moves in the batch that
// stores the last page and deletes the lists; a crash before leaves lists that are valid and pages that nobody reads and the
// next attempt replaces. Pages that a merge writes for a segment which retention has just removed go with the next removal.
type keyIndex struct {
	store  *Store
	wake   chan struct{} // capacity 1: a segment was finished
	cancel context.CancelFunc
	done   chan struct{}

	// passPairs and pageEntries are the bounds above, smaller in tests.
	passPairs, pageEntries int
}

func newKeyIndex(s *Store) *keyIndex {
	return &keyIndex{store: s, wake: make(chan struct{}, 1), passPairs: mergePassPairs, pageEntries: indexPageEntries}
}

// start begins merging in the background: first whatever an earlier run left, then each segment as it is sealed.
func (x *keyIndex) start() {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	x.cancel, x.done = cancel, done
	go func() {
		defer close(done)
		x.run(ctx)
	}()
}

// stop ends the merging and waits for its goroutine. It may be called without start, and twice.
func (x *keyIndex) stop() {
	if x.cancel == nil {
		return
	}
	x.cancel()
	<-x.done
	x.cancel = nil
}

// sealed says that a segment is full and durable. It never blocks.
func (x *keyIndex) sealed(uint32) {
	select {
	case x.wake <- struct{}{}:
	default:
	}
}

// run merges what is ready and waits for more, until ctx ends or the store does.
func (x *keyIndex) run(ctx context.Context) {
	pause := time.NewTimer(mergeRetry)
	defer pause.Stop()
	for {
		err := x.mergeReady(ctx)
		var retry <-chan time.Time
		switch {
		case ctx.Err() != nil || errors.Is(err, ErrClosed) || errors.Is(err, ErrFailed):
			return
		case err != nil:
			x.store.log.LogAttrs(ctx, slog.LevelWarn, "storage: key index: merge failed, trying again", slog.Any("error", err))
			pause.Reset(mergeRetry)
			retry = pause.C
		}
		select {
		case <-ctx.Done():
			return
		case <-x.wake:
		case <-retry:
		}
	}
}

// mergeReady merges every finished segment that still has lists, the oldest first.
func (x *keyIndex) mergeReady(ctx context.Context) error {
	for {
		segment, found, err := x.oldestUnmerged()
		if err != nil || !found {
			return err
		}
		if err := x.mergeSegment(ctx, segment); err != nil {
			return fmt.Errorf("storage: key index: merge segment %d: %w", segment, err)
		}
	}
}

// oldestUnmerged finds the first segment with lists that no append will add to.
func (x *keyIndex) oldestUnmerged() (uint32, bool, error) {
	db, release, err := x.store.read()
	if err != nil {
		return 0, false, err
	}
	defer release()
	open := x.store.segment(x.store.LogEnd())
	it, err := db.NewIter(&pebble.IterOptions{
		LowerBound: appendIndexKey(nil, 0, 0),
		UpperBound: appendIndexKey(nil, open, 0),
	})
	if err != nil {
		return 0, false, err
	}
	var segment uint32
	found := it.First()
	if found {
		segment = indexKeySegment(it.Key())
	}
	return segment, found, it.Close()
}

// mergeSegment replaces the lists of a finished segment by pages.
func (x *keyIndex) mergeSegment(ctx context.Context, segment uint32) error {
	w := pageWriter{ctx: ctx, store: x.store, segment: segment, perPage: x.pageEntries}
	// Whatever an earlier attempt left behind must not mix with this one's pages.
	w.ops = append(w.ops, keyOp{kind: opDeleteRange, key: appendPagePrefix(nil, segment), end: appendPagePrefix(nil, segment+1)})
	sel := selection{limit: x.passPairs}
	for {
		if err := x.pass(ctx, segment, &sel); err != nil {
			return err
		}
		for _, p := range sel.pairs {
			if err := w.add(p); err != nil {
				return err
			}
		}
		if !sel.next() {
			return w.finish()
		}
	}
}

// pass offers every list of the segment to the selection. The iterator lives for one pass only, as an open one pins what is
// deleted meanwhile.
func (x *keyIndex) pass(ctx context.Context, segment uint32, sel *selection) error {
	db, release, err := x.store.read()
	if err != nil {
		return err
	}
	defer release()
	it, err := db.NewIter(&pebble.IterOptions{
		LowerBound: appendIndexKey(nil, segment, 0),
		UpperBound: appendIndexKey(nil, segment+1, 0),
	})
	if err != nil {
		return err
	}
	err = takeAll(ctx, it, sel)
	return errors.Join(err, it.Close())
}

func takeAll(ctx context.Context, it *pebble.Iterator, sel *selection) error {
	for ok := it.First(); ok; ok = it.Next() {
		if err := ctx.Err(); err != nil {
			return err
		}
		value, err := it.ValueAndErr()
		if err != nil {
			return err
		}
		list, err := parseIndexList(value)
		if err != nil {
			return err
		}
		sel.take(list)
	}
	sel.finish()
	return nil
}

// pageWriter fills pages with a rising sequence of pairs and sends them to the lane in bounded requests.
type pageWriter struct {
	ctx     context.Context
	store   *Store
	segment uint32
	perPage int
	page    []indexPair
	ops     []keyOp
	bytes   int
}

func (w *pageWriter) add(p indexPair) error {
	if n := len(w.page); n > 0 && w.page[n-1] == p {
		return nil
	}
	w.page = append(w.page, p)
	if len(w.page) < w.perPage {
		return nil
	}
	w.closePage()
	if w.bytes < mergeRequestBytes {
		return nil
	}
	return w.send()
}

// closePage turns the pairs at hand into an operation.
func (w *pageWriter) closePage() {
	if len(w.page) == 0 {
		return
	}
	value := appendIndexList(nil, w.page)
	w.ops = append(w.ops, keyOp{kind: opSet, key: appendPageKey(nil, w.segment, w.page[len(w.page)-1]), value: value})
	w.bytes += len(value)
	w.page = w.page[:0]
}

// send hands the operations at hand to the lane and waits until they are stored.
func (w *pageWriter) send() error {
	r := &Request{ops: w.ops, urgent: true}
	w.ops, w.bytes = nil, 0
	return w.store.Apply(w.ctx, r)
}

// finish stores the last page together with the end of the segment's lists and the new merge mark.
func (w *pageWriter) finish() error {
	w.closePage()
	w.ops = append(w.ops,
		keyOp{kind: opDeleteRange, key: appendIndexKey(nil, 0, 0), end: appendIndexKey(nil, w.segment+1, 0)},
		keyOp{kind: opSet, key: mergeMarkKey(), value: be.AppendUint32(nil, w.segment+1)})
	return w.send()
}

// indexKeySegment is the segment in the key of a list or page.
func indexKeySegment(key []byte) uint32 { return be.Uint32(key[1:]) }

// appendPagePrefix appends what the keys of a segment's pages begin with.
func appendPagePrefix(dst []byte, segment uint32) []byte {
	return be.AppendUint32(append(dst, kindMerged), segment)
}

// appendPageKey appends the key of the page that ends with the given pair; keys rise as pairs do.
func appendPageKey(dst []byte, segment uint32, last indexPair) []byte {
	dst = appendPagePrefix(dst, segment)
	dst = be.AppendUint64(dst, last.hash)
	return be.AppendUint64(dst, ^uint64(last.position))
}

// mergeMarkKey is where the merge mark is kept, behind the pages of every possible segment so that retention's range deletes
// never reach it.
func mergeMarkKey() []byte { return appendPagePrefix(nil, math.MaxUint32) }
