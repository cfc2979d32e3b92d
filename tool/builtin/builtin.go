// Package builtin offers the tools that need nothing but the session itself: read_artifact and current_time, of the source
// "builtin".
//
// internal/app puts them into the registry. They read and never write, keep no state, and may be called from any goroutine.
package builtin

import (
	"encoding/json"
	"errors"
	"fmt"

	"orchestrator/session"
	"orchestrator/tool"
)

// Config configures the built-in tools.
type Config struct {
	// Store holds the artifacts read_artifact reads. Required.
	Store session.Store
}

// New returns the built-in tools.
func New(cfg Config) ([]tool.Tool, error) {
	if cfg.Store == nil {
		return nil, errors.New("builtin tools: Store is required")
	}
	return []tool.Tool{&readArtifact{store: cfg.Store}, currentTime{}}, nil
}

// decodeArgs is for arguments that are valid against the schema already: what it refuses never came through the loop.
func decodeArgs(c *tool.Call, v any) error {
	if err := json.Unmarshal(c.Args, v); err != nil {
		return fmt.Errorf("decode the arguments of %s: %w", c.Name, err)
	}
	return nil
}

func describe(text string) func(tool.Kind) string {
	return func(tool.Kind) string { return text }
}
