package app_test

import (
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/google/go-cmp/cmp"

	"orchestrator/internal/app"
	"orchestrator/internal/orchtest"
	"orchestrator/session"
)

// pricedAnswer is an answer of Anthropic's: 1 M tokens of input that were new, 2 M that were put into the cache, 4 M that
// were in it, and 8 M of output.
const pricedAnswer = `event: message_start
data: {"type":"message_start","message":{"id":"m","type":"message","role":"assistant","content":[],"usage":{"input_tokens":1000000,"cache_creation_input_tokens":2000000,"cache_read_input_tokens":4000000,"output_tokens":1}}}

event: content_block_start
data: {"type":"content_block_start","index":0,"content_block":{"type":"text","text":"Yes."}}

event: content_block_stop
data: {"type":"content_block_stop","index":0}

event: message_delta
data: {"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":8000000}}

event: message_stop
data: {"type":"message_stop"}

`

func TestEachKindOfTokenHasItsPrice(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		io.WriteString(w, pricedAnswer)
	}))
	t.Cleanup(srv.Close)
	for name, tt := range map[string]struct {
		price app.PriceConfig
		want  float64
	}{
		"no price":                           {app.PriceConfig{}, 0},
		"all of them":                        {app.PriceConfig{Input: 1, CacheWrite: 1.25, CachedInput: 0.1, Output: 5}, 1 + 2*1.25 + 4*0.1 + 8*5},
		"cached input and writes like input": {app.PriceConfig{Input: 1, Output: 5}, 1 + 2 + 4 + 8*5},
		"writes alone":                       {app.PriceConfig{CacheWrite: 3}, 6},
	} {
		t.Run(name, func(t *testing.T) {
			a, _ := orchtest.Start(t, orchtest.Config{Memory: true, Script: "agents: []", Edit: func(c *app.Config) {
				c.Models = []app.ModelConfig{{
					Name: "m", Provider: app.ProviderAnthropic, BaseURL: srv.URL, APIKeyEnv: "KEY", Price: tt.price,
				}}
				c.Getenv = func(name string) string { return map[string]string{"KEY": "k"}[name] }
			}})
			var got session.TurnEnded
			for _, e := range orchtest.Ask(t, a, "Is it so?") {
				if e.Type == session.EventTurnCompleted {
					if err := e.Decode(&got); err != nil {
						t.Fatal(err)
					}
				}
			}
			want := session.Usage{
				InputTokens: 7e6, CachedInputTokens: 4e6, CacheWriteTokens: 2e6, OutputTokens: 8e6, ModelCalls: 1, CostUSD: got.Usage.CostUSD,
			}
			if diff := cmp.Diff(want, got.Usage); diff != "" {
				t.Errorf("usage (-want +got):\n%s", diff)
			}
			if math.Abs(got.Usage.CostUSD-tt.want) > 1e-9 {
				t.Errorf("that costs %v, want %v", got.Usage.CostUSD, tt.want)
			}
		})
	}
}
