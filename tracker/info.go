package tracker

import "orchestrator/session"

// Describe says what a call record holds, as doors show it.
func Describe(rec session.Record) (session.CallInfo, error) {
	var p PendingA2ATask
	if err := rec.Decode(&p); err != nil {
		return session.CallInfo{}, err
	}
	p.State = rec.State
	c := session.CallInfo{
		ID: p.ID, Session: p.RootID, Agent: p.SessionID, TurnID: p.TurnID, OriginTurn: p.OriginTurn, ToolCallID: p.ToolCallID,
		Peer: p.Peer, Mode: p.Mode, State: p.State, Wanted: p.Wanted(), AskerName: p.AskerName, Question: p.Question,
		PeerTaskID: p.PeerTaskID, Attempt: p.Attempt, SentAt: p.SentAt, Deadline: p.Deadline, ReplyBy: p.ReplyBy,
		CancelReason: p.CancelReason,
	}
	if r := p.Reply; r != nil {
		c.Reply = &session.CallReply{State: r.State, Text: r.Text, Data: r.Data, Artifacts: r.Artifacts, Failed: r.Failed, At: r.At}
	}
	return c, nil
}
