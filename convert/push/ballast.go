package push

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"

	"github.com/ballast-dev/ballast/convert"
	"github.com/ballast-dev/ballast/convert/headers"
	"github.com/ballast-dev/ballast/convert/image"
	"github.com/ballast-dev/ballast/convert/mediatype"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// maxImageBlobs is the number of blobs that a converted image has layers for. A blob without a
// layer would be taken by the garbage collection of the target.
const maxImageBlobs = 256

// planBallast plans the image of convert/image.
func (c *conversion) planBallast(ctx context.Context) (*plan, error) {
	model := *c.src.Model
	if len(model.Table.Blobs) > maxImageBlobs && !c.o.Referrer { // the origin keeps them there
		return c.planMerged(ctx)
	}
	p := &plan{}
	names := blobNames(&model)
	layers, sniffers := map[digest.Digest]*layer{}, snifferOf(&model.Table)
	for i, b := range model.Table.Blobs {
		l := &layer{
			name: names[b.Digest], fromBlob: true,
			desc: ocispec.Descriptor{MediaType: model.Layers[i].MediaType, Digest: b.Digest, Size: b.Size},
		}
		var also func() *passage
		if l.chunks = newPassage(&model.Table, b); l.chunks != nil && !c.o.NoChunks {
			l.sniffer = sniffers[b.Digest]
			also = l.restart
		} else {
			l.chunks = nil
		}
		l.open = c.blob(b.Digest, b.Size, also)
		layers[b.Digest] = l
		p.layers = append(p.layers, l)
	}
	p.documents = func() (documents, error) { return ballastDocuments(&model, p.layers, layers) }
	return p, nil
}

// snifferOf returns what reads the headers of the files that are blobs.
func snifferOf(t *filetable.Table) map[digest.Digest]*headers.Sniffer {
	sniffers := map[digest.Digest]*headers.Sniffer{}
	for _, f := range t.Files {
		if f.Source == nil || f.Digest == "" || f.Source.Blob != f.Digest || sniffers[f.Digest] != nil || len(sniffers) == headers.MaxFiles {
			continue
		}
		if headers.Has(f.Path, f.Size) {
			sniffers[f.Digest] = headers.NewSniffer(f.Path, f.Size)
		}
	}
	return sniffers
}

// restart begins the chunks and the header of a layer anew.
func (l *layer) restart() *passage {
	l.chunks.restart()
	if l.sniffer != nil {
		l.sniffer.Restart()
		l.chunks.sniffer = l.sniffer
	}
	return l.chunks
}

// ballastDocuments returns the converted image of a model, with the chunks of its layers, and with
// what the headers of files said while they passed by. All have passed and were verified.
func ballastDocuments(model *convert.Model, list []*layer, layers map[digest.Digest]*layer) (documents, error) {
	m := *model
	var sniffers []*headers.Sniffer
	for _, l := range list {
		if l.sniffer != nil && l.same == nil {
			sniffers = append(sniffers, l.sniffer)
		}
	}
	said := headers.Describe(sniffers)
	m.Config = convert.MergeConfig(m.Config, said.Config)
	m.ContextLength = cmp.Or(m.ContextLength, said.ContextLength)
	m.Table.Files = slices.Clone(m.Table.Files)
	for i, f := range m.Table.Files {
		if f.Source == nil || f.Source.Blob == "" {
			continue
		}
		if l := layers[f.Source.Blob]; l != nil && l.chunks != nil {
			l.chunks.note(&m.Table.Files[i])
		}
	}
	im, err := image.Build(&m)
	if err != nil {
		return documents{}, err
	}
	return documents{im.Manifest, image.MediaType, [][]byte{im.Table, im.Config}}, nil
}

// planMerged plans the converted image of a model with too many blobs: its files are put together
// first, and are the blobs.
func (c *conversion) planMerged(ctx context.Context) (*plan, error) {
	files, err := c.files(ctx)
	if err != nil {
		return nil, err
	}
	c.lose("the %d blobs of the origin: they are put together to files", len(c.src.Model.Table.Blobs))
	from := c.src.Model
	model := &convert.Model{Config: from.Config, ContextLength: from.ContextLength, Runner: from.Runner, Documents: from.Documents}
	p, layers := &plan{}, map[digest.Digest]*layer{}
	for _, f := range files {
		if f.Type != filetable.TypeReg || layers[f.Digest] != nil && f.Digest != "" {
			continue
		}
		kind := f.kind
		l := &layer{name: f.Path, fromBlob: f.fromBlob, open: f.open, desc: ocispec.Descriptor{
			MediaType: mediatype.Layer(mediatype.FormatModelPack, kind, filetable.ArchiveNone, filetable.CodecNone), Digest: f.Digest, Size: f.Size}}
		if open := f.open; f.Size > 0 && !c.o.NoChunks && open != nil {
			l.chunks = filePassage(f.Size)
			if headers.Has(f.Path, f.Size) {
				l.sniffer = headers.NewSniffer(f.Path, f.Size)
			}
			l.open = through(open, func(r io.Reader) io.Reader { return io.TeeReader(r, l.restart()) })
		}
		layers[f.Digest] = l
		p.layers = append(p.layers, l)
		model.Layers = append(model.Layers, convert.Layer{Desc: l.desc, Kind: kind, Path: f.Path, MediaType: l.desc.MediaType})
	}
	if len(p.layers) > maxImageBlobs {
		return nil, fmt.Errorf("the model has %d files, and a converted image has layers for %d; as %s it has room: %w",
			len(p.layers), maxImageBlobs, FormModelPack, errdefs.ErrNotImplemented)
	}
	p.documents = func() (documents, error) {
		model.Table = *flatten(c.src.Model.Table.Origin, files)
		return ballastDocuments(model, p.layers, layers)
	}
	return p, nil
}

// blobNames returns a name for each blob: that of the first file in it.
func blobNames(m *convert.Model) map[digest.Digest]string {
	names := map[digest.Digest]string{}
	name := func(d digest.Digest, s string) {
		if d != "" && s != "" && names[d] == "" {
			names[d] = s
		}
	}
	for _, f := range m.Table.Files {
		if f.Source == nil {
			continue
		}
		name(f.Source.Blob, f.Path)
		for _, p := range f.Source.Parts {
			name(p.Blob, f.Path)
		}
	}
	for _, l := range m.Layers {
		name(l.Desc.Digest, l.Path)
	}
	for _, b := range m.Table.Blobs {
		name(b.Digest, b.Digest.Encoded()[:12])
	}
	return names
}
