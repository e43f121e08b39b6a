#!/usr/bin/env bash
# Builds the clients in clients.txt into .cache/tools/clients/, one after the other. A client that was built from the
# same source with the same flags is not built again.
set -euo pipefail
cd "$(dirname "$0")"
. ./build.sh

tools=$(realpath -m ../.cache/tools/clients)
flags=(-trimpath -ldflags "-s -w")
export CGO_ENABLED=0

build() { # name module version checksum package
	echo "clients.sh: building $1 $3" >&2
	local dir
	dir=$(module_dir "$2" "$3" "$4")
	case $1 in
	critest) # a test program
		go test -C "$dir" -c -mod=readonly "${flags[@]}" -o "$tools/$1" "$5"
		;;
	nerdctl)
		# Its go.mod replaces a module for tests with a directory outside of the module; both are removed.
		local copy
		copy=$(mktemp -d)
		cp -r "$dir/." "$copy"
		chmod -R u+w "$copy"
		rm "$copy"/cmd/nerdctl/helpers/testing*.go
		go mod edit -C "$copy" -dropreplace github.com/containerd/nerdctl/mod/tigron@v0.0.0 -droprequire github.com/containerd/nerdctl/mod/tigron
		go build -C "$copy" -mod=mod "${flags[@]}" -o "$tools/$1" "$5"
		rm -rf "$copy"
		;;
	*)
		go build -C "$dir" -mod=readonly "${flags[@]}" -o "$tools/$1" "$5"
		;;
	esac
}

version=$(go version)
while read -r line; do
	read -r name _ <<<"$line"
	# shellcheck disable=SC2086 # the words of the line
	stamped "$tools/$name.stamp" "$version $line ${flags[*]}" build $line
done < <(grep -v '^#' clients.txt)
