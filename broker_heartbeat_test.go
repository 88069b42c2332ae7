package mq

import (
	"bytes"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pocketmq/mq/internal/wire"
	"github.com/pocketmq/mq/transport"
)

// notified returns the groups of the notifications that came since it was asked
// last.
func notified(notes <-chan string) []string {
	synctest.Wait()
	var groups []string
	for {
		select {
		case g := <-notes:
			groups = append(groups, g)
		default:
			return groups
		}
	}
}

func wantNotes(t *testing.T, notes <-chan string, want ...string) {
	t.Helper()
	if got := notified(notes); !slices.Equal(got, want) {
		t.Errorf("notified of %v, want %v", got, want)
	}
}

func TestAHeartbeatMakesGroupAndRetryTopic(t *testing.T) {
	r := startBroker(t, BrokerConfig{})
	r.updateGroup(func(c *wire.SubscriptionGroupConfig) { c.RetryQueueNums = 3 }, "three")
	r.updateGroup(func(c *wire.SubscriptionGroupConfig) { c.RetryQueueNums = 0 }, "none")
	beat := wire.Heartbeat{ClientID: "c", Producers: []wire.ProducerData{{GroupName: "p"}}, Consumers: []wire.ConsumerData{
		{GroupName: "fresh"}, {GroupName: "three"}, {GroupName: "none"}}}
	f := r.must(wire.CodeHeartBeat, nil, beat.Marshal())
	if f.Version != protocolVersion {
		t.Errorf("answer of version %d, clients learn the broker's from it", f.Version)
	}
	if _, ok := r.groups.lookup("fresh"); !ok {
		t.Error("the group is not there when the heartbeat is answered")
	}
	for name, queues := range map[string]int32{"%RETRY%fresh": 1, "%RETRY%three": 3} {
		topic, ok := r.topics.lookup(name)
		if !ok {
			t.Errorf("%s is not there when the heartbeat is answered", name)
			continue
		}
		if c := topic.conf(); c.ReadQueueNums != queues || c.WriteQueueNums != queues || c.Perm != permRW {
			t.Errorf("%s: %+v", name, c)
		}
	}
	if _, ok := r.topics.lookup("%RETRY%none"); ok {
		t.Error("a group without retry queues has a retry topic")
	}
}

func TestWithoutAutomaticGroupsAHeartbeatStillEntersTheMember(t *testing.T) {
	r := startBroker(t, BrokerConfig{DisableAutoCreateGroup: true})
	r.beat("c", "g", tagSub("t", "*"))
	if _, ok := r.groups.lookup("g"); ok {
		t.Error("the group was created")
	}
	if got := r.clients("g"); !slices.Equal(got, []string{"c"}) {
		t.Errorf("members %v", got)
	}
}

func TestMembersAreNotifiedOfEachChange(t *testing.T) {
	inBubble(t, BrokerConfig{}, func(t *testing.T, r *rawBroker) {
		a, notesA := r.beside()
		b, notesB := r.beside()
		a.beat("a", "g", tagSub("t", "*"))
		wantNotes(t, notesA, "g")
		b.beat("b", "g", tagSub("t", "*"))
		wantNotes(t, notesA, "g")
		wantNotes(t, notesB, "g")
		a.beat("a", "g", tagSub("t", "*"))
		wantNotes(t, notesA)
		if got := r.clients("g"); !slices.Equal(got, []string{"a", "b"}) {
			t.Errorf("members %v", got)
		}
		b.must(wire.CodeUnregisterClient, &wire.UnregisterClientRequest{ClientID: "b", ConsumerGroup: "g"}, nil)
		wantNotes(t, notesA, "g")
		wantNotes(t, notesB)
		b.beat("b", "g", tagSub("t", "*"))
		wantNotes(t, notesA, "g")
		if err := b.conn.Close(); err != nil {
			t.Fatal(err)
		}
		wantNotes(t, notesA, "g")
		if got := r.clients("g"); !slices.Equal(got, []string{"a"}) {
			t.Errorf("members %v after b's connection closed", got)
		}
	})
}

func TestAGroupMayForbidNotifications(t *testing.T) {
	inBubble(t, BrokerConfig{}, func(t *testing.T, r *rawBroker) {
		r.updateGroup(func(c *wire.SubscriptionGroupConfig) { c.NotifyConsumerIDsChangedEnable = false }, "g")
		a, notes := r.beside()
		a.beat("a", "g", tagSub("t", "*"))
		wantNotes(t, notes)
	})
}

func TestASilentMemberExpiresAndTheOthersAreTold(t *testing.T) {
	inBubble(t, BrokerConfig{}, func(t *testing.T, r *rawBroker) {
		lives, notes := r.beside()
		silent, _ := r.beside()
		lives.beat("lives", "g", tagSub("t", "*"))
		silent.beat("silent", "g", tagSub("t", "*"))
		start := time.Now()
		notified(notes)
		for r.isMember("g", "silent") {
			time.Sleep(time.Second)
			lives.beat("lives", "g", tagSub("t", "*"))
			if time.Since(start) > time.Hour {
				t.Fatal("the silent member never expires")
			}
		}
		if took := time.Since(start); took <= memberLifetime || took > memberLifetime+memberScan+time.Second {
			t.Errorf("expired after %v, want 120 s and at most one scan", took)
		}
		wantNotes(t, notes, "g")
		select {
		case <-silent.conn.Done():
		default:
			t.Error("the silent member's connection is open")
		}
	})
}

func (r *rawBroker) isMember(group, client string) bool {
	return slices.Contains(r.clients(group), client)
}

func TestNobodyInAGroupIsAnError(t *testing.T) {
	r := startBroker(t, BrokerConfig{})
	r.refused(r.call(wire.CodeGetConsumerListByGroup, &wire.ConsumerListRequest{ConsumerGroup: "g"}, nil), wire.SystemError, "no consumer for this group")
	r.refused(r.call(wire.CodeGetConsumerConnectionList, &wire.ConsumerConnectionRequest{ConsumerGroup: "g"}, nil), wire.ConsumerNotOnline, "g")
	r.refused(r.call(wire.CodeGetProducerConnectionList, &wire.ProducerConnectionRequest{ProducerGroup: "g"}, nil), wire.SystemError, "g")
}

// What other implementations really send: missing and null members, members and
// names unknown here, numbers as text.
func TestHeartbeatsOfAllKindsAreTaken(t *testing.T) {
	r := startBroker(t, BrokerConfig{})
	for body, group := range map[string]string{
		`{"clientID":"c","consumerDataSet":[{"groupName":"g1"}],"producerDataSet":null}`:                                                       "g1",
		`{"clientID":"c","consumerDataSet":[{"groupName":"g2","consumeFromWhere":"UNKNOWN","subscriptionDataSet":null}],"extra":{"a":[1,{}]}}`: "g2",
		`{"clientID":"c","heartbeatFingerprint":0,"consumerDataSet":[{"groupName":"g3","consumeType":"CONSUME_PASSIVELY","messageModel":"CLUSTERING",` +
			`"subscriptionDataSet":[{"topic":"t","subString":"A","codeSet":["65"],"tagsSet":["A"],"subVersion":"12","classFilterMode":null}]}]}`: "g3",
		`{"clientID":"c","consumerDataSet":[{"groupName":"g4","consumeType":1,"messageModel":1,"consumeFromWhere":0}]}`: "g4",
	} {
		r.must(wire.CodeHeartBeat, nil, []byte(body))
		if !r.isMember(group, "c") {
			t.Errorf("%s: not a member of %s", body, group)
		}
	}
	if v, state := r.members.subscription("g3", "t"); state != subscribed || v.version != 12 || !v.tags.takes("A") {
		t.Errorf("subscription %+v, state %d", v, state)
	}
	r.must(wire.CodeHeartBeat, nil, []byte(`{}`))
}

func TestAHeartbeatThatMakesNoSenseIsRefusedWithAReason(t *testing.T) {
	r := startBroker(t, BrokerConfig{})
	r.refused(r.call(wire.CodeHeartBeat, nil, []byte("{")), wire.SystemError, "heartbeat")
	f := r.call(wire.CodeHeartBeat, nil, []byte(`{"clientID":"c","consumerDataSet":[{"groupName":"bad","messageModel":"SOMETHING"},{"groupName":"good"}]}`))
	r.refused(f, wire.SystemError, "SOMETHING")
	if r.isMember("bad", "c") || !r.isMember("good", "c") {
		t.Error("want the client's sound group only")
	}
}

func TestConnectionsOfGroupsAreListed(t *testing.T) {
	r := startBroker(t, BrokerConfig{})
	beat := wire.Heartbeat{ClientID: "c", Producers: []wire.ProducerData{{GroupName: "p"}}, Consumers: []wire.ConsumerData{
		{GroupName: "g", ConsumeType: wire.ConsumeActively, MessageModel: wire.Broadcasting, ConsumeFromWhere: wire.FromTimestamp,
			Subscriptions: []wire.SubscriptionData{tagSub("t", "A||B")}}}}
	r.must(wire.CodeHeartBeat, nil, beat.Marshal())
	consumers, err := wire.ParseConsumerConnection(r.must(wire.CodeGetConsumerConnectionList, &wire.ConsumerConnectionRequest{ConsumerGroup: "g"}, nil).Body)
	if err != nil {
		t.Fatal(err)
	}
	want := wire.Connection{ClientAddr: r.conn.LocalAddr(), ClientID: "c", Language: "GO", Version: protocolVersion}
	if len(consumers.Connections) != 1 || consumers.Connections[0] != want {
		t.Errorf("connections %+v, want %+v", consumers.Connections, want)
	}
	if consumers.ConsumeType != wire.ConsumeActively || consumers.MessageModel != wire.Broadcasting || consumers.ConsumeFromWhere != wire.FromTimestamp {
		t.Errorf("%+v", consumers)
	}
	if s := consumers.Subscriptions["t"]; s.SubString != "A||B" || len(s.TagsSet) != 2 {
		t.Errorf("subscription %+v", s)
	}
	producers, err := wire.ParseProducerConnection(r.must(wire.CodeGetProducerConnectionList, &wire.ProducerConnectionRequest{ProducerGroup: "p"}, nil).Body)
	if err != nil || len(producers.Connections) != 1 || producers.Connections[0] != want {
		t.Errorf("producers %+v, %v", producers, err)
	}
	r.must(wire.CodeUnregisterClient, &wire.UnregisterClientRequest{ClientID: "c", ProducerGroup: "p"}, nil)
	r.refused(r.call(wire.CodeGetProducerConnectionList, &wire.ProducerConnectionRequest{ProducerGroup: "p"}, nil), wire.SystemError, "p")
}

func TestClientsLearnBeforeTheyStartWhetherTheirFilterIsUnderstood(t *testing.T) {
	r := startBroker(t, BrokerConfig{})
	check := func(kind string) *transport.Frame {
		c := wire.CheckClientConfig{ClientID: "c", Group: "g", Subscription: wire.SubscriptionData{Topic: "t", SubString: "a > 1", ExpressionType: kind}}
		return r.call(wire.CodeCheckClientConfig, nil, c.Marshal())
	}
	r.refused(check(wire.ExpressionTag), wire.Success, "")
	r.refused(check(""), wire.Success, "")
	r.refused(check(wire.ExpressionSQL92), wire.SystemError, noSQL92)
	r.refused(r.call(wire.CodeCheckClientConfig, nil, []byte("[]")), wire.SystemError, "client configuration")
}

// A lockedBuffer takes log lines from several goroutines.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) count(text string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.b.String(), text)
}

func TestClashesInAGroupAreLoggedOnce(t *testing.T) {
	var log lockedBuffer
	cfg := BrokerConfig{Logger: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelWarn}))}
	inBubble(t, cfg, func(_ *testing.T, r *rawBroker) {
		other, _ := r.beside()
		for range 3 {
			r.beat("same", "g", tagSub("t", "A"))
			other.beat("same", "g", tagSub("t", "B"))
			time.Sleep(time.Minute)
		}
	})
	for _, text := range []string{"one client id", "subscribe to different things"} {
		if n := log.count(text); n != 1 {
			t.Errorf("%q logged %d times, want once", text, n)
		}
	}
}

func TestLocksOverTheWire(t *testing.T) {
	inBubble(t, BrokerConfig{}, func(t *testing.T, r *rawBroker) {
		request := func(code int32, client string, ids ...int32) *transport.Frame {
			q := wire.LockBatchRequest{ClientID: client, ConsumerGroup: "g", Queues: lockQueues(ids...)}
			return r.must(code, nil, q.Marshal())
		}
		lock := func(client string, ids ...int32) []wire.MessageQueue {
			res, err := wire.ParseLockBatchResponse(request(wire.CodeLockBatchMQ, client, ids...).Body)
			if err != nil {
				t.Fatal(err)
			}
			slices.SortFunc(res.Locked, wire.MessageQueue.Compare)
			return res.Locked
		}
		want := func(got []wire.MessageQueue, ids ...int32) {
			t.Helper()
			if !slices.Equal(got, lockQueues(ids...)) {
				t.Errorf("granted %v, want %v", got, ids)
			}
		}
		want(lock("a", 0, 1), 0, 1)
		want(lock("b", 0, 1, 2), 2)
		request(wire.CodeUnlockBatchMQ, "a", 0)
		want(lock("b", 0, 1), 0)
		time.Sleep(lockLifetime + time.Millisecond)
		want(lock("c", 0, 1, 2), 0, 1, 2)
		r.refused(r.call(wire.CodeLockBatchMQ, nil, []byte("x")), wire.SystemError, "lock request")
		r.refused(r.call(wire.CodeUnlockBatchMQ, nil, nil), wire.SystemError, "lock request")
	})
}
