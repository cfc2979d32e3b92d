// Package toolprofile decides which agent gets which tools. It reads profiles from YAML, makes the tool set of a turn from
// them, and says for every tool why it is or isn't in it.
//
// internal/app keeps one [Live] and asks it for a [tool.Set] when a turn starts or is continued; agentloop shows the model
// the set's tools and refuses any other by the set's reason. The default is deny: a source that no rule lists is not
// admitted. Deny beats ask beats allow. A subagent has at most what its parent had when it spawned it; only a grant on the
// agent widens that, and a grant never beats a deny or an ask. A tool under an ask rule isn't shown, and refuses until
// there is somebody to ask.
//
// [Profiles] never change and may be used from any goroutine. Live replaces them as a whole; a set made before keeps what
// it was made from.
package toolprofile
