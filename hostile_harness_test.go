package mq

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/pocketmq/mq/transport"
)

// hostilePatience bounds every wait of the tests with hostile peers; machines that
// run them may be slow.
const hostilePatience = 30 * time.Second

// A hostileSite is a name server and a broker on TCP, to be treated badly, and a
// bystander who must not notice.
type hostileSite struct {
	t         *testing.T
	net       transport.Transport
	ns        *NameServer
	broker    *Broker
	bystander *bystander
}

// atHostileSite runs f and checks afterwards that the bystander noticed nothing,
// and that memory and goroutines are where they were when everything is closed.
func atHostileSite(t *testing.T, cfg BrokerConfig, f func(s *hostileSite)) {
	t.Helper()
	goroutines, heap := runtime.NumGoroutine(), heapInUse()
	s := &hostileSite{t: t, net: transport.NewTCP(transport.TCPConfig{})}
	s.start(cfg)
	func() {
		defer s.close()
		s.bystander = newBystander(s)
		defer s.bystander.close()
		f(s)
		s.bystander.check()
	}()
	s.broker, s.ns, s.bystander = nil, nil, nil
	settled(t, goroutines, heap)
}

func (s *hostileSite) start(cfg BrokerConfig) {
	s.t.Helper()
	var err error
	if s.ns, err = NewNameServer(NameServerConfig{Transport: s.net, Listen: "127.0.0.1:0"}); err != nil {
		s.t.Fatal(err)
	}
	if err := s.ns.Start(s.t.Context()); err != nil {
		s.t.Fatal(err)
	}
	cfg.Transport, cfg.Listen, cfg.NameServers = s.net, "127.0.0.1:0", []string{s.ns.Addr()}
	if cfg.Dir == "" {
		cfg.Dir = s.t.TempDir()
	}
	if s.broker, err = NewBroker(cfg); err != nil {
		s.t.Fatal(err)
	}
	if err := s.broker.Start(s.t.Context()); err != nil {
		s.t.Fatal(err)
	}
}

func (s *hostileSite) close() {
	if err := errors.Join(s.broker.Close(), s.ns.Close()); err != nil {
		s.t.Error(err)
	}
}

// raw speaks the protocol to the broker over a connection of its own.
func (s *hostileSite) raw() *rawBroker {
	s.t.Helper()
	r := &rawBroker{Broker: s.broker, t: s.t, net: s.net, version: protocolVersion}
	r.conn = r.dial()
	return r
}

// heapInUse is what lives after a collection.
func heapInUse() int64 {
	runtime.GC()
	runtime.GC() // pools give up what they hold in two steps
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// settled waits until goroutines and heap are back where they were, but for what
// pools and the runtime keep.
func settled(t *testing.T, goroutines int, heap int64) {
	t.Helper()
	const spare = 8 << 20
	deadline := time.Now().Add(hostilePatience)
	for runtime.NumGoroutine() > goroutines || heapInUse() > heap+spare {
		if time.Now().After(deadline) {
			stacks := make([]byte, 1<<20)
			t.Fatalf("%d goroutines, %d before; heap %d, before %d\n%s", runtime.NumGoroutine(), goroutines, heapInUse(), heap,
				stacks[:runtime.Stack(stacks, true)])
		}
		runtime.Gosched()
	}
}

// A bystander is a producer and a consumer who do their work on the broker while
// others misbehave.
type bystander struct {
	t        *testing.T
	producer *Producer
	consumer *Consumer
	stop     context.CancelFunc
	sending  sync.WaitGroup

	mu     sync.Mutex
	sent   map[string]bool
	got    map[string]int
	errs   []error
	busy   int // sends that were to be tried again later
	slow   []time.Duration
	arrive chan struct{} // capacity 1
}

func newBystander(s *hostileSite) *bystander {
	b := &bystander{t: s.t, sent: make(map[string]bool), got: make(map[string]int), arrive: make(chan struct{}, 1)}
	var err error
	if b.producer, err = NewProducer(ProducerConfig{Transport: s.net, NameServers: []string{s.ns.Addr()}, Group: "bystanders", Retries: -1,
		SendTimeout: hostilePatience}); err != nil {
		s.t.Fatal(err)
	}
	if err := b.producer.Start(s.t.Context()); err != nil {
		s.t.Fatal(err)
	}
	b.send(s.t.Context())
	if b.consumer, err = NewConsumer(ConsumerConfig{Transport: s.net, NameServers: []string{s.ns.Addr()}, Group: "bystanders", Start: FromFirst}); err != nil {
		s.t.Fatal(err)
	}
	if err := b.consumer.Subscribe("bystander", Filter{}, b.receive); err != nil {
		s.t.Fatal(err)
	}
	if err := b.consumer.Start(s.t.Context()); err != nil {
		s.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	b.stop = cancel
	b.sending.Go(func() {
		tick := time.NewTicker(3 * time.Millisecond)
		defer tick.Stop()
		for ctx.Err() == nil {
			b.send(context.Background())
			<-tick.C
		}
	})
	return b
}

func (b *bystander) send(ctx context.Context) {
	begun := time.Now()
	res, err := b.producer.Send(ctx, &Message{Topic: "bystander", Body: []byte("nothing happens here")})
	b.mu.Lock()
	defer b.mu.Unlock()
	b.slow = append(b.slow, time.Since(begun))
	if errors.Is(err, ErrBrokerBusy) {
		b.busy++
		return
	}
	if err != nil {
		b.errs = append(b.errs, err)
		return
	}
	if res.Status != SendOK {
		b.errs = append(b.errs, fmt.Errorf("status %v", res.Status))
	}
	b.sent[res.ID] = true
}

func (b *bystander) receive(_ context.Context, d *Delivery) error {
	b.mu.Lock()
	b.got[d.ID]++
	b.mu.Unlock()
	select {
	case b.arrive <- struct{}{}:
	default:
	}
	return nil
}

func (b *bystander) missing() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := 0
	for id := range b.sent {
		if b.got[id] == 0 {
			n++
		}
	}
	return n
}

// check ends the sending and says what the bystander noticed.
func (b *bystander) check() {
	b.t.Helper()
	b.stop()
	b.sending.Wait()
	limit := time.After(hostilePatience)
	for b.missing() > 0 {
		select {
		case <-b.arrive:
		case <-limit:
			b.t.Errorf("the bystander misses %d of %d messages", b.missing(), len(b.sent))
			return
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.errs) > 0 {
		b.t.Errorf("the bystander had %d errors in %d sends, the first: %v", len(b.errs), len(b.slow), b.errs[0])
	}
	if b.busy > len(b.slow)/10 { // a machine with too little to do it with may say so, but not often
		b.t.Errorf("%d of the bystander's %d sends were refused", b.busy, len(b.slow))
	}
	for id, n := range b.got {
		if n > 1 || !b.sent[id] && len(b.errs) == 0 {
			b.t.Errorf("the bystander got message %s %d times, sent %t", id, n, b.sent[id])
			break
		}
	}
	slices.Sort(b.slow)
	middle, worst := b.slow[len(b.slow)/2], b.slow[len(b.slow)-1]
	b.t.Logf("bystander: %d messages, sends took %v in the middle and %v at most", len(b.sent), middle, worst)
	if middle > time.Second {
		b.t.Errorf("the bystander's sends took %v", middle)
	}
}

func (b *bystander) close() {
	if b.stop != nil {
		b.stop()
	}
	b.sending.Wait()
	var err error
	if b.consumer != nil {
		err = b.consumer.Close()
	}
	if err := errors.Join(err, b.producer.Close()); err != nil {
		b.t.Error(err)
	}
}

// A badPeer is a bare TCP connection.
type badPeer struct {
	net.Conn
	t *testing.T
	r *bufio.Reader
}

func dialBad(t *testing.T, addr string) *badPeer {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.SetDeadline(time.Now().Add(hostilePatience)); err != nil {
		t.Fatal(err)
	}
	return &badPeer{Conn: c, t: t, r: bufio.NewReader(c)}
}

// put writes and does not mind a peer that has closed.
func (p *badPeer) put(b []byte) {
	if _, err := p.Write(b); errors.Is(err, os.ErrDeadlineExceeded) {
		p.t.Errorf("nothing takes the bytes of %v", p.LocalAddr())
	}
}

// rawFrame makes a frame of any header.
func rawFrame(kind byte, header, body []byte) []byte {
	b := binary.BigEndian.AppendUint32(nil, uint32(4+len(header)+len(body)))
	b = binary.BigEndian.AppendUint32(b, uint32(kind)<<24|uint32(len(header)))
	return append(append(b, header...), body...)
}

// jsonRequest makes a request as a foreign client would; ext is key, value and so on.
func jsonRequest(code int32, opaque int, body []byte, ext ...string) []byte {
	fields := make(map[string]string)
	for i := 0; i+1 < len(ext); i += 2 {
		fields[ext[i]] = ext[i+1]
	}
	header, err := json.Marshal(map[string]any{"code": code, "flag": 0, "language": "JAVA", "opaque": opaque, "version": 401, "extFields": fields})
	if err != nil {
		panic(err)
	}
	return rawFrame(0, header, body)
}

// A rawAnswer is what came back.
type rawAnswer struct {
	Code, Opaque, Flag int
	Remark             string
	ExtFields          map[string]string
	Body               []byte
}

// answer reads one frame.
func (p *badPeer) answer() (a rawAnswer, err error) {
	var prefix [8]byte
	if _, err := io.ReadFull(p.r, prefix[:]); err != nil {
		return a, err
	}
	rest := make([]byte, binary.BigEndian.Uint32(prefix[:])-4)
	if _, err := io.ReadFull(p.r, rest); err != nil {
		return a, err
	}
	n := binary.BigEndian.Uint32(prefix[4:]) & 0xffffff
	if prefix[4] != 0 {
		return a, fmt.Errorf("answered with serialize type %d", prefix[4])
	}
	err = json.Unmarshal(rest[:n], &a)
	a.Body = rest[n:]
	return a, err
}

// ask sends a request and returns its answer.
func (p *badPeer) ask(code int32, body []byte, ext ...string) rawAnswer {
	p.t.Helper()
	p.put(jsonRequest(code, 7, body, ext...))
	a, err := p.answer()
	if err != nil {
		p.t.Fatalf("request %d: %v", code, err)
	}
	if a.Opaque != 7 {
		p.t.Fatalf("request %d: answer to request %d", code, a.Opaque)
	}
	return a
}

// served checks that the connection works.
func (p *badPeer) served(what string) {
	p.t.Helper()
	p.put(jsonRequest(9999, 8, nil))
	if a, err := p.answer(); err != nil || a.Code != 3 || a.Opaque != 8 {
		p.t.Errorf("%s: the connection does not serve afterwards: %+v, %v", what, a, err)
	}
}

// closed checks that the other side has closed, without a word.
func (p *badPeer) closed(what string) {
	p.t.Helper()
	n, err := io.Copy(io.Discard, p.r)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		p.t.Errorf("%s: the connection stays open", what)
	} else if n > 0 {
		p.t.Errorf("%s: %d bytes came before the connection closed", what, n)
	}
}

func (p *badPeer) quit() {
	if err := p.Close(); err != nil {
		p.t.Errorf("close: %v", err)
	}
}
