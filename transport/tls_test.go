package transport_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/pocketmq/mq/transport"
)

// serverTLS makes a TLS server and roots that trust it.
func serverTLS(t *testing.T, ip string, expires time.Time) (server, client *tls.Config) {
	cert, pool := certificate(t, ip, expires)
	return &tls.Config{Certificates: []tls.Certificate{cert}}, &tls.Config{RootCAs: pool}
}

func TestTLSFailuresNameTheirCause(t *testing.T) {
	later := time.Now().Add(time.Hour)
	good, trusting := serverTLS(t, "127.0.0.1", later)
	expired, trustsExpired := serverTLS(t, "127.0.0.1", time.Now().Add(-time.Hour))
	misnamed, trustsMisnamed := serverTLS(t, "10.9.9.9", later)
	for name, test := range map[string]struct {
		server, client *tls.Config
		cause          string
	}{
		"TLS to plain":        {nil, trusting, "does it offer TLS?"},
		"unknown authority":   {good, &tls.Config{}, "unknown authority"},
		"expired certificate": {expired, trustsExpired, "expired"},
		"wrong name":          {misnamed, trustsMisnamed, "127.0.0.1"},
	} {
		t.Run(name, func(t *testing.T) {
			l := listen(t, transport.NewTCP(transport.TCPConfig{Server: test.server}), suite(nil))
			start := time.Now()
			c, err := transport.NewTCP(transport.TCPConfig{Client: test.client}).Dial(t.Context(), l.Addr(), nil)
			if err == nil {
				c.Close()
				t.Fatal("the dial succeeded")
			}
			if !strings.Contains(err.Error(), test.cause) || !strings.Contains(err.Error(), l.Addr()) {
				t.Errorf("the error does not name the cause: %v", err)
			}
			if d := time.Since(start); d > 3*time.Second {
				t.Errorf("it took %v", d)
			}
		})
	}
}

func TestTLSToASilentServerTimesOut(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0") // accepts in the kernel, says nothing
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	_, client := serverTLS(t, "127.0.0.1", time.Now().Add(time.Hour))
	tr := transport.NewTCP(transport.TCPConfig{Client: client, DialTimeout: 100 * time.Millisecond})
	start := time.Now()
	_, err = tr.Dial(t.Context(), ln.Addr().String(), nil)
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "TLS handshake") {
		t.Errorf("the dial gave %v", err)
	}
	if d := time.Since(start); d > 2*time.Second {
		t.Errorf("it took %v", d)
	}
}

func TestPlainToRequiredTLS(t *testing.T) {
	server, _ := serverTLS(t, "127.0.0.1", time.Now().Add(time.Hour))
	l := listen(t, transport.NewTCP(transport.TCPConfig{Server: server, RequireTLS: true}), suite(nil))
	c := dial(t, transport.NewTCP(transport.TCPConfig{}), l.Addr(), nil)
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	_, err := c.Call(ctx, &transport.Frame{Code: codeEcho})
	if !errors.Is(err, transport.ErrClosed) || !strings.Contains(err.Error(), "the peer speaks TLS") {
		t.Errorf("the call gave %v", err)
	}
}

func TestPlainAndTLSShareAPort(t *testing.T) {
	server, client := serverTLS(t, "127.0.0.1", time.Now().Add(time.Hour))
	l := listen(t, transport.NewTCP(transport.TCPConfig{Server: server}), suite(nil))
	for range 2 {
		plain := dial(t, transport.NewTCP(transport.TCPConfig{}), l.Addr(), nil)
		secure := dial(t, transport.NewTCP(transport.TCPConfig{Client: client}), l.Addr(), nil)
		call(t, plain, &transport.Frame{Code: codeEcho})
		call(t, secure, &transport.Frame{Code: codeEcho})
	}
}

func TestTLSCarriesLargeAnswersByteEqual(t *testing.T) {
	server, client := serverTLS(t, "127.0.0.1", time.Now().Add(time.Hour))
	tr := transport.NewTCP(transport.TCPConfig{Server: server, Client: client})
	body := make([]byte, 1<<20)
	for i := range body {
		body[i] = byte(i * i >> 7)
	}
	table := &transport.Table{}
	table.Handle(11, nil, func(_ context.Context, _ transport.Conn, _ *transport.Frame, reply func(*transport.Frame)) {
		reply(&transport.Frame{Body: body})
	})
	c := dial(t, tr, listen(t, tr, table).Addr(), nil)
	for i := range 100 {
		if r := call(t, c, &transport.Frame{Code: 11}); !bytes.Equal(r.Body, body) {
			t.Fatalf("answer %d differs", i)
		}
	}
}

func TestHalfAHandshakeDoesNotHoldUpClose(t *testing.T) {
	server, _ := serverTLS(t, "127.0.0.1", time.Now().Add(time.Hour))
	l := listen(t, transport.NewTCP(transport.TCPConfig{Server: server}), suite(nil))
	c := rawDial(t, l.Addr())
	if _, err := c.Write([]byte{0x16, 0x03, 0x01}); err != nil {
		t.Fatal(err)
	}
	silent := rawDial(t, l.Addr())
	start := time.Now()
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if d := time.Since(start); d > 3*time.Second {
		t.Errorf("closing took %v", d)
	}
	for _, c := range []net.Conn{c, silent} {
		if _, err := io.Copy(io.Discard, c); isTimeout(err) {
			t.Error("a half-open connection was left")
		}
	}
}
