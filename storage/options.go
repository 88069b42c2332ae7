package storage

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// FlushMode says when a request is complete.
type FlushMode int

const (
	// FlushSync completes a request after its bytes were synced to the disk.
	FlushSync FlushMode = iota
	// FlushAsync completes a request after its bytes were handed to the
	// operating system, and syncs every Options.FlushInterval.
	FlushAsync
)

// String returns the name RocketMQ's configuration uses.
func (m FlushMode) String() string {
	switch m {
	case FlushSync:
		return "SYNC_FLUSH"
	case FlushAsync:
		return "ASYNC_FLUSH"
	}
	return fmt.Sprintf("FlushMode(%d)", int(m))
}

// Limits that no option moves.
const (
	// MaxRequestBytes bounds the record and change bytes of one request.
	MaxRequestBytes = 32 << 20
	// MaxQueue is the largest queue number of a topic.
	MaxQueue = 1<<16 - 1
)

// Options configure a store. The zero value is a store in memory with defaults.
type Options struct {
	// Dir is the directory of the store, made when missing. Empty means that
	// everything stays in memory, bounded by MemoryLimit.
	Dir string
	// FS is the file system below Dir; nil is the operating system's.
	FS vfs.FS
	// Flush says when a request is complete. Default FlushSync.
	Flush FlushMode
	// FlushInterval is the time between two syncs with FlushAsync. Default
	// 500 ms.
	FlushInterval time.Duration
	// SyncTimeout is how long a request may wait for its sync before it is
	// answered with ErrFlushTimeout. Default 5 s, as RocketMQ's
	// syncFlushTimeout.
	SyncTimeout time.Duration
	// MemoryLimit bounds the log of a store without Dir; the oldest segments
	// go first. Default 256 MiB, negative means no bound.
	MemoryLimit int64
	// SegmentBytes is the length of a log segment, the unit of retention. It
	// is fixed when the store is made; later values are ignored. Default
	// 256 MiB, 16 MiB without Dir; at most 2 GiB.
	SegmentBytes int64
	// WaitBytes, WaitRequests and WaitTime bound what waits for the lane:
	// beyond any of them requests get ErrBusy. Defaults 64 MiB, 10 000 and
	// 200 ms.
	WaitBytes    int64
	WaitRequests int
	WaitTime     time.Duration
	// RingBytes is the memory for recently written records. Default 32 MiB.
	RingBytes int64
	// CacheBytes is Pebble's block cache. Default 64 MiB.
	CacheBytes int64
	// Logger receives what an operator should know; nil discards it.
	Logger *slog.Logger
	// Grown is told which queues have new records, after they are durable and
	// readable. It runs on a goroutine of the store and should return soon.
	// The slice is reused after it returns.
	Grown func([]Growth)
	// Failed is called once when a failed write froze the store, on a
	// goroutine of the store. It must not call Close or Reopen, but may start
	// a goroutine that does.
	Failed func(error)

	memtableBytes int // of Pebble; tests make logs rotate with less
}

// Growth says that a queue has new records below Next.
type Growth struct {
	Topic *Topic
	Queue int32
	// Next is the offset after the last readable record.
	Next int64
}

func (o Options) inMemory() bool { return o.Dir == "" }

// withDefaults returns a copy with zero fields replaced, or every fault of the
// options joined.
func (o Options) withDefaults() (Options, error) {
	if o.SegmentBytes == 0 {
		o.SegmentBytes = 256 << 20
		if o.inMemory() {
			o.SegmentBytes = 16 << 20
		}
	}
	orDefault(&o.FlushInterval, 500*time.Millisecond)
	orDefault(&o.SyncTimeout, 5*time.Second)
	orDefault(&o.MemoryLimit, 256<<20)
	orDefault(&o.WaitBytes, 64<<20)
	orDefault(&o.WaitRequests, 10_000)
	orDefault(&o.WaitTime, 200*time.Millisecond)
	orDefault(&o.RingBytes, 32<<20)
	orDefault(&o.CacheBytes, 64<<20)
	orDefault(&o.memtableBytes, memtableBytes)
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.FS == nil {
		o.FS = vfs.Default
	}
	return o, o.validate()
}

func orDefault[T int | int64 | time.Duration](field *T, value T) {
	if *field == 0 {
		*field = value
	}
}

func (o Options) validate() error {
	var faults []error
	positive := func(name string, value int64) {
		if value < 0 {
			faults = append(faults, fmt.Errorf("storage: option %s is negative (%d)", name, value))
		}
	}
	positive("FlushInterval", int64(o.FlushInterval))
	positive("SyncTimeout", int64(o.SyncTimeout))
	positive("SegmentBytes", o.SegmentBytes)
	positive("WaitBytes", o.WaitBytes)
	positive("WaitRequests", int64(o.WaitRequests))
	positive("WaitTime", int64(o.WaitTime))
	positive("RingBytes", o.RingBytes)
	positive("CacheBytes", o.CacheBytes)
	if o.SegmentBytes > 2<<30 {
		faults = append(faults, fmt.Errorf("storage: option SegmentBytes is %d, at most 2 GiB", o.SegmentBytes))
	}
	if o.Flush != FlushSync && o.Flush != FlushAsync {
		faults = append(faults, fmt.Errorf("storage: option Flush has no mode %d", int(o.Flush)))
	}
	return errors.Join(faults...)
}
