package sessionclient

import (
	"context"
	"net/http"
	"net/url"
	"strconv"

	"orchestrator/session"
)

// OpenRequest opens a session.
type OpenRequest struct {
	// Agent is a name of the server's configuration. Defaults to its primary agent.
	Agent string `json:"agent,omitempty"`
	Title string `json:"title,omitempty"`
}

// Open makes a session. It is not repeated when its outcome is unknown.
func (h *HTTP) Open(ctx context.Context, r OpenRequest) (s session.Info, err error) {
	return s, h.call(ctx, request{method: http.MethodPost, path: "sessions", body: r}, &s)
}

// CloseSession closes a session: its turns, subagents and calls are cancelled. session.closed tells the end.
func (h *HTTP) CloseSession(ctx context.Context, id session.ID) (s session.Info, err error) {
	return s, h.call(ctx, request{method: http.MethodDelete, path: segments("sessions", id)}, &s)
}

// Session returns a session as it is now.
func (h *HTTP) Session(ctx context.Context, id session.ID) (s session.Snapshot, err error) {
	return s, h.call(ctx, request{path: segments("sessions", id)}, &s)
}

// Sessions returns up to limit sessions (0: as many as the server likes), the newest first, and where the next page
// begins: the before of the next call, empty at the end.
func (h *HTTP) Sessions(ctx context.Context, limit int, before string) (page []session.Info, next string, err error) {
	var body struct {
		Sessions []session.Info `json:"sessions"`
		Next     string         `json:"next"`
	}
	err = h.call(ctx, request{path: "sessions", query: paging(limit, before)}, &body)
	return body.Sessions, body.Next, err
}

func paging(limit int, before string) url.Values {
	query := url.Values{}
	if limit > 0 {
		query.Set("limit", strconv.Itoa(limit))
	}
	if before != "" {
		query.Set("before", before)
	}
	return query
}

// Calls returns the calls of a session, all of them or those whose reply is still wanted.
func (h *HTTP) Calls(ctx context.Context, id session.ID, pending bool) ([]session.CallInfo, error) {
	var body struct {
		Calls []session.CallInfo `json:"calls"`
	}
	query := url.Values{}
	if pending {
		query.Set("pending", "true")
	}
	err := h.call(ctx, request{path: segments("sessions", id, "calls"), query: query}, &body)
	return body.Calls, err
}

// Call returns one call of a session.
func (h *HTTP) Call(ctx context.Context, id session.ID, call session.CallID) (c session.CallInfo, err error) {
	return c, h.call(ctx, request{path: segments("sessions", id, "calls", call)}, &c)
}

// CancelCall cancels a call: whoever waits for it goes on without, and its peer is told.
func (h *HTTP) CancelCall(ctx context.Context, id session.ID, call session.CallID, reason string) (c session.CallInfo, err error) {
	r := request{method: http.MethodPost, path: segments("sessions", id, "calls", call, "cancel"), body: reasonBody(reason)}
	return c, h.call(ctx, r, &c)
}

// CancelAgent cancels a subagent, with what it has going on.
func (h *HTTP) CancelAgent(ctx context.Context, id, agent session.ID, reason string) (a session.AgentInfo, err error) {
	r := request{method: http.MethodPost, path: segments("sessions", id, "agents", agent, "cancel"), body: reasonBody(reason)}
	return a, h.call(ctx, r, &a)
}

// Artifact returns an artifact's bytes.
func (h *HTTP) Artifact(ctx context.Context, id session.ID, key session.ArtifactKey) ([]byte, error) {
	return h.read(ctx, request{path: segments("sessions", id, "artifacts", key), accept: "*/*"})
}

// Page returns up to limit durable events behind a seq, in full, and whether there are more.
func (h *HTTP) Page(ctx context.Context, id session.ID, after uint64, limit int) (events []session.Event, more bool, err error) {
	query := url.Values{"after": {strconv.FormatUint(after, 10)}}
	if limit > 0 {
		query.Set("limit", strconv.Itoa(limit))
	}
	var body struct {
		Events  []session.Event `json:"events"`
		HasMore bool            `json:"hasMore"`
	}
	if err := h.call(ctx, request{path: segments("sessions", id, "events"), query: query}, &body); err != nil {
		return nil, false, err
	}
	for i := range body.Events {
		if err := h.resolve(ctx, &body.Events[i]); err != nil {
			return nil, false, err
		}
	}
	return body.Events, body.HasMore, nil
}
