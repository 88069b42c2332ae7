package wire

import (
	"bytes"
	"encoding/hex"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

func TestOffsetMessageIDsComeBackAsTheyWere(t *testing.T) {
	for _, host := range []string{"127.0.0.1:10911", "255.255.255.255:65535", "[::1]:10911", "[2001:db8::ff]:0"} {
		for _, position := range []int64{0, 1, 1 << 40, 1<<62 + 5} {
			want := netip.MustParseAddrPort(host)
			id := OffsetMessageID(want, position)
			for _, form := range []string{id, strings.ToLower(id)} {
				got, at, err := ParseOffsetMessageID(form)
				if err != nil || got != want || at != position {
					t.Errorf("%s is %v, %d, %v; want %v, %d", form, got, at, err, want, position)
				}
			}
		}
	}
	for _, id := range []string{"", "0", strings.Repeat("x", 32), strings.Repeat("0", 31), strings.Repeat("0", 40), strings.Repeat("F", 32)} {
		if _, _, err := ParseOffsetMessageID(id); !errors.Is(err, ErrMalformed) {
			t.Errorf("%q is taken for a message id: %v", id, err)
		}
	}
}

// Two processes in containers have the same address and number.
func TestUniqueKeysNeverRepeat(t *testing.T) {
	const routines, each = 8, 60_000
	ip := netip.MustParseAddr("172.17.0.2")
	processes := []*UniqueKeys{NewUniqueKeys(ip, 1), NewUniqueKeys(ip, 1)}
	var all [][16]byte
	var lock sync.Mutex
	var wait sync.WaitGroup
	for i := range routines {
		wait.Go(func() {
			keys := make([][16]byte, 0, each)
			for range each {
				key := processes[i%len(processes)].Next(time.Now())
				b, err := hex.DecodeString(key)
				if err != nil || len(b) != 16 {
					t.Errorf("key %q is not 32 digits", key)
					return
				}
				keys = append(keys, [16]byte(b))
			}
			lock.Lock()
			defer lock.Unlock()
			all = append(all, keys...)
		})
	}
	wait.Wait()
	requireDistinct(t, all, routines*each)
}

func requireDistinct(t *testing.T, keys [][16]byte, want int) {
	t.Helper()
	slices.SortFunc(keys, func(a, b [16]byte) int { return bytes.Compare(a[:], b[:]) })
	if distinct := len(slices.Compact(keys)); distinct != want {
		t.Errorf("%d distinct keys, want %d", distinct, want)
	}
}

func TestUniqueKeysNeedNoMovingClock(t *testing.T) {
	u := NewUniqueKeys(netip.MustParseAddr("10.0.0.1"), 42)
	noon := time.Date(2026, 5, 10, 12, 0, 0, 0, time.Local)
	times := []time.Time{noon, noon.Add(-time.Hour), noon.AddDate(0, -2, 0), noon.AddDate(0, 1, 0), noon.AddDate(0, 2, 0), noon}
	var all [][16]byte
	for _, now := range times {
		for range 70_000 { // more than the counter's 16 bits hold
			b, err := hex.DecodeString(u.Next(now))
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, [16]byte(b))
		}
	}
	requireDistinct(t, all, len(times)*70_000)
}

func TestUniqueKeysAreReadableForJavaTools(t *testing.T) {
	now := time.Date(2026, 5, 2, 0, 0, 1, 0, time.Local)
	key := NewUniqueKeys(netip.MustParseAddr("10.0.0.1"), 0x1002a).Next(now)
	millis := now.Sub(time.Date(2026, 5, 1, 0, 0, 0, 0, time.Local)).Milliseconds()
	if len(key) != 32 || key[:12] != "0A000001002A" || key[20:28] != string(appendHex(nil, []byte{byte(millis >> 24), byte(millis >> 16), byte(millis >> 8), byte(millis)})) {
		t.Errorf("key %s does not show 10.0.0.1, process 2A and %d ms", key, millis)
	}
	if key := NewUniqueKeys(netip.MustParseAddr("2001:db8::1"), 1).Next(now); len(key) != 56 || !strings.HasPrefix(key, "20010DB8") {
		t.Errorf("key %s does not show 2001:db8::1", key)
	}
}

func BenchmarkUniqueKey(b *testing.B) {
	u, now := NewUniqueKeys(netip.MustParseAddr("10.0.0.1"), 42), time.Now()
	b.ReportAllocs()
	for b.Loop() {
		u.Next(now)
	}
}
