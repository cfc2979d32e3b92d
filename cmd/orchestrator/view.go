package main

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"time"

	"orchestrator/session"
)

// viewConfig configures a [view].
type viewConfig struct {
	// Out takes what the root agent says. Required.
	Out io.Writer
	// Notes takes a line for everything else that happens. Nil drops it.
	Notes io.Writer
	// Together says that Out and Notes end up in one place, where messages are set apart by empty lines.
	Together bool
	// Live draws the tree below what is written and keeps it up to date; Out must be a terminal, and takes the notes too.
	Live bool
	// Colour may be used with Live.
	Colour bool
	// Size returns the terminal's columns and lines. Defaults to 80 by 24.
	Size func() (columns, lines int)
}

// view shows a tree to a person as its events come. Without Live it only ever appends. It is not safe for concurrent use.
type view struct {
	cfg   viewConfig
	board *board
	err   error // of the first write that failed

	streaming string // message that Out holds the beginning of
	streamed  string
	held      []line         // notes that wait for the message's end
	silent    session.TurnID // how it fails is for the caller to tell
	started   bool           // something was written where messages go
	said      bool           // what was written last there is a message

	drawn []int // columns of each line of the tree on the screen
}

func newView(cfg viewConfig) *view {
	if cfg.Size == nil {
		cfg.Size = func() (int, int) { return 80, 24 }
	}
	if cfg.Live {
		cfg.Notes, cfg.Together = cfg.Out, true
	}
	return &view{cfg: cfg, board: newBoard()}
}

// Replay takes an event into account without showing it.
func (v *view) Replay(e session.Event) { v.board.apply(e) }

// Event takes an event into account and shows it.
func (v *view) Event(e session.Event, now time.Time) {
	if v.board.stale(e) {
		return
	}
	lines := v.board.tell(e)
	if e.TurnID != "" && e.TurnID == v.silent && (e.Type == session.EventTurnFailed || e.Type == session.EventTurnCancelled) {
		lines = nil
	}
	if e.Root && (e.Type == session.EventMessageCompleted || e.Type == session.EventMessageDelta) {
		v.rootMessage(e, now)
	}
	if v.streaming != "" {
		v.held = append(v.held, lines...)
		return
	}
	v.notes(lines, now)
}

// Tick brings the times on the screen up to date.
func (v *view) Tick(now time.Time) { v.print("", now) }

// Note shows a line of our own.
func (v *view) Note(text string, now time.Time) {
	if v.cfg.Notes == nil {
		return
	}
	if v.cfg.Live {
		v.print(text+"\n", now)
		return
	}
	v.note(text + "\n")
}

// Close takes the tree off the screen and returns the first error of a write.
func (v *view) Close() error {
	if v.streaming != "" {
		v.cutOff()
		v.notes(v.held, time.Time{})
	}
	if v.cfg.Live {
		v.say(v.erase())
		v.drawn = nil
	}
	return v.err
}

// rootMessage shows what the root agent says: at once as it comes, or whole when the tree is drawn.
func (v *view) rootMessage(e session.Event, now time.Time) {
	if e.Type == session.EventMessageDelta {
		d := decode[session.Delta](e)
		if v.cfg.Live || d.Text == "" {
			return
		}
		if v.streaming != d.MessageID {
			v.cutOff()
			v.streaming = d.MessageID
			v.gap()
		}
		v.streamed += d.Text
		v.say(printable(d.Text))
		return
	}
	m := decode[session.Message](e)
	if m.Role != session.RoleAssistant {
		return
	}
	text := strings.TrimRight(m.Text, "\n ")
	switch {
	case v.streaming != "" && v.streaming == m.MessageID && strings.HasPrefix(m.Text, v.streamed):
		v.say(strings.TrimRight(printable(m.Text[len(v.streamed):]), "\n ") + "\n")
	case text == "":
		v.cutOff()
	case v.cfg.Live:
		columns, _ := v.cfg.Size()
		v.print("\n"+v.paint(strings.Join(wrap(printable(text), max(columns-1, 20)), "\n"), bold)+"\n\n", now)
	default:
		v.cutOff()
		v.gap()
		v.say(printable(text) + "\n")
	}
	v.streaming, v.streamed = "", ""
	held := v.held
	v.held = nil
	v.notes(held, now)
}

// cutOff says of a message that was begun that it isn't one: the model is asked again.
func (v *view) cutOff() {
	if v.streaming != "" {
		v.say(" [cut off]\n")
	}
	v.streaming, v.streamed = "", ""
}

// gap sets a message apart from what stands above it.
func (v *view) gap() {
	if v.started {
		v.say("\n")
	}
}

func (v *view) notes(lines []line, now time.Time) {
	if v.cfg.Notes == nil {
		return
	}
	for _, l := range lines {
		stamp := fmt.Sprintf("%6.1fs  ", l.at.Seconds())
		if v.cfg.Live {
			columns, _ := v.cfg.Size()
			text := wrap(l.who+": "+l.text, max(columns-1-len(stamp), 20))
			v.print(v.paint(stamp, faint)+strings.Join(text, "\n"+strings.Repeat(" ", len(stamp)))+"\n", now)
			continue
		}
		v.note(stamp + l.who + ": " + l.text + "\n")
	}
}

// print writes text above the tree and draws the tree again, in one write so that it doesn't flicker.
func (v *view) print(text string, now time.Time) {
	if !v.cfg.Live {
		return
	}
	var out bytes.Buffer
	out.WriteString(v.erase())
	out.WriteString(text)
	width, rows := v.cfg.Size()
	width, rows = max(width-1, 10), max(rows-1, 4)
	var lines [][]span
	if root := v.board.find(v.board.root); root != nil && root.speaking != "" {
		spoken := wrap(printable(root.speaking), width)
		for _, l := range spoken[max(0, len(spoken)-rows/2):] {
			lines = append(lines, []span{{l, bold}})
		}
		lines = append(lines, nil)
	}
	lines = append(lines, v.board.tree(now, width, rows-len(lines))...)
	v.drawn = nil
	for _, spans := range lines {
		used := 0
		for _, s := range spans {
			used += columns(s.text)
			out.WriteString(v.paint(s.text, s.style))
		}
		out.WriteByte('\n')
		v.drawn = append(v.drawn, used)
	}
	v.say(out.String())
}

// erase returns what takes the tree off the screen. A terminal that has become narrower has wrapped its lines.
func (v *view) erase() string {
	if len(v.drawn) == 0 {
		return ""
	}
	width, _ := v.cfg.Size()
	up := 0
	for _, used := range v.drawn {
		up += max(1, (used+width-1)/max(width, 1))
	}
	return fmt.Sprintf("\x1b[%dA\r\x1b[J", up)
}

func (v *view) paint(text string, s style) string {
	if !v.cfg.Colour || s == plain || text == "" {
		return text
	}
	return "\x1b[" + string(s) + "m" + text + "\x1b[0m"
}

// say writes a piece of a message.
func (v *view) say(text string) {
	v.started, v.said = true, true
	v.write(v.cfg.Out, text)
}

// note writes a line that is no message.
func (v *view) note(text string) {
	if v.cfg.Together {
		if v.said {
			text = "\n" + text
		}
		v.started, v.said = true, false
	}
	v.write(v.cfg.Notes, text)
}

func (v *view) write(w io.Writer, text string) {
	if v.err != nil || text == "" {
		return
	}
	if _, err := io.WriteString(w, text); err != nil {
		v.err = fmt.Errorf("write the output: %w", err)
	}
}

// Failed returns the first error of a write.
func (v *view) Failed() error { return v.err }
