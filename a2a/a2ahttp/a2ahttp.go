// Package a2ahttp speaks A2A 1.0 by JSON-RPC over HTTP, through the SDK's client with an HTTP client of our own.
//
// The registry and the relay of package a2a call it. It bounds what a peer may send (headers, bodies, events of a
// stream, redirects), refuses answers that can't be A2A, says of a failed request whether it can have left, and keeps
// next to nothing in memory for a stream on which nothing happens. Nothing here has a time limit of its own but the
// dialing: the caller's context bounds each request. Whoever made a [Transport] closes it.
package a2ahttp

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"net/http/httptrace"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	protocol "github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/a2aproject/a2a-go/v2/a2aclient"

	"orchestrator/a2a"
)

// Config configures a [Transport].
type Config struct {
	// MaxBody bounds one answer, and one event of a stream, in bytes. Defaults to 16 MiB.
	MaxBody int64
	// MaxIdlePerHost is how many connections to a peer are kept for later. Defaults to 256.
	MaxIdlePerHost int
	// DialTimeout bounds connecting, TLS included. Defaults to 10 seconds.
	DialTimeout time.Duration
	// DialContext connects. Defaults to TCP.
	DialContext func(ctx context.Context, network, addr string) (net.Conn, error)
}

// Transport is a [a2a.Transport] over HTTP.
type Transport struct {
	cfg  Config
	base *http.Transport
}

var _ a2a.Transport = (*Transport)(nil)

const maxRedirects = 3

// New returns a Transport.
func New(cfg Config) (*Transport, error) {
	if cfg.MaxBody < 0 || cfg.MaxIdlePerHost < 0 || cfg.DialTimeout < 0 {
		return nil, errors.New("a2ahttp: Config has a negative bound; zero is the default, anything above is allowed")
	}
	cfg.MaxBody = cmp.Or(cfg.MaxBody, 16<<20)
	cfg.MaxIdlePerHost = cmp.Or(cfg.MaxIdlePerHost, 256)
	cfg.DialTimeout = cmp.Or(cfg.DialTimeout, 10*time.Second)
	if cfg.DialContext == nil {
		cfg.DialContext = (&net.Dialer{Timeout: cfg.DialTimeout, KeepAlive: 15 * time.Second}).DialContext
	}
	return &Transport{cfg: cfg, base: &http.Transport{
		Proxy:                  http.ProxyFromEnvironment,
		DialContext:            cfg.DialContext,
		TLSHandshakeTimeout:    cfg.DialTimeout,
		MaxIdleConnsPerHost:    cfg.MaxIdlePerHost,
		IdleConnTimeout:        90 * time.Second,
		MaxResponseHeaderBytes: 64 << 10,
		ForceAttemptHTTP2:      true,
	}}, nil
}

// Close drops the connections nobody uses. It may be called twice.
func (t *Transport) Close() { t.base.CloseIdleConnections() }

// Binding implements [a2a.Transport].
func (t *Transport) Binding() string { return string(protocol.TransportProtocolJSONRPC) }

// client returns an HTTP client that sends the peer's headers and checks answers.
func (t *Transport) client(p a2a.Peer) *http.Client {
	return &http.Client{
		Transport: &roundTripper{base: t.base, headers: p.Headers, maxBody: t.cfg.MaxBody},
		CheckRedirect: func(req *http.Request, via []*http.Request) error {
			var why string
			switch first := via[0].URL; {
			case len(via) > maxRedirects:
				why = fmt.Sprintf("more than %d redirects", maxRedirects)
			case req.Method != via[0].Method:
				why = "a redirect that only pages follow"
			case len(p.Headers) > 0 && (req.URL.Host != first.Host || req.URL.Scheme != first.Scheme):
				why = fmt.Sprintf("a redirect to %s, which the peer's headers are not for", req.URL.Host)
			default:
				return nil
			}
			return &a2a.StatusError{Code: http.StatusFound, Status: why, URL: via[0].URL.Redacted()}
		},
	}
}

// Card implements [a2a.Transport].
func (t *Transport) Card(ctx context.Context, p a2a.Peer) (*protocol.AgentCard, error) {
	url := p.Card
	if !strings.HasSuffix(url, ".json") {
		url = strings.TrimSuffix(url, "/") + a2a.WellKnownPath
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, fmt.Errorf("fetch the card of %s: %w", p.Name, err)
	}
	req.Header.Set("Accept", "application/json")
	resp, err := t.client(p).Do(req)
	if err != nil {
		return nil, fmt.Errorf("fetch the card of %s: %w", p.Name, err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, fmt.Errorf("fetch the card of %s: %w", p.Name, err)
	}
	var card protocol.AgentCard
	if err := json.Unmarshal(body, &card); err != nil {
		return nil, &a2a.CardError{Reason: fmt.Sprintf("what %s holds is no agent card: %v", url, err)}
	}
	if len(card.SupportedInterfaces) == 0 {
		return nil, &a2a.CardError{Reason: fmt.Sprintf("the card at %s names no interfaces (supportedInterfaces), so the agent can't be called", url)}
	}
	for _, i := range card.SupportedInterfaces {
		if i == nil {
			return nil, &a2a.CardError{Reason: fmt.Sprintf("the card at %s names an interface that is null", url)}
		}
	}
	return &card, nil
}

// Connect implements [a2a.Transport].
func (t *Transport) Connect(ctx context.Context, p a2a.Peer, card *protocol.AgentCard) (a2a.Client, error) {
	hc := t.client(p)
	factory := a2aclient.NewFactory(a2aclient.WithDefaultsDisabled(), a2aclient.WithTransport(protocol.TransportProtocolJSONRPC,
		a2aclient.TransportFactoryFn(func(_ context.Context, _ *protocol.AgentCard, iface *protocol.AgentInterface) (a2aclient.Transport, error) {
			return &jsonrpc{Transport: a2aclient.NewJSONRPCTransport(iface.URL, hc), url: iface.URL, http: hc, maxEvent: t.cfg.MaxBody}, nil
		})))
	c, err := factory.CreateFromCard(ctx, card)
	if err != nil {
		var offered []string
		for _, i := range card.SupportedInterfaces {
			offered = append(offered, fmt.Sprintf("%s %s", i.ProtocolBinding, i.ProtocolVersion))
		}
		return nil, &a2a.CardError{Reason: fmt.Sprintf("%s offers %s, and none of it is %s %s", p.Name, strings.Join(offered, ", "), t.Binding(), protocol.Version)}
	}
	return c, nil
}

// roundTripper adds a peer's headers and turns answers that are none into errors.
type roundTripper struct {
	base    http.RoundTripper
	headers map[string]a2a.Secret
	maxBody int64
}

// RoundTrip implements http.RoundTripper.
func (rt *roundTripper) RoundTrip(req *http.Request) (*http.Response, error) {
	var connected atomic.Bool
	ctx := httptrace.WithClientTrace(req.Context(), &httptrace.ClientTrace{
		GotConn: func(httptrace.GotConnInfo) { connected.Store(true) },
	})
	req = req.WithContext(ctx)
	if len(rt.headers) > 0 {
		req.Header = req.Header.Clone() // a round tripper leaves its request alone
		for name, value := range rt.headers {
			req.Header.Set(name, string(value))
		}
	}
	resp, err := rt.base.RoundTrip(req)
	if err != nil {
		if !connected.Load() {
			err = &a2a.NotSentError{Err: err}
		}
		return nil, err
	}
	if resp.StatusCode >= 300 && resp.StatusCode < 400 && resp.Header.Get("Location") != "" {
		return resp, nil
	}
	if resp.StatusCode != http.StatusOK {
		resp.Body.Close()
		return nil, &a2a.StatusError{
			Code: resp.StatusCode, Status: fmt.Sprintf("%d %s", resp.StatusCode, http.StatusText(resp.StatusCode)),
			URL: req.URL.Redacted(), RetryAfter: retryAfter(resp.Header.Get("Retry-After")),
		}
	}
	mediaType, _, err := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	switch {
	case err == nil && mediaType == eventStream && req.Method == http.MethodPost:
		return resp, nil // its events are bounded one by one
	case err == nil && (mediaType == "application/json" || strings.HasSuffix(mediaType, "+json")):
		resp.Body = &boundedBody{ReadCloser: resp.Body, left: rt.maxBody}
		return resp, nil
	}
	resp.Body.Close()
	return nil, &a2a.MediaTypeError{MediaType: cmp.Or(mediaType, resp.Header.Get("Content-Type")), URL: req.URL.Redacted()}
}

// retryAfter reads the header's seconds; a date, which few send, is no hint here.
func retryAfter(v string) time.Duration {
	s, err := strconv.Atoi(v)
	if err != nil || s < 0 {
		return 0
	}
	return min(time.Duration(s)*time.Second, 10*time.Minute)
}

// boundedBody fails with [a2a.ErrTooLarge] where http.MaxBytesReader would need a server.
type boundedBody struct {
	io.ReadCloser
	left int64
}

func (b *boundedBody) Read(p []byte) (int, error) {
	if b.left < 0 {
		return 0, a2a.ErrTooLarge
	}
	n, err := b.ReadCloser.Read(p)
	b.left -= int64(n)
	if b.left < 0 {
		return 0, a2a.ErrTooLarge
	}
	return n, err
}
