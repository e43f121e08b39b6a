package push

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/ballast-dev/ballast/convert"
	"github.com/ballast-dev/ballast/convert/image"
	"github.com/ballast-dev/ballast/convert/mediatype"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/ballast-dev/ballast/store/transfer"
	"github.com/containerd/errdefs"
)

// A Source is a model with the place its bytes are.
type Source struct {
	// Name is what the source is called, for messages only.
	Name string

	Model *convert.Model

	// Fetcher reads the blobs of the model. It is not trusted.
	Fetcher transfer.Fetcher

	// Manifest and Config are the documents of the origin, byte for byte; nil if there are none.
	Manifest []byte
	Config   []byte

	// Host and Repository say where a registry has the blobs, to mount them; can be empty.
	Host       string
	Repository string

	// Losses are what is known to be left out already.
	Losses []string

	// Close, if not nil, is called by Convert's caller when the source is no longer needed.
	Close func() error
}

// FromArtifact makes a Source of an artifact in any format that parsers know, or of an image that was
// converted before. f reads the blobs. It returns convert.ErrNotModel, wrapped with
// errdefs.ErrNotImplemented, for what is not a model.
func FromArtifact(ctx context.Context, parsers convert.Parsers, a convert.Artifact, f transfer.Fetcher) (*Source, error) {
	m, err := convert.ParseManifest(a.Manifest())
	if err != nil {
		return nil, err
	}
	if i := slices.IndexFunc(m.Layers, func(l convert.Descriptor) bool { return l.MediaType == mediatype.TableLayer }); i >= 0 {
		model, err := readConverted(ctx, a, m, m.Layers[i])
		if err != nil {
			return nil, fmt.Errorf("converted image: %w", err)
		}
		s := &Source{Model: model, Fetcher: f, Manifest: model.Documents.Manifest, Config: model.Documents.Config}
		if s.Manifest == nil && model.Table.Origin.Format != string(mediatype.FormatFiles) {
			s.Losses = []string{"the manifest of the origin, which is not in an image of an earlier version"}
		}
		return s, nil
	}
	format, err := convert.DetectTitled(m)
	if err != nil {
		return nil, err
	}
	if format == mediatype.FormatImage || format == mediatype.FormatIndex {
		return nil, fmt.Errorf("manifest %s is an %s, %w: %w", m.Digest, format, convert.ErrNotModel, errdefs.ErrNotImplemented)
	}
	model, err := parsers.Parse(ctx, a)
	if err != nil {
		return nil, err
	}
	s := &Source{Model: model, Fetcher: f, Manifest: a.Manifest()}
	if m.Config.Digest != "" {
		if s.Config, err = convert.ReadBlob(ctx, a, m.Config, convert.MaxConfigSize); err != nil {
			return nil, fmt.Errorf("config: %w", err)
		}
	}
	return s, nil
}

// readConverted returns the model of an image that was made by convert/image.
func readConverted(ctx context.Context, a convert.Artifact, m *convert.Manifest, layer convert.Descriptor) (*convert.Model, error) {
	p, err := convert.ReadBlob(ctx, a, layer, filetable.MaxSize)
	if err != nil {
		return nil, fmt.Errorf("file table: %w", err)
	}
	t, err := filetable.Decode(p)
	if err != nil {
		return nil, err
	}
	cfg, err := convert.ReadBlob(ctx, a, m.Config, convert.MaxConfigSize)
	if err != nil {
		return nil, fmt.Errorf("config: %w", err)
	}
	model := &convert.Model{Table: *t}
	if model.Config, err = convert.ParseConfig(cfg); err != nil {
		return nil, err
	}
	if model.Documents, err = image.Documents(cfg, t); err != nil && !errdefs.IsNotFound(err) {
		return nil, err
	}
	model.ContextLength, model.Runner = image.ContextLength(m.Annotations), image.RunnerOf(m.Annotations)
	for _, b := range t.Blobs {
		l, was := convert.Layer{Kind: kindOfBlob(t, b)}, mediatype.Type{}
		l.Desc.Digest, l.Desc.Size = b.Digest, b.Size
		for _, d := range m.Layers {
			if d.Digest == b.Digest {
				l.Path = mediatype.Filepath(d.Annotations)
				l.Desc.MediaType = d.Annotations[mediatype.AnnotationOriginType]
				if was, err = mediatype.Parse(d.Annotations[mediatype.AnnotationLayerType]); err == nil && was.Kind != "" {
					l.Kind = was.Kind
				}
			}
		}
		if archive, codec := layerArchive(b, was); archive != filetable.ArchiveChunks {
			l.MediaType = mediatype.Layer(mediatype.FormatModelPack, l.Kind, archive, codec)
		}
		model.Layers = append(model.Layers, l)
	}
	return model, nil
}

// layerArchive is what a blob is in a media type: fragments are raw bytes, and chunks are what the
// type of the layer said; if it said nothing, there is no type.
func layerArchive(b filetable.Blob, was mediatype.Type) (filetable.Archive, filetable.Codec) {
	switch {
	case b.Archive == filetable.ArchiveFragments:
		return filetable.ArchiveNone, filetable.CodecNone
	case b.Archive == filetable.ArchiveChunks && was.Archive == filetable.ArchiveTar:
		return was.Archive, was.Codec
	}
	return b.Archive, b.Codec
}

// kindOfBlob returns the kind of the first file of a blob.
func kindOfBlob(t *filetable.Table, b filetable.Blob) mediatype.Kind {
	for _, f := range t.Files {
		if f.Source != nil && f.Source.Blob == b.Digest {
			return convert.KindByPath(f.Path)
		}
	}
	return mediatype.KindWeight
}

// encode returns the JSON of what can not fail to be encoded.
func encode(v any) []byte {
	p, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("push: internal error: %v", err))
	}
	return p
}
