package mq

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pocketmq/mq/internal/wire"
	"github.com/pocketmq/mq/storage"
	"github.com/pocketmq/mq/transport"
)

const (
	metaGroup       = "group"
	keyGroupVersion = "groups"

	// systemGroupPrefix marks groups that exist even when groups are not created
	// automatically.
	systemGroupPrefix = "CID_RMQ_SYS_"
)

// A brokerGroup is a consumer group that the broker knows, online or not.
type brokerGroup struct {
	name   string
	config atomic.Pointer[wire.SubscriptionGroupConfig]
}

// conf returns the group's configuration as of now.
func (g *brokerGroup) conf() *wire.SubscriptionGroupConfig { return g.config.Load() }

// groupTable knows the consumer groups. Look-ups take no lock. Changes of one
// group happen one after the other; no lock is held while they are stored.
type groupTable struct {
	b      *Broker
	byName sync.Map // string to *brokerGroup

	mu      sync.Mutex
	version wire.DataVersion
	busy    map[string]chan struct{} // names being changed; closed when that is done
}

// groupRecord is a group's configuration as it is stored.
type groupRecord struct {
	Consume, FromMin, Broadcast, Notify bool
	RetryQueues, RetryTimes             int32
	Broker, SlowBroker                  int64
}

func newGroupTable(b *Broker) *groupTable {
	return &groupTable{b: b, busy: make(map[string]chan struct{})}
}

// load reads the stored groups. ctx is looked at once, before.
func (gt *groupTable) load(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	gt.version = wire.DataVersion{Timestamp: time.Now().UnixMilli()}
	text, ok, err := gt.b.store.Meta(metaBroker, keyGroupVersion)
	if err == nil && ok {
		var v versionRecord
		err = decodeMeta(text, &v)
		gt.version = wire.DataVersion{Timestamp: v.Timestamp, Counter: v.Counter}
	}
	if err != nil {
		return fmt.Errorf("mq: data version of the consumer groups: %w", err)
	}
	err = gt.b.store.ScanMeta(metaGroup, func(name string, value []byte) error {
		var r groupRecord
		if err := decodeMeta(value, &r); err != nil {
			return fmt.Errorf("mq: configuration of consumer group %s: %w", name, err)
		}
		gt.set(wire.SubscriptionGroupConfig{GroupName: name, ConsumeEnable: r.Consume, ConsumeFromMinEnable: r.FromMin,
			ConsumeBroadcastEnable: r.Broadcast, NotifyConsumerIDsChangedEnable: r.Notify, RetryQueueNums: r.RetryQueues,
			RetryMaxTimes: r.RetryTimes, BrokerID: r.Broker, WhichBrokerWhenConsumeSlowly: r.SlowBroker})
		return nil
	})
	if err != nil {
		return fmt.Errorf("mq: load consumer groups: %w", err)
	}
	return nil
}

func (gt *groupTable) set(c wire.SubscriptionGroupConfig) *brokerGroup {
	g := &brokerGroup{name: c.GroupName}
	if v, ok := gt.byName.Load(c.GroupName); ok {
		g = v.(*brokerGroup)
	}
	g.config.Store(&c)
	gt.byName.Store(c.GroupName, g)
	return g
}

// lookup returns the group of that name.
func (gt *groupTable) lookup(name string) (*brokerGroup, bool) {
	v, ok := gt.byName.Load(name)
	if !ok {
		return nil, false
	}
	return v.(*brokerGroup), true
}

// ensure returns the group, made durable with the default configuration when
// there was none and groups may be created automatically. Otherwise the error is
// ErrGroupNotFound.
func (gt *groupTable) ensure(ctx context.Context, name string) (*brokerGroup, error) {
	if g, ok := gt.lookup(name); ok {
		return g, nil
	}
	if !gt.b.settings.Load().autoCreateGroup && !strings.HasPrefix(name, systemGroupPrefix) {
		return nil, &groupMissing{name, "and groups are not created automatically; create it first (Broker.CreateGroup, or mqadmin updateSubGroup)"}
	}
	if err := checkGroupName(name); err != nil {
		return nil, &groupMissing{name, "and cannot be created: " + err.Error()}
	}
	return gt.create(ctx, name)
}

// A groupMissing says of a group that is not there why it was not created.
type groupMissing struct{ name, why string }

func (e *groupMissing) Error() string {
	return fmt.Sprintf("subscription group [%s] does not exist, %s", e.name, e.why)
}
func (e *groupMissing) Is(target error) bool { return target == ErrGroupNotFound }

// create makes a group with the default configuration when there is none.
func (gt *groupTable) create(ctx context.Context, name string) (*brokerGroup, error) {
	return gt.change(ctx, name, func(old *brokerGroup) *wire.SubscriptionGroupConfig {
		if old != nil {
			return nil
		}
		c := wire.DefaultSubscriptionGroupConfig(name)
		return &c
	})
}

// update replaces a group's configuration, or creates the group.
func (gt *groupTable) update(ctx context.Context, c wire.SubscriptionGroupConfig) error {
	_, err := gt.change(ctx, c.GroupName, func(*brokerGroup) *wire.SubscriptionGroupConfig { return &c })
	return err
}

// change applies what decide makes of the group's present state: nil leaves it as
// it is.
func (gt *groupTable) change(ctx context.Context, name string, decide func(old *brokerGroup) *wire.SubscriptionGroupConfig) (*brokerGroup, error) {
	unlock, err := gt.lock(ctx, name)
	if err != nil {
		return nil, err
	}
	defer unlock()
	old, _ := gt.lookup(name)
	c := decide(old)
	if c == nil {
		return old, nil
	}
	value, err := encodeMeta(groupRecord{Consume: c.ConsumeEnable, FromMin: c.ConsumeFromMinEnable, Broadcast: c.ConsumeBroadcastEnable,
		Notify: c.NotifyConsumerIDsChangedEnable, RetryQueues: c.RetryQueueNums, RetryTimes: c.RetryMaxTimes,
		Broker: c.BrokerID, SlowBroker: c.WhichBrokerWhenConsumeSlowly})
	if err != nil {
		return nil, err
	}
	if err := gt.apply(ctx, storage.PutMeta(metaGroup, name, value)); err != nil {
		return nil, fmt.Errorf("mq: store configuration of consumer group %s: %w", name, err)
	}
	g := gt.set(*c)
	gt.b.log.Info("consumer group changed", "group", name, "new", old == nil)
	return g, nil
}

// remove forgets a group's configuration, and with offsets its progress too. It
// returns ErrGroupNotFound when there is none.
func (gt *groupTable) remove(ctx context.Context, name string, offsets bool) error {
	unlock, err := gt.lock(ctx, name)
	if err != nil {
		return err
	}
	defer unlock()
	if _, ok := gt.lookup(name); !ok {
		return fmt.Errorf("%w: %s", ErrGroupNotFound, name)
	}
	if offsets {
		if err := gt.b.store.DeleteGroup(ctx, name); err != nil {
			return fmt.Errorf("mq: delete offsets of consumer group %s: %w", name, err)
		}
	}
	if err := gt.apply(ctx, storage.DeleteMeta(metaGroup, name)); err != nil {
		return fmt.Errorf("mq: delete configuration of consumer group %s: %w", name, err)
	}
	gt.byName.Delete(name)
	gt.b.stats.forgetGroup(name)
	gt.b.log.Info("consumer group deleted", "group", name)
	return nil
}

// apply stores a change together with the data version it leads to.
func (gt *groupTable) apply(ctx context.Context, change storage.Change) error {
	gt.mu.Lock()
	gt.version.Timestamp = time.Now().UnixMilli()
	gt.version.Counter++
	v := versionRecord{gt.version.Timestamp, gt.version.Counter}
	gt.mu.Unlock()
	value, err := encodeMeta(v)
	if err != nil {
		return err
	}
	return gt.b.store.Apply(ctx, &storage.Request{Changes: []storage.Change{change,
		storage.PutMeta(metaBroker, keyGroupVersion, value)}})
}

// lock waits until no other change of the name is under way.
func (gt *groupTable) lock(ctx context.Context, name string) (unlock func(), err error) {
	for {
		gt.mu.Lock()
		other, taken := gt.busy[name]
		if !taken {
			mine := make(chan struct{})
			gt.busy[name] = mine
			gt.mu.Unlock()
			return func() {
				gt.mu.Lock()
				delete(gt.busy, name)
				gt.mu.Unlock()
				close(mine)
			}, nil
		}
		gt.mu.Unlock()
		select {
		case <-other:
		case <-ctx.Done():
			return nil, fmt.Errorf("mq: another change of consumer group %s is under way: %w", name, ctx.Err())
		}
	}
}

// table returns every group's configuration.
func (gt *groupTable) table() wire.SubscriptionGroupTable {
	gt.mu.Lock()
	t := wire.SubscriptionGroupTable{DataVersion: gt.version, Groups: make(map[string]wire.SubscriptionGroupConfig)}
	gt.mu.Unlock()
	gt.byName.Range(func(name, g any) bool {
		t.Groups[name.(string)] = *g.(*brokerGroup).conf()
		return true
	})
	return t
}

// checkGroupName applies RocketMQ's rules for the names of groups.
func checkGroupName(name string) error {
	switch {
	case strings.TrimSpace(name) == "":
		return errors.New("the specified group is blank")
	case len(name) > wire.MaxGroupBytes:
		return fmt.Errorf("the specified group is longer than group max length %d", wire.MaxGroupBytes)
	}
	if i := strings.IndexFunc(name, func(r rune) bool {
		return !('a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9' || strings.ContainsRune("_-%|", r))
	}); i >= 0 {
		return fmt.Errorf("the specified group[%s] contains illegal characters, allowing only ^[%%|a-zA-Z0-9_-]+$", name)
	}
	return nil
}

// groupRefusal is the answer when a group is not there and could not be created.
func groupRefusal(group string, err error) *transport.Frame {
	if errors.Is(err, ErrGroupNotFound) {
		return respond(wire.SubscriptionGroupNotExist, err.Error())
	}
	return storeRefusal("consumer group "+group, err)
}

func (b *Broker) handleUpdateGroup(ctx context.Context, _ transport.Conn, req *transport.Frame, reply func(*transport.Frame)) {
	c, err := wire.ParseSubscriptionGroupConfig(req.Body)
	if err == nil {
		err = checkGroupName(c.GroupName)
	}
	if err == nil && c.RetryQueueNums > maxQueues {
		err = fmt.Errorf("retryQueueNums %d is above %d", c.RetryQueueNums, maxQueues)
	}
	if err != nil {
		reply(refuseMalformed(err))
		return
	}
	if err := b.groups.update(ctx, c); err != nil {
		reply(storeRefusal("consumer group "+c.GroupName, err))
		return
	}
	reply(answer(nil, nil))
}

func (b *Broker) handleGroups(_ context.Context, _ transport.Conn, _ *transport.Frame, reply func(*transport.Frame)) {
	t := b.groups.table()
	reply(answer(nil, t.Marshal()))
}

func (b *Broker) handleDeleteGroup(ctx context.Context, _ transport.Conn, req *transport.Frame, reply func(*transport.Frame)) {
	handled(req, reply, func(h *wire.DeleteGroupRequest) *transport.Frame {
		err := b.groups.remove(ctx, h.GroupName, h.RemoveOffset)
		if err != nil && !errors.Is(err, ErrGroupNotFound) { // deleting what is not there succeeds, as in RocketMQ
			return storeRefusal("consumer group "+h.GroupName, err)
		}
		return answer(nil, nil)
	})
}
