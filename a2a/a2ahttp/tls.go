package a2ahttp

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/http"
	"os"
	"time"

	"orchestrator/a2a"
)

// route is what connections to peers can differ in. Peers of one route share connections.
type route struct {
	tls     a2a.TLS
	guarded bool // the peer was registered: its addresses are checked
}

func routeOf(p a2a.Peer) route { return route{tls: p.TLS, guarded: p.Registered} }

// prepare makes an HTTP transport one of the route.
func (to route) prepare(b *http.Transport, cfg Config) error {
	if to.guarded {
		// A proxy would dial in our place, and none can be asked to check the address it dials.
		b.Proxy = nil
		b.DialContext = (&guard{allowed: cfg.Allowed, dialer: net.Dialer{
			Timeout: cfg.DialTimeout, KeepAlive: 15 * time.Second, Resolver: cfg.Resolver,
		}}).DialContext
	}
	var err error
	b.TLSClientConfig, err = tlsConfig(to.tls)
	return err
}

// tlsConfig returns how a connection is made secure. A client's certificate is read for each connection, so that a new one
// counts without a restart.
func tlsConfig(c a2a.TLS) (*tls.Config, error) {
	out := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: c.ServerName}
	if c.CAFile != "" {
		pem, err := os.ReadFile(c.CAFile)
		if err != nil {
			return nil, fmt.Errorf("read the authorities: %w", err)
		}
		out.RootCAs = x509.NewCertPool()
		if !out.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("%s holds no certificate in PEM", c.CAFile)
		}
	}
	if c.CertFile != "" {
		out.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			cert, err := tls.LoadX509KeyPair(c.CertFile, c.KeyFile)
			if err != nil {
				return nil, fmt.Errorf("read the certificate: %w", err)
			}
			return &cert, nil
		}
	}
	return out, nil
}
