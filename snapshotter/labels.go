package snapshotter

import (
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/ballast-dev/ballast/store/verify"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/identity"
)

const (
	// labelBlob has the digest of the blob of a blob layer. containerd makes it of the
	// annotation of the layer with the same key.
	labelBlob = "containerd.io/snapshot/ballast.blob"

	// labelParentChainID has the chainID of the layer below, and is missing on the first.
	// It is a private constant of containerd's unpacker.
	// https://github.com/containerd/containerd/blob/v2.4.2/core/unpack/unpacker.go
	labelParentChainID = "containerd.io/snapshot/parent-chain-id"

	// imageVolumes is part of the key of every snapshot that the CRI plugin makes for an
	// image volume.
	// https://github.com/containerd/containerd/blob/v2.4.2/internal/cri/server/helpers.go
	imageVolumes = "/image-volumes/"
)

// remoteTarget returns the name of the remote snapshot for a Prepare with these labels on
// this parent, or "" if they are not those of a blob layer.
func remoteTarget(labels map[string]string, parent string) string {
	ref, err := verify.ParseDigest(labels[snapshots.LabelSnapshotRef])
	if err != nil {
		return ""
	}
	blob, err := verify.ParseDigest(labels[labelBlob])
	if err != nil {
		return ""
	}
	diffID := filetable.BlobDiffID(blob)
	if labels[snapshots.LabelSnapshotDiffID] != diffID.String() {
		return ""
	}
	chain := []digest.Digest{diffID}
	below, ok := labels[labelParentChainID]
	if ok != (parent != "") {
		return ""
	}
	if ok {
		p, err := verify.ParseDigest(below)
		if err != nil {
			return ""
		}
		chain = []digest.Digest{p, diffID}
	}
	if ref != identity.ChainID(chain) {
		return ""
	}
	return ref.String()
}

// labelsOf returns the labels that opts give a snapshot.
func labelsOf(opts []snapshots.Opt) (map[string]string, error) {
	var info snapshots.Info
	for _, o := range opts {
		if err := o(&info); err != nil {
			return nil, err
		}
	}
	return info.Labels, nil
}
