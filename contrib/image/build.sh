#!/usr/bin/env bash
# Builds the container image as an OCI layout in the directory $1, and as one file $1.tar for `ctr images import`,
# of version $2, for the architectures $3 (amd64,arm64 if it is empty). The same commit results in the same bytes.
set -euo pipefail
out=$(realpath -m "$1")
version=$2
archs=${3:-amd64,arm64}
cd "$(dirname "$0")"

epoch=$(git log -1 --format=%ct)
rm -rf "$out" "$out.tar"
mkdir -p "$(dirname "$out")"
go run . -source ../.. -o "$out" -version "$version" -arch "$archs"
tar -C "$out" --sort=name --mtime="@$epoch" --owner=0 --group=0 --numeric-owner -cf "$out.tar" .
