package mediatype

// Annotations of layers that can be read in chunks. They make the table of contents of such a layer
// as trustworthy as the manifest.
const (
	// AnnotationTOCDigest is the digest of the uncompressed table of contents, for eStargz and for
	// zstd:chunked written by stargz.
	// https://github.com/containerd/stargz-snapshotter/blob/v0.18.2/docs/estargz.md
	AnnotationTOCDigest = "containerd.io/snapshot/stargz/toc.digest"

	// Position and digest of the compressed table of contents, with the keys that stargz writes.
	// https://github.com/containerd/stargz-snapshotter/blob/v0.18.2/estargz/zstdchunked/zstdchunked.go
	StargzTOCPosition = "io.containers.zstd-chunked.manifest-position"
	StargzTOCChecksum = "io.containers.zstd-chunked.manifest-checksum"

	// The same with the keys that Podman, Buildah and Skopeo write.
	// https://github.com/containers/storage/blob/v1.59.1/pkg/chunked/internal/minimal/compression.go
	PodmanTOCPosition      = "io.github.containers.zstd-chunked.manifest-position"
	PodmanTOCChecksum      = "io.github.containers.zstd-chunked.manifest-checksum"
	PodmanTarSplitPosition = "io.github.containers.zstd-chunked.tarsplit-position"
)

// TOCKeys are the keys that a layer of a converted image keeps, for tools that read zstd:chunked.
var TOCKeys = []string{PodmanTOCPosition, PodmanTOCChecksum, PodmanTarSplitPosition}
