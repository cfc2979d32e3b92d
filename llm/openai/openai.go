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
	"iter"
	"net/http"
	"strings"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"github.com/openai/openai-go/v3/packages/ssestream"

	"orchestrator/llm"
	"orchestrator/llm/llmhttp"
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
	server      *llmhttp.Server
	completions openai.ChatCompletionService
	// maxCompletionTokens says which of the two names of the limit the server knows; see [Model.params].
	maxCompletionTokens bool
}

var _ llm.Model = (*Model)(nil)

// New returns the model of a server. It makes no connection.
func New(cfg Config) (*Model, error) {
	server, err := llmhttp.New(llmhttp.Config{
		Adapter: "openai", BaseURL: cmp.Or(strings.TrimSpace(cfg.BaseURL), DefaultBaseURL), APIKey: cfg.APIKey, Name: cfg.Name,
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
	}
	if server.Key != "" {
		opts = append(opts, option.WithAPIKey(server.Key))
	}
	for name, value := range cfg.Headers {
		opts = append(opts, option.WithHeader(name, value))
	}
	return &Model{
		server: server,
		// A service, unlike the SDK's client, takes nothing from the environment: a key meant for OpenAI must not go to
		// whatever server BaseURL names.
		completions:         openai.NewChatCompletionService(opts...),
		maxCompletionTokens: isOpenAI(server.URL.Hostname()),
	}, nil
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
	return llmhttp.Stream(ctx, m.server, llmhttp.Call[ssestream.Event]{
		Open: func(ctx context.Context) (*http.Response, error) {
			params, err := m.params(r)
			if err != nil {
				return nil, m.server.Error(m.server.Clean(err.Error()), false, err)
			}
			var res *http.Response
			err = m.completions.NewStreaming(ctx, params, option.WithResponseInto(&res)).Err()
			return res, err
		},
		Events: func(res *http.Response) llmhttp.Decoder[ssestream.Event] { return ssestream.NewDecoder(res) },
		Reader: func(emit func(llm.Chunk)) llmhttp.Reader { return newReader(m, emit) },
	})
}
