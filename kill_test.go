package mq

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pocketmq/mq/transport"
)

// killVariable tells a copy of the test binary to be the process that is killed.
const killVariable = "MQ_TEST_KILL_CHILD"

// A killRecord is what the killed processes said of their messages.
type killRecord struct {
	acked map[Queue]map[int64]string // offset → body
	done  map[Queue]map[int64]bool   // handled by the consumer
}

// Durability, kill -9, both flush modes, from a producer's call to what a broker
// reads afterwards: whatever was acknowledged is at its offset, and no group's
// offset has passed a message that was not handled. It says nothing about power
// loss, since the operating system keeps what a process wrote.
func TestKilledBrokerLosesNothingAcknowledged(t *testing.T) {
	for _, mode := range []FlushMode{SyncFlush, AsyncFlush} {
		t.Run([]string{"sync", "async"}[mode], func(t *testing.T) {
			dir, rounds := t.TempDir(), 5
			if testing.Short() {
				rounds = 1
			}
			record := killRecord{make(map[Queue]map[int64]string), make(map[Queue]map[int64]bool)}
			for round := range rounds {
				record.killOne(t, fmt.Sprintf("%d %d %s", mode, round, dir), 200+300*round)
				record.check(t, BrokerConfig{Dir: dir, Flush: mode, Name: "b"})
			}
		})
	}
}

// killOne runs a process until it has acknowledged enough, kills it, and takes
// down all that it said.
func (k *killRecord) killOne(t *testing.T, order string, enough int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, os.Args[0], "-test.run=^TestKillChild$", "-test.v")
	cmd.Env = append(os.Environ(), killVariable+"="+order)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var faults, rest strings.Builder
	cmd.Stderr = &faults
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	acked, handled, killed := 0, 0, false
	for lines := bufio.NewScanner(out); lines.Scan(); {
		q := Queue{Topic: "orders", Broker: "b"}
		var offset int64
		var body string
		line := lines.Text()
		if _, err := fmt.Sscanf(line, "acked %d %d %s", &q.ID, &offset, &body); err == nil {
			put(k.acked, q, offset, body)
			acked++
		} else if _, err := fmt.Sscanf(line, "done %d %d", &q.ID, &offset); err == nil {
			put(k.done, q, offset, true)
			handled++
		} else {
			fmt.Fprintln(&rest, line)
		}
		if acked >= enough && handled >= enough/2 && !killed {
			killed = true
			if err := cmd.Process.Kill(); err != nil { // what is in the pipe is still read
				t.Fatal(err)
			}
		}
	}
	if err := cmd.Wait(); err == nil || !killed {
		t.Fatalf("the child ended by itself after %d messages sent and %d received: %v\n%s%s", acked, handled, err, rest.String(), faults.String())
	}
}

func put[V any](table map[Queue]map[int64]V, q Queue, offset int64, v V) {
	if table[q] == nil {
		table[q] = make(map[int64]V)
	}
	table[q][offset] = v
}

// check opens what a killed process left.
func (k *killRecord) check(t *testing.T, cfg BrokerConfig) {
	t.Helper()
	r := startBroker(t, cfg)
	defer func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	}()
	topic, ok := r.topics.lookup("orders")
	if !ok {
		t.Fatal("the topic is lost")
	}
	passed := int64(0)
	for q, acked := range k.acked {
		found := make(map[string]int)
		stored := r.queue("orders", int32(q.ID))
		for i, m := range stored {
			if m.QueueOffset != int64(i) || !m.Intact() {
				t.Errorf("%v: message %d has offset %d, intact %t", q, i, m.QueueOffset, m.Intact())
			}
			found[string(m.Body)]++
		}
		for offset, body := range acked {
			if offset >= int64(len(stored)) || string(stored[offset].Body) != body {
				t.Errorf("%v: acknowledged %s is not at %d of %d", q, body, offset, len(stored))
			}
			if found[body] != 1 {
				t.Errorf("%v: acknowledged %s is stored %d times", q, body, found[body])
			}
		}
		committed, _, err := r.store.CommittedOffset("consumers", topic.store, int32(q.ID))
		if err != nil {
			t.Fatal(err)
		}
		passed += committed
		for offset := range committed {
			if !k.done[q][offset] {
				t.Errorf("%v: the group's offset is %d, and message %d was not handled", q, committed, offset)
				break
			}
		}
	}
	t.Logf("the group's offsets add up to %d", passed)
}

// TestKillChild sends and receives until it is killed, and says what was done.
func TestKillChild(t *testing.T) {
	order := os.Getenv(killVariable)
	if order == "" {
		t.Skip("runs in a child process only")
	}
	var mode FlushMode
	var round int
	var dir string
	if _, err := fmt.Sscanf(order, "%d %d %s", &mode, &round, &dir); err != nil {
		t.Fatal(err)
	}
	c := &testCluster{t: t}
	tcp := transport.NewTCP(transport.TCPConfig{})
	c.ns = startNameServer(t, tcp, NameServerConfig{Listen: "127.0.0.1:0"})
	c.startBroker(BrokerConfig{Transport: tcp, Dir: dir, Flush: mode, Name: "b"})
	p, err := NewProducer(ProducerConfig{Transport: tcp, NameServers: []string{c.ns.Addr()}, Group: "producers"})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Send(t.Context(), &Message{Topic: "orders", Body: fmt.Appendf(nil, "first of %d", round)}); err != nil {
		t.Fatal(err) // the topic is there when the consumer comes
	}
	consumer, err := NewConsumer(ConsumerConfig{Transport: tcp, NameServers: []string{c.ns.Addr()}, Group: "consumers", Start: FromFirst})
	if err != nil {
		t.Fatal(err)
	}
	if err := consumer.Subscribe("orders", Filter{}, func(_ context.Context, d *Delivery) error {
		fmt.Printf("done %d %d\n", d.Queue.ID, d.Offset) // before it counts as done
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if err := consumer.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	say := func(res *SendResult, body string) {
		if res.Status == SendOK {
			fmt.Printf("acked %d %d %s\n", res.Queue.ID, res.Offset, body)
		}
	}
	var sending sync.WaitGroup
	for g := range 4 {
		sending.Go(func() {
			for i := 0; ; i++ {
				body := fmt.Sprintf("%d-%d-%d-%s", round, g, i, strings.Repeat("x", i%3000))
				m := &Message{Topic: "orders", Body: []byte(body)}
				if i%3 == 0 {
					res, err := p.Send(context.Background(), m)
					if err != nil {
						t.Error(err)
						return
					}
					say(res, body)
				} else if err := p.SendAsync(context.Background(), m, func(res *SendResult, err error) {
					if err == nil {
						say(res, body)
					}
				}); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	sending.Wait()
}
