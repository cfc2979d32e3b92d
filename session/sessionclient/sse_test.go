package sessionclient_test

import (
	"bytes"
	"errors"
	"io"
	"regexp"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"

	"orchestrator/session"
	"orchestrator/session/sessionclient"
)

func TestFramesAreReadAsTheStandardHasIt(t *testing.T) {
	type frames = []sessionclient.Frame
	for _, c := range []struct {
		name, text string
		want       frames
	}{
		{"an event", "id: 7\nevent: turn.started\ndata: {}\n\n", frames{{Event: "turn.started", Data: "{}", ID: "7", HasID: true}}},
		{"a comment is none", ": beat\n\n: beat\n\ndata: x\n\n", frames{{Data: "x"}}},
		{"lines of data are joined", "data: a\ndata:b\ndata:\ndata\n\n", frames{{Data: "a\nb\n\n"}}},
		{"one space is taken away", "data:  x\n\ndata:y\n\n", frames{{Data: " x"}, {Data: "y"}}},
		{"CR, LF and both", "data: a\r\r\ndata: b\r\n\r\ndata: c\n\r", frames{{Data: "a"}, {Data: "b"}, {Data: "c"}}},
		{"a byte order mark", "\xef\xbb\xbfdata: x\n\n", frames{{Data: "x"}}},
		{"no data, no event", "event: x\nid: 1\n\ndata: y\n\n", frames{{Data: "y"}}},
		{"what isn't ended is none", "data: x\n\ndata: y\n", frames{{Data: "x"}}},
		{"an empty id is one", "id\ndata: x\n\n", frames{{Data: "x", HasID: true}}},
		{"an id with a NUL is none", "id: a\x00b\ndata: x\n\n", frames{{Data: "x"}}},
		{"an id doesn't last", "id: 1\ndata: x\n\ndata: y\n\n", frames{{Data: "x", ID: "1", HasID: true}, {Data: "y"}}},
		{"unknown fields", "retry: 1000\nfoo: bar\ndata: x\n\n", frames{{Data: "x"}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			for name, r := range map[string]io.Reader{"whole": strings.NewReader(c.text), "byte by byte": iotest.OneByteReader(strings.NewReader(c.text))} {
				got, err := sessionclient.ReadFrames(r, 1000)
				if !errors.Is(err, io.EOF) {
					t.Errorf("%s: it ends with %v", name, err)
				}
				if diff := cmp.Diff(c.want, got); diff != "" {
					t.Errorf("%s (-want +got):\n%s", name, diff)
				}
			}
		})
	}
}

func TestFrameOverTheBoundEndsTheStream(t *testing.T) {
	for name, text := range map[string]string{
		"one line": "data: " + strings.Repeat("x", 200) + "\n\n", "many": strings.Repeat("data: x\n", 50) + "\n", "a comment": ":" + strings.Repeat(" ", 200),
	} {
		if got, err := sessionclient.ReadFrames(strings.NewReader(text), 100); !errors.Is(err, sessionclient.ErrFrameTooLarge) {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
	if got, err := sessionclient.ReadFrames(strings.NewReader(strings.Repeat("data: x\n\n: beat\n\n", 50)), 20); len(got) != 50 || !errors.Is(err, io.EOF) {
		t.Errorf("%d small frames are read, want 50: %v", len(got), err)
	}
}

// lineEnds are what ends a line of a text/event-stream.
var lineEnds = regexp.MustCompile("\r\n|\r|\n")

// framesByLines reads a whole stream the slow way: split into lines, then into events.
func framesByLines(text string) (frames []sessionclient.Frame) {
	lines := lineEnds.Split(strings.TrimPrefix(text, "\xef\xbb\xbf"), -1)
	var f sessionclient.Frame
	var data []string
	for _, line := range lines[:len(lines)-1] { // the last has no end
		if line == "" {
			if data != nil {
				f.Data = strings.Join(data, "\n")
				frames = append(frames, f)
			}
			f, data = sessionclient.Frame{}, nil
			continue
		}
		name, value, _ := strings.Cut(line, ":")
		value = strings.TrimPrefix(value, " ")
		switch {
		case name == "event":
			f.Event = value
		case name == "data":
			data = append(data, value)
		case name == "id" && !strings.Contains(value, "\x00"):
			f.ID, f.HasID = value, true
		}
	}
	return frames
}

func FuzzFrameReader(f *testing.F) {
	for _, text := range []string{
		"", "data: x\n\n", "id: 1\r\nevent: a\r\ndata: {}\r\n\r\n", ": beat\n\n", "\xef\xbb\xbfdata:x\r\r", "data\n\n\n\n", "data: a\ndata: b\n\nid:\x00\n", "\r\n\r\n",
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		got, err := sessionclient.ReadFrames(bytes.NewReader(text), len(text)+1)
		if !errors.Is(err, io.EOF) {
			t.Fatalf("it ends with %v", err)
		}
		if diff := cmp.Diff(framesByLines(string(text)), got); diff != "" {
			t.Fatalf("%q (-by lines +got):\n%s", text, diff)
		}
		small, err := sessionclient.ReadFrames(iotest.OneByteReader(bytes.NewReader(text)), 16)
		if !errors.Is(err, io.EOF) && !errors.Is(err, sessionclient.ErrFrameTooLarge) {
			t.Fatalf("with a bound it ends with %v", err)
		}
		for _, f := range small {
			if len(f.Event)+len(f.Data)+len(f.ID) > 16 {
				t.Fatalf("%+v is over the bound", f)
			}
		}
	})
}

func FuzzDecodeFrame(f *testing.F) {
	for _, seed := range [][2]string{
		{"turn.started", `{"seq":1,"id":"e_1","type":"turn.started","agentId":"s"}`}, {"stream.open", `{"rootAgentId":"s_1","headSeq":3}`},
		{"stream.reset", `{"headSeq":3}`}, {"stream.end", `{"reason":"deleted"}`}, {"stream.other", `x`}, {"", `{}`}, {"", `{"type":""}`}, {"stream.open", `[`},
	} {
		f.Add(seed[0], seed[1])
	}
	f.Fuzz(func(t *testing.T, event, data string) {
		e, err := sessionclient.DecodeFrame(event, data, "s")
		if err != nil {
			return
		}
		if e.Type == "" && !strings.HasPrefix(event, "stream.") {
			t.Fatalf("%q %q is an event without a type", event, data)
		}
		var gate sessionclient.Gate
		gate.Observe(e) // whatever it is, it may be fed to the gate
		gate.Observe(session.Event{Type: e.Type, AgentID: e.AgentID, Data: e.Data})
		_ = gate.IsRoot(e)
	})
}
