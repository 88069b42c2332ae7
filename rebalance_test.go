package mq

import (
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"
)

type rebalanceVectors struct {
	Hash []struct {
		Text string `json:"text"`
		Hash uint32 `json:"md5_first4_big_endian"`
	} `json:"hash_vectors"`
	Sort struct {
		QueuesIn      [][3]any `json:"queues_in"`
		QueuesSorted  [][3]any `json:"queues_sorted"`
		ClientsIn     []string `json:"clients_in"`
		ClientsSorted []string `json:"clients_sorted"`
	} `json:"sort_vectors"`
	Config []struct {
		Configured []int  `json:"configured"`
		Client     string `json:"cid"`
		Allocation []int  `json:"allocation"`
	} `json:"config_vectors"`
	Count   int               `json:"count"`
	Vectors []rebalanceVector `json:"vectors"`
}

type rebalanceVector struct {
	ID           int               `json:"id"`
	Strategy     string            `json:"strategy"`
	Queues       [][3]any          `json:"mqAll"`
	Clients      []string          `json:"cidAll"`
	VirtualNodes *int              `json:"virtualNodes"`
	Rooms        []string          `json:"consumerIdcs"`
	Allocation   map[string][]int  `json:"allocation"`
	Errors       map[string]string `json:"errors"`
}

func loadRebalanceVectors(t *testing.T) rebalanceVectors {
	t.Helper()
	text, err := os.ReadFile("testdata/rebalance.json")
	if err != nil {
		t.Fatal(err)
	}
	var v rebalanceVectors
	if err := json.Unmarshal(text, &v); err != nil {
		t.Fatal(err)
	}
	if len(v.Vectors) != v.Count {
		t.Fatalf("%d vectors, the file announces %d", len(v.Vectors), v.Count)
	}
	return v
}

func queuesOf(rows [][3]any) []Queue {
	var queues []Queue
	for _, r := range rows {
		queues = append(queues, Queue{r[0].(string), r[1].(string), int(r[2].(float64))})
	}
	return queues
}

// dashRooms is the resolver of the vectors: the text before the first dash.
type dashRooms struct{}

func (dashRooms) BrokerRoom(q Queue) string    { room, _, _ := strings.Cut(q.Broker, "-"); return room }
func (dashRooms) ConsumerRoom(c string) string { room, _, _ := strings.Cut(c, "-"); return room }

func (v rebalanceVector) allocator(t *testing.T) Allocator {
	nodes := 10
	if v.VirtualNodes != nil {
		nodes = *v.VirtualNodes
	}
	base := map[string]Allocator{"AVG": Average(), "AVG_BY_CIRCLE": AverageByCircle(),
		"MACHINE_ROOM": ByMachineRoom(v.Rooms...), "CONSISTENT_HASH": ConsistentHash(nodes)}
	inner, nearby := strings.CutPrefix(v.Strategy, "MACHINE_ROOM_NEARBY-")
	a := base[inner]
	if nearby {
		a = MachineRoomNearby(a, dashRooms{})
	}
	if a == nil || a.Name() != v.Strategy {
		t.Fatalf("vector %d: no strategy %s", v.ID, v.Strategy)
	}
	return a
}

func TestAllocatorsEqualRocketMQ(t *testing.T) {
	for _, v := range loadRebalanceVectors(t).Vectors {
		a, queues := v.allocator(t), queuesOf(v.Queues)
		for client, want := range v.Allocation {
			if v.Errors[client] != "" {
				continue
			}
			got, err := a.Allocate(Allocation{"group", client, queues, v.Clients})
			if err != nil {
				t.Errorf("vector %d %s, %s: %v", v.ID, v.Strategy, client, err)
				continue
			}
			var wantQueues []Queue
			for _, i := range want {
				wantQueues = append(wantQueues, queues[i])
			}
			if !slices.Equal(got, wantQueues) {
				t.Errorf("vector %d %s, %s: got %v, want %v", v.ID, v.Strategy, client, got, wantQueues)
			}
		}
		for client := range v.Errors {
			if got, err := a.Allocate(Allocation{"group", client, queues, v.Clients}); err == nil {
				t.Errorf("vector %d %s, %q: got %v, want an error", v.ID, v.Strategy, client, got)
			}
		}
	}
}

func TestConfiguredQueuesAreTakenAsTheyAre(t *testing.T) {
	for _, v := range loadRebalanceVectors(t).Config {
		var configured, want []Queue
		for _, id := range v.Configured {
			configured = append(configured, Queue{"T", "b", id})
		}
		for _, id := range v.Allocation {
			want = append(want, Queue{"T", "b", id})
		}
		got, err := ByConfig(configured...).Allocate(Allocation{Client: v.Client})
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: got %v, %v, want %v", v.Client, got, err, want)
		}
	}
}

func TestRingHashIsTheFirstFourBytesOfMD5(t *testing.T) {
	for _, v := range loadRebalanceVectors(t).Hash {
		if got := ringHash(v.Text); got != v.Hash {
			t.Errorf("%q: %d, want %d", v.Text, got, v.Hash)
		}
	}
}

func TestQueuesAndClientsSortAsInJava(t *testing.T) {
	v := loadRebalanceVectors(t).Sort
	queues, clients := queuesOf(v.QueuesIn), slices.Clone(v.ClientsIn)
	slices.SortFunc(queues, compareQueues)
	slices.SortFunc(clients, compareUTF16)
	if want := queuesOf(v.QueuesSorted); !slices.Equal(queues, want) {
		t.Errorf("queues %v, want %v", queues, want)
	}
	if !slices.Equal(clients, v.ClientsSorted) {
		t.Errorf("clients %v, want %v", clients, v.ClientsSorted)
	}
	// U+1F600 is a surrogate pair in Java and sorts before U+E000; in bytes after.
	if compareUTF16("\U0001F600", "\uE000") >= 0 {
		t.Error("surrogate pairs must sort below the private-use area")
	}
}

func TestAllocateRefusesBadInput(t *testing.T) {
	queues := []Queue{{"T", "b", 0}}
	for _, tc := range []struct {
		name  string
		with  Allocator
		input Allocation
	}{
		{"no client id", Average(), Allocation{"g", "", queues, []string{"a"}}},
		{"no queues", AverageByCircle(), Allocation{"g", "a", nil, []string{"a"}}},
		{"no clients", ConsistentHash(10), Allocation{"g", "a", queues, nil}},
		{"negative virtual nodes", ConsistentHash(-1), Allocation{"g", "a", queues, []string{"a"}}},
		{"client without a room", MachineRoomNearby(Average(), dashRooms{}), Allocation{"g", "-a", queues, []string{"-a"}}},
	} {
		if got, err := tc.with.Allocate(tc.input); err == nil {
			t.Errorf("%s: got %v, want an error", tc.name, got)
		}
	}
	if got, err := Average().Allocate(Allocation{"g", "stranger", queues, []string{"a"}}); err != nil || got != nil {
		t.Errorf("a stranger gets %v, %v, want nothing", got, err)
	}
}

// BC143: by-machine-room hands out queues of the configured rooms only, each once.
func TestByMachineRoomStaysInItsRooms(t *testing.T) {
	var queues []Queue
	for i := range 10 {
		queues = append(queues, Queue{"T", []string{"r1@a", "r2@b", "r3@c"}[i%3], i})
	}
	clients := []string{"c1", "c2", "c3"}
	owners := make(map[Queue]int)
	for _, c := range clients {
		share, err := ByMachineRoom("r1", "r2").Allocate(Allocation{"g", c, queues, clients})
		if err != nil {
			t.Fatal(err)
		}
		for _, q := range share {
			owners[q]++
		}
	}
	for _, q := range queues {
		want := 1
		if strings.HasPrefix(q.Broker, "r3@") {
			want = 0
		}
		if owners[q] != want {
			t.Errorf("%v has %d owners, want %d", q, owners[q], want)
		}
	}
}
