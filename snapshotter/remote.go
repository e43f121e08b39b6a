package snapshotter

import (
	"cmp"
	"context"
	"fmt"

	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs"
)

// prepareRemote makes the empty snapshot of a blob layer and commits it with the name target. It
// returns errdefs.ErrAlreadyExists, which tells containerd that the layer is present. It returns
// nil if the name belongs to a snapshot that containerd would not accept for this layer: the layer
// is then unpacked as usual.
func (s *Snapshotter) prepareRemote(ctx context.Context, target, key, parent string, opts []snapshots.Opt) error {
	there := fmt.Errorf("snapshot %q: %w", target, errdefs.ErrAlreadyExists)
	found, fits, err := s.findRemote(ctx, target, parent)
	switch {
	case err != nil:
		return err
	case fits:
		return there
	case found:
		return nil
	}
	if _, err := s.overlay.Prepare(ctx, key, parent, opts...); err != nil {
		return err
	}
	// The label is enough: a marker would cost two more journal writes for each layer.
	err = s.overlay.Commit(ctx, target, key, withShows(opts, marker{Empty: true})...)
	if err == nil {
		return there
	}
	// The incomplete snapshot must not stay. Usually another namespace has just committed the same
	// layer.
	if _, rerr := s.drop(context.WithoutCancel(ctx), key); rerr != nil {
		return fmt.Errorf("claim %s: %w; remove %q: %w", target, err, key, rerr)
	}
	if errdefs.IsAlreadyExists(err) {
		if _, fits, ferr := s.findRemote(ctx, target, parent); ferr != nil || fits {
			return cmp.Or(ferr, there)
		}
		return nil
	}
	return fmt.Errorf("claim %s: %w", target, err)
}

// findRemote reports whether a snapshot with the name target exists, and whether it is the empty
// one that containerd looks for.
func (s *Snapshotter) findRemote(ctx context.Context, target, parent string) (found, fits bool, err error) {
	id, info, err := s.info(ctx, target)
	if errdefs.IsNotFound(err) {
		return false, false, nil
	}
	if err != nil {
		return false, false, err
	}
	m, err := s.checkedMarker(id, info.Labels[labelShows])
	if err != nil {
		return true, false, err
	}
	fits = m.Empty && info.Kind == snapshots.KindCommitted && info.Parent == parent &&
		info.Labels[snapshots.LabelSnapshotRef] == target
	return true, fits, nil
}

// MarkEmpty marks the active snapshot id as that of a blob layer, so that mounts leave it out. It
// returns errdefs.ErrFailedPrecondition if the snapshot has files.
func (s *Snapshotter) MarkEmpty(ctx context.Context, id string) error {
	if err := s.active(ctx, id); err != nil {
		return err
	}
	return s.markEmpty(id, errdefs.ErrFailedPrecondition)
}

// markEmpty writes the marker of a blob layer. It returns an error of category otherwise if the
// snapshot has files.
func (s *Snapshotter) markEmpty(id string, otherwise error) error {
	empty, err := emptyDir(s.upperDir(id))
	if err != nil {
		return err
	}
	if !empty {
		return fmt.Errorf("snapshot %s of a blob layer has files: %w", id, otherwise)
	}
	return writeMarker(s.snapshotDir(id), marker{Empty: true})
}
