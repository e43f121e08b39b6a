package snapshotter

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/ballast-dev/ballast/snapshotter/tree"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/core/snapshots/storage"
	"github.com/containerd/errdefs"
)

// mountReserve is what is left free of the page that mount(2) takes, in bytes: 128 for
// options that others append, such as ",volatile" for an image volume, and 512 that
// containerd leaves free. Beyond that it would shorten our lists, and put them last.
// https://github.com/containerd/containerd/blob/v2.4.2/core/mount/mount_linux.go
const mountReserve = 512 + 128

// A chain is an active snapshot or a view, with the markers of its parents.
type chain struct {
	storage.Snapshot
	parent  string            // the name of the first of ParentIDs
	labels  map[string]string // of the snapshot itself
	parents []marker          // one for each of ParentIDs
}

// chain returns the chain of an active snapshot or view. An image volume that shows a model itself is a view of
// that.
func (s *Snapshotter) chain(ctx context.Context, key string) (c chain, err error) {
	var labels []string // one for each of ParentIDs
	err = s.meta.WithTransaction(ctx, false, func(ctx context.Context) error {
		if c.Snapshot, err = storage.GetSnapshot(ctx, key); err != nil {
			return err
		}
		_, info, _, err := storage.GetInfo(ctx, key)
		c.parent, c.labels = info.Parent, info.Labels
		for err == nil && info.Parent != "" {
			_, info, _, err = storage.GetInfo(ctx, info.Parent)
			labels = append(labels, info.Labels[labelShows])
		}
		return err
	})
	if err != nil {
		return chain{}, err
	}
	if len(c.ParentIDs) == 0 && (isVolume(key) || isHost(key)) {
		err = s.asVolume(&c, key)
		return c, err
	}
	c.parents = make([]marker, len(c.ParentIDs))
	for i, id := range c.ParentIDs {
		if c.parents[i], err = s.trusted(id, labels[i]); err != nil {
			return chain{}, err
		}
	}
	return c, nil
}

// ours says whether a snapshot of ours is below.
func (c chain) ours() bool {
	for _, m := range c.parents {
		if m != (marker{}) {
			return true
		}
	}
	return false
}

// lowers returns the ids of the parents that have files, and whether stubs are among them.
func (c chain) lowers() (ids []string, stubs bool, err error) {
	for i, m := range c.parents {
		switch {
		case m.Empty:
			continue
		case m.Table != "" && !m.Shown:
			return nil, false, fmt.Errorf("snapshot %s: model %s is not shown whole; %s: %w", c.ParentIDs[i], m.Table, cure, errdefs.ErrUnavailable)
		}
		stubs = stubs || m.Show == tree.Stubs
		ids = append(ids, c.ParentIDs[i])
	}
	return ids, stubs, nil
}

// mounts returns the mounts of the snapshot with key. plain are those that overlay gives.
func (s *Snapshotter) mounts(ctx context.Context, key string, plain []mount.Mount) ([]mount.Mount, error) {
	c, err := s.chain(ctx, key)
	if err != nil {
		return nil, err
	}
	if c.Kind == snapshots.KindActive && laterParent(c.labels, c.parent) != "" {
		return s.apart(c.ID)
	}
	plain, err = s.mapped(ctx, c.parent, c.labels, plain)
	if err != nil || !c.ours() {
		return plain, err
	}
	ids, stubs, err := c.lowers()
	if err != nil {
		return nil, err
	}
	if len(ids) == 0 && isVolume(key) {
		return nil, errEmptyVolume(key)
	}
	view, users := c.Kind == snapshots.KindView, mapping(plain)
	switch {
	case len(ids) == 0 && view:
		return bind(s.upperDir(c.ID), users, "ro"), nil
	case len(ids) == 0:
		return bind(s.upperDir(c.ID), users, "rw"), nil
	case len(ids) == 1 && view && !stubs:
		return bind(s.upperDir(ids[0]), users, "ro"), nil
	}
	data, err := s.dataLayers(ctx, c, len(users) > 0)
	if err != nil {
		return nil, err
	}
	if stubs && len(users) > 0 {
		if err := s.checkMapped(ids); err != nil {
			return nil, err
		}
	}
	options := append(s.lowerOptions(ids, data), ownOptions(plain)...)
	options = append(options, users...)
	access := "ro"
	if !view {
		options = append(options, "upperdir="+s.upperDir(c.ID))
		access = "workdir=" + filepath.Join(s.snapshotDir(c.ID), "work")
	}
	if stubs {
		if err := s.checkHide(); err != nil {
			return nil, err
		}
		access += ",lowerdir=" + s.lowerList(ids) + "::" + strings.Join(data, "::")
	}
	options = append(options, access)
	if stubs { // containerd shortens a list without data-only layers itself
		if err := fitsMount(options, len(ids)); err != nil {
			return nil, err
		}
	}
	return []mount.Mount{{Type: "overlay", Source: "overlay", Options: options}}, nil
}

// dataLayers returns the directories that have the content of stubs, none if the chain has no
// stubs: those of what is complete first. Those of the files that are not complete are added only while
// there are any: without their mount, if its daemon is gone, nothing that needs it could be mounted.
// mapped says that users are mapped.
func (s *Snapshotter) dataLayers(ctx context.Context, c chain, mapped bool) (layers []string, err error) {
	var early []string
	for i, m := range c.parents {
		if m.Show != tree.Stubs {
			continue
		}
		view, lazyDir := m.view(c.ParentIDs[i]), ""
		if m.View {
			lazyDir = c.ParentIDs[i]
			if err := s.store.Present(ctx, view); err != nil {
				s.log.WarnContext(ctx, "what has become complete of a model may be read through the daemon, or not at all", "snapshot", lazyDir, "err", err)
			}
		}
		if dir := s.store.View(view).Dir(); !slices.Contains(layers, dir) {
			layers = append(layers, dir)
		}
		if _, ok := s.store.Early(m.Table)[view]; !ok {
			continue
		}
		lazy := s.lazy.Load()
		if lazy == nil {
			return nil, fmt.Errorf("model %s is not complete, and can not be mounted before: %w", m.Table, errdefs.ErrUnavailable)
		}
		if mapped && lazy.users != nil {
			if err := lazy.users(ctx); err != nil {
				return nil, fmt.Errorf("model %s is not complete, and can not be shown to a user namespace before: %w; the rest of it is fetched, \"ballast ls\" says how far: %w",
					m.Table, err, errdefs.ErrUnavailable)
			}
		}
		if dir := filepath.Join(lazy.dir, lazyDir); !slices.Contains(early, dir) {
			early = append(early, dir)
		}
	}
	return append(layers, early...), nil
}

// lowerList returns the directories of parents, top first.
func (s *Snapshotter) lowerList(ids []string) string {
	dirs := make([]string, len(ids))
	for i, id := range ids {
		dirs[i] = s.upperDir(id)
	}
	return strings.Join(dirs, ":")
}

// lowerOptions returns the options for these parents as containerd reads them. It looks for
// users in the directories of the list without mounting it, and makes a read-only mount of a
// container, to commit it, with the upper directory in front of the list. It takes "::" for
// a directory without a name, so the list has the objects as an ordinary layer, which shows
// the same files but for the name of the objects' one directory; the top layer hides that.
//
// The kernel gets a list with a data-only layer: the last list counts, and it is in one
// string with an option that containerd drops for its read-only mount.
func (s *Snapshotter) lowerOptions(ids, data []string) []string {
	if len(data) == 0 {
		return []string{"lowerdir=" + s.lowerList(ids)}
	}
	// metacopy=on makes overlayfs follow the stubs; it turns redirect_dir=on with it.
	return []string{"lowerdir=" + s.hideDir() + ":" + s.lowerList(ids) + ":" + strings.Join(data, ":"), "metacopy=on"}
}

// ownOptions returns the options of overlay's that name no directory and no users, such as
// index=off. A bind mount has none: they are needed for a mount with an upper layer only.
func ownOptions(plain []mount.Mount) []string {
	var options []string
	for _, m := range plain {
		if m.Type != "overlay" {
			continue
		}
		for _, o := range m.Options {
			if k, _, _ := strings.Cut(o, "="); !slices.Contains([]string{"lowerdir", "upperdir", "workdir", "uidmap", "gidmap"}, k) {
				options = append(options, o)
			}
		}
	}
	return options
}

// fitsMount returns errdefs.ErrResourceExhausted if the options do not fit into the page
// that mount(2) takes.
// https://github.com/containerd/containerd/blob/v2.4.2/core/mount/mount_linux.go
func fitsMount(options []string, layers int) error {
	n, limit := len(strings.Join(options, ",")), os.Getpagesize()-mountReserve
	if n <= limit {
		return nil
	}
	return fmt.Errorf("mount options of %d layers with files on top of each other take %d bytes, more than %d; use fewer layers above the model or a shorter root: %w",
		layers, n, limit, errdefs.ErrResourceExhausted)
}

func bind(dir string, users []string, access string) []mount.Mount {
	return []mount.Mount{{Type: "bind", Source: dir, Options: append(users, access, "rbind")}}
}
