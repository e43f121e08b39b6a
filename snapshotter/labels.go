package snapshotter

import (
	"strings"

	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/ballast-dev/ballast/store/verify"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/identity"
)

const (
	// labelBlob has the digest of the blob of a blob layer. containerd copies it from the layer
	// annotation with the same key.
	labelBlob = "containerd.io/snapshot/ballast.blob"
)

// remoteTarget returns the name of the remote snapshot for a Prepare with these labels and this
// parent, or "" if the layer is not a blob layer. The chainID below is the end of the parent's
// name. Only the label with the name is used: containerd before 2.3 sets no other.
func remoteTarget(labels map[string]string, parent string) string {
	ref, err := verify.ParseDigest(labels[snapshots.LabelSnapshotRef])
	if err != nil {
		return ""
	}
	blob, err := verify.ParseDigest(labels[labelBlob])
	if err != nil {
		return ""
	}
	chain := []digest.Digest{filetable.BlobDiffID(blob)}
	if parent != "" {
		below, err := verify.ParseDigest(parent[strings.LastIndexByte(parent, '/')+1:])
		if err != nil {
			return ""
		}
		chain = []digest.Digest{below, chain[0]}
	}
	if ref != identity.ChainID(chain) {
		return ""
	}
	return ref.String()
}

// labelsOf returns the labels set by opts.
func labelsOf(opts []snapshots.Opt) (map[string]string, error) {
	var info snapshots.Info
	for _, o := range opts {
		if err := o(&info); err != nil {
			return nil, err
		}
	}
	return info.Labels, nil
}
