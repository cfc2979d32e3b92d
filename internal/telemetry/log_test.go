package telemetry_test

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"go.opentelemetry.io/otel/trace"

	"orchestrator/internal/telemetry"
)

func TestLoggerWritesTheLevelsAskedForInTheFormatAskedFor(t *testing.T) {
	for level, want := range map[string]int{"debug": 4, "": 3, "info": 3, "warn": 2, "error": 1} {
		var out bytes.Buffer
		log, err := telemetry.NewLogger(telemetry.LogConfig{Writer: &out, Level: level, Format: "json"})
		if err != nil {
			t.Fatal(err)
		}
		log.Debug("d")
		log.Info("i")
		log.Warn("w")
		log.Error("e", "peer", "x")
		lines := strings.Split(strings.TrimSpace(out.String()), "\n")
		if len(lines) != want {
			t.Errorf("level %q writes %d lines, want %d", level, len(lines), want)
		}
		var last map[string]any
		if err := json.Unmarshal([]byte(lines[len(lines)-1]), &last); err != nil || last["msg"] != "e" || last["peer"] != "x" {
			t.Errorf("last line = %v, %v, want message e of peer x", last, err)
		}
	}
	var out bytes.Buffer
	log, err := telemetry.NewLogger(telemetry.LogConfig{Writer: &out})
	if err != nil {
		t.Fatal(err)
	}
	log.Info("hello", "session", "s_1")
	if got := out.String(); !strings.Contains(got, "msg=hello session=s_1") {
		t.Errorf("text line = %q", got)
	}
}

func TestUnknownLevelOrFormatNamesWhatIsAllowed(t *testing.T) {
	for _, cfg := range []telemetry.LogConfig{{Level: "loud"}, {Format: "xml"}} {
		if _, err := telemetry.NewLogger(cfg); err == nil || !strings.Contains(err.Error(), "allowed: ") {
			t.Errorf("NewLogger(%+v) = %v, want an error that says what is allowed", cfg, err)
		}
	}
}

func TestLinesNameTheSpanOfTheirContext(t *testing.T) {
	var out bytes.Buffer
	log, err := telemetry.NewLogger(telemetry.LogConfig{Writer: &out})
	if err != nil {
		t.Fatal(err)
	}
	ctx := trace.ContextWithSpanContext(t.Context(), trace.NewSpanContext(trace.SpanContextConfig{
		TraceID: trace.TraceID{0x0a, 0xf7}, SpanID: trace.SpanID{0xb7, 0xad},
	}))
	log.With("session", "s_1").InfoContext(ctx, "inside")
	log.InfoContext(t.Context(), "outside")
	inside, outside, _ := strings.Cut(out.String(), "\n")
	if want := "msg=inside session=s_1 trace_id=0af70000000000000000000000000000 span_id=b7ad000000000000"; !strings.HasSuffix(inside, want) {
		t.Errorf("line with a span = %q, want it to end in %q", inside, want)
	}
	if strings.Contains(outside, "trace_id") {
		t.Errorf("line without a span = %q", outside)
	}
}
