package transport

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// tiredListener fails to accept a number of times, then is closed.
type tiredListener struct{ left int }

func (l *tiredListener) Accept() (net.Conn, error) {
	if l.left--; l.left < 0 {
		return nil, net.ErrClosed
	}
	return nil, errors.New("too many open files")
}
func (l *tiredListener) Close() error   { return nil }
func (l *tiredListener) Addr() net.Addr { return &net.TCPAddr{} }

func TestAcceptBacksOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		l := &tcpListener{tcp: NewTCP(TCPConfig{}), ln: &tiredListener{left: 20}, log: newRareLog(slog.New(slog.NewTextHandler(&log, nil)))}
		l.ctx, l.cancel = context.WithCancel(t.Context())
		l.tasks.Add(1)
		start := time.Now()
		l.accept()
		if d := time.Since(start); d < 10*time.Second || d > 20*time.Second {
			t.Errorf("20 failures took %v", d)
		}
		if n := strings.Count(log.String(), "accept failed"); n != 2 {
			t.Errorf("%d lines in the log:\n%s", n, log.String())
		}
	})
}

func TestRareLogCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		r := newRareLog(slog.New(slog.NewTextHandler(&log, nil)))
		for range 100 {
			r.warn("bad")
		}
		time.Sleep(rareLogPause)
		r.warn("bad")
		if n := strings.Count(log.String(), "msg=bad"); n != 2 || !strings.Contains(log.String(), "=99") {
			t.Errorf("the log is:\n%s", log.String())
		}
	})
}
