#!/usr/bin/env bash
# Builds the container image as an OCI layout in the directory $1, and as one file $1.tar for `ctr images import`,
# of version $2, for the architectures $3 (amd64,arm64 if it is empty), or of the demo if $3 is demo. The same commit results
# in the same bytes.
set -euo pipefail
out=$(realpath -m "$1")
version=$2
if [ "${3:-}" = demo ]; then what=-demo; else what="-arch=${3:-amd64,arm64}"; fi
cd "$(dirname "$0")"

epoch=$(git log -1 --format=%ct)
rm -rf "$out" "$out.tar"
mkdir -p "$(dirname "$out")"
go run . -source ../.. -o "$out" -version "$version" "$what"
tar -C "$out" --sort=name --mtime="@$epoch" --owner=0 --group=0 --numeric-owner -cf "$out.tar" .
