package mq

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/pocketmq/mq/internal/wire"
	"github.com/pocketmq/mq/storage"
	"github.com/pocketmq/mq/transport"
)

// CreateTopic makes a topic with so many queues, 1 to 1024, that may be read and
// written. Of one that is there it changes the number of queues and nothing else. It
// returns when the topic is stored and, unless they take more than 3 s, the
// connected name servers know it. It needs a broker that is started, and works also
// when topics are not created automatically (RocketMQ: UPDATE_AND_CREATE_TOPIC).
func (b *Broker) CreateTopic(ctx context.Context, name string, queues int) error {
	err := b.life.running()
	if err == nil {
		err = b.createTopic(ctx, name, queues)
	}
	return b.operated("create topic "+name, err)
}

func (b *Broker) createTopic(ctx context.Context, name string, queues int) error {
	if queues < 1 || queues > maxQueues {
		return fmt.Errorf("%d queues, the range is 1 to %d", queues, maxQueues)
	}
	if fault := nameFault(name, maxTopicLength); fault != "" {
		return fmt.Errorf("the name %s", fault)
	}
	if b.isSystemTopic(name) {
		return fmt.Errorf("%w: the name belongs to the broker", ErrNoPermission)
	}
	_, err := b.topics.change(ctx, name, func(old *brokerTopic) (*wire.TopicConfig, error) {
		c := wire.TopicConfig{TopicName: name, Perm: permRW, TopicFilterType: singleTag}
		if old != nil {
			c = *old.conf()
		}
		c.ReadQueueNums, c.WriteQueueNums = int32(queues), int32(queues)
		return &c, nil
	})
	if err == nil {
		b.registry.announce(ctx, registerTimeout)
	}
	return err
}

// CreateGroup makes a consumer group, also when groups are not created
// automatically; one that is there stays as it is. It returns when the group is
// stored, and needs a broker that is started (RocketMQ:
// UPDATE_AND_CREATE_SUBSCRIPTIONGROUP).
func (b *Broker) CreateGroup(ctx context.Context, name string) error {
	err := b.life.running()
	if err == nil {
		if fault := nameFault(name, maxGroupLength); fault != "" {
			err = fmt.Errorf("the name %s", fault)
		} else {
			_, err = b.groups.create(ctx, name)
		}
	}
	return b.operated("create consumer group "+name, err)
}

// operated is the error of one of the broker's own methods.
func (b *Broker) operated(op string, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, storage.ErrClosed): // meanwhile
		err = ErrClosed
	case errors.Is(err, storage.ErrFailed):
		err = fmt.Errorf("%w: %w", ErrUnavailable, err)
	case errors.Is(err, storage.ErrBusy):
		err = fmt.Errorf("%w: %w", ErrBrokerBusy, err)
	}
	return &operationError{"mq: " + op, err}
}

// handleCreateTopic serves UPDATE_AND_CREATE_TOPIC.
func (b *Broker) handleCreateTopic(ctx context.Context, _ transport.Conn, req *transport.Frame, reply func(*transport.Frame)) {
	h, err := transport.HeaderOf[wire.CreateTopicRequest](req)
	if err != nil {
		reply(respond(wire.SystemError, err.Error()))
		return
	}
	if err := b.checkTopicChange(h); err != nil {
		reply(b.refusal(err))
		return
	}
	c := wire.TopicConfig{TopicName: h.Topic, ReadQueueNums: h.ReadQueueNums, WriteQueueNums: h.WriteQueueNums, Perm: h.Perm,
		TopicFilterType: orText(h.TopicFilterType, singleTag), TopicSysFlag: h.TopicSysFlag, Order: h.Order}
	_, err = b.topics.change(ctx, h.Topic, func(*brokerTopic) (*wire.TopicConfig, error) { return &c, nil })
	if err != nil {
		reply(b.refusal(err))
		return
	}
	b.registry.announce(ctx, registerTimeout)
	reply(respond(wire.Success, ""))
}

func (b *Broker) checkTopicChange(h *wire.CreateTopicRequest) error {
	if err := checkTopicName(h.Topic); err != nil {
		return refused(wire.SystemError, "%v", err)
	}
	if b.isSystemTopic(h.Topic) {
		return refused(wire.SystemError, "the topic[%s] is conflict with system topic", h.Topic)
	}
	if h.ReadQueueNums < 0 || h.WriteQueueNums < 0 || h.ReadQueueNums+h.WriteQueueNums == 0 ||
		h.ReadQueueNums > maxQueues || h.WriteQueueNums > maxQueues {
		return refused(wire.SystemError, "topic[%s]: %d read and %d write queues, want 1 to %d", h.Topic, h.ReadQueueNums,
			h.WriteQueueNums, maxQueues)
	}
	if h.Perm < 0 || h.Perm > permAll|wire.PermPriority {
		return refused(wire.SystemError, "topic[%s]: permission %d, want a sum of read 4, write 2 and inherit 1", h.Topic, h.Perm)
	}
	return nil
}

// handleDeleteTopic serves DELETE_TOPIC_IN_BROKER: messages, configuration and
// the group offsets on the topic go. A topic that is not there is gone.
func (b *Broker) handleDeleteTopic(ctx context.Context, _ transport.Conn, req *transport.Frame, reply func(*transport.Frame)) {
	h, err := transport.HeaderOf[wire.DeleteTopicRequest](req)
	if err != nil {
		reply(respond(wire.SystemError, err.Error()))
		return
	}
	if err := checkTopicName(h.Topic); err != nil {
		reply(respond(wire.SystemError, err.Error()))
		return
	}
	if b.isSystemTopic(h.Topic) {
		reply(respond(wire.SystemError, fmt.Sprintf("the topic[%s] is conflict with system topic", h.Topic)))
		return
	}
	if _, ok := b.topics.lookup(h.Topic); ok {
		if err := b.topics.remove(ctx, h.Topic); err != nil {
			reply(b.refusal(err))
			return
		}
		b.registry.announce(ctx, registerTimeout)
	}
	reply(respond(wire.Success, ""))
}

// handleTopicConfigs serves GET_ALL_TOPIC_CONFIG.
func (b *Broker) handleTopicConfigs(_ context.Context, _ transport.Conn, _ *transport.Frame, reply func(*transport.Frame)) {
	table := wire.TopicConfigTable{DataVersion: b.topics.dataVersion(), Topics: make(map[string]wire.TopicConfig)}
	for _, t := range b.topics.all() {
		table.Topics[t.name] = *t.conf()
	}
	reply(answer(nil, table.Marshal()))
}

// handleSystemTopics serves GET_SYSTEM_TOPIC_LIST_FROM_BROKER.
func (b *Broker) handleSystemTopics(_ context.Context, _ transport.Conn, _ *transport.Frame, reply func(*transport.Frame)) {
	list := wire.TopicList{Topics: []string{}}
	for _, t := range b.topics.all() {
		if b.isSystemTopic(t.name) {
			list.Topics = append(list.Topics, t.name)
		}
	}
	reply(answer(nil, list.Marshal()))
}

// handleConfig serves GET_BROKER_CONFIG.
func (b *Broker) handleConfig(_ context.Context, _ transport.Conn, _ *transport.Frame, reply func(*transport.Frame)) {
	version := string(b.settings.Load().version.Marshal())
	reply(answer(&wire.BrokerConfigResponse{Version: version}, wire.FormatConfig(b.settingsTable())))
}

// settingsBlackList are the keys that no request may set (RocketMQ:
// configBlackList).
var settingsBlackList = []string{"configBlackList", "brokerConfigPath"}

// handleUpdateConfig serves UPDATE_BROKER_CONFIG. Keys without effect are kept and
// shown again, as RocketMQ does.
func (b *Broker) handleUpdateConfig(ctx context.Context, _ transport.Conn, req *transport.Frame, reply func(*transport.Frame)) {
	if len(req.Body) > maxSettingsLen {
		reply(respond(wire.SystemError, fmt.Sprintf("settings of %d bytes, the limit is %d", len(req.Body), maxSettingsLen)))
		return
	}
	values, err := wire.ParseConfig(req.Body)
	if err != nil {
		reply(respond(wire.SystemError, err.Error()))
		return
	}
	for _, key := range settingsBlackList {
		if _, ok := values[key]; ok {
			reply(respond(wire.NoPermission, fmt.Sprintf("can not update config %s, it is in the black list", key)))
			return
		}
	}
	if err := b.changeSettings(ctx, values); err != nil {
		reply(b.refusal(err))
		return
	}
	reply(answer(nil, nil))
}

// handleRuntimeInfo serves GET_BROKER_RUNTIME_INFO.
func (b *Broker) handleRuntimeInfo(_ context.Context, _ transport.Conn, _ *transport.Frame, reply func(*transport.Frame)) {
	table := map[string]string{}
	b.stats.runtime(table, time.Now())
	number := func(key string, n int64) { table[key] = strconv.FormatInt(n, 10) }
	table["brokerVersionDesc"] = versionName
	number("brokerVersion", protocolVersion)
	if ms, err := b.store.EarliestLogTime(); err == nil {
		number("earliestMessageTimeStamp", ms)
	} else {
		b.log.Debug("earliest store time", "err", err)
	}
	number("commitLogMinOffset", b.store.LogStart())
	number("commitLogMaxOffset", b.store.LogEnd())
	number("startAcceptSendRequestTimeStamp", b.settings.Load().acceptSendsFrom)
	number("sendThreadPoolQueueSize", b.sends.count.Load())
	number("sendThreadPoolQueueCapacity", maxPendingSends)
	for _, key := range []string{"sendThreadPoolQueueHeadWaitTimeMills", "pullThreadPoolQueueSize", "pullThreadPoolQueueHeadWaitTimeMills",
		"queryThreadPoolQueueSize", "queryThreadPoolQueueHeadWaitTimeMills", "EndTransactionQueueSize", "dispatchBehindBytes",
		"pageCacheLockTimeMills", "remainHowManyDataToCommit", "remainHowManyDataToFlush"} {
		table[key] = "0" // nothing here works as these count, and tools want a number
	}
	reply(answer(nil, (&wire.KVTable{Table: table}).Marshal()))
}

const versionName = "V4_9_8"
