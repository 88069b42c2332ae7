package mq

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pocketmq/mq/internal/wire"
	"github.com/pocketmq/mq/transport"
)

func TestProducerConfigFaultsAreReportedTogether(t *testing.T) {
	_, err := NewProducer(ProducerConfig{
		NameServers: []string{"nonsense"}, Group: "a b", SendTimeout: -1, CallbackWorkers: -1, MaxMessageSize: 1 << 30, DefaultQueues: -1,
	})
	if err == nil {
		t.Fatal("no error")
	}
	for _, field := range []string{"NameServers", "Group", "SendTimeout", "CallbackWorkers", "MaxMessageSize", "DefaultQueues"} {
		if !strings.Contains(err.Error(), field) {
			t.Errorf("%s is not in: %v", field, err)
		}
	}
	for _, group := range []string{"", "DEFAULT_PRODUCER", "CLIENT_INNER_PRODUCER", strings.Repeat("g", 256)} {
		if _, err := NewProducer(ProducerConfig{NameServers: []string{"a:1"}, Group: group}); err == nil {
			t.Errorf("group %.20q was taken", group)
		}
	}
	if _, err := NewProducer(ProducerConfig{Group: "g"}); err == nil || !strings.Contains(err.Error(), "NameServers") {
		t.Errorf("an empty list of name servers gave %v", err)
	}
}

func TestSendBeforeStartAndAfterClose(t *testing.T) {
	p, err := NewProducer(ProducerConfig{Transport: transport.NewMemory(transport.MemoryConfig{}), NameServers: []string{"127.0.0.1:9876"}, Group: "g"})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []error{ErrNotStarted, ErrClosed} {
		m := textMessage("t", "x")
		_, err := p.Send(t.Context(), m)
		_, batchErr := p.SendBatch(t.Context(), []*Message{m})
		asyncErr := p.SendAsync(t.Context(), m, func(*SendResult, error) { t.Error("callback ran") })
		for _, err := range []error{err, batchErr, asyncErr, p.SendOneway(t.Context(), m)} {
			if !errors.Is(err, want) {
				t.Errorf("got %v, want %v", err, want)
			}
		}
		p.Close()
	}
}

func TestSendResultAndRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newFakeCluster(t, 1, 4)
		p := c.producer(t, nil)
		m := &Message{Topic: "t", Tag: "paid", Keys: []string{"k1", "k2"}, Body: []byte("body"), Flag: 7, DelayLevel: 3,
			ShardKey: "s", NoFlush: true, Properties: map[string]string{"color": "red", "größe": "groß"}}
		before := *m
		r, err := p.Send(t.Context(), m)
		if err != nil {
			t.Fatal(err)
		}
		got := c.brokers[0].got()[0]
		h := got.header
		if got.code != wire.CodeSendMessageV2 || h.ProducerGroup != "g" || h.Topic != "t" || h.DefaultTopic != "TBW102" ||
			h.DefaultTopicQueueNums != 4 || h.Flag != 7 || h.SysFlag != 0 || h.Batch || h.BornTimestamp != time.Now().UnixMilli() ||
			got.body != "body" {
			t.Errorf("request %+v", got)
		}
		want := map[string]string{"UNIQ_KEY": r.ID, "TAGS": "paid", "KEYS": "k1 k2", "DELAY": "3", "WAIT": "false",
			"SHARDING_KEY": "s", "color": "red", "größe": "groß"}
		if props := wire.ParseProperties(h.Properties); !maps.Equal(props, want) {
			t.Errorf("properties %v, want %v", props, want)
		}
		if len(r.ID) != 32 || r.OffsetID != fmt.Sprintf("%032X", 0) || r.Status != SendOK ||
			r.Queue != (Queue{"t", "broker-a", int(h.QueueID)}) || r.Offset != 0 {
			t.Errorf("result %+v", r)
		}
		if m.Topic != before.Topic || m.Tag != before.Tag || string(m.Body) != "body" || len(m.Properties) != 2 || !slices.Equal(m.Keys, before.Keys) {
			t.Errorf("the caller's message was changed: %+v", m)
		}
	})
}

func TestStatusesThatMeanStored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newFakeCluster(t, 1, 1)
		p := c.producer(t, nil)
		for code, want := range map[int32]SendStatus{0: SendOK, 10: FlushDiskTimeout, 11: SlaveNotAvailable, 12: FlushSlaveTimeout} {
			c.brokers[0].do(func(n int, s fakeSend, reply func(*transport.Frame)) bool {
				f := stored(n, s)
				f.Code = code
				reply(f)
				return true
			})
			before := len(c.brokers[0].got())
			r, err := p.Send(t.Context(), textMessage("t", "x"))
			if err != nil || r.Status != want || r.OffsetID == "" {
				t.Errorf("code %d: %+v, %v; want %v", code, r, err, want)
			}
			if n := len(c.brokers[0].got()) - before; n != 1 {
				t.Errorf("code %d: stored, and yet sent %d times", code, n)
			}
		}
	})
}

func TestMalformedAnswerToAStoredMessageIsNotSentAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newFakeCluster(t, 1, 1)
		c.brokers[0].do(func(_ int, _ fakeSend, reply func(*transport.Frame)) bool {
			reply(&transport.Frame{Fields: []string{"queueId", "x"}})
			return true
		})
		p := c.producer(t, nil)
		if _, err := p.Send(t.Context(), textMessage("t", "x")); err == nil || !strings.Contains(err.Error(), "stored") {
			t.Errorf("got %v", err)
		}
		if n := len(c.brokers[0].got()); n != 1 {
			t.Errorf("sent %d times", n)
		}
	})
}

func TestWaitingSendsAreRepeatedByCode(t *testing.T) {
	for code, tries := range map[int32]int{1: 3, 14: 3, 16: 3, 17: 3, 204: 3, 205: 3, 2: 1, 3: 1, 13: 1, 26: 1, 215: 1} {
		synctest.Test(t, func(t *testing.T) {
			c := newFakeCluster(t, 2, 2)
			p := c.producer(t, nil)
			for _, b := range c.brokers {
				b.do(refuse(code))
			}
			_, err := p.Send(t.Context(), textMessage("t", "x"))
			var e *Error
			if !errors.As(err, &e) || e.Code != int(code) || !strings.Contains(err.Error(), "refused by the test") {
				t.Errorf("code %d: %v", code, err)
			}
			if want := codeErrors[code]; want != nil && !errors.Is(err, want) {
				t.Errorf("code %d: %v, want %v", code, err, want)
			}
			a, b := len(c.brokers[0].got()), len(c.brokers[1].got())
			if a+b != tries {
				t.Errorf("code %d: %d tries, want %d", code, a+b, tries)
			}
			if tries == 3 && (a == 0 || b == 0 || !strings.Contains(err.Error(), "3 tries")) {
				t.Errorf("code %d: %d and %d tries on two brokers: %v", code, a, b, err)
			}
		})
	}
}

func TestNegativeRetriesMeansOneTry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newFakeCluster(t, 1, 1)
		c.brokers[0].do(refuse(1))
		p := c.producer(t, func(cfg *ProducerConfig) { cfg.Retries = -1 })
		if _, err := p.Send(t.Context(), textMessage("t", "x")); err == nil {
			t.Error("no error")
		}
		if n := len(c.brokers[0].got()); n != 1 {
			t.Errorf("%d tries", n)
		}
	})
}

func TestHangingBrokerLeavesTimeForAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newFakeCluster(t, 2, 4)
		p := c.producer(t, nil)
		c.brokers[0].do(hang)
		for range 8 {
			began := time.Now()
			r, err := p.Send(t.Context(), textMessage("t", "x"))
			if err != nil || r.Queue.Broker != "broker-b" {
				t.Errorf("%+v, %v", r, err)
			}
			if d := time.Since(began); d > time.Second {
				t.Errorf("took %v, a try has one of three seconds", d)
			}
		}
	})
}

func TestHangingBrokersEndAtTheTimeLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newFakeCluster(t, 2, 4)
		p := c.producer(t, nil)
		for _, b := range c.brokers {
			b.do(hang)
		}
		began := time.Now()
		_, err := p.Send(t.Context(), textMessage("t", "x"))
		if !errors.Is(err, ErrTimeout) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v, want ErrTimeout", err)
		}
		if d := time.Since(began).Round(10 * time.Millisecond); d != 3*time.Second {
			t.Errorf("took %v, want 3s", d)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 700*time.Millisecond)
		defer cancel()
		before := len(c.brokers[0].got()) + len(c.brokers[1].got())
		began = time.Now()
		if _, err = p.Send(ctx, textMessage("t", "x")); !errors.Is(err, ErrTimeout) {
			t.Errorf("got %v, want ErrTimeout", err)
		}
		if d := time.Since(began).Round(10 * time.Millisecond); d != 700*time.Millisecond {
			t.Errorf("took %v, the context had 700ms", d)
		}
		if n := len(c.brokers[0].got()) + len(c.brokers[1].got()) - before; n != 2 {
			t.Errorf("%d tries in 700ms, want 2: each has at least 500ms", n)
		}
	})
}

func TestDeadBrokerIsGoneRound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newFakeCluster(t, 3, 4)
		p := c.producer(t, nil)
		if _, err := p.Send(t.Context(), textMessage("t", "x")); err != nil {
			t.Fatal(err)
		}
		c.brokers[1].down()
		for range 24 {
			if r, err := p.Send(t.Context(), textMessage("t", "x")); err != nil || r.Queue.Broker == "broker-b" {
				t.Fatalf("%+v, %v", r, err)
			}
		}
	})
}

func TestCancelledSendReturnsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newFakeCluster(t, 1, 4)
		p := c.producer(t, nil)
		c.brokers[0].do(hang)
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(50*time.Millisecond, cancel)
		began := time.Now()
		_, err := p.Send(ctx, textMessage("t", "x"))
		if !errors.Is(err, context.Canceled) || time.Since(began) != 50*time.Millisecond {
			t.Errorf("%v after %v", err, time.Since(began))
		}
		if n := len(c.brokers[0].got()); n != 1 {
			t.Errorf("%d tries for a caller that gave up", n)
		}
	})
}

func TestLostTopicIsLookedUpAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newFakeCluster(t, 2, 1)
		c.names.set("t", 1, c.brokers[0])
		p := c.producer(t, nil)
		if _, err := p.Send(t.Context(), textMessage("t", "x")); err != nil {
			t.Fatal(err)
		}
		c.brokers[0].do(refuse(wire.TopicNotExist))
		c.names.set("t", 1, c.brokers[1])
		if r, err := p.Send(t.Context(), textMessage("t", "x")); err != nil || r.Queue.Broker != "broker-b" {
			t.Errorf("%+v, %v; the topic has moved to broker-b", r, err)
		}
	})
}

func TestOnewayIsSentOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newFakeCluster(t, 1, 4)
		p := c.producer(t, nil)
		if err := p.SendOneway(t.Context(), textMessage("t", "x")); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if got := c.brokers[0].got(); len(got) != 1 || !got[0].oneway || got[0].body != "x" {
			t.Errorf("got %+v", got)
		}
		c.brokers[0].down()
		if err := p.SendOneway(t.Context(), textMessage("t", "x")); err == nil {
			t.Error("no error although nobody listens")
		}
	})
}

func TestChosenQueues(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newFakeCluster(t, 2, 4)
		p := c.producer(t, nil)
		q := Queue{"t", "broker-b", 2}
		if r, err := p.SendTo(t.Context(), q, textMessage("t", "x")); err != nil || r.Queue != q {
			t.Errorf("SendTo: %+v, %v", r, err)
		}
		if _, err := p.SendTo(t.Context(), Queue{"t", "nobody", 0}, textMessage("t", "x")); !errors.Is(err, ErrNoRoute) {
			t.Errorf("SendTo an unknown broker: %v", err)
		}
		if _, err := p.SendTo(t.Context(), Queue{"other", "broker-a", 0}, textMessage("t", "x")); !errors.Is(err, ErrMessageIllegal) {
			t.Errorf("SendTo another topic: %v", err)
		}
		r, err := p.SendSelect(t.Context(), textMessage("t", "x"), func(queues []Queue) int {
			if len(queues) != 8 || !slices.IsSortedFunc(queues, compareQueues) {
				t.Errorf("the selector got %v", queues)
			}
			return 5
		})
		if err != nil || r.Queue != (Queue{"t", "broker-b", 1}) {
			t.Errorf("SendSelect: %+v, %v", r, err)
		}
		for _, i := range []int{-1, 8} {
			if _, err := p.SendSelect(t.Context(), textMessage("t", "x"), func([]Queue) int { return i }); err == nil {
				t.Errorf("index %d was taken", i)
			}
		}
		before := len(c.brokers[1].got())
		c.brokers[1].do(refuse(1))
		if _, err := p.SendTo(t.Context(), q, textMessage("t", "x")); err == nil || len(c.brokers[1].got()) != before+1 {
			t.Errorf("SendTo a failing broker: %v, %d tries", err, len(c.brokers[1].got())-before)
		}
	})
}
