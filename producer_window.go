package mq

import (
	"context"
	"slices"
	"sync"
)

// A sendWindow bounds the asynchronous sends without an answer, by number and by
// bytes, and knows when no send of any kind is under way. Who waits for a place
// gets it in the order in which they came.
type sendWindow struct {
	mu       sync.Mutex // never held across a wait
	refusal  error      // why no send may begin; nil while open
	active   int        // sends of all kinds
	count    int        // asynchronous ones
	bytes    int
	maxCount int // negative: unlimited
	maxBytes int
	waiting  []*windowPlace
	idleDone chan struct{} // closed when the window is closed and nothing is active
}

type windowPlace struct {
	size  int
	ready chan error // gets one value when the place is given, or refused
}

func newSendWindow(count, bytes int) *sendWindow {
	return &sendWindow{refusal: ErrNotStarted, maxCount: count, maxBytes: bytes, idleDone: make(chan struct{})}
}

func (w *sendWindow) open() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.refusal == ErrNotStarted {
		w.refusal = nil
	}
}

// close refuses all sends from now on, also those that wait for a place.
func (w *sendWindow) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.refusal == ErrClosed {
		return
	}
	w.refusal = ErrClosed
	for _, place := range w.waiting {
		place.ready <- ErrClosed
	}
	w.waiting = nil
	if w.active == 0 {
		close(w.idleDone)
	}
}

// idle is closed when the window is closed and every send has left.
func (w *sendWindow) idle() <-chan struct{} { return w.idleDone }

// enter begins a send that needs no place.
func (w *sendWindow) enter() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.refusal == nil {
		w.active++
	}
	return w.refusal
}

// leave ends a send that entered.
func (w *sendWindow) leave() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.gone(1)
}

func (w *sendWindow) gone(sends int) {
	if w.active -= sends; w.active == 0 && w.refusal == ErrClosed {
		close(w.idleDone)
	}
}

// fits tells whether a send may take a place now. One larger than the whole window
// may when it is alone.
func (w *sendWindow) fits(size int) bool {
	if w.count == 0 {
		return true
	}
	return (w.maxCount < 0 || w.count < w.maxCount) && (w.maxBytes < 0 || w.bytes+size <= w.maxBytes)
}

func (w *sendWindow) take(size int) {
	w.active++
	w.count++
	w.bytes += size
}

// acquire begins a send that needs a place, and waits for it until ctx ends.
func (w *sendWindow) acquire(ctx context.Context, size int) error {
	w.mu.Lock()
	if w.refusal != nil {
		defer w.mu.Unlock()
		return w.refusal
	}
	if len(w.waiting) == 0 && w.fits(size) {
		w.take(size)
		w.mu.Unlock()
		return nil
	}
	place := &windowPlace{size: size, ready: make(chan error, 1)}
	w.waiting = append(w.waiting, place)
	w.mu.Unlock()
	select {
	case err := <-place.ready:
		return err
	case <-ctx.Done():
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if i := slices.Index(w.waiting, place); i >= 0 {
		w.waiting = slices.Delete(w.waiting, i, i+1)
		w.admit() // those behind may be smaller
		return errWindow(ctx.Err())
	}
	return <-place.ready // given meanwhile: the send itself finds out that ctx ended
}

// release gives places of that size together back, and to those who wait for them.
func (w *sendWindow) release(places, size int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.count -= places
	w.bytes -= size
	w.admit()
	w.gone(places)
}

func (w *sendWindow) admit() {
	for len(w.waiting) > 0 && w.fits(w.waiting[0].size) {
		place := w.waiting[0]
		w.waiting[0] = nil
		w.waiting = w.waiting[1:]
		w.take(place.size)
		place.ready <- nil // has room
	}
}
