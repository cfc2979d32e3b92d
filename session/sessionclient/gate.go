package sessionclient

import "orchestrator/session"

// Policy says how a [Gate] tells the root agent's events from its subagents' on a stream that doesn't name its root.
type Policy string

// The policies. A stream that names its root needs none: there an event is the root's when it carries no agentId or the
// root's, and nobody else's, whether that agent was announced or not.
const (
	// PolicyObserved is the default. While no subagent has been seen on the stream, every stamped event is a subagent's: one
	// that survived from before we looked is never announced to us. Once one is known, only the known are subagents, and an
	// unknown stamp is the root's, so that a runtime which begins to stamp its root ends our waits all the same.
	PolicyObserved Policy = "observed"
	// PolicyStrict takes no stamped event for the root's, ever.
	PolicyStrict Policy = "strict"
)

// EventStreamOpen is the first frame of a stream, once the subscription is live: it may name the root. See [StreamOpen].
const EventStreamOpen session.EventType = "stream.open"

// Gate says which events are the root agent's. Only those may fill, end or fail a wait. It belongs to a session's client
// rather than to one wait: it is fed with every event, across waits and reconnects, and never forgets a subagent, since a
// child's last events can trail its end. The zero Gate has [PolicyObserved]. It is not safe for concurrent use.
type Gate struct {
	// Policy is asked while the root has no name. Defaults to [PolicyObserved].
	Policy Policy

	root  session.ID
	known map[session.ID]bool // subagents a lifecycle event has told of
}

// Name tells the gate which agent is the root, as a server of ours says in the session, in the reply to an input and in
// stream.open. The first name holds; an empty one is no name.
func (g *Gate) Name(root session.ID) {
	if g.root == "" {
		g.root = root
	}
}

// Named returns the root's name, or "".
func (g *Gate) Named() session.ID { return g.root }

// Observe learns from an event: the root's name from stream.open, a subagent from its lifecycle.
func (g *Gate) Observe(e session.Event) {
	switch e.Type {
	case EventStreamOpen:
		var open StreamOpen
		if e.Data != nil && e.Decode(&open) == nil { // one that can't be read names nobody
			g.Name(open.RootAgentID)
		}
	case session.EventSubagentSpawned, session.EventSubagentConfigured, session.EventSubagentStarted,
		session.EventSubagentCompleted, session.EventSubagentFailed:
		if e.AgentID == "" {
			return
		}
		if g.known == nil {
			g.known = make(map[session.ID]bool)
		}
		g.known[e.AgentID] = true
	}
}

// IsRoot reports whether an event is the root agent's, by what was observed so far.
func (g *Gate) IsRoot(e session.Event) bool {
	switch {
	case e.AgentID == "":
		return true
	case g.root != "":
		return e.AgentID == g.root
	case g.Policy == PolicyStrict, len(g.known) == 0:
		return false
	}
	return !g.known[e.AgentID]
}
