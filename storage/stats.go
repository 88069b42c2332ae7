package storage

import "time"

// Stats are the numbers of a store. They are read one after the other, so they
// may be a moment apart. Those of the disk count from the last Open or Reopen,
// the others from Open.
type Stats struct {
	// Groups, Records and Bytes count what became durable: batches, records,
	// and the bytes of the records.
	Groups, Records, Bytes int64
	// Waiting and WaitingBytes are what no group has taken yet.
	Waiting      int
	WaitingBytes int64
	// InFlight is the groups between being built and being durable.
	InFlight int
	// Timers and TimerBytes are the records that wait for their time,
	// TimersDropped those that vanished with their topic.
	Timers, TimerBytes, TimersDropped int64
	// DiskBytes counts bytes written to files, WALBytes those of them that
	// went to write-ahead logs.
	DiskBytes, WALBytes int64
	// Syncs counts real syncs, SyncTime is their sum, MaxSync the longest.
	Syncs             int64
	SyncTime, MaxSync time.Duration
	// SyncHistogram[i] counts syncs that took less than 2^i microseconds and
	// not less than half of that; the last entry counts all longer ones.
	SyncHistogram []int64
	// LogStart and LogEnd are the bounds of the log.
	LogStart, LogEnd int64
}

// Stats returns the store's numbers. It does no I/O.
func (s *Store) Stats() Stats {
	st := Stats{
		Groups:   s.counts.groups.Load(),
		Records:  s.counts.records.Load(),
		Bytes:    s.counts.bytes.Load(),
		LogStart: s.LogStart(),
		LogEnd:   s.LogEnd(),
	}
	st.Waiting, st.WaitingBytes = s.intake.waiting()
	st.Timers, st.TimerBytes, st.TimersDropped = s.timers.counts()
	if f := s.files.Load(); f != nil {
		st.InFlight = f.flights.count()
		c := f.fs.counters()
		st.DiskBytes, st.WALBytes = c.Bytes, c.WALBytes
		st.Syncs, st.SyncTime, st.MaxSync = c.Syncs, c.SyncTime, c.MaxSync
		st.SyncHistogram = c.SyncHistogram[:]
	}
	return st
}

// FileBytes returns the size of the store's files. It reads the directory, so
// it is not for a hot path. For a store without a directory it is the memory
// that stands for files.
func (s *Store) FileBytes() (int64, error) {
	_, release, err := s.read()
	if err != nil {
		return 0, err
	}
	defer release()
	f := s.files.Load()
	sizes, err := f.fs.sizes(f.dir)
	return sizes.Total(), err
}
