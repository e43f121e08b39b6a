#!/usr/bin/env bash
# Builds the command in this directory as the named file, from the module of Ollama with stubs instead of its runners.
set -euo pipefail
out=$(realpath -m "$1")
cd "$(dirname "$0")"
tmp=$(mktemp -d)
trap 'chmod -R u+w "$tmp"; rm -rf "$tmp"' EXIT
go mod download github.com/ollama/ollama
cp -r "$(go list -m -f '{{.Dir}}' github.com/ollama/ollama)" "$tmp/ollama"
chmod -R u+w "$tmp/ollama"
cp llama.txt "$tmp/ollama/llama/llama.go"
rm "$tmp"/ollama/ml/backend/ggml/{ggml,threads_debug}.go
cp ggml.txt "$tmp/ollama/ml/backend/ggml/quantization.go"
cp go.mod go.sum "$tmp"
go mod edit -replace "github.com/ollama/ollama=$tmp/ollama" "$tmp/go.mod"
CGO_ENABLED=0 go build -modfile "$tmp/go.mod" -trimpath -ldflags '-s -w' -o "$out" .
