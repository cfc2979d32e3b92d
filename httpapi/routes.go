package httpapi

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"mime"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"orchestrator/session"
)

// SessionPath is the part of an input that names a session.
type SessionPath struct {
	Session session.ID `path:"session" maxLength:"100" doc:"The session's id."`
}

type TurnPath struct {
	SessionPath
	Turn session.TurnID `path:"turn" maxLength:"100" doc:"The turn's id."`
}

type AgentPath struct {
	SessionPath
	Agent session.ID `path:"agent" maxLength:"100" doc:"The agent's id; the root agent's is the session's."`
}

type CallPath struct {
	SessionPath
	Call session.CallID `path:"call" maxLength:"100" doc:"The call's id."`
}

// Waiting is the part of an input that says how long to wait for a turn, and for what.
type Waiting struct {
	Wait  string        `query:"wait" maxLength:"20" example:"30s" doc:"How long to wait, as a duration; at most api.max_wait. By default not at all."`
	Until session.Until `query:"until" enum:"turn,quiescent" default:"turn" doc:"What to wait for: the turn's end, or also that nothing it set going is still on its way home."`
}

// NewSession is the body that makes a session.
type NewSession struct {
	Agent string `json:"agent,omitempty" maxLength:"200" doc:"The agent's name in the config. By default the primary."`
	Title string `json:"title,omitempty" maxLength:"500" doc:"A name for people."`
}

// NewTurn is the body that makes a turn.
type NewTurn struct {
	Input  string `json:"input" minLength:"1" doc:"What the user says."`
	OnBusy string `json:"onBusy,omitempty" enum:"queue,steer,reject" doc:"What becomes of the input when the session has a turn that has not ended: it waits its turn (queue, the default), or is refused with the code busy (reject). Entering the running turn (steer) is not supported yet."`
}

// CancelRequest is the body that cancels something.
type CancelRequest struct {
	Reason string `json:"reason,omitempty" maxLength:"500" doc:"Why, for the log."`
}

// SessionList is a page of sessions.
type SessionList struct {
	Sessions []session.Info `json:"sessions"`
	Next     session.ID     `json:"next,omitempty" doc:"The value of before for the next page; missing on the last."`
}

// AgentList is the agents of a session.
type AgentList struct {
	Agents []session.AgentInfo `json:"agents" doc:"The root, then its subagents in the order they were spawned."`
}

// CallList is the calls of a session.
type CallList struct {
	Calls []session.CallInfo `json:"calls" doc:"In the order they were made."`
}

// EventPage is a page of a session's log.
type EventPage struct {
	Events    []session.Event `json:"events"`
	NextAfter uint64          `json:"nextAfter" doc:"The value of after for the next page."`
	HeadSeq   uint64          `json:"headSeq" doc:"The seq of the log's last event."`
	HasMore   bool            `json:"hasMore"`
}

type body[T any] struct {
	Body T
}

type statusBody[T any] struct {
	Status int
	Body   T
}

// register registers every route.
func (a *API) register(api huma.API) {
	const session, turn, agent, call = "/v1/sessions/{session}", "/turns/{turn}", "/agents/{agent}", "/calls/{call}"
	add(a, api, op(http.MethodPost, "/v1/sessions", "create-session", "Open a session", 201), a.createSession)
	add(a, api, op(http.MethodGet, "/v1/sessions", "list-sessions", "List your sessions, the newest first", 200), a.listSessions)
	add(a, api, op(http.MethodGet, session, "get-session", "A session at one moment of its log", 200), a.getSession)
	add(a, api, op(http.MethodDelete, session, "close-session", "Close a session: what it does is cancelled", 202), a.closeSession)
	submit := op(http.MethodPost, session+"/turns", "create-turn", "Give a session an input", 202)
	submit.MaxBodyBytes = 2*int64(a.cfg.MaxInput) + smallBody
	add(a, api, submit, a.createTurn)
	add(a, api, op(http.MethodGet, session+turn, "get-turn", "The truth of a turn", 200), a.getTurn)
	add(a, api, op(http.MethodPost, session+turn+"/cancel", "cancel-turn", "Cancel a turn; background work goes on", 202), a.cancelTurn)
	add(a, api, op(http.MethodGet, session+"/agents", "list-agents", "List a session's agents", 200), a.listAgents)
	add(a, api, op(http.MethodGet, session+agent, "get-agent", "One agent of a session", 200), a.getAgent)
	add(a, api, op(http.MethodPost, session+agent+"/cancel", "cancel-agent", "Cancel a subagent with its calls", 202), a.cancelAgent)
	add(a, api, op(http.MethodGet, session+"/calls", "list-calls", "List a session's calls to peers", 200), a.listCalls)
	add(a, api, op(http.MethodGet, session+call, "get-call", "One call to a peer", 200), a.getCall)
	add(a, api, op(http.MethodPost, session+call+"/cancel", "cancel-call", "Cancel a call to a peer", 202), a.cancelCall)
	add(a, api, artifactOp(op(http.MethodGet, session+"/artifacts/{key}", "get-artifact", "The bytes of an artifact", 200)), a.getArtifact)
	add(a, api, eventsOp(op(http.MethodGet, session+"/events", "get-events", "A session's events, as a stream or a page", 200), api), a.getEvents)
}

// smallBody bounds the bodies of requests that hold no input.
const smallBody = 64 << 10

func op(method, path, id, summary string, status int) huma.Operation {
	return huma.Operation{
		Method: method, Path: path, OperationID: id, Summary: summary, DefaultStatus: status, MaxBodyBytes: smallBody,
		BodyReadTimeout: 10 * time.Second, Security: []map[string][]string{{"key": {}}, {}},
	}
}

// add registers a route whose errors are problems.
func add[I, O any](a *API, api huma.API, o huma.Operation, handle func(context.Context, *request, *I) (*O, error)) {
	huma.Register(api, o, func(ctx context.Context, in *I) (*O, error) {
		out, err := handle(ctx, requestOf(ctx), in)
		if err != nil {
			return nil, a.problemOf(ctx, err)
		}
		return out, nil
	})
}

// info returns a session the principal may see.
func (a *API) info(ctx context.Context, r *request, id session.ID) (session.Info, error) {
	info, err := a.cfg.Manager.Info(ctx, id)
	if err == nil && info.Principal != r.principal.name {
		err = notFound()
	}
	return info, err
}

func (a *API) createSession(ctx context.Context, r *request, in *struct {
	Body *NewSession
},
) (*body[session.Info], error) {
	var wanted NewSession
	if in.Body != nil {
		wanted = *in.Body
	}
	name := wanted.Agent
	switch {
	case name == "":
		name = a.cfg.Agents[0]
	case !slices.Contains(a.cfg.Agents, name):
		return nil, problem(codeUnknownAgent, "sessions may be opened for: "+strings.Join(a.cfg.Agents, ", "))
	}
	id, err := a.cfg.Manager.Open(ctx, session.OpenRequest{Agent: name, Title: wanted.Title, Principal: r.principal.name})
	if err != nil {
		return nil, err
	}
	info, err := a.cfg.Manager.Info(ctx, id)
	return &body[session.Info]{info}, err
}

func (a *API) listSessions(ctx context.Context, r *request, in *struct {
	Limit  int        `query:"limit" minimum:"1" maximum:"500" default:"50" doc:"How many at most."`
	Before session.ID `query:"before" maxLength:"100" doc:"Only sessions older than this one: next of the page before."`
},
) (*body[SessionList], error) {
	infos, err := a.cfg.Manager.Sessions(ctx, session.SessionQuery{Principal: r.principal.name, Before: in.Before, Limit: in.Limit + 1})
	if err != nil {
		return nil, err
	}
	list := SessionList{Sessions: infos}
	if len(infos) > in.Limit {
		list.Sessions = infos[:in.Limit]
		list.Next = infos[in.Limit-1].ID
	}
	return &body[SessionList]{list}, nil
}

func (a *API) getSession(ctx context.Context, r *request, in *SessionPath) (*body[session.Snapshot], error) {
	if _, err := a.info(ctx, r, in.Session); err != nil {
		return nil, err
	}
	s, err := a.cfg.Manager.Snapshot(ctx, in.Session)
	return &body[session.Snapshot]{s}, err
}

func (a *API) closeSession(ctx context.Context, r *request, in *SessionPath) (*body[session.Info], error) {
	if _, err := a.info(ctx, r, in.Session); err != nil {
		return nil, err
	}
	if err := a.cfg.Manager.Close(ctx, in.Session); err != nil {
		return nil, err
	}
	info, err := a.info(ctx, r, in.Session)
	return &body[session.Info]{info}, err
}

func (a *API) createTurn(ctx context.Context, r *request, in *struct {
	SessionPath
	Waiting
	Key   string `header:"Idempotency-Key" maxLength:"255" doc:"Makes the request idempotent: the same key and body are the same turn."`
	Trace string `header:"Traceparent" doc:"W3C trace context: the turn's trace goes on from it."`
	Body  NewTurn
},
) (*statusBody[session.TurnInfo], error) {
	wait, err := parseWait(in.Wait, a.cfg.MaxWait)
	if err != nil {
		return nil, err
	}
	if _, err := a.info(ctx, r, in.Session); err != nil {
		return nil, err
	}
	switch {
	case in.Body.OnBusy == "steer":
		return nil, problem(codeSteer, "an input can't enter a running turn yet; use queue or reject")
	case len(in.Body.Input) > a.cfg.MaxInput:
		return nil, problem(codeTooLarge, fmt.Sprintf("input has %d bytes; at most %d are allowed", len(in.Body.Input), a.cfg.MaxInput))
	}
	id, err := a.cfg.Manager.Submit(ctx, session.SubmitRequest{
		Session: in.Session, Input: in.Body.Input, Key: in.Key, OnBusy: session.OnBusy(in.Body.OnBusy), Trace: parseTrace(in.Trace),
	})
	if err != nil {
		return nil, err
	}
	t, err := a.waitTurn(ctx, r, id, wait, in.Until)
	if err != nil {
		return nil, err
	}
	status := http.StatusAccepted
	if wait > 0 && t.Met(in.Until) {
		status = http.StatusOK
	}
	return &statusBody[session.TurnInfo]{status, t}, nil
}

// turn returns a turn of a session the principal may see.
func (a *API) turn(ctx context.Context, r *request, in TurnPath) (session.TurnInfo, error) {
	if _, err := a.info(ctx, r, in.Session); err != nil {
		return session.TurnInfo{}, err
	}
	return a.cfg.Manager.TurnOf(ctx, in.Session, in.Turn)
}

// waitTurn returns a turn when it is what is waited for, or as it is when the time is over or the server drains.
func (a *API) waitTurn(ctx context.Context, r *request, id session.TurnID, wait time.Duration, until session.Until) (session.TurnInfo, error) {
	if wait <= 0 {
		return a.cfg.Manager.Turn(ctx, id)
	}
	if err := r.extend(wait); err != nil {
		return session.TurnInfo{}, err
	}
	bound, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	stop := context.AfterFunc(a.drained, cancel)
	defer stop()
	t, err := a.cfg.Manager.WaitTurn(bound, id, until)
	if err != nil && bound.Err() != nil && ctx.Err() == nil {
		return a.cfg.Manager.Turn(ctx, id)
	}
	return t, err
}

// extend makes room for a wait in the server's deadlines, which are for quick answers.
func (r *request) extend(wait time.Duration) error {
	c := http.NewResponseController(r.http)
	if err := c.SetReadDeadline(time.Time{}); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return err
	}
	if err := c.SetWriteDeadline(time.Now().Add(wait + 10*time.Second)); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return err
	}
	return nil
}

func (a *API) getTurn(ctx context.Context, r *request, in *struct {
	TurnPath
	Waiting
},
) (*body[session.TurnInfo], error) {
	wait, err := parseWait(in.Wait, a.cfg.MaxWait)
	if err != nil {
		return nil, err
	}
	t, err := a.turn(ctx, r, in.TurnPath)
	if err != nil {
		return nil, err
	}
	if wait > 0 && !t.Met(in.Until) {
		t, err = a.waitTurn(ctx, r, in.Turn, wait, in.Until)
	}
	return &body[session.TurnInfo]{t}, err
}

func (a *API) cancelTurn(ctx context.Context, r *request, in *struct {
	TurnPath
	Body *CancelRequest
},
) (*body[session.TurnInfo], error) {
	t, err := a.turn(ctx, r, in.TurnPath)
	if err != nil {
		return nil, err
	}
	if t.Agent != t.Session {
		return nil, invalid("path.turn", "the turn is a subagent's: cancel the subagent")
	}
	if err := a.cfg.Manager.Cancel(ctx, in.Turn, in.Body.reason()); err != nil {
		return nil, err
	}
	t, err = a.cfg.Manager.Turn(ctx, in.Turn)
	return &body[session.TurnInfo]{t}, err
}

// reason is why something is cancelled; a nil body says nothing.
func (c *CancelRequest) reason() string {
	if c == nil || c.Reason == "" {
		return "cancelled by the user"
	}
	return c.Reason
}

func (a *API) listAgents(ctx context.Context, r *request, in *SessionPath) (*body[AgentList], error) {
	if _, err := a.info(ctx, r, in.Session); err != nil {
		return nil, err
	}
	agents, err := a.cfg.Manager.Agents(ctx, in.Session)
	return &body[AgentList]{AgentList{agents}}, err
}

func (a *API) getAgent(ctx context.Context, r *request, in *AgentPath) (*body[session.AgentInfo], error) {
	if _, err := a.info(ctx, r, in.Session); err != nil {
		return nil, err
	}
	agent, err := a.cfg.Manager.Agent(ctx, in.Session, in.Agent)
	return &body[session.AgentInfo]{agent}, err
}

func (a *API) cancelAgent(ctx context.Context, r *request, in *struct {
	AgentPath
	Body *CancelRequest
},
) (*body[session.AgentInfo], error) {
	if _, err := a.info(ctx, r, in.Session); err != nil {
		return nil, err
	}
	if in.Agent == in.Session {
		return nil, invalid("path.agent", "the root agent is the session: cancel its turn, or close the session")
	}
	agent, err := a.cfg.Manager.CancelAgent(ctx, in.Session, in.Agent, in.Body.reason())
	return &body[session.AgentInfo]{agent}, err
}

func (a *API) listCalls(ctx context.Context, r *request, in *struct {
	SessionPath
	Pending bool `query:"pending" doc:"Only calls whose answer somebody waits for."`
},
) (*body[CallList], error) {
	if _, err := a.info(ctx, r, in.Session); err != nil {
		return nil, err
	}
	calls, err := a.cfg.Manager.Calls(ctx, in.Session, in.Pending)
	return &body[CallList]{CallList{calls}}, err
}

func (a *API) getCall(ctx context.Context, r *request, in *CallPath) (*body[session.CallInfo], error) {
	if _, err := a.info(ctx, r, in.Session); err != nil {
		return nil, err
	}
	call, err := a.cfg.Manager.Call(ctx, in.Session, in.Call)
	return &body[session.CallInfo]{call}, err
}

func (a *API) cancelCall(ctx context.Context, r *request, in *struct {
	CallPath
	Body *CancelRequest
},
) (*body[session.CallInfo], error) {
	if _, err := a.info(ctx, r, in.Session); err != nil {
		return nil, err
	}
	call, err := a.cfg.Manager.CancelCall(ctx, in.Session, in.Call, in.Body.reason())
	return &body[session.CallInfo]{call}, err
}

func artifactOp(o huma.Operation) huma.Operation {
	o.Responses = map[string]*huma.Response{"200": {
		Description: "The artifact's bytes, with its own media type, as an attachment. Ranges are supported.",
		Content:     map[string]*huma.MediaType{"application/octet-stream": {Schema: &huma.Schema{Type: "string", Format: "binary"}}},
	}}
	return o
}

func (a *API) getArtifact(ctx context.Context, r *request, in *struct {
	SessionPath
	Key session.ArtifactKey `path:"key" maxLength:"100" doc:"The artifact's key."`
},
) (*huma.StreamResponse, error) {
	if _, err := a.info(ctx, r, in.Session); err != nil {
		return nil, err
	}
	artifact, err := a.cfg.Manager.Artifact(ctx, in.Session, in.Key)
	if err != nil {
		return nil, err
	}
	return &huma.StreamResponse{Body: func(c huma.Context) {
		req, w := humago.Unwrap(c)
		h := w.Header()
		typ := "application/octet-stream"
		if media, params, err := mime.ParseMediaType(artifact.MediaType); err == nil {
			typ = mime.FormatMediaType(media, params)
		}
		h.Set("Content-Type", typ)
		// What an agent or a peer made is never shown as a page of ours.
		h.Set("Content-Disposition", mime.FormatMediaType("attachment", map[string]string{"filename": fileName(artifact)}))
		h.Set("Content-Security-Policy", "sandbox; default-src 'none'")
		h.Set("ETag", `"`+string(artifact.Key)+`"`)
		http.ServeContent(w, req, "", time.Time{}, bytes.NewReader(artifact.Data))
	}}, nil
}

// fileName is a plain name for an artifact.
func fileName(a session.Artifact) string {
	name := strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || strings.ContainsRune(`/\":*?<>|`, r) {
			return '_'
		}
		return r
	}, a.Name)
	if strings.Trim(name, ". ") == "" {
		return string(a.Key)
	}
	return name
}
