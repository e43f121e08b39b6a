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

// refPrefix is the prefix of the snapshotter's references in the store.
const refPrefix = "snapshot/"

func refName(id string) string { return refPrefix + id }

// Hold adds a reference that keeps the objects of a table until the snapshot id is removed. It records the names of
// the sources of the table, for downloading the rest of it later.
//
// It returns errdefs.ErrFailedPrecondition if the snapshot shows another table.
func (s *Snapshotter) Hold(ctx context.Context, id string, table digest.Digest, sources ...string) error {
	m, err := readMarker(s.snapshotDir(id))
	if err != nil {
		return err
	}
	if m.Table != "" && m.Table != table {
		return fmt.Errorf("hold table %s: snapshot %s belongs to another layer: %w", table, id, errdefs.ErrFailedPrecondition)
	}
	if err := s.store.AddRef(refName(id), table, time.Time{}, sources...); err != nil {
		return fmt.Errorf("hold table %s for snapshot %s: %w", table, id, err)
	}
	// If the snapshot was removed meanwhile, nothing else would remove the reference.
	if err := s.active(ctx, id); err != nil {
		s.release(context.WithoutCancel(ctx), id)
		return err
	}
	return nil
}

// Reconcile makes the store's references agree with the snapshots: it removes what is left of
// removed snapshots (Cleanup) and adds missing references, also for directories unknown to the
// metadata. Call it once before serving.
//
// Nothing is removed if the metadata may have lost snapshots; the next Cleanup does that.
func (s *Snapshotter) Reconcile(ctx context.Context) error {
	if !s.unsure {
		if err := s.Cleanup(ctx); err != nil { // no data is lost
			s.log.WarnContext(ctx, "files of removed snapshots stay until the next cleanup", "err", err)
		}
	}
	refs := s.refs()
	dirs, err := s.dirs()
	if err != nil {
		return err
	}
	for _, id := range dirs {
		m, err := readMarker(s.snapshotDir(id))
		if err != nil || m.Table == "" || refs[id] != "" {
			continue // Inspect handles markers that are damaged or disagree
		}
		if err := s.store.AddRef(refName(id), m.Table, time.Time{}); err != nil {
			s.log.WarnContext(ctx, "model of a snapshot is not in the store; its files cannot be read", "snapshot", id, "table", m.Table, "err", err)
		}
	}
	return nil
}

// Cleanup removes the directories and references of removed snapshots. Directories that are part of
// a mount stay until a Cleanup after they are unmounted: if metadata was lost, containers may still
// use them.
//
// It then frees space if the disk is full: the kubelet measures the disk right after containerd has
// removed images, and evicts pods if that freed too little.
func (s *Snapshotter) Cleanup(ctx context.Context) error {
	refs := s.refs() // read before the ids of snapshots, so that no new snapshot seems to be gone
	gone, err := s.orphans(ctx, refs)
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
			s.log.WarnContext(ctx, "directory of an unknown snapshot stays while it is mounted", "snapshot", id)
			continue
		}
		// The name of a reference can contain anything.
		if filepath.Base(id) == id && id != "." && id != ".." {
			s.leaving.Store(id, true)
			if err := os.RemoveAll(s.snapshotDir(id)); err != nil {
				s.log.WarnContext(ctx, "directory of a removed snapshot stays until the next cleanup", "snapshot", id, "err", err)
				continue
			}
			s.leaving.Delete(id)
		}
		if _, ok := refs[id]; ok {
			drop = append(drop, refName(id))
		}
	}
	if len(drop) > 0 {
		if err := s.store.RemoveRef(drop...); err != nil {
			return fmt.Errorf("remove references of %d snapshots: %w", len(drop), err)
		}
	}
	if err := s.store.MakeRoom(); err != nil {
		s.log.WarnContext(ctx, "unused objects stay until the next garbage collection", "err", err)
	}
	return nil
}

// orphans returns the names of directories and references without a snapshot. Ids are never reused, so
// the result stays true.
func (s *Snapshotter) orphans(ctx context.Context, refs map[string]digest.Digest) (gone []string, err error) {
	// During a write transaction no snapshot is being made.
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

// dirs returns the names in the directory of the snapshots: ids, and leftovers of a crash.
func (s *Snapshotter) dirs() ([]string, error) {
	f, err := os.Open(filepath.Join(s.root, snapshotsName))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return f.Readdirnames(0)
}

// refs returns the table that the store keeps for each snapshot id.
func (s *Snapshotter) refs() map[string]digest.Digest {
	refs := map[string]digest.Digest{}
	for _, r := range s.store.Catalog.Refs(refPrefix) {
		refs[strings.TrimPrefix(r.Name, refPrefix)] = r.Table
	}
	return refs
}

// active returns errdefs.ErrNotFound if there is no snapshot id, and errdefs.ErrFailedPrecondition
// if it is not active.
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

// Locate returns the id of the active snapshot of mounts. It returns errdefs.ErrFailedPrecondition
// if they are not mounts of this snapshotter.
func (s *Snapshotter) Locate(ctx context.Context, mounts []mount.Mount) (string, error) {
	bad := func(why string) (string, error) {
		return "", fmt.Errorf("mounts do not belong to the ballast snapshotter: %s: %w", why, errdefs.ErrFailedPrecondition)
	}
	if len(mounts) != 1 {
		return bad(fmt.Sprintf("%d mounts", len(mounts)))
	}
	dir := topOf(mounts[0])
	if dir == "" {
		return bad("no writable directory")
	}
	dir, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return bad(err.Error())
	}
	rel, err := filepath.Rel(filepath.Join(s.root, snapshotsName), dir)
	if err != nil || !filepath.IsLocal(rel) {
		return bad(dir + " is elsewhere")
	}
	id, base, _ := strings.Cut(rel, "/")
	if base != "fs" {
		return bad(dir + " is not a snapshot")
	}
	return id, s.active(ctx, id)
}

// topOf returns the writable directory of a mount, or "".
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
