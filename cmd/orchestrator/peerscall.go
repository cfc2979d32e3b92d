package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/mattn/go-isatty"
	"github.com/spf13/cobra"

	"orchestrator/a2a"
	"orchestrator/internal/app"
)

// maxQuestion bounds a question that is read from standard input.
const maxQuestion = 1 << 20

type callFlags struct {
	skill   string
	task    string
	save    string
	timeout time.Duration
}

func (c *cli) callPeerCommand() *cobra.Command {
	var f callFlags
	cmd := &cobra.Command{
		Use: `call NAME "..."`, Short: "Ask a peer directly and print what it says as it comes", Args: takes("NAME", `"..."`),
		Long: `call asks a peer without a model, a session or a database: to see whether it works and what it says. The peer's words and
artifacts go to standard output as they come, its progress to standard error. With - for the question it is read from
standard input.

Nothing is kept: when call ends before the peer has answered, by an interrupt or by --timeout, the peer is told to cancel.
When the peer asks back, call ends with its question and says how to answer it.

It exits with 1 when the peer fails, rejects or cancels the task, and with 3 when the peer can't be reached.`,
		Example: `  orchestrator peers call advisor "What should we do first?"
  orchestrator peers call --skill search archivist "earlier cases" -o json
  orchestrator peers call --save files painter - < brief.txt`,
		ValidArgsFunction: firstArg(c.completePeers),
		RunE: func(cmd *cobra.Command, args []string) error {
			if f.timeout < 0 {
				return usageError{fmt.Errorf("--timeout is %s: it must not be negative", f.timeout)}
			}
			q := a2a.Question{Peer: args[0], Message: args[1], Skill: f.skill, TaskID: f.task}
			if args[1] == "-" {
				data, err := io.ReadAll(io.LimitReader(cmd.InOrStdin(), maxQuestion+1))
				if err != nil {
					return fmt.Errorf("read the question: %w", err)
				}
				if len(data) > maxQuestion {
					return usageError{fmt.Errorf("the question is larger than %d bytes", maxQuestion)}
				}
				q.Message = string(data)
			}
			if strings.TrimSpace(q.Message) == "" {
				return usageError{errors.New("the question is empty")}
			}
			return c.inspect(cmd, func(ctx context.Context, a *app.App) error { return c.callPeer(ctx, a, q, f) })
		},
	}
	cmd.Flags().StringVar(&f.skill, "skill", "", "ask for one of the peer's skills")
	cmd.Flags().StringVar(&f.task, "task", "", "answer the question of this task of the peer's")
	cmd.Flags().StringVar(&f.save, "save", "", "put the files the peer sends into this folder")
	cmd.Flags().DurationVar(&f.timeout, "timeout", 0, "how long to wait (default a2a.call_timeout)")
	return cmd
}

func (c *cli) callPeer(ctx context.Context, a *app.App, q a2a.Question, f callFlags) error {
	bound := cmp.Or(f.timeout, a.Config().A2A.CallTimeout)
	asked, cancel := context.WithTimeoutCause(ctx, bound, fmt.Errorf("peer '%s' did not answer within %s", q.Peer, bound))
	defer cancel()
	t := &talk{c: c, peer: q.Peer, save: f.save, progress: c.progress("asking " + q.Peer)}
	defer t.progress.Stop()
	var reply a2a.Heard
	for h, err := range a.Peers.Ask(asked, q) {
		if err != nil {
			t.end()
			return callError(ctx, q.Peer, err)
		}
		if h.Kind == a2a.HeardReply {
			reply = h
		}
		if err := t.hear(h); err != nil {
			return err // which tells the peer to cancel, if it isn't done
		}
	}
	t.end()
	switch {
	case reply.Failed():
		return fmt.Errorf("peer '%s' answers that the task is %s", q.Peer, reply.State)
	case !reply.Ended() && c.output == outputText:
		fmt.Fprintf(c.stderr, "%s asks back; answer with: orchestrator peers call --task %s %s \"...\"\n", q.Peer, printable(reply.TaskID), q.Peer)
	}
	return nil
}

// callError says why there is no reply.
func callError(ctx context.Context, peer string, err error) error {
	if ctx.Err() != nil {
		return withHint(errors.Join(errInterrupted, err), "the peer was told to cancel; it may have done something already")
	}
	if _, unknown := errors.AsType[*a2a.UnknownPeerError](err); unknown {
		return withHint(usageError{err}, "orchestrator peers list names the peers there are")
	}
	_, notSent := errors.AsType[*a2a.NotSentError](err)
	_, unroutable := errors.AsType[*a2a.UnroutableError](err)
	_, status := errors.AsType[*a2a.StatusError](err)
	if notSent || unroutable || status {
		return withHint(unreachableError{err}, "orchestrator peers show %s says what is known of it; its address is in peers.yaml", peer)
	}
	return err
}

// talk shows a person, or a program, what a peer says.
type talk struct {
	c        *cli
	peer     string
	save     string
	progress *progress

	state    string
	artifact string // whose text standard output ends with
	open     bool   // standard output is within a line
	said     bool   // something is on standard output
	files    int
}

func (t *talk) hear(h a2a.Heard) (err error) {
	if t.c.output == outputJSON {
		return printJSON(t.c.stdout, h)
	}
	t.progress.Print(func() { err = t.print(h) })
	return err
}

func (t *talk) print(h a2a.Heard) error {
	switch h.Kind {
	case a2a.HeardStatus:
		t.progress.text = t.peer + " is " + h.State // Print holds its lock
		if h.Text == "" && (h.State == t.state || h.State == "submitted" || h.State == "working") {
			return nil
		}
		t.state = h.State
		if out, ok := t.c.stdout.(*os.File); ok && isatty.IsTerminal(out.Fd()) {
			t.endLine() // elsewhere the words may go on where they ended
		}
		line := t.peer + ": " + h.State
		if h.Text != "" {
			line += ": " + h.Text
		}
		_, err := fmt.Fprintln(t.c.stderr, printable(line))
		return err
	case a2a.HeardArtifact:
		if h.Append && t.artifact == h.Artifact {
			break // it goes on where it ended
		}
		t.endLine()
		if t.said {
			fmt.Fprintln(t.c.stdout)
		}
		if h.Name != "" {
			fmt.Fprintf(t.c.stderr, "%s: %s\n", t.peer, shortText(h.Name, 100))
		}
		t.artifact = h.Artifact
	case a2a.HeardReply:
		t.endLine()
		if t.said && (h.Text != "" || len(h.Data)+len(h.Files) > 0) {
			fmt.Fprintln(t.c.stdout)
		}
	}
	return t.content(h)
}

// content writes what a person wants to read or pipe on.
func (t *talk) content(h a2a.Heard) error {
	if h.Text != "" {
		if _, err := io.WriteString(t.c.stdout, printable(h.Text)); err != nil {
			return fmt.Errorf("write the output: %w", err)
		}
		t.open, t.said = !strings.HasSuffix(h.Text, "\n"), true
	}
	for _, d := range h.Data {
		t.endLine()
		t.said = true
		if err := printJSON(t.c.stdout, json.RawMessage(d)); err != nil {
			return fmt.Errorf("write the output: %w", err)
		}
	}
	for _, f := range h.Files {
		if err := t.file(f); err != nil {
			return err
		}
	}
	return nil
}

// file saves a file, or names it.
func (t *talk) file(f a2a.HeardFile) error {
	t.endLine()
	t.files++
	name := filepath.Base(filepath.Clean("/" + strings.ReplaceAll(f.Name, `\`, "/")))
	if f.Name == "" || name == "/" || name != printable(name) {
		name = fmt.Sprintf("file-%d", t.files)
	}
	switch {
	case f.URL != "":
		_, err := fmt.Fprintf(t.c.stderr, "%s: file %s is at %s\n", t.peer, name, printable(f.URL))
		return err
	case t.save == "":
		_, err := fmt.Fprintf(t.c.stderr, "%s: file %s, %d bytes; --save DIR would keep it\n", t.peer, name, len(f.Data))
		return err
	}
	if err := os.MkdirAll(t.save, 0o755); err != nil {
		return usageError{fmt.Errorf("--save: %w", err)}
	}
	path := filepath.Join(t.save, name)
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644) // what is there is not a peer's to overwrite
	if err != nil {
		return fmt.Errorf("save %s: %w", name, err)
	}
	if _, err := file.Write(f.Data); err != nil {
		return errors.Join(fmt.Errorf("save %s: %w", name, err), file.Close())
	}
	if err := file.Close(); err != nil {
		return fmt.Errorf("save %s: %w", name, err)
	}
	_, err = fmt.Fprintf(t.c.stderr, "%s: saved %s, %d bytes\n", t.peer, path, len(f.Data))
	return err
}

// endLine ends the line that standard output is within.
func (t *talk) endLine() {
	if t.open {
		fmt.Fprintln(t.c.stdout)
		t.open = false
	}
}

func (t *talk) end() {
	t.progress.Stop()
	t.endLine()
}
