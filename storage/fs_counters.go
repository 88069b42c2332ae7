package storage

import (
	"errors"
	"math/bits"
	"os"
	"strings"
	"sync/atomic"
	"time"
)

// syncBuckets is the number of buckets of the sync latency histogram: bucket i counts syncs that took less than 2^i
// microseconds, and not less than half of that; the last bucket takes all longer ones (from about 8 s).
const syncBuckets = 24

// fsMeter counts what went to the disk. Each count is an atomic addition on the path it counts.
type fsMeter struct {
	bytes     atomic.Int64
	walBytes  atomic.Int64
	syncs     atomic.Int64
	syncNanos atomic.Int64
	syncMax   atomic.Int64
	histogram [syncBuckets]atomic.Int64
}

// fsCounters is a reading of the meter: what happened since the fileSystem was made.
type fsCounters struct {
	// Bytes counts bytes that the disk took, of all files; WALBytes those of the write-ahead logs.
	Bytes, WALBytes int64
	// Syncs counts real syncs of files and directories that succeeded.
	Syncs int64
	// SyncTime is the sum of their durations, MaxSync the longest.
	SyncTime, MaxSync time.Duration
	// SyncHistogram counts them by duration, see syncBuckets.
	SyncHistogram [syncBuckets]int64
}

func (c *fsMeter) wrote(n int, wal bool) {
	c.bytes.Add(int64(n))
	if wal {
		c.walBytes.Add(int64(n))
	}
}

func (c *fsMeter) synced(d time.Duration) {
	c.syncs.Add(1)
	c.syncNanos.Add(int64(d))
	for {
		longest := c.syncMax.Load()
		if int64(d) <= longest || c.syncMax.CompareAndSwap(longest, int64(d)) {
			break
		}
	}
	c.histogram[min(bits.Len64(uint64(d.Microseconds())), syncBuckets-1)].Add(1)
}

// counters reads the counters. The fields are read one after the other, so they may be a write apart.
func (fs *fileSystem) counters() fsCounters {
	c := &fs.meter
	s := fsCounters{
		Bytes:    c.bytes.Load(),
		WALBytes: c.walBytes.Load(),
		Syncs:    c.syncs.Load(),
		SyncTime: time.Duration(c.syncNanos.Load()),
		MaxSync:  time.Duration(c.syncMax.Load()),
	}
	for i := range c.histogram {
		s.SyncHistogram[i] = c.histogram[i].Load()
	}
	return s
}

// dirSizes says how many bytes the files of a directory hold, by what they are for. Pebble's own estimate of its disk
// usage is wrong with value separation, since it leaves the blob files out.
type dirSizes struct {
	Logs, Tables, Blobs, Other int64
}

// Total is the sum of all files.
func (s dirSizes) Total() int64 { return s.Logs + s.Tables + s.Blobs + s.Other }

// sizes adds up the files of dir. It reads the directory, so it is for statistics and not for a hot path.
func (fs *fileSystem) sizes(dir string) (dirSizes, error) {
	var s dirSizes
	names, err := fs.inner.List(dir)
	if err != nil {
		return s, err
	}
	for _, name := range names {
		info, err := fs.inner.Stat(fs.inner.PathJoin(dir, name))
		if errors.Is(err, os.ErrNotExist) {
			continue // removed since it was listed
		}
		if err != nil {
			return s, err
		}
		switch n := info.Size(); {
		case info.IsDir():
		case isLog(name):
			s.Logs += n
		case strings.HasSuffix(name, ".sst"):
			s.Tables += n
		case strings.HasSuffix(name, ".blob"):
			s.Blobs += n
		default:
			s.Other += n
		}
	}
	return s, nil
}
