package sessionclient

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"slices"
	"time"

	"orchestrator/session"
)

// Backend is what a [Session] is a client of. [HTTP] is a server of ours, [InProcess] a Manager; an adapter to somebody
// else's sessions is one too. Its methods may be called from any goroutine. An error that trying again doesn't mend is a
// *[PermanentError] or an *[APIError] that says so; after any other the call is made again.
type Backend interface {
	// Look returns the session as it is now.
	Look(ctx context.Context, id session.ID) (Look, error)

	// Stream yields the session's events until the loop is left or an error ends it. The first is stream.open, once the
	// subscription is live: what is sent after it is seen. It ends with an error always, with the context's cause when that
	// has ended.
	Stream(ctx context.Context, r StreamRequest) iter.Seq2[session.Event, error]

	// Send submits an input. The same key and input again are the same turn. A turn without an id says that the stream's
	// turns have none.
	Send(ctx context.Context, r SendRequest) (session.TurnInfo, error)

	// Turn reads a turn, and may hold the call for r.Wait until there is what r.Until asks for. It returns [ErrUnsupported]
	// where turns can't be read. Where they have no ids it is asked for the latest.
	Turn(ctx context.Context, r TurnRequest) (session.TurnInfo, error)

	// Cancel cancels a turn. One that has ended stays as it is.
	Cancel(ctx context.Context, id session.ID, turn session.TurnID, reason string) error
}

// Look is a session at one moment.
type Look struct {
	// RootAgentID names the root agent; empty: nobody says.
	RootAgentID session.ID
	// LastSeq is the head of the log, 0 where events have no seq.
	LastSeq uint64
	// Resumable says that a stream can begin behind any event there was: durable events have a gap-free seq.
	Resumable bool
}

// StreamRequest names the events of one session.
type StreamRequest struct {
	Session session.ID
	// After is the seq behind which the stream begins, where it can be resumed.
	After uint64
	// Ephemeral asks for deltas and progress too. They may be missing all the same.
	Ephemeral bool
	// Types, when not empty, are the only ones wanted.
	Types []session.EventType
	// RootOnly leaves out the events of subagents.
	RootOnly bool
}

// SendRequest is one input and, for [Session.SendAndWait], how its turn is waited for.
type SendRequest struct {
	// Session is set by [Session].
	Session session.ID
	Input   string
	// Key makes sending again the same turn. Defaults to a fresh one.
	Key string
	// OnBusy says what becomes of an input while another turn is at work. Defaults to queue.
	OnBusy session.OnBusy
	WaitRequest
}

// WaitRequest says how a turn is waited for.
type WaitRequest struct {
	// Until defaults to the turn's end.
	Until session.Until
	// Timeout bounds the wait, beside what ctx says. Defaults to none.
	Timeout time.Duration
	// CancelOnTimeout cancels the turn when the wait runs out of time. Background work goes on, and so does a turn whose input
	// the server has taken without our knowing.
	CancelOnTimeout bool
}

// wants reports whether an event, the root's or not, is among those asked for.
func (r StreamRequest) wants(e session.Event, root bool) bool {
	return (len(r.Types) == 0 || slices.Contains(r.Types, e.Type)) && (!r.RootOnly || root) && (r.Ephemeral || !e.Ephemeral)
}

// TurnRequest names a turn to be read.
type TurnRequest struct {
	Session session.ID
	Turn    session.TurnID
	// Wait is how long the call may be held until Until holds. Zero: the turn as it is now.
	Wait time.Duration
	// Until defaults to the turn's end.
	Until session.Until
}

// StreamOpen is the body of stream.open. All of it may be missing.
type StreamOpen struct {
	RootAgentID session.ID `json:"rootAgentId,omitempty"`
	HeadSeq     uint64     `json:"headSeq,omitempty"`
	After       uint64     `json:"after,omitempty"`
}

// Event returns stream.open, as a [Backend] yields it first.
func (o StreamOpen) Event(id session.ID) session.Event { return control(EventStreamOpen, id, o) }

// EventStreamReset says that the position a stream was to begin at is gone; it goes on behind the head. See [StreamReset].
const EventStreamReset session.EventType = "stream.reset"

// StreamReset is the body of stream.reset.
type StreamReset struct {
	Reason  string `json:"reason,omitempty"`
	HeadSeq uint64 `json:"headSeq,omitempty"`
}

// Event returns stream.reset, as a [Backend] yields it behind stream.open.
func (r StreamReset) Event(id session.ID) session.Event { return control(EventStreamReset, id, r) }

func control(typ session.EventType, id session.ID, body any) session.Event {
	data, err := json.Marshal(body)
	if err != nil {
		panic(fmt.Sprintf("sessionclient: marshal %T: %v", body, err)) // strings and numbers
	}
	return session.Event{Type: typ, SessionID: id, Ephemeral: true, Data: data}
}
