package transport

// InFlight returns the number of permits in use on a connection, for tests.
func InFlight(c Conn) int {
	var k *conn
	switch c := c.(type) {
	case *memoryConn:
		k = &c.conn
	case *tcpConn:
		k = &c.conn
	}
	k.calls.mu.Lock()
	defer k.calls.mu.Unlock()
	n := 0
	for i := range k.calls.slots {
		if k.calls.slots[i].opaque != 0 {
			n++
		}
	}
	return max(n, k.calls.inUse)
}

// Over returns the channel that closes when a connection has finished its calls.
func Over(c Conn) <-chan struct{} {
	switch c := c.(type) {
	case *memoryConn:
		return c.over
	case *tcpConn:
		return c.over
	}
	return nil
}
