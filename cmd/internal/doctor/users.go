package doctor

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/ballast-dev/ballast/cmd/internal/contract/wire"
	"github.com/ballast-dev/ballast/cmd/internal/host/containerdversion"
	"github.com/ballast-dev/ballast/cmd/internal/host/ctrd"
	"github.com/opencontainers/runtime-spec/specs-go/features"
)

// remapIDs is the capability of a snapshotter that maps users, and costs the consequence if
// containerd finds no snapshotter with it.
const (
	remapIDs = "remap-ids"
	costs    = "containerd copies the root file system of each pod with hostUsers: false"
)

// users checks what pods with hostUsers: false need. Other pods do not need it, so no finding is a
// Fail.
func (d *Doctor) users(ctx context.Context, h *wire.Health) {
	const check = "user namespaces"
	before := len(d.Findings)
	if err := d.ProbeUsers(d.probeDir(h)); err != nil && os.Geteuid() != 0 {
		d.Warn(check, "run as root", "cannot test mounts: %v", err)
	} else if err != nil {
		d.Warn(check, "Linux 6.3 or later, and ext4, xfs or btrfs at the root", "mounts cannot be id-mapped here, so pods with hostUsers: false do not start: %v", err)
	}
	if h != nil {
		if v, err := containerdversion.Parse(h.ContainerdVersion); err == nil && !v.MapsUsers() {
			d.Warn(check, "containerd 2.0 or later", "containerd %s cannot id-map mounts: "+costs, h.ContainerdVersion)
			return
		}
	}
	ours, runtime := d.capability(), d.runtime(ctx)
	if h != nil && !mapsVolumes(h.ContainerdVersion) {
		d.Warn(check, "containerd 2.1.7, 2.2.2, or 2.3 and later", "containerd %s does not id-map image volumes: in pods with hostUsers: false their files belong to nobody (65534)", h.ContainerdVersion)
	}
	if h != nil && h.Lazy.Users != "" {
		fix := "Linux 6.12 and containerd 2.3, or later"
		if !d.Config.Lazy.IDMap {
			fix = "lazy.idmap = true, then drain the node and restart it"
		}
		d.Warn(check, fix, "pods with hostUsers: false start when their model is complete, not before: %s", h.Lazy.Users)
	}
	if len(d.Findings) == before && ours {
		d.OK(check, "pods with hostUsers: false own their files%s", runtime)
	}
}

// capability checks whether containerd has the capability of the snapshotter. It reports whether
// containerd has the snapshotter.
func (d *Doctor) capability() (ours bool) {
	const check = "user namespaces"
	c := d.Node.Containerd
	if c == nil {
		return false
	}
	for _, name := range d.Node.ProxiesAt(c, "snapshot", d.Config.Address) {
		ours = true
		if p := c.Proxies[name]; !slices.Contains(p.Capabilities, remapIDs) {
			d.Warn(check, fmt.Sprintf("[proxy_plugins.%s] capabilities = [\"%s\"], then %s", name, strings.Join(append([]string{remapIDs}, p.Capabilities...), `", "`), d.restart()), "%s does not have the capability %q: "+costs, name, remapIDs)
			continue
		}
		if d.Node.State == nil {
			continue
		}
		if l := d.Node.State.Plugin("io.containerd.snapshotter.v1", name); l != nil && !slices.Contains(l.Capabilities, remapIDs) {
			d.Warn(check, d.restart(), "containerd was started before %s got the capability %q: "+costs, name, remapIDs)
		}
	}
	return ours
}

// runtime checks whether containerd's default runtime can map the users of mounts, and returns
// advice for the case that it can.
func (d *Doctor) runtime(ctx context.Context) string {
	ctx, cancel := context.WithTimeout(ctx, ctrd.AskTimeout)
	defer cancel()
	c, err := d.Node.Dial()
	if err != nil {
		return ""
	}
	defer c.Close()
	f, err := c.Features(ctx)
	switch {
	case err != nil || f == nil: // containerd before 2.0, or it does not answer; the kubelet also asks
		return ""
	case mapsUsers(f):
		return "; the container runtime supports id-mapped mounts"
	}
	d.Warn("user namespaces", "runc 1.2 or later, or crun 1.9", "the container runtime does not support id-mapped mounts, so the kubelet refuses pods with hostUsers: false")
	return ""
}

// mapsVolumes reports whether a version of containerd maps the users of image volumes, if it has
// them.
// https://github.com/containerd/containerd/blob/v2.2.2/internal/cri/server/container_image_mount.go
func mapsVolumes(version string) bool {
	var major, minor, patch int
	if n, _ := fmt.Sscanf(strings.TrimPrefix(version, "v"), "%d.%d.%d", &major, &minor, &patch); n != 3 || major != 2 {
		return true // unknown, or without image volumes
	}
	return minor != 1 && minor != 2 || minor == 1 && patch >= 7 || minor == 2 && patch >= 2
}

// mapsUsers reports whether a runtime can map the users of mounts.
func mapsUsers(f *features.Features) bool {
	if f.Linux == nil || f.Linux.MountExtensions == nil || f.Linux.MountExtensions.IDMap == nil {
		return false
	}
	enabled := f.Linux.MountExtensions.IDMap.Enabled
	return enabled != nil && *enabled
}
