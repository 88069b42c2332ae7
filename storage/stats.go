package storage

import "time"

// Stats is a reading of a store's counters since it was opened; the fields are
// read one after the other.
type Stats struct {
	Groups, Records, Bytes int64 // committed by the lane

	// Waiting and WaitingBytes are the requests the lane has not taken yet.
	Waiting      int
	WaitingBytes int64

	// What went to the disk; zero without a directory. WALBytes is part of
	// DiskBytes.
	DiskBytes, WALBytes int64
	Syncs               int64
	SyncTime, MaxSync   time.Duration
}

// Stats reads the counters. It does no I/O.
func (s *Store) Stats() Stats {
	st := Stats{Groups: s.counts.groups.Load(), Records: s.counts.records.Load(), Bytes: s.counts.bytes.Load()}
	s.intake.mu.Lock()
	st.Waiting, st.WaitingBytes = s.intake.n, s.intake.bytes
	s.intake.mu.Unlock()
	if fs := s.files.Load(); fs != nil {
		c := fs.counters()
		st.DiskBytes, st.WALBytes, st.Syncs, st.SyncTime, st.MaxSync = c.Bytes, c.WALBytes, c.Syncs, c.SyncTime, c.MaxSync
	}
	return st
}
