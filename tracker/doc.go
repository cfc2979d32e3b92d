// Package tracker holds who is waiting for which peer's answer, until when, and gives every answer exactly one owner.
//
// A call is a record of [session.KindCall] whose body is a [PendingA2ATask]. The a2a tool registers a call and, when it
// blocks, waits for it; the relay says what was sent and delivers what came back; the subagent runner and the Manager put
// [Tracker.EndPart] into the terminal commits of turns; the sweeper gives due calls to [Tracker.Sweep]. Each of these is
// one compare-and-set in one commit, so that of two that race exactly one wins and the other learns what it lost to:
//
//	waiting   a waiter owns the next reply     → answered, detached, cancelled
//	open      nobody waits, before the deadline → folded, detached (overdue), cancelled
//	detached  abandoned or overdue              → folded, expired, cancelled
//	answered  the reply is stored for its waiter → consumed (with its tool.completed), folded (the subagent ended first)
//	consumed, folded, expired, cancelled        final
//
// A waiter is woken by a channel that carries nothing: the row is the truth, and it is read again on every wake and once
// more, by the compare-and-set that abandons it, when the deadline comes first. Only [Tracker.Wait] blocks for long. The
// store is closed by whoever opened it; [Tracker.Run] returns with its context and owns no goroutine beyond itself.
package tracker
