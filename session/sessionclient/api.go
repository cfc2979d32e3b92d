package sessionclient

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"orchestrator/session"
)

// SessionInfo is a session as the server lists it.
type SessionInfo struct {
	ID          session.ID `json:"id"`
	RootAgentID session.ID `json:"rootAgentId"`
	Agent       string     `json:"agent"`
	Title       string     `json:"title,omitempty"`
	Status      string     `json:"status"` // open, closing or closed
	Created     time.Time  `json:"created"`
	LastSeq     uint64     `json:"lastSeq"`
}

// Snapshot is a session with what goes on in it, at the moment of its LastSeq: with the events behind that nothing is
// missed and nothing repeated.
type Snapshot struct {
	SessionInfo
	State        string        `json:"state"` // idle, running or requires_action
	Background   []session.ID  `json:"background"`
	ActiveTurn   *Turn         `json:"activeTurn,omitempty"`
	Queue        []Turn        `json:"queue"`
	Agents       []Agent       `json:"agents"`
	PendingCalls []Call        `json:"pendingCalls"`
	Usage        session.Usage `json:"usage"`
}

// Agent is one agent of a session: the root, or a subagent.
type Agent struct {
	ID            session.ID         `json:"id"`
	ParentAgentID session.ID         `json:"parentAgentId,omitempty"`
	Root          bool               `json:"root"`
	Agent         string             `json:"agent"`
	Description   string             `json:"description,omitempty"`
	State         string             `json:"state"` // queued, running, suspended, ended or idle
	TurnID        session.TurnID     `json:"turnId,omitempty"`
	ToolCallID    session.ToolCallID `json:"toolCallId,omitempty"`
	OriginTurn    session.TurnID     `json:"originTurn,omitempty"`
	Result        string             `json:"result,omitempty"` // completed, error, timeout, cancelled or interrupted
	Summary       string             `json:"summary,omitempty"`
	Error         string             `json:"error,omitempty"`
	Usage         session.Usage      `json:"usage"`
}

// Call is one call to a peer.
type Call struct {
	ID           session.CallID     `json:"id"`
	SessionID    session.ID         `json:"sessionId"` // the root's
	AgentID      session.ID         `json:"agentId"`   // who called
	TurnID       session.TurnID     `json:"turnId,omitempty"`
	OriginTurn   session.TurnID     `json:"originTurn,omitempty"`
	ToolCallID   session.ToolCallID `json:"toolCallId,omitempty"`
	Peer         string             `json:"peer"`
	Mode         session.CallMode   `json:"mode"`
	State        session.State      `json:"state"`
	Wanted       bool               `json:"wanted"` // its reply would still be taken
	AskerName    string             `json:"askerName"`
	Question     string             `json:"question,omitempty"`
	PeerTaskID   string             `json:"peerTaskId,omitempty"`
	Attempt      int                `json:"attempt"`
	SentAt       time.Time          `json:"sentAt"`
	Deadline     time.Time          `json:"deadline"`
	ReplyBy      time.Time          `json:"replyBy"`
	Reply        *CallReply         `json:"reply,omitempty"`
	CancelReason string             `json:"cancelReason,omitempty"`
}

// CallReply is what a peer answered.
type CallReply struct {
	State  string    `json:"state"`
	Text   string    `json:"text,omitempty"`
	Failed bool      `json:"failed"`
	At     time.Time `json:"at"`
}

// OpenRequest opens a session.
type OpenRequest struct {
	// Agent is a name of the server's configuration. Defaults to its primary agent.
	Agent string `json:"agent,omitempty"`
	Title string `json:"title,omitempty"`
}

// Open makes a session. It is not repeated when its outcome is unknown.
func (h *HTTP) Open(ctx context.Context, r OpenRequest) (s SessionInfo, err error) {
	return s, h.call(ctx, request{method: http.MethodPost, path: "sessions", body: r}, &s)
}

// CloseSession closes a session: its turns, subagents and calls are cancelled. session.closed tells the end.
func (h *HTTP) CloseSession(ctx context.Context, id session.ID) (s SessionInfo, err error) {
	return s, h.call(ctx, request{method: http.MethodDelete, path: segments("sessions", id)}, &s)
}

// Session returns a session as it is now.
func (h *HTTP) Session(ctx context.Context, id session.ID) (s Snapshot, err error) {
	return s, h.call(ctx, request{path: segments("sessions", id)}, &s)
}

// Sessions returns up to limit sessions (0: as many as the server likes), the newest first, and where the next page
// begins: the before of the next call, empty at the end.
func (h *HTTP) Sessions(ctx context.Context, limit int, before string) (page []SessionInfo, next string, err error) {
	var body struct {
		Sessions []SessionInfo `json:"sessions"`
		Next     string        `json:"next"`
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
func (h *HTTP) Calls(ctx context.Context, id session.ID, pending bool) ([]Call, error) {
	var body struct {
		Calls []Call `json:"calls"`
	}
	query := url.Values{}
	if pending {
		query.Set("pending", "true")
	}
	err := h.call(ctx, request{path: segments("sessions", id, "calls"), query: query}, &body)
	return body.Calls, err
}

// Call returns one call of a session.
func (h *HTTP) Call(ctx context.Context, id session.ID, call session.CallID) (c Call, err error) {
	return c, h.call(ctx, request{path: segments("sessions", id, "calls", call)}, &c)
}

// CancelCall cancels a call: whoever waits for it goes on without, and its peer is told.
func (h *HTTP) CancelCall(ctx context.Context, id session.ID, call session.CallID) (c Call, err error) {
	return c, h.call(ctx, request{method: http.MethodPost, path: segments("sessions", id, "calls", call, "cancel")}, &c)
}

// CancelAgent cancels a subagent, with what it has going on.
func (h *HTTP) CancelAgent(ctx context.Context, id, agent session.ID, reason string) (a Agent, err error) {
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
