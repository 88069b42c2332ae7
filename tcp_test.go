package mq

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"math/big"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pocketmq/mq/transport"
)

// The same things as in bubbles, in real time over sockets: plain with each codec,
// and TLS.
func overTCP(t *testing.T, f func(t *testing.T, c *testCluster)) {
	server, client := testTLS(t)
	for name, cfg := range map[string]transport.TCPConfig{
		"JSON":     {Encoding: transport.EncodeJSON},
		"ROCKETMQ": {Encoding: transport.EncodeRocketMQ},
		"MSGPACK":  {Encoding: transport.EncodeMsgPack},
		"TLS":      {Server: server, Client: client},
	} {
		t.Run(name, func(t *testing.T) {
			tcp := transport.NewTCP(cfg)
			c := &testCluster{t: t, over: tcp, ns: startNameServer(t, tcp, NameServerConfig{})}
			c.broker = c.startBroker(BrokerConfig{Dir: t.TempDir()})
			f(t, c)
		})
	}
}

// testTLS makes a certificate for 127.0.0.1 and both sides' configurations.
func testTLS(t *testing.T) (server, client *tls.Config) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, IsCA: true,
		BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(cert)
	return &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}}, &tls.Config{RootCAs: roots}
}

func TestOverTCPWhatIsSentIsReceived(t *testing.T) {
	overTCP(t, func(t *testing.T, c *testCluster) {
		p, in := c.producer(ProducerConfig{}), newInbox()
		c.sendMany(p, "orders", 0, 10)
		c.consume(ConsumerConfig{}, "orders", Filter{}, in.listen)
		in.wait(t, 10, 30*time.Second)
		begun := time.Now()
		c.sendMany(p, "orders", 10, 1) // wakes a pull that the broker holds
		in.wait(t, 11, 30*time.Second)
		if late := time.Since(begun); late > 5*time.Second {
			t.Errorf("a held pull brought the message after %v", late)
		}
		big := make([]byte, 3<<20)
		for i := range big {
			big[i] = byte(i * i)
		}
		c.send(p, &Message{Topic: "orders", Body: big})
		in.wait(t, 12, 30*time.Second)
	})
}

func TestOverTCPAnotherMemberTakesOver(t *testing.T) {
	overTCP(t, func(t *testing.T, c *testCluster) {
		p, first, second := c.producer(ProducerConfig{}), newInbox(), newInbox()
		c.sendMany(p, "orders", 0, 8)
		one := c.consume(ConsumerConfig{}, "orders", Filter{}, first.listen)
		first.wait(t, 8, 30*time.Second)
		two := c.consume(ConsumerConfig{}, "orders", Filter{}, second.listen)
		one.Close()
		want := len(second.bodies()) + 8
		c.sendMany(p, "orders", 8, 8)
		second.wait(t, want, 30*time.Second)
		if n := len(two.Assigned()); n < 4 {
			t.Errorf("the member that stayed has %d queues", n)
		}
	})
}

func TestOverTCPFailedMessageComesAgain(t *testing.T) {
	overTCP(t, func(t *testing.T, c *testCluster) {
		p, in := c.producer(ProducerConfig{}), newInbox()
		c.sendMany(p, "orders", 0, 1)
		var failed atomic.Bool
		c.consume(ConsumerConfig{}, "orders", Filter{}, func(ctx context.Context, d *Delivery) error {
			if !failed.Swap(true) {
				return RetryAfter(time.Second, errors.New("not yet"))
			}
			return in.listen(ctx, d)
		})
		in.wait(t, 1, 30*time.Second)
		if d := in.all()[0]; d.Attempt != 2 || d.Topic != "orders" {
			t.Errorf("attempt %d of topic %s, want the second of orders", d.Attempt, d.Topic)
		}
	})
}
