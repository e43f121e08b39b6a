#!/usr/bin/env bash
# Builds the command in this directory as the named file, in the module of the stargz snapshotter, whose go.mod has another
# module in a directory of its repository.
set -euo pipefail
out=$(realpath -m "$1")
cd "$(dirname "$0")"
. ../../build.sh
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
module=github.com/containerd/stargz-snapshotter
for m in $module $module/estargz; do
	read -r _ version sum <<<"$(pinned ../../programs.txt $m)"
	cp -r --no-preserve=mode "$(module_dir $m "v$version" "$sum")/." "$tmp/${m#"$module"}"
done
CGO_ENABLED=0 go build -C "$tmp" -mod=readonly -trimpath -ldflags '-s -w' -o "$out" "$PWD/main.go"
