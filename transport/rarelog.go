package transport

import (
	"log/slog"
	"sync"
	"time"
)

// rareLogPause is the shortest time between two lines about what a peer can
// make happen as often as it likes.
const rareLogPause = 10 * time.Second

// A rareLog writes at most one warning per pause and counts the rest.
type rareLog struct {
	log *slog.Logger

	mu   sync.Mutex
	next time.Time
	more int // not written since the last line
}

func newRareLog(l *slog.Logger) *rareLog {
	if l == nil {
		l = slog.New(slog.DiscardHandler)
	}
	return &rareLog{log: l}
}

func (r *rareLog) warn(msg string, args ...any) {
	now := time.Now()
	r.mu.Lock()
	if now.Before(r.next) {
		r.more++
		r.mu.Unlock()
		return
	}
	more := r.more
	r.next, r.more = now.Add(rareLogPause), 0
	r.mu.Unlock()
	if more > 0 {
		args = append(args, "more since the last line", more)
	}
	r.log.Warn(msg, args...)
}
