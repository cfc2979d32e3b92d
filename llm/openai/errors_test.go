package openai_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"orchestrator/llm"
	"orchestrator/llm/llmtest"
	"orchestrator/llm/openai"
)

const secret = "sk-very-secret-0123456789"

func failure(t testing.TB, cfg openai.Config) *llm.Error {
	t.Helper()
	_, err := llmtest.Collect(open(t, cfg).Stream(t.Context(), llmtest.Request()))
	e, ok := errors.AsType[*llm.Error](err)
	if !ok {
		t.Fatalf("error = %v, want an *llm.Error", err)
	}
	return e
}

func TestErrorsOfTheServer(t *testing.T) {
	const js, sse = "application/json", "text/event-stream"
	for _, tt := range []struct {
		name   string
		status int
		header map[string]string
		body   string
		want   llm.Error // Message: what it has to contain
	}{
		{"OpenAI overflow", 400, nil, `{"error":{"message":"too much","type":"invalid_request_error","code":"context_length_exceeded"}}`,
			llm.Error{Status: 400, Code: "context_length_exceeded", Overflow: true, Message: "too much"}},
		{"vLLM overflow", 400, nil, `{"object":"error","message":"This model's maximum context length is 4096 tokens. However, you requested 5000 tokens","type":"BadRequestError","param":null,"code":400}`,
			llm.Error{Status: 400, Code: "400", Overflow: true}},
		{"vLLM overflow of the prompt", 400, nil, `{"error":{"message":"The decoder prompt (length 9000) is longer than the maximum model length of 8192.","type":"BadRequestError","code":400}}`,
			llm.Error{Status: 400, Code: "400", Overflow: true}},
		{"llama.cpp overflow", 400, nil, `{"error":{"code":400,"message":"the request exceeds the available context size, try increasing it","type":"exceed_context_size_error","n_prompt_tokens":9000,"n_ctx":4096}}`,
			llm.Error{Status: 400, Code: "400", Overflow: true}},
		{"llama.cpp overflow as a server error", 500, nil, `{"error":{"code":500,"message":"the request exceeds the available context size","type":"server_error"}}`,
			llm.Error{Status: 500, Code: "500", Overflow: true}},
		{"Ollama overflow", 400, nil, `{"error":"the input length exceeds the context length"}`,
			llm.Error{Status: 400, Overflow: true}},
		{"TGI overflow", 422, nil, "{\"error\":\"Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096. Given: 5000\",\"error_type\":\"validation\"}",
			llm.Error{Status: 422, Overflow: true}},
		{"Gemini overflow", 400, nil, `[{"error":{"code":400,"message":"The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).","status":"INVALID_ARGUMENT"}}]`,
			llm.Error{Status: 400, Code: "400", Overflow: true}},
		{"Anthropic overflow through a proxy", 400, nil, `{"error":{"message":"prompt is too long: 210000 tokens > 200000 maximum"}}`,
			llm.Error{Status: 400, Overflow: true}},
		{"a request larger than the limit per minute", 429, nil, `{"error":{"message":"Request too large for gpt-x on tokens per min (TPM): Limit 30000, Requested 41000.","type":"tokens","code":"rate_limit_exceeded"}}`,
			llm.Error{Status: 429, Code: "rate_limit_exceeded", Overflow: true}},
		{"body too large", 413, map[string]string{"Content-Type": "text/plain"}, "too large", llm.Error{Status: 413, Overflow: true}},

		{"timeout", 408, nil, "", llm.Error{Status: 408, Retryable: true, Message: "request timeout"}},
		{"conflict", 409, nil, "{}", llm.Error{Status: 409, Retryable: true, Message: "conflict"}},
		{"not implemented", 501, nil, "{}", llm.Error{Status: 501, Message: "not implemented"}},
		{"nothing known", 599, nil, "", llm.Error{Status: 599, Retryable: true, Message: "the server gave no reason"}},
		{"FastAPI detail", 422, nil, `{"detail":[{"loc":["body","x"],"msg":"field required"}]}`, llm.Error{Status: 422, Message: "field required"}},
		{"FastAPI sentence", 405, nil, `{"detail":"Method Not Allowed"}`, llm.Error{Status: 405, Message: "Method Not Allowed"}},
		{"no quota", 429, nil, `{"error":{"message":"You exceeded your current quota","type":"insufficient_quota","code":"insufficient_quota"}}`,
			llm.Error{Status: 429, Code: "insufficient_quota", Message: "check plan and billing"}},
		{"server says retry", 400, map[string]string{"X-Should-Retry": "true"}, `{"error":"x"}`, llm.Error{Status: 400, Retryable: true}},
		{"server says don't", 500, map[string]string{"X-Should-Retry": "false"}, `{"error":"x"}`, llm.Error{Status: 500}},
		{"retry-after-ms first", 429, map[string]string{"Retry-After-Ms": "1500", "Retry-After": "9"}, `{}`, llm.Error{Status: 429, Retryable: true, RetryAfter: 1500 * time.Millisecond}},
		{"retry-after in parts", 503, map[string]string{"Retry-After": "0.25"}, `{}`, llm.Error{Status: 503, Retryable: true, RetryAfter: 250 * time.Millisecond}},
		{"retry-after negative", 503, map[string]string{"Retry-After": "-5"}, `{}`, llm.Error{Status: 503, Retryable: true}},
		{"retry-after nonsense", 503, map[string]string{"Retry-After": "soon", "Retry-After-Ms": "NaN"}, `{}`, llm.Error{Status: 503, Retryable: true}},
		{"retry-after of ages", 503, map[string]string{"Retry-After": "1e400"}, `{}`, llm.Error{Status: 503, Retryable: true, RetryAfter: 24 * time.Hour}},
		{"retry-after in the past", 503, map[string]string{"Retry-After": "Sat, 01 Jan 2000 00:00:00 GMT"}, `{}`, llm.Error{Status: 503, Retryable: true}},
		{"forbidden", 403, nil, `{"error":{"message":"Country not supported"}}`, llm.Error{Status: 403, Message: "Country not supported"}},
		{"redirect", 301, map[string]string{"Location": "https://other.test/v1/chat/completions?token=" + secret}, "",
			llm.Error{Status: 301, Message: "https://other.test/v1/chat/completions; set the base URL"}},
		{"web page as plain text", 404, map[string]string{"Content-Type": "text/plain"}, "<!DOCTYPE html><p>no", llm.Error{Status: 404, Message: "HTML"}},
		{"XML", 403, map[string]string{"Content-Type": "application/xml"}, "<Error><Code>AccessDenied</Code></Error>", llm.Error{Status: 403, Message: "forbidden"}},

		{"an answer at once", 200, map[string]string{"Content-Type": js}, `{"object":"chat.completion","choices":[{"message":{"content":"x"}}]}`, llm.Error{Message: "instead of streaming"}},
		{"an error in a good answer", 200, map[string]string{"Content-Type": js}, `{"error":{"message":"no provider","code":502}}`, llm.Error{Status: 502, Retryable: true, Message: "no provider"}},
		{"another protocol", 200, map[string]string{"Content-Type": "text/plain"}, "hello\n\nworld\n", llm.Error{Message: "no event stream"}},
		{"too long a line", 200, map[string]string{"Content-Type": sse}, "data: " + strings.Repeat("x", 9<<20), llm.Error{Message: "larger than"}},
		{"too long a stream", 200, map[string]string{"Content-Type": sse}, strings.Repeat(": "+strings.Repeat("x", 1<<20)+"\n", 65), llm.Error{Message: "larger than"}},

		{"stream error by code", 200, map[string]string{"Content-Type": sse}, "data: {\"error\":{\"code\":429,\"message\":\"slow down\"},\"choices\":[{\"index\":0,\"delta\":{\"content\":\"\"},\"finish_reason\":\"error\"}]}\n\n",
			llm.Error{Status: 429, Retryable: true, Message: "slow down"}},
		{"stream error not to be tried again", 200, map[string]string{"Content-Type": sse}, "data: {\"error\":{\"message\":\"bad\",\"type\":\"invalid_request_error\",\"code\":null}}\n\n",
			llm.Error{Code: "invalid_request_error", Message: "bad"}},
		{"stream error as a string", 200, map[string]string{"Content-Type": sse}, "data: {\"error\":\"out of memory\"}\n\n", llm.Error{Retryable: true, Message: "out of memory"}},
		{"stream error as an event", 200, map[string]string{"Content-Type": sse}, "event: error\ndata: {\"message\":\"gone\"}\n\n", llm.Error{Retryable: true, Message: "gone"}},
		{"stream error as an object", 200, map[string]string{"Content-Type": sse}, "data: {\"object\":\"error\",\"message\":\"boom\",\"code\":500}\n\n", llm.Error{Status: 500, Retryable: true, Message: "boom"}},
		{"stream error without words", 200, map[string]string{"Content-Type": sse}, "data: {\"error\":{}}\n\n", llm.Error{Retryable: true, Message: "without a message"}},
		{"overflow in the stream", 200, map[string]string{"Content-Type": sse}, "data: {\"error\":{\"message\":\"x\",\"code\":\"context_length_exceeded\"}}\n\n",
			llm.Error{Code: "context_length_exceeded", Overflow: true}},
		{"the server gives up", 200, map[string]string{"Content-Type": sse}, "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"abort\"}]}\n\ndata: [DONE]\n\n",
			llm.Error{Retryable: true, Message: "gave up"}},
		{"not an object", 200, map[string]string{"Content-Type": sse}, "data: 7\n\n", llm.Error{Retryable: true, Message: "not a JSON object"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			header := map[string]string{"Content-Type": js}
			maps.Copy(header, tt.header)
			got := failure(t, openai.Config{APIKey: secret, HTTPClient: llmtest.Respond(tt.status, header, tt.body)})
			if !strings.Contains(got.Message, tt.want.Message) || got.Message == "" {
				t.Errorf("message %q doesn't contain %q", got.Message, tt.want.Message)
			}
			if strings.Contains(fmt.Sprintf("%v %#v", got, *got), secret) {
				t.Errorf("error %#v gives the key away", *got)
			}
			tt.want.Provider = "openai"
			if diff := cmp.Diff(tt.want, *got, cmpopts.IgnoreFields(llm.Error{}, "Message", "Err")); diff != "" {
				t.Errorf("error %v (-want +got):\n%s", got, diff)
			}
		})
	}
}

func TestMessagesAreShortAndHoldNoSecrets(t *testing.T) {
	body := `{"error":{"message":"line\nwith ` + secret + `, Bearer abcdefgh, sk-proj-abc***xyz, header-value and token-value, ` + strings.Repeat("long ", 1000) + `"}}`
	got := failure(t, openai.Config{
		APIKey:     secret,
		Name:       "mine",
		Headers:    map[string]string{"X-Team": "header-value", "X-Auth": "Basic token-value", "X-Short": "a"},
		HTTPClient: llmtest.Respond(400, map[string]string{"Content-Type": "application/json"}, body),
	})
	for _, s := range []string{secret, "abcdefgh", "abc***xyz", "header-value", "token-value", "\n"} {
		if strings.Contains(got.Message, s) {
			t.Errorf("message %q contains %q", got.Message, s)
		}
	}
	if len(got.Message) > 1000 || !strings.HasPrefix(got.Message, "line with ") {
		t.Errorf("message of %d bytes = %q, want it short", len(got.Message), got.Message)
	}
	if got.Provider != "mine" {
		t.Errorf("provider = %q, want mine", got.Provider)
	}
}

func TestUnauthorizedSaysWhatToCheck(t *testing.T) {
	client := llmtest.Respond(401, map[string]string{"Content-Type": "application/json"}, `{"error":{"message":"no"}}`)
	for _, tt := range []struct {
		cfg  openai.Config
		want string
	}{
		{openai.Config{HTTPClient: client}, "api.openai.com wants an API key and none is set"},
		{openai.Config{HTTPClient: client, APIKey: secret}, "does not accept the API key"},
		{openai.Config{HTTPClient: client, Headers: map[string]string{"authorization": "Basic x"}}, "does not accept the API key"},
	} {
		if got := failure(t, tt.cfg); !strings.Contains(got.Message, tt.want) || got.Retryable {
			t.Errorf("error = %v, retryable %v; want %q", got, got.Retryable, tt.want)
		}
	}
}

func TestNetworkErrors(t *testing.T) {
	for _, tt := range []struct {
		name      string
		err       error
		retryable bool
		want      string
	}{
		{"reset", errors.New("connection reset by peer"), true, "no answer from model.test: connection reset by peer"},
		{"certificate", &tls.CertificateVerificationError{Err: x509.UnknownAuthorityError{}}, false, "unknown authority"},
		{"somebody else's deadline", context.DeadlineExceeded, true, "no answer from model.test"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := failure(t, openai.Config{BaseURL: "https://model.test/v1", HTTPClient: &http.Client{
				Transport: llmtest.RoundTrip(func(*http.Request) (*http.Response, error) { return nil, tt.err }),
			}})
			if got.Retryable != tt.retryable || !strings.Contains(got.Message, tt.want) || !errors.Is(got, tt.err) && tt.name != "certificate" {
				t.Errorf("error = %v, retryable %v; want %q, retryable %v", got, got.Retryable, tt.want, tt.retryable)
			}
			if !got.Unreachable {
				t.Error("the error doesn't say that the server can't be reached")
			}
		})
	}
}
