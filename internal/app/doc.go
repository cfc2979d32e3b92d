// Package app wires the product: it turns one [Config] into a running orchestrator and stops it again. Nothing else wires,
// so that a test starts the whole product in its own process.
package app
