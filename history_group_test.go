package mq

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/pocketmq/mq/internal/wire"
	"github.com/pocketmq/mq/transport"
)

// A groupHistory is what the members of a group did with the messages.
type groupHistory struct {
	*historySite
	ordered bool

	mu       sync.Mutex
	acked    map[string]*SendResult // by unique id
	begun    map[string]int         // deliveries, by unique id
	handled  map[string]bool        // without an error
	finished map[Queue]map[int64]bool
	started  map[Queue]map[int64]int // ordered: deliveries that run now
}

func newGroupHistory(s *historySite, ordered bool) *groupHistory {
	return &groupHistory{historySite: s, ordered: ordered, acked: make(map[string]*SendResult), begun: make(map[string]int), handled: make(map[string]bool),
		finished: make(map[Queue]map[int64]bool), started: make(map[Queue]map[int64]int)}
}

// listen handles a message as users do: it takes a while, and sometimes fails.
func (h *groupHistory) listen(rnd *rand.Rand) Listener {
	var mu sync.Mutex
	draw := func(n int) int {
		mu.Lock()
		defer mu.Unlock()
		return rnd.IntN(n)
	}
	return func(_ context.Context, d *Delivery) error {
		q, offset, id := d.Queue, d.Offset, d.ID
		h.begin(d)
		time.Sleep(time.Duration(draw(30)) * time.Millisecond)
		fails := draw(10) == 0
		h.end(id, q, offset, !fails)
		if fails {
			return errors.New("again")
		}
		return nil
	}
}

func (h *groupHistory) begin(d *Delivery) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.begun[d.ID]++
	if !h.ordered {
		return
	}
	for offset := range d.Offset {
		if !h.finished[d.Queue][offset] {
			h.t.Errorf("%v: message %d begins and %d is not done", d.Queue, d.Offset, offset)
			break
		}
	}
	if h.started[d.Queue] == nil {
		h.started[d.Queue] = make(map[int64]int)
	}
	h.started[d.Queue][d.Offset]++
	running := 0
	for _, n := range h.started[d.Queue] {
		running += n
	}
	if running > 1 {
		h.t.Errorf("%v: %d messages run at once: %v", d.Queue, running, h.started[d.Queue])
	}
}

func (h *groupHistory) end(id string, q Queue, offset int64, handled bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if handled {
		h.handled[id] = true
	}
	if h.finished[q] == nil {
		h.finished[q] = make(map[int64]bool)
	}
	if handled || !h.ordered { // a failed one goes on in the retry topic, or, in order, stays where it is
		h.finished[q][offset] = true
	}
	if h.ordered {
		h.started[q][offset]--
	}
}

// watchOffsets asks the broker for the group's offsets all the time. None may
// have passed a message that is not done.
func (h *groupHistory) watchOffsets(done <-chan struct{}) {
	net := h.net.Host(historyHost(9))
	for {
		select {
		case <-done:
			return
		case <-time.After(200 * time.Millisecond):
		}
		conn, err := net.Dial(h.t.Context(), historyBroker+":10911", nil)
		if err != nil {
			continue
		}
		for id := range 2 {
			ctx, cancel := context.WithTimeout(h.t.Context(), 2*time.Second)
			f, err := conn.Call(ctx, &transport.Frame{Code: wire.CodeQueryConsumerOffset,
				Header: &wire.QueryOffsetRequest{ConsumerGroup: "members", Topic: "log", QueueID: int32(id)}})
			cancel()
			if err != nil || f.Code != wire.Success {
				continue
			}
			if offset, err := readOffset(f); err == nil {
				h.passed(Queue{Topic: "log", Broker: "b", ID: id}, offset.(int64))
			}
		}
		conn.Close()
	}
}

func (h *groupHistory) passed(q Queue, committed int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for offset := range committed {
		if !h.finished[q][offset] {
			h.t.Errorf("%v: the group's offset is %d, and message %d is not done", q, committed, offset)
			return
		}
	}
}

// member starts a member of the group on a host of its own.
func (h *groupHistory) member(host int, rnd *rand.Rand) *Consumer {
	h.t.Helper()
	c, err := NewConsumer(ConsumerConfig{Transport: h.net.Host(historyHost(host)), NameServers: []string{h.ns.Addr()}, Group: "members",
		Start: FromFirst, Ordered: h.ordered, Suspend: 50 * time.Millisecond})
	if err != nil {
		h.t.Fatal(err)
	}
	if err := c.Subscribe("log", Filter{}, h.listen(rnd)); err != nil {
		h.t.Fatal(err)
	}
	if err := c.Start(h.t.Context()); err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { c.Close() })
	return c
}

// comeAndGo lets members join, leave, and die: a dead one can reach nobody any
// more, and does not know that it is dead.
func (h *groupHistory) comeAndGo(seed uint64, rounds int) {
	rnd := rand.New(rand.NewPCG(seed, 1000))
	type here struct {
		host int
		c    *Consumer
	}
	var members []here
	hosts := 10
	join := func() {
		members = append(members, here{hosts, h.member(hosts, rand.New(rand.NewPCG(seed, uint64(hosts))))})
		hosts++
	}
	join()
	for range rounds {
		time.Sleep(time.Duration(rnd.IntN(3000)) * time.Millisecond)
		at := rnd.IntN(len(members))
		switch choice := rnd.IntN(5); {
		case choice < 2 || len(members) == 1:
			if len(members) < 4 {
				join()
			}
		case choice == 2:
			if err := members[at].c.Close(); err != nil {
				h.t.Error(err)
			}
			members = slices.Delete(members, at, at+1)
		case choice == 3:
			host := historyHost(members[at].host)
			h.net.Partition(host, historyBroker)
			h.net.Partition(host, "127.0.0.1")
			members = slices.Delete(members, at, at+1)
		default:
			h.net.Cut(historyHost(members[at].host))
		}
	}
}

// send sends n messages that are distinct by their ids.
func (h *groupHistory) send(p *Producer, n int, rnd *rand.Rand) {
	for k := range n {
		res, err := p.Send(h.t.Context(), &Message{Topic: "log", Body: fmt.Appendf(nil, "message %d", k)})
		if err == nil {
			h.mu.Lock()
			if h.acked[res.ID] != nil {
				h.t.Errorf("id %s twice", res.ID)
			}
			h.acked[res.ID] = res
			h.mu.Unlock()
		}
		time.Sleep(time.Duration(rnd.IntN(100)) * time.Millisecond)
	}
}

func (h *groupHistory) missing() (n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for id := range h.acked {
		if !h.handled[id] {
			n++
		}
	}
	return n
}

func (h *groupHistory) run(seed uint64, harm bool) {
	const producers = 2
	h.rawAt(0).createTopic("log", 2, 6)
	done, settled := make(chan struct{}), make(chan struct{})
	var senders, others, watchers sync.WaitGroup
	for i := range producers {
		p := h.historyProducer(i)
		senders.Go(func() { h.send(p, 200, rand.New(rand.NewPCG(seed, uint64(i)+1))) })
	}
	watchers.Go(func() { h.watchOffsets(settled) })
	if harm {
		others.Go(func() { h.harmUntil(done, producers) })
	}
	h.comeAndGo(seed, 12)
	senders.Wait()
	close(done)
	others.Wait()
	// Members that died keep their queues, and in order their locks, for a while,
	// and what failed comes again after 10 s, 30 s and so on.
	for waited := time.Duration(0); h.missing() > 0; waited += time.Second {
		if waited > 3*time.Hour {
			h.t.Errorf("%d of %d acknowledged messages were not handled", h.missing(), len(h.acked))
			break
		}
		time.Sleep(time.Second)
	}
	time.Sleep(20 * time.Second) // commits come every 5 s
	close(settled)
	watchers.Wait()
	repeated := 0
	for _, n := range h.begun {
		repeated += n - 1
	}
	h.t.Logf("%d messages acknowledged, %d delivered, %d repetitions", len(h.acked), len(h.begun), repeated)
}

// Nothing that was acknowledged is lost to a group whose members come, go and die
// while brokers restart and connections break.
func TestGroupHistoryLosesNothing(t *testing.T) {
	eachHistory(t, func(s *historySite, seed uint64) { newGroupHistory(s, false).run(seed, true) })
}

// In an ordered group no message begins before those ahead of it are done, also
// when members come, go and die.
func TestOrderedGroupHistoryKeepsTheOrder(t *testing.T) {
	eachHistory(t, func(s *historySite, seed uint64) { newGroupHistory(s, true).run(seed, false) })
}
