// Package agentloop runs one turn: it asks the model, runs the tools the model asks for, appends both to the session's
// log, and repeats until the model asks for no more.
//
// Whoever owns a tree calls [Loop.RunTurn], one call for each started turn; turns of different sessions run at the same
// time. The log is read once a turn and the model's context then grows in memory. An answer of the model is one commit
// with the tool calls it asks for, and each tool's result is one commit with what the tool changes, in the order the
// tools finish; the context sorts results into the order of the calls. So a turn whose process died goes on from its last
// commit: a later RunTurn runs only the calls without a result, and asks the model only for what it hasn't said.
//
// RunTurn blocks for as long as the turn takes and returns when everything it started has returned. It doesn't commit the
// turn's end; its caller does.
package agentloop
