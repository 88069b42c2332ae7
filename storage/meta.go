package storage

import "fmt"

// Meta returns the value a PutMeta left under kind and key. It may show a
// change shortly before that is durable; a Condition is the way to depend on
// one.
func (s *Store) Meta(kind, key string) ([]byte, bool, error) {
	db, release, err := s.read()
	if err != nil {
		return nil, false, err
	}
	defer release()
	return get(db, metaKey(kind, key))
}

// ScanMeta calls fn for everything stored under kind, in the order of the keys,
// until fn returns an error, which it returns. The value is valid during the
// call only. As with Meta, a change may be seen shortly before it is durable.
func (s *Store) ScanMeta(kind string, fn func(key string, value []byte) error) error {
	if len(kind) > 1<<16-1 {
		return fmt.Errorf("%w: kind of metadata of %d bytes", ErrTooLarge, len(kind))
	}
	db, release, err := s.read()
	if err != nil {
		return err
	}
	defer release()
	prefix := metaKey(kind, "")
	return scan(db, prefix, after(prefix), func(key, value []byte) error {
		return fn(string(key[len(prefix):]), value)
	})
}
