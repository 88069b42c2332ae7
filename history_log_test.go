package mq

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/pocketmq/mq/internal/wire"
	"github.com/pocketmq/mq/storage"
	"github.com/pocketmq/mq/transport"
)

// historySeed repeats the choices of a run that failed. The scheduler's are not
// among them.
var historySeed = flag.Uint64("history.seed", 0, "seed of the history tests")

// A historySite is a cluster in a bubble whose broker restarts and whose network
// fails, and a record of what its users saw.
type historySite struct {
	*testCluster
	rnd   *rand.Rand // of the goroutine that makes the faults
	fs    vfs.FS
	clock atomic.Int64 // orders calls and returns: the bubble's time stands still too often

	mu  sync.Mutex
	ops []porcupine.Operation
}

const historyBroker = "10.0.0.1"

// eachHistory runs f several times, each in a bubble of its own.
func eachHistory(t *testing.T, f func(s *historySite, seed uint64)) {
	rounds := 20
	if testing.Short() {
		rounds = 2
	}
	for round := range rounds {
		seed := *historySeed
		if seed == 0 {
			seed = rand.Uint64()
		}
		t.Run(fmt.Sprint("round ", round), func(t *testing.T) {
			t.Logf("-history.seed=%d", seed)
			synctest.Test(t, func(t *testing.T) {
				net := transport.NewMemory(transport.MemoryConfig{})
				c := &testCluster{t: t, net: net, ns: startNameServer(t, net, NameServerConfig{})}
				s := &historySite{testCluster: c, rnd: rand.New(rand.NewPCG(seed, 0)), fs: vfs.NewMem()}
				s.broker = s.startBroker(s.brokerConfig())
				f(s, seed)
			})
		})
	}
}

func (s *historySite) brokerConfig() BrokerConfig {
	return BrokerConfig{Transport: s.net.Host(historyBroker), Listen: historyBroker + ":10911", Name: "b", Dir: "data",
		storage: func(o *storage.Options) { o.FS = s.fs }}
}

// restart ends the broker in the middle of everything, and starts it again.
func (s *historySite) restart(away time.Duration) {
	if err := s.broker.Close(); err != nil {
		s.t.Error(err)
	}
	time.Sleep(away)
	s.broker = s.startBroker(s.brokerConfig())
}

func historyHost(i int) string { return fmt.Sprint("10.0.1.", i+1) }

// harm does one bad thing to the broker or to one of n hosts.
func (s *historySite) harm(n int) {
	host := historyHost(s.rnd.IntN(n))
	switch s.rnd.IntN(6) {
	case 0:
		s.restart(time.Duration(s.rnd.IntN(1000)) * time.Millisecond)
	case 1:
		s.net.Cut(historyBroker)
	case 2, 3:
		s.net.Cut(host)
	case 4:
		s.net.Partition(host, historyBroker)
		time.Sleep(time.Duration(s.rnd.IntN(6000)) * time.Millisecond)
		s.net.Heal(host, historyBroker)
	case 5:
		s.net.Delay(host, historyBroker, time.Duration(s.rnd.IntN(50))*time.Millisecond)
	}
}

// harmUntil goes on with that until done closes.
func (s *historySite) harmUntil(done <-chan struct{}, n int) {
	for {
		select {
		case <-done:
			return
		case <-time.After(time.Duration(20+s.rnd.IntN(400)) * time.Millisecond):
			s.harm(n)
		}
	}
}

// record adds an operation that returned now. An operation without an outcome
// may have taken effect at any time since, which is what its return at the end of
// time says.
func (s *historySite) record(client int, call int64, known bool, in, out any) {
	op := porcupine.Operation{ClientId: client, Input: in, Call: call, Output: out, Return: math.MaxInt64}
	if known {
		op.Return = s.clock.Add(1)
	}
	s.mu.Lock()
	s.ops = append(s.ops, op)
	s.mu.Unlock()
}

func (s *historySite) check(model porcupine.Model) {
	s.t.Helper()
	if verdict, _ := porcupine.CheckOperationsVerbose(model, s.ops, time.Minute); verdict != porcupine.Ok {
		s.t.Errorf("the history of %d operations is %s", len(s.ops), verdict)
		for _, op := range s.ops {
			s.t.Logf("%d %d..%d %+v %v", op.ClientId, op.Call, op.Return, op.Input, op.Output)
		}
	}
}

// byQueue divides a history by the queue of its inputs.
func byQueue(queue func(in any) int) func([]porcupine.Operation) [][]porcupine.Operation {
	return func(all []porcupine.Operation) (parts [][]porcupine.Operation) {
		by := make(map[int][]porcupine.Operation)
		for _, op := range all {
			q := queue(op.Input)
			by[q] = append(by[q], op)
		}
		for _, ops := range by {
			parts = append(parts, ops)
		}
		return parts
	}
}

// A logCall is a send to a queue, or the question where its end is.
type logCall struct {
	queue int
	send  bool
	body  string
}

// queueLog is a queue as an append-only log: a send returns the length before it,
// the question returns the length.
var queueLog = porcupine.Model{
	Partition: byQueue(func(in any) int { return in.(logCall).queue }),
	Init:      func() any { return int64(0) },
	Step: func(state, in, out any) (bool, any) {
		length := state.(int64)
		if out.(int64) != length {
			return false, length
		}
		if in.(logCall).send {
			length++
		}
		return true, length
	},
}

// An unknown send that is in the log took effect at some time after its call; one
// that is not there never did. So the log at the end settles every unknown
// outcome, and what is left to find is an order.
func TestQueuesAreLinearizableLogs(t *testing.T) {
	eachHistory(t, func(s *historySite, seed uint64) {
		const clients, sends = 3, 150
		r := s.rawAt(0)
		r.createTopic("log", 2, 6)
		outcome := make(map[string]error) // by body, of the sends that failed
		var users sync.WaitGroup
		for i := range clients {
			p := s.historyProducer(i)
			users.Go(func() { s.sendMuch(p, i, sends, seed, outcome) })
			users.Go(func() { s.askForEnds(i, seed) })
		}
		done := make(chan struct{})
		var harm sync.WaitGroup
		harm.Go(func() { s.harmUntil(done, clients) })
		users.Wait()
		close(done)
		harm.Wait()
		s.settleLog(outcome)
		s.check(queueLog)
	})
}

// rawAt is a connection to the broker from one of the hosts.
func (s *historySite) rawAt(host int) *rawBroker {
	s.t.Helper()
	r := &rawBroker{Broker: s.broker, t: s.t, net: s.net.Host(historyHost(host)), version: protocolVersion}
	r.conn = r.dial()
	s.t.Cleanup(func() { r.conn.Close() })
	return r
}

func (s *historySite) historyProducer(i int) *Producer {
	s.t.Helper()
	p, err := NewProducer(ProducerConfig{Transport: s.net.Host(historyHost(i)), NameServers: []string{s.ns.Addr()}, Group: "producers", Retries: -1})
	if err != nil {
		s.t.Fatal(err)
	}
	if err := p.Start(s.t.Context()); err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { p.Close() })
	return p
}

// sendMuch sends, waiting and not, and records what it is told.
func (s *historySite) sendMuch(p *Producer, client, n int, seed uint64, failed map[string]error) {
	rnd := rand.New(rand.NewPCG(seed, uint64(client)+1))
	var async sync.WaitGroup
	for k := range n {
		in := logCall{queue: -1, send: true, body: fmt.Sprintf("%d-%d", client, k)}
		call := s.clock.Add(1)
		told := func(res *SendResult, err error) {
			if err == nil {
				in.queue = res.Queue.ID
				s.record(client, call, true, in, res.Offset)
				return
			}
			s.record(client, call, false, in, nil)
			s.mu.Lock()
			failed[in.body] = err
			s.mu.Unlock()
		}
		m := &Message{Topic: "log", Body: []byte(in.body)}
		if rnd.IntN(2) == 0 {
			told(p.Send(s.t.Context(), m))
		} else {
			async.Add(1)
			if err := p.SendAsync(s.t.Context(), m, func(res *SendResult, err error) {
				told(res, err)
				async.Done()
			}); err != nil {
				told(nil, err)
				async.Done()
			}
		}
		if rnd.IntN(3) > 0 { // else in one burst with the next
			time.Sleep(time.Duration(rnd.IntN(100)) * time.Millisecond)
		}
	}
	async.Wait()
}

// askForEnds asks where the queues end, over connections that break.
func (s *historySite) askForEnds(client int, seed uint64) {
	rnd := rand.New(rand.NewPCG(seed, uint64(client)+100))
	s.ask(client, 100, rnd, func() (int32, transport.Header, any, func(f *transport.Frame) (any, error)) {
		q := rnd.IntN(2)
		return wire.CodeGetMaxOffset, &wire.MaxOffsetRequest{Topic: "log", QueueID: int32(q)}, logCall{queue: q}, readOffset
	})
}

func readOffset(f *transport.Frame) (any, error) {
	h, err := transport.HeaderOf[wire.OffsetResponse](f)
	if err != nil {
		return nil, err
	}
	return h.Offset, nil
}

// ask makes n raw requests and records those that were answered, and, when next
// gives no reader, those that were not as unknown.
func (s *historySite) ask(client, n int, rnd *rand.Rand, next func() (code int32, h transport.Header, in any, read func(*transport.Frame) (any, error))) {
	net := s.net.Host(historyHost(client))
	var conn transport.Conn
	defer func() {
		if conn != nil {
			conn.Close()
		}
	}()
	for range n {
		if rnd.IntN(3) > 0 {
			time.Sleep(time.Duration(rnd.IntN(100)) * time.Millisecond)
		}
		if conn == nil {
			var err error
			if conn, err = net.Dial(s.t.Context(), historyBroker+":10911", nil); err != nil {
				conn = nil
				continue
			}
		}
		code, h, in, read := next()
		ctx, cancel := context.WithTimeout(s.t.Context(), 2*time.Second)
		call := s.clock.Add(1)
		f, err := conn.Call(ctx, &transport.Frame{Code: code, Header: h})
		cancel()
		var out any
		if err == nil && f.Code == wire.Success && read != nil {
			if out, err = read(f); err != nil {
				s.t.Error(err)
			}
		}
		switch {
		case err == nil && f.Code == wire.Success:
			s.record(client, call, true, in, out)
		case read == nil:
			s.record(client, call, false, in, nil)
		}
		if err != nil {
			conn.Close()
			conn = nil
		}
	}
}

// settleLog reads the queues and turns sends of unknown outcome into sends with
// one, or into none.
func (s *historySite) settleLog(failed map[string]error) {
	r := s.rawAt(0)
	at := make(map[string]porcupine.Operation)
	for q := range 2 {
		for i, m := range r.queue("log", int32(q)) {
			if _, twice := at[string(m.Body)]; twice {
				s.t.Errorf("%s is stored twice", m.Body)
			}
			at[string(m.Body)] = porcupine.Operation{Input: q, Output: int64(i)}
		}
	}
	var settled []porcupine.Operation
	sent, unknown := 0, 0
	for _, op := range s.ops {
		in := op.Input.(logCall)
		found, stored := at[in.body]
		switch {
		case !in.send:
		case op.Return != math.MaxInt64:
			sent++
			if !stored || found.Input != in.queue || found.Output != op.Output {
				s.t.Errorf("%s was acknowledged at %v of queue %d, and is at %+v", in.body, op.Output, in.queue, found)
			}
		case !stored:
			continue
		default:
			unknown++
			err := failed[in.body]
			if errors.Is(err, ErrBrokerBusy) || errors.Is(err, ErrUnavailable) || errors.Is(err, ErrNoRoute) || errors.Is(err, ErrMessageIllegal) {
				s.t.Errorf("%s was refused, and is stored: %v", in.body, err)
			}
			in.queue = found.Input.(int)
			op.Input, op.Output = in, found.Output
		}
		settled = append(settled, op)
	}
	s.t.Logf("%d sends acknowledged, %d stored without an answer, %d operations", sent, unknown, len(settled))
	s.ops = settled
}

// An offsetCall reads or writes a group's offset.
type offsetCall struct {
	queue int
	write int64 // 0 reads
}

// groupOffset is a group's offset in a queue as a register.
var groupOffset = porcupine.Model{
	Partition: byQueue(func(in any) int { return in.(offsetCall).queue }),
	Init:      func() any { return int64(0) },
	Step: func(state, in, out any) (bool, any) {
		if write := in.(offsetCall).write; write != 0 {
			return true, write
		}
		return out == state, state
	},
}

// What one client committed every client reads, also over restarts, until it is
// committed anew.
func TestGroupOffsetsAreLinearizableRegisters(t *testing.T) {
	eachHistory(t, func(s *historySite, seed uint64) {
		const clients = 4
		s.rawAt(0).createTopic("log", 2, 6)
		var users, harm sync.WaitGroup
		var written atomic.Int64
		for i := range clients {
			rnd := rand.New(rand.NewPCG(seed, uint64(i)+1))
			users.Go(func() {
				s.ask(i, 150, rnd, func() (int32, transport.Header, any, func(*transport.Frame) (any, error)) {
					q := rnd.IntN(2)
					if rnd.IntN(2) == 0 {
						v := written.Add(1)
						return wire.CodeUpdateConsumerOffset, &wire.UpdateOffsetRequest{ConsumerGroup: "g", Topic: "log", QueueID: int32(q), CommitOffset: v},
							offsetCall{q, v}, nil
					}
					return wire.CodeQueryConsumerOffset, &wire.QueryOffsetRequest{ConsumerGroup: "g", Topic: "log", QueueID: int32(q)}, offsetCall{queue: q},
						readOffset
				})
			})
		}
		done := make(chan struct{})
		harm.Go(func() { s.harmUntil(done, clients) })
		users.Wait()
		close(done)
		harm.Wait()
		s.t.Logf("%d operations", len(s.ops))
		s.check(groupOffset)
	})
}

// The models refuse what must not be.
func TestHistoryModelsRefuseWhatMustNotBe(t *testing.T) {
	op := func(in any, call int64, out any, end int64) porcupine.Operation {
		return porcupine.Operation{Input: in, Call: call, Output: out, Return: end}
	}
	send, end := logCall{send: true}, logCall{}
	read, write1, write2 := offsetCall{}, offsetCall{write: 1}, offsetCall{write: 2}
	for what, c := range map[string]struct {
		model   porcupine.Model
		history []porcupine.Operation
		want    bool
	}{
		"one offset twice":            {queueLog, []porcupine.Operation{op(send, 1, int64(0), 2), op(send, 3, int64(0), 4)}, false},
		"a gap":                       {queueLog, []porcupine.Operation{op(send, 1, int64(0), 2), op(send, 3, int64(2), 4)}, false},
		"an end that falls back":      {queueLog, []porcupine.Operation{op(send, 1, int64(0), 2), op(end, 3, int64(0), 4)}, false},
		"order against time":          {queueLog, []porcupine.Operation{op(send, 1, int64(1), 2), op(send, 3, int64(0), 4)}, false},
		"an order that overlaps":      {queueLog, []porcupine.Operation{op(send, 1, int64(1), 4), op(send, 3, int64(0), 5), op(end, 6, int64(2), 7)}, true},
		"an offset that falls back":   {groupOffset, []porcupine.Operation{op(write1, 1, nil, 2), op(write2, 3, nil, 4), op(read, 5, int64(1), 6)}, false},
		"an offset that is lost":      {groupOffset, []porcupine.Operation{op(write1, 1, nil, 2), op(read, 5, int64(0), 6)}, false},
		"a write of unknown outcome":  {groupOffset, []porcupine.Operation{op(write1, 1, nil, math.MaxInt64), op(read, 5, int64(0), 6), op(read, 7, int64(1), 8)}, true},
		"one that came and went away": {groupOffset, []porcupine.Operation{op(write1, 1, nil, math.MaxInt64), op(read, 5, int64(1), 6), op(read, 7, int64(0), 8)}, false},
	} {
		if got := porcupine.CheckOperations(c.model, c.history); got != c.want {
			t.Errorf("%s: %t", what, got)
		}
	}
}
