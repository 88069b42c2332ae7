package mq

import (
	"errors"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pocketmq/mq/transport"
)

func TestTopicsAndGroupsAreCreatedFromGoWhenNothingElseCreatesThem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newTestCluster(t, transport.MemoryConfig{}, BrokerConfig{DisableAutoCreateTopic: true, DisableAutoCreateGroup: true})
		p := c.producer(ProducerConfig{})
		if _, err := p.Send(t.Context(), textMessage("orders", "x")); !errors.Is(err, ErrNoRoute) || !errors.Is(err, ErrTopicNotFound) ||
			!strings.Contains(err.Error(), "Broker.CreateTopic") {
			t.Errorf("before: %v", err)
		}
		must(t, c.broker.CreateTopic(t.Context(), "orders", 2))
		must(t, c.broker.CreateGroup(t.Context(), "billing"))
		in := newInbox()
		c.consume(ConsumerConfig{Group: "billing"}, "orders", Filter{}, in.listen)
		for i := range 4 {
			if q := c.send(p, textMessage("orders", strconv.Itoa(i))).Queue; q.ID > 1 {
				t.Errorf("sent to %v of 2 queues", q)
			}
		}
		in.wait(t, 4, time.Minute)
		must(t, c.broker.CreateTopic(t.Context(), "orders", 3))
		topic, _ := c.broker.topics.lookup("orders")
		if conf := topic.conf(); conf.WriteQueueNums != 3 || conf.ReadQueueNums != 3 {
			t.Errorf("created again with 3 queues: %+v", conf)
		}
	})
}

// What an administrator set stays; CreateTopic and CreateGroup may be called at
// every start of a program.
func TestCreatingWhatIsThereKeepsItsConfiguration(t *testing.T) {
	b := startBroker(t, BrokerConfig{})
	b.createTopic("orders", 4, 4)
	must(t, b.CreateTopic(t.Context(), "orders", 4))
	if topic, _ := b.topics.lookup("orders"); topic.conf().Perm != 4 {
		t.Errorf("topic %+v", topic.conf())
	}
	must(t, b.CreateGroup(t.Context(), "g"))
	g, _ := b.groups.lookup("g")
	changed := *g.conf()
	changed.RetryMaxTimes = 3
	must(t, b.groups.update(t.Context(), changed))
	must(t, b.CreateGroup(t.Context(), "g"))
	if g, _ := b.groups.lookup("g"); g.conf().RetryMaxTimes != 3 {
		t.Errorf("group %+v", g.conf())
	}
}

func TestCreatingRefusesWhatCannotBe(t *testing.T) {
	b := startBroker(t, BrokerConfig{})
	for name, queues := range map[string]int{"": 1, "a b": 1, "none": 0, "many": 1025, strings.Repeat("t", 128): 1, autoCreateTopic: 1} {
		if err := b.CreateTopic(t.Context(), name, queues); err == nil || !strings.HasPrefix(err.Error(), "mq: create topic ") {
			t.Errorf("topic %q with %d queues: %v", name, queues, err)
		}
	}
	for _, name := range []string{"", "a b", strings.Repeat("g", 256)} {
		if err := b.CreateGroup(t.Context(), name); err == nil || !strings.HasPrefix(err.Error(), "mq: create consumer group ") {
			t.Errorf("group %q: %v", name, err)
		}
	}
	idle, err := NewBroker(BrokerConfig{Transport: b.net})
	must(t, err)
	for _, want := range []error{ErrNotStarted, ErrClosed} {
		if err := idle.CreateTopic(t.Context(), "t", 1); !errors.Is(err, want) {
			t.Errorf("CreateTopic: %v, want %v", err, want)
		}
		if err := idle.CreateGroup(t.Context(), "g"); !errors.Is(err, want) {
			t.Errorf("CreateGroup: %v, want %v", err, want)
		}
		must(t, idle.Close())
	}
}

func TestMissingGroupIsNamedOnce(t *testing.T) {
	b := startBroker(t, BrokerConfig{DisableAutoCreateGroup: true})
	_, err := b.groups.ensure(t.Context(), "absent")
	answer := answerError("pull", "here", groupRefusal("absent", err))
	if text := answer.Error(); !errors.Is(answer, ErrGroupNotFound) || strings.Count(text, "not found") != 1 ||
		strings.Count(text, "absent") != 1 || !strings.Contains(text, "Broker.CreateGroup") {
		t.Errorf("%v", answer)
	}
}
