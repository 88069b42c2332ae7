package transport_test

import (
	"bytes"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pocketmq/mq/transport"
)

func TestPoolBoundsWorkersAndQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := transport.NewPool(2, 3)
		var running, most, done atomic.Int32
		task := func() {
			if n := running.Add(1); n > most.Load() {
				most.Store(n)
			}
			time.Sleep(time.Second)
			running.Add(-1)
			done.Add(1)
		}
		for i := range 7 {
			if took := p.Submit(task); took != (i < 5) {
				t.Errorf("task %d: taken is %v", i, took)
			}
		}
		p.Close()
		if most.Load() != 2 || done.Load() != 5 {
			t.Errorf("%d ran at once, %d in all", most.Load(), done.Load())
		}
		if p.Submit(task) {
			t.Error("a closed pool took a task")
		}
		p.Close()
	})
}

func TestPoolSurvivesAPanic(t *testing.T) {
	var log bytes.Buffer
	p := transport.NewPool(1, 10)
	p.Logger = slog.New(slog.NewTextHandler(&log, nil))
	ran := false
	p.Submit(func() { panic("boom") })
	p.Submit(func() { ran = true })
	p.Close()
	if !ran {
		t.Error("the task behind a panic did not run")
	}
	if !strings.Contains(log.String(), "boom") {
		t.Errorf("the panic is not in the log: %s", log.String())
	}
}

func TestPoolRunsManyTasks(t *testing.T) {
	const n = 20000
	p := transport.NewPool(4, n)
	var ran atomic.Int32
	for range n {
		if !p.Submit(func() { ran.Add(1) }) {
			t.Fatal("refused")
		}
	}
	p.Close()
	if ran.Load() != n {
		t.Errorf("%d of %d ran", ran.Load(), n)
	}
}
