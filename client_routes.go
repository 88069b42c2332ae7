package mq

import (
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/pocketmq/mq/internal/wire"
)

const masterID = 0 // broker id of a master, in routes and everywhere else

// A topicRoute says where a topic is. It is never written once it was made.
type topicRoute struct {
	topic string
	// publishQueues are those that may be sent to, sorted by broker and id, so
	// that equal keys find equal queues in every process. masters has the address
	// of each one's master, empty when it has none now.
	publishQueues []Queue
	masters       []string
	readQueues    []Queue                     // sorted alike
	brokers       map[string]map[int64]string // name → id → address
	// standIn marks the route of TBW102 under the topic's name: where the first
	// message would create the topic.
	standIn bool
}

// newTopicRoute reads a name server's answer. When standInQueues is positive the
// answer is TBW102's and no broker gets more queues than that.
func newTopicRoute(topic string, data wire.RouteData, standInQueues int) *topicRoute {
	r := &topicRoute{topic: topic, brokers: make(map[string]map[int64]string), standIn: standInQueues > 0}
	for _, b := range data.BrokerDatas {
		r.brokers[b.BrokerName] = maps.Clone(b.BrokerAddrs)
	}
	for _, q := range data.QueueDatas {
		addrs, known := r.brokers[q.BrokerName]
		if !known {
			continue
		}
		read, write := int(q.ReadQueueNums), int(q.WriteQueueNums)
		if r.standIn {
			read = min(read, standInQueues)
			write = read
		}
		if q.Perm&wire.PermRead != 0 {
			r.readQueues = appendQueues(r.readQueues, topic, q.BrokerName, read)
		}
		if q.Perm&wire.PermWrite != 0 && addrs[masterID] != "" && data.OrderTopicConf == "" {
			r.publishQueues = appendQueues(r.publishQueues, topic, q.BrokerName, write)
		}
	}
	r.addOrdered(data.OrderTopicConf)
	slices.SortFunc(r.publishQueues, compareQueues)
	slices.SortFunc(r.readQueues, compareQueues)
	for _, q := range r.publishQueues {
		r.masters = append(r.masters, r.brokers[q.Broker][masterID])
	}
	return r
}

// addOrdered takes the queues of an ordered topic, "broker:count;broker:count".
// They count even when a broker has no master now: leaving its queues out would
// move the keys of all others.
func (r *topicRoute) addOrdered(conf string) {
	for _, item := range strings.Split(conf, ";") {
		broker, count, _ := strings.Cut(item, ":")
		if n, err := strconv.Atoi(count); err == nil && n > 0 && n <= maxBrokerQueues && broker != "" {
			r.publishQueues = appendQueues(r.publishQueues, r.topic, broker, n)
		}
	}
}

// Bounds of a topic's queues on one broker and on all, which keep a mistyped
// number, or a name server that is not one, from filling the memory.
const (
	maxBrokerQueues = 1 << 16
	maxRouteQueues  = 1 << 18
)

func appendQueues(queues []Queue, topic, broker string, n int) []Queue {
	for id := range min(n, maxBrokerQueues, maxRouteQueues-len(queues)) {
		queues = append(queues, Queue{Topic: topic, Broker: broker, ID: id})
	}
	return queues
}

// publishes tells whether a queue is one that may be sent to.
func (r *topicRoute) publishes(q Queue) bool {
	_, found := slices.BinarySearchFunc(r.publishQueues, q, compareQueues)
	return found
}

// equal tells whether two routes say the same. Nil is the route of a topic that
// is nowhere.
func (r *topicRoute) equal(o *topicRoute) bool { return reflect.DeepEqual(r, o) }
