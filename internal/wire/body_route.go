package wire

import (
	"maps"
	"slices"
)

// MasterID is the id of a broker group's master; slaves have greater ids.
const MasterID int64 = 0

// BrokerData names the members of one broker group.
type BrokerData struct {
	Cluster     string
	BrokerName  string
	BrokerAddrs map[int64]string // id to ip:port
}

func (b *BrokerData) read(d *decoder) {
	b.BrokerAddrs = make(map[int64]string)
	d.object(func(key string) {
		switch key {
		case "cluster":
			b.Cluster = d.text()
		case "brokerName":
			b.BrokerName = d.text()
		case "brokerAddrs":
			d.intTable(func(id int64) { b.BrokerAddrs[id] = d.text() })
		default:
			d.skip()
		}
	})
}

func (b BrokerData) write(e *encoder, quoted bool) {
	e.object(func() {
		e.key("brokerAddrs")
		e.object(func() {
			for _, id := range slices.Sorted(maps.Keys(b.BrokerAddrs)) {
				e.intKey(id, quoted)
				e.text(b.BrokerAddrs[id])
			}
		})
		e.member("brokerName", b.BrokerName)
		e.member("cluster", b.Cluster)
	})
}

// QueueData tells how many queues of a topic one broker group has.
type QueueData struct {
	BrokerName     string
	ReadQueueNums  int32
	WriteQueueNums int32
	Perm           int32
	TopicSysFlag   int32
}

func (q *QueueData) read(d *decoder) {
	d.object(func(key string) {
		switch key {
		case "brokerName":
			q.BrokerName = d.text()
		case "readQueueNums":
			q.ReadQueueNums = d.int32()
		case "writeQueueNums":
			q.WriteQueueNums = d.int32()
		case "perm":
			q.Perm = d.int32()
		case "topicSysFlag", "topicSynFlag": // the latter from older servers
			q.TopicSysFlag = d.int32()
		default:
			d.skip()
		}
	})
}

func (q QueueData) write(e *encoder) {
	e.object(func() {
		e.member("brokerName", q.BrokerName)
		e.intMember("perm", int64(q.Perm))
		e.intMember("readQueueNums", int64(q.ReadQueueNums))
		e.intMember("topicSysFlag", int64(q.TopicSysFlag))
		e.intMember("writeQueueNums", int64(q.WriteQueueNums))
	})
}

// RouteData is the body of the answer to GET_ROUTEINFO_BY_TOPIC.
type RouteData struct {
	OrderTopicConf string // brokerName:queues joined by semicolons, for ordered topics
	QueueDatas     []QueueData
	BrokerDatas    []BrokerData
}

// Marshal is the route as it travels. With standard, for clients that ask for it
// or are new enough, it is JSON by the book in ASCII; without, the ids of brokers
// are bare numbers.
func (r *RouteData) Marshal(standard bool) []byte {
	e := encoder{ascii: standard}
	e.object(func() {
		e.key("brokerDatas")
		writeList(&e, r.BrokerDatas, func(b BrokerData) { b.write(&e, standard) })
		e.key("filterServerTable")
		e.object(func() {})
		e.optMember("orderTopicConf", r.OrderTopicConf)
		e.key("queueDatas")
		writeList(&e, r.QueueDatas, func(q QueueData) { q.write(&e) })
	})
	return e.b
}

// ParseRouteData reads a route in either form.
func ParseRouteData(b []byte) (r RouteData, err error) {
	err = parseJSON(b, "route", func(d *decoder) {
		d.object(func(key string) {
			switch key {
			case "brokerDatas":
				d.array(func() {
					var b BrokerData
					b.read(d)
					r.BrokerDatas = append(r.BrokerDatas, b)
				})
			case "queueDatas":
				d.array(func() {
					var q QueueData
					q.read(d)
					r.QueueDatas = append(r.QueueDatas, q)
				})
			case "orderTopicConf":
				r.OrderTopicConf = d.text()
			default:
				d.skip()
			}
		})
	})
	return r, err
}

// ClusterInfo is the body of the answer to GET_BROKER_CLUSTER_INFO.
type ClusterInfo struct {
	BrokerAddrTable  map[string]BrokerData // by broker name
	ClusterAddrTable map[string][]string   // broker names by cluster
}

// Marshal is the body as it travels, with bare numbers as ids for every reader.
func (c *ClusterInfo) Marshal() []byte {
	return marshalJSON(func(e *encoder) {
		e.object(func() {
			e.key("brokerAddrTable")
			writeTable(e, c.BrokerAddrTable, func(_ string, b BrokerData) { b.write(e, false) })
			e.key("clusterAddrTable")
			writeTable(e, c.ClusterAddrTable, func(_ string, names []string) { e.texts(names) })
		})
	})
}

// ParseClusterInfo reads the body of the answer to GET_BROKER_CLUSTER_INFO.
func ParseClusterInfo(b []byte) (c ClusterInfo, err error) {
	err = parseJSON(b, "cluster", func(d *decoder) {
		d.object(func(key string) {
			switch key {
			case "brokerAddrTable":
				c.BrokerAddrTable = make(map[string]BrokerData)
				d.object(func(name string) {
					b := BrokerData{BrokerName: name}
					b.read(d)
					c.BrokerAddrTable[name] = b
				})
			case "clusterAddrTable":
				c.ClusterAddrTable = make(map[string][]string)
				d.object(func(name string) { c.ClusterAddrTable[name] = d.texts() })
			default:
				d.skip()
			}
		})
	})
	return c, err
}
