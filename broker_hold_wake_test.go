package mq

import (
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pocketmq/mq/internal/wire"
	"github.com/pocketmq/mq/storage"
	"github.com/pocketmq/mq/transport"
)

// inBubble runs a test with a broker in virtual time.
func inBubble(t *testing.T, cfg BrokerConfig, test func(t *testing.T, r *rawBroker)) {
	synctest.Test(t, func(t *testing.T) { test(t, startBroker(t, cfg)) })
}

// answered returns an answer that must be there now, without time passing.
func answered(t *testing.T, answers <-chan pulled) pulled {
	t.Helper()
	synctest.Wait()
	select {
	case p := <-answers:
		return p
	default:
		t.Fatal("the pull is not answered")
		return pulled{}
	}
}

func notAnswered(t *testing.T, answers <-chan pulled) {
	t.Helper()
	synctest.Wait()
	select {
	case p := <-answers:
		t.Fatalf("the pull was answered with %d %q, next %d", p.code, p.remark, p.next)
	default:
	}
}

func TestANewMessageWakesAHeldPull(t *testing.T) {
	inBubble(t, BrokerConfig{}, func(t *testing.T, r *rawBroker) {
		r.createTopic("orders", 2, permRW)
		answers := r.waiting(holding(filtered(pullHeader("g", "orders", 0), "*"), 15*time.Second))
		notAnswered(t, answers)
		other := message("orders")
		other.QueueID = 1
		r.stored(other, "elsewhere")
		notAnswered(t, answers)
		r.sendTo("orders", "", "here")
		p := answered(t, answers)
		p.want(t, wire.Success, 1, "FOUND")
		if p.bodies != "here" {
			t.Errorf("got %q", p.bodies)
		}
		if n := r.holds.len(); n != 0 {
			t.Errorf("%d pulls still held", n)
		}
	})
}

func TestAHeldPullIsAnsweredAfterItsTime(t *testing.T) {
	inBubble(t, BrokerConfig{}, func(t *testing.T, r *rawBroker) {
		r.createTopic("orders", 1, permRW)
		r.sendTo("orders", "", "a")
		start := time.Now()
		for _, wait := range []time.Duration{15 * time.Second, 1234 * time.Millisecond, time.Millisecond} {
			p := <-r.waiting(holding(filtered(pullHeader("g", "orders", 1), "*"), wait))
			p.want(t, wire.PullNotFound, 1, "OFFSET_OVERFLOW_ONE")
			if took := time.Since(start); took != wait {
				t.Errorf("answered after %v, want %v", took, wait)
			}
			start = time.Now()
		}
	})
}

func TestPullsWithDifferentTimesAreAnsweredInTurn(t *testing.T) {
	inBubble(t, BrokerConfig{}, func(t *testing.T, r *rawBroker) {
		r.createTopic("orders", 1, permRW)
		start := time.Now()
		long := r.waiting(holding(filtered(pullHeader("g", "orders", 0), "*"), 20*time.Second))
		short := r.waiting(holding(filtered(pullHeader("h", "orders", 0), "*"), 3*time.Second))
		<-short
		if took := time.Since(start); took != 3*time.Second {
			t.Errorf("the short one took %v", took)
		}
		<-long
		if took := time.Since(start); took != 20*time.Second {
			t.Errorf("the long one took %v", took)
		}
	})
}

func TestAPullThatDoesNotWishToWaitIsNotHeld(t *testing.T) {
	inBubble(t, BrokerConfig{}, func(t *testing.T, r *rawBroker) {
		r.createTopic("orders", 1, permRW)
		start := time.Now()
		r.pull(filtered(pullHeader("g", "orders", 0), "*")).want(t, wire.PullNotFound, 0, "")
		h := holding(filtered(pullHeader("g", "orders", 0), "*"), time.Minute)
		h.SuspendTimeoutMillis = 0
		r.pull(h).want(t, wire.PullNotFound, 0, "")
		r.pull(holding(filtered(pullHeader("g", "orders", 5), "*"), time.Minute)).want(t, wire.PullOffsetMoved, 0, "")
		if took := time.Since(start); took != 0 {
			t.Errorf("answers took %v", took)
		}
	})
}

// The reply comes when the time is up, and takes the offset past everything that
// was filtered away meanwhile, however much that was.
func TestMessagesThatDoNotMatchWakeNobody(t *testing.T) {
	inBubble(t, BrokerConfig{}, func(t *testing.T, r *rawBroker) {
		r.createTopic("orders", 1, permRW)
		start := time.Now()
		answers := r.waiting(holding(filtered(pullHeader("g", "orders", 0), "Y"), 15*time.Second))
		notAnswered(t, answers)
		const n = 3 * minPullScan
		for range n {
			r.sendTo("orders", "X", "x")
		}
		notAnswered(t, answers)
		p := <-answers
		p.want(t, wire.PullRetryImmediately, n, "NO_MATCHED_MESSAGE")
		if took := time.Since(start); took != 15*time.Second {
			t.Errorf("answered after %v, want its whole time", took)
		}
	})
}

func TestAMatchAfterManyMismatchesWakes(t *testing.T) {
	inBubble(t, BrokerConfig{}, func(t *testing.T, r *rawBroker) {
		r.createTopic("orders", 1, permRW)
		answers := r.waiting(holding(filtered(pullHeader("g", "orders", 0), "Y"), 15*time.Second))
		notAnswered(t, answers)
		for range 100 {
			r.sendTo("orders", "X", "x")
		}
		r.sendTo("orders", "Y", "y")
		p := answered(t, answers)
		p.want(t, wire.Success, 101, "FOUND")
		if p.bodies != "y" {
			t.Errorf("got %q", p.bodies)
		}
	})
}

// Each entry is looked at once for a held pull, not again at every growth: else a
// filter that never matches costs the square of the traffic.
func TestAFilterThatNeverMatchesLooksAtEachEntryOnce(t *testing.T) {
	inBubble(t, BrokerConfig{}, func(t *testing.T, r *rawBroker) {
		r.createTopic("orders", 1, permRW)
		r.waiting(holding(filtered(pullHeader("g", "orders", 0), "Y"), time.Hour))
		synctest.Wait()
		var looked atomic.Int64
		for _, p := range r.holds.all(nil) {
			match := p.tags.match
			p.tags.match = func(hash int64, record []byte) bool { looked.Add(1); return match(hash, record) }
		}
		const n = 500
		for range n {
			r.sendTo("orders", "X", "x")
		}
		time.Sleep(time.Minute)
		if looked.Load() != n {
			t.Errorf("looked %d times at %d entries", looked.Load(), n)
		}
	})
}

func TestTheHeartbeatsFilterCountsForAHeldPull(t *testing.T) {
	inBubble(t, BrokerConfig{}, func(t *testing.T, r *rawBroker) {
		r.createTopic("orders", 1, permRW)
		r.beat("c", "g", tagSub("orders", "Y"))
		answers := r.waiting(holding(pullHeader("g", "orders", 0), 15*time.Second))
		notAnswered(t, answers)
		r.sendTo("orders", "X", "x")
		notAnswered(t, answers)
		sub := tagSub("orders", "X||Y")
		sub.SubVersion = 2
		r.beat("c", "g", sub)
		r.sendTo("orders", "X", "x2")
		if p := answered(t, answers); p.bodies != "x2" || p.next != 2 {
			t.Errorf("got %q, next %d", p.bodies, p.next)
		}
	})
}

func TestAClosedConnectionDropsItsHeldPulls(t *testing.T) {
	inBubble(t, BrokerConfig{}, func(t *testing.T, r *rawBroker) {
		r.createTopic("orders", 1, permRW)
		other, _ := r.beside()
		stays := r.waiting(holding(filtered(pullHeader("g", "orders", 0), "*"), time.Hour))
		for range 5 {
			other.waiting(holding(filtered(pullHeader("g", "orders", 0), "*"), time.Hour))
		}
		synctest.Wait()
		if n := r.holds.len(); n != 6 {
			t.Fatalf("%d held, want 6", n)
		}
		if err := other.conn.Close(); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if n := r.holds.len(); n != 1 {
			t.Errorf("%d held after the connection closed, want 1", n)
		}
		notAnswered(t, stays)
	})
}

func TestClosingTheBrokerAnswersHeldPulls(t *testing.T) {
	inBubble(t, BrokerConfig{}, func(t *testing.T, r *rawBroker) {
		r.createTopic("orders", 1, permRW)
		answers := r.waiting(holding(filtered(pullHeader("g", "orders", 0), "*"), time.Hour))
		synctest.Wait()
		start := time.Now()
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
		if p := answered(t, answers); p.code != wire.ServiceNotAvailable && p.code != -1 {
			t.Errorf("answered %d %q", p.code, p.remark)
		}
		if took := time.Since(start); took > time.Second {
			t.Errorf("took %v", took)
		}
		if n := r.holds.len(); n != 0 {
			t.Errorf("%d pulls still held", n)
		}
	})
}

func TestADeletedTopicAnswersItsHeldPulls(t *testing.T) {
	inBubble(t, BrokerConfig{}, func(t *testing.T, r *rawBroker) {
		r.createTopic("orders", 1, permRW)
		answers := r.waiting(holding(filtered(pullHeader("g", "orders", 0), "*"), time.Hour))
		synctest.Wait()
		r.must(wire.CodeDeleteTopicInBroker, &wire.DeleteTopicRequest{Topic: "orders"}, nil)
		if p := answered(t, answers); p.code != wire.TopicNotExist {
			t.Errorf("answered %d %q", p.code, p.remark)
		}
	})
}

func TestTheSweepNoticesThatAGroupMayNoLongerConsume(t *testing.T) {
	inBubble(t, BrokerConfig{}, func(t *testing.T, r *rawBroker) {
		r.createTopic("orders", 1, permRW)
		answers := r.waiting(holding(filtered(pullHeader("g", "orders", 0), "*"), time.Hour))
		synctest.Wait()
		start := time.Now()
		r.updateGroup(func(c *wire.SubscriptionGroupConfig) { c.ConsumeEnable = false }, "g")
		if p := <-answers; p.code != wire.NoPermission {
			t.Errorf("answered %d %q", p.code, p.remark)
		}
		if took := time.Since(start); took > holdSweepEvery {
			t.Errorf("noticed after %v", took)
		}
	})
}

func TestTooManyHeldPullsAreRefused(t *testing.T) {
	inBubble(t, BrokerConfig{}, func(t *testing.T, r *rawBroker) {
		r.createTopic("orders", 1, permRW)
		r.holds.limit = 2
		for range 2 {
			notAnswered(t, r.waiting(holding(filtered(pullHeader("g", "orders", 0), "*"), time.Hour)))
		}
		p := answered(t, r.waiting(holding(filtered(pullHeader("g", "orders", 0), "*"), time.Hour)))
		if p.code != wire.SystemBusy {
			t.Errorf("answered %d %q", p.code, p.remark)
		}
	})
}

func TestAHeldPullIsWokenForWhatTheRingNoLongerHas(t *testing.T) {
	cfg := BrokerConfig{storage: func(o *storage.Options) { o.RingBytes = 1 }}
	inBubble(t, cfg, func(t *testing.T, r *rawBroker) {
		r.createTopic("orders", 1, permRW)
		for _, expression := range []string{"*", "Y"} {
			topic, _ := r.topics.lookup("orders")
			_, end, err := r.store.Bounds(topic.store, 0)
			if err != nil {
				t.Fatal(err)
			}
			answers := r.waiting(holding(filtered(pullHeader("g", "orders", end), expression), 15*time.Second))
			notAnswered(t, answers)
			r.sendTo("orders", "Y", "y")
			if p := answered(t, answers); p.code != wire.Success || p.bodies != "y" {
				t.Errorf("%s: answered %d %q, %q", expression, p.code, p.remark, p.bodies)
			}
		}
	})
}

// heldNow returns the one pull that is held.
func (r *rawBroker) heldNow() *pull {
	r.t.Helper()
	synctest.Wait()
	pulls := r.holds.all(nil)
	if len(pulls) != 1 {
		r.t.Fatalf("%d pulls held, want 1", len(pulls))
	}
	return pulls[0]
}

func TestAMessageStoredBetweenReadAndHoldIsSeen(t *testing.T) {
	inBubble(t, BrokerConfig{}, func(t *testing.T, r *rawBroker) {
		r.createTopic("orders", 1, permRW)
		first := r.waiting(holding(filtered(pullHeader("g", "orders", 0), "*"), time.Hour))
		p := r.heldNow()
		late := &pull{conn: p.conn, header: p.header, topic: p.topic}
		answers := make(chan pulled, 1)
		late.reply = func(f *transport.Frame) { answers <- r.read(f) }
		r.sendTo("orders", "", "a")
		answered(t, first)
		r.holdPull(late) // its read came before the message
		if got := answered(t, answers); got.bodies != "a" {
			t.Errorf("answered %d %q", got.code, got.bodies)
		}
	})
}

func TestAMessageStoredDuringAColdReadIsSeen(t *testing.T) {
	cfg := BrokerConfig{storage: func(o *storage.Options) { o.RingBytes = 1 }}
	inBubble(t, cfg, func(t *testing.T, r *rawBroker) {
		r.createTopic("orders", 1, permRW)
		answers := r.waiting(holding(filtered(pullHeader("g", "orders", 0), "Y"), time.Hour))
		p := r.heldNow()
		match := p.tags.match
		var calls atomic.Int64
		p.tags.match = func(hash int64, record []byte) bool {
			if calls.Add(1) == 1 {
				f, err := r.conn.Call(t.Context(), &transport.Frame{Code: wire.CodeSendMessage, Header: message("orders", wire.PropTags, "Y"), Body: []byte("y")})
				if err != nil || f.Code != wire.Success {
					t.Errorf("send: %v, %v", f, err)
				}
				time.Sleep(time.Millisecond) // until everybody has noticed the growth
			}
			return match(hash, record)
		}
		r.sendTo("orders", "X", "x")
		start := time.Now()
		if got := <-answers; got.bodies != "y" {
			t.Errorf("answered %d %q", got.code, got.bodies)
		}
		if took := time.Since(start); took > time.Second {
			t.Errorf("answered after %v, by the sweep", took)
		}
	})
}

func TestAPullHeldOnATopicThatWasMadeAgainIsNotServedFromTheNewOne(t *testing.T) {
	inBubble(t, BrokerConfig{}, func(t *testing.T, r *rawBroker) {
		r.createTopic("orders", 1, permRW)
		r.createTopic("other", 1, permRW)
		answers := r.waiting(holding(filtered(pullHeader("g", "orders", 0), "*"), time.Hour))
		p := r.heldNow()
		other, _ := r.topics.lookup("other")
		r.topics.byName.Store("orders", other)
		r.lookAt(p)
		if got := answered(t, answers); got.code != wire.TopicNotExist {
			t.Errorf("answered %d %q", got.code, got.remark)
		}
	})
}

// Consumers race producers for every message. A lost wake-up would cost virtual
// time, because only the sweep or the time-out would mend it.
func TestNoWakeUpIsLostBetweenReadAndHold(t *testing.T) {
	for _, ring := range []int64{0, 1} {
		t.Run(fmt.Sprintf("ring %d", ring), func(t *testing.T) {
			cfg := BrokerConfig{storage: func(o *storage.Options) { o.RingBytes = ring }}
			inBubble(t, cfg, raceConsumers)
		})
	}
}

func raceConsumers(t *testing.T, r *rawBroker) {
	const queues, each = 4, 300
	r.createTopic("orders", queues, permRW)
	start := time.Now()
	done := make(chan string, queues)
	var sending sync.WaitGroup
	defer sending.Wait()
	for q := range int32(queues) {
		consumer, _ := r.beside()
		go func() {
			var offset int64
			for offset < each {
				h := holding(filtered(pullHeader("g", "orders", offset), "*"), 15*time.Second)
				h.QueueID = q
				p := <-consumer.waiting(h)
				if p.code != wire.Success {
					done <- fmt.Sprintf("queue %d at %d: answer %d %q", q, offset, p.code, p.remark)
					return
				}
				offset = p.next
			}
			done <- ""
		}()
		producer, _ := r.beside()
		sending.Go(func() {
			for i := range each {
				h := message("orders")
				h.QueueID = q
				f, err := producer.conn.Call(t.Context(), &transport.Frame{Code: wire.CodeSendMessage, Header: h, Body: []byte(strconv.Itoa(i))})
				if err != nil || f.Code != wire.Success {
					t.Errorf("send %d to queue %d: %v, %v", i, q, f, err)
					return
				}
			}
		})
	}
	for range queues {
		if fault := <-done; fault != "" {
			t.Error(fault)
		}
	}
	if took := time.Since(start); took > time.Second {
		t.Errorf("took %v of virtual time", took)
	}
}
