package mq

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"sync"
	"time"

	"github.com/pocketmq/mq/internal/wire"
	"github.com/pocketmq/mq/transport"
)

// A ProducerConfig says who a producer is and how it sends. Name servers and group
// are required, everything else has RocketMQ's defaults.
type ProducerConfig struct {
	// Transport carries the requests. Nil is TCP.
	Transport transport.Transport
	// NameServers are host:port texts; one text may hold several, with ";" or ","
	// between them.
	NameServers []string
	// Group names the application, not the process: all producers that do the same
	// share it. Required.
	Group string
	// ClientID tells brokers this producer from all others. Empty, the default, is
	// ip@pid#random.
	ClientID string
	// SendTimeout bounds a send with all its tries. Default 3 s.
	SendTimeout time.Duration
	// Retries is how often a failed send is tried again, on another broker where
	// there is one. Default 2, negative none. Each try gets its share of the time
	// that is left, at least 500 ms, so that the others get a chance.
	Retries int
	// AsyncWindow and AsyncWindowBytes bound the asynchronous sends without an
	// answer, by number and by bytes of bodies. Default 1024 and 100 MiB, negative
	// unlimited. Answers whose callbacks have not run yet do not count: while more
	// than 8 times AsyncWindow and 1024 of them wait (65536 when it is unlimited),
	// each SendAsync first waits for them, for up to 50 ms.
	AsyncWindow      int
	AsyncWindowBytes int
	// AutoBatch lets asynchronous sends to a topic travel together while more come
	// than would be under way singly (RocketMQ: autoBatch). Each message still has
	// its own outcome, but those that travelled together are stored in one queue or
	// fail together, and a waiting send may overtake them. Messages with a shard
	// key, a delay or NoFlush, and those large enough to be compressed, travel
	// alone.
	AutoBatch bool
	// CallbackWorkers is the number of goroutines that run the callbacks of
	// SendAsync. With 1, the default, they run one after the other in the order in
	// which the answers arrived.
	CallbackWorkers int
	// CompressAbove is the size in bytes from which on bodies are compressed
	// (zlib, which every RocketMQ client reads). Default 4096, negative never.
	CompressAbove int
	// MaxMessageSize bounds a body, and a batch, in bytes: 1 to 16,646,144. Default
	// 4 MiB, RocketMQ's limit; brokers have a limit of their own.
	MaxMessageSize int
	// DefaultQueues is how many queues a topic gets that a message creates. Default
	// 4; a broker may set a lower limit.
	DefaultQueues int
	// LatencyFault goes round brokers that were slow or failed before, for a time
	// that grows with the latency (RocketMQ: sendLatencyFaultEnable). Without it
	// only the next try of the same send avoids a broker.
	LatencyFault bool
	// FailQueuedOnError keeps the order of asynchronous sends with equal shard keys
	// also when one fails: such sends wait for each other's answers, and when one
	// has finally failed, those waiting behind it fail too, unsent. Without it a
	// refused or repeated send lands behind its successors.
	FailQueuedOnError bool
	// Logger gets what an operator should know. Nil is silent.
	Logger *slog.Logger
}

func (cfg *ProducerConfig) complete() error {
	var faults []error
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }
	var err error
	if cfg.NameServers, err = needAddresses("ProducerConfig.NameServers", cfg.NameServers); err != nil {
		faults = append(faults, err)
	}
	if err := checkGroup("ProducerConfig.Group", cfg.Group); err != nil {
		faults = append(faults, err)
	}
	cfg.SendTimeout = orDefault(cfg.SendTimeout, 3*time.Second)
	if cfg.SendTimeout < 0 {
		fault("mq: ProducerConfig.SendTimeout is %v, it must be positive", cfg.SendTimeout)
	}
	cfg.Retries = max(orDefault(cfg.Retries, 2), 0)
	cfg.AsyncWindow = orDefault(cfg.AsyncWindow, 1024)
	cfg.AsyncWindowBytes = orDefault(cfg.AsyncWindowBytes, 100<<20)
	cfg.CompressAbove = orDefault(cfg.CompressAbove, 4096)
	cfg.CallbackWorkers = orDefault(cfg.CallbackWorkers, 1)
	if cfg.CallbackWorkers < 0 || cfg.CallbackWorkers > 1024 {
		fault("mq: ProducerConfig.CallbackWorkers is %d, the range is 1 to 1024", cfg.CallbackWorkers)
	}
	cfg.MaxMessageSize = orDefault(cfg.MaxMessageSize, wire.MaxBodyBytes)
	if limit := wire.MaxFrameBytes - 128<<10; cfg.MaxMessageSize < 0 || cfg.MaxMessageSize > limit { // a frame has a header too
		fault("mq: ProducerConfig.MaxMessageSize is %d, the range is 1 to %d", cfg.MaxMessageSize, limit)
	}
	cfg.DefaultQueues = orDefault(cfg.DefaultQueues, 4)
	if cfg.DefaultQueues < 0 || cfg.DefaultQueues > 1024 {
		fault("mq: ProducerConfig.DefaultQueues is %d, the range is 1 to 1024", cfg.DefaultQueues)
	}
	return errors.Join(faults...)
}

func orDefault[T comparable](value, standard T) T {
	var zero T
	if value == zero {
		return standard
	}
	return value
}

// A Producer sends messages. All its methods may be called from any goroutine.
//
// Messages that one goroutine sends one after the other to the same queue keep
// their order as long as none fails; equal shard keys go to the same queue.
// An error that wraps ErrOutcomeUnknown means that the message may be stored; after
// every other one it is not.
type Producer struct {
	cfg       ProducerConfig
	log       *slog.Logger
	life      *lifecycle
	client    *client
	window    *sendWindow
	callbacks *callbackQueue
	chains    sendChains
	sends     sync.Pool        // of *send, for reuse
	gatherers sync.Map         // topic → *gatherer
	batches   sync.Pool        // of *gathered, for reuse
	keys      *wire.UniqueKeys // set by Start

	faultsMu sync.Mutex
	faults   *faultTable // nil unless LatencyFault
}

// NewProducer makes a producer. It reports all that is wrong with the
// configuration together, and does no I/O.
func NewProducer(cfg ProducerConfig) (*Producer, error) {
	if err := cfg.complete(); err != nil {
		return nil, err
	}
	log := cfg.Logger
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	if cfg.Transport == nil {
		cfg.Transport = transport.NewTCP(transport.TCPConfig{Logger: log})
	}
	p := &Producer{cfg: cfg, log: log.With("producer", cfg.Group), life: newLifecycle()}
	p.client = newClient(clientConfig{
		transport:     cfg.Transport,
		nameServers:   cfg.NameServers,
		id:            cfg.ClientID,
		log:           p.log,
		defaultQueues: cfg.DefaultQueues,
	})
	p.client.joinProducer(cfg.Group)
	p.client.watchTopics(autoCreateTopic)
	p.window = newSendWindow(cfg.AsyncWindow, cfg.AsyncWindowBytes)
	p.callbacks = newCallbackQueue(p.log, cfg.CallbackWorkers, cfg.AsyncWindow)
	if cfg.LatencyFault {
		p.faults = newFaultTable()
	}
	return p, nil
}

// Start returns when a name server has answered and the brokers known so far had
// a heartbeat. It keeps trying until ctx ends; then the error wraps
// ErrNoNameServer, and nothing is left running. A topic without a route is no
// reason to fail: it may be created later. It may be called once, also when it
// fails; then it is ErrStarted.
func (p *Producer) Start(ctx context.Context) error {
	err := p.life.start(ctx, p.up, p.down)
	if err != nil && p.life.running() == ErrClosed {
		err = ErrClosed
	}
	return startError("producer", err)
}

func (p *Producer) up(ctx context.Context) error {
	if err := p.client.start(ctx); err != nil {
		return err
	}
	ip, err := netip.ParseAddr(p.client.names.localHost())
	if err != nil {
		ip = netip.AddrFrom4([4]byte{127, 0, 0, 1}) // ids need some address; their random part keeps them apart
	}
	p.keys = wire.NewUniqueKeys(ip.Unmap().WithZone(""), os.Getpid())
	for range p.cfg.CallbackWorkers {
		if !p.life.run(func(context.Context) { p.callbacks.work() }) {
			return ErrClosed
		}
	}
	p.window.open()
	return nil
}

// down ends the sends under way: closing the connections gives each of them its
// error, and their callbacks still run.
func (p *Producer) down() {
	p.window.close()
	p.client.close()
	<-p.window.idle()
	p.callbacks.close()
}

// ClientID returns the id by which brokers know the producer; empty before Start.
func (p *Producer) ClientID() string { return p.client.clientID() }

// Close ends the producer at once, whatever its brokers do, and waits for its
// goroutines. Sends under way end with an error that wraps ErrClosed, and
// ErrOutcomeUnknown where the message may be stored. Every callback still runs
// before Close returns, so it takes as long as they do. It may be called at any
// time and any number of times, but not from a callback, for which it would wait.
func (p *Producer) Close() error {
	p.window.close()
	p.life.close(p.down)
	return nil
}

// Shutdown refuses new sends, waits until those under way are answered or ctx
// ends, and closes the producer as Close does. When ctx ended first the error wraps
// its cause.
func (p *Producer) Shutdown(ctx context.Context) error {
	p.window.close()
	var err error
	select {
	case <-p.window.idle():
	case <-ctx.Done():
		err = fmt.Errorf("mq: producer closed with sends under way: %w", context.Cause(ctx))
	}
	return errors.Join(err, p.Close())
}
