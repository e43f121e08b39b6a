package convert

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/ballast-dev/ballast/convert/mediatype"
	"github.com/containerd/errdefs"
)

// ErrNotModel says that an artifact is not a model, but an image, an index or something else
// that passes unchanged.
var ErrNotModel = errors.New("not a model")

// Detect returns the format of a manifest; FormatIndex for any index, and FormatImage for
// what is not a model. It returns errdefs.ErrNotImplemented for a model of a version that is
// not known.
//
// It asks, in this order: the type of a list, the types of layers that only Ollama has, the
// type of the artifact, the type of the config, the types of the layers, and whether there is
// one layer that is a carton. Early CNAI has the config and the layers of an image, so it is told from one before that is considered. An
// image that was converted before is an image.
func Detect(m *Manifest) (mediatype.Format, error) {
	if mediatype.FormatOf(m.MediaType) == mediatype.FormatOllamaList {
		return mediatype.FormatOllamaList, nil
	}
	if m.IsIndex {
		return mediatype.FormatIndex, nil
	}
	if slices.ContainsFunc(m.Layers, func(l Descriptor) bool { return l.MediaType == mediatype.TableLayer }) {
		return mediatype.FormatImage, nil
	}
	if m.hasLayer(mediatype.FormatOllama) || m.isOllamaStub() {
		return mediatype.FormatOllama, nil
	}
	for _, t := range []string{m.ArtifactType, m.MediaType, m.Config.MediaType} {
		switch f := mediatype.FormatOf(t); f {
		case "", mediatype.FormatOllama, mediatype.FormatOllamaList:
		default:
			if _, err := mediatype.Parse(t); err != nil {
				return "", err
			}
			return m.early(f), nil
		}
	}
	// Registries of old drop the artifactType.
	for _, f := range []mediatype.Format{
		mediatype.FormatModelPack, mediatype.FormatCNAI, mediatype.FormatDockerAI, mediatype.FormatKitOps,
	} {
		if m.hasLayer(f) {
			return m.early(f), nil
		}
	}
	if _, ok := m.CartonLayer(); ok {
		return mediatype.FormatCarton, nil
	}
	return mediatype.FormatImage, nil
}

// cartonExtension is the extension of a carton.
const cartonExtension = ".carton"

// CartonLayer returns the layer of an artifact or image that is a carton: the one whose title or
// path ends in .carton, or whose media type says so. ok is false if there is none, or more than
// one.
func (m *Manifest) CartonLayer() (layer int, ok bool) {
	for i, l := range m.Layers {
		named := strings.HasSuffix(strings.ToLower(mediatype.Filepath(l.Annotations)), cartonExtension)
		if !named && !mediatype.IsCarton(l.MediaType) {
			continue
		}
		if ok {
			return 0, false
		}
		layer, ok = i, true
	}
	return layer, ok
}

func (m *Manifest) hasLayer(f mediatype.Format) bool {
	return slices.ContainsFunc(m.Layers, func(l Descriptor) bool {
		return mediatype.FormatOf(l.MediaType) == f || mediatype.FormatOf(l.ArtifactType) == f
	})
}

// isOllamaStub reports whether m can be an Ollama cloud model, which has no layers. Its config
// has the type of any image; the parser looks into it.
func (m *Manifest) isOllamaStub() bool {
	return len(m.Layers) == 0 &&
		mediatype.Base(m.MediaType) == mediatype.DockerManifest &&
		mediatype.Base(m.Config.MediaType) == mediatype.DockerConfig
}

// early tells the early generation of CNAI from the later: it has image layers, or the type of
// the artifact as the type of the manifest.
func (m *Manifest) early(f mediatype.Format) mediatype.Format {
	if f != mediatype.FormatCNAI {
		return f
	}
	imageLayer := func(l Descriptor) bool { return mediatype.IsImageLayer(l.MediaType) }
	if mediatype.FormatOf(m.MediaType) == mediatype.FormatCNAI || slices.ContainsFunc(m.Layers, imageLayer) {
		return mediatype.FormatCNAIEarly
	}
	return f
}

// Parse detects the format of an artifact and parses it. It returns ErrNotModel for what is
// not a model, errdefs.ErrNotImplemented, naming the format, for a model that is not
// supported, and errdefs.ErrInvalidArgument for one that breaks a rule.
func (ps Parsers) Parse(ctx context.Context, a Artifact) (*Model, error) {
	m, err := ParseManifest(a.Manifest())
	if err != nil {
		return nil, err
	}
	f, err := Detect(m)
	if err != nil {
		return nil, err
	}
	if f == mediatype.FormatImage || f == mediatype.FormatIndex {
		return nil, fmt.Errorf("manifest %s: %s: %w", m.Digest, f, ErrNotModel)
	}
	return ps.ParseAs(ctx, f, a, m)
}

// ParseAs is Parse for who has parsed the manifest, m, and knows its format.
func (ps Parsers) ParseAs(ctx context.Context, f mediatype.Format, a Artifact, m *Manifest) (*Model, error) {
	parse, ok := ps[f]
	if !ok {
		return nil, fmt.Errorf("models of format %q are not supported: %w", f, errdefs.ErrNotImplemented)
	}
	model, err := parse(ctx, a, m)
	if err != nil {
		return nil, fmt.Errorf("%s model: %w", f, err)
	}
	return model, nil
}

// ReadBlob reads a small blob whole and verified; see Artifact.ReadBlob. It asks a only if the
// manifest does not have the bytes.
func ReadBlob(ctx context.Context, a Artifact, d Descriptor, limit int64) ([]byte, error) {
	if d.Data != nil && d.Size <= limit {
		return d.Data, nil
	}
	return a.ReadBlob(ctx, d.Descriptor, limit)
}
