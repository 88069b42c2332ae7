package mq

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pocketmq/mq/transport"
)

// ConsumerConfig configures a [Consumer]. NameServers and Group are needed; the
// zero value of everything else works and is RocketMQ's default where it has one.
type ConsumerConfig struct {
	// Transport carries the requests. Nil is TCP.
	Transport transport.Transport
	// NameServers lists addresses as host:port; an entry may hold several, joined
	// by ";" or ",".
	NameServers []string
	// Group shares the topics' queues among its members. All members must
	// subscribe to the same topics with the same filters: the broker goes by
	// whichever it heard last, as RocketMQ's does.
	Group string
	// ClientID names this member; it must be unique in the group. Empty: made from
	// address, process id and a random part.
	ClientID string
	// Ordered hands out the messages of a queue one after the other and holds the
	// queue while a message fails. The group locks its queues on the broker.
	Ordered bool
	// Start says where to begin on a queue without a stored offset. The default is
	// [FromLast], which is the first message while there are few. StartTime goes with
	// FromTime, and is refused with the others.
	Start     StartFrom
	StartTime time.Time
	// Allocator divides queues among members. Default [Average].
	Allocator Allocator
	// Concurrency is how many listeners may run at once. Default 20, at most 1000.
	Concurrency int
	// BatchSize is how many messages a batch listener gets at most. Default 32, at
	// most 1024.
	BatchSize int
	// PullBatch is how many messages to ask a broker for at once. Default 32, at
	// most 1024; RocketMQ's brokers give 32 at most.
	PullBatch int
	// MaxRetries is how often a failed message comes again before it goes to the
	// dead-letter topic. Default 16, in ordered consumption without end; -1 is none.
	MaxRetries int
	// QueueMessages, QueueBytes and QueueSpan bound what one queue may hold in
	// memory: messages (default 1000), bytes (default 100 MiB) and the distance of
	// offsets, which bounds repetition behind a stuck message (default 2000, not in
	// ordered consumption). Negative is unlimited.
	QueueMessages int
	QueueBytes    int
	QueueSpan     int
	// Suspend is how long an ordered queue rests after a failure. Default 1 s; less
	// than 10 ms or more than 30 s is refused.
	Suspend time.Duration
	// ConsumeTimeout is how long a listener of a concurrent consumer may run before
	// its message is given back to be tried elsewhere too. Default 15 min, negative
	// is unlimited.
	ConsumeTimeout time.Duration
	// Logger takes what an operator should know. Nil is silent: refused pulls,
	// failing and panicking listeners are then invisible.
	Logger *slog.Logger
}

const (
	defaultMaxRetries = 16
	unlimitedRetries  = 1<<31 - 1 // what RocketMQ sends for ordered consumers
	minSuspend        = 10 * time.Millisecond
	maxSuspend        = 30 * time.Second
)

func (c ConsumerConfig) withDefaults() (ConsumerConfig, error) {
	var faults []error
	orDefault := func(name string, v *int, def, least, most int) {
		if *v == 0 {
			*v = def
		} else if *v < least || *v > most {
			faults = append(faults, fmt.Errorf("mq: ConsumerConfig.%s is %d, want %d to %d", name, *v, least, most))
		}
	}
	limit := func(v *int, def int) {
		if *v == 0 {
			*v = def
		} else if *v < 0 {
			*v = 1<<31 - 1
		}
	}
	orDefault("Concurrency", &c.Concurrency, 20, 1, 1000)
	orDefault("BatchSize", &c.BatchSize, 32, 1, 1024)
	orDefault("PullBatch", &c.PullBatch, 32, 1, 1024)
	orDefault("MaxRetries", &c.MaxRetries, defaultMaxRetriesFor(c.Ordered), -1, unlimitedRetries)
	limit(&c.QueueMessages, 1000)
	limit(&c.QueueBytes, 100<<20)
	limit(&c.QueueSpan, 2000)
	if c.Suspend == 0 {
		c.Suspend = time.Second
	} else if c.Suspend < minSuspend || c.Suspend > maxSuspend {
		faults = append(faults, fmt.Errorf("mq: ConsumerConfig.Suspend is %v, want %v to %v", c.Suspend, minSuspend, maxSuspend))
	}
	if c.ConsumeTimeout == 0 {
		c.ConsumeTimeout = 15 * time.Minute
	} else if c.ConsumeTimeout > 0 && c.ConsumeTimeout < time.Second {
		faults = append(faults, fmt.Errorf("mq: ConsumerConfig.ConsumeTimeout is %v, want at least 1s, or negative for unlimited", c.ConsumeTimeout))
	}
	if c.Start < FromLast || c.Start > FromTime {
		faults = append(faults, fmt.Errorf("mq: ConsumerConfig.Start is %d, want FromLast, FromFirst or FromTime", c.Start))
	}
	if c.Start == FromTime && c.StartTime.IsZero() {
		faults = append(faults, errors.New("mq: ConsumerConfig.Start is FromTime, which needs StartTime"))
	}
	if c.Start != FromTime && !c.StartTime.IsZero() {
		faults = append(faults, errors.New("mq: ConsumerConfig.StartTime is given, which only counts when Start is FromTime"))
	}
	if c.Allocator == nil {
		c.Allocator = Average()
	}
	if err := checkGroup("ConsumerConfig.Group", c.Group); err != nil {
		faults = append(faults, err)
	}
	var err error
	c.NameServers, err = needAddresses("ConsumerConfig.NameServers", c.NameServers)
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c, errors.Join(append(faults, err)...)
}

func defaultMaxRetriesFor(ordered bool) int {
	if ordered {
		return unlimitedRetries
	}
	return defaultMaxRetries
}

// A Consumer receives the messages of its group's topics and hands them to
// listeners. It matches RocketMQ's push consumer in clustering mode. All methods
// are safe for concurrent use.
type Consumer struct {
	cfg    ConsumerConfig
	log    *slog.Logger
	life   *lifecycle
	client *client
	tasks  *dispatcher

	// listening is the context of listeners. It outlives life's, so that Shutdown
	// can let them finish.
	listening  context.Context
	stopListen context.CancelFunc

	rebalanceNow chan struct{} // capacity 1

	subscriptions atomic.Pointer[map[string]*topicListener] // by topic; written under mu

	mu          sync.Mutex
	lastVersion int64           // of subscriptions
	retired     map[string]bool // topics unsubscribed from whose queues may still be here
	assigned    map[Queue]*assignedQueue
}

// NewConsumer checks the configuration and returns a consumer to be given
// subscriptions and started.
func NewConsumer(cfg ConsumerConfig) (*Consumer, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	if cfg.Transport == nil {
		cfg.Transport = transport.NewTCP(transport.TCPConfig{Logger: cfg.Logger})
	}
	c := &Consumer{
		cfg:          cfg,
		log:          cfg.Logger.With("group", cfg.Group),
		life:         newLifecycle(),
		tasks:        newDispatcher(cfg.Concurrency),
		rebalanceNow: make(chan struct{}, 1),
		retired:      make(map[string]bool),
		assigned:     make(map[Queue]*assignedQueue),
	}
	c.life.last = c.leave
	c.listening, c.stopListen = context.WithCancel(context.Background())
	c.client = newClient(clientConfig{transport: cfg.Transport, nameServers: cfg.NameServers, id: cfg.ClientID, log: c.log})
	c.serveBroker()
	retry := RetryTopic(cfg.Group)
	c.subscriptions.Store(&map[string]*topicListener{})
	c.setSubscription(retry, &topicListener{topic: retry, data: allOf(retry)})
	return c, nil
}

// Subscribe makes the listener handle the topic's messages that pass the filter.
// At least one topic is subscribed to before Start. It may be called before and
// after Start, and again to change filter or listener; after Close it is ErrClosed.
func (c *Consumer) Subscribe(topic string, filter Filter, listen Listener) error {
	if listen == nil {
		return fmt.Errorf("mq: subscribe to %s: the listener is nil", topic)
	}
	return c.subscribe(topic, filter, &topicListener{one: listen})
}

// SubscribeBatch is Subscribe for a listener that takes up to
// ConsumerConfig.BatchSize messages of one queue at once.
func (c *Consumer) SubscribeBatch(topic string, filter Filter, listen BatchListener) error {
	if listen == nil {
		return fmt.Errorf("mq: subscribe to %s: the listener is nil", topic)
	}
	return c.subscribe(topic, filter, &topicListener{many: listen, size: c.cfg.BatchSize})
}

func (c *Consumer) subscribe(topic string, filter Filter, s *topicListener) (err error) {
	if fault := nameFault(topic, maxTopicLength); fault != "" {
		return fmt.Errorf("mq: subscribe: the topic %s", fault)
	}
	if c.life.running() == ErrClosed {
		return &operationError{"mq: subscribe to " + topic, ErrClosed}
	}
	if topic == RetryTopic(c.cfg.Group) {
		return fmt.Errorf("mq: subscribe: %s is subscribed to by itself", topic)
	}
	s.topic = topic
	if s.data, err = filter.subscription(topic); err != nil {
		return fmt.Errorf("mq: subscribe to %s: %w", topic, err)
	}
	c.setSubscription(topic, s)
	c.client.watchTopics(topic)
	c.tellBrokers()
	return nil
}

// Unsubscribe ends the delivery of a topic. A listener that is running for it
// finishes; what it finishes within a second still counts, later it is not
// committed any more.
func (c *Consumer) Unsubscribe(topic string) {
	if topic != RetryTopic(c.cfg.Group) && c.setSubscription(topic, nil) {
		c.wakeRebalance()
	}
}

// Start joins the group. It returns when the first rebalance is over and every
// queue it gave to this member knows its offset or has tried to, so that a message
// sent afterwards is delivered. A topic without a route is not an error: it is
// looked for in the background. No name server reached before ctx ends is an
// error and leaves nothing behind. It may be called once, also when it fails; then
// it is ErrStarted. Only a start with nothing subscribed does not count.
func (c *Consumer) Start(ctx context.Context) error {
	if len(c.subscribed()) == 1 && c.life.running() == ErrNotStarted {
		return errors.New("mq: start consumer: nothing subscribed; call Subscribe before Start")
	}
	return startError("consumer", c.life.start(ctx, c.up, c.down))
}

func (c *Consumer) up(ctx context.Context) error {
	c.client.watchTopics(RetryTopic(c.cfg.Group))
	c.client.watchRoutes(func(string, *topicRoute) { c.wakeRebalance() })
	c.client.joinConsumer(c.cfg.Group, c)
	if err := c.client.start(ctx); err != nil {
		return err
	}
	for range c.cfg.Concurrency {
		c.life.run(c.work)
	}
	taken, _ := c.rebalance(ctx)
	for _, q := range taken {
		select {
		case <-q.located:
		case <-ctx.Done():
			return fmt.Errorf("offsets of %v: %w", q.queue, ctx.Err())
		}
	}
	c.life.run(c.rebalanceLoop)
	c.life.run(c.persistLoop)
	if c.cfg.Ordered {
		c.life.run(c.lockLoop)
	} else if c.cfg.ConsumeTimeout > 0 {
		c.life.run(c.overdueLoop)
	}
	return nil
}

// ClientID is the id under which the group's members know this one; empty before
// Start has returned.
func (c *Consumer) ClientID() string {
	if c.life.running() != nil {
		return ""
	}
	return c.client.clientID()
}

// Assigned lists the queues that this member has now, in order. Queues of the
// group's retry topic are among them.
func (c *Consumer) Assigned() []Queue {
	c.mu.Lock()
	defer c.mu.Unlock()
	queues := make([]Queue, 0, len(c.assigned))
	for q := range c.assigned {
		queues = append(queues, q)
	}
	slices.SortFunc(queues, compareQueues)
	return queues
}

// Shutdown takes no new messages, waits until the running listeners are done or
// ctx ends, which cancels their context, commits, unlocks and leaves the group.
// Then it is as Close, which waits for the cancelled listeners too. When ctx ended
// first the error wraps its error, for example context.DeadlineExceeded. Messages
// that were pulled but not begun are left to the other members.
func (c *Consumer) Shutdown(ctx context.Context) error {
	c.tasks.drain()
	var err error
	select {
	case <-c.tasks.idle():
	case <-ctx.Done():
		err = fmt.Errorf("mq: shutdown of consumer: listeners still running were cancelled: %w", ctx.Err())
	}
	return errors.Join(err, c.Close())
}

// Close cancels the context of running listeners, waits for them, commits what
// is finished, unlocks and leaves the group. It may be called at any time, more
// than once, but not from a listener, for which it waits.
func (c *Consumer) Close() error {
	c.down()
	c.life.close(c.down)
	return nil
}

// down lets no new listener begin and cancels those that run.
func (c *Consumer) down() {
	c.stopListen()
	c.tasks.drain()
}

// leave runs when workers, pull loops and timers have ended: no older offset can
// be sent after the last ones.
func (c *Consumer) leave() {
	c.leaveQueues()
	c.client.close()
}
