package storage

import (
	"errors"
	"fmt"
)

// Errors that callers test with errors.Is.
var (
	// ErrBusy says that too much is waiting for the disk. The request was not
	// taken and had no effect; it may be sent again.
	ErrBusy = errors.New("storage: too many requests are waiting for the disk, try again later")
	// ErrClosed says that the store is closed. A request answered with it had
	// no effect.
	ErrClosed = errors.New("storage: store is closed")
	// ErrFailed says that a write failed and the store froze: it acknowledges
	// nothing until Reopen. The errors that carry it wrap the reason as well.
	// Whether a request answered with it is on disk is unknown.
	ErrFailed = errors.New("storage: store stopped after a failed write, free the cause and reopen it")
	// ErrFlushTimeout says that a request waited longer than
	// Options.SyncTimeout for its sync. Its records carry their offsets and
	// positions, because they may well be on disk; the outcome is unknown.
	ErrFlushTimeout = errors.New("storage: sync takes longer than the timeout, outcome unknown")
	// ErrTopicDeleted says that a record names a deleted topic. The request
	// had no effect.
	ErrTopicDeleted = errors.New("storage: topic is deleted")
	// ErrTooLarge says that a request is beyond MaxRequestBytes or a queue
	// number beyond MaxQueue. The request had no effect.
	ErrTooLarge = errors.New("storage: request is too large")
	// ErrInvalid says that a request contradicts itself, for instance a field
	// place outside its record. The request had no effect.
	ErrInvalid = errors.New("storage: request is invalid")
	// ErrConditionFailed says that the condition of a request did not hold.
	// The request had no effect.
	ErrConditionFailed = errors.New("storage: condition does not hold")
	// ErrNotFound says that nothing is stored at the given place.
	ErrNotFound = errors.New("storage: not found")
	// ErrLocked says that another store, of this process or another one, has
	// the directory open.
	ErrLocked = errors.New("storage: directory is in use by another store")
	// ErrCorrupt says that stored bytes do not have the form the store gave
	// them.
	ErrCorrupt = errors.New("storage: stored data is corrupt")
)

// frozen is the error of a store whose file system stopped; it wraps both
// ErrFailed and the reason.
func frozen(reason error) error {
	return fmt.Errorf("%w: %w", ErrFailed, reason)
}

func corrupt(what string, key []byte) error {
	return fmt.Errorf("%w: %s at key %x", ErrCorrupt, what, key)
}
