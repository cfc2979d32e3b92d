// Package sessionclient sends an input to a session and waits for its answer, over any event stream: the HTTP session API,
// a [session.Manager] in the same process, or somebody else's stream behind a [Backend].
//
// Programs that talk to a session call [New] and [Session.SendAndWait], [Session.Events], [Session.Cancel]; [NewHTTP]
// makes the HTTP backend, which also lists sessions and calls, [NewInProcess] the other. A wait is for one turn: only an event that
// the [Gate] takes for the root agent's can end it, events are hints, and on any doubt (a cut connection, a lost position,
// an end told by an agent nobody knows) the turn itself is read. A [Session] reads its stream in a goroutine of its own
// from the first wait until [Session.Close], takes its events in their order, and never waits for those who are told of
// them. Calls block until they have what they were called for or their context ends.
package sessionclient
