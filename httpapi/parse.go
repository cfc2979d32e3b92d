package httpapi

import (
	"math"
	"mime"
	"regexp"
	"strconv"
	"strings"
	"time"

	"orchestrator/session"
)

// position is where a stream or a page begins.
type position struct {
	after uint64
	now   bool // behind the head, wherever that is
	gone  bool // no position of any log
}

// parsePosition reads a position: nothing (the beginning), a seq, or "now".
func parsePosition(s string) position {
	switch s {
	case "":
		return position{}
	case "now":
		return position{now: true}
	}
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil || s[0] == '+' || n > math.MaxInt64 {
		return position{gone: true}
	}
	return position{after: n}
}

// parseWait reads how long a request wants to wait, at most limit.
func parseWait(s string, limit time.Duration) (time.Duration, error) {
	if s == "" {
		return 0, nil
	}
	d, err := time.ParseDuration(s)
	if err != nil || d < 0 {
		return 0, invalid("query.wait", "a duration like 30s or 1m30s is expected")
	}
	return min(d, limit), nil
}

// parseTypes reads the event types a client wants; none are all.
func parseTypes(s string) (map[session.EventType]bool, error) {
	if s == "" {
		return nil, nil
	}
	wanted := make(map[session.EventType]bool)
	for name := range strings.SplitSeq(s, ",") {
		typ := session.EventType(strings.TrimSpace(name))
		if _, ok := session.DescribeEvent(typ); !ok {
			return nil, invalid("query.types", "there is no such event type; docs/events.md lists them")
		}
		wanted[typ] = true
	}
	return wanted, nil
}

// traceparent is that of W3C Trace Context, version 00.
var traceparent = regexp.MustCompile(`^00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$`)

// parseTrace returns the traceparent of a request; one that isn't valid is as good as none, as the specification wants.
func parseTrace(s string) string {
	if !traceparent.MatchString(s) || s[3:35] == strings.Repeat("0", 32) || s[36:52] == strings.Repeat("0", 16) {
		return ""
	}
	return s
}

const streamType = "text/event-stream"

// acceptsStream reports whether a client asks for an event stream: by name, since what takes anything gets JSON.
func acceptsStream(accept []string) bool {
	for _, line := range accept {
		for part := range strings.SplitSeq(line, ",") {
			typ, params, err := mime.ParseMediaType(part)
			if err == nil && typ == streamType && params["q"] != "0" {
				return true
			}
		}
	}
	return false
}
