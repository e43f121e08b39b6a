#!/usr/bin/env bash
# Fuzzes the parsers: fuzz.sh T [PATTERN] gives each target whose name matches the time T ("10m"), or
# as many tries ("1000x"). What was found interesting is kept in .cache/fuzz and is where the next run
# begins; an input that fails is written to the testdata of its package.
set -euo pipefail
cd "$(dirname "$0")/.."
time=$1 pattern=${2:-.}
root=$PWD/.cache/fuzz
failed=()
for dir in $(grep -rlE --include='*_test.go' '^func Fuzz' cmd convert snapshotter store | xargs -n1 dirname | sort -u); do
	names=$(grep -hoE '^func Fuzz[A-Za-z0-9_]+' "$dir"/*_test.go | cut -c6- | grep -E -- "$pattern" | sort || true)
	[ -n "$names" ] || continue
	mkdir -p "$root/$dir"
	go test -c -fuzz=. -o "$root/$dir/test" "./$dir" # once for each package: linking takes longer than 1000 tries
	for name in $names; do
		echo "== $dir $name"
		# To make an interesting input small takes a minute of time by default, in which nothing else is tried.
		(cd "$dir" && "$root/$dir/test" -test.run '^$' -test.fuzz "^$name\$" -test.fuzztime "$time" \
			-test.fuzzminimizetime 200x -test.fuzzcachedir "$root/$dir") || failed+=("$dir $name")
	done
done
if [ ${#failed[@]} -gt 0 ]; then
	printf 'FAILED %s\n' "${failed[@]}"
	exit 1
fi
