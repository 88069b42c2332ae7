package mq

import (
	"strings"
	"testing"
	"time"
)

// Every fault of a list is told, each under the field's name, once.
func TestFaultyNameServersAreAllReported(t *testing.T) {
	lists := []string{"nowhere;a:1", "b:x"}
	for name, make := range map[string]func() error{
		"BrokerConfig": func() error {
			_, err := NewBroker(BrokerConfig{NameServers: lists})
			return err
		},
		"ProducerConfig": func() error {
			_, err := NewProducer(ProducerConfig{NameServers: lists, Group: "g"})
			return err
		},
		"ConsumerConfig": func() error {
			_, err := NewConsumer(ConsumerConfig{NameServers: lists, Group: "g"})
			return err
		},
	} {
		err := make()
		if err == nil {
			t.Fatalf("%s was taken", name)
		}
		lines := strings.Split(err.Error(), "\n")
		if len(lines) != 2 || !strings.HasPrefix(lines[0], "mq: "+name+`.NameServers: address "nowhere": `) ||
			!strings.HasPrefix(lines[1], "mq: "+name+`.NameServers: address "b:x": `) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestFaultsOfAddressesAndNamesShowTheRightExample(t *testing.T) {
	if _, err := NewNameServer(NameServerConfig{Listen: "x"}); err == nil || !strings.Contains(err.Error(), "[::1]:9876") {
		t.Errorf("name server: %v", err)
	}
	if _, err := NewBroker(BrokerConfig{Listen: "x"}); err == nil || !strings.Contains(err.Error(), "[::1]:10911") {
		t.Errorf("broker: %v", err)
	}
	if _, err := NewBroker(BrokerConfig{Name: "a b"}); err == nil || strings.Contains(err.Error(), "topic") ||
		!strings.Contains(err.Error(), `BrokerConfig.Name: "a b" has an illegal character at byte 1`) {
		t.Errorf("broker's name: %v", err)
	}
}

func TestStartTimeNeedsFromTime(t *testing.T) {
	cfg := ConsumerConfig{NameServers: []string{"a:1"}, Group: "g", StartTime: time.Unix(1, 0)}
	if _, err := NewConsumer(cfg); err == nil || !strings.Contains(err.Error(), "StartTime") {
		t.Errorf("a StartTime that does not count gave %v", err)
	}
	cfg.Start = FromTime
	if _, err := NewConsumer(cfg); err != nil {
		t.Error(err)
	}
}

func TestSubscriptionsToImpossibleTopicsAndTagsAreRefused(t *testing.T) {
	c, err := NewConsumer(ConsumerConfig{NameServers: []string{"a:1"}, Group: "g"})
	must(t, err)
	if err := c.Subscribe("t t", Filter{}, newInbox().listen); err == nil || strings.Contains(err.Error(), "message") ||
		!strings.Contains(err.Error(), `the topic "t t" has an illegal character`) {
		t.Errorf("topic: %v", err)
	}
	for _, tags := range []string{"a||", "||a", "a|| ||b", "||"} {
		if err := c.Subscribe("t", Tags(tags), newInbox().listen); err == nil || !strings.Contains(err.Error(), "empty tag") {
			t.Errorf("tags %q: %v", tags, err)
		}
	}
	for _, tags := range []string{"a", " a || b ", "b|c", "*", ""} {
		must(t, c.Subscribe("t", Tags(tags), newInbox().listen))
	}
}
