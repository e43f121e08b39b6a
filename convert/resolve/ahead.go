package resolve

import (
	"context"
	"fmt"
	"slices"

	"github.com/ballast-dev/ballast/convert"
	"github.com/ballast-dev/ballast/convert/format"
	"github.com/ballast-dev/ballast/convert/image"
	"github.com/ballast-dev/ballast/convert/mediatype"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/containerd/errdefs"
	"golang.org/x/sync/errgroup"
)

// MaxImageConfig limits the config of an image that was converted ahead of time, in bytes: it
// contains the documents of its origin in base64.
const MaxImageConfig = 8 << 20 // 8 MiB

// A Preconverted is an image that was converted before it was pushed.
type Preconverted struct {
	image.Image
	Table *filetable.Table // Image.Table, decoded
}

// Preconverted reads the documents of a converted image (Origin.Ahead).
func (o *Origin) Preconverted(ctx context.Context) (*Preconverted, error) {
	i := slices.IndexFunc(o.Manifest.Layers, IsTable)
	if slices.ContainsFunc(o.Manifest.Layers[i+1:], IsTable) {
		return nil, o.about(fmt.Errorf("it has several file tables: %w", errdefs.ErrNotImplemented))
	}
	layer, config := o.Manifest.Layers[i], o.Manifest.Config
	p := &Preconverted{Image: image.Image{
		Manifest: o.Served.Bytes, Digest: o.Served.Digest, ConfigDigest: config.Digest, TableDigest: layer.Digest,
	}}
	g, gctx := errgroup.WithContext(ctx)
	read := func(to *[]byte, d convert.Descriptor, limit int64) {
		g.Go(func() (err error) {
			*to, err = convert.ReadBlob(gctx, o.artifact, d, limit)
			return err
		})
	}
	read(&p.Image.Table, layer, filetable.MaxSize)
	read(&p.Config, config, MaxImageConfig)
	err := g.Wait()
	if err == nil {
		p.Table, err = filetable.Decode(p.Image.Table)
	}
	if err != nil {
		return nil, o.about(fmt.Errorf("converted image: %w", &format.ArtifactError{Err: err}))
	}
	return p, nil
}

// model returns the model from which p was made.
func (p *Preconverted) model(m *convert.Manifest) (_ *convert.Model, err error) {
	t := p.Table
	model := &convert.Model{Table: *t, ContextLength: image.ContextLength(m.Annotations), Runner: image.RunnerOf(m.Annotations)}
	if model.Config, err = convert.ParseConfig(p.Config); err != nil {
		return nil, err
	}
	if model.Documents, err = image.Documents(p.Config, t); err != nil && !errdefs.IsNotFound(err) {
		return nil, err
	}
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

// layerArchive returns the archive type of a blob with a media type: fragments are raw bytes, and
// chunks have the type of the layer; without one, they have no type.
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
