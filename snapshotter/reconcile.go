package snapshotter

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/core/snapshots/storage"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// refPrefix begins the names of our references in the store.
const refPrefix = "snapshot/"

func refName(id string) string { return refPrefix + id }

// Hold keeps the objects of a table for the snapshot id, until the snapshot is removed.
//
// It returns errdefs.ErrFailedPrecondition if the snapshot shows another table.
func (s *Snapshotter) Hold(ctx context.Context, id string, table digest.Digest) error {
	m, err := readMarker(s.snapshotDir(id))
	if err != nil {
		return err
	}
	if m.Table != "" && m.Table != table {
		return fmt.Errorf("hold table %s: snapshot %s is of another layer: %w", table, id, errdefs.ErrFailedPrecondition)
	}
	if err := s.store.AddRef(ctx, refName(id), table, time.Time{}); err != nil {
		return fmt.Errorf("hold table %s for snapshot %s: %w", table, id, err)
	}
	// If the snapshot was removed meanwhile, nobody would remove the reference.
	if err := s.active(ctx, id); err != nil {
		s.release(context.WithoutCancel(ctx), id)
		return err
	}
	return nil
}

// Reconcile makes the store's references agree with the snapshots: what is left of snapshots that
// are gone is removed (Cleanup), and every model has a reference, also one that only its directory
// tells of. Call it once before serving.
//
// Nothing is removed while the metadata may have forgotten snapshots: that waits for the next Cleanup.
func (s *Snapshotter) Reconcile(ctx context.Context) error {
	if !s.unsure {
		if err := s.Cleanup(ctx); err != nil { // nothing is lost by it
			s.log.WarnContext(ctx, "what is left of snapshots that are gone stays until the next cleanup", "err", err)
		}
	}
	refs, err := s.refs(ctx)
	if err != nil {
		return err
	}
	dirs, err := s.dirs()
	if err != nil {
		return err
	}
	for _, id := range dirs {
		m, err := readMarker(s.snapshotDir(id))
		if err != nil || m.Table == "" || refs[id] != "" {
			continue // Inspect looks at what is damaged, or does not agree
		}
		if err := s.store.AddRef(ctx, refName(id), m.Table, time.Time{}); err != nil {
			s.log.WarnContext(ctx, "model of a snapshot is not in the store; its files can not be read", "snapshot", id, "table", m.Table, "err", err)
		}
	}
	return nil
}

// Cleanup removes the directories and references of snapshots that are gone, but for those that
// are part of a mount somewhere: if the metadata was lost, a container may run in them. They go
// with the first Cleanup after they were unmounted.
//
// Then it makes room, if the disk is full: the kubelet measures the disk right after containerd has removed
// images, and evicts pods if that was of no use.
func (s *Snapshotter) Cleanup(ctx context.Context) error {
	refs, err := s.refs(ctx) // before ids: what is in refs and not in ids is gone
	if err != nil {
		return err
	}
	gone, err := s.gone(ctx, refs)
	if err != nil || len(gone) == 0 {
		return err
	}
	mounted, err := s.mounted(gone, false)
	if err != nil {
		return err
	}
	var drop []string
	for _, id := range gone {
		if mounted[id] {
			s.log.WarnContext(ctx, "directory of a snapshot that is not known stays while it is mounted", "snapshot", id)
			continue
		}
		// A reference can have any name.
		if filepath.Base(id) == id && id != "." && id != ".." {
			if err := os.RemoveAll(s.snapshotDir(id)); err != nil {
				s.log.WarnContext(ctx, "directory of a snapshot that is gone stays until the next cleanup", "snapshot", id, "err", err)
				continue
			}
		}
		if _, ok := refs[id]; ok {
			drop = append(drop, refName(id))
		}
	}
	if len(drop) > 0 {
		if err := s.store.RemoveRef(ctx, drop...); err != nil {
			return fmt.Errorf("remove references of %d snapshots: %w", len(drop), err)
		}
	}
	if err := s.store.MakeRoom(ctx); err != nil {
		s.log.WarnContext(ctx, "objects that nothing needs stay until the next look", "err", err)
	}
	return nil
}

// gone returns the names of directories and references that belong to no snapshot. Ids are never
// used again, so it stays true.
func (s *Snapshotter) gone(ctx context.Context, refs map[string]digest.Digest) (gone []string, err error) {
	// In a transaction that writes, no snapshot is being made.
	err = s.meta.WithTransaction(ctx, true, func(ctx context.Context) error {
		ids, err := storage.IDMap(ctx)
		if err != nil {
			return err
		}
		dirs, err := s.dirs()
		if err != nil {
			return err
		}
		for _, id := range slices.AppendSeq(dirs, maps.Keys(refs)) {
			if _, ok := ids[id]; !ok {
				gone = append(gone, id)
			}
		}
		return nil
	})
	slices.Sort(gone)
	return slices.Compact(gone), err
}

// dirs returns the names in the directory of the snapshots: ids, and what a crash left.
func (s *Snapshotter) dirs() ([]string, error) {
	f, err := os.Open(filepath.Join(s.root, "snapshots"))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return f.Readdirnames(0)
}

// refs returns the table that the store holds for each snapshot id.
func (s *Snapshotter) refs(ctx context.Context) (map[string]digest.Digest, error) {
	list, err := s.store.Refs(ctx, refPrefix)
	if err != nil {
		return nil, err
	}
	refs := make(map[string]digest.Digest, len(list))
	for _, r := range list {
		refs[strings.TrimPrefix(r.Name, refPrefix)] = r.Table
	}
	return refs, nil
}

// active returns errdefs.ErrNotFound if there is no snapshot id, and
// errdefs.ErrFailedPrecondition if it is not active.
func (s *Snapshotter) active(ctx context.Context, id string) error {
	return s.meta.WithTransaction(ctx, false, func(ctx context.Context) error {
		ids, err := storage.IDMap(ctx)
		if err != nil {
			return err
		}
		key, ok := ids[id]
		if !ok {
			return fmt.Errorf("snapshot %s: %w", id, errdefs.ErrNotFound)
		}
		_, info, _, err := storage.GetInfo(ctx, key)
		if err == nil && info.Kind != snapshots.KindActive {
			err = fmt.Errorf("snapshot %s is not active: %w", id, errdefs.ErrFailedPrecondition)
		}
		return err
	})
}

// Locate returns the id of the active snapshot that mounts are of. It returns
// errdefs.ErrFailedPrecondition if they are not mounts of this snapshotter.
func (s *Snapshotter) Locate(ctx context.Context, mounts []mount.Mount) (string, error) {
	bad := func(why string) (string, error) {
		return "", fmt.Errorf("mounts are not of the ballast snapshotter: %s: %w", why, errdefs.ErrFailedPrecondition)
	}
	if len(mounts) != 1 {
		return bad(fmt.Sprintf("%d mounts", len(mounts)))
	}
	dir := topOf(mounts[0])
	if dir == "" {
		return bad("no directory of its own")
	}
	dir, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return bad(err.Error())
	}
	rel, err := filepath.Rel(filepath.Join(s.root, "snapshots"), dir)
	if err != nil || !filepath.IsLocal(rel) {
		return bad(dir + " is elsewhere")
	}
	id, base, _ := strings.Cut(rel, "/")
	if base != "fs" {
		return bad(dir + " is not a snapshot")
	}
	return id, s.active(ctx, id)
}

// topOf returns the directory of a mount's own, or "".
func topOf(m mount.Mount) string {
	switch m.Type {
	case "bind": // read-only if it is staged
		return m.Source
	case "overlay":
		for _, o := range m.Options {
			if dir, ok := strings.CutPrefix(o, "upperdir="); ok {
				return dir
			}
		}
	}
	return ""
}
