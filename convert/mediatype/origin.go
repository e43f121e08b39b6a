package mediatype

// FormatFiles is a directory of files, or a single file, without packaging.
const FormatFiles Format = "files"

// Keys of the documents of an origin that is converted before it is pushed. All are on manifests.
const (
	// AnnotationOriginManifest is the manifest of the origin in base64, byte for byte, if it is
	// small. A larger one is a layer with the digest in AnnotationOriginDigest.
	AnnotationOriginManifest = "dev.ballast.origin.manifest"

	// AnnotationOriginConfig is the config of the origin in base64, if it is small. A larger one is
	// a layer with the digest in the origin manifest.
	AnnotationOriginConfig = "dev.ballast.origin.config"

	// AnnotationRefName is the tag of a manifest in the index of an OCI layout.
	// https://github.com/opencontainers/image-spec/blob/v1.1.1/annotations.md
	AnnotationRefName = "org.opencontainers.image.ref.name"
)
