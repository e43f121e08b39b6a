package doctor

import (
	"errors"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/ballast-dev/ballast/cmd/internal/admin"
	"github.com/ballast-dev/ballast/cmd/internal/config"
	"golang.org/x/sys/unix"
)

// fuseDevice is what FUSE file systems are served by.
const fuseDevice = "/dev/fuse"

// mendFuse is what to do if there is no FUSE.
const mendFuse = "modprobe fuse; systemctl restart ballastd"

// lazy looks at what models need that are read before they are complete. Without it they are shown
// when they are complete, so hardly anything here is a Fail.
func (d *Doctor) lazy(h *admin.Health) {
	const check = "lazy"
	if d.Config.Snapshot.Show == config.ShowLinks || h != nil && h.Show == config.ShowLinks {
		d.ok(check, "models are shown when they are complete, as hard links have to be")
		return
	}
	if h == nil {
		d.fuse()
		return
	}
	l := &h.Lazy
	switch {
	case l.Dir == "" && l.Why == "": // an older daemon, which does not say
		return
	case l.Dir == "":
		d.warn(check, mendFuse, "models can not be read before they are complete: %s", l.Why)
		if os.Geteuid() == 0 {
			d.fuse()
		}
		return
	case !l.Mounted:
		d.fail(check, "systemctl restart ballastd", "%s was unmounted by somebody: models that are not complete can not be read; ballastd mounts it anew, see its log", l.Dir)
		return
	}
	d.ok(check, "%s is mounted; lazy.mode = %q", l.Dir, l.Mode)
	d.keeper(l)
	d.abilities(l)
	if l.Paused {
		d.warn(check, "ballast hydrate --resume", "what nobody waits for is paused: models that are shown are not completed")
	}
	if l.Unverified {
		d.warn(check, "lazy.verify = \"chunk\"", "lazy.verify = \"after\": bytes of models without digests of chunks can be read before they were verified")
	}
}

// keeper looks at who keeps the lazy mount while the daemon is down.
func (d *Doctor) keeper(l *admin.LazyHealth) {
	const check = "lazy"
	switch {
	case l.Kept:
		d.ok(check, "the mount outlives ballastd: the %s keeps it", strings.TrimPrefix(l.Keeper, "the "))
	case d.Config.Lazy.Holder == config.HolderNone:
		d.warn(check, "lazy.holder = \"auto\"", "lazy.holder = \"none\": when ballastd ends, who reads a model that is not complete gets errors")
	default:
		d.warn(check, "systemctl restart ballastd; its log says why", "nobody keeps the mount (%s does not answer): when ballastd ends, who reads a model that is not complete gets errors", l.Keeper)
	}
}

// abilities looks at what the kernel can do.
func (d *Doctor) abilities(l *admin.LazyHealth) {
	const check = "lazy"
	var lacks []string
	if !l.Resend {
		lacks = append(lacks, "reads that are under way when ballastd dies hang until their reader is killed")
	}
	if !l.Passthrough && d.Config.Lazy.Passthrough {
		lacks = append(lacks, "files that were opened when they were not complete are read by way of ballastd until they are opened again, even if they are complete")
	}
	if len(lacks) > 0 {
		d.warn(check, "Linux 6.9 or later", "this kernel: %s", strings.Join(lacks, "; "))
	}
}

// fuse tries whether there is FUSE.
func (d *Doctor) fuse() {
	const check = "lazy"
	fd, err := unix.Open(fuseDevice, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err == nil {
		_ = unix.Close(fd) // it is there
	}
	known, kerr := os.ReadFile("/proc/filesystems")
	switch {
	case errors.Is(err, fs.ErrPermission):
		d.warn(check, "run as root", "%s can not be tried: %v", fuseDevice, err)
	case err != nil:
		d.warn(check, mendFuse, "%s: %v; models are shown when they are complete", fuseDevice, err)
	case kerr == nil && !slices.Contains(strings.Fields(string(known)), "fuse"):
		d.warn(check, mendFuse, "the kernel has no FUSE; models are shown when they are complete")
	default:
		d.ok(check, "%s is there; models can be read before they are complete", fuseDevice)
	}
}
