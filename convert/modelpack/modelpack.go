package modelpack

import (
	"context"
	"fmt"
	"strings"

	"github.com/ballast-dev/ballast/convert"
	"github.com/ballast-dev/ballast/convert/format"
	"github.com/ballast-dev/ballast/convert/mediatype"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/containerd/errdefs"
)

// parse parses ModelPack and later CNAI.
func parse(ctx context.Context, f mediatype.Format, a convert.Artifact, m *convert.Manifest) (*convert.Model, error) {
	cfg, p, err := readConfig(ctx, a, m)
	if err != nil {
		return nil, err
	}
	return build(ctx, a, m, f, cfg, p)
}

// readConfig reads the config, which may be missing or empty, and also returns its bytes.
func readConfig(ctx context.Context, a convert.Artifact, m *convert.Manifest) (convert.Config, []byte, error) {
	p, err := convert.ReadConfig(ctx, a, m)
	if p == nil {
		return convert.Config{}, nil, err
	}
	cfg, err := convert.ParseConfig(p)
	return cfg, p, err
}

// build adds all layers. The diffIDs of cfg are those listed by the origin; p has the bytes of cfg.
func build(ctx context.Context, a convert.Artifact, m *convert.Manifest, f mediatype.Format, cfg convert.Config, p []byte) (*convert.Model, error) {
	if len(m.Layers) == 0 {
		return nil, fmt.Errorf("no layers: %w", errdefs.ErrInvalidArgument)
	}
	if err := convert.CheckDiffIDs(cfg.ModelFS.DiffIDs, len(m.Layers)); err != nil {
		return nil, err
	}
	b := convert.NewBuilder(m, f)
	if f == mediatype.FormatCNAIEarly {
		b.Stack()
	}
	b.KeepConfig(p)
	names := newNamer(m, cfg)
	err := b.AddLayers(func(i int, l convert.Descriptor) (convert.Place, error) {
		p, err := names.place(l)
		if len(cfg.ModelFS.DiffIDs) > 0 {
			p.DiffID = cfg.ModelFS.DiffIDs[i]
		}
		return p, err
	})
	if err != nil {
		return nil, err
	}
	return b.Model(ctx, a, cfg)
}

// A namer gives raw weights without a path their names in Docker AI, because annotations are
// optional.
type namer struct {
	format   string
	seen, of int
}

// extensions are formats whose name is also a file extension.
var extensions = []string{"gguf", "safetensors", "ggml", "onnx", "pt", "pth", "h5", "dduf"}

func newNamer(m *convert.Manifest, cfg convert.Config) *namer {
	n := &namer{format: strings.ToLower(cfg.Config.Format)}
	for _, l := range m.Layers {
		if t, err := mediatype.Parse(l.MediaType); err == nil && isNameless(t, l) {
			n.of++
		}
	}
	return n
}

// isNameless reports whether a layer is a raw weight without a path.
func isNameless(t mediatype.Type, l convert.Descriptor) bool {
	return t.Layer && t.Kind == mediatype.KindWeight && t.Archive == filetable.ArchiveNone && mediatype.Filepath(l.Annotations) == ""
}

// next returns the next name; the media type can have the format.
func (n *namer) next(t mediatype.Type) string {
	n.seen++
	ext := "bin"
	for _, e := range extensions {
		if n.format == e || strings.HasSuffix(t.Base, "."+e) {
			ext = e
		}
	}
	return convert.WeightsName(n.seen, n.of, ext)
}

// place returns the place of a layer, from its media type and annotations.
func (n *namer) place(l convert.Descriptor) (convert.Place, error) {
	t, err := mediatype.Parse(l.MediaType)
	if err != nil {
		return convert.Place{}, err
	}
	if !t.Layer || !isModelLayer(t) {
		return convert.Place{}, fmt.Errorf("media type %q is not a layer of a model: %w", t.Base, errdefs.ErrNotImplemented)
	}
	if err := checkArtifactType(l, t); err != nil {
		return convert.Place{}, err
	}
	p := convert.Place{
		Kind:    t.Kind,
		Archive: t.Archive,
		Codec:   t.Codec,
		Path:    mediatype.Filepath(l.Annotations),
	}
	if t.Kind == "" {
		if p.Kind, err = earlyKind(l); err != nil {
			return convert.Place{}, err
		}
	}
	if p.Archive != filetable.ArchiveNone {
		return p, nil
	}
	if isNameless(t, l) {
		p.Path = n.next(t)
	}
	if p.Path == "" {
		return convert.Place{}, fmt.Errorf("a raw layer without the annotation %s: %w", mediatype.AnnotationFilepath, errdefs.ErrInvalidArgument)
	}
	return p.WithMetadata(l)
}

// checkArtifactType returns an error if the artifact type of a layer, if any, contradicts the
// layout in its media type.
func checkArtifactType(l convert.Descriptor, t mediatype.Type) error {
	if l.ArtifactType == "" {
		return nil
	}
	is, err := mediatype.Parse(l.ArtifactType)
	if err != nil {
		return err
	}
	if is.Archive != t.Archive || is.Codec != t.Codec {
		return fmt.Errorf("media type %q and artifactType %q are not consistent: %w", t.Base, is.Base, errdefs.ErrInvalidArgument)
	}
	return nil
}

// isModelLayer reports whether a layer belongs to any generation: early CNAI has image layers.
func isModelLayer(t mediatype.Type) bool {
	switch t.Format {
	case mediatype.FormatModelPack, mediatype.FormatCNAI:
		return true
	case mediatype.FormatImage:
		return t.Archive == filetable.ArchiveTar
	}
	return false
}

// parseEarly parses early CNAI.
func parseEarly(ctx context.Context, _ format.Settings, a convert.Artifact, m *convert.Manifest) (*convert.Model, error) {
	cfg := earlyConfig(m.Annotations)
	p, err := convert.ReadConfig(ctx, a, m)
	if err != nil {
		return nil, err
	}
	if p != nil {
		if mediatype.FormatOf(m.Config.MediaType) == mediatype.FormatCNAI {
			if cfg, err = convert.ParseConfig(p); err != nil {
				return nil, err
			}
		} else if cfg.ModelFS.DiffIDs, err = convert.ParseDiffIDs(p, "rootfs"); err != nil {
			return nil, err
		}
	}
	return build(ctx, a, m, mediatype.FormatCNAIEarly, cfg, p)
}

// earlyKind returns the kind of a layer of early CNAI: from an annotation, otherwise from the type
// of the artifact, otherwise from the name of the file.
func earlyKind(l convert.Descriptor) (mediatype.Kind, error) {
	for _, k := range []struct {
		key  string
		kind mediatype.Kind
	}{
		{mediatype.EarlyIsReadme, mediatype.KindDoc},
		{mediatype.EarlyIsLicense, mediatype.KindDoc},
		{mediatype.EarlyIsConfig, mediatype.KindWeightConfig},
		{mediatype.EarlyIsModel, mediatype.KindWeight},
	} {
		if l.Annotations[k.key] == "true" {
			return k.kind, nil
		}
	}
	if l.ArtifactType != "" {
		t, err := mediatype.Parse(l.ArtifactType)
		if err != nil {
			return "", err
		}
		if t.Kind != "" {
			return t.Kind, nil
		}
	}
	if p := mediatype.Filepath(l.Annotations); p != "" {
		return convert.KindByPath(p), nil
	}
	return mediatype.KindWeight, nil
}

// earlyConfig returns the config in annotations of the manifest.
func earlyConfig(annotations map[string]string) convert.Config {
	at := func(key string) string { return annotations[key] }
	d := convert.ModelDescriptor{
		CreatedAt:   convert.RFC3339(at(mediatype.EarlyCreated)),
		Vendor:      at(mediatype.EarlyVendor),
		Family:      at(mediatype.EarlyFamily),
		Name:        at(mediatype.EarlyName),
		Version:     at(mediatype.EarlyVersion),
		Title:       at(mediatype.EarlyTitle),
		Description: at(mediatype.EarlyDescription),
		DocURL:      at(mediatype.EarlyDocumentation),
		SourceURL:   at(mediatype.EarlySource),
		Revision:    at(mediatype.EarlyRevision),
		Licenses:    splitLicenses(at(mediatype.EarlyLicenses)),
	}
	if s := at(mediatype.EarlyAuthors); s != "" {
		d.Authors = []string{s}
	}
	switch url := at(mediatype.EarlyURL); {
	case d.DocURL == "":
		d.DocURL = url
	case d.SourceURL == "":
		d.SourceURL = url
	}
	return convert.Config{
		Descriptor: d,
		ModelFS:    convert.ModelFS{Type: "layers"},
		Config: convert.ModelConfig{
			Architecture: at(mediatype.EarlyArchitecture),
			Format:       at(mediatype.EarlyFormat),
			ParamSize:    at(mediatype.EarlyParamSize),
			Precision:    at(mediatype.EarlyPrecision),
			Quantization: at(mediatype.EarlyQuantization),
		},
	}
}

func splitLicenses(s string) []string {
	var list []string
	for _, l := range strings.Split(strings.ReplaceAll(s, " AND ", ","), ",") {
		if l = strings.TrimSpace(l); l != "" {
			list = append(list, l)
		}
	}
	return list
}
