#!/usr/bin/env bash
# Runs every fuzz target of the module for the time given as the first argument (default 60s), one after the other,
# and fails at the first that finds something.
set -euo pipefail
cd "$(dirname "$0")/.."
fuzztime=${1:-60s}

targets=$(grep -rEl --include='*_test.go' '^func Fuzz[A-Za-z0-9_]*\(' . || true)
if [ -z "$targets" ]; then
	echo "there are no fuzz targets"
	exit 0
fi
for file in $targets; do
	dir=$(dirname "$file")
	for name in $(sed -nE 's/^func (Fuzz[A-Za-z0-9_]*)\(.*/\1/p' "$file"); do
		echo "== $dir $name ($fuzztime)"
		go test "$dir" -run '^$' -fuzz "^$name\$" -fuzztime "$fuzztime" -fuzzminimizetime 100x
	done
done
