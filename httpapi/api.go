package httpapi

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"
	"github.com/prometheus/client_golang/prometheus"

	"orchestrator/session"
)

// Config configures an [API].
type Config struct {
	Manager *session.Manager
	// Agents are the names a session may be opened for; the first is the default. Required.
	Agents []string
	// Keys are the API keys. Nil: no key is accepted.
	Keys *Keys
	// AuthRequired refuses requests without a key. Without it they are the local operator's, whose sessions are those without
	// a principal, and only requests to a loopback host are taken.
	AuthRequired bool
	Logger       *slog.Logger
	// Registry takes the metrics; nil: there are none.
	Registry prometheus.Registerer
	// MaxWait bounds the wait of a request. Defaults to 60 seconds.
	MaxWait time.Duration
	// WriteTimeout is how long a stream's connection may take no bytes before it is cut. Defaults to 10 seconds.
	WriteTimeout time.Duration
	// Heartbeat is how long a stream may be silent. Defaults to 15 seconds.
	Heartbeat time.Duration
	// MaxInput bounds the bytes of one input. Defaults to 1 MiB; the Manager's own bound holds too.
	MaxInput int
	// Rate is how many requests a second a principal may make, Burst how many at once. They default to 100 and 200; a
	// negative Rate is no bound.
	Rate  float64
	Burst int
	// Streams bounds the open streams of the process, PrincipalStreams those of a principal. They default to 10,000 and
	// 1,000.
	Streams          int
	PrincipalStreams int
	// TrustedOrigins are the origins, like https://app.example.com, whose pages may send requests that change something.
	TrustedOrigins []string
	// Version is ours, for the OpenAPI document.
	Version string
}

// API serves /v1 and /openapi.json.
type API struct {
	cfg     Config
	log     *slog.Logger
	mux     *http.ServeMux
	spec    []byte
	origins *http.CrossOriginProtection
	limits  *limiter
	streams *streams
	metrics *metrics

	drained context.Context //nolint:containedctx // ends when streams and waits must
	drain   context.CancelFunc
	open    inflight
}

var _ http.Handler = (*API)(nil)

// New returns an API that serves a Manager's sessions.
func New(cfg Config) (*API, error) {
	switch {
	case cfg.Manager == nil:
		return nil, errors.New("httpapi: Config.Manager is required")
	case len(cfg.Agents) == 0:
		return nil, errors.New("httpapi: Config.Agents is empty; a session needs an agent")
	case cfg.AuthRequired && cfg.Keys == nil:
		return nil, errors.New("httpapi: Config.AuthRequired without Config.Keys lets nobody in")
	}
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	cfg.MaxWait = cmp.Or(cfg.MaxWait, time.Minute)
	cfg.WriteTimeout = cmp.Or(cfg.WriteTimeout, 10*time.Second)
	cfg.Heartbeat = cmp.Or(cfg.Heartbeat, 15*time.Second)
	cfg.MaxInput = cmp.Or(cfg.MaxInput, 1<<20)
	cfg.Rate, cfg.Burst = cmp.Or(cfg.Rate, 100), cmp.Or(cfg.Burst, 200)
	cfg.Streams, cfg.PrincipalStreams = cmp.Or(cfg.Streams, 10_000), cmp.Or(cfg.PrincipalStreams, 1000)
	for name, n := range map[string]int64{
		"MaxWait": int64(cfg.MaxWait), "WriteTimeout": int64(cfg.WriteTimeout), "Heartbeat": int64(cfg.Heartbeat),
		"MaxInput": int64(cfg.MaxInput), "Burst": int64(cfg.Burst), "Streams": int64(cfg.Streams), "PrincipalStreams": int64(cfg.PrincipalStreams),
	} {
		if n < 0 {
			return nil, fmt.Errorf("httpapi: Config.%s is negative; it must be positive", name)
		}
	}
	a := &API{
		cfg: cfg, log: cfg.Logger, mux: http.NewServeMux(), origins: http.NewCrossOriginProtection(),
		limits: newLimiter(cfg.Rate, cfg.Burst), streams: newStreams(cfg.Streams, cfg.PrincipalStreams),
	}
	for _, origin := range cfg.TrustedOrigins {
		if err := a.origins.AddTrustedOrigin(origin); err != nil {
			return nil, fmt.Errorf("httpapi: Config.TrustedOrigins: %w", err)
		}
	}
	var err error
	if a.metrics, err = newMetrics(cfg.Registry, a.streams); err != nil {
		return nil, fmt.Errorf("httpapi: %w", err)
	}
	api := humago.New(a.mux, humaConfig(cfg.Version))
	a.register(api)
	polish(api.OpenAPI())
	if a.spec, err = json.MarshalIndent(api.OpenAPI(), "", "  "); err != nil {
		return nil, fmt.Errorf("httpapi: write the OpenAPI document: %w", err)
	}
	a.mux.HandleFunc("GET /openapi.json", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/openapi+json")
		_, _ = w.Write(a.spec) // the client is gone: nobody to tell
	})
	a.drained, a.drain = context.WithCancel(context.Background())
	return a, nil
}

// Spec returns the OpenAPI document.
func (a *API) Spec() []byte { return a.spec }

// Drain makes streams end with their position and waits return what there is, and refuses new streams. It returns when
// every request has been answered, or ctx ends. It may be called twice.
func (a *API) Drain(ctx context.Context) error {
	a.drain()
	if err := a.open.wait(ctx); err != nil {
		return fmt.Errorf("drain the session API: %w", err)
	}
	return nil
}

// inflight counts the requests being answered. Unlike a WaitGroup it can be waited for while more come.
type inflight struct {
	mu   sync.Mutex
	n    int
	none []chan struct{} // closed when there are none
}

func (f *inflight) enter() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.n++
}

func (f *inflight) leave() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.n--; f.n > 0 {
		return
	}
	for _, none := range f.none {
		close(none)
	}
	f.none = nil
}

func (f *inflight) wait(ctx context.Context) error {
	f.mu.Lock()
	if f.n == 0 {
		f.mu.Unlock()
		return nil
	}
	none := make(chan struct{})
	f.none = append(f.none, none)
	f.mu.Unlock()
	select {
	case <-none:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// ServeHTTP answers one request.
func (a *API) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.open.enter()
	defer a.open.leave()
	began := time.Now()
	rec := &recorder{ResponseWriter: w}
	handler, route := a.mux.Handler(r)
	defer func() {
		if p := recover(); p != nil {
			a.panicked(rec, r, p)
		}
		a.metrics.request(route, rec, time.Since(began))
	}()
	h := rec.Header()
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cache-Control", "no-store")
	if err := a.checkHost(r); err != nil {
		writeProblem(rec, err)
		return
	}
	if err := a.origins.Check(r); err != nil {
		writeProblem(rec, problem(codeCrossOrigin, "a page of another origin may not do this; see api.trusted_origins"))
		return
	}
	if route == "GET /openapi.json" {
		handler.ServeHTTP(rec, r)
		return
	}
	who, err := a.authenticate(r)
	if err != nil {
		h.Set("WWW-Authenticate", `Bearer realm="orchestrator"`)
		writeProblem(rec, err)
		return
	}
	if wait := a.limits.take(who.name); wait > 0 {
		h.Set("Retry-After", retryAfter(wait))
		writeProblem(rec, problem(codeRateLimited, "too many requests; try again in "+wait.Round(time.Millisecond).String()))
		return
	}
	if route == "" {
		writeProblem(rec, noRoute(handler, r, h))
		return
	}
	req := &request{principal: who, http: rec, stream: r.Method == http.MethodGet && acceptsStream(r.Header.Values("Accept"))}
	r = r.WithContext(context.WithValue(r.Context(), requestKey{}, req))
	r.Header = r.Header.Clone()
	r.Header.Set("Accept", "application/json") // there is one form, and the parser of what else may stand there isn't ours
	a.mux.ServeHTTP(rec, r)
}

// noRoute says why a request found no route.
func noRoute(handler http.Handler, r *http.Request, h http.Header) error {
	var found headOnly
	handler.ServeHTTP(&found, r)
	if allow := found.Header().Get("Allow"); allow != "" {
		h.Set("Allow", allow)
		return problem(codeMethodNotAllowed, "allowed here: "+allow)
	}
	return problem(codeNotFound, "there is nothing here; /openapi.json lists what there is")
}

// panicked answers a request whose handler panicked. huma panics when an answer can't be written, which is the client's end.
func (a *API) panicked(w *recorder, r *http.Request, p any) {
	if r.Context().Err() != nil || p == http.ErrAbortHandler || w.failed != nil {
		return
	}
	a.log.ErrorContext(r.Context(), "request panicked", "method", r.Method, "err", p, "stack", string(debug.Stack()))
	if w.status == 0 {
		writeProblem(w, problem(codeInternal, "internal error"))
	}
}

// checkHost refuses names that lead to us by a page's own DNS: without keys, being on this machine is what lets in.
func (a *API) checkHost(r *http.Request) error {
	if a.cfg.AuthRequired {
		return nil
	}
	host := r.Host
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	host = strings.Trim(host, "[]")
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsLoopback() || strings.EqualFold(host, "localhost") {
		return nil
	}
	return problem(codeForbiddenHost, "without auth.required only requests to localhost are taken")
}

// request is what of a request the handlers of routes need beyond their input.
type request struct {
	principal principal
	http      *recorder
	stream    bool // an event stream is asked for
}

type requestKey struct{}

func requestOf(ctx context.Context) *request { return ctx.Value(requestKey{}).(*request) }

// recorder remembers what was answered.
type recorder struct {
	http.ResponseWriter
	status int
	failed error // of the first write that failed
}

func (w *recorder) WriteHeader(status int) {
	if w.status == 0 {
		w.status = status
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *recorder) Write(p []byte) (int, error) {
	w.status = cmp.Or(w.status, http.StatusOK)
	n, err := w.ResponseWriter.Write(p)
	w.failed = cmp.Or(w.failed, err)
	return n, err
}

// Unwrap is for http.ResponseController.
func (w *recorder) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// headOnly takes an answer and keeps its header.
type headOnly struct{ header http.Header }

func (h *headOnly) Header() http.Header {
	if h.header == nil {
		h.header = http.Header{}
	}
	return h.header
}
func (h *headOnly) Write(p []byte) (int, error) { return len(p), nil }
func (h *headOnly) WriteHeader(int)             {}

func humaConfig(version string) huma.Config {
	c := huma.DefaultConfig("orchestrator session API", cmp.Or(version, "dev"))
	c.OpenAPIPath, c.DocsPath, c.SchemasPath = "", "", "" // served by us, without scripts of others
	c.CreateHooks = nil
	c.RejectUnknownQueryParameters = true
	c.Components.Schemas = huma.NewMapRegistry("#/components/schemas/", schemaName)
	return c
}
