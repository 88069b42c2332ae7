package transport

import (
	"errors"
	"net"
	"slices"
	"time"
)

// faults are the rules of a [Memory] in force; a change makes a new value.
type faults struct {
	delays  []faultDelay
	drops   []*faultDrop
	cuts    []faultPair
	changed chan struct{} // closed when a newer value is in force
}

type faultPair struct{ a, b string }

type faultDelay struct {
	faultPair
	by time.Duration
}

type faultDrop struct {
	faultPair
	match func(*Frame) bool
}

// matches tells whether the rule's address covers addr: all for "", a whole host
// for an ip without a port.
func matches(rule, addr string) bool {
	if rule == "" || rule == addr {
		return true
	}
	host, _, err := net.SplitHostPort(addr)
	return err == nil && host == rule
}

func (p faultPair) covers(from, to string) bool { return matches(p.a, from) && matches(p.b, to) }

func (f *faults) delay(from, to string) time.Duration {
	for _, d := range slices.Backward(f.delays) { // the latest rule wins
		if d.covers(from, to) {
			return d.by
		}
	}
	return 0
}

func (f *faults) drop(from, to string, frame *Frame) bool {
	for _, d := range f.drops {
		if d.covers(from, to) && (d.match == nil || d.match(frame)) {
			return true
		}
	}
	return false
}

func (f *faults) held(from, to string) bool {
	for _, p := range f.cuts {
		if p.covers(from, to) || p.covers(to, from) {
			return true
		}
	}
	return false
}

// change installs a changed copy of the rules.
func (m *Memory) change(edit func(*faults)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	old := m.faults.Load()
	next := &faults{changed: make(chan struct{})}
	if old != nil {
		next.delays = slices.Clone(old.delays)
		next.drops = slices.Clone(old.drops)
		next.cuts = slices.Clone(old.cuts)
	}
	edit(next)
	if len(next.delays)+len(next.drops)+len(next.cuts) == 0 {
		m.faults.Store(nil)
	} else {
		m.faults.Store(next)
	}
	if old != nil {
		close(old.changed)
	}
}

// Delay makes frames from one address to another arrive d later, in order. An
// address is ip:port, an ip for all its ports, or "" for everybody. The rule
// given last wins; a d of 0 ends the delay between exactly these two.
func (m *Memory) Delay(from, to string, d time.Duration) {
	pair := faultPair{from, to}
	m.change(func(f *faults) {
		f.delays = slices.DeleteFunc(f.delays, func(r faultDelay) bool { return r.faultPair == pair })
		if d > 0 {
			f.delays = append(f.delays, faultDelay{pair, d})
		}
	})
}

// Drop makes frames from one address to another vanish for which match says so;
// a nil match drops all. match runs on the receiving reader. On a network that
// encodes, it sees only the code and the flags. The returned function ends it.
func (m *Memory) Drop(from, to string, match func(*Frame) bool) (stop func()) {
	rule := &faultDrop{faultPair{from, to}, match}
	m.change(func(f *faults) { f.drops = append(f.drops, rule) })
	return func() {
		m.change(func(f *faults) {
			f.drops = slices.DeleteFunc(f.drops, func(d *faultDrop) bool { return d == rule })
		})
	}
}

// Partition stops all traffic between two addresses. As with a real network,
// connections stay open and what was sent arrives after [Memory.Heal]; a dial
// waits for its time-out.
func (m *Memory) Partition(a, b string) {
	m.change(func(f *faults) { f.cuts = append(f.cuts, faultPair{a, b}) })
}

// Heal ends the partition between the two addresses.
func (m *Memory) Heal(a, b string) {
	m.change(func(f *faults) {
		f.cuts = slices.DeleteFunc(f.cuts, func(p faultPair) bool {
			return p == faultPair{a, b} || p == faultPair{b, a}
		})
	})
}

var errCut = errors.New("the connection was cut")

// Cut breaks every connection from or to the address at once, as a pulled plug:
// frames under way are lost.
func (m *Memory) Cut(addr string) {
	m.mu.Lock()
	var open []*memoryConn
	for c := range m.conns {
		if matches(addr, c.local) || matches(addr, c.remote) {
			open = append(open, c)
		}
	}
	m.mu.Unlock()
	for _, c := range open {
		c.shut(errCut, false)
	}
}
