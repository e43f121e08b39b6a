#!/usr/bin/env bash
# Builds containerd, ctr and the runc shim into .cache/tools/<version>/: the versions in containerd.txt with --all, otherwise
# the newest. Each has the dependencies of its own go.mod, as its release does. .cache/tools/current points to the newest.
# Builds runc, the version in programs.txt, into .cache/tools/runc/; with --all, also Docker Engine and its command line into
# .cache/tools/docker/. A program that was built from the same source with the
# same flags is not built again.
set -euo pipefail
cd "$(dirname "$0")"
. ./build.sh

tools=$(realpath -m ../.cache/tools)
go=$(go version)
export CGO_ENABLED=0

build() { # module version checksum flag…
	echo "tools.sh: building containerd, ctr and the shim, version $2" >&2
	local out=$tools/$2 dir
	dir=$(module_dir "$1" "v$2" "$3")
	shift 3
	go build -C "$dir" "$@" -o "$out/" ./cmd/containerd ./cmd/ctr ./cmd/containerd-shim-runc-v2
}

# Each of the older versions has dependencies of its own, so compiling one takes longer than its tests. They are not optimized,
# which saves a third. What no test needs (tracing, zfs, devmapper) stays in: it is 3 % of the source.
quick=("-gcflags=all=-N -l -dwarf=false")

versions=$(grep -v '^#' containerd.txt)
newest=$(awk 'END {print $2}' containerd.txt)
all=${1:-}
if [ "$all" != --all ]; then
	versions=$(tail -n 1 <<<"$versions")
fi
while read -r module version sum; do
	flags=(-mod=readonly -trimpath -ldflags "-s -w -X $module/version.Version=$version")
	if [ "$version" != "$newest" ]; then
		flags+=("${quick[@]}")
	fi
	stamped "$tools/$version/stamp" "$go $module $version $sum ${flags[*]}" build "$module" "$version" "$sum" "${flags[@]}"
done <<<"$versions"
ln -sfn "$newest" "$tools/current"

build_runc() { # module version checksum ldflags
	echo "tools.sh: building runc, version $2" >&2
	local dir
	dir=$(module_dir "$1" "v$2" "$3")
	CGO_ENABLED=1 go build -C "$dir" -mod=readonly -trimpath -tags netgo,osusergo,seccomp -ldflags "$4" -o "$tools/runc/" .
}

# User namespaces with ID-mapped mounts need runc 1.2, which distributions may not have. It is built with C and
# seccomp, which the kubelet and nerdctl require.
read -r module version sum <<<"$(pinned programs.txt github.com/opencontainers/runc)"
ldflags="-s -w -extldflags -static -X main.version=$version"
stamped "$tools/runc/stamp" "$go $module $version $sum $ldflags seccomp" build_runc "$module" "$version" "$sum" "$ldflags"

# The engine says the version of its command line: its module has numbers of its own.
build_docker() { # module version checksum of the engine, the same of the command line
	echo "tools.sh: building Docker Engine $2 and its command line $5" >&2
	local dir copy version=${5%+*}
	dir=$(module_dir "$1" "v$2" "$3")
	go build -C "$dir" -mod=readonly -trimpath -ldflags "-s -w -X $1/dockerversion.Version=$version" -o "$tools/docker/" ./cmd/dockerd
	dir=$(module_dir "$4" "v$5" "$6")
	copy=$(mktemp -d)
	cp -r "$dir/." "$copy"
	chmod -R u+w "$copy"
	mv "$copy/vendor.mod" "$copy/go.mod"
	mv "$copy/vendor.sum" "$copy/go.sum"
	go build -C "$copy" -mod=readonly -trimpath -ldflags "-s -w -X $4/cli/version.Version=$version" -o "$tools/docker/" ./cmd/docker
	rm -rf "$copy"
}

if [ "$all" = --all ]; then
	read -r engine version sum <<<"$(pinned programs.txt github.com/moby/moby/v2)"
	read -r cli cli_version cli_sum <<<"$(pinned programs.txt github.com/docker/cli)"
	stamped "$tools/docker/stamp" "$go $engine $version $sum $cli $cli_version $cli_sum" \
		build_docker "$engine" "$version" "$sum" "$cli" "$cli_version" "$cli_sum"
fi
