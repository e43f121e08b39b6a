#!/usr/bin/env bash
# Builds the kubelet from the module in build into .cache/tools/kubelet-<version>/ and points
# .cache/tools/kubelet at it. The build is skipped if the binary was built from the same modules
# with the same flags. Without a build cache it takes about five minutes of one processor.
set -euo pipefail
cd "$(dirname "$0")/build"
. ../../build.sh

version=$(go list -m -f '{{.Version}}' k8s.io/kubernetes)
dir=kubelet-${version#v}
tools=../../../.cache/tools
ldflags="-s -w -X k8s.io/component-base/version.gitVersion=$version"
export CGO_ENABLED=0

stamp=$(printf '%s\n' "$(cat go.mod go.sum)" "$(go version)" "$ldflags" | sha256sum | cut -d' ' -f1)

build() {
	echo "build.sh: building the kubelet, version ${version#v}" >&2
	go build -trimpath -ldflags "$ldflags" -o "$tools/$dir/" k8s.io/kubernetes/cmd/kubelet
}
stamped "$tools/$dir/stamp" "$stamp" build
ln -sfn "$dir" "$tools/kubelet"
