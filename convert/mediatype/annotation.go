package mediatype

import "strings"

// Annotation keys of model layers, of all generations.
// https://github.com/modelpack/model-spec/blob/v0.0.7/docs/annotations.md
const (
	keyModelPack = "org.cncf.model."
	keyCNAI      = "org.cnai.model."

	AnnotationFilepath = keyModelPack + "filepath"
	AnnotationMetadata = keyModelPack + "file.metadata+json"
	AnnotationUntested = keyModelPack + "file.mediatype.untested"

	CNAIFilepath    = keyCNAI + "filepath"
	CNAIMetadata    = keyCNAI + "file.metadata+json"
	CNAIMetadataOld = keyCNAI + "file.metadata" // v0.0.4 only

	// AnnotationTitle is the file name of a layer of an OCI artifact.
	// https://github.com/opencontainers/image-spec/blob/v1.1.1/annotations.md
	AnnotationTitle = "org.opencontainers.image.title"

	AnnotationCreated     = "org.opencontainers.image.created"
	AnnotationDescription = "org.opencontainers.image.description"
	AnnotationLicenses    = "org.opencontainers.image.licenses"

	// OrasUnpack is "true" for a layer that is a directory as tar+gzip; OrasDigest is the digest of
	// the tar.
	// https://github.com/oras-project/oras-go/blob/v2.6.0/content/file/utils.go
	OrasUnpack = "io.deis.oras.content.unpack"
	OrasDigest = "io.deis.oras.content.digest"
)

// Keys of the manifest of early CNAI, which has its metadata in annotations.
const (
	EarlyArchitecture  = keyCNAI + "architecture"
	EarlyAuthors       = keyCNAI + "authors"
	EarlyCreated       = keyCNAI + "created"
	EarlyDescription   = keyCNAI + "description"
	EarlyDocumentation = keyCNAI + "documentation"
	EarlyFamily        = keyCNAI + "family"
	EarlyFormat        = keyCNAI + "format"
	EarlyLicenses      = keyCNAI + "licenses"
	EarlyName          = keyCNAI + "name"
	EarlyParamSize     = keyCNAI + "param.size"
	EarlyPrecision     = keyCNAI + "precision"
	EarlyQuantization  = keyCNAI + "quantization"
	EarlyRevision      = keyCNAI + "revision"
	EarlySource        = keyCNAI + "source"
	EarlyTitle         = keyCNAI + "title"
	EarlyURL           = keyCNAI + "url"
	EarlyVendor        = keyCNAI + "vendor"
	EarlyVersion       = keyCNAI + "version"
)

// Keys of a layer of early CNAI, with the value "true".
const (
	EarlyIsReadme  = keyCNAI + "readme"
	EarlyIsLicense = keyCNAI + "license"
	EarlyIsConfig  = keyCNAI + "config"
	EarlyIsModel   = keyCNAI + "model"
)

// Keys of converted images.
const (
	// AnnotationOriginFormat is the Format of the origin; on manifests.
	AnnotationOriginFormat = "dev.ballast.origin.format"

	// AnnotationOriginDigest is the digest of the origin manifest; on manifests.
	AnnotationOriginDigest = "dev.ballast.origin.digest"

	// AnnotationMapping is the version of the mapping rules; on manifests.
	AnnotationMapping = "dev.ballast.mapping.version"

	// AnnotationPrefix is the directory of the model in a mount, if it is not all of it; on manifests.
	AnnotationPrefix = "dev.ballast.mapping.prefix"

	// AnnotationContextLength is the context length of a model in tokens; on manifests. ModelPack
	// has no place for it.
	AnnotationContextLength = "dev.ballast.model.context.length"

	// AnnotationRunner, AnnotationFramework and AnnotationPlatforms describe what runs a model: the
	// name of a runner, a requirement on the version of its framework, and target triples separated
	// by commas; on manifests.
	AnnotationRunner    = "dev.ballast.model.runner.name"
	AnnotationFramework = "dev.ballast.model.runner.framework.version"
	AnnotationPlatforms = "dev.ballast.model.runner.platforms"

	// AnnotationLayerType is the ModelPack media type of a blob; on blob layers.
	AnnotationLayerType = "dev.ballast.layer.mediatype"

	// AnnotationOriginType is the media type of a blob in the origin; on blob layers.
	AnnotationOriginType = "dev.ballast.origin.mediatype"

	// AnnotationSnapshotBlob is the digest of the blob; on blob layers. containerd copies it to a
	// snapshot label.
	// https://github.com/containerd/containerd/blob/v2.4.2/core/snapshots/snapshotter.go
	AnnotationSnapshotBlob = "containerd.io/snapshot/ballast.blob"

	// AnnotationSnapshotTable is the digest of the file table; on table layers.
	AnnotationSnapshotTable = "containerd.io/snapshot/ballast.table"
)

// Filepath returns the path of a layer in its annotations, or "".
func Filepath(annotations map[string]string) string {
	return first(annotations, AnnotationFilepath, CNAIFilepath, AnnotationTitle)
}

// Metadata returns the file metadata of a layer in its annotations, as JSON, or "".
func Metadata(annotations map[string]string) string {
	return first(annotations, AnnotationMetadata, CNAIMetadata, CNAIMetadataOld)
}

func first(annotations map[string]string, keys ...string) string {
	for _, k := range keys {
		if v := annotations[k]; v != "" {
			return v
		}
	}
	return ""
}

// IsOwnAnnotation reports whether an annotation has a meaning for readers of models, and is not a remark of people.
func IsOwnAnnotation(key string) bool {
	return strings.HasPrefix(key, "dev.ballast.") || strings.HasPrefix(key, keyModelPack) || strings.HasPrefix(key, keyCNAI)
}
