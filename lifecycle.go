package mq

import (
	"context"
	"sync"
)

// lifecycle is the one contract behind every Start and Close: a start that fails
// leaves nothing behind, Close may come at any time and any number of times, each
// returns when everything has ended, and no goroutine starts after closing began.
type lifecycle struct {
	mu     sync.Mutex // never held across a wait
	state  lifeState
	ctx    context.Context // ends when closing begins
	cancel context.CancelFunc
	began  chan struct{} // closed when start's attempt is over
	ended  chan struct{} // closed when everything has ended
	group  sync.WaitGroup
	last   func() // runs when the goroutines have ended; may be nil, set before start
}

type lifeState int

const (
	lifeNew lifeState = iota
	lifeStarting
	lifeRunning
	lifeFailed
	lifeClosing
)

func newLifecycle() *lifecycle {
	l := &lifecycle{began: make(chan struct{}), ended: make(chan struct{})}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	return l
}

// start runs up once. The context that up gets ends with ctx and when closing
// begins; when up fails, down runs at once.
func (l *lifecycle) start(ctx context.Context, up func(context.Context) error, down func()) error {
	l.mu.Lock()
	if l.state != lifeNew {
		closing := l.state == lifeClosing
		l.mu.Unlock()
		if closing {
			return ErrClosed
		}
		return ErrStarted
	}
	l.state = lifeStarting
	l.mu.Unlock()

	startCtx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(l.ctx, cancel)
	err := up(startCtx)
	stop()
	cancel()
	l.mu.Lock()
	if l.state == lifeClosing && err == nil {
		err = ErrClosed // closed meanwhile; close takes it down
	} else if l.state == lifeStarting {
		l.state = lifeRunning
		if err != nil {
			l.state = lifeFailed
		}
	}
	failed := l.state == lifeFailed
	l.mu.Unlock()
	if failed {
		l.takeDown(down)
	}
	close(l.began)
	return err
}

// close ends everything: it cancels the context, waits for a start in progress,
// runs down unless the start failed or never was, and waits for the goroutines.
func (l *lifecycle) close(down func()) {
	l.mu.Lock()
	before := l.state
	l.state = lifeClosing
	l.mu.Unlock()
	if before == lifeClosing {
		<-l.ended
		return
	}
	l.cancel()
	if before == lifeStarting || before == lifeFailed {
		<-l.began // a failed start is taken down by then
	}
	if before == lifeStarting || before == lifeRunning {
		l.takeDown(down)
	}
	close(l.ended)
}

func (l *lifecycle) takeDown(down func()) {
	l.cancel()
	down()
	l.group.Wait()
	if l.last != nil {
		l.last()
	}
}

// running returns nil between a successful start and the beginning of close.
func (l *lifecycle) running() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch l.state {
	case lifeRunning:
		return nil
	case lifeClosing:
		return ErrClosed
	}
	return ErrNotStarted
}

// run starts a goroutine that close waits for. fn must return soon after its
// context ends. It returns false, and starts nothing, once closing has begun.
func (l *lifecycle) run(fn func(ctx context.Context)) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.state == lifeClosing || l.state == lifeFailed {
		return false
	}
	l.group.Add(1)
	go func() {
		defer l.group.Done()
		fn(l.ctx)
	}()
	return true
}
