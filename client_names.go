package mq

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/pocketmq/mq/internal/wire"
	"github.com/pocketmq/mq/transport"
)

// nameServers asks one name server after the other: it stays with the one that
// answered last, and when that one fails goes on round the list.
type nameServers struct {
	addrs []string
	conns *connPool

	mu    sync.Mutex
	stick int    // index of the one that answered last
	local string // our own host, as seen from a connection
}

func newNameServers(addrs []string, conns *connPool) *nameServers {
	n := &nameServers{addrs: addrs, conns: conns}
	if len(addrs) > 1 {
		n.stick = rand.IntN(len(addrs)) // spreads the clients over the servers
	}
	return n
}

// localHost is the host from which a name server was reached.
func (n *nameServers) localHost() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.local
}

func (n *nameServers) order() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	order := make([]string, 0, len(n.addrs))
	return append(append(order, n.addrs[n.stick:]...), n.addrs[:n.stick]...)
}

func (n *nameServers) answered(addr, local string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.local = hostOf(local)
	for i, a := range n.addrs {
		if a == addr {
			n.stick = i
		}
	}
}

// route asks for a topic's route. When a name server does not know the topic the
// others are asked too, since they do not talk to each other and one that has
// just been restarted knows nothing yet. The error wraps ErrTopicNotFound when at
// least one answered and none knew the topic, ErrNoNameServer when none answered.
func (n *nameServers) route(ctx context.Context, topic string) (wire.RouteData, error) {
	var unknown error
	var failed []error
	order := n.order()
	for i, addr := range order {
		f, err := n.ask(ctx, addr, len(order)-i, &wire.RouteRequest{Topic: topic, StandardJSON: true})
		switch {
		case err != nil:
			failed = append(failed, err)
		case f.Code == wire.Success:
			return wire.ParseRouteData(f.Body)
		case f.Code == wire.TopicNotExist:
			unknown = answerError("look up "+topic, addr, f)
		default:
			failed = append(failed, answerError("look up "+topic, addr, f))
		}
		if ctx.Err() != nil {
			break
		}
	}
	if unknown != nil {
		return wire.RouteData{}, unknown
	}
	return wire.RouteData{}, fmt.Errorf("%w: %w", ErrNoNameServer, errors.Join(failed...))
}

// ask makes one try. Its time limit leaves some for the other servers, within the
// time that a send waits for its route. A connection on which no answer came in time is closed.
func (n *nameServers) ask(ctx context.Context, addr string, tries int, h transport.Header) (*transport.Frame, error) {
	limit := max(callTimeout/time.Duration(len(n.addrs)), minTryLimit)
	if at, ok := ctx.Deadline(); ok {
		limit = min(limit, time.Until(at)/time.Duration(tries))
	}
	tryCtx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	conn, err := n.conns.connect(tryCtx, addr)
	if err != nil {
		return nil, &operationError{"ask name server " + addr, err}
	}
	f, err := conn.Call(tryCtx, &transport.Frame{Code: wire.CodeGetRouteInfoByTopic, Header: h})
	if err != nil {
		if ctx.Err() == nil {
			conn.Close() // a server that does not answer is dialled anew
		}
		// Not callError: what the look-up is for was not sent, and that is certain.
		return nil, &operationError{"ask name server " + addr, err}
	}
	n.answered(addr, conn.LocalAddr())
	return f, nil
}
