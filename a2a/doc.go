// Package a2a asks peers: other people's agents, reached over the A2A protocol. It offers the tools invoke_agent,
// list_known_agents and get_agent_details, and owns the relay, which does all transport I/O.
//
// agentloop calls the tools; the session manager calls [Relay.Recover], [Relay.CloseTree], [Relay.CancelCall] and
// [Relay.Drain]. A call is registered in the tracker before its first byte leaves, and every outcome after that is
// delivered to the tracker, so a call has one owner for its reply whatever happens to the process. The tools block for as
// long as their budget allows; the relay runs one goroutine a call, which lives until the call is settled or its tree's
// context ends.
package a2a
