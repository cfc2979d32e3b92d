// Package telemetry sets up what the product tells its operator. The program calls it once; everybody else is handed a
// logger.
package telemetry

import (
	"context"
	"fmt"
	"io"
	"log/slog"

	"go.opentelemetry.io/otel/trace"
)

// LogConfig configures a logger.
type LogConfig struct {
	// Writer is where lines go. Required.
	Writer io.Writer
	// Level is debug, info, warn or error. Defaults to info.
	Level string
	// Format is text or json. Defaults to text.
	Format string
}

// NewLogger returns a logger that writes one line a record, with the ids of the span of its context, if it has one. Its level and format are checked.
func NewLogger(cfg LogConfig) (*slog.Logger, error) {
	var level slog.Level
	switch cfg.Level {
	case "debug":
		level = slog.LevelDebug
	case "", "info":
		level = slog.LevelInfo
	case "warn":
		level = slog.LevelWarn
	case "error":
		level = slog.LevelError
	default:
		return nil, fmt.Errorf("log level %q: allowed: debug, info, warn, error", cfg.Level)
	}
	opts := &slog.HandlerOptions{Level: level}
	switch cfg.Format {
	case "", "text":
		return slog.New(traced{slog.NewTextHandler(cfg.Writer, opts)}), nil
	case "json":
		return slog.New(traced{slog.NewJSONHandler(cfg.Writer, opts)}), nil
	}
	return nil, fmt.Errorf("log format %q: allowed: text, json", cfg.Format)
}

// traced adds the ids of the active span to records.
type traced struct{ slog.Handler }

// Handle implements slog.Handler.
func (h traced) Handle(ctx context.Context, r slog.Record) error {
	if sc := trace.SpanContextFromContext(ctx); sc.IsValid() {
		r = r.Clone()
		r.AddAttrs(slog.String("trace_id", sc.TraceID().String()), slog.String("span_id", sc.SpanID().String()))
	}
	return h.Handler.Handle(ctx, r) //nolint:wrapcheck // a handler passes on what the next one says
}

// WithAttrs implements slog.Handler.
func (h traced) WithAttrs(attrs []slog.Attr) slog.Handler { return traced{h.Handler.WithAttrs(attrs)} }

// WithGroup implements slog.Handler.
func (h traced) WithGroup(name string) slog.Handler { return traced{h.Handler.WithGroup(name)} }
