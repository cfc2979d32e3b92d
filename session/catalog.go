package session

import "slices"

// EventInfo says what an event of a type is, for documents and for doors.
type EventInfo struct {
	Type EventType
	Data any    // a zero value of the body's type; nil: there is no body
	Text string // when it is told
}

// catalog is every type of event, in the order of docs/events.md.
var catalog = []EventInfo{
	{EventSessionCreated, SessionCreated{}, "A root session was opened. It is the first event of every log."},
	{EventSessionState, SessionState{}, "What the session is doing now: a level, each one replaces the last. It is told at most every 100 ms while a turn runs."},
	{EventSessionError, SessionError{}, "Something went wrong that ends nothing: with willRetry it is tried again."},
	{EventSessionClosed, nil, "The session is closed and takes no input any more."},

	{EventTurnQueued, TurnQueued{}, "An input was taken and waits its turn."},
	{EventTurnStarted, TurnStarted{}, "The turn runs. Its input is the message.completed that follows."},
	{EventTurnSuspended, TurnSuspended{}, "The turn only waits."},
	{EventTurnResumed, TurnResumed{}, "The turn goes on: after a wait, or, with a higher attempt, after a restart."},
	{EventTurnCompleted, TurnEnded{}, "The turn has ended with an output."},
	{EventTurnFailed, TurnEnded{}, "The turn has ended with an error."},
	{EventTurnCancelled, TurnEnded{}, "The turn was cancelled."},

	{EventMessageDelta, Delta{}, "A piece of an answer as it comes. It is void unless its message completes."},
	{EventMessageCompleted, Message{}, "A message of the conversation: an input, or an answer of the model with the tools it calls."},
	{EventReasoningDelta, Delta{}, "A piece of the model's reasoning as it comes."},
	{EventContextCompacted, ContextCompacted{}, "A summary stands for the conversation up to a seq from here on."},

	{EventToolStarted, ToolStarted{}, "A tool runs."},
	{EventToolProgress, ToolProgress{}, "What a running tool tells in passing."},
	{EventToolCompleted, ToolCompleted{}, "A tool has ended, with the result the model reads."},

	{EventSubagentSpawned, SubagentSpawned{}, "A subagent was made. agentId is the subagent's, here and below."},
	{EventSubagentConfigured, SubagentConfigured{}, "What the subagent runs with."},
	{EventSubagentStarted, SubagentStarted{}, "The subagent has a slot and runs."},
	{EventSubagentSuspended, TurnSuspended{}, "The subagent only waits, and lends its slot."},
	{EventSubagentResumed, SubagentStarted{}, "The subagent goes on."},
	{EventSubagentCompleted, SubagentEnded{}, "The subagent has ended with a result."},
	{EventSubagentFailed, SubagentEnded{}, "The subagent has ended without one; reason says why."},

	{EventInvocationDispatched, Invocation{}, "A peer was asked. agentId is the asker's, here and below, also when it has ended."},
	{EventInvocationProgress, ToolProgress{}, "What a peer tells in passing."},
	{EventInvocationReplied, Invocation{}, "The peer answered in time."},
	{EventInvocationInputRequired, Invocation{}, "The peer asks something back, or wants a sign-in."},
	{EventInvocationTimedOut, Invocation{}, "Nobody waits for the answer any more; it is still wanted."},
	{EventInvocationLate, Invocation{}, "The peer answered after the wait."},
	{EventInvocationFoldedBack, Invocation{}, "The answer is in the input of the turn foldTurnId, which starts with this commit."},
	{EventInvocationCancelled, Invocation{}, "The answer is not wanted any more."},
	{EventInvocationExpired, Invocation{}, "The answer was given up on."},

	{EventInterruptRequested, nil, "Somebody waits for the user. Not told yet."},
	{EventInterruptResolved, nil, "The user answered. Not told yet."},
}

// EventCatalog returns every type of event, in an order for readers.
func EventCatalog() []EventInfo { return slices.Clone(catalog) }

var cataloged = func() map[EventType]EventInfo {
	all := make(map[EventType]EventInfo, len(catalog))
	for _, info := range catalog {
		all[info.Type] = info
	}
	return all
}()

// DescribeEvent returns what an event of a type is, and whether there is such a type.
func DescribeEvent(t EventType) (EventInfo, bool) {
	info, ok := cataloged[t]
	return info, ok
}
