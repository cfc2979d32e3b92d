package subagent

import (
	"cmp"
	"time"

	"orchestrator/session"
)

// Describe says what a child record holds, as doors show it.
func Describe(rec session.Record) (session.AgentInfo, error) {
	var c Child
	if err := rec.Decode(&c); err != nil {
		return session.AgentInfo{}, err
	}
	a := session.AgentInfo{
		ID: session.ID(rec.Key), Parent: c.Parent, Agent: c.Agent, Description: c.Description, State: rec.State,
		TurnID: c.Turn, ToolCallID: c.ToolCall, OriginTurn: rec.Origin, Created: given(c.Spawned), Deadline: given(c.Deadline),
		EndedAt: given(c.Ended),
	}
	if !live(rec.State) {
		a.State = session.StateEnded
	}
	if r := c.Result; r != nil {
		a.Agent = cmp.Or(r.Agent, a.Agent)
		a.Result, a.Summary, a.Error, a.Artifacts, a.Usage = r.State, r.Text, r.Error, r.Artifacts, r.Usage
	}
	return a, nil
}

// given returns a time, nil when it is zero.
func given(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}
