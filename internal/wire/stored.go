package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"net/netip"
)

// Places of the fields that a store fills in after the record was made, as the
// number of bytes from its start. The store time follows the born host, so its
// place depends on that address's family.
const (
	QueueOffsetAt = 20
	PositionAt    = 28
	SysFlagAt     = 36
	StoreTimeAt   = 56 // with an IPv4 born host
	StoreTimeAtV6 = 68 // with an IPv6 born host
)

const (
	magicV1     = 0xDAA320A7 // topic length in one byte
	magicV2     = 0xDAA320AB // topic length in two bytes, from 5.x for topics over 127 bytes
	storedFixed = 91         // bytes of a V1 record with IPv4 hosts and nothing variable
	hostV6Extra = 12
)

// ErrMalformed is what every error about the bytes of a message, a batch or a
// body wraps.
var ErrMalformed = errors.New("wire: malformed")

// A StoredMessage is one record of the commit log, which is also what a pull
// answers with.
type StoredMessage struct {
	BodyCRC                   int32 // of the body as stored; set by ParseStored, computed by AppendStored
	QueueID                   int32
	Flag                      int32 // the user's
	QueueOffset               int64
	Position                  int64 // in the commit log
	SysFlag                   int32 // AppendStored sets the bits of the hosts' families itself
	BornTimestamp             int64 // milliseconds since 1970
	BornHost                  netip.AddrPort
	StoreTimestamp            int64 // milliseconds since 1970
	StoreHost                 netip.AddrPort
	ReconsumeTimes            int32
	PreparedTransactionOffset int64
	Body                      []byte // as stored, that is compressed when SysFlag says so
	Topic                     string
	Properties                string // as text, see Property
}

// CRC31 is the CRC-32 (IEEE) of b without its highest bit, as RocketMQ uses it
// everywhere.
func CRC31(b []byte) int32 { return int32(crc32.ChecksumIEEE(b) & 0x7fffffff) }

// Intact tells whether the body has the checksum that was stored with it.
func (m *StoredMessage) Intact() bool { return CRC31(m.Body) == m.BodyCRC }

// Size is the number of bytes that AppendStored appends.
func (m *StoredMessage) Size() int {
	return StoredBytes(m.Topic, m.BornHost, m.StoreHost) + len(m.Body) + len(m.Properties)
}

// StoredBytes is what a record takes beside body and properties.
func StoredBytes(topic string, bornHost, storeHost netip.AddrPort) int {
	n := storedFixed + len(topic)
	if isV6(bornHost) {
		n += hostV6Extra
	}
	if isV6(storeHost) {
		n += hostV6Extra
	}
	return n
}

// StoreTimePlace is the place of the store time in the record of m.
func (m *StoredMessage) StoreTimePlace() int32 {
	if isV6(m.BornHost) {
		return StoreTimeAtV6
	}
	return StoreTimeAt
}

// Check reports what of m the record's layout cannot hold.
func (m *StoredMessage) Check() error {
	switch {
	case len(m.Topic) == 0 || len(m.Topic) > MaxTopicBytes:
		return fmt.Errorf("wire: topic of %d bytes, must have 1 to %d", len(m.Topic), MaxTopicBytes)
	case len(m.Properties) > MaxPropertiesBytes:
		return fmt.Errorf("wire: properties of %d bytes, the limit is %d", len(m.Properties), MaxPropertiesBytes)
	case len(m.Body) > MaxFrameBytes:
		return fmt.Errorf("wire: body of %d bytes, the limit is %d", len(m.Body), MaxFrameBytes)
	}
	return nil
}

// AppendStored appends the record of m in layout V1, the only one that every
// client reads. It panics when m does not pass Check: after positions have been
// given out nothing may fail, so callers check before.
func AppendStored(dst []byte, m *StoredMessage) []byte {
	if err := m.Check(); err != nil {
		panic(err)
	}
	sysFlag := m.SysFlag &^ (SysBornHostV6 | SysStoreHostV6)
	if isV6(m.BornHost) {
		sysFlag |= SysBornHostV6
	}
	if isV6(m.StoreHost) {
		sysFlag |= SysStoreHostV6
	}
	be := binary.BigEndian
	dst = be.AppendUint32(dst, uint32(m.Size()))
	dst = be.AppendUint32(dst, magicV1)
	dst = be.AppendUint32(dst, uint32(CRC31(m.Body)))
	dst = be.AppendUint32(dst, uint32(m.QueueID))
	dst = be.AppendUint32(dst, uint32(m.Flag))
	dst = be.AppendUint64(dst, uint64(m.QueueOffset))
	dst = be.AppendUint64(dst, uint64(m.Position))
	dst = be.AppendUint32(dst, uint32(sysFlag))
	dst = be.AppendUint64(dst, uint64(m.BornTimestamp))
	dst = appendHost(dst, m.BornHost)
	dst = be.AppendUint64(dst, uint64(m.StoreTimestamp))
	dst = appendHost(dst, m.StoreHost)
	dst = be.AppendUint32(dst, uint32(m.ReconsumeTimes))
	dst = be.AppendUint64(dst, uint64(m.PreparedTransactionOffset))
	dst = be.AppendUint32(dst, uint32(len(m.Body)))
	dst = append(dst, m.Body...)
	dst = append(dst, byte(len(m.Topic)))
	dst = append(dst, m.Topic...)
	dst = be.AppendUint16(dst, uint16(len(m.Properties)))
	return append(dst, m.Properties...)
}

// ParseStored reads the first record of b, in layout V1 or V2, and tells how many
// bytes it takes. The body is a part of b; topic and properties are copies. The
// checksum is not verified, see Intact.
func ParseStored(b []byte) (m StoredMessage, n int, err error) {
	n, err = storedSize(b)
	if err != nil {
		return StoredMessage{}, 0, err
	}
	b = b[:n]
	be := binary.BigEndian
	magic := be.Uint32(b[4:])
	if magic != magicV1 && magic != magicV2 {
		return StoredMessage{}, 0, malformed("record with the unknown magic %#x", magic)
	}
	m.BodyCRC = int32(be.Uint32(b[8:]))
	m.QueueID = int32(be.Uint32(b[12:]))
	m.Flag = int32(be.Uint32(b[16:]))
	m.QueueOffset = int64(be.Uint64(b[QueueOffsetAt:]))
	m.Position = int64(be.Uint64(b[PositionAt:]))
	m.SysFlag = int32(be.Uint32(b[SysFlagAt:]))
	fixed := storedFixed
	if m.SysFlag&SysBornHostV6 != 0 {
		fixed += hostV6Extra
	}
	if m.SysFlag&SysStoreHostV6 != 0 {
		fixed += hostV6Extra
	}
	if magic == magicV2 {
		fixed++
	}
	if n < fixed {
		return StoredMessage{}, 0, malformed("record of %d bytes, needs at least %d", n, fixed)
	}
	m.BornTimestamp = int64(be.Uint64(b[40:]))
	at, ok := 48, true
	if m.BornHost, at, ok = parseHost(b, at, m.SysFlag&SysBornHostV6 != 0); !ok {
		return StoredMessage{}, 0, malformed("record whose born host has no valid port")
	}
	m.StoreTimestamp = int64(be.Uint64(b[at:]))
	if m.StoreHost, at, ok = parseHost(b, at+8, m.SysFlag&SysStoreHostV6 != 0); !ok {
		return StoredMessage{}, 0, malformed("record whose store host has no valid port")
	}
	m.ReconsumeTimes = int32(be.Uint32(b[at:]))
	m.PreparedTransactionOffset = int64(be.Uint64(b[at+4:]))
	// What is left may be this much longer than the empty record.
	spare := n - fixed
	if err := m.parseVariable(b[at+12:], spare, magic == magicV2); err != nil {
		return StoredMessage{}, 0, err
	}
	return m, n, nil
}

// parseVariable reads body, topic and properties from rest, which holds their
// length fields and exactly spare bytes more.
func (m *StoredMessage) parseVariable(rest []byte, spare int, v2 bool) error {
	size := int(int32(binary.BigEndian.Uint32(rest)))
	if size < 0 || size > spare {
		return malformed("record whose body has %d bytes where %d are left", size, spare)
	}
	spare -= size
	if size > 0 {
		m.Body = rest[4 : 4+size : 4+size]
	}
	rest = rest[4+size:]
	if v2 {
		size, rest = int(binary.BigEndian.Uint16(rest)), rest[2:]
	} else {
		size, rest = int(rest[0]), rest[1:]
	}
	if size > spare || size > 0x7fff || !v2 && size > MaxTopicBytes {
		return malformed("record whose topic has %d bytes where %d are left", size, spare)
	}
	spare -= size
	properties := int(binary.BigEndian.Uint16(rest[size:]))
	if properties != spare || properties > MaxPropertiesBytes {
		return malformed("record whose properties have %d bytes where %d are left", properties, spare)
	}
	// One string for both: the two bytes between them are cheaper than a second allocation.
	text := string(rest)
	m.Topic, m.Properties = text[:size], text[size+2:]
	return nil
}

// NextStored cuts the first record off b without looking into it.
func NextStored(b []byte) (record, rest []byte, err error) {
	n, err := storedSize(b)
	if err != nil {
		return nil, nil, err
	}
	return b[:n:n], b[n:], nil
}

func storedSize(b []byte) (int, error) {
	if len(b) < storedFixed {
		return 0, malformed("record of %d bytes, needs at least %d", len(b), storedFixed)
	}
	n := int(int32(binary.BigEndian.Uint32(b)))
	if n < storedFixed || n > len(b) {
		return 0, malformed("record that claims %d bytes where %d are left", n, len(b))
	}
	return n, nil
}

func isV6(host netip.AddrPort) bool {
	a := host.Addr()
	return a.Is6() && !a.Is4In6()
}

// appendHost appends address and port; no address becomes 0.0.0.0.
func appendHost(dst []byte, host netip.AddrPort) []byte {
	switch a := host.Addr(); {
	case isV6(host):
		ip := a.As16()
		dst = append(dst, ip[:]...)
	case a.IsValid():
		ip := a.Unmap().As4()
		dst = append(dst, ip[:]...)
	default:
		dst = append(dst, 0, 0, 0, 0)
	}
	return binary.BigEndian.AppendUint32(dst, uint32(host.Port()))
}

func parseHost(b []byte, at int, v6 bool) (netip.AddrPort, int, bool) {
	var a netip.Addr
	if v6 {
		a = netip.AddrFrom16([16]byte(b[at:]))
		at += 16
	} else {
		a = netip.AddrFrom4([4]byte(b[at:]))
		at += 4
	}
	port := binary.BigEndian.Uint32(b[at:])
	return netip.AddrPortFrom(a, uint16(port)), at + 4, port <= 0xffff
}

func malformed(format string, args ...any) error {
	return fmt.Errorf("%w "+format, append([]any{ErrMalformed}, args...)...)
}
