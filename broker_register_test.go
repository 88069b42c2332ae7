package mq

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pocketmq/mq/internal/wire"
	"github.com/pocketmq/mq/transport"
)

// nameServerAt starts a name server at a fixed address of the network.
func nameServerAt(t *testing.T, net transport.Transport, addr string) *NameServer {
	t.Helper()
	n, err := NewNameServer(NameServerConfig{Transport: net, Listen: addr})
	if err != nil {
		t.Fatal(err)
	}
	if err := n.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	})
	return n
}

// routed asks a name server for a topic's queues on a broker.
func routed(t *testing.T, net transport.Transport, addr, topic string) (wire.QueueData, bool) {
	t.Helper()
	c, err := net.Dial(context.Background(), addr, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	f, err := c.Call(ctx, routeOf(topic))
	if err != nil {
		t.Fatal(err)
	}
	if f.Code == wire.TopicNotExist {
		return wire.QueueData{}, false
	}
	route := parseRoute(t, f)
	return route.QueueDatas[0], true
}

const nsA, nsB = "127.0.0.1:9876", "127.0.0.1:9877"

func TestStartRegistersEverywhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := transport.NewMemory(transport.MemoryConfig{})
		nameServerAt(t, net, nsA)
		nameServerAt(t, net, nsB)
		r := startBroker(t, BrokerConfig{Transport: net, NameServers: []string{nsA + ";" + nsB}, Name: "b1", Cluster: "c1"})
		for _, addr := range []string{nsA, nsB} {
			for topic, want := range map[string]wire.QueueData{
				autoCreateTopic:     {WriteQueueNums: 8, Perm: 7},
				scheduleTopic:       {WriteQueueNums: 18, Perm: 6},
				"c1":                {WriteQueueNums: 16, Perm: 7},
				"b1":                {WriteQueueNums: 1, Perm: 7},
				wire.TopicBenchmark: {WriteQueueNums: 1024, Perm: 6},
				wire.TopicSelfTest:  {WriteQueueNums: 1, Perm: 6},
				"c1_REPLY_TOPIC":    {WriteQueueNums: 1, Perm: 6},
			} {
				got, ok := routed(t, net, addr, topic)
				if !ok || got.WriteQueueNums != want.WriteQueueNums || got.Perm != want.Perm || got.BrokerName != "b1" {
					t.Errorf("%s at %s: %+v", topic, addr, got)
				}
			}
		}
		// A topic is known everywhere when its first send is answered.
		r.stored(message("orders"), "x")
		for _, addr := range []string{nsA, nsB} {
			if got, ok := routed(t, net, addr, "orders"); !ok || got.WriteQueueNums != 4 {
				t.Errorf("orders at %s: %+v", addr, got)
			}
		}
		// It stays registered for longer than name servers keep the silent.
		time.Sleep(10 * time.Minute)
		if _, ok := routed(t, net, nsB, "orders"); !ok {
			t.Error("expired")
		}
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
		synctest.Wait() // a registration that was just under way ends with its connection
		if _, ok := routed(t, net, nsA, "orders"); ok {
			t.Error("still registered after Close")
		}
	})
}

func TestBrokerAloneKeepsLookingForItsNameServers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := transport.NewMemory(transport.MemoryConfig{})
		r := startBroker(t, BrokerConfig{Transport: net, NameServers: []string{nsA}})
		r.stored(message("orders"), "x") // it serves
		time.Sleep(5 * time.Minute)
		nameServerAt(t, net, nsA)
		time.Sleep(retryLast)
		if _, ok := routed(t, net, nsA, "orders"); !ok {
			t.Fatal("not registered")
		}
	})
}

func TestRestartedNameServerGetsEverythingAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := transport.NewMemory(transport.MemoryConfig{})
		ns := nameServerAt(t, net, nsA)
		r := startBroker(t, BrokerConfig{Transport: net, NameServers: []string{nsA}})
		for i := range 20 {
			r.stored(message(itemName("t", i)), "x")
		}
		if err := ns.Close(); err != nil {
			t.Fatal(err)
		}
		r.stored(message("t20"), "x") // a change meanwhile, which is not all it must be told
		nameServerAt(t, net, nsA)
		time.Sleep(time.Second)
		for i := range 21 {
			if _, ok := routed(t, net, nsA, itemName("t", i)); !ok {
				t.Fatalf("topic %d unknown a second after the restart", i)
			}
		}
	})
}

func TestHangingNameServerDelaysNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := transport.NewMemory(transport.MemoryConfig{})
		nameServerAt(t, net, nsA)
		// Accepts and never answers.
		silent := &transport.Table{}
		for _, code := range []int32{wire.CodeRegisterBroker, wire.CodeGetBrokerClusterInfo, wire.CodeUnregisterBroker} {
			silent.Handle(code, nil, func(context.Context, transport.Conn, *transport.Frame, func(*transport.Frame)) {})
		}
		l, err := net.Listen(t.Context(), nsB, silent)
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		r := startBroker(t, BrokerConfig{Transport: net, NameServers: []string{nsB, nsA}})
		if d := time.Since(began); d > twinTimeout+registerTimeout {
			t.Fatalf("start took %v", d)
		}
		began = time.Now()
		r.stored(message("orders"), "x")
		if d := time.Since(began); d > announceTime {
			t.Fatalf("first send took %v", d)
		}
		if _, ok := routed(t, net, nsA, "orders"); !ok {
			t.Fatal("the other name server does not know the topic")
		}
		began = time.Now()
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
		if d := time.Since(began); d > registerTimeout+unregisterTimeout {
			t.Fatalf("close took %v", d)
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	})
}

func TestTopicsMadeAtOnceAllReachTheNameServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := transport.NewMemory(transport.MemoryConfig{})
		nameServerAt(t, net, nsA)
		r := startBroker(t, BrokerConfig{Transport: net, NameServers: []string{nsA}})
		var wg sync.WaitGroup
		for i := range 100 {
			wg.Go(func() {
				if _, err := r.topics.ensure(t.Context(), itemName("t", i), 1+i%7, permRW); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		for i := range 100 {
			if got, ok := routed(t, net, nsA, itemName("t", i)); !ok || got.WriteQueueNums != int32(1+i%7) {
				t.Fatalf("topic %d: %+v", i, got)
			}
		}
	})
}

func TestBrokersPermissionIsEveryTopics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := transport.NewMemory(transport.MemoryConfig{})
		nameServerAt(t, net, nsA)
		r := startBroker(t, BrokerConfig{Transport: net, NameServers: []string{nsA}})
		r.createTopic("t", 1, 6)
		r.must(wire.CodeUpdateAndCreateTopic, &wire.CreateTopicRequest{Topic: "ordered", ReadQueueNums: 1, WriteQueueNums: 1, Perm: 6, Order: true}, nil)
		r.must(wire.CodeUpdateBrokerConfig, nil, []byte("brokerPermission=4"))
		synctest.Wait()
		if got, ok := routed(t, net, nsA, "t"); !ok || got.Perm != 4 {
			t.Fatalf("registered as %+v", got)
		}
		// Only ordered topics are refused by the broker itself.
		r.stored(message("t"), "x")
		r.refusedWith(wire.NoPermission, r.send(message("ordered"), "x"), "forbidden")
	})
}

func TestStartFailsWhileATwinIsLive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := transport.NewMemory(transport.MemoryConfig{})
		nameServerAt(t, net, nsA)
		first := startBroker(t, BrokerConfig{Transport: net, NameServers: []string{nsA}, Name: "b1", Listen: "127.0.0.1:10911"})
		second := func(name, cluster string) error {
			b, err := NewBroker(BrokerConfig{Transport: net, NameServers: []string{nsA}, Name: name, Cluster: cluster, Listen: "127.0.0.1:10921"})
			if err != nil {
				t.Fatal(err)
			}
			err = b.Start(t.Context())
			if closeErr := b.Close(); closeErr != nil {
				t.Fatal(closeErr)
			}
			return err
		}
		if err := second("b1", ""); err == nil || !strings.Contains(err.Error(), "live at 127.0.0.1:10911") {
			t.Fatalf("start of a twin: %v", err)
		}
		if _, ok := routed(t, net, nsA, "b1"); !ok {
			t.Fatal("the twin drove the first out")
		}
		if err := second("b2", ""); err != nil {
			t.Fatalf("another name: %v", err)
		}
		if err := first.Close(); err != nil {
			t.Fatal(err)
		}
		if err := second("b1", ""); err != nil {
			t.Fatalf("after the first is gone: %v", err)
		}
	})
}

func TestDeadTwinIsNoObstacle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := transport.NewMemory(transport.MemoryConfig{})
		nameServerAt(t, net, nsA)
		dead := testBroker{cluster: defaultCluster, name: "b1", addr: "127.0.0.1:10999", version: 1}
		dialRaw(t, net, nsA).want(wire.Success, dead.register())
		r := startBroker(t, BrokerConfig{Transport: net, NameServers: []string{nsA}, Name: "b1"})
		r.stored(message("orders"), "x")
		if _, ok := routed(t, net, nsA, "orders"); !ok {
			t.Fatal("not registered")
		}
	})
}

func TestOrderedTopicsOfTheNameServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := transport.NewMemory(transport.MemoryConfig{})
		nameServerAt(t, net, nsA)
		peer := dialRaw(t, net, nsA)
		peer.want(wire.Success, &transport.Frame{Code: wire.CodePutKVConfig,
			Header: &wire.PutKVRequest{Namespace: wire.NamespaceOrder, Key: "t", Value: "b1:4"}})
		r := startBroker(t, BrokerConfig{Transport: net, NameServers: []string{nsA}, Name: "b1"})
		r.createTopic("t", 4, 6)
		r.must(wire.CodeUpdateBrokerConfig, nil, []byte("brokerPermission=4"))
		r.refusedWith(wire.NoPermission, r.send(message("t"), "x"), "forbidden")
	})
}

func TestRegistrationOfManyTopics(t *testing.T) {
	// What a name server has not seen since a version is all that is sent, and
	// everything after a deletion.
	r := startBroker(t, BrokerConfig{})
	topics := func(since bool, sent int64) (int64, string) {
		version, body := r.registration(since, sent)
		parsed, err := wire.ParseRegisterBroker(body, false)
		if err != nil {
			t.Fatal(err)
		}
		if parsed.TopicConfigTable.DataVersion.Counter != version {
			t.Fatalf("version %d in a body of %+v", version, parsed.TopicConfigTable.DataVersion)
		}
		n := len(parsed.TopicConfigTable.Topics)
		_, a := parsed.TopicConfigTable.Topics["a"]
		_, b := parsed.TopicConfigTable.Topics["b"]
		return version, fmt.Sprintf("%d topics, a %v, b %v", n, a, b)
	}
	r.createTopic("a", 1, 6)
	v1, all := topics(false, 0)
	if !strings.HasSuffix(all, "a true, b false") {
		t.Fatal(all)
	}
	r.createTopic("b", 1, 6)
	v2, got := topics(true, v1)
	if got != "1 topics, a false, b true" || v2 <= v1 {
		t.Fatalf("version %d after %d: %s", v2, v1, got)
	}
	if _, got = topics(true, v2); strings.HasPrefix(got, "1 ") || !strings.HasSuffix(got, "a true, b true") {
		t.Fatalf("nothing changed: %s", got)
	}
	r.must(wire.CodeDeleteTopicInBroker, &wire.DeleteTopicRequest{Topic: "a"}, nil)
	if _, got = topics(true, v2); strings.HasPrefix(got, "1 ") || !strings.HasSuffix(got, "a false, b true") {
		t.Fatalf("after a deletion: %s", got)
	}
}
