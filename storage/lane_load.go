package storage

// newLane makes a lane for an engine that has its files open.
func newLane(s *Store, e *engine) *lane {
	return &lane{s: s, db: e.db, fs: e.fs, flights: e.flights, life: e.life,
		groups: make(chan *group), ended: make(chan struct{})}
}

// load takes up where the log ended. It runs before the lane does.
func (l *lane) load() error {
	if err := l.loadTopicIDs(); err != nil {
		return err
	}
	if err := l.loadLogHead(); err != nil {
		return err
	}
	end, storeTime, segment, found, err := lastMap(l.db)
	if err != nil || !found {
		return err
	}
	l.position = max(l.position, end)
	l.storeTime = max(l.storeTime, storeTime)
	l.segment, l.started = segment, true
	return nil
}

func (l *lane) loadTopicIDs() error {
	key := []byte{kindTopicIDs}
	value, found, err := get(l.db, key)
	if err != nil {
		return err
	}
	l.nextTopic = 1
	if found {
		if len(value) != 4 {
			return corrupt("topic ids", key)
		}
		l.nextTopic = be.Uint32(value)
	}
	return nil
}

// loadLogHead reads what the log's maps cannot tell once they are trimmed.
func (l *lane) loadLogHead() error {
	key := []byte{kindLogHead}
	value, found, err := get(l.db, key)
	if err != nil || !found {
		return err
	}
	if len(value) != 24 {
		return corrupt("log head", key)
	}
	l.logStart = int64(be.Uint64(value))
	l.position = int64(be.Uint64(value[8:]))
	l.storeTime = int64(be.Uint64(value[16:]))
	return nil
}

// setLogHead stores the log's bounds with the group. The end may lie before
// records of the same group; their map has the end after them.
func (l *lane) setLogHead(g *group) {
	value := be.AppendUint64(nil, uint64(l.logStart))
	value = be.AppendUint64(value, uint64(l.position))
	g.set([]byte{kindLogHead}, be.AppendUint64(value, uint64(l.storeTime)))
}
