package snapshotter

import (
	"context"
	"fmt"
	"path"

	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/ballast-dev/ballast/store/verify"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/identity"
)

// Parallel unpacking.
//
// If containerd unpacks several layers of an image at a time (max_concurrent_unpacks, with the
// snapshotter's capability "rebase"), it prepares all of them without a parent and names the parent
// at the commit. Such a layer differs from a first layer by a label: a chainID that follows from its
// diffID and the chainID of the layer below. Prepare then makes
//
//	blob layer      an empty active snapshot with a read-only mount. containerd 2.4 takes this as
//	                "the layer is staged" and commits it; older versions fetch and apply the layer.
//	other layers    an overlay mount with an upper directory only, so that whiteouts are kept
//
// and does not return ErrAlreadyExists: containerd would use the committed snapshot as it is and
// silently drop the layers below. Commit refuses these snapshots without the parent in their labels.

// labelParentChainID has the chainID of the layer below. On the first layer it has that of the
// image. It is a private constant of containerd's unpacker since 2.3.
// https://github.com/containerd/containerd/blob/v2.4.2/core/unpack/unpacker.go
const labelParentChainID = "containerd.io/snapshot/parent-chain-id"

// laterParent returns the chainID of the layer below if labels and parent are those of a layer
// whose parent is set at the commit, otherwise "".
func laterParent(labels map[string]string, parent string) digest.Digest {
	ref, err := verify.ParseDigest(labels[snapshots.LabelSnapshotRef])
	if err != nil || parent != "" {
		return ""
	}
	diffID, err := verify.ParseDigest(labels[snapshots.LabelSnapshotDiffID])
	if err != nil {
		return ""
	}
	below, err := verify.ParseDigest(labels[labelParentChainID])
	if err != nil || ref != identity.ChainID([]digest.Digest{below, diffID}) {
		return ""
	}
	return below
}

// needsNoBytes reports whether labels are those of a blob layer whose parent is set at the commit.
func needsNoBytes(labels map[string]string, parent string) bool {
	blob, err := verify.ParseDigest(labels[labelBlob])
	return err == nil && laterParent(labels, parent) != "" && labels[snapshots.LabelSnapshotDiffID] == filetable.BlobDiffID(blob).String()
}

// stage makes the active snapshot of a blob layer whose parent is set at the commit. The read-only
// mount tells containerd that the layer needs no bytes.
func (s *Snapshotter) stage(ctx context.Context, key string, opts []snapshots.Opt) ([]mount.Mount, error) {
	if _, err := s.overlay.Prepare(ctx, key, "", opts...); err != nil {
		return nil, err
	}
	id, _, err := s.info(ctx, key)
	if err == nil {
		err = writeMarker(s.snapshotDir(id), marker{Empty: true})
	}
	if err != nil {
		if _, rerr := s.drop(context.WithoutCancel(ctx), key); rerr != nil {
			return nil, fmt.Errorf("%w; remove %q: %w", err, key, rerr)
		}
		return nil, err
	}
	return bind(s.upperDir(id), nil, "ro"), nil
}

// upperMounts returns the mounts of an active snapshot whose parent is set at the commit. In the usual
// bind mount, unpacking would apply whiteouts by removing files that are not there, instead of
// hiding those of the layers below.
// https://github.com/containerd/containerd/issues/13030
func (s *Snapshotter) upperMounts(id string) ([]mount.Mount, error) {
	m, err := readMarker(s.snapshotDir(id))
	if err != nil {
		return nil, err
	}
	if m.Empty {
		return bind(s.upperDir(id), nil, "ro"), nil
	}
	return []mount.Mount{{Type: "overlay", Source: "overlay", Options: []string{"upperdir=" + s.upperDir(id)}}}, nil
}

// checkParent returns errdefs.ErrFailedPrecondition if a snapshot is committed without the parent
// in its labels: the layers below would be missing.
func checkParent(info snapshots.Info, name string, opts []snapshots.Opt) error {
	below := laterParent(info.Labels, info.Parent)
	if below == "" {
		return nil
	}
	var base snapshots.Info
	for _, o := range opts {
		if err := o(&base); err != nil {
			return err
		}
	}
	// containerd puts its namespace and a number before names, except those of remote snapshots.
	if path.Base(base.Parent) != below.String() {
		return fmt.Errorf("commit %q on %q: the parent of the layer is %s: %w", name, base.Parent, below, errdefs.ErrFailedPrecondition)
	}
	return nil
}
