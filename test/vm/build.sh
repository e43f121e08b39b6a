#!/usr/bin/env bash
# Makes what the tests in this directory boot, below .cache/vm: QEMU, kernels with an initial RAM disk, and root file systems.
# With --all also those for Debian 13, SELinux, a cluster and arm64. Everything is made from Debian packages of the mirror that this
# machine's apt uses. What was made from the same inputs is not made again; to have newer packages, remove .cache/vm.
#
# QEMU is that of Debian 13, because Linux 6.12 does not start with that of Debian 12. It is unpacked, not installed, and
# runs with the dynamic loader and libraries beside it.
set -euo pipefail
# mmdebstrap mounts /proc, /sys and /dev of this machine in what it makes. Here these mounts end with the script, however it ends.
[ -n "${UNSHARED:-}" ] || UNSHARED=1 exec unshare --mount "$0" "$@"
cd "$(dirname "$0")"
. ../build.sh
mkdir -p ../../.cache/vm
out=$(realpath ../../.cache/vm)

../install.sh mmdebstrap kmod e2fsprogs busybox-static openssh-client

# mirror SUFFIX prints the address of the repository whose release has that suffix, from the configuration of apt.
mirror() {
	apt-get indextargets --format '$(REPO_URI) $(RELEASE)' 'Created-By: Packages' |
		awk -v want="$1" '{ n = $2; sub(/^(bookworm|trixie)/, "", n) } n == want && $2 != n { print $1; exit }'
}
archive=$(mirror "")
security=$(mirror -security)
if [ -z "$archive" ] || [ -z "$security" ]; then
	echo "build.sh: apt of this machine has no sources for Debian 12 or 13 and its security updates" >&2
	exit 1
fi
apt-config dump | grep -E '^Acquire::(Check-|http::|https::)' >"$out/apt.conf" || true

sources() { # SUITE…
	local suite uri
	for suite in "$@"; do
		case $suite in *-security) uri=$security ;; *) uri=$archive ;; esac
		echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $uri $suite main"
	done
}

# bootstrap DIR SUITE ARCH VARIANT PACKAGES MMDEBSTRAP-FLAG… makes a root directory.
bootstrap() {
	local dir=$1 suite=$2 arch=$3 variant=$4 packages=$5
	shift 5
	rm -rf "$dir"
	mkdir -p "$(dirname "$dir")"
	sources "$suite" "$suite-security" |
		mmdebstrap --quiet --architectures="$arch" --variant="$variant" --include="$packages" --aptopt="$out/apt.conf" "$@" "$suite" "$dir" -
}

qemu() {
	echo "build.sh: unpacking QEMU" >&2
	bootstrap "$out/qemu" trixie amd64 extract qemu-system-x86,qemu-utils
}

qemu_arm() {
	echo "build.sh: unpacking QEMU for arm64" >&2
	bootstrap "$out/qemu-arm" trixie amd64 extract qemu-system-arm
}

# packages SUITE ARCH makes apt, in this shell, use that suite alone.
packages() {
	local dir=$out/apt/$1-$2
	mkdir -p "$dir/lists/partial" "$dir/archives/partial"
	case $1 in *-backports) sources "$1" ;; *) sources "$1" "$1-security" ;; esac >"$dir/sources.list"
	cat >"$dir/apt.conf" - "$out/apt.conf" <<-END
		Dir::Etc::sourcelist "$dir/sources.list";
		Dir::Etc::sourceparts "/dev/null";
		Dir::Etc::preferencesparts "/dev/null";
		Dir::State::lists "$dir/lists";
		Dir::State::status "/dev/null";
		Dir::Cache "$dir";
		APT::Architecture "$2";
		APT::Architectures { "$2"; };
		APT::Sandbox::User "root";
	END
	export APT_CONFIG=$dir/apt.conf
	apt-get update -qq
}

# kernel NAME SUITE ARCH unpacks the kernel for virtual machines into NAME, with an initial RAM disk that mounts /dev/vda.
kernel() (
	echo "build.sh: unpacking the kernel $1" >&2
	dir=$out/kernel/$1 suite=$2 arch=$3
	rm -rf "$dir"
	mkdir -p "$dir/ram/bin"
	cd "$dir"
	packages "$suite" "$arch"
	image=$(apt-cache depends "linux-image-cloud-$arch" | awk '$1 == "Depends:" && $2 ~ /^linux-image/ { print $2 }')
	apt-get download -qq "$image"
	dpkg-deb -x linux-image-*.deb root
	[ ! -d root/lib ] || { mkdir -p root/usr && mv root/lib root/usr/; } # as the merged /usr of the nodes
	version=${image#linux-image-}
	ln -s usr/lib root/lib
	depmod -b root "$version"
	mv "root/boot/vmlinuz-$version" vmlinuz
	mv root/usr/lib/modules .
	busybox=/usr/bin/busybox
	if [ "$arch" != amd64 ]; then
		apt-get download -qq busybox-static
		dpkg-deb -x busybox-static_*.deb busybox
		busybox=busybox/usr/bin/busybox
		[ -e $busybox ] || busybox=busybox/bin/busybox
	fi
	cp "$busybox" ram/bin/busybox
	{
		echo '#!/bin/busybox sh'
		ln -s "$dir/modules" root/usr/lib/modules
		for m in virtio_pci virtio_blk ext4; do modprobe -d root -S "$version" --show-depends "$m"; done |
			awk '$1 == "insmod" { print $2 }' | awk '!seen[$0]++' | while read -r file; do
			cp "$file" ram/
			echo "/bin/busybox insmod /${file##*/}"
		done
		cat <<-'END'
			/bin/busybox mkdir -p /dev /proc /root
			/bin/busybox mount -t devtmpfs dev /dev
			/bin/busybox mount -t proc proc /proc
			until [ -b /dev/vda ]; do /bin/busybox sleep 0.1; done
			/bin/busybox mount -t ext4 -o rw /dev/vda /root || exec /bin/busybox sh
			/bin/busybox mount -o move /dev /root/dev
			/bin/busybox umount /proc
			exec /bin/busybox switch_root /root /sbin/init
		END
	} >ram/init
	chmod 755 ram/init
	(cd ram && find . | busybox cpio -o -H newc 2>/dev/null | gzip -1) >initrd
	rm -rf ram root busybox ./*.deb
)

# The packages of a node: systemd and what a cloud image has, without a container runtime.
node=systemd,systemd-sysv,dbus,udev,kmod,ca-certificates,openssh-server,iproute2,iptables,procps,e2fsprogs,apparmor,busybox-static,sudo,containernetworking-plugins

# disk NAME SUITE KERNEL,… PACKAGES makes the disk of a node.
disk() {
	local name=$1 suite=$2 kernels=$3 root=$out/root/$1 k
	echo "build.sh: making the disk $name" >&2
	bootstrap "$root" "$suite" amd64 minbase "$4"
	for k in ${kernels//,/ }; do cp -a "$out/kernel/$k/modules" "$root/usr/lib/"; done
	finish "$root" "$name"
}

# disk_arm NAME PACKAGES makes the disk of a node for arm64. Nothing can be run in it here, so /etc is that of debian13, where
# the same packages are configured.
disk_arm() {
	local root=$out/root/$1
	echo "build.sh: making the disk $1" >&2
	bootstrap "$root" trixie arm64 extract "$2" --include="?essential"
	mkdir -p "$root"/{home,mnt,opt,srv} # as base-files does when it is configured
	rm -rf "$root/etc"
	debugfs -R "rdump /etc $root" "$out/debian13.img" 2>/dev/null
	rm -f "$root/etc/ld.so.cache"
	cp -a "$out/kernel/arm64/modules" "$root/usr/lib/"
	finish "$root" "$1"
}

finish() { # ROOT NAME
	[ -e "$out/key" ] || ssh-keygen -q -t ed25519 -N '' -C '' -f "$out/key"
	install -D -m 600 "$out/key.pub" "$1/root/.ssh/authorized_keys"
	cp -a files/. "$1/"
	echo "$2" >"$1/etc/hostname"
	: >"$1/etc/machine-id"
	ln -sf /usr/lib/systemd/system/systemd-networkd.service "$1/etc/systemd/system/multi-user.target.wants/"
	rm -f "$1/etc/resolv.conf" "$1"/etc/systemd/system/timers.target.wants/* "$1"/var/cache/apt/*.bin
	if [ -e "$1/usr/sbin/setfiles" ]; then
		printf 'SELINUX=enforcing\nSELINUXTYPE=default\n' >"$1/etc/selinux/config"
		mount -t proc proc "$1/proc" # setfiles sets labels by /proc/self/fd
		chroot "$1" setfiles -F -m /etc/selinux/default/contexts/files/file_contexts /
		umount "$1/proc"
	fi
	rm -f "$out/$2.img"
	truncate -s 6G "$out/$2.img"
	mkfs.ext4 -q -F -m 0 -d "$1" "$out/$2.img"
	rm -rf "$1"
}

# once NAME FUNCTION ARGUMENT… calls a function of this file, unless NAME was made by the same code from the same things.
once() {
	local inputs
	inputs=$(declare -f "$2" bootstrap sources packages && echo "$@")
	case $2 in disk*) inputs+=$(declare -f finish kernel && cat files/etc/hosts files/etc/systemd/network/*) ;; esac
	stamped "$out/$1.stamp" "$(sha256sum <<<"$inputs")" "${@:2}"
}

# What users install: the unit of containerd's release, and two releases of ballast.
cp --no-preserve=mode "$(cd .. && go list -m -f '{{.Dir}}' github.com/containerd/containerd/v2)/containerd.service" "$out/"
for version in v0.1.0 v0.2.0; do
	rm -rf "$out/$version"
	go run -C ../../contrib/release . -o "$out/$version" -version $version -only deb,rpm,tar -arch amd64${1:+,arm64}
done

once qemu qemu
once kernel-6.1 kernel 6.1 bookworm amd64
once kernel-6.12 kernel 6.12 bookworm-backports amd64
once debian12 disk debian12 bookworm 6.1,6.12 "$node,rpm"
[ "${1:-}" = --all ] || exit 0

# arm builds the newest containerd; runc is Debian's.
arm() {
	echo "build.sh: building for arm64" >&2
	local module version sum
	read -r module version sum <<<"$(tail -n 1 ../containerd.txt)"
	export CGO_ENABLED=0 GOARCH=arm64
	go build -C "$(module_dir "$module" "v$version" "$sum")" -trimpath -ldflags "-s -w -X $module/version.Version=$version" -o "$out/arm64/" ./cmd/containerd ./cmd/ctr ./cmd/containerd-shim-runc-v2
}

../kubernetes/build.sh --all
once qemu-arm qemu_arm
once kernel-6.12-debian13 kernel 6.12-debian13 trixie amd64
once debian13 disk debian13 trixie 6.12-debian13 "$node"
once selinux disk selinux bookworm 6.1,6.12 "$node,selinux-policy-default,selinux-utils,policycoreutils"
once disk-cluster disk cluster trixie 6.12-debian13 "$node,skopeo"
go run -C ../../contrib/release . -o "$out" -only image -version v0.1.0 -arch amd64
go run -C ../../contrib/release . -o "$out/next" -only image -version v0.2.0 -arch amd64
once kernel-arm64 kernel arm64 trixie arm64
once arm64 disk_arm arm64 "${node/apparmor,/},runc" # compiling its profiles would take minutes
once arm arm
debugfs -R "dump /usr/bin/busybox $out/arm64/busybox" "$out/arm64.img" 2>/dev/null
