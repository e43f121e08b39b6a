package setup

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/ballast-dev/ballast/cmd/internal/node"
	"github.com/ballast-dev/ballast/cmd/internal/snippet"
	"github.com/ballast-dev/ballast/cmd/internal/wire"
	"github.com/ballast-dev/ballast/convert/mediatype"
	"github.com/ballast-dev/ballast/store/filetable"
	containersapi "github.com/containerd/containerd/api/services/containers/v1"
	imagesapi "github.com/containerd/containerd/api/services/images/v1"
	snapshotsapi "github.com/containerd/containerd/api/services/snapshots/v1"
	"github.com/containerd/containerd/v2/core/content"
	contentproxy "github.com/containerd/containerd/v2/core/content/proxy"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/core/snapshots/proxy"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs"
	"github.com/moby/sys/mountinfo"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"google.golang.org/grpc"
)

// labelPinned is the label that CRI gives to images that the kubelet must not remove.
const labelPinned = "io.cri-containerd.pinned"

// kubernetes is the namespace of Kubernetes' images and containers in containerd.
const kubernetes = "k8s.io"

// running is the state of the daemons on a host.
type running struct {
	daemon bool // ballastd answers
	loaded bool // containerd has ballast's snapshotter

	pinned map[string]bool // images of Kubernetes that the kubelet does not remove
	used   []string        // images used by Kubernetes containers
}

// ask requests the state of the daemons of a host. A daemon that does not answer counts as not
// running.
func (v *view) ask(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, node.AskTimeout)
	defer cancel()
	v.running = running{daemon: v.daemonAnswers(ctx), pinned: map[string]bool{}}
	if v.State == nil {
		return
	}
	v.running.loaded = v.State.Plugin("io.containerd.snapshotter.v1", snippet.Snapshotter) != nil
	conn, err := v.Dial()
	if err != nil {
		return
	}
	defer conn.Close()
	ctx = namespaces.WithNamespace(ctx, kubernetes)
	images, err := imagesapi.NewImagesClient(conn).List(ctx, &imagesapi.ListImagesRequest{})
	if err == nil {
		for _, im := range images.Images {
			if im.Labels[labelPinned] == "pinned" {
				v.running.pinned[im.Name] = true
			}
		}
	}
	containers, err := containersapi.NewContainersClient(conn).List(ctx, &containersapi.ListContainersRequest{})
	if err == nil {
		for _, c := range containers.Containers {
			v.running.used = append(v.running.used, c.Image)
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
	_, err = c.Version(ctx)
	return err == nil
}

// users returns the containers whose root file system is in ballast, as "namespace/id", and the mounts of
// its files. Snapshots that nothing mounts are no users: records of mounts stay in containerd when the
// mounts are gone.
func (v *view) users(ctx context.Context) ([]string, error) {
	found, err := v.mounted()
	if err != nil || v.State == nil {
		return found, err
	}
	conn, err := v.Dial()
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	err = node.EachNamespace(ctx, conn, func(ctx context.Context, ns string) error {
		containers, err := containersapi.NewContainersClient(conn).List(ctx, &containersapi.ListContainersRequest{})
		if err != nil {
			return err
		}
		for _, c := range containers.Containers {
			if c.Snapshotter == snippet.Snapshotter {
				found = append(found, ns+"/"+c.ID)
			}
		}
		return nameHeld(ctx, conn, ns, found)
	})
	if err != nil {
		return nil, fmt.Errorf("list the containers that use ballast: %w", err)
	}
	return sorted(found), nil
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

// labelUnpacked is the label of the config of an image that was unpacked into ballast.
const labelUnpacked = "containerd.io/gc.ref.snapshot." + snippet.Snapshotter

// contentsOf returns the images in the namespace of ctx that were unpacked into ballast.
func contentsOf(ctx context.Context, conn *grpc.ClientConn) (contents, error) {
	var c contents
	store := contentproxy.NewContentStore(conn)
	unpacked := map[digest.Digest]bool{}
	err := store.Walk(ctx, func(info content.Info) error {
		if info.Labels[labelUnpacked] != "" {
			unpacked[info.Digest] = true
		}
		return nil
	})
	if err != nil {
		return c, err
	}
	images, err := imagesapi.NewImagesClient(conn).List(ctx, &imagesapi.ListImagesRequest{})
	if err != nil {
		return c, err
	}
	models := map[digest.Digest]bool{} // configs
	for _, im := range images.Images {
		manifests, err := manifestsOf(ctx, store, digest.Digest(im.Target.Digest), 0)
		if err != nil {
			return c, fmt.Errorf("image %s: %w", im.Name, err)
		}
		model, missing := false, false
		for _, m := range manifests {
			if !unpacked[m.Config.Digest] {
				continue
			}
			if slices.ContainsFunc(m.Layers, func(l ocispec.Descriptor) bool { return onlyOurs(l.MediaType) }) {
				model, models[m.Config.Digest] = true, true
				continue
			}
			for _, l := range m.Layers {
				if _, err := store.Info(ctx, l.Digest); errdefs.IsNotFound(err) {
					missing = true
				} else if err != nil {
					return c, err
				}
			}
		}
		switch {
		case model:
			c.models = append(c.models, im.Name)
		case missing:
			c.missing = append(c.missing, im.Name)
		}
	}
	for d := range unpacked {
		if !models[d] {
			c.ordinary = append(c.ordinary, d)
		}
	}
	slices.Sort(c.ordinary)
	return c, nil
}

// onlyOurs reports whether nobody but ballast can unpack layers of a type.
func onlyOurs(mediaType string) bool {
	return mediaType == filetable.MediaTypeTableLayer || mediaType == filetable.MediaTypeBlobLayer || slices.Contains(mediatype.OwnLayers(), mediaType)
}

// The limits of an image that is read: its documents, and how deep indexes are nested.
const (
	maxDocument = 8 << 20
	maxDepth    = 4
)

// manifestsOf returns the manifests of an image that containerd has.
func manifestsOf(ctx context.Context, store content.Store, d digest.Digest, depth int) ([]ocispec.Manifest, error) {
	info, err := store.Info(ctx, d)
	if errdefs.IsNotFound(err) || err == nil && (info.Size > maxDocument || depth > maxDepth) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	text, err := content.ReadBlob(ctx, store, ocispec.Descriptor{Digest: d, Size: info.Size})
	if err != nil {
		return nil, err
	}
	var doc struct {
		ocispec.Manifest
		Manifests []ocispec.Descriptor `json:"manifests"`
	}
	if json.Unmarshal(text, &doc) != nil { // not an image
		return nil, nil
	}
	if doc.Config.Digest != "" {
		return []ocispec.Manifest{doc.Manifest}, nil
	}
	var all []ocispec.Manifest
	for _, m := range doc.Manifests {
		below, err := manifestsOf(ctx, store, m.Digest, depth+1)
		if err != nil {
			return nil, err
		}
		all = append(all, below...)
	}
	return all, nil
}

// allContents returns the images of all namespaces that were unpacked into ballast.
func (v *view) allContents(ctx context.Context) (contents, error) {
	var all contents
	conn, err := v.Dial()
	if err != nil {
		return all, err
	}
	defer conn.Close()
	err = node.EachNamespace(ctx, conn, func(ctx context.Context, _ string) error {
		c, err := contentsOf(ctx, conn)
		all.models, all.missing = append(all.models, c.models...), append(all.missing, c.missing...)
		all.ordinary = append(all.ordinary, c.ordinary...)
		return err
	})
	all.models, all.missing = sorted(all.models), sorted(all.missing)
	return all, err
}

// release removes from all namespaces of containerd what only ballast can show: the images of models, and
// all snapshots. Ordinary images stay: containerd unpacks them again with the snapshotter that is used
// next. Snapshots of containers stay, with those below them.
func (v *view) release(ctx context.Context) error {
	conn, err := v.Dial()
	if err != nil {
		return err
	}
	defer conn.Close()
	return node.EachNamespace(ctx, conn, func(ctx context.Context, _ string) error {
		c, err := contentsOf(ctx, conn)
		if err != nil {
			return err
		}
		for _, name := range c.models {
			if _, err := imagesapi.NewImagesClient(conn).Delete(ctx, &imagesapi.DeleteImageRequest{Name: name, Sync: true}); err != nil && !errdefs.IsNotFound(err) {
				return err
			}
		}
		store := contentproxy.NewContentStore(conn)
		for _, d := range c.ordinary {
			if _, err := store.Update(ctx, content.Info{Digest: d}, "labels."+labelUnpacked); err != nil && !errdefs.IsNotFound(err) {
				return err
			}
		}
		return releaseSnapshots(ctx, conn)
	})
}

// releaseSnapshots removes the snapshots of ballast in the namespace of ctx that no container uses,
// children first. Those with records of lost children stay: they are records, too, when ballast is gone.
func releaseSnapshots(ctx context.Context, conn *grpc.ClientConn) error {
	containers, err := containersapi.NewContainersClient(conn).List(ctx, &containersapi.ListContainersRequest{})
	if err != nil {
		return err
	}
	keep := map[string]bool{}
	for _, c := range containers.Containers {
		if c.Snapshotter == snippet.Snapshotter {
			keep[c.SnapshotKey] = true
		}
	}
	all := proxy.NewSnapshotter(snapshotsapi.NewSnapshotsClient(conn), snippet.Snapshotter)
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
