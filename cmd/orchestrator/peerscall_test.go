package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"orchestrator/a2a"
	"orchestrator/a2a/a2atest"
)

func TestPeersCallPrintsWhatThePeerSaysAsItComes(t *testing.T) {
	p := a2atest.New(t, a2atest.Config{Name: "painter", Script: func(x *a2atest.Exchange) {
		switch {
		case x.Text() == "no":
			x.State(a2atest.Rejected, "I don't paint that")
		case x.Text() == "which":
			x.State(a2atest.InputRequired, "Which colour?")
		case x.FollowUp():
			x.Artifact("sketch", a2atest.TextPart("in "+x.Text()))
			x.State(a2atest.Completed, "")
		default:
			x.State(a2atest.Working, "mixing colours\x1b[2J")
			x.Artifact("sketch", a2atest.TextPart("a line,"))
			x.State(a2atest.Working, "still mixing")
			x.Append("sketch", a2atest.TextPart(" and a circle"), a2atest.DataPart(map[string]any{"strokes": 2}))
			x.State(a2atest.Completed, "There it is.", a2atest.FilePart("../../sea.png", "image/png", []byte("png")))
		}
	}})
	w := newWorkplace(t, "  - {name: painter, card: "+p.URL()+"}\n")
	files := filepath.Join(w.dir, "files")
	code, stdout, stderr := w.run("peers", "call", "painter", "the sea", "--save", files)
	if code != exitOK {
		t.Fatalf("exit code %d: %s", code, stderr)
	}
	if diff := cmp.Diff("a line, and a circle\n{\"strokes\":2}\n\nThere it is.\n", stdout); diff != "" {
		t.Errorf("standard output (-want +got):\n%s", diff)
	}
	saved := filepath.Join(files, "sea.png")
	want := "painter: working: mixing colours\uFFFD[2J\npainter: sketch\npainter: working: still mixing\npainter: saved " + saved + ", 3 bytes\n"
	if diff := cmp.Diff(want, stderr); diff != "" {
		t.Errorf("standard error (-want +got):\n%s", diff)
	}
	if data, err := os.ReadFile(saved); string(data) != "png" {
		t.Errorf("the saved file holds %q (%v)", data, err)
	}
	if code, _, stderr := w.run("peers", "call", "painter", "the sea", "--save", files); code != exitFailed || !strings.Contains(stderr, "file exists") {
		t.Errorf("a file that is there already: exit code %d, message %q, want 1 and that it exists", code, stderr)
	}

	code, stdout, stderr = w.run("peers", "call", "painter", "no")
	if code != exitFailed || stdout != "I don't paint that\n" || !strings.Contains(stderr, "peer 'painter' answers that the task is rejected") {
		t.Errorf("a refusal: exit code %d, output %q, message %q", code, stdout, stderr)
	}

	code, stdout, stderr = w.run("peers", "call", "painter", "which")
	_, task, asks := strings.Cut(strings.TrimSpace(stderr), "peers call --task ")
	if code != exitOK || stdout != "Which colour?\n" || !asks {
		t.Fatalf("a question: exit code %d, output %q, message %q", code, stdout, stderr)
	}
	if got, want := w.ok("peers", "call", "--task", strings.Fields(task)[0], "painter", "blue"), "in blue\n"; got != want {
		t.Errorf("after the answer: %q, want %q", got, want)
	}
}

func TestPeersCallAsJSONPrintsOneThingALine(t *testing.T) {
	p := a2atest.New(t, a2atest.Config{Name: "p", Script: func(x *a2atest.Exchange) {
		x.Artifact("a", a2atest.TextPart("one"))
		x.State(a2atest.Completed, "two")
	}})
	w := newWorkplace(t, "  - {name: p, card: "+p.URL()+"}\n")
	dec := json.NewDecoder(strings.NewReader(w.ok("peers", "call", "p", "x", "-o", "json")))
	var kinds []a2a.HeardKind
	var last a2a.Heard
	for dec.More() {
		last = a2a.Heard{}
		if err := dec.Decode(&last); err != nil {
			t.Fatal(err)
		}
		kinds = append(kinds, last.Kind)
	}
	if diff := cmp.Diff([]a2a.HeardKind{a2a.HeardStatus, a2a.HeardArtifact, a2a.HeardReply}, kinds); diff != "" {
		t.Errorf("printed (-want +got):\n%s", diff)
	}
	if last.Text != "two" || last.State != "completed" || last.TaskID == "" {
		t.Errorf("the reply is %+v", last)
	}
}

func TestPeersCallThatIsInterruptedCancelsTheTask(t *testing.T) {
	p := a2atest.New(t, a2atest.Config{Name: "p", Script: func(x *a2atest.Exchange) {
		x.State(a2atest.Working, "a long time")
		x.Wait(a2atest.NewGate())
	}})
	w := newWorkplace(t, "  - {name: p, card: "+p.URL()+"}\n")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var out, errs bytes.Buffer
	code := run(ctx, []string{"--config", w.config, "peers", "call", "p", "x"}, []string{"HOME=" + w.dir}, &out, &trigger{w: &errs, on: "a long time", f: cancel})
	if code != exitInterrupted || !strings.Contains(errs.String(), "p: canceled") || !strings.Contains(errs.String(), "the peer was told to cancel") {
		t.Errorf("exit code %d, message %q, want 130 and that it is cancelled", code, &errs)
	}
	if n := len(p.Requests(a2atest.MethodCancel)); n != 1 {
		t.Errorf("the peer got %d CancelTask, want 1", n)
	}

	code, _, stderr := w.run("peers", "call", "p", "x", "--timeout", "100ms")
	if code != exitFailed || !strings.Contains(stderr, "peer 'p' did not answer within 100ms") {
		t.Errorf("out of time: exit code %d, message %q", code, stderr)
	}
}

func TestPeersCallSaysWhatIsWrongAndWhatToDo(t *testing.T) {
	w := newWorkplace(t, "  - {name: advisor, card: \"http://127.0.0.1:1\"}\n")
	for _, tt := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"advisr", "x"}, exitUsage, `did you mean "advisor"?`},
		{[]string{"advisor", " "}, exitUsage, "the question is empty"},
		{[]string{"advisor"}, exitUsage, `"..." is missing`},
		{[]string{"advisor", "x", "--timeout", "-1s"}, exitUsage, "--timeout is -1s"},
		{[]string{"advisor", "x"}, exitUnreachable, "orchestrator peers show advisor"},
	} {
		code, _, stderr := w.run(append([]string{"peers", "call"}, tt.args...)...)
		if code != tt.code || !strings.Contains(stderr, tt.want) {
			t.Errorf("peers call %q: exit code %d, message %q, want %d and %q", tt.args, code, stderr, tt.code, tt.want)
		}
	}
}
