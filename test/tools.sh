#!/usr/bin/env bash
# Builds containerd, ctr and the runc shim from the modules in test/go.mod into
# .cache/tools/<version>/ and points .cache/tools/current at it. The build is skipped when
# the binaries are there and were built from the same modules with the same flags.
set -euo pipefail
cd "$(dirname "$0")"

module=github.com/containerd/containerd/v2
commands=("$module/cmd/containerd" "$module/cmd/ctr" "$module/cmd/containerd-shim-runc-v2")
version=$(go list -m -f '{{.Version}}' "$module")
version=${version#v}
tools=../.cache/tools
ldflags="-s -w -X $module/version.Version=$version"
export CGO_ENABLED=0

# Not all of go.mod: a new test dependency is no reason to build containerd again.
modules=$(go list -deps -f '{{with .Module}}{{.Path}} {{.Version}}{{end}}' "${commands[@]}" | sort -u)
stamp=$(printf '%s\n' "$modules" "$(go version)" "$ldflags" | sha256sum | cut -d' ' -f1)

if [ "$(cat "$tools/$version/stamp" 2>/dev/null || true)" != "$stamp" ]; then
	echo "tools.sh: building containerd, ctr and the shim, version $version" >&2
	mkdir -p "$tools/$version"
	rm -f "$tools/$version/stamp"
	go build -trimpath -ldflags "$ldflags" -o "$tools/$version/" "${commands[@]}"
	echo "$stamp" >"$tools/$version/stamp"
fi
ln -sfn "$version" "$tools/current"
