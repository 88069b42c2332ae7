package mq

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pocketmq/mq/internal/wire"
	"github.com/pocketmq/mq/transport"
)

// rawPeer speaks to a server in single requests, as any client of RocketMQ would.
type rawPeer struct {
	t    *testing.T
	conn transport.Conn
}

func dialRaw(t *testing.T, net transport.Transport, addr string) rawPeer {
	t.Helper()
	conn, err := net.Dial(t.Context(), addr, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return rawPeer{t, conn}
}

func (p rawPeer) ask(req *transport.Frame) *transport.Frame {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	f, err := p.conn.Call(ctx, req)
	if err != nil {
		p.t.Fatalf("request %d: %v", req.Code, err)
	}
	return f
}

// want asks and fails the test when the answer has another code.
func (p rawPeer) want(code int32, req *transport.Frame) *transport.Frame {
	p.t.Helper()
	f := p.ask(req)
	if f.Code != code {
		p.t.Fatalf("request %d: answer %d %q, want %d", req.Code, f.Code, f.Remark, code)
	}
	return f
}

func startNameServer(t *testing.T, net transport.Transport, cfg NameServerConfig) *NameServer {
	t.Helper()
	cfg.Transport, cfg.Listen = net, "127.0.0.1:0"
	n, err := NewNameServer(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := n.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { n.Close() })
	return n
}

type testBroker struct {
	cluster, name, addr string
	id, version         int64
	topics              map[string]wire.TopicConfig
}

func oneTopic(name string, queues int32) map[string]wire.TopicConfig {
	return map[string]wire.TopicConfig{name: {TopicName: name, ReadQueueNums: queues, WriteQueueNums: queues, Perm: 6}}
}

func (b testBroker) register() *transport.Frame {
	body := wire.RegisterBrokerBody{TopicConfigTable: wire.TopicConfigTable{
		DataVersion: wire.DataVersion{Counter: b.version, Timestamp: 1}, Topics: b.topics}}
	return &transport.Frame{Code: wire.CodeRegisterBroker, Version: protocolVersion, Body: body.Marshal(), Header: &wire.RegisterBrokerRequest{
		BrokerName: b.name, BrokerAddr: b.addr, ClusterName: b.cluster, BrokerID: b.id, HAServerAddr: b.addr + "1"}}
}

func (b testBroker) unregister() *transport.Frame {
	return &transport.Frame{Code: wire.CodeUnregisterBroker, Header: &wire.UnregisterBrokerRequest{
		BrokerName: b.name, BrokerAddr: b.addr, ClusterName: b.cluster, BrokerID: b.id}}
}

func routeOf(topic string) *transport.Frame {
	return &transport.Frame{Code: wire.CodeGetRouteInfoByTopic, Version: protocolVersion, Header: &wire.RouteRequest{Topic: topic}}
}

func parseRoute(t *testing.T, f *transport.Frame) wire.RouteData {
	t.Helper()
	r, err := wire.ParseRouteData(f.Body)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

var brokerA = testBroker{cluster: "c1", name: "a", addr: "10.0.0.1:10911", version: 1, topics: oneTopic("orders", 4)}

func TestRouteNamesQueuesAndBrokers(t *testing.T) {
	net := transport.NewMemory(transport.MemoryConfig{})
	peer := dialRaw(t, net, startNameServer(t, net, NameServerConfig{}).Addr())
	if f := peer.want(wire.TopicNotExist, routeOf("orders")); !strings.Contains(f.Remark, "orders") {
		t.Errorf("the remark %q does not name the topic", f.Remark)
	}
	peer.want(wire.Success, brokerA.register())
	b := testBroker{cluster: "c1", name: "b", addr: "10.0.0.2:10911", version: 1, topics: oneTopic("orders", 2)}
	peer.want(wire.Success, b.register())
	got := parseRoute(t, peer.want(wire.Success, routeOf("orders")))
	want := wire.RouteData{
		QueueDatas: []wire.QueueData{{BrokerName: "a", ReadQueueNums: 4, WriteQueueNums: 4, Perm: 6},
			{BrokerName: "b", ReadQueueNums: 2, WriteQueueNums: 2, Perm: 6}},
		BrokerDatas: []wire.BrokerData{{Cluster: "c1", BrokerName: "a", BrokerAddrs: map[int64]string{0: "10.0.0.1:10911"}},
			{Cluster: "c1", BrokerName: "b", BrokerAddrs: map[int64]string{0: "10.0.0.2:10911"}}}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

// Java clients from 4.9.4 on and those that ask get JSON by the book; older ones,
// Go's among them, the dialect with bare numbers as keys.
func TestRouteComesInBothDialects(t *testing.T) {
	net := transport.NewMemory(transport.MemoryConfig{})
	peer := dialRaw(t, net, startNameServer(t, net, NameServerConfig{}).Addr())
	peer.want(wire.Success, brokerA.register())
	for _, tc := range []struct {
		version  int32
		ask      bool
		standard bool
	}{{317, false, false}, {399, false, false}, {317, true, true}, {401, false, true}} {
		f := peer.want(wire.Success, &transport.Frame{Code: wire.CodeGetRouteInfoByTopic, Version: tc.version,
			Header: &wire.RouteRequest{Topic: "orders", StandardJSON: tc.ask}})
		if json.Valid(f.Body) != tc.standard {
			t.Errorf("version %d, asked %v: %s", tc.version, tc.ask, f.Body)
		}
		if r := parseRoute(t, f); len(r.QueueDatas) != 1 {
			t.Errorf("version %d: route %+v", tc.version, r)
		}
	}
}

func TestRegistrationTakesTopicsOnlyWithANewVersionAndRemovesNone(t *testing.T) {
	net := transport.NewMemory(transport.MemoryConfig{})
	peer := dialRaw(t, net, startNameServer(t, net, NameServerConfig{}).Addr())
	peer.want(wire.Success, brokerA.register())
	same := brokerA
	same.topics = oneTopic("ignored", 1)
	peer.want(wire.Success, same.register())
	peer.want(wire.TopicNotExist, routeOf("ignored"))
	newer := brokerA
	newer.version, newer.topics = 2, oneTopic("payments", 1)
	peer.want(wire.Success, newer.register())
	peer.want(wire.Success, routeOf("payments"))
	peer.want(wire.Success, routeOf("orders")) // missing in the newer one, yet kept
}

func TestRegistrationWithAWrongChecksumIsRefused(t *testing.T) {
	net := transport.NewMemory(transport.MemoryConfig{})
	peer := dialRaw(t, net, startNameServer(t, net, NameServerConfig{}).Addr())
	f := brokerA.register()
	h := *f.Header.(*wire.RegisterBrokerRequest)
	h.BodyCRC = wire.CRC31(f.Body) ^ 1
	f.Header = &h
	peer.want(wire.SystemError, f)
	peer.want(wire.TopicNotExist, routeOf("orders"))
	good := *f
	g := h
	g.BodyCRC ^= 1
	good.Header = &g
	peer.want(wire.Success, &good)
	peer.want(wire.Success, routeOf("orders"))
	peer.want(wire.SystemError, &transport.Frame{Code: wire.CodeRegisterBroker, Header: f.Header, Body: []byte("{")})
}

func TestCompressedRegistrationIsRead(t *testing.T) {
	net := transport.NewMemory(transport.MemoryConfig{})
	peer := dialRaw(t, net, startNameServer(t, net, NameServerConfig{}).Addr())
	body := wire.RegisterBrokerBody{TopicConfigTable: wire.TopicConfigTable{DataVersion: wire.DataVersion{Counter: 1}, Topics: brokerA.topics}}
	packed, err := body.MarshalCompressed()
	if err != nil {
		t.Fatal(err)
	}
	f := brokerA.register()
	h := *f.Header.(*wire.RegisterBrokerRequest)
	h.Compressed, h.BodyCRC = true, wire.CRC31(packed)
	peer.want(wire.Success, &transport.Frame{Code: f.Code, Header: &h, Body: packed})
	if r := parseRoute(t, peer.want(wire.Success, routeOf("orders"))); r.QueueDatas[0].WriteQueueNums != 4 {
		t.Errorf("route %+v", r)
	}
}

func TestBrokerLeavesTheRoutesWhenItsConnectionCloses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := transport.NewMemory(transport.MemoryConfig{})
		n := startNameServer(t, net, NameServerConfig{})
		peer, broker := dialRaw(t, net, n.Addr()), dialRaw(t, net, n.Addr())
		broker.want(wire.Success, brokerA.register())
		peer.want(wire.Success, routeOf("orders"))
		broker.conn.Close()
		synctest.Wait()
		peer.want(wire.TopicNotExist, routeOf("orders"))
	})
}

func TestSilentBrokerExpiresAfterTwoMinutes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := transport.NewMemory(transport.MemoryConfig{})
		n := startNameServer(t, net, NameServerConfig{})
		peer, broker := dialRaw(t, net, n.Addr()), dialRaw(t, net, n.Addr())
		broker.want(wire.Success, brokerA.register())
		time.Sleep(brokerExpiry - time.Second)
		peer.want(wire.Success, routeOf("orders"))
		time.Sleep(expiryScanPeriod + 2*time.Second)
		peer.want(wire.TopicNotExist, routeOf("orders"))
		select {
		case <-broker.conn.Done():
		default:
			t.Error("the expired broker's connection is still open")
		}
	})
}

func TestUnchangedDataVersionIsASignOfLife(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := transport.NewMemory(transport.MemoryConfig{})
		n := startNameServer(t, net, NameServerConfig{})
		peer, client := dialRaw(t, net, n.Addr()), dialRaw(t, net, n.Addr())
		peer.want(wire.Success, brokerA.register())
		query := func(counter int64) *wire.QueryDataVersionResponse {
			f := peer.want(wire.Success, &transport.Frame{Code: wire.CodeQueryDataVersion,
				Body: wire.DataVersion{Counter: counter, Timestamp: 1}.Marshal(), Header: &wire.QueryDataVersionRequest{
					BrokerName: "a", BrokerAddr: brokerA.addr, ClusterName: "c1"}})
			h, err := transport.HeaderOf[wire.QueryDataVersionResponse](f)
			if err != nil {
				t.Fatal(err)
			}
			if v, err := wire.ParseDataVersion(f.Body); err != nil || v.Counter != 1 {
				t.Errorf("recorded version %+v, %v", v, err)
			}
			return h
		}
		time.Sleep(100 * time.Second)
		if query(1).Changed {
			t.Error("the same version is said to differ")
		}
		time.Sleep(100 * time.Second)
		client.want(wire.Success, routeOf("orders")) // 200 s after the registration
		if !query(2).Changed {
			t.Error("another version is said to be the same")
		}
		time.Sleep(40 * time.Second)
		client.want(wire.TopicNotExist, routeOf("orders"))
	})
}

// A broker process that restarts on its address registers before the old one's
// last word arrives.
func TestLateUnregisterLeavesANewerRegistrationAlone(t *testing.T) {
	net := transport.NewMemory(transport.MemoryConfig{})
	n := startNameServer(t, net, NameServerConfig{})
	old, fresh := dialRaw(t, net, n.Addr()), dialRaw(t, net, n.Addr())
	old.want(wire.Success, brokerA.register())
	fresh.want(wire.Success, brokerA.register())
	old.want(wire.Success, brokerA.unregister())
	fresh.want(wire.Success, routeOf("orders"))
	fresh.want(wire.Success, brokerA.unregister())
	fresh.want(wire.TopicNotExist, routeOf("orders"))
}

// BC148: a broker that changes its name does not stay behind under the old one.
func TestOneAddressBelongsToOneBrokerOnly(t *testing.T) {
	net := transport.NewMemory(transport.MemoryConfig{})
	peer := dialRaw(t, net, startNameServer(t, net, NameServerConfig{}).Addr())
	peer.want(wire.Success, brokerA.register())
	renamed := brokerA
	renamed.name, renamed.topics = "b", oneTopic("payments", 1)
	peer.want(wire.Success, renamed.register())
	peer.want(wire.TopicNotExist, routeOf("orders"))
	f := peer.want(wire.Success, &transport.Frame{Code: wire.CodeGetBrokerClusterInfo})
	info, err := wire.ParseClusterInfo(f.Body)
	if err != nil || len(info.BrokerAddrTable) != 1 || info.BrokerAddrTable["b"].BrokerAddrs[0] != brokerA.addr {
		t.Errorf("cluster %+v, %v", info, err)
	}
}

func TestSlaveLearnsItsMasterAndAPromotedSlaveReplacesIt(t *testing.T) {
	net := transport.NewMemory(transport.MemoryConfig{})
	peer := dialRaw(t, net, startNameServer(t, net, NameServerConfig{}).Addr())
	peer.want(wire.Success, brokerA.register())
	slave := testBroker{cluster: "c1", name: "a", addr: "10.0.0.9:10911", id: 1, version: 1, topics: oneTopic("slaves-do-not-count", 1)}
	h, err := transport.HeaderOf[wire.RegisterBrokerResponse](peer.want(wire.Success, slave.register()))
	if err != nil || h.MasterAddr != brokerA.addr || h.HAServerAddr != brokerA.addr+"1" {
		t.Errorf("master %+v, %v", h, err)
	}
	peer.want(wire.TopicNotExist, routeOf("slaves-do-not-count"))
	peer.want(wire.Success, brokerA.unregister())
	r := parseRoute(t, peer.want(wire.Success, routeOf("orders"))) // still readable from the slave
	if addrs := r.BrokerDatas[0].BrokerAddrs; len(addrs) != 1 || addrs[1] != slave.addr {
		t.Errorf("addresses %v, want the slave's only", addrs)
	}
	slave.id = 0
	peer.want(wire.Success, slave.register())
	r = parseRoute(t, peer.want(wire.Success, routeOf("orders")))
	if addrs := r.BrokerDatas[0].BrokerAddrs; len(addrs) != 1 || addrs[0] != slave.addr {
		t.Errorf("addresses %v, want the promoted one as master only", addrs)
	}
}

func TestWritePermissionIsWipedAndRestored(t *testing.T) {
	net := transport.NewMemory(transport.MemoryConfig{})
	peer := dialRaw(t, net, startNameServer(t, net, NameServerConfig{}).Addr())
	peer.want(wire.Success, brokerA.register())
	perm := func() int32 {
		return parseRoute(t, peer.want(wire.Success, routeOf("orders"))).QueueDatas[0].Perm
	}
	f := peer.want(wire.Success, &transport.Frame{Code: wire.CodeWipeWritePermOfBroker, Header: &wire.WritePermRequest{BrokerName: "a"}})
	if h, err := transport.HeaderOf[wire.WipeWritePermResponse](f); err != nil || h.TopicCount != 1 || perm() != wire.PermRead {
		t.Errorf("wiped %+v, %v, permission %d", h, err, perm())
	}
	peer.want(wire.Success, brokerA.register()) // the same version changes nothing
	if perm() != wire.PermRead {
		t.Errorf("permission %d after a registration with the same version", perm())
	}
	peer.want(wire.Success, &transport.Frame{Code: wire.CodeAddWritePermOfBroker, Header: &wire.WritePermRequest{BrokerName: "a"}})
	if perm() != wire.PermRead|wire.PermWrite {
		t.Errorf("permission %d after it was given back", perm())
	}
}

func TestTopicListsAndDeletion(t *testing.T) {
	net := transport.NewMemory(transport.MemoryConfig{})
	peer := dialRaw(t, net, startNameServer(t, net, NameServerConfig{}).Addr())
	a := brokerA
	a.topics = map[string]wire.TopicConfig{}
	for name, flag := range map[string]int32{"plain": 0, "unit": wire.TopicUnit, "sub": wire.TopicUnitSub, "both": wire.TopicUnit | wire.TopicUnitSub} {
		a.topics[name] = wire.TopicConfig{TopicName: name, ReadQueueNums: 1, WriteQueueNums: 1, Perm: 6, TopicSysFlag: flag}
	}
	b := testBroker{cluster: "c2", name: "b", addr: "10.0.0.2:10911", version: 1, topics: oneTopic("plain", 1)}
	peer.want(wire.Success, a.register())
	peer.want(wire.Success, b.register())
	list := func(code int32, h transport.Header) string {
		l, err := wire.ParseTopicList(peer.want(wire.Success, &transport.Frame{Code: code, Header: h}).Body)
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprint(l.Topics, l.BrokerAddr)
	}
	for _, tc := range []struct {
		code int32
		h    transport.Header
		want string
	}{
		{wire.CodeGetAllTopicListFromNameServer, nil, "[both plain sub unit]"},
		{wire.CodeGetTopicsByCluster, &wire.ClusterTopicsRequest{Cluster: "c2"}, "[plain]"},
		{wire.CodeGetTopicsByCluster, &wire.ClusterTopicsRequest{Cluster: "nowhere"}, "[]"},
		{wire.CodeGetSystemTopicListFromNameServer, nil, "[a b c1 c2]10.0.0.1:10911"},
		{wire.CodeGetUnitTopicList, nil, "[both unit]"},
		{wire.CodeGetHasUnitSubTopicList, nil, "[both sub]"},
		{wire.CodeGetHasUnitSubUnunitTopicList, nil, "[sub]"},
	} {
		if got := list(tc.code, tc.h); got != tc.want {
			t.Errorf("code %d %+v: %s, want %s", tc.code, tc.h, got, tc.want)
		}
	}
	peer.want(wire.Success, &transport.Frame{Code: wire.CodeDeleteTopicInNameServer, Header: &wire.DeleteRouteTopicRequest{Topic: "plain", ClusterName: "c2"}})
	if r := parseRoute(t, peer.want(wire.Success, routeOf("plain"))); len(r.QueueDatas) != 1 || r.QueueDatas[0].BrokerName != "a" {
		t.Errorf("route %+v, want c1's part only", r)
	}
	peer.want(wire.Success, &transport.Frame{Code: wire.CodeDeleteTopicInNameServer, Header: &wire.DeleteRouteTopicRequest{Topic: "plain"}})
	peer.want(wire.TopicNotExist, routeOf("plain"))
}

func TestConfigurationOutlivesARestart(t *testing.T) {
	dir, net := t.TempDir(), transport.NewMemory(transport.MemoryConfig{})
	n := startNameServer(t, net, NameServerConfig{Dir: dir})
	peer := dialRaw(t, net, n.Addr())
	put := func(key, value string) *transport.Frame {
		return &transport.Frame{Code: wire.CodePutKVConfig, Header: &wire.PutKVRequest{Namespace: "ns", Key: key, Value: value}}
	}
	get := &transport.Frame{Code: wire.CodeGetKVConfig, Header: &wire.GetKVRequest{Namespace: "ns", Key: "k"}}
	peer.want(wire.QueryNotFound, get)
	peer.want(wire.SystemError, put("", "v"))
	peer.want(wire.Success, put("k", "v1"))
	peer.want(wire.Success, put("k", "v2"))
	peer.want(wire.Success, put("gone", "x"))
	peer.want(wire.Success, &transport.Frame{Code: wire.CodeDeleteKVConfig, Header: &wire.DeleteKVRequest{Namespace: "ns", Key: "gone"}})
	n.Close()

	check := func(when string) {
		t.Helper()
		n := startNameServer(t, net, NameServerConfig{Dir: dir})
		defer n.Close()
		peer := dialRaw(t, net, n.Addr())
		h, err := transport.HeaderOf[wire.GetKVResponse](peer.want(wire.Success, get))
		if err != nil || h.Value != "v2" {
			t.Errorf("%s: value %+v, %v", when, h, err)
		}
		table, err := wire.ParseKVTable(peer.want(wire.Success, &transport.Frame{Code: wire.CodeGetKVListByNamespace,
			Header: &wire.KVListRequest{Namespace: "ns"}}).Body)
		if err != nil || table.Table["k"] != "v2" {
			t.Errorf("%s: list %+v, %v", when, table, err)
		}
		peer.want(wire.QueryNotFound, &transport.Frame{Code: wire.CodeGetKVListByNamespace, Header: &wire.KVListRequest{Namespace: "none"}})
	}
	check("after a restart")
	path := filepath.Join(dir, "kvConfig.json")
	if err := os.WriteFile(path, []byte(`{"configTab`), 0o644); err != nil {
		t.Fatal(err)
	}
	check("with a damaged file")
	if err := os.WriteFile(path+".bak", nil, 0o644); err != nil {
		t.Fatal(err)
	}
	broken, err := NewNameServer(NameServerConfig{Transport: net, Listen: "127.0.0.1:0", Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	if err := broken.Start(t.Context()); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("start with both files damaged: %v, want an error that names them", err)
	}
	broken.Close()
}

func TestOrderedTopicsReachBrokersAndClients(t *testing.T) {
	net := transport.NewMemory(transport.MemoryConfig{})
	peer := dialRaw(t, net, startNameServer(t, net, NameServerConfig{OrderMessages: true}).Addr())
	peer.want(wire.Success, &transport.Frame{Code: wire.CodePutKVConfig,
		Header: &wire.PutKVRequest{Namespace: orderNamespace, Key: "orders", Value: "a:4"}})
	f := peer.want(wire.Success, brokerA.register())
	if table, err := wire.ParseKVTable(f.Body); err != nil || table.Table["orders"] != "a:4" {
		t.Errorf("the broker got %+v, %v", table, err)
	}
	if r := parseRoute(t, peer.want(wire.Success, routeOf("orders"))); r.OrderTopicConf != "a:4" {
		t.Errorf("the client got %q", r.OrderTopicConf)
	}
	peer.want(wire.NoPermission, &transport.Frame{Code: wire.CodeUpdateNameServerConfig, Body: []byte("kvConfigPath=/tmp/x\n")})
	peer.want(wire.Success, &transport.Frame{Code: wire.CodeUpdateNameServerConfig, Body: []byte("# off\norderMessageEnable=false\nunknown=1\n")})
	if r := parseRoute(t, peer.want(wire.Success, routeOf("orders"))); r.OrderTopicConf != "" {
		t.Errorf("the client still gets %q", r.OrderTopicConf)
	}
	if f := peer.want(wire.Success, &transport.Frame{Code: wire.CodeGetNameServerConfig}); !strings.Contains(string(f.Body), "orderMessageEnable=false\n") {
		t.Errorf("configuration %q", f.Body)
	}
}

func TestNameServerAnswersUnknownCodesAndMissingFields(t *testing.T) {
	net := transport.NewMemory(transport.MemoryConfig{})
	peer := dialRaw(t, net, startNameServer(t, net, NameServerConfig{}).Addr())
	peer.want(wire.RequestCodeNotSupported, &transport.Frame{Code: 9999})
	if f := peer.want(wire.SystemError, &transport.Frame{Code: wire.CodeGetRouteInfoByTopic}); !strings.Contains(f.Remark, "topic") {
		t.Errorf("the remark %q does not name the missing field", f.Remark)
	}
}

func TestNameServersDoNotTalkToEachOther(t *testing.T) {
	net := transport.NewMemory(transport.MemoryConfig{})
	one := dialRaw(t, net, startNameServer(t, net, NameServerConfig{}).Addr())
	two := dialRaw(t, net, startNameServer(t, net, NameServerConfig{}).Addr())
	one.want(wire.Success, brokerA.register())
	one.want(wire.Success, routeOf("orders"))
	two.want(wire.TopicNotExist, routeOf("orders"))
}

func TestNameServerRefusesABadAddress(t *testing.T) {
	if _, err := NewNameServer(NameServerConfig{Listen: "nonsense"}); err == nil || !strings.Contains(err.Error(), "NameServerConfig.Listen") {
		t.Errorf("error %v, want one that names the field", err)
	}
}
