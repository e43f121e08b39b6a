package doctor

import (
	"errors"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/ballast-dev/ballast/cmd/internal/contract/config"
	"github.com/ballast-dev/ballast/cmd/internal/contract/wire"
	"golang.org/x/sys/unix"
)

// fuseDevice is the device of FUSE file systems.
const fuseDevice = "/dev/fuse"

// fixFuse is the fix if FUSE is missing.
const fixFuse = "modprobe fuse; systemctl restart ballastd"

// lazy checks what models need to be read before they are complete. Without it they are shown when
// they are complete, so hardly any finding is a Fail.
func (d *Doctor) lazy(h *wire.Health) {
	const check = "lazy"
	if d.Config.Snapshot.Show == config.ShowLinks || h != nil && h.Show == config.ShowLinks || h == nil && d.Probe(d.probeDir(h)) != nil {
		d.OK(check, "models are mounted when they are complete, because they are shown as hard links")
		return
	}
	if h == nil {
		d.fuse()
		return
	}
	l := &h.Lazy
	switch {
	case l.Dir == "" && l.Why == "": // an older daemon, which does not report it
		return
	case l.Dir == "":
		d.Warn(check, fixFuse, "models cannot be read before they are complete: %s", l.Why)
		if os.Geteuid() == 0 {
			d.fuse()
		}
		return
	case !l.Mounted:
		d.Fail(check, "systemctl restart ballastd", "%s was unmounted: incomplete models cannot be read until ballastd mounts it again; see its log", l.Dir)
		return
	}
	d.OK(check, "%s is mounted; lazy.mode = %q", l.Dir, l.Mode)
	d.keeper(l)
	d.abilities(l)
	if l.Paused {
		d.Warn(check, "ballast resume", "background downloads are paused: mounted models are not completed")
	}
}

// keeper checks what keeps the lazy mount while the daemon is down.
func (d *Doctor) keeper(l *wire.LazyHealth) {
	const check = "lazy"
	switch {
	case l.Kept:
		d.OK(check, "the %s keeps the mount while ballastd is down", strings.TrimPrefix(l.Keeper, "the "))
	case d.Config.Lazy.Holder == config.HolderNone:
		d.Warn(check, "lazy.holder = \"auto\"", "lazy.holder = \"none\": reads of incomplete models fail when ballastd stops")
	default:
		d.Warn(check, "systemctl restart ballastd; see its log", "nothing keeps the mount (%s does not answer): reads of incomplete models fail when ballastd stops", l.Keeper)
	}
}

// abilities checks the features of the kernel.
func (d *Doctor) abilities(l *wire.LazyHealth) {
	const check = "lazy"
	var lacks []string
	if !l.Resend {
		lacks = append(lacks, "reads that are under way when ballastd is killed hang until the reader is killed")
	}
	if !l.Passthrough && d.Config.Lazy.Passthrough {
		lacks = append(lacks, "files that were opened before they were complete are read through ballastd until they are opened again")
	}
	if len(lacks) > 0 {
		d.Warn(check, "Linux 6.9 or later", "this kernel: %s", strings.Join(lacks, "; "))
	}
}

// fuse checks whether FUSE is available.
func (d *Doctor) fuse() {
	const check = "lazy"
	fd, err := unix.Open(fuseDevice, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err == nil {
		_ = unix.Close(fd) // the device works
	}
	known, kerr := os.ReadFile("/proc/filesystems")
	switch {
	case errors.Is(err, fs.ErrPermission):
		d.Warn(check, "run as root", "cannot test %s: %v", fuseDevice, err)
	case err != nil:
		d.Warn(check, fixFuse, "%s: %v; models are mounted when they are complete", fuseDevice, err)
	case kerr == nil && !slices.Contains(strings.Fields(string(known)), "fuse"):
		d.Warn(check, fixFuse, "the kernel has no FUSE; models are mounted when they are complete")
	default:
		d.OK(check, "%s exists; models can be read before they are complete", fuseDevice)
	}
}
