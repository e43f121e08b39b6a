package export

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/ballast-dev/ballast/convert"
	"github.com/ballast-dev/ballast/convert/headers"
	"github.com/ballast-dev/ballast/convert/image"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// maxImageBlobs limits the number of blobs that a converted image has layers for. A blob without a
// layer would be removed by the garbage collection of the target.
const maxImageBlobs = 256

// planBallast plans the image built by convert/image.
func (j *job) planBallast(ctx context.Context) (*plan, error) {
	if j.o.Compress != CompressNone {
		return j.planCompressed(ctx)
	}
	model := *j.src.Model
	if n := len(model.Table.Blobs); n > maxImageBlobs && !j.o.Referrer { // the origin protects them there
		if j.o.NoChunks {
			return nil, fmt.Errorf("the model has %d blobs, and a converted image has layers for %d: it can be packed, but not with --no-chunks: %w", n, maxImageBlobs, errdefs.ErrNotImplemented)
		}
		return j.planPacked(ctx)
	}
	p, names := &plan{}, blobNames(&model)
	for i, b := range model.Table.Blobs {
		it := &item{
			name: cmp.Or(names[b.Digest], model.Layers[i].Path), fromBlob: true, open: j.blob(b.Digest, b.Size),
			desc: ocispec.Descriptor{MediaType: model.Layers[i].MediaType, Digest: b.Digest, Size: b.Size},
		}
		if !j.o.NoChunks {
			it.watched = newRanges(&model.Table, b)
		}
		p.items = append(p.items, it)
	}
	p.documents = func(all []*item) (documents, error) { return j.watchedImage(&model, all) }
	return p, nil
}

// watchedImage returns the converted image of a model, with the chunks of its blobs, and with facts
// from the headers of files read during the transfer. All blobs are transferred and verified.
func (j *job) watchedImage(model *convert.Model, all []*item) (documents, error) {
	seen := map[digest.Digest]*passage{}
	var sniffers []*headers.Sniffer
	for _, s := range all {
		if s.seen == nil {
			continue
		}
		if seen[s.desc.Digest] = s.seen; s.seen.header != nil {
			sniffers = append(sniffers, s.seen.header)
		}
	}
	m, said := *model, headers.Describe(sniffers)
	m.Table.Files, m.Table.Blobs = slices.Clone(m.Table.Files), slices.Clone(m.Table.Blobs)
	for i, b := range m.Table.Blobs {
		if p := seen[b.Digest]; p != nil && p.off == b.Size {
			m.Table.Blobs[i].Index = "" // its headers were compared
		}
	}
	for i, f := range m.Table.Files {
		if f.Source == nil || f.Source.Blob == "" {
			continue
		}
		if p := seen[f.Source.Blob]; p != nil {
			p.note(&m.Table.Files[i])
		}
	}
	return j.imageOf(&m, said)
}

// imageOf returns the converted image of a model, with facts from headers where its origin has
// none.
func (j *job) imageOf(m *convert.Model, said headers.Report) (documents, error) {
	j.found(said.Problems)
	m.Config = convert.MergeConfig(m.Config, said.Config)
	m.ContextLength = cmp.Or(m.ContextLength, said.ContextLength)
	im, err := image.Build(m)
	if err != nil {
		return documents{}, err
	}
	return documents{im.Manifest, [][]byte{im.Table, im.Config}, func() ([]filetable.File, error) {
		if len(m.Table.Unpacks) > 0 {
			return nil, fmt.Errorf("files of archives have no digests before they are unpacked; --as %s has them", FormModelPack)
		}
		return slices.CompactFunc(slices.Clone(m.Table.Seen()), func(a, b filetable.File) bool { return a.Path == b.Path }), nil
	}}, nil
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
		if b.Digest != "" { // the digest is unknown for files that a dry run does not unpack
			name(b.Digest, b.Digest.Encoded()[:12])
		}
	}
	return names
}
