#!/usr/bin/env bash
# Builds the command in this directory as the named file, in the module of Ollama with stubs instead of its runners.
set -euo pipefail
out=$(realpath -m "$1")
cd "$(dirname "$0")"
. ../../build.sh
read -r module version sum <<<"$(pinned ../../programs.txt github.com/ollama/ollama)"
dir=$(module_dir "$module" "v$version" "$sum")
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
cp -r --no-preserve=mode "$dir/." "$tmp"
cp llama.txt "$tmp/llama/llama.go"
rm "$tmp"/ml/backend/ggml/{ggml,threads_debug}.go
cp ggml.txt "$tmp/ml/backend/ggml/quantization.go"
CGO_ENABLED=0 go build -C "$tmp" -mod=readonly -trimpath -ldflags '-s -w' -o "$out" "$PWD/main.go"
