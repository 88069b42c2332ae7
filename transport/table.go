package transport

import (
	"context"
	"fmt"
	"log/slog"
	"runtime"
	"runtime/debug"
	"sync"
)

// Response codes that the transport itself answers, equal to RocketMQ's.
const (
	codeSystemError      int32 = 1
	codeSystemBusy       int32 = 2
	codeUnknownRequest   int32 = 3
	remarkPoolOverloaded       = "[OVERLOAD]system busy, start flow control for a while"
)

// A Table maps request codes to handlers and says where each runs. Fill it
// before it is first used; afterwards it is read only.
type Table struct {
	// Language and Version are stamped on every frame that leaves.
	Language Language
	Version  int32
	// Opened and Closed, if set, are told of each accepted or dialled connection,
	// an accepted TCP connection from its first byte on. Closed runs after the
	// connection's last inline handler returned. They must not block.
	Opened, Closed func(Conn)
	// Logger is told of handlers that panic; nil means the transport's logger.
	Logger *slog.Logger

	entries map[int32]entry
	wrap    []func(Handler) Handler
}

type entry struct {
	handler Handler
	pool    *Pool // nil: inline on the connection's reader
}

// Handle serves code with h. With a nil pool h runs inline on the connection's
// reader: only what does no I/O and takes no lock that is held for long may do
// that, because everything behind it on the connection waits. Otherwise it runs
// on pool, and a full pool is answered with SYSTEM_BUSY (RocketMQ: [OVERLOAD]).
func (t *Table) Handle(code int32, pool *Pool, h Handler) {
	if t.entries == nil {
		t.entries = make(map[int32]entry)
	}
	if _, dup := t.entries[code]; dup {
		panic(fmt.Sprintf("transport: two handlers for code %d", code))
	}
	for i := len(t.wrap) - 1; i >= 0; i-- {
		h = t.wrap[i](h)
	}
	t.entries[code] = entry{h, pool}
}

// Use puts a layer around every handler that is added later. The first layer is
// the outermost.
func (t *Table) Use(layer func(Handler) Handler) { t.wrap = append(t.wrap, layer) }

// Serve runs the handler of req where it belongs. An unknown code is answered
// with REQUEST_CODE_NOT_SUPPORTED, also by a name server, where RocketMQ 4.9
// stays silent and lets the caller time out. A handler that panics is logged and
// answered with SYSTEM_ERROR.
func (t *Table) Serve(ctx context.Context, c Conn, req *Frame, reply func(*Frame)) {
	t.serve(ctx, c, req, reply, nil)
}

func (t *Table) serve(ctx context.Context, c Conn, req *Frame, reply func(*Frame), log *slog.Logger) {
	var e entry
	if t != nil {
		e = t.entries[req.Code]
	}
	switch {
	case e.handler == nil:
		reply(&Frame{Code: codeUnknownRequest, Remark: fmt.Sprintf(" request type %d not supported", req.Code)})
	case e.pool == nil:
		t.run(e.handler, ctx, c, req, reply, log)
	default:
		if !e.pool.Submit(func() { t.run(e.handler, ctx, c, req, reply, log) }) {
			reply(&Frame{Code: codeSystemBusy, Remark: remarkPoolOverloaded})
		}
	}
}

// run keeps a handler's panic from taking the connection or the pool down.
func (t *Table) run(h Handler, ctx context.Context, c Conn, req *Frame, reply func(*Frame), log *slog.Logger) {
	defer func() {
		r := recover()
		if r == nil {
			return
		}
		if t.Logger != nil {
			log = t.Logger
		}
		if log != nil {
			log.Error("panic in a handler", "code", req.Code, "peer", c.RemoteAddr(), "panic", r, "stack", string(debug.Stack()))
		}
		reply(&Frame{Code: codeSystemError, Remark: fmt.Sprintf("handler of code %d panicked: %v", req.Code, r)})
	}()
	h(ctx, c, req, reply)
}

// A Pool runs tasks on a bounded number of goroutines with a bounded queue. A
// worker ends when it finds nothing to do, so an idle pool has no goroutine.
type Pool struct {
	// Logger is told of tasks that panic; nil discards. Set it before the first
	// Submit.
	Logger *slog.Logger

	mu      sync.Mutex
	tasks   []func()
	head    int
	running int
	closed  bool
	idle    chan struct{} // closed when the last worker of a closed pool ends

	workers, queue int
}

// NewPool makes a pool of at most workers goroutines and queue waiting tasks.
func NewPool(workers, queue int) *Pool {
	return &Pool{workers: workers, queue: queue, idle: make(chan struct{})}
}

// Submit runs task soon and returns true, or false when the queue is full or the
// pool is closed.
func (p *Pool) Submit(task func()) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return false
	}
	if p.running < p.workers {
		p.running++
		go p.work(task)
		return true
	}
	if len(p.tasks)-p.head >= p.queue {
		return false
	}
	p.tasks = append(p.tasks, task)
	return true
}

// Close refuses new tasks and waits until those that were taken have run. It is
// idempotent, and must not be called from a task.
func (p *Pool) Close() {
	p.mu.Lock()
	if !p.closed {
		p.closed = true
		if p.running == 0 {
			close(p.idle)
		}
	}
	p.mu.Unlock()
	<-p.idle
}

func (p *Pool) work(task func()) {
	for task != nil {
		// Give way to whatever can run. Without this a chain of goroutines that wake
		// each other, as a reader of cold data and its peer do, may keep a processor
		// from all others for a whole time slice, and so a send for several of them.
		runtime.Gosched()
		p.run(task)
		task = p.next()
	}
}

// run keeps a task's panic from ending the worker, and with it the process.
func (p *Pool) run(task func()) {
	defer func() {
		if r := recover(); r != nil && p.Logger != nil {
			p.Logger.Error("panic in a pool task", "panic", r, "stack", string(debug.Stack()))
		}
	}()
	task()
}

// next takes the oldest waiting task; nil ends the worker, whose place is given
// up under the same lock, so that no task is left behind.
func (p *Pool) next() func() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.head == len(p.tasks) {
		p.tasks, p.head = p.tasks[:0], 0
		p.running--
		if p.closed && p.running == 0 {
			close(p.idle)
		}
		return nil
	}
	task := p.tasks[p.head]
	p.tasks[p.head] = nil
	p.head++
	if p.head > 1024 && p.head*2 > len(p.tasks) {
		n := copy(p.tasks, p.tasks[p.head:])
		clear(p.tasks[n:])
		p.tasks, p.head = p.tasks[:n], 0
	}
	return task
}
