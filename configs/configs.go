// Package configs holds the configuration files the program ships with, which are also its defaults.
//
// internal/app and cmd/orchestrator read them when no file is named; each file has a test that loads it.
package configs

import _ "embed"

// Profiles is profiles.yaml: the tool profiles used when the configuration names no file of its own.
//
//go:embed profiles.yaml
var Profiles []byte
