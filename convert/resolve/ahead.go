package resolve

import (
	"context"
	"fmt"
	"slices"
	"unicode"
	"unicode/utf8"

	"github.com/ballast-dev/ballast/convert"
	"github.com/ballast-dev/ballast/convert/format"
	"github.com/ballast-dev/ballast/convert/image"
	"github.com/ballast-dev/ballast/convert/mediatype"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	"golang.org/x/sync/errgroup"
)

// MaxImageConfig limits the config of an image that was converted ahead of time, in bytes: it
// contains the documents of its origin in base64.
const MaxImageConfig = 8 << 20 // 8 MiB

// A Preconverted is an image that was converted before it was pushed.
type Preconverted struct {
	// Image is the image as it came if it Extends its model; otherwise what image.Build makes of Model, which
	// has the same bytes unless somebody has changed them, or another version of ballast wrote them.
	image.Image

	Model *convert.Model

	// Extends is set if the image has layers besides those of its model: it was made from the model, for
	// example by a commit of a container. Its environment is that of whoever made it.
	Extends bool
}

// Preconverted reads and checks the documents of a converted image (Origin.Ahead).
func (o *Origin) Preconverted(ctx context.Context) (*Preconverted, error) {
	i := slices.IndexFunc(o.Manifest.Layers, isTable)
	if slices.ContainsFunc(o.Manifest.Layers[i+1:], isTable) {
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
	read(&p.Table, layer, filetable.MaxSize)
	read(&p.Config, config, MaxImageConfig)
	err := g.Wait()
	if err == nil {
		err = p.judge(o.Manifest)
	}
	if err != nil {
		return nil, o.about(fmt.Errorf("converted image: %w", &format.ArtifactError{Err: err}))
	}
	return p, nil
}

// judge checks the documents of p, whose manifest is m, and makes the model and, unless p extends it, the image.
func (p *Preconverted) judge(m *convert.Manifest) error {
	t, err := filetable.Parse(p.Table)
	if err != nil {
		return err
	}
	p.Extends = Extends(m)
	if err := checkConfig(p.Config, m, p.Extends); err != nil {
		return err
	}
	if p.Model, err = p.model(t, m); err != nil || p.Extends {
		return err
	}
	im, err := image.Build(p.Model)
	if err != nil {
		return err
	}
	p.Image = *im
	return nil
}

// checkConfig checks the config of an image that was converted ahead: containerd shows the layers that diffIDs name
// if it has them, whatever the manifest says, and gives containers the environment in it.
func checkConfig(config []byte, m *convert.Manifest, extends bool) error {
	o, err := convert.ParseImageConfig(config)
	if err != nil {
		return err
	}
	ids := o.Object("rootfs").Strings("diff_ids")
	if err := o.Err(); err != nil {
		return fmt.Errorf("config: %w", err)
	}
	layers := slices.DeleteFunc(slices.Clone(m.Layers), func(d convert.Descriptor) bool { return !images.IsLayerType(d.MediaType) })
	if len(ids) != len(layers) {
		return fmt.Errorf("config: %d diffIDs for %d layers: %w", len(ids), len(layers), errdefs.ErrInvalidArgument)
	}
	for i, d := range layers {
		want := d.Digest
		switch {
		case d.MediaType == mediatype.BlobLayer:
			want = filetable.BlobDiffID(d.Digest)
		case !isTable(d): // containerd compares it
			continue
		}
		if digest.Digest(ids[i]) != want {
			return fmt.Errorf("config: diffID %d is %.100q, that of the layer is %s: %w", i, ids[i], want, errdefs.ErrInvalidArgument)
		}
	}
	if extends {
		return nil
	}
	return setsNothing(o)
}

// CheckBare checks the config of a model that containerd has in its original form: it gives containers the
// environment in it.
func CheckBare(config []byte) error {
	o, err := convert.ParseImageConfig(config)
	if err != nil {
		return err
	}
	return setsNothing(o)
}

// setsNothing returns an error if the config of a model has members for containers.
func setsNothing(config *convert.Object) error {
	for _, k := range config.Object("config").Keys() {
		// Those that OCI and Docker define begin with a capital letter, those of ModelPack do not.
		if r, _ := utf8.DecodeRuneInString(k); !unicode.IsLower(r) {
			return fmt.Errorf("config: a model sets %.100q for containers: %w", k, errdefs.ErrInvalidArgument)
		}
	}
	return nil
}

// model returns the model from which p was made.
func (p *Preconverted) model(t *filetable.Table, m *convert.Manifest) (_ *convert.Model, err error) {
	model := &convert.Model{Table: *t, ContextLength: image.ContextLength(m.Annotations), Runner: image.RunnerOf(m.Annotations)}
	if model.Config, err = convert.ParseConfig(p.Config); err != nil {
		return nil, err
	}
	if model.Documents, err = image.Documents(p.Config, t); err != nil && !errdefs.IsNotFound(err) {
		return nil, err
	}
	layers := map[digest.Digest]convert.Descriptor{}
	for _, d := range m.Layers {
		layers[d.Digest] = d
	}
	kinds := kindsOfBlobs(t)
	for _, b := range t.Blobs {
		l, was := convert.Layer{Kind: kinds[b.Digest]}, mediatype.Type{}
		l.Desc.Digest, l.Desc.Size = b.Digest, b.Size
		if d, ok := layers[b.Digest]; ok {
			l.Path = mediatype.Filepath(d.Annotations)
			l.Desc.MediaType = d.Annotations[mediatype.AnnotationOriginType]
			l.Desc.Annotations = map[string]string{}
			for _, key := range mediatype.TOCKeys {
				l.Desc.Annotations[key] = d.Annotations[key]
			}
			if was, err = mediatype.Parse(d.Annotations[mediatype.AnnotationLayerType]); err == nil && was.Kind != "" {
				l.Kind = was.Kind
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

// kindsOfBlobs returns the kind of the first file of each blob.
func kindsOfBlobs(t *filetable.Table) map[digest.Digest]mediatype.Kind {
	kinds := map[digest.Digest]mediatype.Kind{}
	for _, b := range t.Blobs {
		kinds[b.Digest] = mediatype.KindWeight
	}
	for _, f := range slices.Backward(t.Files) {
		if f.Source != nil && f.Source.Blob != "" {
			kinds[f.Source.Blob] = convert.KindByPath(f.Path)
		}
	}
	return kinds
}
