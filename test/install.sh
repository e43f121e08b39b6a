#!/usr/bin/env bash
# Installs the Debian packages for the tests, and those named as arguments. If all of them are
# installed it does nothing, and needs no network.
set -euo pipefail

# busybox-static is for the containers, iproute2 and procps are for `make dev`, ca-certificates is
# for the Go module proxy, gcc and libc6-dev are for runc and the race detector, libseccomp-dev and
# pkg-config are for runc, xfsprogs makes a file system with reflinks, e2fsprogs one on a failing
# disk and that of disk.sh, zstd and unzip read what ballast writes, systemd runs the units.
packages=(busybox-static iproute2 procps ca-certificates gcc libc6-dev libseccomp-dev pkg-config xfsprogs e2fsprogs zstd unzip systemd)

packages+=("$@")

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
apt-get install -y -qq -o DPkg::Lock::Timeout=600 --no-install-recommends "${missing[@]}" >/dev/null
