// Package sessiontest is the conformance suite that every session.Store passes, and helpers for tests that need a store
// with something in it.
package sessiontest
