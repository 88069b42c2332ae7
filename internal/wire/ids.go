package wire

import (
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"
)

// OffsetMessageID is the id that a broker gives a message: its own address and
// the message's position, 32 hexadecimal digits or 56 with an IPv6 address.
func OffsetMessageID(storeHost netip.AddrPort, position int64) string {
	var text [maxMessageID]byte
	return string(AppendOffsetMessageID(text[:0], storeHost, position))
}

// maxMessageID is the length of the longest ids of both kinds.
const maxMessageID = 56

// AppendOffsetMessageID appends an OffsetMessageID to dst.
func AppendOffsetMessageID(dst []byte, storeHost netip.AddrPort, position int64) []byte {
	var raw [maxMessageID / 2]byte
	return appendHex(dst, binary.BigEndian.AppendUint64(appendHost(raw[:0], storeHost), uint64(position)))
}

// ParseOffsetMessageID takes an OffsetMessageID apart.
func ParseOffsetMessageID(id string) (storeHost netip.AddrPort, position int64, err error) {
	if len(id) != 32 && len(id) != 56 {
		return netip.AddrPort{}, 0, malformed("message id of %d digits, must have 32 or 56", len(id))
	}
	b, err := hex.DecodeString(id)
	if err != nil {
		return netip.AddrPort{}, 0, malformed("message id %q: %v", id, err)
	}
	storeHost, at, ok := parseHost(b, 0, len(id) == 56)
	if !ok {
		return netip.AddrPort{}, 0, malformed("message id %q names no valid port", id)
	}
	return storeHost, int64(binary.BigEndian.Uint64(b[at:])), nil
}

// UniqueKeys makes the ids by which clients know their messages (UNIQ_KEY), in
// the layout of RocketMQ's Java client, so that tools which take them apart still
// find address, process and time. It is safe for concurrent use.
//
// Time and counter form one number that only grows, whatever the clock does: a
// clock that stands still or goes back, or more than 65,536 keys in a
// millisecond, makes it run ahead of the clock. Java puts the hash of a class
// loader where we put 32 random bits, drawn anew each month, when the time field
// starts again: they keep apart processes with the same address and number,
// which containers usually have, and generators of one process.
type UniqueKeys struct {
	host  []byte // address and process number
	month atomic.Pointer[keyMonth]
	turn  sync.Mutex // held to begin a month
}

// keyMonth is the part of a generator that a new month replaces.
type keyMonth struct {
	start, end int64 // milliseconds since 1970
	random     [4]byte
	last       atomic.Uint64 // milliseconds since start << 16 | counter
}

// NewUniqueKeys makes a generator. An invalid ip counts as 0.0.0.0; of pid the
// lower 16 bits are used.
func NewUniqueKeys(ip netip.Addr, pid int) *UniqueKeys {
	host := appendHost(nil, netip.AddrPortFrom(ip, 0))
	host = host[:len(host)-4]
	return &UniqueKeys{host: binary.BigEndian.AppendUint16(host, uint16(pid))}
}

// MaxUniqueKey is the length of the longest keys, those with an IPv6 address.
const MaxUniqueKey = maxMessageID

// Next makes a key, of 32 digits or 56 with an IPv6 address.
func (u *UniqueKeys) Next(now time.Time) string {
	var key [MaxUniqueKey]byte
	return string(u.Append(key[:0], now))
}

// Append makes a key and appends it to dst.
func (u *UniqueKeys) Append(dst []byte, now time.Time) []byte {
	m := u.month.Load()
	ms := now.UnixMilli()
	if m == nil || ms >= m.end {
		m = u.begin(now)
	}
	sequence := uint64(max(ms-m.start, 0)) << 16
	for {
		last := m.last.Load()
		next := max(sequence, last+1)
		if m.last.CompareAndSwap(last, next) {
			return appendUniqueKey(dst, u.host, m.random, uint32(next>>16), uint16(next))
		}
	}
}

// begin starts the month of now, unless someone did so in the meantime.
func (u *UniqueKeys) begin(now time.Time) *keyMonth {
	u.turn.Lock()
	defer u.turn.Unlock()
	if m := u.month.Load(); m != nil && now.UnixMilli() < m.end {
		return m
	}
	local := now.Local()
	start := time.Date(local.Year(), local.Month(), 1, 0, 0, 0, 0, time.Local)
	m := &keyMonth{start: start.UnixMilli(), end: start.AddDate(0, 1, 0).UnixMilli()}
	rand.Read(m.random[:]) // never fails
	u.month.Store(m)
	return m
}

func appendUniqueKey(dst, host []byte, random [4]byte, ms uint32, counter uint16) []byte {
	var raw [28]byte
	b := append(raw[:0], host...)
	b = append(b, random[:]...)
	b = binary.BigEndian.AppendUint32(b, ms)
	b = binary.BigEndian.AppendUint16(b, counter)
	return appendHex(dst, b)
}

// appendHex appends the bytes as hexadecimal digits in upper case.
func appendHex(dst, b []byte) []byte {
	const digits = "0123456789ABCDEF"
	for _, c := range b {
		dst = append(dst, digits[c>>4], digits[c&15])
	}
	return dst
}
