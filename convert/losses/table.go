package losses

import (
	"maps"

	"github.com/ballast-dev/ballast/convert"
	"github.com/ballast-dev/ballast/convert/mediatype"
)

// Rules define what has a place in a converted image.
type Rules struct {
	// Keys are members of the config, by path. The value is empty for a member in the ModelPack
	// config or in the files, otherwise it names the place.
	Keys map[string]string

	// Skip are members without information about the model.
	Skip []string

	// Words convert a text to the words of the ModelPack config.
	Words map[string]func(string) string

	// Annotations are members of the manifest with a place.
	Annotations map[string]string

	// More returns further losses, from the manifest; may be nil.
	More func(m *convert.Manifest) []Loss

	// Always are the losses of every model.
	Always []Loss

	Manifest, Config string // the places of the documents, if they are not in the image itself
}

// manifestKeys are members of a manifest whose place is the manifest of the image.
var manifestKeys = []string{"schemaVersion", "mediaType", "artifactType", "config", "layers"}

// layerKeys are members of a layer with a place in the image or the table. The media type in the
// origin is an annotation of the image.
var layerKeys = []string{"mediaType", "digest", "size", "artifactType"}

var layerAnnotations = []string{
	mediatype.OrasUnpack, mediatype.OrasDigest,
	mediatype.AnnotationFilepath, mediatype.AnnotationMetadata, mediatype.CNAIFilepath, mediatype.CNAIMetadata,
	mediatype.CNAIMetadataOld, mediatype.AnnotationTitle, mediatype.AnnotationUntested,
	mediatype.EarlyIsReadme, mediatype.EarlyIsLicense, mediatype.EarlyIsConfig, mediatype.EarlyIsModel,
}

// Places returns keys for paths that have a place.
func Places(prefix string, keys ...string) map[string]string {
	m := map[string]string{}
	for _, k := range keys {
		m[prefix+k] = ""
	}
	return m
}

// Union merges keys.
func Union(all ...map[string]string) map[string]string {
	m := map[string]string{}
	for _, one := range all {
		maps.Copy(m, one)
	}
	return m
}

// ContextAnnotation is the annotation with the context length of a model.
const ContextAnnotation = "annotation " + mediatype.AnnotationContextLength
