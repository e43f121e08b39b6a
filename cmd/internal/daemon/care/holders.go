package care

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/ballast-dev/ballast/cmd/internal/contract/modelname"
	"github.com/ballast-dev/ballast/cmd/internal/contract/wire"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/opencontainers/go-digest"
)

// Holders returns what in containerd needs a table: its images, containers, volumes of pods and leases.
func (s *Snapshots) Holders(ctx context.Context, table digest.Digest) (all []wire.Holder, err error) {
	keys, err := s.Snapshotter.Keys(ctx)
	if err != nil {
		return nil, err
	}
	origins := map[digest.Digest]bool{} // manifests whose images need it
	maps.DeleteFunc(keys, func(ref, _ string) bool {
		r, err := s.Store.Catalog.Ref(ref)
		return err != nil || r.Table != table
	})
	for _, r := range s.Store.Catalog.RefsOf(table) {
		if origin, ok := strings.CutPrefix(r.Name, modelname.OriginPrefix); ok {
			origins[digest.Digest(origin)] = true
		}
	}
	if len(keys)+len(origins) == 0 {
		return nil, nil
	}
	name, err := s.Name(ctx)
	if err != nil {
		return nil, err
	}
	err = s.Containerd.EachNamespace(ctx, func(ctx context.Context, ns string) error {
		l := looking{of: s, ns: ns, snapshotter: name, infos: map[string]snapshots.Info{}, needs: map[string]bool{}, targets: maps.Clone(origins)}
		if err := l.look(ctx, keys); err != nil {
			return fmt.Errorf("containerd's namespace %s: %w", ns, err)
		}
		all = append(all, l.found...)
		return nil
	})
	return all, err
}

// looking is a search for what needs snapshots in a namespace of containerd.
type looking struct {
	of          *Snapshots
	ns          string
	snapshotter string                    // its name
	infos       map[string]snapshots.Info // of all snapshots, by key
	needs       map[string]bool           // keys of the snapshots of the table, and of those above them
	targets     map[digest.Digest]bool    // manifests and configs whose images need it
	found       []wire.Holder
}

// look finds what needs the snapshots with keys of the snapshotter.
func (l *looking) look(ctx context.Context, keys map[string]string) error {
	if err := l.of.Containerd.Snapshots(l.snapshotter).Walk(ctx, func(_ context.Context, i snapshots.Info) error { l.infos[i.Name] = i; return nil }); err != nil {
		return err
	}
	for _, key := range keys {
		if key = KeyOf(key, l.ns); l.infos[key].Name != "" {
			l.needs[key] = true
		}
	}
	for key := range l.infos {
		var above []string
		for k := key; k != ""; k = l.infos[k].Parent {
			if above = append(above, k); l.needs[k] {
				for _, k := range above {
					l.needs[k] = true
				}
				break
			}
		}
	}
	for _, find := range []func(context.Context) error{l.containers, l.leases, l.images} {
		if err := find(ctx); err != nil {
			return err
		}
	}
	if len(l.needs) > 0 && len(l.found) == 0 {
		l.add(wire.HoldSnapshot, slices.Sorted(maps.Keys(l.needs))[0], "nothing: containerd removes it at its next collection")
	}
	return nil
}

func (l *looking) add(kind wire.Hold, name, end string) {
	l.found = append(l.found, wire.Holder{Kind: kind, Name: name, Namespace: l.ns, End: end})
}

// ctr returns a command line of ctr in the namespace.
func (l *looking) ctr(words ...string) string {
	return wire.Command(append([]string{"ctr", "-n", l.ns}, words...)...)
}

// containers finds containers, volumes of pods, and snapshots that clients have made for themselves.
func (l *looking) containers(ctx context.Context) error {
	list, err := l.of.Containerd.Containers(ctx)
	if err != nil {
		return err
	}
	named, pods := map[string]bool{}, map[string]string{} // by id
	for _, c := range list {
		end := l.ctr("tasks", "kill", "-s", "KILL", c.ID) + "; " + l.ctr("containers", "rm", c.ID)
		if pod := c.Labels["io.kubernetes.pod.name"]; pod != "" {
			end = wire.Command("kubectl", "-n", c.Labels["io.kubernetes.pod.namespace"], "delete", "pod", pod)
		}
		pods[c.ID] = end
		if c.Snapshotter == l.snapshotter && l.needs[c.SnapshotKey] {
			named[c.SnapshotKey] = true
			l.add(wire.HoldContainer, c.ID, end)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(l.needs)) {
		if l.infos[key].Kind == snapshots.KindCommitted || named[key] || isUnpacked(key) {
			continue
		}
		if pod, ok := PodOfVolume(key); ok && pods[pod] != "" {
			l.add(wire.HoldVolume, "pod "+pod, pods[pod])
			continue
		}
		l.add(wire.HoldSnapshot, key, l.ctr("snapshots", "--snapshotter", l.snapshotter, "rm", key))
	}
	return nil
}

// PodOfVolume returns the ID of the sandbox that has an image volume, by the key of its snapshot, and false if
// that is something else. The sandbox is also the ID of a container.
// https://github.com/containerd/containerd/blob/v2.4.2/internal/cri/server/container_image_mount.go
func PodOfVolume(key string) (string, bool) {
	_, of, ok := strings.Cut(key, "/image-volumes/")
	pod, _, _ := strings.Cut(of, "/")
	return pod, ok
}

func (l *looking) leases(ctx context.Context) error {
	return l.of.Containerd.EachLease(ctx, l.snapshotter, l.needed, func(of leases.Lease, _ []leases.Resource) error {
		l.add(wire.HoldLease, of.ID, l.ctr("leases", "rm", "--sync", of.ID))
		return nil
	})
}

// needed reports whether a key is that of a snapshot of the table, or of one above it.
func (l *looking) needed(key string) bool { return l.needs[key] }

// images finds images: by the configs from which containerd refers to their snapshots, and by their manifests.
func (l *looking) images(ctx context.Context) error {
	unpacked, err := l.of.Containerd.Unpacked(ctx, l.snapshotter)
	if err != nil {
		return err
	}
	for config, key := range unpacked {
		if l.needs[key] {
			l.targets[config] = true
		}
	}
	names, err := l.of.Origins.NamesOf(ctx, l.targets)
	for _, name := range names {
		l.add(wire.HoldImage, name, l.ctr("images", "rm", "--sync", name))
	}
	return err
}
