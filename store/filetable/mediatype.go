package filetable

import "github.com/opencontainers/go-digest"

// The media types of the two layers of a converted image. containerd unpacks layers of any type
// with this prefix.
// https://github.com/containerd/containerd/blob/v2.4.2/core/images/mediatypes.go
const (
	MediaTypeBlobLayer  = "application/vnd.oci.image.layer.ballast.blob.v1"
	MediaTypeTableLayer = "application/vnd.oci.image.layer.ballast.table.v1+json"
)

// BlobDiffID returns the diffID of the blob layer of the blob with digest d.
//
// It is not d itself: a tar that is a layer of an ordinary image has its own digest as diffID, and
// the chainID computed from it would identify the empty snapshot of a blob layer.
func BlobDiffID(d digest.Digest) digest.Digest {
	return digest.FromString("ballast blob v1 " + d.String())
}
