package main

import (
	"fmt"
	"strings"
	"time"

	"orchestrator/session"
)

// line is one thing that happened, told to a person.
type line struct {
	at   time.Duration // since the tree's first event
	who  string
	text string
}

// tell applies an event to the board and returns what it tells a person, if anything.
func (b *board) tell(e session.Event) []line {
	before := b.waiting()
	b.apply(e)
	if e.Root && e.Type == session.EventMessageCompleted && b.agent(e.AgentID, "").origin == session.OriginUser {
		if m := decode[session.Message](e); m.Role == session.RoleUser {
			return []line{{e.Time.Sub(b.began), "user", shortText(m.Text, 200)}}
		}
	}
	text := b.sentence(e, before)
	if text == "" {
		return nil
	}
	who := b.label(e.AgentID)
	if e.Type == session.EventSubagentSpawned {
		who = b.label(e.ParentAgentID)
	}
	return []line{{e.Time.Sub(b.began), who, text}}
}

func (b *board) sentence(e session.Event, waiting []string) string {
	kind, _, _ := strings.Cut(string(e.Type), ".")
	switch kind {
	case "turn":
		return b.turnSentence(e)
	case "tool":
		return toolSentence(e)
	case "subagent":
		return b.subagentSentence(e, waiting)
	case "invocation":
		return b.invocationSentence(e)
	case "session":
		switch e.Type {
		case session.EventSessionError:
			return b.problemSentence(e)
		case session.EventSessionClosed:
			return "the session is closed"
		}
	case "context":
		return "the conversation so far was summarised to make room"
	case "interrupt":
		if e.Type == session.EventInterruptRequested {
			return "needs an answer from you"
		}
	}
	return ""
}

// problemSentence tells of each problem once, however often it is met in a row.
func (b *board) problemSentence(e session.Event) string {
	d := decode[session.SessionError](e)
	a := b.agent(e.AgentID, e.ParentAgentID)
	if a.problem == d.Message {
		return ""
	}
	a.problem = d.Message
	text := "problem: " + shortText(d.Message, 200)
	if d.WillRetry {
		text += "; trying again"
	}
	return text
}

func (b *board) turnSentence(e session.Event) string {
	switch e.Type {
	case session.EventTurnStarted:
		d := decode[session.TurnStarted](e)
		if d.Origin == session.OriginFoldback {
			return "follow-up: " + strings.Join(b.causes(d.CausedBy), ", ")
		}
	case session.EventTurnResumed:
		if d := decode[session.TurnResumed](e); d.Attempt > 1 {
			return fmt.Sprintf("goes on where it was before the restart (attempt %d)", d.Attempt)
		}
	case session.EventTurnFailed:
		if e.Root {
			return "the turn failed: " + shortText(decode[session.TurnEnded](e).Error, 300)
		}
	case session.EventTurnCancelled:
		if e.Root {
			return "the turn was cancelled: " + shortText(decode[session.TurnEnded](e).Error, 200)
		}
	}
	return ""
}

// toolSentence leaves out the tools that have events of their own.
func toolSentence(e session.Event) string {
	switch e.Type {
	case session.EventToolStarted:
		switch d := decode[session.ToolStarted](e); d.Name {
		case "spawn_subagent", "invoke_agent":
		default:
			return "uses " + shortText(d.Name, 60)
		}
	case session.EventToolCompleted:
		switch d := decode[session.ToolCompleted](e); {
		case d.Denied:
			return fmt.Sprintf("may not use %s: %s", shortText(d.Name, 60), shortText(d.Content, 160))
		case d.IsError:
			return fmt.Sprintf("%s failed: %s", shortText(d.Name, 60), shortText(d.Content, 160))
		}
	}
	return ""
}

func (b *board) subagentSentence(e session.Event, waiting []string) string {
	switch e.Type {
	case session.EventSubagentSpawned:
		d := decode[session.SubagentSpawned](e)
		return fmt.Sprintf("spawns %s: %s", b.label(e.AgentID), shortText(d.Prompt, 100))
	case session.EventSubagentStarted:
		if len(waiting) > 0 {
			return "starts, while " + list(waiting) + pick(len(waiting), " waits", " wait")
		}
		return "starts"
	case session.EventSubagentSuspended:
		a := b.find(e.AgentID)
		if c := b.blocking(a.id); c != nil {
			return "lends its slot while it waits for " + c.peer
		}
		return "lends its slot while it waits"
	case session.EventSubagentResumed:
		return "has a slot again"
	case session.EventSubagentCompleted:
		return "is done: " + shortText(b.find(e.AgentID).summary, 160)
	case session.EventSubagentFailed:
		d := decode[session.SubagentEnded](e)
		return fmt.Sprintf("failed (%s): %s", d.Reason, shortText(d.Error, 160))
	}
	return ""
}

func (b *board) invocationSentence(e session.Event) string {
	d := decode[session.Invocation](e)
	c := b.call(d.CallID)
	switch e.Type {
	case session.EventInvocationDispatched:
		how := "asks " + c.peer
		if d.Mode == session.ModeBlocking {
			how += " and waits"
			if d.Deadline != nil {
				how += " up to " + formatLeft(d.Deadline.Sub(e.Time))
			}
		} else {
			how += " without waiting"
		}
		if c.question != "" {
			how += ": " + shortText(c.question, 100)
		}
		if d.Attempt > 1 {
			how += fmt.Sprintf(" (attempt %d)", d.Attempt)
		}
		return how
	case session.EventInvocationReplied:
		return answerSentence(c.peer+" answers", d)
	case session.EventInvocationLate:
		return answerSentence(c.peer+" answers late", d)
	case session.EventInvocationTimedOut:
		switch d.State {
		case "overdue":
			return "no answer from " + c.peer + " yet"
		case "deadline":
			return "no answer from " + c.peer + " in time; goes on without it, the answer is still wanted"
		}
		return "waits no more for " + c.peer + "; the answer is still wanted"
	case session.EventInvocationInputRequired:
		return c.peer + " asks back: " + shortText(d.Text, 160)
	case session.EventInvocationFoldedBack:
		return c.peer + "'s answer comes home"
	case session.EventInvocationCancelled:
		return "the call to " + c.peer + " is cancelled"
	case session.EventInvocationExpired:
		return "the answer of " + c.peer + " is given up"
	}
	return ""
}

func answerSentence(who string, d session.Invocation) string {
	if d.State != "" && d.State != "completed" {
		who += " (" + shortText(d.State, 40) + ")"
	}
	if d.Text == "" {
		return who
	}
	return who + ": " + shortText(d.Text, 160)
}

// list joins names as a sentence does.
func list(names []string) string {
	switch len(names) {
	case 0:
		return "nobody"
	case 1:
		return names[0]
	}
	return strings.Join(names[:len(names)-1], ", ") + " and " + names[len(names)-1]
}

func pick(n int, one, many string) string {
	if n == 1 {
		return one
	}
	return many
}

// formatLeft is a time left as people say it: 3s, 2m05s, 3h10m.
func formatLeft(d time.Duration) string {
	d = max(d, 0).Round(time.Second)
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%dm%02ds", int(d.Minutes()), int(d.Seconds())%60)
	}
	return fmt.Sprintf("%dh%02dm", int(d.Hours()), int(d.Minutes())%60)
}
