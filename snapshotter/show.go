package snapshotter

import (
	"context"
	"fmt"

	"github.com/ballast-dev/ballast/snapshotter/tree"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/ballast-dev/ballast/store/span"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// Show makes the files of a table in the active snapshot id. Every file must be complete in the
// store, or exposed by it if Lazy, and kept for the snapshot (Hold). Show can be called again after
// an error. The result is durable on return.
//
// It returns errdefs.ErrUnavailable if a file is missing, and errdefs.ErrFailedPrecondition if the
// snapshot is not active or shows another table.
func (s *Snapshotter) Show(ctx context.Context, id string, table digest.Digest) error {
	if err := s.active(ctx, id); err != nil {
		return err
	}
	return s.show(ctx, id, table)
}

// show makes the files of snapshot id agree with the table.
//
// States: absent → marked → shown. A snapshot that was shown stays so while it is repaired.
func (s *Snapshotter) show(ctx context.Context, id string, table digest.Digest) (err error) {
	ctx, end := span.Start(ctx, span.Mount, span.Digest(table))
	defer func() { end(err) }()
	dir := s.snapshotDir(id)
	m, err := readMarker(dir)
	if err != nil {
		return err
	}
	again := m != marker{}
	if !again {
		m = marker{Table: table, Show: s.backend}
		_, m.View = s.store.Views.Early(table)[ViewName(id)]
	}
	files, err := s.placed(table, func(table digest.Digest) ([]filetable.File, error) { return s.filesOf(id, m, table) })
	if err != nil {
		return err
	}
	switch {
	case !again:
		if err := writeMarker(dir, m); err != nil {
			return err
		}
	case m.Table != table:
		return fmt.Errorf("show table %s: snapshot %s belongs to another layer: %w", table, id, errdefs.ErrFailedPrecondition)
	}
	o := s.objects
	o.Size = s.store.Views.View(m.view(id)).Size
	u, err := tree.Show(ctx, s.upperDir(id), o, m.Show, files)
	if err != nil {
		return fmt.Errorf("snapshot %s: %w", id, err)
	}
	shown := marker{Table: table, Show: m.Show, View: m.View, Shown: true, Size: u.Size, Inodes: u.Inodes}
	if shown == m {
		return nil
	}
	return writeMarker(dir, shown)
}

// filesOf returns the files of a table that snapshot id may show with the marker m. Links and stubs without a lazy
// mount need complete files. It returns errdefs.ErrUnavailable if a file is missing, also if only its view lacks it.
func (s *Snapshotter) filesOf(id string, m marker, table digest.Digest) ([]filetable.File, error) {
	early := s.Lazy() && m.Show == tree.Stubs
	if m.View {
		if err := s.store.Views.Present(ViewName(id)); err != nil {
			return nil, err
		}
		if _, is := s.store.Views.Early(table)[ViewName(id)]; is && !early {
			return nil, fmt.Errorf("model %s is not complete: %w", table, errdefs.ErrUnavailable)
		}
	}
	if m.View || early {
		return s.store.Views.View(m.view(id)).Readable(table)
	}
	return s.store.Views.Files(table)
}

// placed returns the files of a table at their paths in a mount.
func (s *Snapshotter) placed(table digest.Digest, filesOf func(digest.Digest) ([]filetable.File, error)) ([]filetable.File, error) {
	files, err := filesOf(table)
	if err != nil {
		return nil, err
	}
	t, err := s.store.Table(table)
	if err != nil {
		return nil, err
	}
	return filetable.Place(t.Origin.Prefix, files)
}
