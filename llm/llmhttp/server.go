// Package llmhttp is what the adapters of model servers share: the address and the credentials, the call, the bounded event
// stream, and errors as servers write them.
//
// llm/openai and llm/anthropic call it; both run on their vendor's SDK, whose retries are off, and give it the SDK's event
// stream. A call blocks its reader until the server says more; the end of the context, or of the reading, closes the
// connection.
package llmhttp

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
)

// Config says where a server is. Nothing is read from the environment.
type Config struct {
	// Adapter is the name of the adapter's package. Required.
	Adapter string
	// BaseURL is the server's address. Required.
	BaseURL string
	// APIKey may be empty, which local servers are content with.
	APIKey string
	// Name stands in errors. Defaults to Adapter.
	Name string
	// Headers are sent with every request.
	Headers map[string]string
	// HTTPClient must have no timeout of its own, since that would cut streams off. Defaults to a client with a
	// connection pool for many agents at once.
	HTTPClient *http.Client
}

// Server is where models are asked. It is safe for concurrent use.
type Server struct {
	// URL is the checked address, Host its host and port.
	URL  *url.URL
	Host string
	// Key is the trimmed API key.
	Key string
	// Client follows no redirects.
	Client *http.Client

	name    string
	hasKey  bool
	secrets *strings.Replacer
}

// New checks what can't work. It makes no connection.
func New(cfg Config) (*Server, error) {
	u, err := url.Parse(strings.TrimSpace(cfg.BaseURL))
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		// The address isn't repeated: it may hold a password.
		return nil, fmt.Errorf("%s: BaseURL must be an address like https://host/v1", cfg.Adapter)
	}
	if u.RawQuery != "" || u.Fragment != "" || u.User != nil {
		return nil, fmt.Errorf("%s: BaseURL must be an address like https://host/v1, without user, query and fragment; use Headers for credentials (host %s)", cfg.Adapter, u.Host)
	}
	key := strings.TrimSpace(cfg.APIKey)
	if strings.ContainsFunc(key, func(r rune) bool { return r <= ' ' || r >= 0x7f }) {
		return nil, errors.New(cfg.Adapter + ": APIKey holds a blank or a character that is not ASCII")
	}
	client := http.Client{Transport: newTransport()}
	if cfg.HTTPClient != nil {
		client = *cfg.HTTPClient
	}
	// A redirect would turn the request into a GET, or take the key to another server. The error names the new address.
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

	secrets := []string{}
	hide := func(s string) {
		if len(s) >= 6 { // shorter ones are no secrets, and would tear holes into plain words
			secrets = append(secrets, s, "[hidden]")
		}
	}
	hide(key)
	hasKey := key != ""
	for name, value := range cfg.Headers {
		if !validHeader(name, value) {
			return nil, fmt.Errorf("%s: Headers: %q is not a header that can be sent", cfg.Adapter, name)
		}
		hide(value)
		if _, token, ok := strings.Cut(value, " "); ok {
			hide(token)
		}
		hasKey = hasKey || strings.EqualFold(name, "Authorization") || strings.EqualFold(name, "X-Api-Key")
	}
	return &Server{
		URL: u, Host: u.Host, Key: key, Client: &client,
		name: cmp.Or(cfg.Name, cfg.Adapter), hasKey: hasKey, secrets: strings.NewReplacer(secrets...),
	}, nil
}

// Name stands in errors.
func (s *Server) Name() string { return s.name }

func newTransport() http.RoundTripper {
	t, ok := http.DefaultTransport.(*http.Transport)
	if !ok {
		return http.DefaultTransport // somebody wrapped it, for traces say
	}
	t = t.Clone()
	t.MaxIdleConnsPerHost = 32
	return t
}

func validHeader(name, value string) bool {
	return name != "" && !strings.ContainsFunc(name, func(r rune) bool { return r <= ' ' || r >= 0x7f || r == ':' }) &&
		!strings.ContainsAny(value, "\r\n\x00")
}
