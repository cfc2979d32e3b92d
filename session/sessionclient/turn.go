package sessionclient

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"orchestrator/session"
)

// Turn is what a wait brings.
type Turn struct {
	session.TurnInfo // its ID is empty where turns have no ids

	// FoldBacks are the turns that brought home what this one had left running, in their order, as far as a wait until
	// quiescent saw them.
	FoldBacks []session.TurnInfo `json:"foldBacks,omitempty"`
}

// TurnError says that a turn failed or was cancelled.
type TurnError struct {
	Turn    session.TurnID // empty where turns have no ids
	State   session.State  // failed or cancelled
	Message string
	Code    string // for programs, like [session.CodeModelUnreachable]; usually empty
}

func (e *TurnError) Error() string {
	what := "the turn"
	if e.Turn != "" {
		what = "turn " + string(e.Turn)
	}
	switch {
	case e.State == session.StateCancelled && e.Message == "":
		return what + " was cancelled"
	case e.State == session.StateCancelled:
		return what + " was cancelled: " + e.Message
	case e.Message == "":
		return what + " failed"
	}
	return what + " failed: " + e.Message
}

// TimeoutError says that a wait ran out of time. The turn goes on, unless [SendRequest.CancelOnTimeout] asked otherwise:
// [Session.Wait] waits on. It is [context.DeadlineExceeded].
type TimeoutError struct {
	Session session.ID
	// Turn is empty when no server has said that it took the input; the same Key then finds out.
	Turn session.TurnID
	Key  string
	// LastSeq is the durable event seen last.
	LastSeq uint64
	// Cause is what the deadline says, usually how long was waited.
	Cause error
}

func (e *TimeoutError) Error() string {
	if e.Turn == "" {
		return fmt.Sprintf("send to session %s: %v", e.Session, e.Cause)
	}
	return fmt.Sprintf("wait for turn %s of session %s: %v", e.Turn, e.Session, e.Cause)
}

// Unwrap returns the cause.
func (e *TimeoutError) Unwrap() error { return e.Cause }

// Is makes errors.Is(err, context.DeadlineExceeded) true, whatever the cause says.
func (e *TimeoutError) Is(target error) bool { return target == context.DeadlineExceeded }

// ResetError says that a stream's position is none of the session's log. Events between it and HeadSeq, if there are any,
// will not come: read the session anew and go on behind HeadSeq.
type ResetError struct {
	Reason  string
	HeadSeq uint64
}

func (e *ResetError) Error() string {
	return fmt.Sprintf("the stream's position is gone (%s); the log's head is %d", e.Reason, e.HeadSeq)
}

// The errors of a [Session] and of backends.
var (
	// ErrClosed is what calls get after [Session.Close].
	ErrClosed = errors.New("the session client is closed")
	// ErrSlow ends [Session.Events] for a reader that is too slow for a stream that can't be resumed.
	ErrSlow = errors.New("the reader is too slow, and the stream can't be resumed")
	// ErrUnsupported is what a backend says that can't do what it was asked. A turn it can't read is not read.
	ErrUnsupported = errors.New("the server doesn't support that")
)

// PermanentError marks an error of a backend as one that trying again doesn't mend. All others are tried again.
type PermanentError struct{ Err error }

func (e *PermanentError) Error() string { return e.Err.Error() }

// Unwrap returns what went wrong.
func (e *PermanentError) Unwrap() error { return e.Err }

// Permanent reports whether an error of a backend is one that trying again doesn't mend: the server has said no, or the
// request can't be made.
func Permanent(err error) bool {
	if _, ok := errors.AsType[*PermanentError](err); ok {
		return true
	}
	api, ok := errors.AsType[*APIError](err)
	return ok && api.Permanent()
}

// isEnd reports whether an event says that a turn has ended, and in which state.
func isEnd(t session.EventType) (session.State, bool) {
	switch t {
	case session.EventTurnCompleted:
		return session.StateCompleted, true
	case session.EventTurnFailed:
		return session.StateFailed, true
	case session.EventTurnCancelled:
		return session.StateCancelled, true
	}
	return "", false
}

// ended returns the turn that a terminal event tells of, and whether it tells all of it: a body that is elsewhere, or none,
// has to be read from the turn.
func ended(e session.Event) (session.TurnInfo, bool) {
	state, _ := isEnd(e.Type)
	t := session.TurnInfo{ID: e.TurnID, Session: e.SessionID, Agent: e.AgentID, OriginTurn: e.OriginTurn, State: state, Ended: true}
	var body struct {
		session.TurnEnded
		Artifact session.ArtifactKey `json:"artifact"`
	}
	if len(e.Data) == 0 || json.Unmarshal(e.Data, &body) != nil || body.Artifact != "" {
		return t, false
	}
	t.Output, t.StopReason, t.Error, t.Code, t.Usage = body.Output, body.StopReason, body.Error, body.Code, body.Usage
	return t, true
}

// failure returns why a turn that has ended did so badly, or nil.
func failure(t session.TurnInfo) error {
	if t.State == session.StateFailed || t.State == session.StateCancelled {
		return &TurnError{Turn: t.ID, State: t.State, Message: t.Error, Code: t.Code}
	}
	return nil
}

// lookAtOnce is how long one request to read a turn may ask the server to hold it until there is something to tell.
const lookAtOnce = 30 * time.Second
