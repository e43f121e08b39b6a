#!/usr/bin/env bash
# Builds mkfs.erofs with --tar, which Debian 12 lacks, from Debian's source of a later release, as .cache/tools/erofs/mkfs.erofs.
set -euo pipefail
cd "$(dirname "$0")/.."
version=1.8.6
sum=5b221dc3fd6d151425b30534ede46fb7a90dc233a8659cba0372796b0a066547
out=$PWD/.cache/tools/erofs
if [ -x "$out/mkfs.erofs" ]; then
	exit 0
fi
test/install.sh autoconf automake libtool uuid-dev liblz4-dev zlib1g-dev curl
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
curl -fsSL -o "$work/source" "http://deb.debian.org/debian/pool/main/e/erofs-utils/erofs-utils_$version.orig.tar.gz"
echo "$sum  $work/source" | sha256sum --quiet --check
tar -x -C "$work" -f "$work/source"
echo "erofs.sh: building mkfs.erofs $version" >&2
(
	cd "$work/erofs-utils-$version"
	./autogen.sh
	./configure --disable-fuse --without-selinux --disable-lzma
	make -j"$(nproc)"
) >"$work/log" 2>&1 || {
	tail -20 "$work/log" >&2
	exit 1
}
mkdir -p "$out"
mv "$work/erofs-utils-$version/mkfs/mkfs.erofs" "$out/"
