package mq

import (
	"cmp"
	"crypto/md5"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode/utf16"
)

// An Allocation is what an [Allocator] decides on: who shares which queues.
type Allocation struct {
	Group   string
	Client  string   // whose share is wanted
	Queues  []Queue  // of one topic, sorted by broker name and id
	Clients []string // the group's members, sorted as text
}

// An Allocator divides a topic's queues among the members of a consumer group.
// Every member computes its own share, so all members must use the same one.
// Allocators are pure: equal input gives equal output, and nothing is kept. They
// are safe for concurrent use and must not change the slices they are given.
type Allocator interface {
	// Name is RocketMQ's name of the strategy.
	Name() string
	// Allocate returns Client's share. A client that is not among Clients gets
	// nothing.
	Allocate(a Allocation) ([]Queue, error)
}

// Average gives each member one run of neighbouring queues; the first members get
// one more when it does not come out even. The default (RocketMQ: AVG).
func Average() Allocator { return average{} }

// AverageByCircle deals the queues out one by one (RocketMQ: AVG_BY_CIRCLE).
func AverageByCircle() Allocator { return averageByCircle{} }

// ByConfig gives this member exactly the listed queues, whatever the others have
// (RocketMQ: CONFIG).
func ByConfig(queues ...Queue) Allocator { return byConfig{slices.Clone(queues)} }

// ByMachineRoom uses only the queues of brokers named room@name with one of the
// given rooms and averages them (RocketMQ: MACHINE_ROOM).
func ByMachineRoom(rooms ...string) Allocator { return byMachineRoom{slices.Clone(rooms)} }

// A MachineRoomResolver tells [MachineRoomNearby] in which room a broker or a
// consumer is. An empty answer makes the allocation fail.
type MachineRoomResolver interface {
	BrokerRoom(q Queue) string
	ConsumerRoom(client string) string
}

// MachineRoomNearby lets members take the queues of their own room by inner, and
// all members share by inner the queues of each room that has no member
// (RocketMQ: MACHINE_ROOM_NEARBY).
func MachineRoomNearby(inner Allocator, rooms MachineRoomResolver) Allocator {
	return machineRoomNearby{inner, rooms}
}

// ConsistentHash places virtualNodes points per member on a ring, so that few
// queues move when a member comes or goes. RocketMQ's default is 10 points; a
// negative number is an error (RocketMQ: CONSISTENT_HASH).
func ConsistentHash(virtualNodes int) Allocator { return consistentHash{virtualNodes} }

// checkAllocation is the part all strategies but CONFIG share: it refuses empty
// input and returns the client's index, -1 for a stranger.
func checkAllocation(a Allocation) (int, error) {
	var faults []error
	if a.Client == "" {
		faults = append(faults, errors.New("mq: allocate: the client id is empty"))
	}
	if len(a.Queues) == 0 {
		faults = append(faults, errors.New("mq: allocate: no queues"))
	}
	if len(a.Clients) == 0 {
		faults = append(faults, errors.New("mq: allocate: no clients"))
	}
	return slices.Index(a.Clients, a.Client), errors.Join(faults...)
}

type average struct{}

func (average) Name() string { return "AVG" }

func (average) Allocate(a Allocation) ([]Queue, error) {
	i, err := checkAllocation(a)
	if err != nil || i < 0 {
		return nil, err
	}
	size, rest := len(a.Queues)/len(a.Clients), len(a.Queues)%len(a.Clients)
	start := i*size + min(i, rest)
	if i < rest {
		size++
	}
	return slices.Clone(a.Queues[start : start+size]), nil
}

type averageByCircle struct{}

func (averageByCircle) Name() string { return "AVG_BY_CIRCLE" }

func (averageByCircle) Allocate(a Allocation) ([]Queue, error) {
	i, err := checkAllocation(a)
	if err != nil || i < 0 {
		return nil, err
	}
	var share []Queue
	for ; i < len(a.Queues); i += len(a.Clients) {
		share = append(share, a.Queues[i])
	}
	return share, nil
}

type byConfig struct{ queues []Queue }

func (byConfig) Name() string { return "CONFIG" }

func (s byConfig) Allocate(Allocation) ([]Queue, error) { return slices.Clone(s.queues), nil }

type byMachineRoom struct{ rooms []string }

func (byMachineRoom) Name() string { return "MACHINE_ROOM" }

func (s byMachineRoom) Allocate(a Allocation) ([]Queue, error) {
	i, err := checkAllocation(a)
	if err != nil || i < 0 {
		return nil, err
	}
	var kept []Queue
	for _, q := range a.Queues {
		// RocketMQ: the name must split on @ into two parts; Java's split drops
		// empty ones at the end.
		room, name, _ := strings.Cut(strings.TrimRight(q.Broker, "@"), "@")
		if name != "" && !strings.Contains(name, "@") && slices.Contains(s.rooms, room) {
			kept = append(kept, q)
		}
	}
	size, rest := len(kept)/len(a.Clients), len(kept)%len(a.Clients)
	share := slices.Clone(kept[size*i : size*(i+1)])
	if i < rest {
		share = append(share, kept[size*len(a.Clients)+i])
	}
	return share, nil
}

type machineRoomNearby struct {
	inner Allocator
	rooms MachineRoomResolver
}

func (s machineRoomNearby) Name() string { return "MACHINE_ROOM_NEARBY-" + s.inner.Name() }

func (s machineRoomNearby) Allocate(a Allocation) ([]Queue, error) {
	i, err := checkAllocation(a)
	if err != nil || i < 0 {
		return nil, err
	}
	queues := make(map[string][]Queue)
	for _, q := range a.Queues {
		room := s.rooms.BrokerRoom(q)
		if room == "" {
			return nil, fmt.Errorf("mq: allocate: no machine room for broker %s", q.Broker)
		}
		queues[room] = append(queues[room], q)
	}
	clients := make(map[string][]string)
	for _, c := range a.Clients {
		room := s.rooms.ConsumerRoom(c)
		if room == "" {
			return nil, fmt.Errorf("mq: allocate: no machine room for client %s", c)
		}
		clients[room] = append(clients[room], c)
	}
	own := s.rooms.ConsumerRoom(a.Client)
	var share []Queue
	if near := queues[own]; len(near) > 0 {
		if share, err = s.inner.Allocate(Allocation{a.Group, a.Client, near, clients[own]}); err != nil {
			return nil, err
		}
	}
	for _, room := range slices.Sorted(maps.Keys(queues)) {
		if len(clients[room]) > 0 {
			continue
		}
		part, err := s.inner.Allocate(Allocation{a.Group, a.Client, queues[room], a.Clients})
		if err != nil {
			return nil, err
		}
		share = append(share, part...)
	}
	return share, nil
}

type consistentHash struct{ virtualNodes int }

func (consistentHash) Name() string { return "CONSISTENT_HASH" }

func (s consistentHash) Allocate(a Allocation) ([]Queue, error) {
	i, err := checkAllocation(a)
	if err == nil && s.virtualNodes < 0 {
		err = fmt.Errorf("mq: allocate: %d virtual nodes, want 0 or more", s.virtualNodes)
	}
	if err != nil || i < 0 {
		return nil, err
	}
	owners, points := hashRing(a.Clients, s.virtualNodes)
	if len(points) == 0 {
		return nil, nil
	}
	var share []Queue
	for _, q := range a.Queues {
		key := fmt.Sprintf("MessageQueue [topic=%s, brokerName=%s, queueId=%d]", q.Topic, q.Broker, q.ID)
		at, _ := slices.BinarySearch(points, ringHash(key))
		if owners[points[at%len(points)]] == a.Client {
			share = append(share, q)
		}
	}
	return share, nil
}

// hashRing returns who owns each point, and the points in order. Of two clients
// on one point the later one wins, as in RocketMQ.
func hashRing(clients []string, virtualNodes int) (map[uint32]string, []uint32) {
	owners := make(map[uint32]string, len(clients)*virtualNodes)
	seen := make(map[string]int)
	for _, c := range clients {
		for range virtualNodes {
			owners[ringHash(c+"-"+strconv.Itoa(seen[c]))] = c
			seen[c]++
		}
	}
	return owners, slices.Sorted(maps.Keys(owners))
}

func ringHash(text string) uint32 {
	sum := md5.Sum([]byte(text))
	return binary.BigEndian.Uint32(sum[:])
}

// compareQueues is the order in which all members list queues (RocketMQ:
// MessageQueue.compareTo): topic and broker as UTF-16 text, then id.
func compareQueues(a, b Queue) int {
	return cmp.Or(compareUTF16(a.Topic, b.Topic), compareUTF16(a.Broker, b.Broker), cmp.Compare(a.ID, b.ID))
}

// compareUTF16 orders as Java does. It differs from byte order only where
// characters beyond the basic plane meet private-use ones.
func compareUTF16(a, b string) int {
	if isASCII(a) || isASCII(b) {
		return strings.Compare(a, b)
	}
	return slices.Compare(utf16.Encode([]rune(a)), utf16.Encode([]rune(b)))
}

func isASCII(s string) bool {
	return strings.IndexFunc(s, func(r rune) bool { return r >= 0x80 }) < 0
}
