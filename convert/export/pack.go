package export

import (
	"context"
	"fmt"

	"github.com/ballast-dev/ballast/convert"
	"github.com/ballast-dev/ballast/convert/headers"
	"github.com/ballast-dev/ballast/convert/mediatype"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// maxTars limits the tars for the smaller files of a model with more files than an image has layers for.
const maxTars = 32

// planPacked plans the converted image of a model with more blobs than the image has layers for. Files are blobs, and
// of too many files the smaller ones are in plain tars.
func (j *job) planPacked(ctx context.Context) (*plan, error) {
	files, err := j.files(ctx)
	if err != nil {
		return nil, err
	}
	bundles := each(files)
	if len(bundles) == 0 && !j.o.DryRun {
		return nil, fmt.Errorf("the model has no content: %w", errdefs.ErrInvalidArgument)
	}
	if len(bundles) > maxImageBlobs {
		bundles = withTars(bundles)
		j.lose("the %d blobs of the origin: small files are packed into tars", len(j.src.Model.Table.Blobs))
	} else {
		j.lose("the %d blobs of the origin: they are assembled into files", len(j.src.Model.Table.Blobs))
	}
	p, places := &plan{items: j.hidden()}, map[*item][]span{}
	for _, b := range bundles {
		it, content, err := plainItem(b)
		if err != nil {
			return nil, err
		}
		it.watched = &ranges{files: content, whole: b.path != ""}
		if it.watched.whole && headers.Has(b.path, b.size) {
			it.watched.header = b.path
		}
		p.items, places[it] = append(p.items, it), content
	}
	p.documents = func(all []*item) (documents, error) {
		return j.watchedImage(j.packed(files, bundles, all, bundle.archive, func(b bundle, it *item, sources map[digest.Digest]*filetable.Source) {
			for n, f := range b.files {
				sources[f.Digest] = &filetable.Source{Blob: it.desc.Digest, Offset: places[it][n].off, Size: f.Size}
			}
		}), all)
	}
	return p, nil
}

// packed returns the model whose blobs are the items of bundles of its files. place adds the sources of the files of a
// bundle, by their digests.
func (j *job) packed(files []file, bundles []bundle, all []*item, archive func(bundle) filetable.Archive, place func(bundle, *item, map[digest.Digest]*filetable.Source)) *convert.Model {
	m, sources := *j.src.Model, map[digest.Digest]*filetable.Source{}
	m.Table, m.Layers = filetable.Table{Version: filetable.Version, Origin: m.Table.Origin}, nil
	for i, it := range all {
		b := bundles[i]
		m.Layers = append(m.Layers, convert.Layer{Desc: it.desc, Kind: b.kind, Path: b.path, MediaType: it.desc.MediaType})
		m.Table.Blobs = append(m.Table.Blobs, filetable.Blob{Digest: it.desc.Digest, Size: it.desc.Size, Archive: archive(b), Layer: i})
		place(b, it, sources)
	}
	for _, f := range files {
		if f.Type == filetable.TypeReg {
			switch src := sources[f.Digest]; {
			case src != nil:
				f.Source = src
			case !isInline(f):
				f.Source = &filetable.Source{} // an empty file
			}
		}
		m.Table.Files = append(m.Table.Files, f.File)
	}
	return &m
}

// withTars packs the smaller of too many files into tars of about the same size, by path.
func withTars(files []bundle) []bundle {
	var list []file
	for _, b := range files {
		list = append(list, b.files...)
	}
	alone := largest(list, maxImageBlobs-maxTars, 0)
	var total int64 // bytes of the others
	for _, f := range list {
		if !alone[f.Path] {
			total += f.Size
		}
	}
	var all []bundle
	var next []file
	var size int64
	pack := func() {
		b := newBundle(next, next...)
		if len(next) > 1 {
			b.name = fmt.Sprintf("%s and %d more", next[0].Path, len(next)-1)
		}
		all, next, size = append(all, b), nil, 0
	}
	for _, b := range files {
		if alone[b.path] {
			all = append(all, b)
			continue
		}
		next, size = append(next, b.files...), size+b.size
		if size*maxTars >= total {
			pack()
		}
	}
	if len(next) > 0 {
		pack()
	}
	return all
}

// archive returns the archive of a bundle that is not compressed.
func (b bundle) archive() filetable.Archive {
	if b.path != "" {
		return filetable.ArchiveNone
	}
	return filetable.ArchiveTar
}

// plainItem returns the item of a bundle, a file or a tar, and where the content of its files is.
func plainItem(b bundle) (it *item, content []span, err error) {
	mediaType := mediatype.Layer(mediatype.FormatModelPack, b.kind, b.archive(), filetable.CodecNone)
	if b.path != "" {
		f := b.files[0]
		return &item{name: b.name, fromBlob: f.fromBlob, open: f.open, desc: ocispec.Descriptor{MediaType: mediaType, Digest: f.Digest, Size: f.Size}},
			[]span{{0, f.Size}}, nil
	}
	t, err := newTarball(b.files)
	if err != nil {
		return nil, nil, err
	}
	return t.item(b.name, mediaType), t.spans(), nil
}
