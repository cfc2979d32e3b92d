package a2aqueue_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"io"
	"math/big"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"orchestrator/a2a/a2aqueue"
	"orchestrator/internal/brokertest"
)

// authority signs certificates.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pool *x509.CertPool
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{pool: x509.NewCertPool()}
	a.cert, a.key = a.sign(t, &x509.Certificate{
		Subject: pkix.Name{CommonName: "authority"}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	})
	a.pool.AddCert(a.cert)
	return a
}

func (a *authority) sign(t *testing.T, c *x509.Certificate) (*x509.Certificate, *ecdsa.PrivateKey) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c.SerialNumber, c.NotBefore, c.NotAfter = big.NewInt(time.Now().UnixNano()), time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	parent, signer := a.cert, a.key
	if parent == nil {
		parent, signer = c, key
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, &key.PublicKey, signer)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return cert, key
}

func (a *authority) leaf(t *testing.T, c *x509.Certificate) tls.Certificate {
	t.Helper()
	cert, key := a.sign(t, c)
	return tls.Certificate{Certificate: [][]byte{cert.Raw}, PrivateKey: key}
}

// terminate takes TLS connections that bring a certificate of the authority's, and passes them on to a broker.
func terminate(t *testing.T, broker string, a *authority) (url string) {
	t.Helper()
	server := a.leaf(t, &x509.Certificate{DNSNames: []string{"broker.example"}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}})
	ln, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{
		Certificates: []tls.Certificate{server}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: a.pool,
	})
	if err != nil {
		t.Fatal(err)
	}
	target := hostOf(t, broker)
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			client, err := ln.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer client.Close()
				conn, err := net.Dial("tcp", target)
				if err != nil {
					t.Error(err)
					return
				}
				var both sync.WaitGroup
				both.Go(func() {
					_, _ = io.Copy(conn, client) // ends with either
					conn.Close()
				})
				_, _ = io.Copy(client, conn)
				client.Close()
				both.Wait()
			})
		}
	})
	t.Cleanup(func() {
		ln.Close()
		wg.Wait()
	})
	return strings.Replace(strings.Replace(broker, target, ln.Addr().String(), 1), "amqp:", "amqps:", 1)
}

func TestABrokerBehindTLSIsCheckedAndChecksUs(t *testing.T) {
	ours, theirs := newAuthority(t), newAuthority(t)
	url := terminate(t, brokertest.Vhost(t), ours)
	us := ours.leaf(t, &x509.Certificate{Subject: pkix.Name{CommonName: "orchestrator"}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	with := func(pool *x509.CertPool, name string, certs ...tls.Certificate) *tls.Config {
		return &tls.Config{RootCAs: pool, ServerName: name, Certificates: certs, MinVersion: tls.VersionTLS12}
	}
	for _, tt := range []struct {
		name string
		tls  *tls.Config
		want string // "" is no error
	}{
		{"all as it should be", with(ours.pool, "broker.example", us), ""},
		{"an authority we don't know", with(theirs.pool, "broker.example", us), "unknown authority"},
		{"the authorities of the system", nil, "certificate"},
		{"another name, the URL's", with(ours.pool, "", us), "127.0.0.1"},
		// In TLS 1.3 we have shaken hands by then: the alert may come first, or the end of the connection.
		{"no certificate of ours", with(ours.pool, "broker.example"), "connect to amqps://"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := open(t, a2aqueue.BrokerConfig{URL: url, TLS: tt.tls})
			err := b.Ping(bounded(t))
			if tt.want != "" {
				if !errors.Is(err, a2aqueue.ErrNotConnected) || !strings.Contains(err.Error(), tt.want) {
					t.Errorf("Ping() = %v, want ErrNotConnected with %q", err, tt.want)
				}
				return
			}
			if err != nil {
				t.Fatalf("Ping() = %v", err)
			}
			q := declare(t, b, "q", nil)
			in := subscribe(t, b, a2aqueue.Subscription{Queue: q})
			body := strings.Repeat("x", 1<<20)
			p := text(q, "1")
			p.Body = []byte(body)
			if err := b.Publish(bounded(t), p); err != nil {
				t.Fatal(err)
			}
			d := in.next(t)
			if string(d.Body) != body {
				t.Errorf("the body came as %d bytes, want it as it was", len(d.Body))
			}
			if err := d.Ack(); err != nil {
				t.Error(err)
			}
		})
	}
	if tt := with(ours.pool, "", us); tt.ServerName != "" {
		t.Error("the caller's configuration was changed")
	}
}

func TestTLSWithoutAURLForItIsRefused(t *testing.T) {
	_, err := a2aqueue.NewBroker(a2aqueue.BrokerConfig{URL: "amqp://h/", TLS: &tls.Config{}})
	if err == nil || !strings.Contains(err.Error(), "write amqps://") {
		t.Errorf("NewBroker() = %v, want a hint at the scheme", err)
	}
}

func TestAMechanismTheBrokerHasNotIsNamed(t *testing.T) {
	b := open(t, a2aqueue.BrokerConfig{URL: brokertest.Vhost(t) + "?auth_mechanism=external"})
	if err := b.Ping(bounded(t)); !errors.Is(err, a2aqueue.ErrCredentials) || !strings.Contains(err.Error(), "SASL") {
		t.Errorf("Ping() = %v, want ErrCredentials that speaks of SASL", err)
	}
}
