#!/bin/sh
# Talks to an agent built with npm's @a2a-js/sdk: installs what it needs below interop/a2a-js and runs the tests that ask it.
set -eu
cd "$(dirname "$0")/.."

missing() {
	echo "make interop-a2a: $1" >&2
	exit 1
}
command -v node >/dev/null || missing "there is no node on the PATH; install Node.js 20 or newer"
[ "$(node -p 'process.versions.node.split(".")[0]')" -ge 20 ] || missing "node is $(node --version); install Node.js 20 or newer"
command -v npm >/dev/null || missing "there is no npm on the PATH; it comes with Node.js"

agent=interop/a2a-js
if ! cmp -s $agent/package.json $agent/node_modules/.installed; then
	(cd $agent && npm install --no-package-lock --no-audit --no-fund --ignore-scripts --loglevel=error) ||
		missing "npm can't install what $agent/package.json names; it has to reach a registry once"
	cp $agent/package.json $agent/node_modules/.installed
fi
ORCHESTRATOR_INTEROP_A2A=$PWD/$agent ${GO:-go} test -count=1 -run 'OfAnotherSDK' "$@" ./e2e
