// Package sqlite keeps the logs, records and artifacts of all trees in one SQLite file: a session.Store for one process.
//
// Internal/app and the commands open it; whoever opened it closes it. One goroutine of the Store writes: commits that
// come while it is busy are collected and written in one transaction, one that comes alone is written at once. Commit
// blocks until its transaction is as durable as Config.Synchronous says. Reads go over connections of their own and see
// every commit that has returned. A lock file beside the database keeps a second process out.
package sqlite
