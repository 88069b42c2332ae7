package mq

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pocketmq/mq/internal/wire"
	"github.com/pocketmq/mq/transport"
)

// storedBatch answers after a delay, as a broker does that stores everything.
func storedBatch(t *testing.T, d time.Duration) func(int, fakeSend, func(*transport.Frame)) bool {
	next := make(map[int32]int64) // by queue; scripts run on one connection's reader
	return func(_ int, s fakeSend, reply func(*transport.Frame)) bool {
		n := 1
		if s.code == wire.CodeSendBatchMessage {
			n = len(batchOf(t, s))
		}
		q := s.header.QueueID
		var ids []string
		for i := range n {
			ids = append(ids, fmt.Sprintf("%016X%016X", q, next[q]+int64(i)))
		}
		f := &transport.Frame{Header: &wire.SendResponse{MsgID: strings.Join(ids, ","), QueueID: q, QueueOffset: next[q], TraceOn: true}}
		next[q] += int64(n)
		time.AfterFunc(d, func() { reply(f) })
		return true
	}
}

func batchOf(t *testing.T, s fakeSend) []wire.BatchMessage {
	messages, err := wire.ParseBatch([]byte(s.body))
	if err != nil {
		t.Fatal(err)
	}
	return messages
}

func autoBatch(cfg *ProducerConfig) { cfg.AutoBatch = true }

func TestGatheredSendsHaveTheirOwnOutcomes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newFakeCluster(t, 1, 4)
		c.brokers[0].do(storedBatch(t, 10*time.Millisecond))
		p := c.producer(t, autoBatch)
		const n = 5000
		results := make(map[string]*SendResult)
		buffer := make([]byte, 4)
		for i := range n {
			text := fmt.Sprintf("%04d", i)
			copy(buffer, text)
			err := p.SendAsync(t.Context(), &Message{Topic: "t", Tag: "tag", Body: buffer}, func(r *SendResult, err error) {
				if err != nil || results[text] != nil {
					t.Errorf("message %s: %v, again: %v", text, err, results[text] != nil)
				}
				results[text] = r
			})
			if err != nil {
				t.Fatal(err)
			}
			copy(buffer, "----")
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if len(results) != n {
			t.Fatalf("%d of %d callbacks ran", len(results), n)
		}
		checkGathered(t, c.brokers[0].got(), results)
	})
}

// checkGathered compares what the broker got with what the senders were told.
func checkGathered(t *testing.T, sends []fakeSend, results map[string]*SendResult) {
	offsets, last := make(map[int32]int64), make(map[int32]string)
	for _, s := range sends {
		if s.code != wire.CodeSendBatchMessage || !s.header.Batch {
			t.Fatalf("a message came with code %d", s.code)
		}
		q := s.header.QueueID
		for _, m := range batchOf(t, s) {
			text := string(m.Body)
			r := results[text]
			id, _ := wire.Property(m.Properties, wire.PropUniqueKey)
			tag, _ := wire.Property(m.Properties, wire.PropTags)
			want := SendResult{ID: id, OffsetID: fmt.Sprintf("%016X%016X", q, offsets[q]), Queue: Queue{"t", "broker-a", int(q)}, Offset: offsets[q]}
			if r == nil || *r != want || tag != "tag" {
				t.Fatalf("message %s has tag %q and was told %+v, want %+v", text, tag, r, want)
			}
			if text <= last[q] {
				t.Fatalf("message %s comes after %s", text, last[q])
			}
			last[q] = text
			offsets[q]++
			delete(results, text)
		}
	}
	if len(results) > 0 || len(offsets) != 4 {
		t.Errorf("%d messages never came; %d queues were used", len(results), len(offsets))
	}
	if len(sends) > 200 {
		t.Errorf("%d requests carried 5000 messages", len(sends))
	}
}

func TestGatheringWaitsOnlyBehindOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newFakeCluster(t, 1, 1)
		c.brokers[0].do(storedBatch(t, 500*time.Millisecond))
		p := c.producer(t, autoBatch)
		for i := range gatherDepth {
			if err := p.SendAsync(t.Context(), textMessage("t", fmt.Sprint(i)), func(*SendResult, error) {}); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			if got := len(c.brokers[0].got()); got != i+1 {
				t.Fatalf("%d sends are out, %d came", i+1, got)
			}
		}
		for range 10 {
			if err := p.SendAsync(t.Context(), textMessage("t", "later"), func(*SendResult, error) {}); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		if got := len(c.brokers[0].got()); got != gatherDepth {
			t.Fatalf("%d requests are out, at most %d may be", got, gatherDepth)
		}
		time.Sleep(600 * time.Millisecond)
		synctest.Wait()
		got := c.brokers[0].got()
		if len(got) != gatherDepth+1 || len(batchOf(t, got[gatherDepth])) != 10 {
			t.Errorf("%d requests came", len(got))
		}
	})
}

func TestSomeMessagesTravelAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newFakeCluster(t, 1, 1)
		p := c.producer(t, autoBatch)
		for _, m := range []*Message{
			{ShardKey: "k"}, {DelayLevel: 3}, {NoFlush: true}, {Body: make([]byte, 4096)}, {Topic: "%RETRY%g"},
			{Properties: map[string]string{"p": strings.Repeat("x", wire.MaxPropertiesBytes-60)}},
		} {
			if m.Topic == "" {
				m.Topic = "t"
			}
			if m.Body == nil {
				m.Body = []byte("x")
			}
			c.names.set(m.Topic, 1, c.brokers...)
			if err := p.SendAsync(t.Context(), m, func(*SendResult, error) {}); err != nil && m.Topic == "t" {
				t.Error(err)
			}
			synctest.Wait()
			for _, s := range c.brokers[0].got() {
				if s.code != wire.CodeSendMessageV2 {
					t.Errorf("%+v came with code %d", m, s.code)
				}
			}
		}
		m := textMessage("t", "x")
		m.Properties = map[string]string{"p": strings.Repeat("x", wire.MaxPropertiesBytes)}
		if err := p.SendAsync(t.Context(), m, func(*SendResult, error) {}); !errors.Is(err, ErrMessageIllegal) {
			t.Errorf("too long properties gave %v", err)
		}
	})
}

func TestGatheredSendsFailTogetherAndOnlyOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newFakeCluster(t, 1, 1)
		p := c.producer(t, autoBatch)
		c.brokers[0].do(func(n int, s fakeSend, reply func(*transport.Frame)) bool {
			time.AfterFunc(10*time.Millisecond, func() { reply(&transport.Frame{Code: wire.NoPermission, Remark: "no"}) })
			return true
		})
		var errs []error
		for range 100 {
			if err := p.SendAsync(t.Context(), textMessage("t", "x"), func(_ *SendResult, err error) { errs = append(errs, err) }); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if len(errs) != 100 || slices.ContainsFunc(errs, func(err error) bool { return !errors.Is(err, ErrNoPermission) }) {
			t.Errorf("%d outcomes, the first: %v", len(errs), errs[0])
		}
	})
}

func TestGatheredSendsAreRepeatedWhenTheConnectionIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newFakeCluster(t, 2, 1)
		p := c.producer(t, autoBatch)
		c.brokers[0].do(hang)
		c.brokers[1].do(storedBatch(t, time.Millisecond))
		told := 0
		for range 100 {
			if err := p.SendAsync(t.Context(), textMessage("t", "x"), func(r *SendResult, err error) {
				if told++; err != nil || r.Queue.Broker != "broker-b" {
					t.Errorf("%+v, %v", r, err)
				}
			}); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		c.brokers[0].down()
		time.Sleep(time.Second)
		synctest.Wait()
		if told != 100 {
			t.Errorf("%d of 100 callbacks ran", told)
		}
	})
}

func TestGatheredSendsEndWithTheirContextOrTheProducer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newFakeCluster(t, 1, 1)
		c.brokers[0].do(hang)
		p := c.producer(t, autoBatch)
		ctx, cancel := context.WithCancel(t.Context())
		var cancelled, closed []error
		for range 50 {
			err := errors.Join(
				p.SendAsync(ctx, textMessage("t", "x"), func(_ *SendResult, err error) { cancelled = append(cancelled, err) }),
				p.SendAsync(t.Context(), textMessage("t", "y"), func(_ *SendResult, err error) { closed = append(closed, err) }))
			if err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		cancel()
		synctest.Wait()
		if len(closed) > 0 || len(cancelled) == 0 || !errors.Is(cancelled[0], context.Canceled) {
			t.Errorf("after the end of one context %d and %d callbacks have run", len(cancelled), len(closed))
		}
		if err := p.Close(); err != nil {
			t.Fatal(err)
		}
		if len(cancelled) != 50 || len(closed) != 50 {
			t.Errorf("%d and %d of 50 callbacks ran", len(cancelled), len(closed))
		}
		for _, err := range closed {
			if !errors.Is(err, ErrClosed) {
				t.Errorf("a send under way ended with %v", err)
			}
		}
	})
}

func TestGatheredMessagesAreReceivedAsSent(t *testing.T) {
	inBubbles(t, func(t *testing.T, c *testCluster) {
		in := newInbox()
		c.consume(ConsumerConfig{}, "orders", Tags("paid"), in.listen)
		p := c.producer(ProducerConfig{AutoBatch: true})
		ids := make(map[string]string)
		const n = 300
		for i := range n {
			m := &Message{Topic: "orders", Tag: "paid", Keys: []string{"k1", "k2"}, Body: fmt.Append(nil, i), Properties: map[string]string{"p": fmt.Sprint(i)}}
			err := p.SendAsync(t.Context(), m, func(r *SendResult, err error) {
				if err != nil {
					t.Error(err)
					return
				}
				ids[r.ID] = fmt.Sprint(i)
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		in.wait(t, n, time.Minute)
		if err := p.Shutdown(t.Context()); err != nil { // every callback has run
			t.Fatal(err)
		}
		for _, d := range in.all() {
			if body := string(d.Body); ids[d.ID] != body || d.Properties["p"] != body || d.Tag != "paid" || !slices.Equal(d.Keys, []string{"k1", "k2"}) {
				t.Fatalf("message %s was sent as %s: %+v", body, ids[d.ID], d)
			}
		}
	})
}

func TestGatheredSendsHaveTheTimeThatTheirContextGives(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newFakeCluster(t, 1, 4).producer(t, autoBatch)
		for _, c := range []struct{ waited, left, want time.Duration }{
			{2 * time.Second, 500 * time.Millisecond, 500 * time.Millisecond}, // to the end of the context
			{2 * time.Second, 2 * time.Second, time.Second},                   // to that of SendTimeout
		} {
			ctx, cancel := context.WithTimeout(t.Context(), c.waited+c.left)
			b := p.gatherer("t").begin(ctx, time.Now())
			time.Sleep(c.waited)
			s := p.newSend(ctx, 1)
			b.fill(s)
			if left := time.Until(s.deadline); left != c.want {
				t.Errorf("after %v, with %v of the context left, a batch has %v, want %v", c.waited, c.left, left, c.want)
			}
			cancel()
		}
	})
}

func TestCallbackWorkersShareWhatCameAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newCallbackQueue(slog.New(slog.DiscardHandler), 2, 0)
		var workers sync.WaitGroup
		for range 2 {
			workers.Go(q.work)
		}
		synctest.Wait() // both sleep
		last := make(chan struct{})
		outcomes := make([]finished, 2*q.share)
		for i := range outcomes {
			outcomes[i].callback = func(*SendResult, error) {}
		}
		outcomes[0].callback = func(*SendResult, error) { <-last }
		outcomes[len(outcomes)-1].callback = func(*SendResult, error) { close(last) }
		q.push(outcomes...)
		workers.Go(func() {
			<-last
			q.close()
		})
		workers.Wait()
	})
}
