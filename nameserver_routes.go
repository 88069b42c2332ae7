package mq

import (
	"maps"
	"slices"
	"time"

	"github.com/pocketmq/mq/internal/wire"
)

// brokerExpiry is how long a broker stays in the route table without a sign of
// life (RocketMQ: brokerChannelExpiredTime).
const brokerExpiry = 120 * time.Second

// routeTable knows which broker has which topics. It is pure: it takes the time
// and the connection's identity as arguments, holds no lock and starts nothing.
// Entries are never changed in place once they were handed out by route.
type routeTable struct {
	topics   map[string]map[string]wire.QueueData // topic, broker name
	brokers  map[string]*brokerEntry              // by broker name
	clusters map[string]map[string]bool           // cluster, broker name
	live     map[string]*liveBroker               // by address
}

type brokerEntry struct {
	cluster string
	addrs   map[int64]string
}

// liveBroker is one registered broker process.
type liveBroker struct {
	name    string
	id      int64
	seen    time.Time
	version wire.DataVersion
	conn    any // identity of the connection that registered it
	haAddr  string
}

// registration is what a broker tells of itself.
type registration struct {
	cluster, name, addr, haAddr string
	id                          int64
	version                     wire.DataVersion
	topics                      map[string]wire.TopicConfig // nil: none sent
	conn                        any
}

func newRouteTable() *routeTable {
	return &routeTable{
		topics:   make(map[string]map[string]wire.QueueData),
		brokers:  make(map[string]*brokerEntry),
		clusters: make(map[string]map[string]bool),
		live:     make(map[string]*liveBroker),
	}
}

// register takes a broker in or refreshes it. For a slave whose master is live it
// returns the master's address and HA address.
func (t *routeTable) register(r registration, now time.Time) (masterAddr, haAddr string) {
	if old := t.live[r.addr]; old != nil && old.name != r.name {
		// Another name at this address is the same process under an old name: an
		// address belongs to one broker only.
		t.dropAddr(r.addr, old.name, old.id)
	}
	entry := t.brokers[r.name]
	if entry == nil {
		entry = &brokerEntry{cluster: r.cluster, addrs: make(map[int64]string)}
		t.brokers[r.name] = entry
	}
	if entry.cluster != r.cluster {
		t.leaveCluster(entry.cluster, r.name)
		entry.cluster = r.cluster
	}
	if t.clusters[r.cluster] == nil {
		t.clusters[r.cluster] = make(map[string]bool)
	}
	t.clusters[r.cluster][r.name] = true

	maps.DeleteFunc(entry.addrs, func(id int64, addr string) bool { return addr == r.addr && id != r.id })
	_, known := entry.addrs[r.id]
	entry.addrs[r.id] = r.addr
	old := t.live[r.addr]
	changed := old == nil || old.version.Counter != r.version.Counter || old.version.Timestamp != r.version.Timestamp
	if r.id == 0 && (!known || changed) {
		t.putTopics(r.name, r.topics)
	}
	t.live[r.addr] = &liveBroker{name: r.name, id: r.id, seen: now, version: r.version, conn: r.conn, haAddr: r.haAddr}
	if r.id != 0 {
		if addr := entry.addrs[0]; addr != "" && t.live[addr] != nil {
			return addr, t.live[addr].haAddr
		}
	}
	return "", ""
}

// putTopics adds and updates; a topic that is missing stays (RocketMQ 4.9:
// registration never removes topics).
func (t *routeTable) putTopics(broker string, topics map[string]wire.TopicConfig) {
	for name, c := range topics {
		if t.topics[name] == nil {
			t.topics[name] = make(map[string]wire.QueueData)
		}
		t.topics[name][broker] = wire.QueueData{BrokerName: broker, ReadQueueNums: c.ReadQueueNums,
			WriteQueueNums: c.WriteQueueNums, Perm: c.Perm, TopicSysFlag: c.TopicSysFlag}
	}
}

// unregister removes a broker at its own wish. A request that comes over another
// connection than the newest registration is an old process's last word after a new
// one took its address: it removes nothing.
func (t *routeTable) unregister(addr, name string, id int64, conn any) {
	l := t.live[addr]
	if l != nil && (l.conn != conn || l.name != name || l.id != id) {
		return
	}
	t.dropAddr(addr, name, id)
}

// connClosed removes the brokers that had registered over a connection and
// returns their addresses.
func (t *routeTable) connClosed(conn any) []string {
	return t.dropWhere(func(l *liveBroker) bool { return l.conn == conn })
}

// expire removes the brokers not heard of for brokerExpiry and returns their
// connections, which are to be closed.
func (t *routeTable) expire(now time.Time) (conns []any) {
	t.dropWhere(func(l *liveBroker) bool {
		late := l.seen.Add(brokerExpiry).Before(now)
		if late {
			conns = append(conns, l.conn)
		}
		return late
	})
	return conns
}

func (t *routeTable) dropWhere(gone func(*liveBroker) bool) (addrs []string) {
	for addr, l := range t.live {
		if gone(l) {
			addrs = append(addrs, addr)
			t.dropAddr(addr, l.name, l.id)
		}
	}
	return addrs
}

// dropAddr removes an address, and with a broker's last address its name, its
// place in the cluster and its queues. With only the master gone the topics stay:
// clients can still read from a slave.
func (t *routeTable) dropAddr(addr, name string, id int64) {
	delete(t.live, addr)
	entry := t.brokers[name]
	if entry == nil {
		return
	}
	if entry.addrs[id] == addr {
		delete(entry.addrs, id)
	}
	if len(entry.addrs) > 0 {
		return
	}
	delete(t.brokers, name)
	t.leaveCluster(entry.cluster, name)
	for topic := range t.topics {
		t.dropQueues(topic, name)
	}
}

func (t *routeTable) leaveCluster(cluster, name string) {
	delete(t.clusters[cluster], name)
	if len(t.clusters[cluster]) == 0 {
		delete(t.clusters, cluster)
	}
}

func (t *routeTable) dropQueues(topic, broker string) {
	delete(t.topics[topic], broker)
	if len(t.topics[topic]) == 0 {
		delete(t.topics, topic)
	}
}

// touch answers whether a broker's data version differs from the recorded one,
// with the recorded one; if it does not, that is a sign of life.
func (t *routeTable) touch(addr string, v wire.DataVersion, now time.Time) (changed bool, recorded *wire.DataVersion) {
	l := t.live[addr]
	if l == nil {
		return true, nil
	}
	known := l.version
	if changed = known.Counter != v.Counter || known.Timestamp != v.Timestamp; !changed {
		l.seen = now
	}
	return changed, &known
}

// route returns the queues of a topic and the brokers that have them, or false
// when there is no such topic or no broker of it is left.
func (t *routeTable) route(topic string) (wire.RouteData, bool) {
	var r wire.RouteData
	for _, name := range slices.Sorted(maps.Keys(t.topics[topic])) {
		r.QueueDatas = append(r.QueueDatas, t.topics[topic][name])
		if b := t.brokers[name]; b != nil {
			r.BrokerDatas = append(r.BrokerDatas, wire.BrokerData{Cluster: b.cluster, BrokerName: name, BrokerAddrs: maps.Clone(b.addrs)})
		}
	}
	return r, len(r.QueueDatas) > 0 && len(r.BrokerDatas) > 0
}

// clusterInfo returns all brokers by name and by cluster.
func (t *routeTable) clusterInfo() wire.ClusterInfo {
	info := wire.ClusterInfo{BrokerAddrTable: make(map[string]wire.BrokerData), ClusterAddrTable: make(map[string][]string)}
	for name, b := range t.brokers {
		info.BrokerAddrTable[name] = wire.BrokerData{Cluster: b.cluster, BrokerName: name, BrokerAddrs: maps.Clone(b.addrs)}
	}
	for cluster, names := range t.clusters {
		info.ClusterAddrTable[cluster] = slices.Sorted(maps.Keys(names))
	}
	return info
}

// changePerm maps the permission of all topics of a broker and returns how many
// topics that touched. A registration with a new data version undoes it.
func (t *routeTable) changePerm(broker string, change func(perm int32) int32) int {
	n := 0
	for _, queues := range t.topics {
		if q, ok := queues[broker]; ok {
			q.Perm = change(q.Perm)
			queues[broker] = q
			n++
		}
	}
	return n
}

// deleteTopic removes a topic, or with a cluster only its brokers' part of it.
func (t *routeTable) deleteTopic(topic, cluster string) {
	for _, broker := range slices.Collect(maps.Keys(t.topics[topic])) {
		if cluster == "" || t.clusters[cluster][broker] {
			t.dropQueues(topic, broker)
		}
	}
}

// topicNames lists, in order, the topics for which keep is true on some broker.
func (t *routeTable) topicNames(keep func(broker string, q wire.QueueData) bool) []string {
	names := []string{}
	for topic, queues := range t.topics {
		for broker, q := range queues {
			if keep(broker, q) {
				names = append(names, topic)
				break
			}
		}
	}
	slices.Sort(names)
	return names
}

// systemTopics lists cluster and broker names, each a topic of its own, and some
// broker's address, which a tool can ask for the rest.
func (t *routeTable) systemTopics() (names []string, addr string) {
	seen := make(map[string]bool)
	for cluster, brokers := range t.clusters {
		seen[cluster] = true
		for b := range brokers {
			seen[b] = true
		}
	}
	for _, b := range slices.Sorted(maps.Keys(t.brokers)) {
		ids := slices.Sorted(maps.Keys(t.brokers[b].addrs))
		if addr == "" && len(ids) > 0 {
			addr = t.brokers[b].addrs[ids[0]]
		}
	}
	return slices.Sorted(maps.Keys(seen)), addr
}
