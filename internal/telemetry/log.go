// Package telemetry sets up what the product tells its operator. The program calls it once; everybody else is handed a
// logger.
package telemetry

import (
	"fmt"
	"io"
	"log/slog"
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

// NewLogger returns a logger that writes one line a record. Its level and format are checked.
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
		return slog.New(slog.NewTextHandler(cfg.Writer, opts)), nil
	case "json":
		return slog.New(slog.NewJSONHandler(cfg.Writer, opts)), nil
	}
	return nil, fmt.Errorf("log format %q: allowed: text, json", cfg.Format)
}
