package losses

import (
	"slices"
	"strings"

	"github.com/ballast-dev/ballast/convert"
	"github.com/ballast-dev/ballast/convert/mediatype"
)

// rules say what has a place in a converted image.
type rules struct {
	// keys are members of the config, by path. The value is empty for one that is in the ModelPack
	// config or in the files, and otherwise says where it is.
	keys map[string]string

	// skip are members that say nothing of the model.
	skip []string

	// words return a text as the ModelPack config has it.
	words map[string]func(string) string

	// annotations are members of the manifest with a place.
	annotations map[string]string

	// always is lost of every model.
	always []Loss

	manifest, config string // where the documents are, if not in the image itself
}

// manifestKeys are members of a manifest whose place is in the manifest of the image.
var manifestKeys = []string{"schemaVersion", "mediaType", "artifactType", "config", "layers"}

// layerKeys are members of a layer with a place in the image or in the table. What a layer is in
// its own format is an annotation of the image.
var layerKeys = []string{"mediaType", "digest", "size", "artifactType"}

var layerAnnotations = []string{
	mediatype.AnnotationFilepath, mediatype.AnnotationMetadata, mediatype.CNAIFilepath, mediatype.CNAIMetadata,
	mediatype.CNAIMetadataOld, mediatype.AnnotationTitle, mediatype.AnnotationUntested,
	mediatype.EarlyIsReadme, mediatype.EarlyIsLicense, mediatype.EarlyIsConfig, mediatype.EarlyIsModel,
}

// places makes keys of paths that have a place.
func places(prefix string, keys ...string) map[string]string {
	m := map[string]string{}
	for _, k := range keys {
		m[prefix+k] = ""
	}
	return m
}

func union(all ...map[string]string) map[string]string {
	m := map[string]string{}
	for _, one := range all {
		for k, v := range one {
			m[k] = v
		}
	}
	return m
}

const contextAnnotation = "annotation " + mediatype.AnnotationContextLength

// modelPack are the members of a config in all generations.
var modelPack = union(
	places("descriptor.", "createdAt", "createTime", "authors", "vendor", "family", "name", "version", "title", "description",
		"docURL", "infoURL", "sourceURL", "datasetsURL", "revision", "licenses"),
	places("config.", "architecture", "format", "paramSize", "parameterSize", "precision", "quantization", "puantization"),
	places("config.capabilities.", "inputTypes", "input_types", "outputTypes", "output_types", "knowledgeCutoff", "knowledge_cutoff",
		"reasoning", "toolUsage", "tool_usage", "reward", "languages", "embedding"),
	places("", "modelfs"),
)

var early = places("annotations.",
	mediatype.EarlyArchitecture, mediatype.EarlyAuthors, mediatype.EarlyCreated, mediatype.EarlyDescription, mediatype.EarlyDocumentation,
	mediatype.EarlyFamily, mediatype.EarlyFormat, mediatype.EarlyLicenses, mediatype.EarlyName, mediatype.EarlyParamSize,
	mediatype.EarlyPrecision, mediatype.EarlyQuantization, mediatype.EarlyRevision, mediatype.EarlySource, mediatype.EarlyTitle,
	mediatype.EarlyURL, mediatype.EarlyVendor, mediatype.EarlyVersion)

// capabilities are those of Ollama with a place.
var capabilities = []string{"completion", "vision", "audio", "image", "embedding", "tools", "thinking"}

var formats = map[mediatype.Format]rules{
	mediatype.FormatModelPack: {keys: modelPack},
	mediatype.FormatCNAI:      {keys: modelPack},
	mediatype.FormatCNAIEarly: {keys: union(modelPack, places("", "rootfs")), annotations: early},
	mediatype.FormatDockerAI: {
		keys: union(
			places("config.", "format", "architecture", "parameters", "quantization", "gguf.architecture", "gguf.parameter_count", "gguf.quantization"),
			places("", "descriptor.created", "descriptor.createdAt", "rootfs", "files"),
			map[string]string{"config.context_size": contextAnnotation},
		),
		words: map[string]func(string) string{
			"config.parameters": convert.ParamSize, "config.gguf.parameter_count": convert.ParamSize,
			"config.quantization": withoutMostly, "config.gguf.quantization": withoutMostly,
		},
	},
	mediatype.FormatOllama: {
		keys: union(
			places("", "model_format", "model_family", "model_type", "file_type", "capabilities"),
			map[string]string{"context_length": contextAnnotation},
		),
		words: map[string]func(string) string{
			"model_type": convert.ParamSize,
			"capabilities": func(s string) string {
				if slices.Contains(capabilities, s) {
					return s
				}
				return ""
			},
		},
		manifest: "file ollama/manifest.json",
		config:   "file ollama/config.json",
	},
	mediatype.FormatKitOps: {
		keys: union(
			places("package.", "name", "version", "description", "license", "authors"),
			places("model.", "path", "license", "format", "digest", "diffId"),
		),
		config: "file Kitfile",
	},
	mediatype.FormatCarton: {
		always: []Loss{
			{"shapes, names and types of inputs and outputs beyond text and other", "file carton.toml"},
			{"options and compat version of the runner, self-tests, examples", "file carton.toml"},
			{"LINKS, if the carton has it: addresses of files that are elsewhere", ""},
			{"order, compression, times and links of the members of the archive", ""},
		},
	},
}

// withoutMostly drops what tools write before the name of a quantisation.
func withoutMostly(s string) string {
	return strings.TrimPrefix(strings.TrimPrefix(s, "MOSTLY_"), "ALL_")
}
