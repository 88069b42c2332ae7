package transport

import "sync/atomic"

// What requests bring is bounded until they are answered, wherever they wait: in
// a pool, in a handler that answers later, or behind a slow disk. Otherwise a few
// peers could fill the memory with requests that nobody has got round to. A small
// request always passes, so that large ones cannot keep heartbeats and pulls out;
// those are bounded in number by whoever lets them wait.
const (
	listenerShare = 4 // a listener's bound is that of so many connections
	smallRequest  = 4 << 10
)

// inbound counts the bytes of requests that have come and are not answered.
type inbound struct{ bytes atomic.Int64 }

// admit counts a request of n bytes, unless it is one too many.
func (c *conn) admit(n int64) bool {
	limit := int64(c.limits.inbound)
	mine, all := c.load.bytes.Add(n), c.others.bytes.Add(n)
	if n <= smallRequest || mine <= limit && all <= listenerShare*limit {
		return true
	}
	c.release(n)
	return false
}

// release ends the count of a request. It comes with the answer, also when the
// connection has closed: until then its bytes are held.
func (c *conn) release(n int64) {
	if n > 0 {
		c.load.bytes.Add(-n)
		c.others.bytes.Add(-n)
	}
}
