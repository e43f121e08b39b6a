package setup

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/ballast-dev/ballast/cmd/internal/contract/wire"
	"github.com/ballast-dev/ballast/cmd/internal/host/ctrd"
	"github.com/ballast-dev/ballast/cmd/internal/installer/node"
	"github.com/ballast-dev/ballast/cmd/internal/installer/snippet"
	"github.com/ballast-dev/ballast/convert/mediatype"
	"github.com/ballast-dev/ballast/store/filetable"
	containersapi "github.com/containerd/containerd/api/services/containers/v1"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs"
	"github.com/moby/sys/mountinfo"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// running is the state of the daemons on a host.
type running struct {
	daemon bool // ballastd answers
	loaded bool // containerd has ballast's snapshotter

	docker *node.Docker // nil: it does not answer, and why says why
	why    error

	pinned map[string]bool // images of Kubernetes that the kubelet does not remove
	used   []string        // images used by Kubernetes containers
}

// ask requests the state of the daemons of a host. A daemon that does not answer counts as not
// running, besides Docker, see dockerHangs.
func (v *view) ask(ctx context.Context) {
	v.running = running{daemon: v.daemonAnswers(ctx), pinned: map[string]bool{}}
	v.running.docker, v.running.why = v.Docker(ctx)
	if v.State == nil {
		return
	}
	v.running.loaded = v.State.Plugin("io.containerd.snapshotter.v1", snippet.Snapshotter) != nil
	c, err := v.Dial()
	if err != nil {
		return
	}
	defer c.Close()
	ctx = namespaces.WithNamespace(ctx, ctrd.Kubernetes)
	if images, err := within(ctx, c.Images); err == nil {
		for _, im := range images {
			if im.Labels[ctrd.LabelPinned] == ctrd.ValuePinned {
				v.running.pinned[im.Name] = true
			}
		}
	}
	if containers, err := within(ctx, func(ctx context.Context) ([]*containersapi.Container, error) { return c.Containers(ctx) }); err == nil {
		for _, is := range containers {
			v.running.used = append(v.running.used, is.Image)
		}
	}
	v.running.used = sorted(v.running.used)
}

// daemonAnswers reports whether ballastd runs.
func (v *view) daemonAnswers(ctx context.Context) bool {
	socket, err := v.Follow(v.Config.AdminAddress)
	if err != nil {
		return false
	}
	c := wire.NewClient(socket)
	defer c.Close()
	_, err = within(ctx, c.Version)
	return err == nil
}

// within asks one question for at most ctrd.AskTimeout: a daemon that hangs does not take the time of another one.
func within[T any](ctx context.Context, ask func(ctx context.Context) (T, error)) (T, error) {
	ctx, cancel := context.WithTimeout(ctx, ctrd.AskTimeout)
	defer cancel()
	return ask(ctx)
}

// users returns the containers whose root file system is in ballast, as "namespace/id", and the mounts of
// its files. Snapshots that nothing mounts are no users: records of mounts stay in containerd when the
// mounts are gone. Without an answer of containerd they are the mounts alone.
func (v *view) users(ctx context.Context) ([]string, error) {
	found, err := v.mounted()
	if err != nil || v.State == nil {
		return found, err
	}
	c, err := v.Dial()
	if err != nil {
		return nil, err
	}
	defer c.Close()
	err = c.EachNamespace(ctx, func(ctx context.Context, ns string) error {
		containers, err := c.Containers(ctx)
		if err != nil {
			return err
		}
		for _, is := range containers {
			if is.Snapshotter == snippet.Snapshotter {
				found = append(found, ns+"/"+is.ID)
			}
		}
		err = eachDocker(ctx, c, func(id string) {
			found = append(found, fmt.Sprintf("%s/%s (docker rm; what Docker has lost: ctr -n %[1]s leases rm --sync %[2]s)", ns, id))
		})
		return errors.Join(err, nameHeld(ctx, c, ns, found))
	})
	if err != nil {
		return nil, fmt.Errorf("list the containers that use ballast: %w", err)
	}
	return sorted(found), nil
}

// hasSnapshots reports whether the daemon's root has snapshots, or cannot be read.
func (v *view) hasSnapshots() bool {
	names, err := v.List(filepath.Join(v.Config.Root, "snapshots"))
	return err != nil || len(names) > 0
}

// eachDocker calls f for the snapshots in the namespace of ctx of containers of Docker, also of those that are
// stopped, and of their image mounts: Docker holds each by a lease of the same name, and has no record of them in
// containerd.
func eachDocker(ctx context.Context, c *ctrd.Client, f func(key string)) error {
	every := func(string) bool { return true }
	return c.EachLease(ctx, snippet.Snapshotter, every, func(l leases.Lease, held []leases.Resource) error {
		if slices.ContainsFunc(held, func(r leases.Resource) bool { return r.ID == l.ID }) {
			f(l.ID)
		}
		return nil
	})
}

// dockerHas reports whether Docker runs, with ballast as its storage driver.
func (r *running) dockerHas() bool { return r.docker != nil && r.docker.Driver == snippet.Snapshotter }

// dockerHangs reports whether Docker is there and does not answer: what it has is then not known.
func (r *running) dockerHangs() bool {
	return r.docker == nil && !errors.Is(r.why, os.ErrNotExist) && !errors.Is(r.why, syscall.ECONNREFUSED)
}

// hung returns the error of a change of the storage driver of a Docker that hangs.
func (r *running) hung() error {
	return fmt.Errorf("%v, so it is not known which of its containers use ballast, and whether it gets its former storage driver: restart it, or stop it with its socket (systemctl stop docker.socket docker), or use --force: %w", r.why, errdefs.ErrFailedPrecondition)
}

// mounted returns the mount points on the host that show files of the daemon's root elsewhere: those of
// containers, which outlive containerd, of image volumes and of people.
func (v *view) mounted() ([]string, error) {
	name, err := v.Follow("/proc/1/mountinfo")
	if err != nil {
		return nil, err
	}
	f, err := os.Open(name)
	if errors.Is(err, os.ErrNotExist) { // a root in which nothing runs
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	all, err := mountinfo.GetMountsFromReader(f, nil)
	if err != nil {
		return nil, err
	}
	root, err := v.Follow(v.Config.Root)
	if err != nil {
		return nil, err
	}
	return usersOf(all, filepath.Join("/", strings.TrimPrefix(root, strings.TrimSuffix(v.Root, "/")))), nil
}

// usersOf returns the mount points outside of a root at which files of the root are shown: overlays with
// a layer of the root, and bind mounts of its directories. The root has no symbolic links.
func usersOf(all []*mountinfo.Info, root string) []string {
	var base *mountinfo.Info // the mount that has the root
	for _, m := range all {
		if below(root, m.Mountpoint) && (base == nil || len(m.Mountpoint) >= len(base.Mountpoint)) {
			base = m
		}
	}
	var at []string
	for _, m := range all {
		switch {
		case below(m.Mountpoint, root):
		case m.FSType == "overlay" && shows(m.VFSOptions, root):
			at = append(at, m.Mountpoint)
		case base != nil && m.Major == base.Major && m.Minor == base.Minor:
			rel, err := filepath.Rel(base.Mountpoint, root)
			if inside := filepath.Join(base.Root, rel); err == nil && inside != "/" && below(m.Root, inside) {
				at = append(at, m.Mountpoint)
			} else if err == nil && inside == "/" && m.Root != "/" {
				at = append(at, m.Mountpoint)
			}
		}
	}
	return sorted(at)
}

// overlayEscapes are the characters that the kernel escapes in options of an overlay mount.
var overlayEscapes = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)

// shows reports whether the options of an overlay mount have a path of a root.
func shows(options, root string) bool {
	for o := range strings.SplitSeq(options, ",") {
		_, list, _ := strings.Cut(o, "=")
		for p := range strings.SplitSeq(overlayEscapes.Replace(list), ":") {
			if below(p, root) {
				return true
			}
		}
	}
	return false
}

// below reports whether a path is a directory or below it.
func below(p, dir string) bool {
	return p == dir || strings.HasPrefix(p, strings.TrimSuffix(dir, "/")+"/")
}

// contents are the images of one namespace that were unpacked into ballast.
type contents struct {
	models   []string        // names of images with layers of ours: nobody else can show them
	ordinary []digest.Digest // configs of other images, which have the label of the snapshot
	missing  []string        // names of ordinary images whose layers containerd does not have any more
}

// contentsOf returns the images in the namespace of ctx that were unpacked into ballast.
func contentsOf(ctx context.Context, c *ctrd.Client) (all contents, err error) {
	unpacked, err := c.Unpacked(ctx, snippet.Snapshotter)
	if err != nil {
		return all, err
	}
	images, err := c.Images(ctx)
	if err != nil {
		return all, err
	}
	models := map[digest.Digest]bool{} // configs
	for _, im := range images {
		manifests, _, err := c.Manifests(ctx, im.Target, nil)
		if err != nil && !errors.Is(err, ctrd.ErrUnreadable) {
			return all, fmt.Errorf("%s: %w", im.Name, err)
		}
		model, missing := false, false
		for _, m := range manifests {
			if unpacked[m.Config.Digest] == "" {
				continue
			}
			if slices.ContainsFunc(m.Layers, func(l ocispec.Descriptor) bool { return onlyOurs(l.MediaType) }) {
				model, models[m.Config.Digest] = true, true
				continue
			}
			for _, l := range m.Layers {
				if _, err := c.Content.Info(ctx, l.Digest); errdefs.IsNotFound(err) {
					missing = true
				} else if err != nil {
					return all, err
				}
			}
		}
		switch {
		case model:
			all.models = append(all.models, im.Name)
		case missing:
			all.missing = append(all.missing, im.Name)
		}
	}
	for d := range unpacked {
		if !models[d] {
			all.ordinary = append(all.ordinary, d)
		}
	}
	slices.Sort(all.ordinary)
	return all, nil
}

// onlyOurs reports whether nobody but ballast can unpack layers of a type.
func onlyOurs(mediaType string) bool {
	return mediaType == filetable.MediaTypeTableLayer || mediaType == filetable.MediaTypeBlobLayer || slices.Contains(mediatype.OwnLayers(), mediaType)
}

// allContents returns the images of all namespaces that were unpacked into ballast.
func (v *view) allContents(ctx context.Context) (contents, error) {
	var all contents
	c, err := v.Dial()
	if err != nil {
		return all, err
	}
	defer c.Close()
	err = c.EachNamespace(ctx, func(ctx context.Context, _ string) error {
		of, err := contentsOf(ctx, c)
		all.models, all.missing = append(all.models, of.models...), append(all.missing, of.missing...)
		all.ordinary = append(all.ordinary, of.ordinary...)
		return err
	})
	all.models, all.missing = sorted(all.models), sorted(all.missing)
	return all, err
}

// release removes from all namespaces of containerd what only ballast can show: the images of models, and
// all snapshots. Ordinary images stay: containerd unpacks them again with the snapshotter that is used
// next. Snapshots of containers stay, with those below them.
func (v *view) release(ctx context.Context) error {
	c, err := v.Dial()
	if err != nil {
		return err
	}
	defer c.Close()
	err = c.EachNamespace(ctx, func(ctx context.Context, _ string) error {
		of, err := contentsOf(ctx, c)
		if err != nil {
			return err
		}
		for _, name := range of.models {
			if err := c.RemoveImage(ctx, name); err != nil {
				return err
			}
		}
		for _, d := range of.ordinary {
			if err := c.NotUnpacked(ctx, snippet.Snapshotter, d); err != nil {
				return err
			}
		}
		return releaseSnapshots(ctx, c)
	})
	if err != nil {
		return err
	}
	return c.UnmarkImages(ctx)
}

// releaseSnapshots removes the snapshots of ballast in the namespace of ctx that no container uses,
// children first. Those with records of lost children stay: they are records, too, when ballast is gone.
func releaseSnapshots(ctx context.Context, c *ctrd.Client) error {
	containers, err := c.Containers(ctx)
	if err != nil {
		return err
	}
	keep := map[string]bool{}
	for _, is := range containers {
		if is.Snapshotter == snippet.Snapshotter {
			keep[is.SnapshotKey] = true
		}
	}
	if err := eachDocker(ctx, c, func(key string) { keep[key] = true }); err != nil {
		return err
	}
	all := c.Snapshots(snippet.Snapshotter)
	children := map[string][]string{}
	var names []string
	err = all.Walk(ctx, func(_ context.Context, s snapshots.Info) error {
		names = append(names, s.Name)
		children[s.Parent] = append(children[s.Parent], s.Name)
		return nil
	})
	if err != nil {
		return err
	}
	done := map[string]bool{}
	var remove func(name string) (gone bool, err error)
	remove = func(name string) (bool, error) {
		if gone, ok := done[name]; ok {
			return gone, nil
		}
		done[name] = false // a circle is no tree
		free := !keep[name]
		for _, child := range children[name] {
			gone, err := remove(child)
			if err != nil {
				return false, err
			}
			free = free && gone
		}
		if !free {
			return false, nil
		}
		err := all.Remove(ctx, name)
		if errdefs.IsFailedPrecondition(err) { // a child that was lost, which containerd has recorded and does not list
			return false, nil
		}
		if err != nil && !errdefs.IsNotFound(err) {
			return false, err
		}
		done[name] = true
		return true, nil
	}
	for _, n := range names {
		if _, err := remove(n); err != nil {
			return err
		}
	}
	return nil
}
