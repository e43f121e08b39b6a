#!/usr/bin/env bash
# Fuzzes the parsers: fuzz.sh T [PATTERN] runs each target with a matching name for the time T ("10m"), or
# a number of times ("1000x"). Interesting inputs are kept in .cache/fuzz for the next run; a failing input
# is written to the testdata of its package.
set -euo pipefail
cd "$(dirname "$0")/.."
time=$1 pattern=${2:-.}
root=$PWD/.cache/fuzz
failed=()
for dir in $(grep -rlE --include='*_test.go' '^func Fuzz' cmd convert snapshotter store | xargs -n1 dirname | sort -u); do
	names=$(grep -hoE '^func Fuzz[A-Za-z0-9_]+' "$dir"/*_test.go | cut -c6- | grep -E -- "$pattern" | sort || true)
	[ -n "$names" ] || continue
	mkdir -p "$root/$dir"
	go test -C "$dir" -c -fuzz=. -ldflags "-s -w" -o "$root/$dir/test" . # once for each package: linking takes longer than 1000 runs
	for name in $names; do
		echo "== $dir $name"
		# By default minimizing an interesting input takes up to a minute.
		(cd "$dir" && "$root/$dir/test" -test.run '^$' -test.fuzz "^$name\$" -test.fuzztime "$time" \
			-test.fuzzminimizetime 200x -test.fuzzcachedir "$root/$dir") || failed+=("$dir $name")
	done
done
if [ ${#failed[@]} -gt 0 ]; then
	printf 'FAILED %s\n' "${failed[@]}"
	exit 1
fi
