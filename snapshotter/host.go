package snapshotter

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/core/snapshots/storage"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// Models on the host.
//
// A model for processes on the host is shown in the same way, in a snapshot with the key "host:"
// and the mount point. Walk hides it, since containerd's garbage collector would remove it. The
// caller of PrepareHost makes the mount. RemoveHost checks all mount namespaces first.

// hostPrefix, followed by the mount point, is the key of a snapshot for processes on the host. Keys
// of containerd begin with a namespace, which has no colon.
const hostPrefix = "host:"

// labelName is the label with the name that the user gave for a model mounted on the host.
const labelName = "dev.ballast.name"

// A HostMount is a model for processes on the host. It has its own snapshot, which keeps its
// objects.
type HostMount struct {
	Dir     string        // the mount point
	Name    string        // as the user gave it
	Table   digest.Digest // empty if not shown yet
	ID      string        // of the snapshot
	Created time.Time

	// Mounted reports whether files of the snapshot are part of a mount, in any namespace and at
	// any mount point.
	Mounted bool
}

// hostSource is the source of the overlay mount of a snapshot for the host, as shown in the mount
// table.
func hostSource(id string) string { return "ballast-" + id }

func isHost(key string) bool { return strings.HasPrefix(key, hostPrefix) }

// PrepareHost makes the snapshot of m, fills it with show (Hold, Show), and returns the one
// read-only mount that the caller makes at m.Dir. An existing snapshot with the same table is
// reused. Calls for the same directory must not overlap.
//
// It returns errdefs.ErrAlreadyExists if the snapshot of m.Dir is mounted and shows another model.
func (s *Snapshotter) PrepareHost(ctx context.Context, m HostMount, show func(ctx context.Context, id string) error) (HostMount, mount.Mount, error) {
	old, err := s.hostMount(ctx, m.Dir)
	switch {
	case err == nil && old.Table == m.Table:
		mounts, err := s.Mounts(ctx, hostPrefix+m.Dir)
		if err != nil {
			return old, mount.Mount{}, err
		}
		return old, hostMountOf(old, mounts), nil
	case err == nil && old.Mounted:
		return old, mount.Mount{}, fmt.Errorf("%s is mounted at %s: %w", old.Name, m.Dir, errdefs.ErrAlreadyExists)
	case err == nil:
		err = s.removeHost(ctx, old)
	case errdefs.IsNotFound(err):
		err = nil
	}
	if err != nil {
		return old, mount.Mount{}, err
	}
	mounts, err := s.prepareAlone(ctx, hostPrefix+m.Dir, []snapshots.Opt{snapshots.WithLabels(map[string]string{labelName: m.Name})}, show)
	if err != nil {
		return m, mount.Mount{}, err
	}
	m, err = s.hostMount(ctx, m.Dir)
	return m, hostMountOf(m, mounts), err
}

// hostMountOf returns the one mount of m.
func hostMountOf(m HostMount, mounts []mount.Mount) mount.Mount {
	made := mounts[0]
	if made.Type == "overlay" {
		made.Source = hostSource(m.ID)
	}
	made.Options = append(made.Options, "nosuid", "nodev")
	return made
}

// HostMounts returns the models that are, or are about to be, mounted on the host, sorted by
// directory.
func (s *Snapshotter) HostMounts(ctx context.Context) ([]HostMount, error) {
	var all []HostMount
	err := s.meta.WithTransaction(ctx, false, func(ctx context.Context) error {
		return storage.WalkInfo(ctx, func(ctx context.Context, info snapshots.Info) error {
			dir, ok := strings.CutPrefix(info.Name, hostPrefix)
			if !ok {
				return nil
			}
			id, _, _, err := storage.GetInfo(ctx, info.Name)
			all = append(all, HostMount{
				Dir: dir, Name: info.Labels[labelName], Table: digest.Digest(info.Labels[labelShows]), ID: id, Created: info.Created,
			})
			return err
		})
	})
	if err != nil || len(all) == 0 {
		return nil, err
	}
	var ids []string
	for _, m := range all {
		ids = append(ids, m.ID)
	}
	mounted, err := s.mounted(ids, true)
	if err != nil {
		return nil, err
	}
	for i := range all {
		all[i].Mounted = mounted[all[i].ID]
	}
	slices.SortFunc(all, func(a, b HostMount) int { return cmp.Compare(a.Dir, b.Dir) })
	return all, nil
}

// hostMount returns the model of a directory. It returns errdefs.ErrNotFound if there is none.
func (s *Snapshotter) hostMount(ctx context.Context, dir string) (HostMount, error) {
	all, err := s.HostMounts(ctx)
	if err != nil {
		return HostMount{}, err
	}
	if i := slices.IndexFunc(all, func(m HostMount) bool { return m.Dir == dir }); i >= 0 {
		return all[i], nil
	}
	return HostMount{}, fmt.Errorf("no model is mounted at %s: %w", dir, errdefs.ErrNotFound)
}

// RemoveHost removes the snapshot of a directory after it was unmounted. It returns
// errdefs.ErrNotFound if there is none, and errdefs.ErrFailedPrecondition while its files are part
// of a mount.
func (s *Snapshotter) RemoveHost(ctx context.Context, dir string) error {
	m, err := s.hostMount(ctx, dir)
	if err != nil {
		return err
	}
	if m.Mounted {
		return fmt.Errorf("%s is still mounted, at %s or in another mount namespace: %w", m.Name, dir, errdefs.ErrFailedPrecondition)
	}
	return s.removeHost(ctx, m)
}

// removeHost removes the snapshot of m, which is not mounted, with its directory: containerd, which asks for
// a Cleanup after it has removed snapshots, does not know this one.
func (s *Snapshotter) removeHost(ctx context.Context, m HostMount) error {
	if err := s.Remove(ctx, hostPrefix+m.Dir); err != nil {
		return err
	}
	if err := os.RemoveAll(s.snapshotDir(m.ID)); err != nil {
		s.log.WarnContext(ctx, "directory of a removed snapshot stays until the next cleanup", "snapshot", m.ID, "err", err)
	} else {
		s.leaving.Delete(m.ID)
	}
	return nil
}

// HostRefs returns the names of the references of snapshots for processes on the host.
func (s *Snapshotter) HostRefs(ctx context.Context) (map[string]bool, error) {
	refs := map[string]bool{}
	return refs, s.eachRef(ctx, func(ref, key string) {
		if isHost(key) {
			refs[ref] = true
		}
	})
}

// Keys returns the keys with which containerd has made snapshots, by the names of their references.
func (s *Snapshotter) Keys(ctx context.Context) (map[string]string, error) {
	keys := map[string]string{}
	return keys, s.eachRef(ctx, func(ref, key string) {
		if !isHost(key) {
			keys[ref] = key
		}
	})
}

// eachRef calls do with the name of the reference and the key of each snapshot.
func (s *Snapshotter) eachRef(ctx context.Context, do func(ref, key string)) error {
	return s.meta.WithTransaction(ctx, false, func(ctx context.Context) error {
		ids, err := storage.IDMap(ctx)
		for id, key := range ids {
			do(refName(id), key)
		}
		return err
	})
}

// Walk calls f with the snapshots of containerd. It hides those for the host: containerd's garbage
// collector would remove them.
func (s *Snapshotter) Walk(ctx context.Context, f snapshots.WalkFunc, filters ...string) error {
	return s.overlay.Walk(ctx, func(ctx context.Context, info snapshots.Info) error {
		if isHost(info.Name) {
			return nil
		}
		return f(ctx, info)
	}, filters...)
}
