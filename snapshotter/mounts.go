package snapshotter

import (
	"context"
	"errors"
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

// mountReserve is the part of the page of options of mount(2) that stays free, in bytes: 128 for
// options that callers append, such as ",volatile" for an image volume, and 512 that containerd
// reserves. If less is free, containerd shortens the lists and moves them to the end.
// https://github.com/containerd/containerd/blob/v2.4.2/core/mount/mount_linux.go
const mountReserve = 512 + 128

// A chain is an active snapshot or a view, with the markers of its parents.
type chain struct {
	storage.Snapshot
	parent  string            // name of the first of ParentIDs
	labels  map[string]string // of the snapshot itself
	parents []marker          // one for each of ParentIDs
}

// chain returns the chain of an active snapshot or view. An image volume that shows a model is a
// view of itself.
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
		if c.parents[i], err = s.checkedMarker(id, labels[i]); err != nil {
			return chain{}, err
		}
	}
	return c, nil
}

// ours reports whether a parent is a model or empty snapshot.
func (c chain) ours() bool {
	for _, m := range c.parents {
		if m != (marker{}) {
			return true
		}
	}
	return false
}

// lowers returns the ids of the parents that have files, and reports whether any has stubs.
func (c chain) lowers() (ids []string, stubs bool, err error) {
	for i, m := range c.parents {
		switch {
		case m.Empty:
			continue
		case m.Table != "" && !m.Shown:
			return nil, false, fmt.Errorf("snapshot %s: model %s is not completely shown; %s: %w", c.ParentIDs[i], m.Table, advice, errdefs.ErrUnavailable)
		}
		stubs = stubs || m.Show == tree.Stubs
		ids = append(ids, c.ParentIDs[i])
	}
	return ids, stubs, nil
}

// linked shows the models of a chain as links, and returns the chain as it is then. It returns
// errdefs.ErrUnavailable for a model that is not complete.
func (s *Snapshotter) linked(ctx context.Context, key string, c chain) (chain, error) {
	var failed error // also of other snapshots of the same tables
	for _, m := range c.parents {
		if m.Show == tree.Stubs {
			failed = errors.Join(failed, s.Refresh(ctx, m.Table))
		}
	}
	c, err := s.chain(ctx, key)
	if err != nil {
		return chain{}, err
	}
	for _, m := range c.parents {
		switch {
		case m.Show != tree.Stubs && (m.Table == "" || m.Shown):
		case failed == nil || errdefs.IsUnavailable(failed):
			return chain{}, s.incomplete(m)
		default:
			return chain{}, failed
		}
	}
	return c, nil
}

func (s *Snapshotter) incomplete(m marker) error {
	return fmt.Errorf("model %s is not complete, and this kernel mounts complete models only (%w); \"ballast ls\" shows the progress of its download: %w",
		m.Table, s.noStubs, errdefs.ErrUnavailable)
}

// mounts returns the mounts of the snapshot with key. plain are overlay's.
func (s *Snapshotter) mounts(ctx context.Context, key string, plain []mount.Mount) ([]mount.Mount, error) {
	c, err := s.chain(ctx, key)
	if err != nil {
		return nil, err
	}
	if c.Kind == snapshots.KindActive && laterParent(c.labels, c.parent) != "" {
		return s.upperMounts(c.ID)
	}
	plain, err = s.mapped(ctx, c.parent, c.labels, plain)
	if err != nil || !c.ours() {
		return plain, err
	}
	ids, stubs, err := c.lowers()
	if err != nil {
		return nil, err
	}
	if stubs && s.noStubs != nil {
		if c, err = s.linked(ctx, key, c); err != nil {
			return nil, err
		}
		stubs = false
	}
	if len(ids) == 0 && isVolume(key) {
		return nil, errEmptyVolume(key)
	}
	s.tellMounted(key, c)
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
		if err := s.ensureHide(); err != nil {
			return nil, err
		}
		access += ",lowerdir=" + s.lowerList(ids) + "::" + strings.Join(data, "::")
	}
	options = append(options, access)
	if stubs { // without data-only layers, containerd shortens the list itself
		if err := fitsMount(options, len(ids)); err != nil {
			return nil, err
		}
	}
	return []mount.Mount{{Type: "overlay", Source: "overlay", Options: options}}, nil
}

// tellMounted calls Options.Mounted for the complete models of a chain.
func (s *Snapshotter) tellMounted(key string, c chain) {
	if s.told == nil || isUnpack(key) {
		return
	}
	for i, m := range c.parents {
		if m.Table == "" {
			continue
		}
		view := m.view(c.ParentIDs[i])
		if _, early := s.store.Views.Early(m.Table)[view]; !early {
			s.told(key, m.Table, view)
		}
	}
}

// dataLayers returns the data-only layers with the content of stubs, none if the chain has no
// stubs. Directories of complete files come first. The lazy mount is included only while files are
// incomplete: if its daemon is gone, a mount that includes it fails. mapped is true if the mounts
// are id-mapped.
func (s *Snapshotter) dataLayers(ctx context.Context, c chain, mapped bool) (layers []string, err error) {
	var early []string
	for i, m := range c.parents {
		if m.Show != tree.Stubs {
			continue
		}
		view, lazyDir := m.view(c.ParentIDs[i]), ""
		if m.View {
			lazyDir = c.ParentIDs[i]
			if err := s.store.Views.Present(view); err != nil {
				s.log.WarnContext(ctx, "complete files of a model may be read through the daemon, or may be unreadable", "snapshot", lazyDir, "err", err)
			}
		}
		if dir := s.store.Views.View(view).Dir(); !slices.Contains(layers, dir) {
			layers = append(layers, dir)
		}
		if _, ok := s.store.Views.Early(m.Table)[view]; !ok {
			continue
		}
		lazy := s.lazy.Load()
		if lazy == nil {
			return nil, fmt.Errorf("model %s is not complete and cannot be mounted yet: %w", m.Table, errdefs.ErrUnavailable)
		}
		if mapped && lazy.users != nil {
			if err := lazy.users(ctx); err != nil {
				return nil, fmt.Errorf("model %s is not complete and cannot be mounted for a user namespace yet: %w; \"ballast ls\" shows the progress of its download: %w",
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

// lowerOptions returns the first of two lists of lower directories, because containerd also parses
// mount options and does not know the "::" of data-only layers:
//
//	lowerdir=<hide>:<snapshot>:…:<objects>
//	metacopy=on
//	upperdir=<container>
//	workdir=<container>,lowerdir=<snapshot>:…::<objects>
//
// The kernel uses the last list, which is in one string with an option that containerd drops for a
// read-only mount. containerd uses the first list to look into the directories and, with the upper
// directory in front of it, to mount a container read-only in order to commit it. There the objects
// are an ordinary layer, and <hide> has a whiteout over their directory. In such a mount only, a
// file "sha256" at the top of an image is hidden.
func (s *Snapshotter) lowerOptions(ids, data []string) []string {
	if len(data) == 0 {
		return []string{"lowerdir=" + s.lowerList(ids)}
	}
	// metacopy=on makes overlayfs follow the stubs; it implies redirect_dir=on.
	return []string{"lowerdir=" + s.hideDir() + ":" + s.lowerList(ids) + ":" + strings.Join(data, ":"), "metacopy=on"}
}

// ownOptions returns overlay's options without directories and ID mappings, such as index=off. Bind
// mounts have none: only mounts with an upper layer need them.
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

// fitsMount returns errdefs.ErrResourceExhausted if the options exceed the page that mount(2)
// takes.
// https://github.com/containerd/containerd/blob/v2.4.2/core/mount/mount_linux.go
func fitsMount(options []string, layers int) error {
	n, limit := len(strings.Join(options, ",")), os.Getpagesize()-mountReserve
	if n <= limit {
		return nil
	}
	return fmt.Errorf("the mount options of %d layers take %d bytes, more than %d; use fewer layers above the model or a shorter root: %w",
		layers, n, limit, errdefs.ErrResourceExhausted)
}

func bind(dir string, users []string, access string) []mount.Mount {
	return []mount.Mount{{Type: "bind", Source: dir, Options: append(users, access, "rbind")}}
}
