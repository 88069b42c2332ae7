package mq

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"sync"
)

// orderNamespace holds, per ordered topic, "broker:queues;…" (RocketMQ:
// ORDER_TOPIC_CONFIG).
const orderNamespace = "ORDER_TOPIC_CONFIG"

// kvTable is a name server's key-value configuration: namespace, key, value. With
// a path it outlives restarts: each change is on disk before it is answered, and
// the state before it stays beside it as .bak, as RocketMQ keeps it.
type kvTable struct {
	path string // empty: memory only

	mu    sync.RWMutex
	table map[string]map[string]string // replaced whole, never changed
}

type kvFile struct {
	ConfigTable map[string]map[string]string `json:"configTable"`
}

// load reads the file, or its predecessor when the file is damaged. A missing
// file is an empty table.
func (t *kvTable) load() error {
	if t.path == "" {
		return nil
	}
	var faults []error
	for _, path := range []string{t.path, t.path + ".bak"} {
		text, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		var file kvFile
		if err == nil {
			err = json.Unmarshal(text, &file)
		}
		if err == nil {
			t.mu.Lock()
			t.table = file.ConfigTable
			t.mu.Unlock()
			return nil
		}
		faults = append(faults, fmt.Errorf("mq: name server configuration %s: %w; repair it or move it away", path, err))
	}
	return errors.Join(faults...)
}

func (t *kvTable) get(namespace, key string) (string, bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	v, ok := t.table[namespace][key]
	return v, ok
}

// namespace returns a copy of one namespace, nil when it has no key.
func (t *kvTable) namespace(name string) map[string]string {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if len(t.table[name]) == 0 {
		return nil
	}
	return maps.Clone(t.table[name])
}

func (t *kvTable) put(namespace, key, value string) error {
	return t.change(func(table map[string]map[string]string) {
		if table[namespace] == nil {
			table[namespace] = make(map[string]string)
		}
		table[namespace][key] = value
	})
}

func (t *kvTable) remove(namespace, key string) error {
	return t.change(func(table map[string]map[string]string) {
		delete(table[namespace], key)
		if len(table[namespace]) == 0 {
			delete(table, namespace)
		}
	})
}

// change applies an edit to a copy, makes the copy durable and only then shows
// it, so that readers never wait for the disk and never see what may be lost. One
// goroutine at a time may change the table: the name server's pool of one worker.
func (t *kvTable) change(edit func(map[string]map[string]string)) error {
	t.mu.RLock()
	next := make(map[string]map[string]string, len(t.table))
	for ns, values := range t.table {
		next[ns] = maps.Clone(values)
	}
	t.mu.RUnlock()
	edit(next)
	if t.path != "" {
		text, err := json.Marshal(kvFile{next})
		if err != nil {
			return fmt.Errorf("mq: name server configuration: %w", err)
		}
		if err := replaceFile(t.path, text); err != nil {
			return fmt.Errorf("mq: save name server configuration: %w", err)
		}
	}
	t.mu.Lock()
	t.table = next
	t.mu.Unlock()
	return nil
}

// replaceFile puts content at path so that a crash leaves the old or the new
// content, never a mixture; what stood there before is kept as path.bak.
func replaceFile(path string, content []byte) error {
	tmp := path + ".tmp"
	if err := writeSynced(tmp, content); err != nil {
		return err
	}
	old, err := os.ReadFile(path)
	if err == nil {
		err = writeSynced(path+".bak", old)
	} else if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	if err == nil {
		err = os.Rename(tmp, path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(tmp))
	}
	return syncDir(filepath.Dir(path))
}

func writeSynced(path string, content []byte) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

func syncDir(dir string) error {
	if runtime.GOOS == "windows" {
		return nil // directories cannot be synced there
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
