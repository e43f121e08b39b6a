#!/usr/bin/env bash
# Runs a command with a disk of its own for temporary files: ext4 that waits for no device. Tests sync thousands of files; they
# kill processes, not machines. Only the command sees the disk, at /var/tmp, and it is gone with the last of its processes.
# Without root or loop devices, or with BALLAST_KEEP, the command uses the usual directory.
set -euo pipefail
if [ "$(id -u)" -ne 0 ] || [ -n "${BALLAST_KEEP:-}" ]; then
	exec "$@"
fi
for dir in "$PWD" "$(go env GOROOT)" "$(go env GOCACHE)" "$(go env GOMODCACHE)"; do
	if [[ $dir/ = /var/tmp/* ]]; then # the disk would hide it
		exec "$@"
	fi
done
image=$(mktemp)
trap 'rm -f "$image"' EXIT
truncate -s 16G "$image"
mkfs.ext4 -q "$image"
trap - EXIT # the next program removes it, and gets the signals
# shellcheck disable=SC2016
exec unshare --mount bash -c '
	if mount -o loop,barrier=0,noatime,discard,noinit_itable "$0" /var/tmp; then
		chmod 1777 /var/tmp
		export TMPDIR=/var/tmp
	fi
	rm -f "$0"
	exec "$@"' "$image" "$@"
