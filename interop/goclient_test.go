package interop

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	rocketmq "github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/admin"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

func TestGoClientSendsInEveryWayAndReceives(t *testing.T) {
	c := start(t)
	p, in := c.producer(), newInbox()
	sync1 := c.send(p, "T", 0, 5, func(m *primitive.Message) {
		m.WithTag("TagA").WithKeys([]string{"k1", "k2"}).WithProperty("colour", "blue")
	})
	if r := sync1[0]; r.MsgID == "" || len(r.OffsetMsgID) != 32 || r.MessageQueue.BrokerName != "broker-a" {
		t.Errorf("result %+v", r)
	}

	answered := make(chan error, 5)
	for i := range 5 {
		err := p.SendAsync(t.Context(), func(_ context.Context, r *primitive.SendResult, err error) {
			if err == nil && r.Status != primitive.SendOK {
				err = fmt.Errorf("status %v", r.Status)
			}
			answered <- err
		}, primitive.NewMessage("T", fmt.Appendf(nil, "async %d", i)))
		if err != nil {
			t.Fatal(err)
		}
	}
	for range 5 {
		if err := <-answered; err != nil {
			t.Fatal(err)
		}
	}
	for i := range 5 {
		if err := p.SendOneWay(t.Context(), primitive.NewMessage("T", fmt.Appendf(nil, "oneway %d", i))); err != nil {
			t.Fatal(err)
		}
	}
	var batch []*primitive.Message
	for i := range 5 {
		batch = append(batch, primitive.NewMessage("T", fmt.Appendf(nil, "batch %d", i)).WithTag("TagB"))
	}
	res, err := p.SendSync(t.Context(), batch...)
	if err != nil || res.Status != primitive.SendOK || strings.Count(res.OffsetMsgID, ",") != 4 {
		t.Fatalf("batch: %+v, %v", res, err)
	}
	big := strings.Repeat("compressible ", 1000) // above the client's 4 KiB
	c.send(p, "T", 99, 1, func(m *primitive.Message) { m.Body = []byte(big) })

	c.consume(c.consumer("all", "consumer"), "T", "*", in.listen)
	in.wait(t, 21, 30*time.Second)
	for _, m := range in.all() {
		if m.MsgId == sync1[0].MsgID && (m.GetTags() != "TagA" || m.GetProperty("colour") != "blue" || m.GetKeys() != "k1 k2" || m.OffsetMsgId != sync1[0].OffsetMsgID) {
			t.Errorf("received %+v", m)
		}
	}
	if !slices.Contains(in.bodies(), big) {
		t.Error("the compressed body did not come back as it was sent")
	}
}

func TestGoClientFiltersByTag(t *testing.T) {
	c := start(t)
	p, in := c.producer(), newInbox()
	for i, tag := range []string{"TagA", "TagB", "TagC", ""} {
		c.send(p, "T", 10*i, 3, func(m *primitive.Message) {
			if tag != "" {
				m.WithTag(tag)
			}
		})
	}
	c.consume(c.consumer("some", "consumer"), "T", "TagA || TagC", in.listen)
	in.wait(t, 6, 30*time.Second)
	c.send(p, "T", 90, 1, func(m *primitive.Message) { m.WithTag("TagA") })
	in.wait(t, 7, 30*time.Second) // the ones in between were passed over
	for _, m := range in.all() {
		if tag := m.GetTags(); tag != "TagA" && tag != "TagC" {
			t.Errorf("received %s with tag %q", m.Body, tag)
		}
	}
}

func TestGoClientMembersShareAndTakeOverQueues(t *testing.T) {
	c := start(t)
	p, first, second := c.producer(), newInbox(), newInbox()
	c.send(p, "T", 0, 8, nil)
	one := c.consumer("shared", "one")
	c.consume(one, "T", "*", first.listen)
	first.wait(t, 8, 30*time.Second)
	c.consume(c.consumer("shared", "two"), "T", "*", second.listen)
	deadline := time.Now().Add(60 * time.Second)
	for n := 8; len(second.all()) == 0; n += 4 {
		if time.Now().After(deadline) {
			t.Fatal("the second member got nothing for a minute")
		}
		c.send(p, "T", n, 4, nil)
		waitFor(2 * time.Second)
	}
	if err := one.Shutdown(); err != nil {
		t.Fatal(err)
	}
	want := len(second.bodies()) + 8
	c.send(p, "T", 1000, 8, nil)
	second.wait(t, want, 60*time.Second)
}

// waitFor paces a loop that polls a client which tells nothing.
func waitFor(d time.Duration) { <-time.After(d) }

func TestGoClientConsumesInOrder(t *testing.T) {
	c := start(t)
	p := c.producer(producer.WithQueueSelector(producer.NewHashQueueSelector()))
	for i := range 20 {
		for _, key := range []string{"a", "b", "c"} {
			m := primitive.NewMessage("T", fmt.Appendf(nil, "%s %d", key, i)).WithShardingKey(key)
			if _, err := p.SendSync(t.Context(), m); err != nil {
				t.Fatal(err)
			}
		}
	}
	var mu sync.Mutex
	next, failed, done := map[string]int{}, false, make(chan struct{})
	c.consume(c.consumer("ordered", "consumer", consumer.WithConsumerOrder(true)), "T", "*",
		func(_ context.Context, msgs ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
			mu.Lock()
			defer mu.Unlock()
			for _, m := range msgs {
				key := m.GetShardingKey()
				if want := fmt.Sprintf("%s %d", key, next[key]); string(m.Body) != want {
					t.Errorf("received %s, want %s", m.Body, want)
				}
				if key == "b" && next[key] == 5 && !failed {
					failed = true
					return consumer.SuspendCurrentQueueAMoment, nil
				}
				if next[key]++; next["a"]+next["b"]+next["c"] == 60 {
					close(done)
				}
			}
			return consumer.ConsumeSuccess, nil
		})
	select {
	case <-done:
	case <-time.After(60 * time.Second):
		t.Fatalf("received %v of 20 each", next)
	}
}

func TestGoClientRetriesAndDeadLetters(t *testing.T) {
	c := start(t)
	p, dead := c.producer(), newInbox()
	sent := c.send(p, "T", 0, 1, nil)[0]
	var mu sync.Mutex
	var attempts []int32
	c.consume(c.consumer("failing", "consumer", consumer.WithMaxReconsumeTimes(1)), "T", "*",
		func(ctx context.Context, msgs ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
			mu.Lock()
			defer mu.Unlock()
			attempts = append(attempts, msgs[0].ReconsumeTimes)
			if ctx, ok := primitive.GetConcurrentlyCtx(ctx); ok {
				ctx.DelayLevelWhenNextConsume = 1
			}
			return consumer.ConsumeRetryLater, nil
		})
	deadline := time.Now().Add(60 * time.Second)
	for routeOf(c, "%DLQ%failing") == nil {
		if time.Now().After(deadline) {
			t.Fatalf("no dead letter after attempts %v", attempts)
		}
		waitFor(200 * time.Millisecond)
	}
	c.consume(c.consumer("undertakers", "undertaker"), "%DLQ%failing", "*", dead.listen)
	dead.wait(t, 1, 30*time.Second)
	mu.Lock()
	defer mu.Unlock()
	if len(attempts) != 2 || attempts[1] != 1 {
		t.Errorf("attempts %v, want 0 and 1", attempts)
	}
	if m := dead.all()[0]; m.MsgId != sent.MsgID || m.GetProperty("RETRY_TOPIC") != "T" {
		t.Errorf("dead letter %+v", m)
	}
}

// routeOf asks the official admin for a topic's queues; nil when it has none.
func routeOf(c *cluster, topic string) []*primitive.MessageQueue {
	a, err := admin.NewAdmin(admin.WithResolver(c.resolver()))
	if err != nil {
		c.t.Fatal(err)
	}
	defer a.Close()
	queues, err := a.FetchPublishMessageQueues(c.t.Context(), topic)
	if err != nil {
		return nil
	}
	return queues
}

func TestGoClientDelaysByLevel(t *testing.T) {
	c := start(t)
	p, in := c.producer(), newInbox()
	c.send(p, "T", 0, 1, nil)
	c.consume(c.consumer("delayed", "consumer"), "T", "*", in.listen)
	in.wait(t, 1, 30*time.Second)
	begun := time.Now()
	c.send(p, "T", 1, 1, func(m *primitive.Message) { m.WithDelayTimeLevel(2) })
	in.wait(t, 2, 30*time.Second)
	if took := time.Since(begun); took < 5*time.Second || took > 7*time.Second {
		t.Errorf("a message of level 2 came after %v, want 5 s", took)
	}
}

func TestGoPullConsumerPolls(t *testing.T) {
	c := start(t)
	p := c.producer()
	c.send(p, "T", 0, 20, nil)
	pull, err := rocketmq.NewPullConsumer(consumer.WithNsResolver(c.resolver()), consumer.WithGroupName("pullers"),
		consumer.WithInstance(instance(t, "puller")), consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset))
	if err != nil {
		t.Fatal(err)
	}
	if err := pull.Subscribe("T", consumer.MessageSelector{Type: consumer.TAG, Expression: "*"}); err != nil {
		t.Fatal(err)
	}
	if err := pull.Start(); err != nil {
		t.Fatal(err)
	}
	defer pull.Shutdown()
	seen := map[string]bool{}
	for deadline := time.Now().Add(60 * time.Second); len(seen) < 20; {
		if time.Now().After(deadline) {
			t.Fatalf("%d of 20 messages polled", len(seen))
		}
		req, err := pull.Poll(t.Context(), time.Second)
		if consumer.IsNoNewMsgError(err) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range req.GetMsgList() {
			seen[string(m.Body)] = true
		}
		pull.ACK(t.Context(), req, consumer.ConsumeSuccess)
	}
}

func TestGoAdminCreatesListsAndDeletesTopics(t *testing.T) {
	c := start(t)
	a, err := admin.NewAdmin(admin.WithResolver(c.resolver()))
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	ctx := t.Context()
	if err := a.CreateTopic(ctx, admin.WithTopicCreate("made"), admin.WithBrokerAddrCreate(c.broker.Addr()),
		admin.WithReadQueueNums(3), admin.WithWriteQueueNums(3)); err != nil {
		t.Fatal(err)
	}
	if queues := routeOf(c, "made"); len(queues) != 3 {
		t.Errorf("queues %v, want 3", queues)
	}
	topics, err := a.FetchAllTopicList(ctx)
	if err != nil || !slices.Contains(topics.TopicList, "made") {
		t.Errorf("topics %v, %v", topics, err)
	}
	p, in := c.producer(), newInbox()
	c.send(p, "made", 0, 6, nil)
	c.consume(c.consumer("makers", "consumer"), "made", "*", in.listen)
	in.wait(t, 6, 30*time.Second)
	groups, err := a.GetAllSubscriptionGroup(ctx, c.broker.Addr(), 3*time.Second)
	if err != nil || groups.SubscriptionGroupTable["makers"].GroupName != "makers" {
		t.Errorf("groups %+v, %v", groups, err)
	}
	if err := a.DeleteTopic(ctx, admin.WithTopicDelete("made"), admin.WithBrokerAddrDelete(c.broker.Addr()),
		admin.WithNameSrvAddr([]string{c.ns.Addr()})); err != nil {
		t.Fatal(err)
	}
	if topics, err := a.FetchAllTopicList(ctx); err != nil || slices.Contains(topics.TopicList, "made") {
		t.Errorf("topics after the deletion %v, %v", topics, err)
	}
}
