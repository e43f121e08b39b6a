package modelpack

import (
	"context"
	"slices"

	"github.com/ballast-dev/ballast/convert"
	"github.com/ballast-dev/ballast/convert/format"
	"github.com/ballast-dev/ballast/convert/losses"
	"github.com/ballast-dev/ballast/convert/mediatype"
)

// The variants of ModelPack.
var (
	Format = later(mediatype.FormatModelPack)
	CNAI   = later(mediatype.FormatCNAI)
	Early  = format.Format{
		Name: mediatype.FormatCNAIEarly, Detect: detectEarly, Parse: parseEarly,
		Losses: losses.Rules{Keys: losses.Union(kept, losses.Places("", "rootfs")), Annotations: keptEarly},
	}
)

func later(name mediatype.Format) format.Format {
	return format.Format{
		Name:   name,
		Losses: losses.Rules{Keys: kept},
		Detect: func(m *convert.Manifest) (format.Claim, error) {
			if name == mediatype.FormatCNAI && isEarly(m) {
				return format.None, nil
			}
			return format.ByTypes(m, name)
		},
		Parse: func(ctx context.Context, _ format.Settings, a convert.Artifact, m *convert.Manifest) (*convert.Model, error) {
			return parse(ctx, name, a, m)
		},
	}
}

// detectEarly distinguishes the early generation of CNAI from the later one, and from an image: its
// types are those of CNAI.
func detectEarly(m *convert.Manifest) (format.Claim, error) {
	if !isEarly(m) {
		return format.None, nil
	}
	return format.ByTypes(m, mediatype.FormatCNAI)
}

// isEarly reports whether m has image layers or layers of no kind, which are what the early generation calls them, or
// the type of the artifact as the type of the manifest.
func isEarly(m *convert.Manifest) bool {
	return mediatype.FormatOf(m.MediaType) == mediatype.FormatCNAI ||
		slices.ContainsFunc(m.Layers, func(l convert.Descriptor) bool {
			t, err := mediatype.Parse(l.MediaType)
			return mediatype.IsImageLayer(l.MediaType) || err == nil && t.Format == mediatype.FormatCNAI && t.Kind == ""
		})
}

// kept are the members of a config that are kept, in all generations.
var kept = losses.Union(
	losses.Places("descriptor.", "createdAt", "createTime", "authors", "vendor", "family", "name", "version", "title", "description",
		"docURL", "infoURL", "sourceURL", "datasetsURL", "revision", "licenses"),
	losses.Places("config.", "architecture", "format", "paramSize", "parameterSize", "precision", "quantization", "puantization"),
	losses.Places("config.capabilities.", "inputTypes", "input_types", "outputTypes", "output_types", "knowledgeCutoff", "knowledge_cutoff",
		"reasoning", "toolUsage", "tool_usage", "reward", "languages", "embedding"),
	losses.Places("", "modelfs"),
)

var keptEarly = losses.Places("annotations.",
	mediatype.EarlyArchitecture, mediatype.EarlyAuthors, mediatype.EarlyCreated, mediatype.EarlyDescription, mediatype.EarlyDocumentation,
	mediatype.EarlyFamily, mediatype.EarlyFormat, mediatype.EarlyLicenses, mediatype.EarlyName, mediatype.EarlyParamSize,
	mediatype.EarlyPrecision, mediatype.EarlyQuantization, mediatype.EarlyRevision, mediatype.EarlySource, mediatype.EarlyTitle,
	mediatype.EarlyURL, mediatype.EarlyVendor, mediatype.EarlyVersion)
