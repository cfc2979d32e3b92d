package a2aqueue

import (
	"bufio"
	"io"
	"sync"
)

// gathering is what the library reads from and writes to. The library writes each message and each acknowledgement by itself,
// which is a system call here and a step of the broker there; between hold and release they are gathered and written as one.
// It shows no deadlines, so that the library doesn't set one for each frame, in another goroutine; they are those of the
// connection beneath.
type gathering struct {
	in io.Reader
	io.WriteCloser

	mu   sync.Mutex // held while writing, too: what was gathered goes before what comes then, and a write ends
	held int
	buf  []byte
}

const (
	maxGathered = 64 << 10
	readBuffer  = 32 << 10 // the library's own holds 4 KiB
)

func newGathering(stream io.ReadWriteCloser) *gathering {
	return &gathering{in: bufio.NewReaderSize(stream, readBuffer), WriteCloser: stream}
}

func (g *gathering) Read(p []byte) (int, error) { return g.in.Read(p) }

// Write writes what was gathered and p, or keeps p while others are to come. An error of what was kept is that of a later
// Write, or of release.
func (g *gathering) Write(p []byte) (int, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.buf)+len(p) > maxGathered || g.held == 0 {
		if err := g.flushLocked(); err != nil {
			return 0, err
		}
	}
	if g.held == 0 || len(p) > maxGathered {
		return g.WriteCloser.Write(p)
	}
	g.buf = append(g.buf, p...)
	return len(p), nil
}

// hold keeps what is written until release. The holder must not wait for the broker, nor for long.
func (g *gathering) hold() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.held++
}

// release writes what was kept. After an error it is unknown what of that was written.
func (g *gathering) release() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.held--
	return g.flushLocked()
}

func (g *gathering) flushLocked() error {
	if len(g.buf) == 0 {
		return nil
	}
	_, err := g.WriteCloser.Write(g.buf)
	g.buf = g.buf[:0]
	return err
}
