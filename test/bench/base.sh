#!/usr/bin/env bash
# base.sh COMMIT builds ballast and ballastd of a commit, unless they are in .cache/guard/<commit>, and prints that directory.
set -euo pipefail
cd "$(dirname "$0")/../.."
commit=$(git rev-parse --verify --end-of-options "$1^{commit}")
out=$PWD/.cache/guard/$commit
if [ ! -d "$out" ]; then
	echo "base.sh: building $commit" >&2
	mkdir -p .cache/guard
	source=$(mktemp -d "$out.XXXXXX")
	trap 'rm -rf "$source"' EXIT
	git archive "$commit" | tar -x -C "$source"
	make -C "$source" --no-print-directory build VERSION="${commit:0:7}" >&2
	mv "$source/bin" "$out" # only a whole build has this name
fi
echo "$out"
