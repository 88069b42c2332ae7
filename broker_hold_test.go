package mq

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/pocketmq/mq/internal/wire"
	"github.com/pocketmq/mq/storage"
	"github.com/pocketmq/mq/transport"
)

var holdStart = time.Unix(1_000_000, 0)

func newPull(c transport.Conn, t *brokerTopic, queue int32, offset int64) *pull {
	p := &pull{conn: c, topic: t, header: &wire.PullRequest{QueueID: queue, QueueOffset: offset}}
	p.from.Store(offset)
	return p
}

func newHoldTopic() *brokerTopic { return &brokerTopic{store: new(storage.Topic)} }

func holdsForTest(limit, perConn int) *pullHolds {
	return newPullHolds(limit, perConn, func(*pull) {})
}

func TestAHeldPullIsTakenOnce(t *testing.T) {
	h := holdsForTest(10, 10)
	p := newPull(newSilentConn("a"), newHoldTopic(), 0, 5)
	if v, first := h.add(p, holdStart); v != held || !first {
		t.Fatalf("add: %v, first %v", v, first)
	}
	if !h.take(p) {
		t.Error("a held pull could not be taken")
	}
	if h.take(p) {
		t.Error("a pull was taken twice")
	}
	if pulls, next := h.due(holdStart.Add(time.Hour), nil); len(pulls) != 0 || !next.IsZero() {
		t.Errorf("due: %d pulls, next %v after it was taken", len(pulls), next)
	}
}

func TestGrowthFindsOnlyThePullsThatWaitForIt(t *testing.T) {
	h := holdsForTest(10, 10)
	c, topic, other := newSilentConn("a"), newHoldTopic(), newHoldTopic()
	waits := newPull(c, topic, 0, 5)
	beyond := newPull(c, topic, 0, 6)
	for _, p := range []*pull{waits, beyond, newPull(c, topic, 1, 5), newPull(c, other, 0, 5)} {
		h.add(p, holdStart)
	}
	if got := h.on(topic.store, 0, 6, nil); !slices.Equal(got, []*pull{waits}) {
		t.Errorf("found %d pulls, want the one that wants offset 5", len(got))
	}
	waits.advance(6)
	if got := h.on(topic.store, 0, 6, nil); len(got) != 0 {
		t.Errorf("found %d pulls that looked at it before", len(got))
	}
	var woken []*pull
	h.wake = func(p *pull) { woken = append(woken, p) }
	h.grown([]storage.Growth{{Topic: topic.store, Queue: 0, Next: 7}, {Topic: other.store, Queue: 3, Next: 9}})
	if len(woken) != 2 {
		t.Errorf("woke %d pulls, want the 2 of the queue that grew", len(woken))
	}
}

func TestPullsComeDueInTheOrderOfTheirDeadlines(t *testing.T) {
	h := holdsForTest(10, 10)
	c, topic := newSilentConn("a"), newHoldTopic()
	late, early, later := newPull(c, topic, 0, 0), newPull(c, topic, 0, 0), newPull(c, topic, 1, 0)
	for p, want := range map[*pull]time.Duration{late: 2 * time.Second, later: 3 * time.Second} {
		h.add(p, holdStart.Add(want))
	}
	if _, first := h.add(early, holdStart.Add(time.Second)); !first {
		t.Error("the earliest was not called first")
	}
	pulls, next := h.due(holdStart, nil)
	if len(pulls) != 0 || !next.Equal(holdStart.Add(time.Second)) {
		t.Errorf("%d due too early, next %v", len(pulls), next)
	}
	pulls, next = h.due(holdStart.Add(2*time.Second), nil)
	if !slices.Equal(pulls, []*pull{early, late}) || !next.Equal(holdStart.Add(3*time.Second)) {
		t.Errorf("%d due, next %v; want two, then the third", len(pulls), next)
	}
}

func TestAClosedConnectionTakesItsHoldsAlong(t *testing.T) {
	h := holdsForTest(10, 10)
	a, b, topic := newSilentConn("a"), newSilentConn("b"), newHoldTopic()
	mine := newPull(b, topic, 0, 0)
	for _, p := range []*pull{newPull(a, topic, 0, 0), mine, newPull(a, topic, 0, 0), newPull(a, topic, 1, 0)} {
		h.add(p, holdStart)
	}
	h.drop(a)
	h.drop(a)
	if got := h.all(nil); !slices.Equal(got, []*pull{mine}) {
		t.Errorf("%d left, want b's alone", len(got))
	}
	h.drop(b)
	if len(h.conns) != 0 {
		t.Errorf("%d connections remembered", len(h.conns))
	}
}

func TestHoldsAreBoundedInAllAndForEachConnection(t *testing.T) {
	h := holdsForTest(3, 2)
	a, b, topic := newSilentConn("a"), newSilentConn("b"), newHoldTopic()
	for i, want := range []holdVerdict{held, held, holdsFull} {
		if v, _ := h.add(newPull(a, topic, 0, 0), holdStart); v != want {
			t.Errorf("pull %d of a: %v, want %v", i, v, want)
		}
	}
	for i, want := range []holdVerdict{held, holdsFull} {
		if v, _ := h.add(newPull(b, topic, 0, 0), holdStart); v != want {
			t.Errorf("pull %d of b: %v, want %v", i, v, want)
		}
	}
}

func TestClosedHoldsGiveUpWhatTheyHaveAndTakeNothing(t *testing.T) {
	h := holdsForTest(10, 10)
	c, topic := newSilentConn("a"), newHoldTopic()
	h.add(newPull(c, topic, 0, 0), holdStart)
	h.add(newPull(c, topic, 0, 0), holdStart)
	if pulls := h.close(); len(pulls) != 2 || h.len() != 0 {
		t.Errorf("gave up %d, kept %d", len(pulls), h.len())
	}
	if v, _ := h.add(newPull(c, topic, 0, 0), holdStart); v != holdsClosed {
		t.Errorf("add after close: %v", v)
	}
	if len(h.queues) != 0 {
		t.Errorf("%d empty sets left", len(h.queues))
	}
}

func TestRandomHoldsKeepTheirPlaces(t *testing.T) {
	h := holdsForTest(1000, 1000)
	rng := rand.New(rand.NewPCG(1, 2))
	conns := []transport.Conn{newSilentConn("a"), newSilentConn("b"), newSilentConn("c")}
	topic := newHoldTopic()
	live := make(map[*pull]bool)
	now := holdStart
	for range 20_000 {
		switch n := rng.IntN(10); {
		case n < 5:
			p := newPull(conns[rng.IntN(3)], topic, int32(rng.IntN(4)), 0)
			if v, _ := h.add(p, now.Add(time.Duration(rng.IntN(1000))*time.Millisecond)); v == held {
				live[p] = true
			}
		case n < 8:
			for p := range live {
				if !h.take(p) {
					t.Fatal("a live pull could not be taken")
				}
				delete(live, p)
				break
			}
		case n < 9:
			now = now.Add(time.Duration(rng.IntN(100)) * time.Millisecond)
			pulls, _ := h.due(now, nil)
			for _, p := range pulls {
				if p.deadline.After(now) || !live[p] {
					t.Fatal("a pull came due that should not")
				}
				delete(live, p)
			}
		default:
			if rng.IntN(50) == 0 {
				c := conns[rng.IntN(3)]
				h.drop(c)
				for p := range live {
					if p.conn == c {
						delete(live, p)
					}
				}
			}
		}
		if h.len() != len(live) {
			t.Fatalf("%d held, want %d", h.len(), len(live))
		}
	}
	for q := range int32(4) {
		for _, p := range h.on(topic.store, q, 1, nil) {
			if !live[p] || p.header.QueueID != q {
				t.Fatal("a queue's set has a pull that is not its own")
			}
			delete(live, p)
		}
	}
	if len(live) != 0 {
		t.Errorf("%d held pulls are in no queue's set", len(live))
	}
}
