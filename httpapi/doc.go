// Package httpapi is the HTTP door: sessions, turns, events and what belongs to them, for programs in any language.
//
// internal/app mounts an [API] beside its health checks. A request is checked in one order: the host and the origin, the key,
// the rate, then what it asks for; what a principal may not see is told apart from what doesn't exist by nothing. Requests
// with wait and event streams block for as long as they are asked to; [API.Drain] makes all of them return. A client that
// disconnects cancels nothing, and one that doesn't read is disconnected: streams read the log at their own pace, so that no
// session waits for a reader.
package httpapi
