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

// labelParentChainID has the chainID of the layer below. On the first layer, it is the image's. It is a private
// constant of containerd's unpacker, since 2.3.
// https://github.com/containerd/containerd/blob/v2.4.2/core/unpack/unpacker.go
const labelParentChainID = "containerd.io/snapshot/parent-chain-id"

// laterParent returns the chainID of the layer below, if a snapshot with these labels and this parent is of a
// layer that gets its parent when it is committed; see the package documentation, "Unpacking in parallel".
// Otherwise it returns "".
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

// needsNoBytes says whether labels are those of a blob layer that gets its parent later.
func needsNoBytes(labels map[string]string, parent string) bool {
	blob, err := verify.ParseDigest(labels[labelBlob])
	return err == nil && laterParent(labels, parent) != "" && labels[snapshots.LabelSnapshotDiffID] == filetable.BlobDiffID(blob).String()
}

// stage makes the active snapshot of a blob layer that gets its parent later. That it can not be written to
// tells containerd that the layer needs no bytes.
func (s *Snapshotter) stage(ctx context.Context, key string, opts []snapshots.Opt) ([]mount.Mount, error) {
	if _, err := s.overlay.Prepare(ctx, key, "", opts...); err != nil {
		return nil, err
	}
	id, _, err := s.info(ctx, key)
	if err == nil {
		err = writeMarker(s.snapshotDir(id), marker{Empty: true})
	}
	if err != nil {
		if rerr := s.overlay.Remove(context.WithoutCancel(ctx), key); rerr != nil {
			return nil, fmt.Errorf("%w; remove %q: %w", err, key, rerr)
		}
		return nil, err
	}
	return bind(s.upperDir(id), nil, "ro"), nil
}

// apart returns the mounts of an active snapshot that gets its parent later. The bind mount of a snapshot
// without parent would do, but whoever unpacks into that takes files away that are not there, instead of
// hiding those of the layers below. https://github.com/containerd/containerd/issues/13030
func (s *Snapshotter) apart(id string) ([]mount.Mount, error) {
	m, err := readMarker(s.snapshotDir(id))
	if err != nil {
		return nil, err
	}
	if m.Empty {
		return bind(s.upperDir(id), nil, "ro"), nil
	}
	return []mount.Mount{{Type: "overlay", Source: "overlay", Options: []string{"upperdir=" + s.upperDir(id)}}}, nil
}

// checkParent returns errdefs.ErrFailedPrecondition if a snapshot is to be committed without the layers that
// it is on: what is above them would be shown alone.
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
	// containerd puts its namespace and a number before names, but for those of remote snapshots.
	if path.Base(base.Parent) != below.String() {
		return fmt.Errorf("commit %q on %q: the layer is on %s: %w", name, base.Parent, below, errdefs.ErrFailedPrecondition)
	}
	return nil
}
