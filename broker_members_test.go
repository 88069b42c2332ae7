package mq

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/pocketmq/mq/internal/wire"
	"github.com/pocketmq/mq/transport"
)

// A silentConn is a connection that only is one.
type silentConn struct {
	name string
	done chan struct{}
}

var errSilent = errors.New("nobody there")

func newSilentConn(name string) *silentConn { return &silentConn{name, make(chan struct{})} }

func (c *silentConn) Call(context.Context, *transport.Frame) (*transport.Frame, error) {
	return nil, errSilent
}

func (c *silentConn) Go(context.Context, *transport.Frame, time.Time, func(*transport.Frame, error)) error {
	return errSilent
}
func (c *silentConn) Send(*transport.Frame) error { return errSilent }
func (c *silentConn) LocalAddr() string           { return "local:1" }
func (c *silentConn) RemoteAddr() string          { return c.name }
func (c *silentConn) Done() <-chan struct{}       { return c.done }
func (c *silentConn) Close() error                { close(c.done); return nil }

type memberFixture struct {
	*memberTable
	now time.Time
}

func newMemberFixture() *memberFixture {
	return &memberFixture{newMemberTable(), time.Unix(1_000_000, 0)}
}

func (f *memberFixture) join(c transport.Conn, client, group string, subs ...wire.SubscriptionData) joined {
	return f.joinConsumer(f.now, member{conn: c, clientID: client},
		&wire.ConsumerData{GroupName: group, MessageModel: wire.Clustering, Subscriptions: subs})
}

func sub(topic, expression string, version int64) wire.SubscriptionData {
	return wire.SubscriptionData{Topic: topic, SubString: expression, SubVersion: version}
}

func TestMembersAreToldOfNewMembersAndTopicsOnly(t *testing.T) {
	f := newMemberFixture()
	a, b := newSilentConn("a"), newSilentConn("b")
	for i, step := range []struct {
		conn transport.Conn
		subs []wire.SubscriptionData
		want bool
	}{
		{a, []wire.SubscriptionData{sub("t", "*", 1)}, true},
		{a, []wire.SubscriptionData{sub("t", "*", 1)}, false},
		{a, []wire.SubscriptionData{sub("t", "A", 2)}, false}, // another expression
		{a, []wire.SubscriptionData{sub("t", "A", 2), sub("u", "*", 1)}, true},
		{a, []wire.SubscriptionData{sub("u", "*", 1)}, true},
		{b, []wire.SubscriptionData{sub("u", "*", 1)}, true},
		{b, []wire.SubscriptionData{sub("u", "*", 1)}, false},
	} {
		if got := f.join(step.conn, step.conn.RemoteAddr(), "g", step.subs...).changed; got != step.want {
			t.Errorf("step %d: changed %v, want %v", i, got, step.want)
		}
	}
}

func TestASubscriptionIsReplacedByAGreaterVersionOnly(t *testing.T) {
	f := newMemberFixture()
	c := newSilentConn("a")
	f.join(c, "a", "g", sub("t", "A", 5))
	f.join(c, "a", "g", sub("t", "B", 5))
	if v, _ := f.subscription("g", "t"); v.version != 5 || !v.tags.takes("A") {
		t.Errorf("an equal version replaced the subscription: version %d, takes A %v", v.version, v.tags.takes("A"))
	}
	f.join(c, "a", "g", sub("t", "C", 4))
	f.join(c, "a", "g", sub("t", "B", 6))
	if v, _ := f.subscription("g", "t"); v.version != 6 || !v.tags.takes("B") || v.tags.takes("A") {
		t.Errorf("version %d, takes B %v, A %v; want 6, B only", v.version, v.tags.takes("B"), v.tags.takes("A"))
	}
}

func TestTopicsThatAreNotListedAreGivenUpForTheWholeGroup(t *testing.T) {
	f := newMemberFixture()
	f.join(newSilentConn("a"), "a", "g", sub("t", "*", 1))
	f.join(newSilentConn("b"), "b", "g", sub("u", "*", 1))
	if _, state := f.subscription("g", "t"); state != notSubscribed {
		t.Errorf("t: state %d, want not subscribed", state)
	}
	if _, state := f.subscription("g", "u"); state != subscribed {
		t.Errorf("u: state %d, want subscribed", state)
	}
	if _, state := f.subscription("h", "u"); state != groupOffline {
		t.Errorf("unknown group: state %d, want offline", state)
	}
}

func TestMembersWithDifferentSubscriptionsAreReportedOnceInAWhile(t *testing.T) {
	f := newMemberFixture()
	a, b := newSilentConn("a"), newSilentConn("b")
	if f.join(a, "a", "g", sub("t", "A", 1), sub("%RETRY%g", "*", 7)).mixed {
		t.Error("a member alone is reported")
	}
	if f.join(b, "b", "g", sub("%RETRY%g", "*", 9), sub("t", "A", 2)).mixed {
		t.Error("equal subscriptions are reported")
	}
	if !f.join(b, "b", "g", sub("t", "B", 3)).mixed {
		t.Error("different subscriptions are not reported")
	}
	if f.join(a, "a", "g", sub("t", "A", 1)).mixed {
		t.Error("reported twice at once")
	}
	f.now = f.now.Add(clashLogEvery)
	if !f.join(a, "a", "g", sub("t", "A", 1)).mixed {
		t.Error("not reported again after a while")
	}
}

func TestOneClientIDOnTwoConnectionsIsReportedAndCountsOnce(t *testing.T) {
	f := newMemberFixture()
	a, b := newSilentConn("a"), newSilentConn("b")
	if f.join(a, "x", "g").clash {
		t.Error("a member alone is reported")
	}
	if !f.join(b, "x", "g").clash {
		t.Error("the clash is not reported")
	}
	if f.join(a, "x", "g").clash {
		t.Error("reported twice at once")
	}
	f.join(newSilentConn("c"), "w", "g")
	if ids := f.clientIDs("g"); !slices.Equal(ids, []string{"w", "x"}) {
		t.Errorf("ids %v, want each once and sorted", ids)
	}
	if conns := f.connections("g"); len(conns) != 3 {
		t.Errorf("%d connections to notify, want all 3", len(conns))
	}
}

func TestAClosedConnectionLeavesAllItsGroups(t *testing.T) {
	f := newMemberFixture()
	a, b := newSilentConn("a"), newSilentConn("b")
	f.join(a, "a", "g")
	f.join(a, "a", "h")
	f.join(b, "b", "g")
	f.joinProducer(f.now, member{conn: a, clientID: "a"}, "p")
	if got := f.drop(a); !slices.Equal(got, []string{"g", "h"}) {
		t.Errorf("left %v, want g and h", got)
	}
	if got := f.drop(a); len(got) != 0 {
		t.Errorf("left %v a second time", got)
	}
	if ids := f.clientIDs("g"); !slices.Equal(ids, []string{"b"}) {
		t.Errorf("members of g: %v, want b", ids)
	}
	if _, online := f.consumerConnection("h"); online {
		t.Error("h has no member and is online")
	}
	if _, online := f.producerConnection("p"); online {
		t.Error("p has no member and is online")
	}
	f.drop(b)
	if n := len(f.consumers) + len(f.producers) + len(f.conns); n != 0 {
		t.Errorf("%d entries left when everybody is gone", n)
	}
}

func TestAMemberWithoutHeartbeatExpiresAndItsIdleConnectionWithIt(t *testing.T) {
	f := newMemberFixture()
	a, b := newSilentConn("a"), newSilentConn("b")
	f.join(a, "a", "g")
	f.joinProducer(f.now, member{conn: a}, "p")
	f.join(b, "b", "g")
	f.join(b, "b", "h")
	f.now = f.now.Add(memberLifetime)
	f.join(b, "b", "h")
	if groups, dead := f.expire(f.now); len(groups) != 0 || len(dead) != 0 {
		t.Fatalf("at exactly the lifetime %v and %v expired", groups, dead)
	}
	groups, dead := f.expire(f.now.Add(1))
	if !slices.Equal(groups, []string{"g"}) {
		t.Errorf("groups %v lost a member, want g", groups)
	}
	if len(dead) != 1 || dead[0] != transport.Conn(a) {
		t.Errorf("%d connections to close, want a alone, b is still in h", len(dead))
	}
	if ids := f.clientIDs("h"); !slices.Equal(ids, []string{"b"}) {
		t.Errorf("members of h: %v, want b", ids)
	}
}

func TestLeavingAGroupOneIsNotInChangesNothing(t *testing.T) {
	f := newMemberFixture()
	a := newSilentConn("a")
	f.join(a, "a", "g")
	if f.leaveConsumer(newSilentConn("b"), "g") || f.leaveConsumer(a, "h") {
		t.Error("a stranger left")
	}
	f.leaveProducer(a, "p")
	if !f.leaveConsumer(a, "g") {
		t.Error("the member did not leave")
	}
	if len(f.conns) != 0 {
		t.Error("the connection is still remembered")
	}
}
