package storage

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// formatVersion is Pebble's format of the files. It is pinned: a newer Pebble
// must not rewrite a store that an older program still opens.
const formatVersion = pebble.FormatValueSeparation

// memtableBytes is the default size of Pebble's memtables.
const memtableBytes = 32 << 20

// openPebble opens the database. Failures that Pebble reports only to its
// logger raise the flag of fs; data corruption is reported and no more, since
// Pebble's default for it ends the process.
func openPebble(dir string, o Options, fs *fileSystem, lock *pebble.Lock) (*pebble.DB, error) {
	cache := pebble.NewCache(o.CacheBytes)
	defer cache.Unref()
	opts := &pebble.Options{
		FS:                 fs,
		Lock:               lock,
		Cache:              cache,
		DisableWAL:         o.inMemory(),
		FormatMajorVersion: formatVersion,
		// Three memtables of 32 MiB reach the rate of four of 64 MiB with half
		// the memory.
		MemTableSize:                uint64(o.memtableBytes),
		MemTableStopWritesThreshold: 3,
		BytesPerSync:                1 << 20,
		Logger:                      pebbleLogger{o.Logger, fs},
		EventListener: &pebble.EventListener{
			BackgroundError: func(err error) { fs.fail(fmt.Errorf("storage: background work of Pebble: %w", err)) },
			DataCorruption: func(info pebble.DataCorruptionInfo) {
				o.Logger.Error("storage: corrupt file", "path", info.Path, "error", info.Details)
			},
		},
	}
	// Snappy took a tenth of a small send's CPU time. Bodies worth compressing come
	// compressed from their senders.
	opts.ApplyCompressionSettings(func() pebble.DBCompressionSettings { return pebble.DBCompressionNone })
	opts.Experimental.CompactionScheduler = &compactions{}
	opts.Experimental.ValueSeparationPolicy = func() pebble.ValueSeparationPolicy {
		return pebble.ValueSeparationPolicy{
			Enabled:               true,
			MinimumSize:           1 << 10,
			MaxBlobReferenceDepth: 10,
			RewriteMinimumAge:     time.Minute,
			// Below 1, so that space of trimmed and deleted queues comes back.
			TargetGarbageRatio: 0.5,
		}
	}
	return pebble.Open(dir, opts)
}

// pebbleLogger sends Pebble's log to slog. Its Fatalf must return, and a store
// that reached it is not to be believed any more.
type pebbleLogger struct {
	log *slog.Logger
	fs  *fileSystem
}

func (l pebbleLogger) Infof(format string, args ...any) {
	l.log.Debug("storage: pebble: " + fmt.Sprintf(format, args...))
}

func (l pebbleLogger) Errorf(format string, args ...any) {
	l.log.Warn("storage: pebble: " + fmt.Sprintf(format, args...))
}

func (l pebbleLogger) Fatalf(format string, args ...any) {
	l.fs.fail(fmt.Errorf("storage: pebble: "+format, args...))
}

// makeDir makes a directory and syncs the parents of every part that was
// missing: a directory whose entry is lost takes a synced store with it.
func makeDir(fs vfs.FS, dir string) error {
	var missing []string
	for at := dir; ; at = fs.PathDir(at) {
		if _, err := fs.Stat(at); err == nil || at == fs.PathDir(at) {
			break
		}
		missing = append(missing, at)
	}
	if err := fs.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("storage: making the directory: %w", err)
	}
	for _, made := range missing {
		if err := syncDir(fs, fs.PathDir(made)); err != nil {
			return fmt.Errorf("storage: syncing the directory above %s: %w", made, err)
		}
	}
	return nil
}

func syncDir(fs vfs.FS, dir string) error {
	if dir == "" {
		dir = "."
	}
	f, err := fs.OpenDir(dir)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// get returns a copy of a value.
func get(db pebble.Reader, key []byte) ([]byte, bool, error) {
	value, closer, err := db.Get(key)
	if errors.Is(err, pebble.ErrNotFound) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, fmt.Errorf("storage: reading key %x: %w", key, err)
	}
	c := append([]byte(nil), value...)
	return c, true, closer.Close()
}

// scan calls fn for the keys in [from, to), in order. The slices are valid
// during the call only.
func scan(db pebble.Reader, from, to []byte, fn func(key, value []byte) error) error {
	it, err := db.NewIter(&pebble.IterOptions{LowerBound: from, UpperBound: to})
	if err != nil {
		return fmt.Errorf("storage: scanning from %x: %w", from, err)
	}
	for ok := it.First(); ok; ok = it.Next() {
		value, err := it.ValueAndErr()
		if err == nil {
			err = fn(it.Key(), value)
		}
		if err != nil {
			return errors.Join(err, it.Close())
		}
	}
	return errors.Join(it.Error(), it.Close())
}
