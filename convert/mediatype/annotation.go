package mediatype

// Annotation keys of model layers, all generations.
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

	// AnnotationTitle is the file name of a layer of any OCI artifact.
	// https://github.com/opencontainers/image-spec/blob/v1.1.1/annotations.md
	AnnotationTitle = "org.opencontainers.image.title"
)

// Keys of the manifest of early CNAI, which had its metadata in annotations.
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

	// AnnotationContextLength is the number of tokens that a model can have in mind; on
	// manifests. ModelPack has no place for it.
	AnnotationContextLength = "dev.ballast.model.context.length"

	// AnnotationRunner, AnnotationFramework and AnnotationPlatforms say what runs a model: the name
	// of a runner, a requirement on the version of its framework, and target triples with commas
	// between them; on manifests.
	AnnotationRunner    = "dev.ballast.model.runner.name"
	AnnotationFramework = "dev.ballast.model.runner.framework.version"
	AnnotationPlatforms = "dev.ballast.model.runner.platforms"

	// AnnotationLayerType is the ModelPack media type of a blob; on blob layers.
	AnnotationLayerType = "dev.ballast.layer.mediatype"

	// AnnotationOriginType is the media type of a blob in the origin; on blob layers.
	AnnotationOriginType = "dev.ballast.origin.mediatype"

	// AnnotationSnapshotBlob is the digest of the blob; on blob layers. containerd makes
	// a snapshot label of it.
	// https://github.com/containerd/containerd/blob/v2.4.2/core/snapshots/snapshotter.go
	AnnotationSnapshotBlob = "containerd.io/snapshot/ballast.blob"

	// AnnotationSnapshotTable is the digest of the file table; on table layers.
	AnnotationSnapshotTable = "containerd.io/snapshot/ballast.table"
)

// Filepath returns the path that annotations give a layer, or "".
func Filepath(annotations map[string]string) string {
	return first(annotations, AnnotationFilepath, CNAIFilepath, AnnotationTitle)
}

// Metadata returns the JSON that annotations give the file of a layer, or "".
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
