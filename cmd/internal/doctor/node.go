package doctor

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/ballast-dev/ballast/cmd/internal/contract/config"
	"github.com/ballast-dev/ballast/cmd/internal/contract/wire"
	"github.com/containerd/errdefs"
	"github.com/dustin/go-humanize"
	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// daemon checks whether the daemon runs, and returns nil if it does not. It reports whether this user may
// ask it.
func (d *Doctor) daemon(ctx context.Context) (h *wire.Health, allowed bool) {
	const check = "daemon"
	health, err := d.Client.Health(ctx)
	d.silent = errors.Is(err, wire.ErrSilent)
	switch {
	case errdefs.IsPermissionDenied(err):
		d.Fail(check, "run as root", "%s", wire.Text(err))
		return nil, false
	case d.silent:
		d.Fail(check, "systemctl restart ballastd; if that hangs too, its disk does: see dmesg", "%s", wire.Text(err))
		return nil, true
	case err != nil && d.Fresh:
		d.Fail(check, "for pods that ask for it: ballast setup --runtime-handler ballast --registry HOST; "+
			"for ctr and nerdctl: ballast setup --snapshotter-only --registry HOST; --dry-run shows what it would do", "ballastd is not running, and ballast was never set up on this node")
		return nil, false
	case err != nil:
		d.Fail(check, "systemctl enable --now ballastd", "%s", wire.Text(err))
		return nil, true
	}
	h = &health
	if h.Version.Version != d.Version {
		d.Warn(check, "systemctl restart ballastd", "ballastd is %s, this command is %s", h.Version.Version, d.Version)
	} else {
		d.OK(check, "ballastd %s is running since %s", h.Version.Version, h.Started.Format("2006-01-02 15:04:05"))
	}
	if h.Address != d.Config.Address {
		d.Fail(check, "systemctl restart ballastd", "ballastd serves containerd at %s, but its configuration has address = %q", h.Address, d.Config.Address)
	}
	if h.Facade != d.Config.Facade.Listen {
		d.Fail(check, "systemctl restart ballastd", "the facade listens at %q, but the configuration has facade.listen = %q", h.Facade, d.Config.Facade.Listen)
	}
	return h, true
}

// rootParts are the directories below the root that must be on one file system.
var rootParts = []string{"objects", "partial", "snapshots"}

// root compares the configured directories with those of the daemon.
func (d *Doctor) root(h *wire.Health) {
	const check = "root"
	dirs := map[string]wire.Dir{"root": {Path: d.Config.Root}}
	if h != nil {
		dirs = h.Dirs
	} else {
		for _, p := range rootParts {
			dirs[p] = wire.Dir{Path: filepath.Join(d.Config.Root, p)}
		}
	}
	if got := dirs["root"].Path; !samePath(got, d.Config.Root) {
		d.Fail(check, "systemctl restart ballastd", "ballastd uses %s, but its configuration has root = %q", got, d.Config.Root)
	}
	// Checked again: a file system mounted over a directory after the daemon had opened it is also
	// a failure.
	now := map[string]uint64{}
	for name, dir := range dirs {
		dev, err := device(dir.Path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			d.Fail(check, "", "%v", err)
			return
		}
		now[name] = dev
		if dir.Device != 0 && dir.Device != dev {
			d.Fail(check, "unmount it, or systemctl restart ballastd",
				"another file system was mounted over %s after ballastd was started", dir.Path)
			return
		}
	}
	base, ok := now["root"]
	if !ok {
		d.Warn(check, "systemctl start ballastd", "%s does not exist yet", d.Config.Root)
		return
	}
	for _, p := range rootParts {
		if dev, ok := now[p]; ok && dev != base {
			d.Fail(check, "put all of "+d.Config.Root+" on one file system: mount at the root, not below it",
				"%s is on another file system than the root, so files cannot be renamed between them", dirs[p].Path)
			return
		}
	}
	inside, err := mountsIn(dirs["root"].Path)
	if err != nil {
		d.Fail(check, "", "%v", err)
		return
	}
	if len(inside) > 0 {
		d.Fail(check, "umount "+strings.Join(inside, " "), "a file system is mounted below %s, so files cannot be renamed to it: %s", dirs["root"].Path, strings.Join(inside, ", "))
		return
	}
	d.OK(check, "%s is on one file system", dirs["root"].Path)
}

// mountsIn returns the mount points in rootParts of a root. Also a mount of the same file system is another one for
// renames.
func mountsIn(root string) (points []string, err error) {
	if root, err = filepath.EvalSymlinks(root); err != nil {
		return nil, err
	}
	all, err := mountinfo.GetMounts(mountinfo.PrefixFilter(root))
	for _, m := range all {
		below, ok := strings.CutPrefix(m.Mountpoint, root+"/")
		if top, _, deeper := strings.Cut(below, "/"); ok && deeper && slices.Contains(rootParts, top) {
			points = append(points, m.Mountpoint)
		}
	}
	return points, err
}

// rootDir returns the root of the daemon.
func (d *Doctor) rootDir(h *wire.Health) string {
	if h != nil {
		return h.Dirs["root"].Path
	}
	return d.Config.Root
}

// probeDir returns a directory on the file system of the root, if that exists.
func (d *Doctor) probeDir(h *wire.Health) string {
	dir := d.rootDir(h)
	if _, err := os.Stat(dir); err != nil {
		return os.TempDir()
	}
	return dir
}

// kernel checks the features of the kernel.
func (d *Doctor) kernel(h *wire.Health) {
	const check = "kernel"
	show := d.Config.Snapshot.Show
	if show == config.ShowLinks {
		d.OK(check, "snapshot.show = \"links\": models are shown as hard links, which every kernel supports")
		return
	}
	err := d.Probe(d.probeDir(h))
	switch {
	case err == nil && h != nil && h.Show == config.ShowLinks:
		d.Warn(check, "systemctl restart ballastd", "the kernel supports data-only lower layers, but ballastd shows models as hard links: %s", h.ShowWhy)
	case err == nil:
		d.OK(check, "overlayfs supports data-only lower layers; models are shown as stubs")
	case os.Geteuid() != 0:
		d.Warn(check, "run as root", "cannot test mounts: %v", err)
	case show == config.ShowStubs:
		d.Fail(check, "Linux 6.5 or later, or snapshot.show = \"auto\"", "overlayfs does not support data-only lower layers here, and snapshot.show = \"stubs\" needs them: %v", err)
	default:
		d.Warn(check, "Linux 6.5 or later", "overlayfs does not support data-only lower layers here; models are shown as hard links: %v", err)
	}
}

// space checks the free space.
func (d *Doctor) space(h *wire.Health) {
	const check = "space"
	var st unix.Statfs_t
	if err := unix.Statfs(d.rootDir(h), &st); err != nil {
		return // reported by root
	}
	free := int64(st.Bavail) * st.Bsize
	total := int64(st.Blocks) * st.Bsize
	const fix = "ballast gc; ballast df shows what takes the space"
	switch {
	case free <= int64(d.Config.Fetch.Reserve):
		d.Fail(check, fix, "%s free of %s, not more than fetch.reserve = %s: nothing is downloaded", bytes(free), bytes(total), bytes(int64(d.Config.Fetch.Reserve)))
	case total-free > d.Config.GC.High.Of(total):
		d.Warn(check, fix, "%s free of %s: usage is above gc.high = %v, so unused models are removed", bytes(free), bytes(total), d.Config.GC.High)
	default:
		d.OK(check, "%s free of %s", bytes(free), bytes(total))
	}
}

// bytes formats n for messages.
func bytes(n int64) string { return humanize.Bytes(uint64(max(n, 0))) }

// device returns the device of path.
func device(path string) (uint64, error) {
	info, err := os.Stat(path)
	if err != nil {
		return 0, err
	}
	return uint64(info.Sys().(*syscall.Stat_t).Dev), nil
}

// samePath reports whether two paths are the same after following existing symbolic links.
func samePath(a, b string) bool {
	if r, err := filepath.EvalSymlinks(a); err == nil {
		a = r
	}
	if r, err := filepath.EvalSymlinks(b); err == nil {
		b = r
	}
	return filepath.Clean(a) == filepath.Clean(b)
}
