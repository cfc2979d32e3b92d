package main

import (
	"fmt"
	"strings"
	"time"

	"orchestrator/session"
)

// style says how a piece of text looks where there is colour; the words alone say all there is to say.
type style string

const (
	plain  style = ""
	bold   style = "1"
	faint  style = "2"
	red    style = "31"
	green  style = "32"
	yellow style = "33"
	blue   style = "36"
)

// span is a piece of a line.
type span struct {
	text  string
	style style
}

// lineText is a line without colour.
func lineText(spans []span) string {
	var b strings.Builder
	for _, s := range spans {
		b.WriteString(s.text)
	}
	return b.String()
}

var stateStyles = map[string]style{
	"running": green, "waiting": yellow, "queued": faint, "done": faint, "failed": red, "idle": faint,
	"open": yellow, "answered": green, "late": blue, "folded": faint, "unanswered": yellow, "cancelled": red, "expired": red,
}

// tree draws the board in at most rows lines of at most width columns.
func (b *board) tree(now time.Time, width, rows int) [][]span {
	if len(b.agents) == 0 || rows < 1 {
		return nil
	}
	rowsOf := b.rows(now, false)
	if len(rowsOf) > rows-1 {
		rowsOf = b.rows(now, true) // what is over and folded in is told above
	}
	hidden := max(0, len(rowsOf)-max(rows-2, 1))
	if len(rowsOf) > rows-1 {
		rowsOf = rowsOf[:len(rowsOf)-hidden]
	} else {
		hidden = 0
	}
	widest := 0
	for _, r := range rowsOf {
		widest = max(widest, columns(r.indent+r.name))
	}
	var lines [][]span
	for _, r := range rowsOf {
		pad := strings.Repeat(" ", widest-columns(r.indent+r.name)+2)
		state := r.state
		if r.detail != "" {
			state = fmt.Sprintf("%-10s ", state)
		}
		lines = append(lines, cutSpans([]span{
			{r.indent, faint}, {r.name + pad, r.nameStyle}, {state, stateStyles[r.state]}, {r.detail, plain},
		}, width))
	}
	if hidden > 0 {
		lines = append(lines, cutSpans([]span{{fmt.Sprintf("… and %d more", hidden), faint}}, width))
	}
	return append(lines, cutSpans([]span{{b.footer(now), faint}}, width))
}

// row is a line of the tree before it is laid out.
type row struct {
	indent, name string
	nameStyle    style
	state        string
	detail       string
}

func (b *board) rows(now time.Time, short bool) []row {
	root := b.find(b.root)
	rows := []row{{name: root.label, nameStyle: bold, state: root.state, detail: b.detail(root, now)}}
	return append(rows, b.below(root, "", now, short)...)
}

// below returns the rows of what an agent has going on: its calls, then its children with theirs.
func (b *board) below(of *agentState, indent string, now time.Time, short bool) []row {
	type child struct {
		row
		agent *agentState
	}
	var children []child
	for _, c := range b.calls {
		used := c.mode == session.ModeBlocking && (c.state == "waits" || c.state == "answered") // its agent tells of it
		if c.by != of.id || used || short && c.state == "folded" {
			continue
		}
		children = append(children, child{row: row{name: "call to " + c.peer, nameStyle: plain, state: c.state, detail: c.detail(now)}})
	}
	for _, a := range b.agents {
		if a.parent != of.id || a.id == b.root || short && a.folded && (a.state == "done" || a.state == "failed") {
			continue
		}
		children = append(children, child{row{name: a.label, state: a.state, detail: b.detail(a, now)}, a})
	}
	var rows []row
	for i, c := range children {
		glyph, further := "├─ ", "│  "
		if i == len(children)-1 {
			glyph, further = "└─ ", "   "
		}
		c.indent = indent + glyph
		rows = append(rows, c.row)
		if c.agent != nil {
			rows = append(rows, b.below(c.agent, indent+further, now, short)...)
		}
	}
	return rows
}

func (c *callState) detail(now time.Time) string {
	switch c.state {
	case "open":
		return left(c.deadline, now)
	case "unanswered":
		return "no answer in time; it is still wanted"
	case "late", "answered":
		return shortText(c.text, 60)
	case "folded":
		return "the answer is in the conversation"
	}
	return ""
}

func (b *board) detail(a *agentState, now time.Time) string {
	switch a.state {
	case "queued":
		return "for a slot, " + left(a.deadline, now)
	case "waiting":
		c := b.blocking(a.id)
		switch {
		case c != nil:
			return fmt.Sprintf("for %s, %s", c.peer, left(c.deadline, now))
		case a.reason == "awaiting_subagent":
			return "for subagents"
		case a.reason == "awaiting_input":
			return "for you"
		case a.reason == "awaiting_peer" && a.id != b.root:
			return "for a slot" // its answer is there
		}
		return "for " + strings.ReplaceAll(strings.TrimPrefix(a.reason, "awaiting_"), "_", " ")
	case "running":
		switch c := b.blocking(a.id); {
		case c != nil:
			return fmt.Sprintf("waits for %s, %s", c.peer, left(c.deadline, now))
		case a.speaking != "" && a.id != b.root:
			return "writes: " + tail(a.speaking, 50)
		case a.speaking != "":
			return "writes"
		case len(a.tools) > 0:
			names := make([]string, len(a.tools))
			for i, t := range a.tools {
				names[i] = shortText(t.name, 40)
			}
			return "uses " + list(names)
		case a.origin == session.OriginFoldback:
			return "thinks about what came home"
		}
		return "thinks"
	case "done", "failed":
		text := shortText(a.summary, 80)
		if a.reason != "" {
			text = strings.TrimSuffix(shortText(a.reason, 40)+": "+text, ": ")
		}
		if a.folded {
			text = strings.TrimSpace("in the conversation: " + text)
		}
		return text
	case "idle":
		if _, alive := b.running(); alive > 0 {
			return "until " + pick(alive, "its subagent is", "its "+count(alive, "subagent")+" are") + " done"
		}
	}
	return ""
}

func (b *board) footer(now time.Time) string {
	running, alive := b.running()
	open := 0
	for _, c := range b.calls {
		switch c.state {
		case "waits", "open", "unanswered":
			open++
		}
	}
	return fmt.Sprintf("%s · %s at work, %d running · %s without an answer",
		formatLeft(now.Sub(b.began)), count(alive, "subagent"), running, count(open, "call"))
}

// left says how much time there is until a deadline.
func left(deadline, now time.Time) string {
	if deadline.IsZero() {
		return "no deadline"
	}
	return formatLeft(deadline.Sub(now)) + " left"
}

// tail returns the last columns of a text on one line.
func tail(s string, width int) string {
	s = strings.Join(strings.Fields(printable(s)), " ")
	for columns(s) > width {
		_, rest, found := strings.Cut(s, " ")
		if !found {
			return cut(s, width)
		}
		s = rest
	}
	return s
}

// cutSpans cuts a line to width columns.
func cutSpans(spans []span, width int) []span {
	var out []span
	for _, s := range spans {
		w := columns(s.text)
		if w > width {
			if s.text = cut(s.text, width); width < 1 {
				return out
			}
			return append(out, s)
		}
		width -= w
		if s.text != "" {
			out = append(out, s)
		}
	}
	return out
}

// wrap breaks a text into lines of at most width columns, at spaces where it can.
func wrap(text string, width int) []string {
	var lines []string
	for paragraph := range strings.SplitSeq(strings.ReplaceAll(text, "\t", "    "), "\n") {
		line := ""
		for word := range strings.SplitAfterSeq(paragraph, " ") {
			if columns(line)+columns(strings.TrimRight(word, " ")) > width && line != "" {
				lines = append(lines, strings.TrimRight(line, " "))
				line = ""
			}
			for columns(word) > width+1 {
				n := max(fitting(word, width), len(string([]rune(word)[:1]))) // a letter wider than the line, too, must go somewhere
				lines = append(lines, word[:n])
				word = word[n:]
			}
			line += word
		}
		lines = append(lines, strings.TrimRight(line, " "))
	}
	return lines
}
