package mq

import "time"

// window holds the messages of one queue between pull and commit. It is pure and
// takes no lock: its owner does.
//
// Entries lie in the order of their offsets. Everything before head is finished
// and gone; claims go from front to back. Its one invariant is the promise of the
// whole consumer: commit never passes a message that is not finished.
type window struct {
	entries []windowEntry
	head    int   // first unfinished entry
	claimed int   // first entry nobody has claimed yet
	next    int64 // offset after the last message put, or that the broker moved us to
	open    int   // unfinished entries
	bytes   int   // of them
}

type windowEntry struct {
	offset  int64
	d       *Delivery // nil once finished
	state   entryState
	started time.Time // of the running attempt
}

type entryState uint8

const (
	entryWaiting entryState = iota
	entryRunning
	entryFinished
)

func newWindow(offset int64) window { return window{next: offset} }

// put adds pulled messages; next is where the following pull begins. Messages
// below what the window already has are dropped: a broker may answer twice.
func (w *window) put(batch []*Delivery, next int64) {
	for _, d := range batch {
		if d.offset < w.next {
			continue
		}
		w.entries = append(w.entries, windowEntry{offset: d.offset, d: d})
		w.open++
		w.bytes += d.size
		w.next = d.offset + 1
	}
	w.next = max(w.next, next)
}

// commit is the group's progress: the smallest unfinished offset.
func (w *window) commit() int64 {
	if w.head < len(w.entries) {
		return w.entries[w.head].offset
	}
	return w.next
}

// span is the distance between the oldest unfinished and the newest offset.
func (w *window) span() int64 {
	if w.open == 0 {
		return 0
	}
	return w.entries[len(w.entries)-1].offset - w.entries[w.head].offset
}

// waiting is the number of messages nobody has claimed.
func (w *window) waiting() int { return len(w.entries) - w.claimed }

// first is the next message to be claimed, nil when there is none.
func (w *window) first() *Delivery {
	if w.claimed == len(w.entries) {
		return nil
	}
	return w.entries[w.claimed].d
}

// claim appends to batch up to n waiting messages, oldest first, as far as they
// are of one topic; a message that cannot be read is alone.
func (w *window) claim(batch []*Delivery, n int, now time.Time) []*Delivery {
	for ; n > 0 && w.claimed < len(w.entries); n-- {
		e := &w.entries[w.claimed]
		if len(batch) > 0 && (e.d.topic != batch[0].topic || e.d.fault != nil || batch[0].fault != nil) {
			break
		}
		e.state, e.started = entryRunning, now
		batch = append(batch, e.d)
		w.claimed++
	}
	return batch
}

// finish marks a message as done and returns whether it was there unfinished.
func (w *window) finish(offset int64) bool {
	i, ok := w.find(offset)
	if !ok || w.entries[i].state == entryFinished {
		return false
	}
	e := &w.entries[i]
	w.open--
	w.bytes -= e.d.size
	e.state, e.d = entryFinished, nil
	for w.head < len(w.entries) && w.entries[w.head].state == entryFinished {
		w.head++
	}
	w.claimed = max(w.claimed, w.head)
	if w.head == len(w.entries) {
		w.entries, w.head, w.claimed = w.entries[:0], 0, 0
	} else if w.head > 64 && w.head*2 > len(w.entries) {
		n := copy(w.entries, w.entries[w.head:])
		clear(w.entries[n:])
		w.entries = w.entries[:n]
		w.claimed -= w.head
		w.head = 0
	}
	return true
}

// unclaim gives the running messages back, for an ordered queue whose oldest
// message failed: only its batch can be running there.
func (w *window) unclaim() {
	for i := w.head; i < w.claimed; i++ {
		if w.entries[i].state == entryRunning {
			w.entries[i].state = entryWaiting
		}
	}
	w.claimed = w.head
}

// restart marks a message that failed and could not be given back as running
// again; false when it is finished or gone.
func (w *window) restart(offset int64, now time.Time) bool {
	i, ok := w.find(offset)
	if !ok || w.entries[i].state != entryRunning {
		return false
	}
	w.entries[i].started = now
	return true
}

// replace puts a fresh copy in the place of a message.
func (w *window) replace(d *Delivery) {
	if i, ok := w.find(d.offset); ok && w.entries[i].state != entryFinished {
		w.bytes += d.size - w.entries[i].d.size
		w.entries[i].d = d
	}
}

// unfinished tells whether a message is here and not done.
func (w *window) unfinished(offset int64) bool {
	i, ok := w.find(offset)
	return ok && w.entries[i].state != entryFinished
}

// overdue appends up to n messages from the front whose listener has been running
// for longer than limit. A message whose turn has not come ends the search, as in
// RocketMQ.
func (w *window) overdue(late []*Delivery, n int, limit time.Duration, now time.Time) []*Delivery {
	for i := w.head; i < len(w.entries) && n > 0; i++ {
		e := &w.entries[i]
		if e.state == entryWaiting || e.state == entryRunning && now.Sub(e.started) <= limit {
			break
		}
		if e.state == entryRunning {
			late = append(late, e.d)
			n--
		}
	}
	return late
}

// find returns the index of an unfinished offset's entry.
func (w *window) find(offset int64) (int, bool) {
	lo, hi := w.head, len(w.entries)
	for lo < hi {
		mid := int(uint(lo+hi) >> 1)
		if w.entries[mid].offset < offset {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	return lo, lo < len(w.entries) && w.entries[lo].offset == offset
}
