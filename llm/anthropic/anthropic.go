// Package anthropic is a model behind Anthropic's messages API, or behind a server that speaks it.
//
// It runs on the official SDK for types, transport and event stream. The loop that calls it makes the retries, so the SDK's
// own are off. A stream blocks its reader until the server says more; the end of the context, or of the reading, closes the
// connection.
//
// What the server must see again of an answer, above all the signatures of its thinking and thinking it keeps to itself,
// travels in [llm.Message.Opaque]. The fixed parts of a request and the conversation so far are marked for the server's
// prompt cache.
package anthropic

import (
	"cmp"
	"context"
	"errors"
	"iter"
	"net/http"
	"strings"

	"github.com/anthropics/anthropic-sdk-go/v2"
	"github.com/anthropics/anthropic-sdk-go/v2/option"
	"github.com/anthropics/anthropic-sdk-go/v2/packages/ssestream"

	"orchestrator/llm"
	"orchestrator/llm/llmhttp"
)

// DefaultBaseURL is Anthropic's own.
const DefaultBaseURL = "https://api.anthropic.com"

// DefaultMaxTokens bounds an answer for which the request says nothing, since the API insists on a bound.
const DefaultMaxTokens = 16384

// minThinkingTokens is the least the API takes.
const minThinkingTokens = 1024

// Thinking says whether a model thinks before it answers.
type Thinking string

// The ways to think.
const (
	ThinkingDefault  Thinking = ""         // as the model does when nothing is said
	ThinkingAdaptive Thinking = "adaptive" // when and how much the model decides
	ThinkingBudget   Thinking = "budget"   // up to [Config.ThinkingTokens]
	ThinkingOff      Thinking = "off"
)

// Config says where the server is. All of it may be empty; nothing is read from the environment.
type Config struct {
	// BaseURL is the address up to and without /v1/messages; a /v1 at its end is taken off. Defaults to [DefaultBaseURL].
	BaseURL string
	// APIKey is sent as a bearer token. Empty sends none; a server that wants it otherwise gets it by Headers.
	APIKey string
	// Name stands in errors and is the key of what the model keeps in [llm.Message.Opaque]. Defaults to "anthropic".
	Name string
	// Headers are sent with every request.
	Headers map[string]string
	// HTTPClient must have no timeout of its own, since that would cut streams off. Defaults to a client with a
	// connection pool for many agents at once.
	HTTPClient *http.Client
	// Thinking defaults to what the model does when nothing is said.
	Thinking Thinking
	// ThinkingTokens is the bound of ThinkingBudget, 1024 at least. It comes on top of a smaller bound of the answer.
	ThinkingTokens int
}

// Model is a server's messages API. It is safe for concurrent use.
type Model struct {
	server         *llmhttp.Server
	messages       anthropic.MessageService
	thinking       Thinking
	thinkingTokens int
}

var _ llm.Model = (*Model)(nil)

// New returns the model of a server. It makes no connection.
func New(cfg Config) (*Model, error) {
	switch cfg.Thinking {
	case ThinkingDefault, ThinkingAdaptive, ThinkingOff:
		if cfg.ThinkingTokens != 0 {
			return nil, errors.New("anthropic: ThinkingTokens goes with ThinkingBudget only")
		}
	case ThinkingBudget:
		if cfg.ThinkingTokens < minThinkingTokens {
			return nil, errors.New("anthropic: ThinkingTokens must be 1024 at least")
		}
	default:
		return nil, errors.New("anthropic: Thinking must be empty, adaptive, budget or off")
	}
	base := strings.TrimSuffix(strings.TrimRight(strings.TrimSpace(cfg.BaseURL), "/"), "/v1")
	server, err := llmhttp.New(llmhttp.Config{
		Adapter: "anthropic", BaseURL: cmp.Or(base, DefaultBaseURL), APIKey: cfg.APIKey, Name: cfg.Name,
		Headers: cfg.Headers, HTTPClient: cfg.HTTPClient,
	})
	if err != nil {
		return nil, err
	}
	opts := []option.RequestOption{
		option.WithBaseURL(server.URL.String()),
		option.WithHTTPClient(server.Client),
		option.WithMaxRetries(0),
		option.WithMiddleware(server.CheckResponse),
		// Both would be read from the environment; the caller has spans of its own.
		option.WithoutOpenTelemetry(),
		option.WithOpenTelemetryPropagation(false),
	}
	if server.Key != "" {
		opts = append(opts, option.WithAPIKey(server.Key))
	}
	for name, value := range cfg.Headers {
		opts = append(opts, option.WithHeader(name, value))
	}
	return &Model{
		server: server,
		// A service, unlike the SDK's client, takes no credentials and no address from the environment.
		messages:       anthropic.NewMessageService(opts...),
		thinking:       cfg.Thinking,
		thinkingTokens: cfg.ThinkingTokens,
	}, nil
}

// Stream makes one model call.
func (m *Model) Stream(ctx context.Context, r llm.Request) iter.Seq2[llm.Chunk, error] {
	return llmhttp.Stream(ctx, m.server, llmhttp.Call[ssestream.Event]{
		Open: func(ctx context.Context) (*http.Response, error) {
			params, err := m.params(r)
			if err != nil {
				return nil, m.server.Error(m.server.Clean(err.Error()), false, err)
			}
			var res *http.Response
			err = m.messages.NewStreaming(ctx, params, option.WithResponseInto(&res)).Err()
			return res, err
		},
		Events: func(res *http.Response) llmhttp.Decoder[ssestream.Event] { return ssestream.NewDecoder(res) },
		Reader: func(emit func(llm.Chunk)) llmhttp.Reader { return newReader(m, r.Model, emit) },
	})
}
