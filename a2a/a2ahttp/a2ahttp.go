// Package a2ahttp speaks A2A over HTTP: JSON-RPC and HTTP+JSON in versions 1.0 and 0.3, and gRPC in version 1.0, through
// the SDK's clients with an HTTP client of our own.
//
// The registry and the relay of package a2a call it. It bounds what a peer may send (headers, bodies, events of a
// stream, redirects), refuses answers that can't be A2A, says of a failed request whether it can have left, and keeps
// next to nothing in memory for a stream on which nothing happens. All of that is the same on every binding. Nothing here
// has a time limit of its own but the dialing: the caller's context bounds each request. Whoever made a [Transport] closes
// it.
package a2ahttp

import (
	"bufio"
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
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	protocol "github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/a2aproject/a2a-go/v2/a2aclient"
	"github.com/a2aproject/a2a-go/v2/a2acompat/a2av0"

	"orchestrator/a2a"
)

// Config configures a [Transport].
type Config struct {
	// MaxBody bounds one answer, and one event of a stream, in bytes. Defaults to 20 MiB, which holds a file of 10 MiB in
	// base64 of base64, as some servers of 0.3 write it.
	MaxBody int64
	// MaxIdlePerHost is how many connections to a peer are kept for later. Defaults to 256.
	MaxIdlePerHost int
	// DialTimeout bounds connecting, TLS included. Defaults to 10 seconds.
	DialTimeout time.Duration
	// Prefer is the order in which bindings are tried, among those a peer has of its newest version of the protocol.
	// Bindings it doesn't name come last. Defaults to [Bindings].
	Prefer []string
	// DialContext connects. Defaults to TCP.
	DialContext func(ctx context.Context, network, addr string) (net.Conn, error)
	// Allowed are the addresses that registered agents may lead to though they aren't public. Registered agents are dialed
	// by TCP, whatever DialContext is.
	Allowed a2a.Allowed
	// Resolver looks up the hosts of registered agents. Nil is the machine's.
	Resolver *net.Resolver
}

// Bindings are the bindings of the protocol that a [Transport] speaks, in the order it prefers them.
var Bindings = []string{string(protocol.TransportProtocolJSONRPC), string(protocol.TransportProtocolHTTPJSON), string(protocol.TransportProtocolGRPC)}

// Transport is a [a2a.Transport] over HTTP.
type Transport struct {
	cfg    Config
	shared connections // of peers without anything of their own

	mu      sync.Mutex
	routes  map[route]connections
	sources map[tokenKey]*tokens
}

var _ a2a.Transport = (*Transport)(nil)

const maxRedirects = 3

// New returns a Transport.
func New(cfg Config) (*Transport, error) {
	if cfg.MaxBody < 0 || cfg.MaxIdlePerHost < 0 || cfg.DialTimeout < 0 {
		return nil, errors.New("a2ahttp: Config has a negative bound; zero is the default, anything above is allowed")
	}
	for _, b := range cfg.Prefer {
		if !slices.Contains(Bindings, b) {
			return nil, fmt.Errorf("a2ahttp: Config.Prefer names %q; there are %s", b, strings.Join(Bindings, ", "))
		}
	}
	if len(cfg.Prefer) == 0 {
		cfg.Prefer = Bindings
	}
	cfg.MaxBody = cmp.Or(cfg.MaxBody, 20<<20)
	cfg.MaxIdlePerHost = cmp.Or(cfg.MaxIdlePerHost, 256)
	cfg.DialTimeout = cmp.Or(cfg.DialTimeout, 10*time.Second)
	if cfg.DialContext == nil {
		cfg.DialContext = (&net.Dialer{Timeout: cfg.DialTimeout, KeepAlive: 15 * time.Second}).DialContext
	}
	t := &Transport{cfg: cfg, routes: make(map[route]connections), sources: make(map[tokenKey]*tokens)}
	var err error
	t.shared, err = newConnections(cfg, route{})
	return t, err
}

// connections are pools of connections: gRPC needs HTTP/2, also where there is no TLS to negotiate it.
type connections struct {
	http *http.Transport
	h2   *http.Transport
}

func newConnections(cfg Config, to route) (connections, error) {
	base := &http.Transport{
		Proxy:                  http.ProxyFromEnvironment,
		DialContext:            cfg.DialContext,
		TLSHandshakeTimeout:    cfg.DialTimeout,
		MaxIdleConnsPerHost:    cfg.MaxIdlePerHost,
		IdleConnTimeout:        90 * time.Second,
		MaxResponseHeaderBytes: 64 << 10,
		ForceAttemptHTTP2:      true,
	}
	if err := to.prepare(base, cfg); err != nil {
		return connections{}, err
	}
	h2 := base.Clone()
	h2.Protocols = new(http.Protocols)
	h2.Protocols.SetHTTP2(true)
	h2.Protocols.SetUnencryptedHTTP2(true)
	return connections{http: base, h2: h2}, nil
}

// connections returns the pools of a peer's route.
func (t *Transport) connections(p a2a.Peer) (connections, error) {
	to := routeOf(p)
	if to == (route{}) {
		return t.shared, nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	c, ok := t.routes[to]
	if !ok {
		var err error
		if c, err = newConnections(t.cfg, to); err != nil {
			return c, &a2a.CardError{Reason: fmt.Sprintf("%s can't be called securely: %v", p.Name, err)}
		}
		t.routes[to] = c
	}
	return c, nil
}

// tokens returns the source of a key's tokens. It outlives the clients that use it, so that a new card costs no new token.
func (t *Transport) tokens(key tokenKey, base http.RoundTripper) *tokens {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.sources[key]
	if s == nil {
		s = newTokens(key, base)
		t.sources[key] = s
	}
	return s
}

func (c connections) close() {
	c.http.CloseIdleConnections()
	c.h2.CloseIdleConnections()
}

// Close drops the connections nobody uses. It may be called twice.
func (t *Transport) Close() {
	t.shared.close()
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, c := range t.routes {
		c.close()
	}
}

// Binding implements [a2a.Transport].
func (t *Transport) Binding() string { return "http" }

// client returns an HTTP client that sends what the peer knows us by and checks answers, which are those of a wire. card is
// nil when it has yet to be fetched.
func (t *Transport) client(p a2a.Peer, card *protocol.AgentCard, w wire) (*http.Client, error) {
	conns, err := t.connections(p)
	if err != nil {
		return nil, err
	}
	known, err := newAccess(p, card, func(key tokenKey) *tokens { return t.tokens(key, conns.http) })
	if err != nil {
		return nil, err
	}
	base := conns.http
	if w == wireGRPC {
		base = conns.h2
	}
	return &http.Client{
		Transport: &roundTripper{base: &accessTripper{base: base, access: known}, wire: w, wants: known.wants, maxBody: t.cfg.MaxBody},
		CheckRedirect: func(req *http.Request, via []*http.Request) error {
			var why string
			switch first := via[0].URL; {
			case len(via) > maxRedirects:
				why = fmt.Sprintf("more than %d redirects", maxRedirects)
			case req.Method != via[0].Method:
				why = "a redirect that only pages follow"
			case !known.empty() && (req.URL.Host != first.Host || req.URL.Scheme != first.Scheme):
				why = fmt.Sprintf("a redirect to %s, which the peer's headers are not for, nor are its credentials", req.URL.Host)
			default:
				return nil
			}
			return &a2a.StatusError{Code: http.StatusFound, Status: why, URL: via[0].URL.Redacted()}
		},
	}, nil
}

// bare returns what went wrong with a request without the request, which our errors name.
func bare(err error) error {
	if u, ok := errors.AsType[*url.Error](err); ok {
		return u.Err
	}
	return err
}

// Card implements [a2a.Transport].
func (t *Transport) Card(ctx context.Context, p a2a.Peer) (*protocol.AgentCard, error) {
	at := p.Card
	if !strings.HasSuffix(at, ".json") {
		at = strings.TrimSuffix(at, "/") + a2a.WellKnownPath
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, at, nil)
	if err != nil {
		return nil, fmt.Errorf("fetch the card of %s: %w", p.Name, err)
	}
	req.Header.Set("Accept", "application/json")
	hc, err := t.client(p, nil, wireJSON)
	if err != nil {
		return nil, err
	}
	resp, err := hc.Do(req)
	if err != nil {
		return nil, fmt.Errorf("fetch the card of %s: %w", p.Name, bare(err))
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, fmt.Errorf("fetch the card of %s: %w", p.Name, err)
	}
	return readCard(at, body)
}

// Connect implements [a2a.Transport]. It chooses the newest version that both speak, then the binding by preference.
func (t *Transport) Connect(ctx context.Context, p a2a.Peer, card *protocol.AgentCard) (a2a.Client, error) {
	if p.Registered {
		if err := checkInterfaces(t.cfg.Allowed, card); err != nil {
			return nil, err
		}
	}
	options := []a2aclient.FactoryOption{a2aclient.WithDefaultsDisabled(), a2aclient.WithConfig(a2aclient.Config{PreferredTransports: t.prefer()})}
	var unfit error // why a binding that is spoken can't be used
	for _, s := range spoken {
		options = append(options, a2aclient.WithCompatTransport(s.version, s.binding, a2aclient.TransportFactoryFn(
			func(_ context.Context, _ *protocol.AgentCard, iface *protocol.AgentInterface) (a2aclient.Transport, error) {
				u, err := url.Parse(iface.URL)
				switch {
				case err != nil:
					return nil, err
				case u.Scheme != "http" && u.Scheme != "https" || u.Host == "":
					return nil, fmt.Errorf("%q is no http:// or https:// address", iface.URL)
				}
				hc, err := t.client(p, card, s.wire)
				if err != nil {
					unfit = err
					return nil, err
				}
				return s.connect(u, hc, t.cfg.MaxBody)
			})))
	}
	c, err := a2aclient.NewFactory(options...).CreateFromCard(ctx, card)
	if err == nil {
		return c, nil
	}
	if unfit != nil {
		return nil, unfit
	}
	var offered, known []string
	for _, i := range card.SupportedInterfaces {
		offered = append(offered, fmt.Sprintf("%s %s at %s", i.ProtocolBinding, i.ProtocolVersion, i.URL))
	}
	for _, s := range spoken {
		known = append(known, fmt.Sprintf("%s %s", s.binding, s.version))
	}
	return nil, &a2a.CardError{Reason: fmt.Sprintf("%s offers %s; none of it can be called: there are %s", p.Name, strings.Join(offered, ", "), strings.Join(known, ", "))}
}

func (t *Transport) prefer() []protocol.TransportProtocol {
	var out []protocol.TransportProtocol
	for _, b := range slices.Concat(t.cfg.Prefer, Bindings) {
		if p := protocol.TransportProtocol(b); !slices.Contains(out, p) {
			out = append(out, p)
		}
	}
	return out
}

// spoken are the bindings and versions of the protocol that we speak.
var spoken = []struct {
	binding protocol.TransportProtocol
	version protocol.ProtocolVersion
	wire    wire
	connect func(u *url.URL, hc *http.Client, maxBody int64) (a2aclient.Transport, error)
}{
	{protocol.TransportProtocolJSONRPC, protocol.Version, wireJSON, func(u *url.URL, hc *http.Client, maxBody int64) (a2aclient.Transport, error) {
		return &streams{Transport: a2aclient.NewJSONRPCTransport(u.String(), hc), dialect: jsonrpc10{}, url: u, http: hc, maxEvent: maxBody}, nil
	}},
	{protocol.TransportProtocolHTTPJSON, protocol.Version, wireREST, func(u *url.URL, hc *http.Client, maxBody int64) (a2aclient.Transport, error) {
		return &streams{Transport: a2aclient.NewRESTTransport(u, hc), dialect: rest10{}, url: u, http: hc, maxEvent: maxBody}, nil
	}},
	{protocol.TransportProtocolGRPC, protocol.Version, wireGRPC, func(u *url.URL, hc *http.Client, maxBody int64) (a2aclient.Transport, error) {
		return newGRPC(u, hc, maxBody), nil
	}},
	{protocol.TransportProtocolJSONRPC, a2av0.Version, wireJSON, func(u *url.URL, hc *http.Client, maxBody int64) (a2aclient.Transport, error) {
		old := a2av0.NewJSONRPCTransport(a2av0.JSONRPCTransportConfig{URL: u.String(), Client: hc})
		return &streams{Transport: cantList{old}, dialect: jsonrpc03{}, url: u, http: hc, maxEvent: maxBody}, nil
	}},
	{protocol.TransportProtocolHTTPJSON, a2av0.Version, wireREST, func(u *url.URL, hc *http.Client, maxBody int64) (a2aclient.Transport, error) {
		files := *hc
		files.Transport = oldFiles{base: hc.Transport}
		old, err := a2av0.NewRESTTransport(a2av0.RESTTransportConfig{URL: u.String(), Client: &files})
		return &streams{Transport: old, dialect: rest03{}, url: u, http: hc, maxEvent: maxBody}, err
	}},
}

// cantList is JSON-RPC of 0.3, which has no method to list tasks: it says so as a peer would.
type cantList struct{ a2aclient.Transport }

// ListTasks implements a2aclient.Transport.
func (cantList) ListTasks(context.Context, a2aclient.ServiceParams, *protocol.ListTasksRequest) (*protocol.ListTasksResponse, error) {
	return nil, protocol.NewError(protocol.ErrUnsupportedOperation, "tasks can't be listed over JSON-RPC 0.3")
}

// wire is what the answers to a client's requests look like.
type wire int

const (
	wireJSON wire = iota // JSON or a stream of it; errors are in it
	wireREST             // the same, where an error has a status
	wireGRPC
)

// roundTripper adds a peer's headers and turns answers that are none into errors.
type roundTripper struct {
	base    http.RoundTripper
	wire    wire
	wants   string // what the card asks for that we don't have
	maxBody int64
}

// RoundTrip implements http.RoundTripper.
func (rt *roundTripper) RoundTrip(req *http.Request) (*http.Response, error) {
	var connected atomic.Bool
	ctx := httptrace.WithClientTrace(req.Context(), &httptrace.ClientTrace{
		// A request is tried again on another connection only when nothing of it has left or the peer says it took none of it.
		GetConn: func(string) { connected.Store(false) },
		GotConn: func(httptrace.GotConnInfo) { connected.Store(true) },
	})
	req = req.WithContext(ctx)
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
	mediaType, _, err := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	isJSON := err == nil && (mediaType == "application/json" || strings.HasSuffix(mediaType, "+json"))
	if resp.StatusCode != http.StatusOK {
		defer drain(resp.Body)
		if rt.wire == wireREST && isJSON {
			if err := restError(resp); err != nil {
				return nil, err
			}
		}
		status := fmt.Sprintf("%d %s", resp.StatusCode, http.StatusText(resp.StatusCode))
		if rt.wants != "" && (resp.StatusCode == http.StatusUnauthorized || resp.StatusCode == http.StatusForbidden) {
			status += fmt.Sprintf(": it wants %s, which peers.yaml has no credentials for", rt.wants)
		}
		return nil, &a2a.StatusError{
			Code: resp.StatusCode, Status: status, URL: req.URL.Redacted(),
			RetryAfter: retryAfter(resp.Header.Get("Retry-After")),
		}
	}
	switch {
	case rt.wire == wireGRPC && err == nil && (mediaType == grpcType || strings.HasPrefix(mediaType, grpcType+"+")):
		return resp, nil // its messages are bounded one by one
	case rt.wire != wireGRPC && err == nil && mediaType == eventStream && req.Header.Get("Accept") == eventStream:
		return resp, nil // its events, too
	case rt.wire != wireGRPC && isJSON:
		resp.Body = &boundedBody{Reader: resp.Body, closer: resp.Body, left: rt.maxBody}
		return resp, nil
	case rt.wire == wireJSON && err == nil && mediaType == "text/plain" && req.Method == http.MethodPost:
		// Servers of 0.3 that leave the type to be guessed.
		r := bufio.NewReaderSize(resp.Body, lineBuffer)
		if first, err := r.Peek(1); err == nil && first[0] == '{' {
			resp.Body = &boundedBody{Reader: r, closer: resp.Body, left: rt.maxBody}
			return resp, nil
		}
	}
	resp.Body.Close()
	return nil, &a2a.MediaTypeError{MediaType: cmp.Or(mediaType, resp.Header.Get("Content-Type")), URL: req.URL.Redacted()}
}

// maxError bounds the body of an error that is read.
const maxError = 64 << 10

// restError returns the protocol's error in an answer of HTTP+JSON, or nil when its status is all it says. A server that
// has no time says nothing about the message, whatever its words.
func restError(resp *http.Response) error {
	if resp.StatusCode == http.StatusTooManyRequests || resp.StatusCode == http.StatusServiceUnavailable {
		return nil
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxError))
	if err != nil {
		return nil //nolint:nilerr // the status is known
	}
	var s restStatus
	if json.Unmarshal(body, &s) != nil {
		return nil
	}
	if err := s.protocolError(); err != nil {
		return err
	}
	if resp.StatusCode == http.StatusNotFound && strings.Contains(resp.Request.URL.Path, "/tasks/") {
		return protocol.NewError(protocol.ErrTaskNotFound, cmp.Or(s.Message, "there is no such task")) // as 0.3 says it
	}
	return nil
}

const mostRetryAfter = 10 * time.Minute

// retryAfter reads the header's seconds; a date, which few send, is no hint here.
func retryAfter(v string) time.Duration {
	s, err := strconv.Atoi(v)
	if err != nil || s < 0 {
		return 0
	}
	return min(time.Duration(s)*time.Second, mostRetryAfter)
}

// boundedBody fails with [a2a.ErrTooLarge] where http.MaxBytesReader would need a server.
type boundedBody struct {
	io.Reader
	closer io.ReadCloser
	left   int64
}

func (b *boundedBody) Read(p []byte) (int, error) {
	if b.left < 0 {
		return 0, a2a.ErrTooLarge
	}
	n, err := b.Reader.Read(p)
	b.left -= int64(n)
	if b.left < 0 {
		return 0, a2a.ErrTooLarge
	}
	return n, err
}

// Close closes the body. When its end follows soon, the connection serves the next call.
func (b *boundedBody) Close() error {
	drain(b.closer)
	return nil
}
