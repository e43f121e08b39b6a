package dockerai

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	"github.com/ballast-dev/ballast/convert"
	"github.com/ballast-dev/ballast/convert/format"
	"github.com/ballast-dev/ballast/convert/mediatype"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/containerd/errdefs"
)

// parse parses a Docker AI model.
func parse(ctx context.Context, _ format.Settings, a convert.Artifact, m *convert.Manifest) (*convert.Model, error) {
	cfg, p, err := readConfig(ctx, a, m)
	if err != nil {
		return nil, err
	}
	n, err := newNamer(m)
	if err != nil {
		return nil, err
	}
	b := convert.NewBuilder(m, mediatype.FormatDockerAI)
	b.KeepConfig(p)
	if err := b.AddLayers(n.place); err != nil {
		return nil, err
	}
	model, err := b.Model(ctx, a, describe(cfg))
	if err != nil {
		return nil, err
	}
	if n, ok := cfg.Object("config").Int("context_size"); ok && n > 0 {
		model.ContextLength = n
	}
	return model, nil
}

// A namer assigns paths to layers, in the order of the manifest.
type namer struct {
	byPath bool // v0.2
	count  map[mediatype.Part]int
	seen   map[mediatype.Part]int
}

// newNamer counts the layers of each part without a path of their own.
func newNamer(m *convert.Manifest) (*namer, error) {
	n := &namer{
		byPath: mediatype.Base(m.Config.MediaType) == mediatype.DockerAIConfigV02,
		count:  map[mediatype.Part]int{},
		seen:   map[mediatype.Part]int{},
	}
	if len(m.Layers) == 0 {
		return nil, fmt.Errorf("no layers: %w", errdefs.ErrInvalidArgument)
	}
	for i, l := range m.Layers {
		t, err := parseType(l)
		if err != nil {
			return nil, fmt.Errorf("layer %d (%s): %w", i, l.Digest, err)
		}
		if n.ownPath(t, l) == "" {
			n.count[t.Part]++
		}
	}
	return n, nil
}

func parseType(l convert.Descriptor) (mediatype.Type, error) {
	t, err := mediatype.Parse(l.MediaType)
	if err != nil {
		return t, err
	}
	if t.Format != mediatype.FormatDockerAI || !t.Layer {
		return t, fmt.Errorf("media type %q is not a layer of a Docker AI model: %w", t.Base, errdefs.ErrNotImplemented)
	}
	return t, nil
}

// ownPath returns the path of the layer's annotation, if it is used.
func (n *namer) ownPath(t mediatype.Type, l convert.Descriptor) string {
	keeps := t.Part == mediatype.PartSafetensors || t.Part == mediatype.PartDDUF || t.Part == mediatype.PartFile
	if !n.byPath && !keeps {
		return ""
	}
	return mediatype.Filepath(l.Annotations)
}

func (n *namer) place(_ int, l convert.Descriptor) (convert.Place, error) {
	t, err := parseType(l)
	if err != nil {
		return convert.Place{}, err
	}
	p := convert.Place{Kind: t.Kind, Archive: t.Archive, Codec: t.Codec}
	if t.Archive != filetable.ArchiveNone {
		return p, nil
	}
	if p, err = p.WithMetadata(l); err != nil {
		return convert.Place{}, err
	}
	if p.Path = n.ownPath(t, l); p.Path == "" {
		if p.Path, err = n.name(t); err != nil {
			return convert.Place{}, err
		}
	}
	if p.Kind == "" {
		p.Kind = convert.KindByPath(p.Path)
	}
	return p, nil
}

// name returns the name for a layer by its type and its position among those of its type.
func (n *namer) name(t mediatype.Type) (string, error) {
	n.seen[t.Part]++
	i, of := n.seen[t.Part], n.count[t.Part]
	switch t.Part {
	case mediatype.PartGGUF, mediatype.PartSafetensors, mediatype.PartDDUF:
		return convert.WeightsName(i, of, string(t.Part)), nil
	case mediatype.PartAdapter:
		return convert.NumberedName("adapter", i, ".gguf"), nil
	case mediatype.PartProjector:
		return convert.NumberedName("model", i, ".mmproj"), nil
	case mediatype.PartTemplate:
		return convert.NumberedName("template", i, ".jinja"), nil
	case mediatype.PartLicense:
		return convert.NumberedName("LICENSE", i, ""), nil
	}
	return "", fmt.Errorf("a layer of type %q without the annotation %s: %w", t.Base, mediatype.AnnotationFilepath, errdefs.ErrInvalidArgument)
}

// readConfig reads the config, and also returns its bytes; an empty object and nil if there is
// none.
func readConfig(ctx context.Context, a convert.Artifact, m *convert.Manifest) (o *convert.Object, p []byte, err error) {
	if p, err = convert.ReadConfig(ctx, a, m); err != nil {
		return nil, nil, err
	}
	text := p
	if p == nil {
		text = []byte("{}")
	}
	if o, err = convert.ParseObject(text); err != nil {
		return nil, nil, fmt.Errorf("config: %w", err)
	}
	return o, p, nil
}

// describe returns the facts of a config in either form.
func describe(o *convert.Object) convert.Config {
	c, d := o.Object("config"), o.Object("descriptor")
	gguf := c.Object("gguf") // the specification's form has its facts here
	arch := cmp.Or(c.String("architecture"), gguf.String("architecture"))
	quantization := cmp.Or(c.String("quantization"), gguf.String("quantization"))
	if strings.EqualFold(quantization, "unknown") {
		quantization = ""
	}
	return convert.Config{
		Descriptor: convert.ModelDescriptor{
			CreatedAt: convert.RFC3339(d.String("created", "createdAt")),
			Family:    arch,
		},
		Config: convert.ModelConfig{
			Architecture: arch,
			Format:       c.String("format"),
			ParamSize:    convert.ParamSize(cmp.Or(c.String("parameters"), gguf.String("parameter_count"))),
			Quantization: withoutPrefix(quantization),
		},
	}
}
