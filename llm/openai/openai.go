// Package openai is a model behind the OpenAI chat completions API, or behind any server that speaks it: vLLM, Ollama,
// llama.cpp, OpenRouter and others.
//
// It runs on the official SDK for types, transport and event stream, and adds what the servers differ in. The loop that
// calls it makes the retries, so the SDK's own are off. A stream blocks its reader until the server says more; the end of
// the context, or of the reading, closes the connection.
package openai

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"

	"orchestrator/llm"
)

// DefaultBaseURL is OpenAI's own.
const DefaultBaseURL = "https://api.openai.com/v1"

// Config says where the server is. All of it may be empty; nothing is read from the environment.
type Config struct {
	// BaseURL is the address up to and without /chat/completions. Defaults to [DefaultBaseURL].
	BaseURL string
	// APIKey is sent as a bearer token. Empty sends none, which local servers are content with.
	APIKey string
	// Name stands in errors and is the key of what the model keeps in [llm.Message.Opaque]. Defaults to "openai".
	Name string
	// Headers are sent with every request.
	Headers map[string]string
	// HTTPClient must have no timeout of its own, since that would cut streams off. Defaults to a client with a
	// connection pool for many agents at once.
	HTTPClient *http.Client
}

// Model is a server's chat completions. It is safe for concurrent use.
type Model struct {
	name        string
	host        string
	hasKey      bool
	secrets     *strings.Replacer
	completions openai.ChatCompletionService
	// maxCompletionTokens says which of the two names of the limit the server knows; see [Model.params].
	maxCompletionTokens bool
}

var _ llm.Model = (*Model)(nil)

// New returns the model of a server. It makes no connection.
func New(cfg Config) (*Model, error) {
	base := strings.TrimSpace(cmp.Or(cfg.BaseURL, DefaultBaseURL))
	u, err := url.Parse(base)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		// The address isn't repeated: it may hold a password.
		return nil, errors.New("openai: BaseURL must be an address like https://host/v1")
	}
	if u.RawQuery != "" || u.Fragment != "" || u.User != nil {
		return nil, fmt.Errorf("openai: BaseURL must be an address like https://host/v1, without user, query and fragment; use Headers for credentials (host %s)", u.Host)
	}
	key := strings.TrimSpace(cfg.APIKey)
	if strings.ContainsFunc(key, func(r rune) bool { return r <= ' ' || r >= 0x7f }) {
		return nil, errors.New("openai: APIKey holds a blank or a character that is not ASCII")
	}
	client := http.Client{Transport: newTransport()}
	if cfg.HTTPClient != nil {
		client = *cfg.HTTPClient
	}
	// A redirect would turn the request into a GET, or take the key to another server. The error names the new address.
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

	opts := []option.RequestOption{
		option.WithBaseURL(u.String()),
		option.WithHTTPClient(&client),
		option.WithMaxRetries(0),
	}
	secrets := []string{}
	hide := func(s string) {
		if len(s) >= 6 { // shorter ones are no secrets, and would tear holes into plain words
			secrets = append(secrets, s, "[hidden]")
		}
	}
	if key != "" {
		opts = append(opts, option.WithAPIKey(key))
		hide(key)
	}
	hasKey := key != ""
	for name, value := range cfg.Headers {
		if !validHeader(name, value) {
			return nil, fmt.Errorf("openai: Headers: %q is not a header that can be sent", name)
		}
		opts = append(opts, option.WithHeader(name, value))
		hide(value)
		if _, token, ok := strings.Cut(value, " "); ok {
			hide(token)
		}
		hasKey = hasKey || strings.EqualFold(name, "Authorization")
	}
	m := &Model{
		name:                cmp.Or(cfg.Name, "openai"),
		host:                u.Host,
		hasKey:              hasKey,
		secrets:             strings.NewReplacer(secrets...),
		maxCompletionTokens: isOpenAI(u.Hostname()),
	}
	opts = append(opts, option.WithMiddleware(m.checkResponse))
	// A service, unlike the SDK's client, takes nothing from the environment: a key meant for OpenAI must not go to
	// whatever server BaseURL names.
	m.completions = openai.NewChatCompletionService(opts...)
	return m, nil
}

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

// isOpenAI says whether the host is one of OpenAI's own or Azure's.
func isOpenAI(host string) bool {
	host = strings.ToLower(host)
	for _, domain := range []string{"openai.com", "openai.azure.com", "cognitiveservices.azure.com", "services.ai.azure.com"} {
		if host == domain || strings.HasSuffix(host, "."+domain) {
			return true
		}
	}
	return false
}

// Stream makes one model call.
func (m *Model) Stream(ctx context.Context, r llm.Request) iter.Seq2[llm.Chunk, error] {
	return func(yield func(llm.Chunk, error) bool) {
		err := m.stream(ctx, r, func(c llm.Chunk) bool { return yield(c, nil) })
		if err == nil {
			return
		}
		if ended := ctx.Err(); ended != nil {
			err = ended
		}
		yield(llm.Chunk{}, err)
	}
}

// stream returns nil when the stop was emitted or the reader wants no more.
func (m *Model) stream(caller context.Context, r llm.Request, emit func(llm.Chunk) bool) error {
	if err := caller.Err(); err != nil {
		return err
	}
	params, err := m.params(r)
	if err != nil {
		return &llm.Error{Provider: m.name, Message: m.clean(err.Error()), Err: err}
	}
	ctx, cancel := context.WithCancel(caller)
	defer cancel()

	var res *http.Response
	if err := m.completions.NewStreaming(ctx, params, option.WithResponseInto(&res)).Err(); err != nil {
		return m.requestError(err)
	}
	defer res.Body.Close()

	reader := newReader(m, res, emit)
	done, err := reader.read(ctx)
	if done {
		// What is left is the end of the body. A connection whose body was read to its end is used again; one that takes
		// its time is not worth waiting for.
		timer := time.AfterFunc(50*time.Millisecond, cancel)
		defer timer.Stop()
		drain(res.Body)
	}
	return err
}
