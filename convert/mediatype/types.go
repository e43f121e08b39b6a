package mediatype

import (
	"strings"

	"github.com/ballast-dev/ballast/store/filetable"
)

// OCI types.
// https://github.com/opencontainers/image-spec/blob/v1.1.1/media-types.md
const (
	OCIManifest  = "application/vnd.oci.image.manifest.v1+json"
	OCIIndex     = "application/vnd.oci.image.index.v1+json"
	OCIConfig    = "application/vnd.oci.image.config.v1+json"
	OCIEmpty     = "application/vnd.oci.empty.v1+json"
	OrasConfig   = "application/vnd.unknown.config.v1+json" // of artifacts without a type, until oras 1.0
	OCILayer     = "application/vnd.oci.image.layer.v1.tar"
	OCILayerGzip = "application/vnd.oci.image.layer.v1.tar+gzip"
	OCILayerZstd = "application/vnd.oci.image.layer.v1.tar+zstd"
)

// Docker image types.
// https://github.com/distribution/distribution/blob/v3.0.0/docs/content/spec/manifest-v2-2.md
const (
	DockerManifest     = "application/vnd.docker.distribution.manifest.v2+json"
	DockerManifestList = "application/vnd.docker.distribution.manifest.list.v2+json"
	DockerConfig       = "application/vnd.docker.container.image.v1+json"
)

// Layers of a converted image.
const (
	BlobLayer  = filetable.MediaTypeBlobLayer
	TableLayer = filetable.MediaTypeTableLayer
)

// Converted is the artifactType of an index by which a converted image refers to its origin.
const Converted = "application/vnd.ballast.converted.v1+json"

// Order is the artifactType, and the type of the layer, of the order in which an image is first read
// (filetable.Order). Its subject is the manifest of the image.
const Order = "application/vnd.ballast.order.v1+json"

// States is the artifactType of a table of hash states (package hashstate). Its layer is a Bundle.
const States = "application/vnd.ballast.states.v1"

// UseInstead is the prefix of the Content-Type of a refused digest; the digest to use follows.
// containerd before 2.3 shows nothing else of the response.
const UseInstead = "application/vnd.ballast.use-instead@"

// ModelPack and CNAI types.
// https://github.com/modelpack/model-spec/blob/v0.0.7/docs/spec.md
const (
	prefixModelPack = "application/vnd.cncf.model."
	prefixCNAI      = "application/vnd.cnai.model."

	ModelPackManifest = prefixModelPack + "manifest.v1+json"
	ModelPackConfig   = prefixModelPack + "config.v1+json"
	CNAIManifest      = prefixCNAI + "manifest.v1+json"
	CNAIConfig        = prefixCNAI + "config.v1+json"

	// CNAIWeight is a raw weight, as specified.
	CNAIWeight = prefixCNAI + "weight.v1"

	// Artifact types of early CNAI, on descriptors of ordinary image layers.
	CNAIEarlyLayer     = prefixCNAI + "layer.v1.tar"
	CNAIEarlyLayerGzip = prefixCNAI + "layer.v1.tar+gzip"
)

// Docker AI types.
// https://github.com/docker/model-runner/blob/v1.2.6/pkg/distribution/types/config.go
const (
	prefixDockerAI = "application/vnd.docker.ai."

	DockerAIConfigV01   = prefixDockerAI + "model.config.v0.1+json"
	DockerAIConfigV02   = prefixDockerAI + "model.config.v0.2+json"
	DockerAIGGUF        = prefixDockerAI + "gguf.v3"
	DockerAILoRA        = prefixDockerAI + "gguf.v3.lora"
	DockerAIMMProjSpec  = prefixDockerAI + "gguf.v3.mmproj" // spelling of the specification
	DockerAIMMProj      = prefixDockerAI + "mmproj"         // spelling of the code
	DockerAISafetensors = prefixDockerAI + "safetensors"
	DockerAIVLLMConfig  = prefixDockerAI + "vllm.config.tar"
	DockerAIDir         = prefixDockerAI + "dir.tar"
	DockerAIDDUF        = prefixDockerAI + "dduf"
	DockerAILicense     = prefixDockerAI + "license"
	DockerAITemplate    = prefixDockerAI + "chat.template.jinja"
	DockerAIFile        = prefixDockerAI + "model.file"
)

// Ollama types. The manifest and the config have Docker's types.
// https://github.com/ollama/ollama/blob/v0.17.4/server/images.go
const (
	prefixOllama = "application/vnd.ollama.image."

	OllamaManifestList = "application/vnd.ollama.manifest.list.v2+json"
	OllamaModel        = prefixOllama + "model"
	OllamaProjector    = prefixOllama + "projector"
	OllamaAdapter      = prefixOllama + "adapter"
	OllamaDraft        = prefixOllama + "draft"
	OllamaTemplate     = prefixOllama + "template"
	OllamaSystem       = prefixOllama + "system"
	OllamaParams       = prefixOllama + "params"
	OllamaMessages     = prefixOllama + "messages"
	OllamaLicense      = prefixOllama + "license"
	OllamaEmbed        = prefixOllama + "embed"
	OllamaTensor       = prefixOllama + "tensor"
)

// subtypeCarton is the prefix of the subtypes of cartons.
const subtypeCarton = "vnd.carton"

// KitOps types. Those of layers are composed.
// https://github.com/kitops-ml/kitops/blob/v1.6.0/pkg/lib/constants/mediaType.go
const (
	prefixKitOps = "application/vnd.kitops.modelkit."

	KitOpsManifest = prefixKitOps + "manifest.v1+json"
	KitOpsConfig   = prefixKitOps + "config.v1+json"
)

// KitOpsLayer returns the media type of a layer of a ModelKit, such as for "model" and "tar+gzip".
func KitOpsLayer(kind, packing string) string { return prefixKitOps + kind + ".v1." + packing }

// KitOpsKind returns the kind in the media type of a layer of a ModelKit, such as "model"; "" for
// any other type.
func KitOpsKind(s string) string {
	rest, ok := strings.CutPrefix(Base(s), prefixKitOps)
	if !ok {
		return ""
	}
	kind, _, _ := strings.Cut(rest, ".")
	return kind
}

// Cog types. Layers have the types of an image.
// https://github.com/replicate/cog/blob/v0.22.0/specs/draft-weights.md
const (
	prefixCog = "application/vnd.cog.weight."

	CogWeight = prefixCog + "v1"
	CogConfig = prefixCog + "config.v1+json"
)

// prefixes are the prefixes of the media types of each format.
var prefixes = []struct {
	prefix string
	format Format
}{
	{OllamaManifestList, FormatOllamaList},
	{prefixOllama, FormatOllama},
	{prefixModelPack, FormatModelPack},
	{prefixCNAI, FormatCNAI},
	{prefixDockerAI, FormatDockerAI},
	{prefixKitOps, FormatKitOps},
	{prefixCog, FormatCog},
}

// table has the types that are exact names; those of ModelPack and CNAI layers are composed.
var table = map[string]Type{
	OCIManifest:  {Format: FormatImage},
	OCIIndex:     {Format: FormatIndex},
	OCIConfig:    {Format: FormatImage},
	OCIEmpty:     {Format: FormatImage},
	OCILayer:     {Format: FormatImage, Layer: true, Archive: filetable.ArchiveTar},
	OCILayerGzip: {Format: FormatImage, Layer: true, Archive: filetable.ArchiveTar, Codec: filetable.CodecGzip},
	OCILayerZstd: {Format: FormatImage, Layer: true, Archive: filetable.ArchiveTar, Codec: filetable.CodecZstd},
	"application/vnd.oci.image.layer.nondistributable.v1.tar":      {Format: FormatImage, Layer: true, Archive: filetable.ArchiveTar},
	"application/vnd.oci.image.layer.nondistributable.v1.tar+gzip": {Format: FormatImage, Layer: true, Archive: filetable.ArchiveTar, Codec: filetable.CodecGzip},
	"application/vnd.oci.image.layer.nondistributable.v1.tar+zstd": {Format: FormatImage, Layer: true, Archive: filetable.ArchiveTar, Codec: filetable.CodecZstd},
	DockerManifest:     {Format: FormatImage},
	DockerManifestList: {Format: FormatIndex},
	DockerConfig:       {Format: FormatImage},
	"application/vnd.docker.image.rootfs.diff.tar":              {Format: FormatImage, Layer: true, Archive: filetable.ArchiveTar},
	"application/vnd.docker.image.rootfs.diff.tar.gzip":         {Format: FormatImage, Layer: true, Archive: filetable.ArchiveTar, Codec: filetable.CodecGzip},
	"application/vnd.docker.image.rootfs.diff.tar.zstd":         {Format: FormatImage, Layer: true, Archive: filetable.ArchiveTar, Codec: filetable.CodecZstd},
	"application/vnd.docker.image.rootfs.foreign.diff.tar":      {Format: FormatImage, Layer: true, Archive: filetable.ArchiveTar},
	"application/vnd.docker.image.rootfs.foreign.diff.tar.gzip": {Format: FormatImage, Layer: true, Archive: filetable.ArchiveTar, Codec: filetable.CodecGzip},
	BlobLayer:  {Format: FormatImage, Layer: true},
	TableLayer: {Format: FormatImage, Layer: true},

	ModelPackManifest: {Format: FormatModelPack},
	ModelPackConfig:   {Format: FormatModelPack},
	CNAIManifest:      {Format: FormatCNAI},
	CNAIConfig:        {Format: FormatCNAI},

	DockerAIConfigV01:                       {Format: FormatDockerAI},
	DockerAIConfigV02:                       {Format: FormatDockerAI},
	prefixDockerAI + "model.config.v1+json": {Format: FormatDockerAI}, // before the first release
	DockerAIGGUF:                            {Format: FormatDockerAI, Layer: true, Kind: KindWeight, Part: PartGGUF},
	prefixDockerAI + "model.file.v1+gguf":   {Format: FormatDockerAI, Layer: true, Kind: KindWeight, Part: PartGGUF}, // before the first release
	DockerAILoRA:                            {Format: FormatDockerAI, Layer: true, Kind: KindWeight, Part: PartAdapter},
	DockerAIMMProjSpec:                      {Format: FormatDockerAI, Layer: true, Kind: KindWeight, Part: PartProjector},
	DockerAIMMProj:                          {Format: FormatDockerAI, Layer: true, Kind: KindWeight, Part: PartProjector},
	DockerAISafetensors:                     {Format: FormatDockerAI, Layer: true, Kind: KindWeight, Part: PartSafetensors},
	DockerAIVLLMConfig:                      {Format: FormatDockerAI, Layer: true, Kind: KindWeightConfig, Part: PartDir, Archive: filetable.ArchiveTar},
	DockerAIDir:                             {Format: FormatDockerAI, Layer: true, Kind: KindWeight, Part: PartDir, Archive: filetable.ArchiveTar},
	DockerAIDDUF:                            {Format: FormatDockerAI, Layer: true, Kind: KindWeight, Part: PartDDUF},
	DockerAILicense:                         {Format: FormatDockerAI, Layer: true, Kind: KindDoc, Part: PartLicense},
	DockerAITemplate:                        {Format: FormatDockerAI, Layer: true, Kind: KindWeightConfig, Part: PartTemplate},
	DockerAIFile:                            {Format: FormatDockerAI, Layer: true, Part: PartFile},

	OllamaManifestList:                {Format: FormatOllamaList},
	OllamaModel:                       {Format: FormatOllama, Layer: true, Kind: KindWeight, Part: PartModel},
	OllamaProjector:                   {Format: FormatOllama, Layer: true, Kind: KindWeight, Part: PartProjector},
	OllamaAdapter:                     {Format: FormatOllama, Layer: true, Kind: KindWeight, Part: PartAdapter},
	OllamaDraft:                       {Format: FormatOllama, Layer: true, Kind: KindWeight, Part: PartDraft},
	OllamaTemplate:                    {Format: FormatOllama, Layer: true, Kind: KindWeightConfig, Part: PartTemplate},
	prefixOllama + "prompt":           {Format: FormatOllama, Layer: true, Kind: KindWeightConfig, Part: PartTemplate}, // earlier name of templates
	OllamaSystem:                      {Format: FormatOllama, Layer: true, Kind: KindWeightConfig, Part: PartSystem},
	OllamaParams:                      {Format: FormatOllama, Layer: true, Kind: KindWeightConfig, Part: PartParams},
	OllamaMessages:                    {Format: FormatOllama, Layer: true, Kind: KindWeightConfig, Part: PartMessages},
	OllamaLicense:                     {Format: FormatOllama, Layer: true, Kind: KindDoc, Part: PartLicense},
	OllamaEmbed:                       {Format: FormatOllama, Layer: true, Part: PartEmbed},
	OllamaTensor:                      {Format: FormatOllama, Layer: true, Kind: KindWeight, Part: PartTensor},
	prefixOllama + "json":             {Format: FormatOllama, Layer: true, Kind: KindWeightConfig, Part: PartJSON},
	prefixOllama + "config":           {Format: FormatOllama, Layer: true, Kind: KindWeightConfig, Part: PartConfig},
	prefixOllama + "tokenizer":        {Format: FormatOllama, Layer: true, Kind: KindWeightConfig, Part: PartTokenizer},
	prefixOllama + "tokenizer.config": {Format: FormatOllama, Layer: true, Kind: KindWeightConfig, Part: PartTokenizerConfig},

	KitOpsManifest: {Format: FormatKitOps},
	KitOpsConfig:   {Format: FormatKitOps},
	CogWeight:      {Format: FormatCog},
	CogConfig:      {Format: FormatCog},
}
