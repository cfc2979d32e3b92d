//go:build !linux

package deploy_test

// insideVariable is of no use here: only Linux has what a container is made of.
const insideVariable = "ORCHESTRATOR_DEPLOY_TEST_INSIDE"

func inside() int { return 1 }
