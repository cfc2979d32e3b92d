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
