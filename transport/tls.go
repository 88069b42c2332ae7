package transport

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"time"
)

// The first bytes of TLS records, which no frame within the limit begins with.
const (
	tlsAlert     = 0x15
	tlsHandshake = 0x16
	tlsMajor     = 0x03
)

// refusal is a fatal handshake_failure alert. It tells a peer that wants TLS
// that there is none, and one that sends plain frames that there is only TLS,
// since its first bytes are no frame length.
var refusal = []byte{tlsAlert, tlsMajor, 0x01, 0x00, 0x02, 0x02, 0x28}

// clientTLS does the handshake of a dialled connection.
func (t *TCP) clientTLS(ctx context.Context, raw net.Conn, addr string) (net.Conn, error) {
	cfg := t.cfg.Client
	if cfg.ServerName == "" {
		host, _, err := net.SplitHostPort(addr)
		if err != nil {
			return nil, fmt.Errorf("transport: dial %s: %w", addr, err)
		}
		cfg = cfg.Clone()
		cfg.ServerName = host
	}
	c := tls.Client(raw, cfg)
	err := c.HandshakeContext(ctx)
	if err == nil {
		return c, nil
	}
	var alert *net.OpError // "remote error": what crypto/tls makes of an alert
	var notTLS tls.RecordHeaderError
	if errors.Is(err, io.EOF) || errors.Is(err, context.DeadlineExceeded) || errors.As(err, &notTLS) ||
		errors.As(err, &alert) {
		return nil, fmt.Errorf("transport: TLS handshake with %s (does it offer TLS?): %w", addr, err)
	}
	return nil, fmt.Errorf("transport: TLS handshake with %s: %w", addr, err)
}

// errRefused variants of the accepting side, for its log.
var (
	errNoTLS   = errors.New("the peer wants TLS, which is off here")
	errOnlyTLS = errors.New("the peer speaks plain, but TLS is required here")
)

// welcome reads the first byte of an accepted connection and does a handshake if
// it begins one. first holds what was read and is not TLS.
func (t *TCP) welcome(ctx context.Context, raw net.Conn) (stream net.Conn, first []byte, err error) {
	if err := raw.SetReadDeadline(time.Now().Add(t.cfg.IdleTimeout)); err != nil {
		return nil, nil, err
	}
	first = make([]byte, 1)
	if _, err := io.ReadFull(raw, first); err != nil {
		return nil, nil, err
	}
	if first[0] != tlsHandshake {
		if t.cfg.RequireTLS {
			return nil, nil, errOnlyTLS
		}
		return raw, first, nil
	}
	if t.cfg.Server == nil {
		return nil, nil, errNoTLS
	}
	if err := raw.SetReadDeadline(time.Time{}); err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, handshakeTimeout)
	defer cancel()
	c := tls.Server(&rewound{Conn: raw, first: first}, t.cfg.Server)
	if err := c.HandshakeContext(ctx); err != nil {
		return nil, nil, fmt.Errorf("TLS handshake: %w", err)
	}
	return c, nil, nil
}

// refuse tells the peer, as far as it listens, and hangs up.
func refuse(raw net.Conn) {
	deadline := time.Now().Add(flushTimeout)
	if raw.SetDeadline(deadline) != nil {
		return
	}
	if _, err := raw.Write(refusal); err == nil {
		linger(raw)
	}
}

// linger ends our direction and waits a little for the peer to end its own:
// closing with unread bytes would destroy what was just written.
func linger(raw net.Conn) {
	half, ok := raw.(interface{ CloseWrite() error })
	if !ok || half.CloseWrite() != nil || raw.SetReadDeadline(time.Now().Add(lingerTimeout)) != nil {
		return
	}
	io.Copy(io.Discard, raw) // any end will do
}

// rewound is a connection whose first byte was read already.
type rewound struct {
	net.Conn
	first []byte
}

func (r *rewound) Read(p []byte) (int, error) {
	if len(r.first) > 0 {
		n := copy(p, r.first)
		r.first = r.first[n:]
		return n, nil
	}
	return r.Conn.Read(p)
}
