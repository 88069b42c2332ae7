package mq

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pocketmq/mq/internal/wire"
	"github.com/pocketmq/mq/transport"
)

// standardJSONVersion is RocketMQ 4.9.4, the first client that reads routes with
// quoted keys.
const standardJSONVersion = 401

func (n *NameServer) registerBroker(c transport.Conn, req *transport.Frame) (*transport.Frame, error) {
	h, err := transport.HeaderOf[wire.RegisterBrokerRequest](req)
	if err != nil {
		return nil, err
	}
	if h.BodyCRC != 0 && h.BodyCRC != wire.CRC31(req.Body) {
		return &transport.Frame{Code: wire.SystemError, Remark: "crc32 not match"}, nil
	}
	body, err := wire.ParseRegisterBroker(req.Body, h.Compressed)
	if err != nil {
		return nil, fmt.Errorf("mq: registration of broker %s: %w", h.BrokerName, err)
	}
	r := registration{cluster: h.ClusterName, name: h.BrokerName, addr: h.BrokerAddr, haAddr: h.HAServerAddr,
		id: h.BrokerID, conn: c, version: body.TopicConfigTable.DataVersion, topics: body.TopicConfigTable.Topics}
	n.mu.Lock()
	known := n.routes.live[r.addr] != nil
	master, ha := n.routes.register(r, time.Now())
	n.mu.Unlock()
	if !known {
		n.log.Info("broker registered", "broker", r.name, "addr", r.addr, "id", r.id, "cluster", r.cluster)
	}
	answer := &transport.Frame{Header: &wire.RegisterBrokerResponse{MasterAddr: master, HAServerAddr: ha}}
	if order := n.kv.namespace(orderNamespace); order != nil {
		answer.Body = (&wire.KVTable{Table: order}).Marshal()
	}
	return answer, nil
}

func (n *NameServer) unregisterBroker(c transport.Conn, req *transport.Frame) (*transport.Frame, error) {
	h, err := transport.HeaderOf[wire.UnregisterBrokerRequest](req)
	if err != nil {
		return nil, err
	}
	n.mu.Lock()
	n.routes.unregister(h.BrokerAddr, h.BrokerName, h.BrokerID, c)
	n.mu.Unlock()
	n.log.Info("broker unregistered", "broker", h.BrokerName, "addr", h.BrokerAddr, "id", h.BrokerID)
	return &transport.Frame{}, nil
}

func (n *NameServer) queryDataVersion(_ transport.Conn, req *transport.Frame) (*transport.Frame, error) {
	h, err := transport.HeaderOf[wire.QueryDataVersionRequest](req)
	if err != nil {
		return nil, err
	}
	version, err := wire.ParseDataVersion(req.Body)
	if err != nil {
		return nil, fmt.Errorf("mq: data version of broker %s: %w", h.BrokerName, err)
	}
	n.mu.Lock()
	changed, recorded := n.routes.touch(h.BrokerAddr, version, time.Now())
	n.mu.Unlock()
	answer := &transport.Frame{Header: &wire.QueryDataVersionResponse{Changed: changed}}
	if recorded != nil {
		answer.Body = recorded.Marshal()
	}
	return answer, nil
}

func (n *NameServer) route(_ transport.Conn, req *transport.Frame) (*transport.Frame, error) {
	h, err := transport.HeaderOf[wire.RouteRequest](req)
	if err != nil {
		return nil, err
	}
	n.mu.RLock()
	route, ok := n.routes.route(h.Topic)
	ordered := n.orderMessages
	n.mu.RUnlock()
	if !ok {
		return &transport.Frame{Code: wire.TopicNotExist,
			Remark: "No topic route info in name server for the topic: " + h.Topic}, nil
	}
	if ordered {
		route.OrderTopicConf, _ = n.kv.get(orderNamespace, h.Topic)
	}
	standard := h.StandardJSON || req.Version >= standardJSONVersion
	return &transport.Frame{Body: route.Marshal(standard)}, nil
}

func (n *NameServer) clusterInfo(transport.Conn, *transport.Frame) (*transport.Frame, error) {
	n.mu.RLock()
	info := n.routes.clusterInfo()
	n.mu.RUnlock()
	return &transport.Frame{Body: info.Marshal()}, nil
}

func (n *NameServer) wipeWritePerm(_ transport.Conn, req *transport.Frame) (*transport.Frame, error) {
	touched, err := n.changePerm(req, func(perm int32) int32 { return perm &^ wire.PermWrite })
	return &transport.Frame{Header: &wire.WipeWritePermResponse{TopicCount: touched}}, err
}

func (n *NameServer) addWritePerm(_ transport.Conn, req *transport.Frame) (*transport.Frame, error) {
	touched, err := n.changePerm(req, func(int32) int32 { return wire.PermRead | wire.PermWrite })
	return &transport.Frame{Header: &wire.AddWritePermResponse{TopicCount: touched}}, err
}

func (n *NameServer) changePerm(req *transport.Frame, change func(int32) int32) (int32, error) {
	h, err := transport.HeaderOf[wire.WritePermRequest](req)
	if err != nil {
		return 0, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	return int32(n.routes.changePerm(h.BrokerName, change)), nil
}

func (n *NameServer) deleteTopic(_ transport.Conn, req *transport.Frame) (*transport.Frame, error) {
	h, err := transport.HeaderOf[wire.DeleteRouteTopicRequest](req)
	if err != nil {
		return nil, err
	}
	n.mu.Lock()
	n.routes.deleteTopic(h.Topic, h.ClusterName)
	n.mu.Unlock()
	return &transport.Frame{}, nil
}

func (n *NameServer) allTopics(transport.Conn, *transport.Frame) (*transport.Frame, error) {
	return n.topicList(func(string, wire.QueueData) bool { return true })
}

func (n *NameServer) clusterTopics(_ transport.Conn, req *transport.Frame) (*transport.Frame, error) {
	h, err := transport.HeaderOf[wire.ClusterTopicsRequest](req)
	if err != nil {
		return nil, err
	}
	return n.topicList(func(broker string, _ wire.QueueData) bool { return n.routes.clusters[h.Cluster][broker] })
}

func (n *NameServer) unitTopics(unit, sub bool) func(transport.Conn, *transport.Frame) (*transport.Frame, error) {
	return func(transport.Conn, *transport.Frame) (*transport.Frame, error) {
		return n.topicList(func(_ string, q wire.QueueData) bool {
			return unit && q.TopicSysFlag&wire.TopicUnit != 0 || sub && q.TopicSysFlag&wire.TopicUnitSub != 0
		})
	}
}

func (n *NameServer) subscribedNonUnitTopics(transport.Conn, *transport.Frame) (*transport.Frame, error) {
	return n.topicList(func(_ string, q wire.QueueData) bool {
		return q.TopicSysFlag&wire.TopicUnit == 0 && q.TopicSysFlag&wire.TopicUnitSub != 0
	})
}

// topicList answers the names of the topics for which keep, called with the lock
// held, is true.
func (n *NameServer) topicList(keep func(broker string, q wire.QueueData) bool) (*transport.Frame, error) {
	n.mu.RLock()
	names := n.routes.topicNames(keep)
	n.mu.RUnlock()
	return &transport.Frame{Body: (&wire.TopicList{Topics: names}).Marshal()}, nil
}

func (n *NameServer) systemTopics(transport.Conn, *transport.Frame) (*transport.Frame, error) {
	n.mu.RLock()
	names, addr := n.routes.systemTopics()
	n.mu.RUnlock()
	return &transport.Frame{Body: (&wire.TopicList{Topics: names, BrokerAddr: addr}).Marshal()}, nil
}

func (n *NameServer) putKV(_ transport.Conn, req *transport.Frame) (*transport.Frame, error) {
	h, err := transport.HeaderOf[wire.PutKVRequest](req)
	if err != nil {
		return nil, err
	}
	if h.Namespace == "" || h.Key == "" {
		return nil, fmt.Errorf("mq: put configuration: namespace %q and key %q must not be empty", h.Namespace, h.Key)
	}
	return &transport.Frame{}, n.kv.put(h.Namespace, h.Key, h.Value)
}

func (n *NameServer) getKV(_ transport.Conn, req *transport.Frame) (*transport.Frame, error) {
	h, err := transport.HeaderOf[wire.GetKVRequest](req)
	if err != nil {
		return nil, err
	}
	value, ok := n.kv.get(h.Namespace, h.Key)
	if !ok {
		return &transport.Frame{Code: wire.QueryNotFound,
			Remark: fmt.Sprintf("No config item, Namespace: %s Key: %s", h.Namespace, h.Key)}, nil
	}
	return &transport.Frame{Header: &wire.GetKVResponse{Value: value}}, nil
}

func (n *NameServer) deleteKV(_ transport.Conn, req *transport.Frame) (*transport.Frame, error) {
	h, err := transport.HeaderOf[wire.DeleteKVRequest](req)
	if err != nil {
		return nil, err
	}
	return &transport.Frame{}, n.kv.remove(h.Namespace, h.Key)
}

func (n *NameServer) listKV(_ transport.Conn, req *transport.Frame) (*transport.Frame, error) {
	h, err := transport.HeaderOf[wire.KVListRequest](req)
	if err != nil {
		return nil, err
	}
	values := n.kv.namespace(h.Namespace)
	if values == nil {
		return &transport.Frame{Code: wire.QueryNotFound, Remark: "No config item, Namespace: " + h.Namespace}, nil
	}
	return &transport.Frame{Body: (&wire.KVTable{Table: values}).Marshal()}, nil
}

// Configuration keys of RocketMQ's name server that ours has, and those that
// nobody may change from outside (RocketMQ: configBlackList).
const orderMessageKey = "orderMessageEnable"

var protectedNameServerKeys = []string{"configBlackList", "configStorePath", "kvConfigPath", "rocketmqHome"}

func (n *NameServer) config(transport.Conn, *transport.Frame) (*transport.Frame, error) {
	n.mu.RLock()
	values := map[string]string{orderMessageKey: strconv.FormatBool(n.orderMessages), "kvConfigPath": n.kv.path,
		"listenPort": n.addr[strings.LastIndexByte(n.addr, ':')+1:]}
	n.mu.RUnlock()
	return &transport.Frame{Body: wire.FormatConfig(values)}, nil
}

// updateConfig changes keys that exist; unknown ones are ignored, as in RocketMQ.
// A change lasts until the name server is closed.
func (n *NameServer) updateConfig(_ transport.Conn, req *transport.Frame) (*transport.Frame, error) {
	values, err := wire.ParseConfig(req.Body)
	if err != nil {
		return nil, err
	}
	for key := range values {
		if slices.Contains(protectedNameServerKeys, key) {
			return &transport.Frame{Code: wire.NoPermission,
				Remark: "Can not update config in black list: " + key}, nil
		}
	}
	if v, ok := values[orderMessageKey]; ok {
		n.mu.Lock()
		n.orderMessages = v == "true"
		n.mu.Unlock()
	}
	return &transport.Frame{}, nil
}
