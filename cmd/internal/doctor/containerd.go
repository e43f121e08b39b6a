package doctor

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/ballast-dev/ballast/cmd/internal/host/containerdversion"
	"github.com/ballast-dev/ballast/cmd/internal/installer/node"
	"golang.org/x/sys/unix"
)

// containerd checks the configuration of containerd and the plugins it has loaded.
func (d *Doctor) containerd(ctx context.Context) {
	d.version()
	d.support()
	c := d.Node.Containerd
	if c == nil {
		d.Fail("containerd config", "containerd config dump", "%v", d.NodeError)
		return
	}
	k := d.checker()
	snapshotter, differ := k.Check(c)
	d.Findings = append(d.Findings, k.Findings...)
	d.loaded(ctx, snapshotter, differ)
}

// checker returns a checker of configurations of containerd.
func (d *Doctor) checker() *node.Checker {
	return &node.Checker{Host: d.Node.Host, Config: d.Config, Unit: d.Node.Unit}
}

// version reports what this version of containerd lacks.
func (d *Doctor) version() {
	const check = "containerd version"
	v, oldest, newest := d.Node.Version, containerdversion.Oldest, containerdversion.Newest
	switch {
	case d.Node.Unknown != nil:
		d.Warn(check, "ballast doctor --containerd-version VERSION", "the version of containerd is unknown, so the other checks assume %s: %v", newest, d.Node.Unknown)
	case v.Before(oldest):
		d.Fail(check, "install containerd "+newest.String(), "containerd %s is too old: ballast works with %s to %s", v, oldest, newest)
	case newest.Before(v):
		d.Warn(check, "", "containerd %s is newer than the newest tested version, %s", v, newest)
	case !v.ImageVolumes():
		d.Warn(check, "containerd 2.1 or later", "containerd %s has no image volumes: a model can only be the root file system of a container", v)
	case !v.SubPaths():
		d.OK(check, "%s; pods see the whole model in an image volume with subPath, which needs 2.2", v)
	default:
		d.OK(check, "%s", v)
	}
	if !v.ReadsAnnotation() {
		d.Warn(check, "a ModelSet for the models of pods, if setup ran with --runtime-handler",
			"containerd %s does not read the annotation %s: pods of a handler can use only models that were pulled for it before", v, containerdversion.HandlerAnnotation)
	}
}

// support warns of a containerd that gets no fixes.
func (d *Doctor) support() {
	if d.Node.State == nil {
		return
	}
	now := time.Now()
	if lacks := containerdversion.Lacks(d.Node.State.Version, now); len(lacks) > 0 {
		d.Warn("containerd support", containerdversion.Advice(now), "containerd %s: %s; whoever distributes it may have fixes of their own", d.Node.State.Version, strings.Join(lacks, ", and "))
	}
}

// loaded checks which plugins containerd has loaded, and what it says of itself.
func (d *Doctor) loaded(ctx context.Context, snapshotter, differ string) {
	const check = "containerd"
	s, address := d.Node.State, d.Config.Containerd.Address
	switch {
	case s == nil && errors.Is(unix.Access(address, unix.W_OK), unix.EACCES):
		d.Warn(check, "run as root", "cannot connect to %s: permission denied", address)
		return
	case s == nil:
		d.Warn(check, "systemctl start "+d.Node.Unit+"; or containerd.address in ballast's configuration", "%s does not answer: %v", address, d.Node.Silent)
		return
	}
	good := true
	for _, want := range []struct{ kind, id string }{
		{"io.containerd.snapshotter.v1", snapshotter}, {"io.containerd.differ.v1", differ},
		{"io.containerd.service.v1", "diff-service"}, {"io.containerd.transfer.v1", "local"},
	} {
		if want.id == "" {
			good = false // already reported from the configuration
			continue
		}
		switch p := s.Plugin(want.kind, want.id); {
		case p == nil && (want.id == snapshotter || want.id == differ):
			good = false
			d.Fail(check, d.restart(), "the plugin %s of %s is not loaded: the configuration was changed after containerd was started", want.id, d.Node.Containerd.File)
		case p == nil: // this version has none
		case p.InitErr != nil:
			good = false
			d.Fail(check, "journalctl -u "+d.Node.Unit, "the plugin %s did not start: %s", want.id, p.InitErr.Message)
		case p.Exports["address"] != "" && !samePath(p.Exports["address"], d.Config.Address):
			good = false
			d.Fail(check, d.restart(), "the plugin %s uses the socket %s", want.id, p.Exports["address"])
		}
	}
	for _, p := range []struct{ kind, id string }{{"io.containerd.cri.v1", "images"}, {"io.containerd.cri.v1", "runtime"}, {"io.containerd.grpc.v1", "cri"}} {
		if p := s.Plugin(p.kind, p.id); p != nil && p.InitErr != nil {
			good = false
			d.Fail(check, "journalctl -u "+d.Node.Unit, "CRI did not start, so the kubelet cannot start pods: %s.%s: %s", p.Type, p.ID, p.InitErr.Message)
			break
		}
	}
	if p := s.Plugin("io.containerd.snapshotter.v1", snapshotter); p != nil && slices.Contains(p.Capabilities, "rebase") && !s.Parsed().StagesLayers() {
		good = false
		d.Fail(check, "ballast config containerd", "the configuration of containerd %s gives %s the capability \"rebase\", which needs containerd 2.4: layers that are unpacked in parallel would be wrong", s.Parsed(), snapshotter)
	}
	if good {
		d.OK(check, "containerd at %s has loaded the plugins", address)
		d.orphans(ctx, snapshotter)
	}
}
