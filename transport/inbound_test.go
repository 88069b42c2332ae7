package transport_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/pocketmq/mq/transport"
)

// Requests of a megabyte wait for their answers: as many as fit are taken, the
// rest is refused, a small one passes, and answers make room, also those to a
// connection that has closed.
func TestUnansweredRequestsAreBoundedInBytes(t *testing.T) {
	for name, tr := range map[string]transport.Transport{
		"tcp":    transport.NewTCP(transport.TCPConfig{Inbound: 4 << 20, MaxFrame: 2 << 20}),
		"memory": transport.NewMemory(transport.MemoryConfig{Inbound: 4 << 20, MaxFrame: 2 << 20, Encoding: transport.EncodeJSON}),
	} {
		t.Run(name, func(t *testing.T) {
			stalled := make(replies, 100)
			l := listen(t, tr, suite(stalled))
			big := &transport.Frame{Code: codeStall, Body: make([]byte, 1<<20)}
			refused := func(c transport.Conn, n int) int {
				t.Helper()
				answers := make(chan int32, n)
				for range n {
					if err := c.Go(context.Background(), big, time.Now().Add(time.Minute), func(f *transport.Frame, err error) {
						if err == nil {
							answers <- f.Code
						}
					}); err != nil {
						t.Fatal(err)
					}
				}
				// A small request is served whatever there is, and after the others.
				if _, err := c.Call(t.Context(), &transport.Frame{Code: codeEcho, Body: make([]byte, 1000)}); err != nil {
					t.Fatal(err)
				}
				for i := range len(answers) {
					if code := <-answers; code != 2 {
						t.Errorf("answer %d is %d", i, code)
					}
				}
				return n - len(stalled)
			}
			answer := func() {
				for len(stalled) > 0 {
					(<-stalled)(&transport.Frame{})
				}
			}
			one := dial(t, tr, l.Addr(), nil)
			if n := refused(one, 10); n != 7 {
				t.Errorf("%d of 10 requests were refused, want 7", n)
			}
			answer()
			if n := refused(one, 10); n != 7 {
				t.Errorf("%d of 10 requests were refused after answers, want 7", n)
			}
			// All connections together hold four times as much.
			var others sync.WaitGroup
			for range 7 {
				c := dial(t, tr, l.Addr(), nil)
				refused(c, 4)
				others.Go(func() {
					if err := c.Close(); err != nil {
						t.Error(err)
					}
				})
			}
			others.Wait()
			if held := len(stalled); held < 12 || held > 15 {
				t.Errorf("%d requests of 1 MiB are held, want 15 at most", held)
			}
			answer()
			if n := refused(dial(t, tr, l.Addr(), nil), 3); n != 0 {
				t.Errorf("%d of 3 requests were refused though nothing is held", n)
			}
			answer()
		})
	}
}
