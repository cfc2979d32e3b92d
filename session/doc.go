// Package session is the noun of the product: sessions, their turns, and the event log that is the truth about both.
// Everything else is a projection of the log or a way to append to it.
//
// Doors call [Manager]: one way in (Submit), one way out (Subscribe). There is one write, [Store.Commit]: a [Batch] is
// data, and all of it happens or nothing. Calls to peers, subagents, turns and items are records of a [Kind] whose state
// changes by compare-and-set; the packages that own the kinds give the states their meaning. Events of one tree are
// ordered by seq without gaps; nothing is ordered between trees. Commit blocks until the write is durable; Subscribe
// blocks its own reader only. Whoever made the Manager stops it, then closes the store.
//
// The package imports none of ours.
package session
