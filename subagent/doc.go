// Package subagent runs the agents an agent delegates to: it spawns them as child sessions under a cap, lends their slots
// while they only wait, ends every one of them exactly once, and brings their results home.
//
// agentloop calls its tools, session.Manager its hooks. A spawn, a start, a suspension and an end are each one commit;
// what a child's end means for its siblings is decided by compare-and-sets on the batch record of the turn that spawned
// them. Slots are handed out in order: subagents that come back first, then spawns as they came. Spawning doesn't block;
// waiting for a child does, for as long as the tool's own time allows. The supervisors of running children belong to the
// [Pool] and end with the context of their tree; Drain waits for them.
package subagent
