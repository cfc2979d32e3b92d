package a2aqueue

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// written keeps each write by itself, until it fails.
type written struct {
	io.ReadWriteCloser

	writes []string
	err    error
}

func (w *written) Write(p []byte) (int, error) {
	if w.err != nil {
		return 0, w.err
	}
	w.writes = append(w.writes, string(p))
	return len(p), nil
}

func write(t *testing.T, g *gathering, text string) {
	t.Helper()
	if n, err := io.WriteString(g, text); n != len(text) || err != nil {
		t.Fatalf("Write() = %d, %v, want %d", n, err, len(text))
	}
}

func TestWhatIsGatheredIsOneWriteInItsOrder(t *testing.T) {
	w := &written{}
	g := newGathering(w)
	large := strings.Repeat("x", maxGathered+1)
	write(t, g, "1")
	g.hold()
	write(t, g, "2")
	g.hold() // two channels of the connection
	write(t, g, "3")
	if err := g.release(); err != nil {
		t.Fatal(err)
	}
	write(t, g, "4")
	write(t, g, large) // doesn't fit
	write(t, g, "5")
	if err := g.release(); err != nil {
		t.Fatal(err)
	}
	write(t, g, "6")
	if diff := cmp.Diff([]string{"1", "23", "4", large, "5", "6"}, w.writes); diff != "" {
		t.Errorf("writes (-want +got):\n%s", diff)
	}
}

func TestWhatIsGatheredIsBounded(t *testing.T) {
	w := &written{}
	g := newGathering(w)
	g.hold()
	part, total := strings.Repeat("x", maxGathered/4), 0
	for range 9 {
		write(t, g, part)
		total += len(part)
		if cap(g.buf) > 2*maxGathered {
			t.Fatalf("%d bytes are kept, of %d", cap(g.buf), maxGathered)
		}
	}
	if err := g.release(); err != nil {
		t.Fatal(err)
	}
	if got := len(strings.Join(w.writes, "")); got != total || len(w.writes) != 3 {
		t.Errorf("%d bytes in %d writes, want %d in 3", got, len(w.writes), total)
	}
}

func TestAnErrorOfWhatWasGatheredIsToldOnce(t *testing.T) {
	broken := errors.New("broken")
	w := &written{err: broken}
	g := newGathering(w)
	g.hold()
	write(t, g, "1")
	if err := g.release(); !errors.Is(err, broken) {
		t.Errorf("release() = %v, want %v", err, broken)
	}
	g.hold()
	write(t, g, "2")
	if _, err := g.Write(bytes.Repeat([]byte("x"), maxGathered)); !errors.Is(err, broken) {
		t.Errorf("Write() = %v, want %v", err, broken)
	}
	if err := g.release(); err != nil {
		t.Errorf("release() = %v after that was told", err)
	}
}
