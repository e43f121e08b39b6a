package mediatype

import (
	"fmt"
	"slices"
	"strings"

	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/containerd/errdefs"
)

// A Format is a way to package a model, or another type of manifest.
type Format string

// The supported formats.
const (
	FormatModelPack Format = "modelpack"
	FormatCNAI      Format = "cnai"       // ModelPack before July 2025
	FormatCNAIEarly Format = "cnai-early" // ModelPack before February 2025
	FormatDockerAI  Format = "docker-ai"
	FormatOllama    Format = "ollama"

	FormatOllamaList Format = "ollama-list" // one model with a variant for each runner
	FormatCarton     Format = "carton"
	FormatKitOps     Format = "kitops" // a ModelKit
	FormatCog        Format = "cog"    // managed weights of Cog

	// FormatTitled is an artifact whose layers are files with titles, to be mounted by their
	// titles.
	FormatTitled Format = "artifact"
)

// Formats that are not models and pass unchanged.
const (
	FormatImage Format = "image" // an image, or any other artifact that is not a model
	FormatIndex Format = "index" // of images or of models
)

// A Kind is the kind of a layer as defined by ModelPack.
// https://github.com/modelpack/model-spec/blob/v0.0.7/docs/spec.md
type Kind string

// The kinds.
const (
	KindWeight       Kind = "weight"
	KindWeightConfig Kind = "weight.config"
	KindDoc          Kind = "doc"
	KindCode         Kind = "code"
	KindDataset      Kind = "dataset"
)

// A Part is the function of a layer in its own format, if that is more specific than the Kind.
type Part string

// The parts of Docker AI and Ollama.
const (
	PartGGUF            Part = "gguf"
	PartSafetensors     Part = "safetensors"
	PartDDUF            Part = "dduf"
	PartModel           Part = "model"
	PartProjector       Part = "projector"
	PartAdapter         Part = "adapter"
	PartDraft           Part = "draft"
	PartTemplate        Part = "template"
	PartSystem          Part = "system"
	PartParams          Part = "params"
	PartMessages        Part = "messages"
	PartLicense         Part = "license"
	PartEmbed           Part = "embed"
	PartTensor          Part = "tensor"
	PartJSON            Part = "json"
	PartConfig          Part = "config"
	PartTokenizer       Part = "tokenizer"
	PartTokenizerConfig Part = "tokenizer.config"
	PartFile            Part = "file"
	PartDir             Part = "dir"
)

// A Type is the meaning of a media type.
type Type struct {
	Base    string // lower case, without parameters
	Format  Format
	Layer   bool // it is the type of a layer
	Kind    Kind // layers only; empty if the type does not determine it
	Part    Part // Docker AI, Ollama and ModelKit layers only
	Archive filetable.Archive
	Codec   filetable.Codec
}

// maxBase limits the base of a media type, in bytes: two names of 127 and a slash.
// https://www.rfc-editor.org/rfc/rfc6838#section-4.2
const maxBase = 255

// Base returns s without parameters, in lower case.
func Base(s string) string {
	b, _, _ := strings.Cut(s, ";")
	return strings.ToLower(strings.TrimSpace(b))
}

// Parse returns the meaning of a media type. It returns errdefs.ErrInvalidArgument if s is not a
// media type, and errdefs.ErrNotImplemented for an unknown type or version.
func Parse(s string) (Type, error) {
	base := Base(s)
	if len(base) > maxBase {
		return Type{}, fmt.Errorf("media type of %d bytes, more than %d: %w", len(base), maxBase, errdefs.ErrInvalidArgument)
	}
	if top, sub, ok := strings.Cut(base, "/"); !ok || top == "" || sub == "" {
		return Type{}, fmt.Errorf("media type %q: no type and subtype: %w", base, errdefs.ErrInvalidArgument)
	}
	if t, ok := table[base]; ok {
		t.Base = base
		return t, nil
	}
	switch {
	case strings.HasPrefix(base, prefixModelPack):
		return parseModel(FormatModelPack, base, base[len(prefixModelPack):])
	case strings.HasPrefix(base, prefixCNAI):
		return parseModel(FormatCNAI, base, base[len(prefixCNAI):])
	case strings.HasPrefix(base, prefixDockerAI):
		return Type{}, unknown(base, FormatDockerAI)
	case strings.HasPrefix(base, prefixOllama):
		return Type{}, unknown(base, FormatOllama)
	case strings.HasPrefix(base, prefixKitOps):
		return parseModelKit(base)
	case strings.HasPrefix(base, prefixCog):
		return Type{}, unknown(base, FormatCog)
	}
	return Type{}, fmt.Errorf("unknown media type %q: %w", base, errdefs.ErrNotImplemented)
}

func unknown(base string, f Format) error {
	return fmt.Errorf("unknown %s media type %q: %w", f, base, errdefs.ErrNotImplemented)
}

// packings are the suffixes of a model layer type.
var packings = map[string]struct {
	archive filetable.Archive
	codec   filetable.Codec
}{
	"raw":      {filetable.ArchiveNone, filetable.CodecNone},
	"tar":      {filetable.ArchiveTar, filetable.CodecNone},
	"tar+gzip": {filetable.ArchiveTar, filetable.CodecGzip},
	"tar+zstd": {filetable.ArchiveTar, filetable.CodecZstd},
}

// kinds are the names in a model layer type. The last two are of CNAI before February 2025, where a
// layer has no kind.
var kinds = map[string]Kind{
	"weight":        KindWeight,
	"weight.config": KindWeightConfig,
	"doc":           KindDoc,
	"code":          KindCode,
	"dataset":       KindDataset,
	"config":        KindWeightConfig,
	"layer":         "",
}

// parseModel parses the rest of a ModelPack or CNAI type: <kind>.<version>[.<packing>].
func parseModel(f Format, base, rest string) (Type, error) {
	name, version, packing := splitModel(rest)
	if version == "" {
		return Type{}, unknown(base, f)
	}
	if version != "v1" {
		return Type{}, fmt.Errorf("%s media type %q: unknown version %s: %w", f, base, version, errdefs.ErrNotImplemented)
	}
	kind, ok := kinds[name]
	if !ok || f != FormatCNAI && (name == "layer" || name == "config") {
		return Type{}, unknown(base, f)
	}
	p, ok := packings[packing]
	if !ok {
		// Drafts of the specification before v0.0.3 have a weight without packing; Docker Model
		// Runner writes the two words.
		rawWeight := name == "weight" && (packing == "" || packing == "gguf" || packing == "safetensors")
		if !rawWeight {
			return Type{}, unknown(base, f)
		}
	}
	return Type{Base: base, Format: f, Layer: true, Kind: kind, Archive: p.archive, Codec: p.codec}, nil
}

// kitKinds are the names in a ModelKit layer type. A prompt is packed as code; a model part is a
// file beside the weights.
var kitKinds = map[string]Kind{
	"model":     KindWeight,
	"modelpart": KindWeightConfig,
	"dataset":   KindDataset,
	"code":      KindCode,
	"docs":      KindDoc,
	"prompt":    KindCode,
	"mcpb":      KindCode,
}

// parseModelKit parses a layer type of a ModelKit: <kind>.v1.<packing>.
func parseModelKit(base string) (Type, error) {
	name, version, packing := splitModel(base[len(prefixKitOps):])
	if version != "" && version != "v1" {
		return Type{}, fmt.Errorf("%s media type %q: unknown version %s: %w", FormatKitOps, base, version, errdefs.ErrNotImplemented)
	}
	kind, ok := kitKinds[name]
	p, known := packings[packing]
	if !ok || !known {
		return Type{}, unknown(base, FormatKitOps)
	}
	part := Part("")
	if name == "model" {
		part = PartModel
	}
	return Type{Base: base, Format: FormatKitOps, Layer: true, Kind: kind, Part: part, Archive: p.archive, Codec: p.codec}, nil
}

// splitModel splits at the first component that is a "v" followed by digits.
func splitModel(rest string) (name, version, packing string) {
	parts := strings.Split(rest, ".")
	for i, p := range parts {
		v, suffix, _ := strings.Cut(p, "+")
		if i == 0 || len(v) < 2 || v[0] != 'v' || strings.Trim(v[1:], "0123456789") != "" {
			continue
		}
		packing = strings.Join(parts[i+1:], ".")
		if suffix != "" {
			packing = "+" + suffix // such as config.v2+json
		}
		return strings.Join(parts[:i], "."), v, packing
	}
	return "", "", ""
}

// Layer returns the media type of a layer of ModelPack, or of later CNAI.
func Layer(f Format, k Kind, a filetable.Archive, c filetable.Codec) string {
	prefix := prefixModelPack
	if f == FormatCNAI {
		prefix = prefixCNAI
	}
	for suffix, p := range packings {
		if p.archive == a && p.codec == c {
			return prefix + string(k) + ".v1." + suffix
		}
	}
	panic(fmt.Sprintf("mediatype: internal error: no layer type for %q %q %q", k, a, c))
}

// OwnLayers returns the layer types of ModelPack, CNAI and KitOps, sorted. The configs of these
// formats do not list layers as those of images do.
func OwnLayers() []string {
	var l []string
	for packing := range packings {
		for name := range kinds {
			l = append(l, prefixCNAI+name+".v1."+packing)
			if name != "layer" && name != "config" {
				l = append(l, prefixModelPack+name+".v1."+packing)
			}
		}
		for name := range kitKinds {
			l = append(l, KitOpsLayer(name, packing))
		}
	}
	slices.Sort(l)
	return l
}

// FormatOf returns the model format of a media type by its prefix, even if the rest is unknown. It
// returns "" for a type of no model format.
func FormatOf(s string) Format {
	base := Base(s)
	for _, p := range prefixes {
		if strings.HasPrefix(base, p.prefix) {
			return p.format
		}
	}
	if isCarton(base) {
		return FormatCarton
	}
	return ""
}

// IsImageLayer reports whether s is a layer type of an OCI or Docker image.
func IsImageLayer(s string) bool {
	t, ok := table[Base(s)]
	return ok && t.Format == FormatImage && t.Layer
}

// IsImageConfig reports whether s is the type of the config of an OCI or Docker image.
func IsImageConfig(s string) bool {
	b := Base(s)
	return b == OCIConfig || b == DockerConfig
}

// isCarton reports whether base is a carton type. No carton type is registered, so any type with
// this prefix counts.
func isCarton(base string) bool {
	_, subtype, _ := strings.Cut(base, "/")
	rest, ok := strings.CutPrefix(subtype, subtypeCarton)
	return ok && (rest == "" || strings.ContainsAny(rest[:1], ".+-"))
}

// IsVariants reports whether s is a list of the variants of one model. Its entries are not
// descriptors.
func IsVariants(s string) bool { return FormatOf(s) == FormatOllamaList }

// IsIndex reports whether s is an OCI index or a Docker manifest list.
func IsIndex(s string) bool {
	b := Base(s)
	return b == OCIIndex || b == DockerManifestList
}

// IsManifest reports whether s is an OCI or Docker image manifest.
func IsManifest(s string) bool {
	b := Base(s)
	return b == OCIManifest || b == DockerManifest
}
