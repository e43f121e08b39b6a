#!/usr/bin/env bash
# Builds the kubelet and kserve-pod, or with --all all programs of a Kubernetes cluster, etcd and Helm, into .cache/tools/kubernetes-<version>/ and
# points .cache/tools/kubernetes at it. A build is skipped if the programs were built from the same modules with the same flags.
# Without a build cache the kubelet takes about seven minutes of one processor, all programs about three times that.
set -euo pipefail
cd "$(dirname "$0")"
. ../build.sh

version=$(go list -m -f '{{.Version}}' k8s.io/kubernetes)
dir=kubernetes-${version#v}
tools=../../.cache/tools
ldflags="-s -w -X k8s.io/component-base/version.gitVersion=$version"
export CGO_ENABLED=0

stamp=$(printf '%s\n' "$(cat go.mod go.sum)" "$(go version)" "$ldflags" | sha256sum | cut -d' ' -f1)

build() {
	echo "build.sh: building $*" >&2
	go build -trimpath -ldflags "$ldflags" -o "$tools/$dir/" "$@"
}
others() {
	build go.etcd.io/etcd/server/v3 k8s.io/kubernetes/cmd/{kube-apiserver,kube-controller-manager,kube-scheduler,kubectl}
	mv "$tools/$dir/server" "$tools/$dir/etcd"
	local version sum # of Helm: that of the other tests
	read -r _ version sum <<<"$(grep '^helm.sh/helm/v4 v[^/]* ' ../chart/go.sum)"
	go build -C "$(module_dir helm.sh/helm/v4 "$version" "$sum")" -trimpath -ldflags '-s -w' -o "$PWD/$tools/$dir/" ./cmd/helm
}
# kserve builds KServe's code for pods with the dependencies of its own module: those of the modules here are other versions.
kserve=github.com/kserve/kserve kserve_version=v0.20.0 kserve_sum=h1:Bs7HxmGV4KFqqptDcWseKv+mwD4YOYHJWcuVgPG2Gug=
kserve() (
	echo "build.sh: building kserve-pod" >&2
	of=$(module_dir "$kserve" "$kserve_version" "$kserve_sum")
	work=$(mktemp -d)
	trap 'rm -rf "$work"' EXIT
	cp --no-preserve=mode "$of/go.mod" "$of/go.sum" kserve/main.go "$work"
	out=$PWD/$tools/kserve-pod
	cd "$work"
	go mod edit -module kserve-pod -require "$kserve@$kserve_version"
	go build -mod=mod -tags kserve -trimpath -ldflags '-s -w' -o "$out" .
)
stamped "$tools/$dir/stamp" "$stamp" build k8s.io/kubernetes/cmd/kubelet
stamped "$tools/kserve-stamp" "$(printf '%s\n' "$(cat kserve/main.go)" "$(go version)" "$kserve_sum" | sha256sum | cut -d' ' -f1)" kserve
ln -sfn "$dir" "$tools/kubernetes"
if [ "${1:-}" = --all ]; then
	stamped "$tools/$dir/stamp-all" "$stamp $(sha256sum <../chart/go.sum)" others
fi
