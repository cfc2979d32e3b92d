package sessionclient

import (
	"io"

	"orchestrator/session"
)

// Frame is a frame of a text/event-stream as the reader gives it.
type Frame struct {
	Event, Data, ID string
	HasID           bool
}

// ReadFrames reads frames of at most most bytes until the reader ends, and returns why.
func ReadFrames(r io.Reader, most int) (frames []Frame, err error) {
	f := newFrameReader(r, most)
	for {
		fr, err := f.next()
		if err != nil {
			return frames, err
		}
		frames = append(frames, Frame{Event: fr.event, Data: string(fr.data), ID: fr.id, HasID: fr.hasID})
	}
}

// ErrFrameTooLarge is what the frame reader says of a frame over its bound.
var ErrFrameTooLarge = errFrameTooLarge

// DecodeFrame returns the event of a frame.
func DecodeFrame(event, data string, id session.ID) (session.Event, error) {
	return decodeFrame(frame{event: event, data: []byte(data)}, id)
}

// Judge is a gate and one wait, without a stream.
type Judge struct {
	Gate
	w *wait
}

// NewJudge returns a gate with a wait whose input is on its way.
func NewJudge(policy Policy) *Judge { return &Judge{Gate: Gate{Policy: policy}, w: newWait()} }

// Sent says which turn the wait is for.
func (j *Judge) Sent(turn session.TurnID) { j.w.isFor(turn) }

// Take takes an event as the session's client does.
func (j *Judge) Take(e session.Event) {
	j.Observe(e)
	j.w.event(e, j.IsRoot(e))
}

// Outcome returns how the turn ended, or nil, and whether the turn was asked to be read since the last call.
func (j *Judge) Outcome() (turn *session.TurnInfo, doubt bool) {
	select {
	case <-j.w.doubts:
		doubt = true
	default:
	}
	return j.w.ended, doubt
}

// Waiting returns how many waits are told of events.
func Waiting(s *Session) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.waits)
}
