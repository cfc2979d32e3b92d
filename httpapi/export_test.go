package httpapi

import (
	"time"

	"orchestrator/session"
)

// The parsers of what clients send, for their fuzz targets.

func ParsePosition(s string) (after uint64, now, gone bool) {
	p := parsePosition(s)
	return p.after, p.now, p.gone
}

func ParseWait(s string, limit time.Duration) (time.Duration, error) { return parseWait(s, limit) }

func ParseTypes(s string) (map[session.EventType]bool, error) { return parseTypes(s) }

func ParseTrace(s string) string { return parseTrace(s) }

func AcceptsStream(accept []string) bool { return acceptsStream(accept) }
