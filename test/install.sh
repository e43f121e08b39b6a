#!/usr/bin/env bash
# Installs the Debian packages that the tests need and that are not there yet. It does
# nothing, and needs no network, when all of them are installed.
set -euo pipefail

# runc runs the containers, busybox-static is what is in them, iproute2 and procps are for
# looking around in `make dev`, ca-certificates is for the Go module proxy, xfsprogs makes a file
# system with reflinks, e2fsprogs one on a disk that fails, zstd reads what we compress.
packages=(runc busybox-static iproute2 procps ca-certificates gcc libc6-dev xfsprogs e2fsprogs zstd)

missing=()
for p in "${packages[@]}"; do
	status=$(dpkg-query -W -f='${Status}' "$p" 2>/dev/null || true)
	if [ "$status" != "install ok installed" ]; then
		missing+=("$p")
	fi
done
if [ ${#missing[@]} -eq 0 ]; then
	exit 0
fi

if [ "$(id -u)" -ne 0 ]; then
	echo "install.sh: root is needed to install: ${missing[*]}" >&2
	exit 1
fi
echo "install.sh: installing ${missing[*]}" >&2
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
