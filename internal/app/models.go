package app

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"net/http"
	"time"

	"orchestrator/llm"
	"orchestrator/llm/anthropic"
	"orchestrator/llm/openai"
	"orchestrator/llm/scripted"
	"orchestrator/session"
)

// model is a configured model: it fills in what the config says of it.
type model struct {
	llm.Model
	cfg ModelConfig
}

var _ llm.Model = (*model)(nil)

// newModel builds the model of a config entry. A missing key is an error that says what to set.
func newModel(c ModelConfig, getenv func(string) string) (*model, error) {
	m := &model{cfg: c}
	switch c.Provider {
	case ProviderScripted:
		script, err := scripted.Load(c.Script)
		if err != nil {
			return nil, fmt.Errorf("model %q: %w", c.Name, err)
		}
		m.Model = script
	default:
		key, err := c.APIKey(getenv)
		if err != nil {
			return nil, err
		}
		headers, err := c.HeaderValues(getenv)
		if err != nil {
			return nil, err
		}
		if c.Provider == ProviderAnthropic {
			m.Model, err = anthropic.New(anthropic.Config{
				Name: c.Name, BaseURL: c.BaseURL, APIKey: key, Headers: headers, HTTPClient: modelClient(),
				Thinking: anthropic.Thinking(c.Thinking), ThinkingTokens: c.ThinkingTokens,
			})
		} else {
			m.Model, err = openai.New(openai.Config{
				Name: c.Name, BaseURL: c.BaseURL, APIKey: key, Headers: headers, HTTPClient: modelClient(),
			})
		}
		if err != nil {
			return nil, fmt.Errorf("model %q: %w", c.Name, err)
		}
	}
	return m, nil
}

// modelClient has no timeout of its own, which would cut streams: every call has a context with a deadline.
func modelClient() *http.Client {
	return &http.Client{Transport: &http.Transport{
		Proxy: http.ProxyFromEnvironment, ForceAttemptHTTP2: true, MaxIdleConnsPerHost: 64, IdleConnTimeout: 90 * time.Second,
		TLSHandshakeTimeout: 10 * time.Second, MaxResponseHeaderBytes: 256 << 10,
	}}
}

// Stream implements [llm.Model]: it bounds the answer and prices the usage as configured.
func (m *model) Stream(ctx context.Context, r llm.Request) iter.Seq2[llm.Chunk, error] {
	r.MaxTokens = cmp.Or(r.MaxTokens, m.cfg.MaxOutputTokens)
	stream := m.Model.Stream(ctx, r)
	if m.cfg.Price == (PriceConfig{}) {
		return stream
	}
	return func(yield func(llm.Chunk, error) bool) {
		for c, err := range stream {
			if c.Kind == llm.ChunkUsage && c.Usage.CostUSD == 0 {
				c.Usage.CostUSD = m.cfg.Price.cost(c.Usage)
			}
			if !yield(c, err) {
				return
			}
		}
	}
}

// cost is in US dollars; the prices are for a million tokens.
func (p PriceConfig) cost(u session.Usage) float64 {
	fresh := max(u.InputTokens-u.CachedInputTokens-u.CacheWriteTokens, 0)
	return (float64(fresh)*p.Input + float64(u.CachedInputTokens)*p.CachedInput + float64(u.CacheWriteTokens)*p.CacheWrite +
		float64(u.OutputTokens)*p.Output) / 1e6
}
