package kitops

import (
	"context"
	"fmt"

	"github.com/ballast-dev/ballast/convert"
	"github.com/ballast-dev/ballast/convert/format"
	"github.com/ballast-dev/ballast/convert/mediatype"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/containerd/errdefs"
)

// parse parses a ModelKit.
func parse(ctx context.Context, _ format.Settings, a convert.Artifact, m *convert.Manifest) (*convert.Model, error) {
	if len(m.Layers) == 0 {
		return nil, fmt.Errorf("no layers: %w", errdefs.ErrInvalidArgument)
	}
	b := convert.NewBuilder(m, mediatype.FormatKitOps)
	k := &kitfile{}
	p, err := convert.ReadConfig(ctx, a, m)
	if err != nil {
		return nil, err
	}
	if p != nil {
		if k, err = parseKitfile(p); err != nil {
			return nil, fmt.Errorf("config: %w", err)
		}
		text, err := stripped(p)
		if err != nil {
			return nil, fmt.Errorf("config: %w", err)
		}
		b.KeepConfig(p)
		b.Generate("Kitfile", text)
	}
	hasModel := false
	err = b.AddLayers(func(_ int, l convert.Descriptor) (convert.Place, error) {
		t, p, err := k.place(l)
		hasModel = hasModel || t.Part == mediatype.PartModel
		return p, err
	})
	if err != nil {
		return nil, err
	}
	if k.model != "" && !hasModel {
		return nil, fmt.Errorf("the model is not in this ModelKit, its Kitfile says %.200q: name that one: %w", k.model, errdefs.ErrNotImplemented)
	}
	return b.Model(ctx, a, k.config)
}

// place returns the type of a layer and its place.
func (k *kitfile) place(l convert.Descriptor) (mediatype.Type, convert.Place, error) {
	t, err := mediatype.Parse(l.MediaType)
	if err != nil {
		return t, convert.Place{}, err
	}
	if t.Format != mediatype.FormatKitOps || !t.Layer {
		return t, convert.Place{}, fmt.Errorf("media type %q is not a layer of a ModelKit: %w", t.Base, errdefs.ErrNotImplemented)
	}
	e := k.entry(mediatype.KitOpsKind(t.Base), l)
	p := convert.Place{Kind: t.Kind, Archive: t.Archive, Codec: t.Codec, Path: mediatype.Filepath(l.Annotations), DiffID: e.diffID}
	if p.Path == "" && (e.digest == "" || t.Archive == filetable.ArchiveNone) {
		p.Path = e.path
	}
	if p.Path == "." {
		p.Path = ""
	}
	if t.Kind == mediatype.KindWeightConfig && p.Path+e.path != "" {
		if p.Kind = convert.KindByPath(p.Path); p.Path == "" {
			p.Kind = convert.KindByPath(e.path)
		}
	}
	if t.Archive != filetable.ArchiveNone {
		return t, p, nil
	}
	if p.Path == "" {
		return t, convert.Place{}, fmt.Errorf("a raw layer without the annotation %s, and not in the Kitfile: %w", mediatype.AnnotationFilepath, errdefs.ErrInvalidArgument)
	}
	p, err = p.WithMetadata(l)
	return t, p, err
}

// entry returns the entry of a layer in the Kitfile: the one with its digest, otherwise the next
// one of its kind without a digest.
func (k *kitfile) entry(kind string, l convert.Descriptor) entry {
	if e, ok := k.entries[l.Digest]; ok {
		return e
	}
	next := k.next[kind]
	if len(next) == 0 {
		return entry{}
	}
	k.next[kind] = next[1:]
	return next[0]
}
