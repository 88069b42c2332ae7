package transport_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"math/big"
	"net"
	"strconv"
	"testing"
	"time"

	"github.com/pocketmq/mq/transport"
)

// A network is one transport in one configuration, for the conformance suite.
type network struct {
	name string
	make func(t testing.TB, s settings) transport.Transport
}

// settings are what a test of the suite may ask of a network.
type settings struct {
	window, outbound int
	callTimeout      time.Duration
}

var encodings = []struct {
	name string
	transport.Encoding
}{{"json", transport.EncodeJSON}, {"rocketmq", transport.EncodeRocketMQ}, {"msgpack", transport.EncodeMsgPack}}

func networks() []network {
	all := []network{{"memory", memoryNetwork(transport.EncodeDefault)}}
	for _, e := range encodings {
		all = append(all,
			network{"memory-" + e.name, memoryNetwork(e.Encoding)},
			network{"tcp-" + e.name, tcpNetwork(e.Encoding, false)})
	}
	return append(all, network{"tls", tcpNetwork(transport.EncodeDefault, true)})
}

func memoryNetwork(e transport.Encoding) func(testing.TB, settings) transport.Transport {
	return func(_ testing.TB, s settings) transport.Transport {
		return transport.NewMemory(transport.MemoryConfig{Encoding: e, Window: s.window, Outbound: s.outbound,
			CallTimeout: s.callTimeout})
	}
}

func tcpNetwork(e transport.Encoding, secure bool) func(testing.TB, settings) transport.Transport {
	return func(t testing.TB, s settings) transport.Transport {
		cfg := transport.TCPConfig{Encoding: e, Window: s.window, Outbound: s.outbound, CallTimeout: s.callTimeout}
		if secure {
			cert, pool := certificate(t, "127.0.0.1", time.Now().Add(time.Hour))
			cfg.Server = &tls.Config{Certificates: []tls.Certificate{cert}}
			cfg.Client = &tls.Config{RootCAs: pool}
		}
		return transport.NewTCP(cfg)
	}
}

// certificate makes a self-signed certificate for an ip, and the roots to trust it.
func certificate(t testing.TB, ip string, expires time.Time) (tls.Certificate, *x509.CertPool) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"},
		NotBefore: expires.Add(-48 * time.Hour), NotAfter: expires,
		IPAddresses: []net.IP{net.ParseIP(ip)}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(leaf)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, pool
}

// eachNetwork runs a test of the suite on every network.
func eachNetwork(t *testing.T, s settings, test func(*testing.T, transport.Transport)) {
	for _, n := range networks() {
		t.Run(n.name, func(t *testing.T) { test(t, n.make(t, s)) })
	}
}

func listen(t testing.TB, tr transport.Transport, table *transport.Table) transport.Listener {
	t.Helper()
	l, err := tr.Listen(t.Context(), "127.0.0.1:0", table)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	return l
}

func dial(t testing.TB, tr transport.Transport, addr string, table *transport.Table) transport.Conn {
	t.Helper()
	c, err := tr.Dial(t.Context(), addr, table)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func call(t testing.TB, c transport.Conn, req *transport.Frame) *transport.Frame {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	resp, err := c.Call(ctx, req)
	if err != nil {
		t.Fatalf("call of code %d: %v", req.Code, err)
	}
	return resp
}

// wait waits for a channel to close or to give a value, far longer than needed.
func wait[T any](t testing.TB, c <-chan T, what string) (v T) {
	t.Helper()
	select {
	case v = <-c:
	case <-time.After(20 * time.Second):
		t.Fatalf("waited in vain for %s", what)
	}
	return v
}

// sample is a typed header with what headers have: a text, a number, an optional.
type sample struct {
	Topic string
	Queue int32
	Note  string
}

func (h *sample) AppendFields(f []string) []string {
	f = append(f, "topic", h.Topic, "queueId", strconv.Itoa(int(h.Queue)))
	if h.Note != "" {
		f = append(f, "note", h.Note)
	}
	return f
}

func (h *sample) ParseFields(f []string) error {
	var found bool
	for i := 0; i < len(f); i += 2 {
		switch f[i] {
		case "topic":
			h.Topic, found = f[i+1], true
		case "queueId":
			n, err := strconv.ParseInt(f[i+1], 10, 32)
			if err != nil {
				return fmt.Errorf("queueId: %w", err)
			}
			h.Queue = int32(n)
		case "note":
			h.Note = f[i+1]
		}
	}
	if !found {
		return fmt.Errorf("topic is missing")
	}
	return nil
}
