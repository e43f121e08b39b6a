package mediatype

// FormatFiles is a directory of files, or one file, without any packaging.
const FormatFiles Format = "files"

// Keys of what is kept of an origin when it is converted ahead of time. All are on manifests.
const (
	// AnnotationOriginManifest is the manifest of the origin in base64, byte for byte, if it is
	// small. A larger one is a layer, whose digest is that of AnnotationOriginDigest.
	AnnotationOriginManifest = "dev.ballast.origin.manifest"

	// AnnotationOriginConfig is the config of the origin in base64, if it is small. A larger
	// one is a layer with the digest that the origin manifest says.
	AnnotationOriginConfig = "dev.ballast.origin.config"

	// AnnotationRefName is the tag of a manifest in the index of an OCI layout.
	// https://github.com/opencontainers/image-spec/blob/v1.1.1/annotations.md
	AnnotationRefName = "org.opencontainers.image.ref.name"
)
