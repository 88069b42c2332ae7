package mq

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pocketmq/mq/internal/wire"
	"github.com/pocketmq/mq/transport"
)

func TestStartWithoutNameServerFailsWhenItsContextEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, err := NewProducer(ProducerConfig{Transport: transport.NewMemory(transport.MemoryConfig{}), NameServers: []string{"127.0.0.1:9876"}, Group: "g"})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		began := time.Now()
		err = p.Start(ctx)
		if !errors.Is(err, ErrNoNameServer) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Start: %v, want ErrNoNameServer and the deadline", err)
		}
		if d := time.Since(began); d != 5*time.Second {
			t.Errorf("Start gave up after %v, want 5s", d)
		}
		if _, err := p.Send(t.Context(), textMessage("t", "x")); !errors.Is(err, ErrClosed) && !errors.Is(err, ErrNotStarted) {
			t.Errorf("Send after a failed start: %v", err)
		}
		// The bubble fails the test if anything is left running.
	})
}

func TestStartWaitsForANameServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newFakeCluster(t, 1, 4)
		c.names.down()
		time.AfterFunc(2*time.Second, c.names.up)
		p := c.producer(t, nil)
		if _, err := p.Send(t.Context(), textMessage("t", "x")); err != nil {
			t.Error(err)
		}
	})
}

func TestCloseEndsAStartInProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, err := NewProducer(ProducerConfig{Transport: transport.NewMemory(transport.MemoryConfig{}), NameServers: []string{"127.0.0.1:9876"}, Group: "g"})
		if err != nil {
			t.Fatal(err)
		}
		time.AfterFunc(time.Minute, func() { p.Close() })
		if err := p.Start(t.Context()); !errors.Is(err, ErrClosed) {
			t.Errorf("Start: %v, want ErrClosed", err)
		}
		p.Close()
	})
}

func TestRoutesOutliveAllNameServers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newFakeCluster(t, 2, 4)
		p := c.producer(t, nil)
		send := func() {
			t.Helper()
			if _, err := p.Send(t.Context(), textMessage("t", "x")); err != nil {
				t.Fatal(err)
			}
		}
		send()
		c.names.down()
		for range 20 {
			time.Sleep(31 * time.Second)
			send()
		}
		c.names.up()
		time.Sleep(31 * time.Second)
		send()
	})
}

func TestRoutesSurviveANameServerThatForgotThem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newFakeCluster(t, 1, 4)
		p := c.producer(t, nil)
		for i := range 60 {
			if i == 5 {
				c.names.down()
				c.names.remove("t")
				c.names.up()
			}
			if _, err := p.Send(t.Context(), textMessage("t", "x")); err != nil {
				t.Fatalf("second %d: %v", i, err)
			}
			time.Sleep(time.Second)
		}
		if n := len(c.brokers[0].heartbeats()); n < 2 {
			t.Errorf("%d heartbeats, they should have gone on", n)
		}
	})
}

func TestAttemptsStopWithTheRouteOfADeadBroker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newFakeCluster(t, 1, 4)
		c.names.set(autoCreateTopic, 4, c.brokers[0])
		p := c.producer(t, nil)
		if _, err := p.Send(t.Context(), textMessage("t", "x")); err != nil {
			t.Fatal(err)
		}
		b := c.brokers[0]
		b.down()
		c.names.remove("t")
		c.names.remove(autoCreateTopic)
		time.Sleep(routeInterval + time.Second)
		b.up() // counts attempts
		before, _ := b.connections()
		time.Sleep(2 * time.Minute)
		if after, _ := b.connections(); after != before {
			t.Errorf("%d connections in two minutes after the route was gone, want none", after-before)
		}
		if n := len(p.client.brokerTable()); n != 0 {
			t.Errorf("%d brokers still known", n)
		}
	})
}

func TestOneLookUpForManyFirstSends(t *testing.T) {
	for _, known := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			c := newFakeCluster(t, 2, 4)
			if !known {
				c.names.remove("t")
				c.names.set(autoCreateTopic, 8, c.brokers...)
			}
			p := c.producer(t, nil)
			c.net.Delay("", c.names.addr, time.Millisecond) // so that all come while it is under way
			var all sync.WaitGroup
			for range 50 {
				all.Go(func() {
					if _, err := p.Send(t.Context(), textMessage("t", "x")); err != nil {
						t.Error(err)
					}
				})
			}
			all.Wait()
			if n := c.names.askedFor("t"); n != 1 {
				t.Errorf("topic known %v: the name server was asked %d times, want once", known, n)
			}
			for _, b := range c.brokers {
				for _, s := range b.got() {
					if s.header.QueueID > 3 {
						t.Errorf("queue %d used, a stand-in route has 4", s.header.QueueID)
					}
				}
			}
		})
	}
}

func TestStandInRouteGivesWayToTheTopicsOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newFakeCluster(t, 2, 4)
		c.names.set(autoCreateTopic, 8, c.brokers...)
		p := c.producer(t, nil)
		if _, err := p.Send(t.Context(), textMessage("new", "x")); err != nil {
			t.Fatal(err)
		}
		c.names.set("new", 1, c.brokers[1])
		time.Sleep(routeInterval + time.Second)
		for range 10 {
			if r, err := p.Send(t.Context(), textMessage("new", "x")); err != nil || r.Queue != (Queue{"new", "broker-b", 0}) {
				t.Fatalf("sent to %v, %v; the topic is on broker-b:0 only", r, err)
			}
		}
	})
}

func TestUnknownTopicSaysHowToGoOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newFakeCluster(t, 1, 4)
		p := c.producer(t, nil)
		if _, err := p.Send(t.Context(), textMessage("nowhere", "x")); !errors.Is(err, ErrNoRoute) || errors.Is(err, ErrTopicNotFound) ||
			!strings.Contains(err.Error(), "no broker is registered") {
			t.Fatalf("without any broker: %v", err)
		}
		c.names.set(wire.TopicSelfTest, 1, c.brokers...)
		for range 100 {
			_, err := p.Send(t.Context(), textMessage("nowhere", "x"))
			if !errors.Is(err, ErrNoRoute) || !errors.Is(err, ErrTopicNotFound) || errors.Is(err, ErrOutcomeUnknown) ||
				!strings.Contains(err.Error(), "create it first") {
				t.Fatalf("got %v", err)
			}
		}
		time.Sleep(routeInterval + time.Second)
		before := c.names.askedFor("nowhere")
		time.Sleep(3 * routeInterval)
		if n := c.names.askedFor("nowhere"); n != before {
			t.Errorf("a topic that is nowhere is still looked up")
		}
		if _, kept := p.client.routes.entries.Load("nowhere"); kept {
			t.Error("a topic that is nowhere is still remembered")
		}
	})
}

func TestNextNameServerTakesOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newFakeCluster(t, 1, 4)
		hanging := newFakeNames(t, c.net, "127.0.0.2:9876")
		hanging.setHang(true)
		for range 4 { // the first choice is random
			began := time.Now()
			p := c.producer(t, func(cfg *ProducerConfig) {
				cfg.NameServers = []string{"127.0.0.3:9876; 127.0.0.2:9876", c.names.addr}
			})
			if d := time.Since(began); d > 2*callTimeout {
				t.Errorf("Start took %v", d)
			}
			for range 10 {
				time.Sleep(31 * time.Second)
				if _, err := p.Send(t.Context(), textMessage("t", "x")); err != nil {
					t.Fatal(err)
				}
			}
			if n := hanging.askedFor("t"); n > 0 {
				t.Errorf("%d look-ups went to the name server that hangs, after another had answered", n)
			}
			p.Close()
		}
	})
}

func TestBrokerThatComesBackElsewhereIsFound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newFakeCluster(t, 1, 4)
		p := c.producer(t, nil)
		if _, err := p.Send(t.Context(), textMessage("t", "x")); err != nil {
			t.Fatal(err)
		}
		c.brokers[0].down()
		moved := newFakeBroker(t, c.net, "broker-a", "10.0.0.9:10911")
		c.names.set("t", 4, moved)
		time.Sleep(routeInterval + time.Second)
		if _, err := p.Send(t.Context(), textMessage("t", "x")); err != nil {
			t.Fatal(err)
		}
		if len(moved.got()) != 1 || len(moved.heartbeats()) == 0 {
			t.Errorf("%d messages and %d heartbeats at the new address", len(moved.got()), len(moved.heartbeats()))
		}
	})
}

func TestHeartbeatsAndLeaving(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newFakeCluster(t, 1, 4)
		c.names.set(autoCreateTopic, 4, c.brokers[0])
		p := c.producer(t, nil)
		b := c.brokers[0]
		beats := b.heartbeats()
		if len(beats) != 1 {
			t.Fatalf("%d heartbeats right after start, want 1", len(beats))
		}
		if hb := beats[0]; hb.ClientID != p.ClientID() || len(hb.Producers) != 1 || hb.Producers[0].GroupName != "g" {
			t.Errorf("heartbeat %+v of client %q", hb, p.ClientID())
		}
		if id := p.ClientID(); !strings.HasPrefix(id, "127.0.0.1@") || !strings.Contains(id, "#") {
			t.Errorf("client id %q, want ip@pid#nonce", id)
		}
		time.Sleep(4*heartbeatInterval + time.Second)
		if n := len(b.heartbeats()); n != 5 {
			t.Errorf("%d heartbeats after two minutes, want 5", n)
		}
		c.net.Cut(b.addr)
		if _, err := p.Send(t.Context(), textMessage("t", "x")); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if n := len(b.heartbeats()); n != 6 {
			t.Errorf("%d heartbeats after a new connection, want 6", n)
		}
		p.Close()
		synctest.Wait()
		if len(b.left) != 1 || b.left[0].ProducerGroup != "g" || b.left[0].ClientID != beats[0].ClientID {
			t.Errorf("the broker was told %+v", b.left)
		}
	})
}

func TestNewBrokerGetsAHeartbeatAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newFakeCluster(t, 2, 4)
		c.names.set(autoCreateTopic, 4, c.brokers[0])
		c.producer(t, nil)
		c.names.set(autoCreateTopic, 4, c.brokers...)
		time.Sleep(routeInterval + time.Millisecond)
		if n := len(c.brokers[1].heartbeats()); n == 0 {
			t.Error("no heartbeat to the broker that is new in the route")
		}
	})
}

func TestRequestThatNoClientServes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newFakeCluster(t, 1, 4)
		p := c.producer(t, nil)
		if _, err := p.Send(t.Context(), textMessage("t", "x")); err != nil {
			t.Fatal(err)
		}
		_, conns := c.brokers[0].connections()
		f, err := conns[0].Call(t.Context(), &transport.Frame{Code: 9999})
		if err != nil || f.Code != wire.RequestCodeNotSupported {
			t.Errorf("answer %+v, %v; want code 3", f, err)
		}
	})
}

func TestNobodyWaitsForADeadDialLongerThanItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newFakeCluster(t, 1, 4)
		p := c.producer(t, nil)
		c.net.Partition("", c.brokers[0].addr)
		var all sync.WaitGroup
		for i := range 3 {
			all.Go(func() {
				limit := time.Duration(i+1) * 100 * time.Millisecond
				ctx, cancel := context.WithTimeout(t.Context(), limit)
				defer cancel()
				began := time.Now()
				_, err := p.Send(ctx, textMessage("t", "x"))
				if d := time.Since(began); !errors.Is(err, ErrUnreachable) || !errors.Is(err, context.DeadlineExceeded) ||
					errors.Is(err, ErrOutcomeUnknown) || d != limit {
					t.Errorf("limit %v: %v after %v", limit, err, d)
				}
			})
		}
		all.Wait()
	})
}

func TestClientsOfOneProcessShareNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newFakeCluster(t, 1, 4)
		one, two := c.producer(t, nil), c.producer(t, nil)
		if one.ClientID() == two.ClientID() {
			t.Errorf("both clients are %q", one.ClientID())
		}
		for _, p := range []*Producer{one, two} {
			if _, err := p.Send(t.Context(), textMessage("t", "x")); err != nil {
				t.Fatal(err)
			}
		}
		if opened, _ := c.brokers[0].connections(); opened != 2 {
			t.Errorf("%d connections, want one for each", opened)
		}
		one.Close()
		if _, err := two.Send(t.Context(), textMessage("t", "x")); err != nil {
			t.Errorf("after the other was closed: %v", err)
		}
	})
}

func TestRoundsOfStartUseAndCloseLeaveNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newFakeCluster(t, 2, 4)
		for range 100 {
			p := c.producer(t, nil)
			if _, err := p.Send(t.Context(), textMessage("t", "x")); err != nil {
				t.Fatal(err)
			}
			if err := p.SendAsync(t.Context(), textMessage("t", "x"), func(*SendResult, error) {}); err != nil {
				t.Fatal(err)
			}
			p.Close()
			p.Close()
		}
		synctest.Wait()
		for _, b := range c.brokers {
			if _, open := b.connections(); len(open) != 0 {
				t.Errorf("%d connections left to %s", len(open), b.name)
			}
		}
		c.names.down()
		for range 100 {
			p, err := NewProducer(ProducerConfig{Transport: c.net, NameServers: []string{c.names.addr}, Group: "g"})
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			if err := p.Start(ctx); !errors.Is(err, ErrNoNameServer) {
				t.Error(err)
			}
			cancel()
		}
	})
}

func TestFirstSendDoesNotWaitInVainForAHangingNameServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newFakeCluster(t, 1, 4)
		other := newFakeNames(t, c.net, "127.0.0.2:9876")
		p := c.producer(t, func(cfg *ProducerConfig) { cfg.NameServers = []string{c.names.addr, other.addr} })
		other.set("t", 4, c.brokers...)
		c.names.setHang(p.client.names.order()[0] == c.names.addr)
		other.setHang(p.client.names.order()[0] == other.addr)
		if _, err := p.Send(t.Context(), textMessage("t", "x")); err != nil {
			t.Error(err)
		}
	})
}
