package sessionclient

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
)

// frame is one event of a text/event-stream.
type frame struct {
	event string // empty: a message
	data  []byte
	// id is set with hasID: a frame without an id leaves the stream's position where it is.
	id    string
	hasID bool
}

// frameReader reads the frames of a text/event-stream as the HTML standard has it: lines end in CR, LF or both, a byte order
// mark at the beginning is skipped, comments and unknown fields are ignored, a frame ends at an empty line and is none
// without data, and what stands behind the last empty line is no frame. What a server wants by retry is not asked.
type frameReader struct {
	r     *bufio.Reader
	max   int // bytes of one frame
	begun bool
	cr    bool // the last line ended in CR: an LF that follows belongs to it
}

// errFrameTooLarge says that a server sent a frame over the bound.
var errFrameTooLarge = errors.New("an event of the stream is too large")

func newFrameReader(r io.Reader, most int) *frameReader {
	return &frameReader{r: bufio.NewReaderSize(r, 16<<10), max: most}
}

// next returns the next frame, [io.EOF] at the stream's end, or the reader's error.
func (f *frameReader) next() (frame, error) {
	if !f.begun {
		f.begun = true
		if mark, err := f.r.Peek(3); err == nil && bytes.Equal(mark, []byte("\xef\xbb\xbf")) {
			_, _ = f.r.Discard(3) // they are there
		}
	}
	var fr frame
	hasData, size := false, 0
	for {
		line, err := f.line(f.max - size)
		if err != nil {
			return frame{}, err
		}
		size += len(line)
		if len(line) == 0 {
			if !hasData {
				fr, size = frame{}, 0 // an event without data is none
				continue
			}
			return fr, nil
		}
		name, value, _ := bytes.Cut(line, []byte(":"))
		value = bytes.TrimPrefix(value, []byte(" "))
		switch string(name) {
		case "event":
			fr.event = string(value)
		case "data":
			if hasData {
				fr.data = append(fr.data, '\n')
			}
			fr.data, hasData = append(fr.data, value...), true
		case "id":
			if !bytes.ContainsRune(value, 0) {
				fr.id, fr.hasID = string(value), true
			}
		}
	}
}

// line returns the next line without its end.
func (f *frameReader) line(most int) ([]byte, error) {
	var line []byte
	for {
		c, err := f.r.ReadByte()
		if err != nil {
			return nil, err
		}
		afterCR := f.cr
		f.cr = c == '\r'
		switch {
		case c == '\n' && afterCR:
			continue // the other half of the line's end before
		case c == '\n' || c == '\r':
			return line, nil
		case len(line) >= most:
			return nil, fmt.Errorf("%w: over %d bytes", errFrameTooLarge, f.max)
		}
		line = append(line, c)
	}
}
