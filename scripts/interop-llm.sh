#!/bin/sh
# Asks models of an emulator that others keep: installs it below interop/aimock and runs the tests that ask it.
set -eu
cd "$(dirname "$0")/../interop/aimock"

if ! cmp -s package.json node_modules/.installed; then
	npm install --no-package-lock --no-audit --no-fund --ignore-scripts --loglevel=error || {
		echo "make interop-llm: npm (of Node.js 20 or newer) must be there and reach a registry once" >&2
		exit 1
	}
	cp package.json node_modules/.installed
fi
ORCHESTRATOR_INTEROP_LLM=$PWD ${GO:-go} test -count=1 -run 'OfAnEmulator' "$@" ../../e2e
