package telemetry_test

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"orchestrator/internal/telemetry"
)

func newTracing(t *testing.T, endpoint string, env map[string]string) (telemetry.TraceConfig, error) {
	t.Helper()
	cfg := telemetry.TraceConfig{
		Endpoint: endpoint, Version: "v1", Getenv: func(name string) string { return env[name] },
		Logger: slog.New(slog.NewTextHandler(t.Output(), nil)),
	}
	provider, stop, err := telemetry.NewTracing(t.Context(), cfg)
	if err != nil {
		return cfg, err
	}
	if provider != nil {
		_, span := provider.Tracer("t").Start(t.Context(), "a span")
		span.End()
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	return cfg, stop(ctx)
}

func TestSpansAreSentToTheCollectorThatIsConfigured(t *testing.T) {
	got := make(chan string, 10)
	collector := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { got <- r.URL.Path }))
	defer collector.Close()
	if _, err := newTracing(t, collector.URL, nil); err != nil {
		t.Fatal(err)
	}
	if len(got) != 1 || <-got != "/v1/traces" {
		t.Error("the collector did not get one batch at /v1/traces")
	}
	for name, env := range map[string]map[string]string{
		"nothing is configured": nil,
		"it is switched off":    {"OTEL_SDK_DISABLED": "true", "OTEL_EXPORTER_OTLP_ENDPOINT": collector.URL},
	} {
		if _, err := newTracing(t, "", env); err != nil || len(got) > 0 {
			t.Errorf("when %s: %v and %d batches, want none", name, err, len(got))
		}
	}
}

func TestCollectorThatIsNoURLIsRefused(t *testing.T) {
	for _, endpoint := range []string{"localhost:4318", "ftp://x", "http://"} {
		if _, err := newTracing(t, endpoint, nil); err == nil || !strings.Contains(err.Error(), "http://localhost:4318") {
			t.Errorf("NewTracing(%q) = %v, want an error that shows a URL", endpoint, err)
		}
	}
}
