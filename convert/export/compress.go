package export

import (
	"cmp"
	"context"
	"fmt"
	"sync/atomic"

	"github.com/ballast-dev/ballast/convert"
	"github.com/ballast-dev/ballast/convert/chunked"
	"github.com/ballast-dev/ballast/convert/mediatype"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// A bundle is a list of files that become one layer.
type bundle struct {
	name  string
	files []file // with their parent directories if they become a tar
	size  int64  // bytes of content
	kind  mediatype.Kind
	path  string // of the file, if there is only one
}

func newBundle(list []file, all ...file) bundle {
	b := bundle{name: fmt.Sprintf("%d small files", len(list)), files: all, kind: mediatype.KindWeightConfig}
	for _, f := range list {
		b.size += f.Size
	}
	if len(list) == 1 {
		b.kind, b.path, b.name = cmp.Or(list[0].kind, convert.KindByPath(list[0].Path)), list[0].Path, list[0].Path
	}
	return b
}

// each returns a bundle for each file with content. Equal content is in only one of them.
func each(files []file) (list []bundle) {
	seen := map[digest.Digest]bool{}
	for _, f := range files {
		if f.Type == filetable.TypeReg && f.Size > 0 && !isInline(f) && (f.Digest == "" || !seen[f.Digest]) {
			seen[f.Digest] = true
			list = append(list, newBundle([]file{f}, f))
		}
	}
	return list
}

// isInline reports whether the content of a file is in the file table.
func isInline(f file) bool { return f.Source != nil && f.Source.Blob == "" && len(f.Source.Parts) == 0 }

// A packed is a blob in a temporary file.
type packed struct {
	desc    ocispec.Descriptor // without a type
	plain   digest.Digest      // of the tar in it, for FormImage
	members []chunked.Member
	open    Opener
	close   func() error // removes the file
}

// planCompressed plans the converted image of a model whose files are compressed in chunks.
func (j *job) planCompressed(ctx context.Context) (*plan, error) {
	files, err := j.files(ctx)
	if err != nil {
		return nil, err
	}
	bundles, mediaType := each(files), func(mediatype.Kind) string { return "" } // the blobs have no origin
	if j.o.Compress == CompressChunked {
		bundles, mediaType = tars(files), func(k mediatype.Kind) string {
			return mediatype.Layer(mediatype.FormatModelPack, k, filetable.ArchiveTar, filetable.CodecZstd)
		}
	}
	if n := len(bundles); n > maxImageBlobs {
		return nil, fmt.Errorf("the model has %d files, and a converted image has layers for %d; write it with --compress %s, or %s: %w", n, maxImageBlobs, CompressChunked, takeFewer, errdefs.ErrNotImplemented)
	}
	if len(bundles) == 0 && !j.o.DryRun {
		return nil, fmt.Errorf("the model has no content: %w", errdefs.ErrInvalidArgument)
	}
	if n := len(j.src.Model.Table.Blobs); n > 0 {
		j.lose("the %d blobs of the origin: their files are kept, compressed anew", n)
	}
	p, said := &plan{items: j.hidden()}, describe(ctx, files)
	for _, b := range bundles {
		p.items = append(p.items, j.compressed(b, mediaType(b.kind)))
	}
	p.documents = func(all []*item) (documents, error) {
		m := j.packed(files, bundles, all, func(bundle) filetable.Archive { return filetable.ArchiveChunks }, placeChunks)
		for i := range m.Layers {
			m.Layers[i].Desc.MediaType = "" // the blobs have no origin
		}
		return j.imageOf(m, said)
	}
	return p, nil
}

// compressed returns the item of a bundle that is compressed in chunks.
func (j *job) compressed(b bundle, mediaType string) *item {
	return &item{
		name: b.name, desc: ocispec.Descriptor{MediaType: mediaType, Size: -1}, total: b.size,
		pack: func(ctx context.Context, n *atomic.Int64) (*packed, error) { return j.compress(ctx, b, n) },
	}
}

// compress writes the blob of a bundle to a temporary file.
func (j *job) compress(ctx context.Context, b bundle, n *atomic.Int64) (_ *packed, err error) {
	w, err := newFrameWriter(j.o.TempDir)
	if err != nil {
		return nil, fmt.Errorf("temporary file: %w", err)
	}
	defer func() {
		if err != nil {
			w.Close() // err is the reason
		}
	}()
	files := make([]file, len(b.files))
	for i, f := range b.files {
		if files[i] = f; f.open != nil {
			files[i].open = f.open.counted(n)
		}
	}
	if j.o.Form == FormImage {
		w.plain = digest.SHA256.Hash()
	}
	k := &packed{close: w.Close}
	if j.o.Compress == CompressSeekable {
		k.members, err = w.writeSeekable(ctx, files[0])
	} else {
		k.members, k.desc.Annotations, err = w.writeTar(ctx, files)
	}
	if err != nil {
		return nil, err
	}
	if k.desc.Digest, k.open, err = w.finish(); err != nil {
		return nil, err
	}
	if k.desc.Size = w.off; w.plain != nil {
		k.plain = digest.NewDigest(digest.SHA256, w.plain)
	}
	return k, nil
}

// placeChunks adds the sources of the files in a compressed blob.
func placeChunks(_ bundle, it *item, sources map[digest.Digest]*filetable.Source) {
	for _, member := range it.packed.members {
		if len(member.Chunks) == 0 {
			continue
		}
		src := &filetable.Source{Blob: it.desc.Digest, Codec: filetable.CodecZstd}
		for _, c := range member.Chunks {
			if c.Zeros { // zeros need no bytes
				c.Digest, c.At, c.Len = "", 0, 0
			}
			src.Chunks = append(src.Chunks, c.Chunk)
		}
		sources[member.File.Digest] = src
	}
}
