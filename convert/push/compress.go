package push

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	"github.com/ballast-dev/ballast/convert"
	"github.com/ballast-dev/ballast/convert/chunked"
	"github.com/ballast-dev/ballast/convert/image"
	"github.com/ballast-dev/ballast/convert/mediatype"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// A Compression is how the blobs of FormBallast, or the layers of FormImage, are compressed, so that their chunks can be read one
// by one.
type Compression string

// The compressions. Tools that do not know them see ordinary zstd, and tars in zstd.
const (
	CompressNone     Compression = ""
	CompressSeekable Compression = "zstd-seekable" // each file a blob in the zstd seekable format
	CompressChunked  Compression = "zstd-chunked"  // tars in zstd:chunked; those of FormImage are read by Podman too
)

// Compressions are all of them but none.
func Compressions() []string { return []string{string(CompressSeekable), string(CompressChunked)} }

// ParseCompression returns the Compression of its name, or errdefs.ErrInvalidArgument.
func ParseCompression(s string) (Compression, error) {
	switch c := Compression(s); c {
	case CompressNone, CompressSeekable, CompressChunked:
		return c, nil
	}
	return "", fmt.Errorf("compression %q is none of %s: %w", s, strings.Join(Compressions(), ", "), errdefs.ErrInvalidArgument)
}

// A pack is files that become one compressed layer.
type pack struct {
	*layer
	files []file
	kind  mediatype.Kind
	path  string // of the file, if there is one

	members []chunked.Member // once they are written
}

// planCompressed plans the converted image of a model whose files are compressed in chunks.
func (c *conversion) planCompressed(ctx context.Context) (*plan, error) {
	files, err := c.files(ctx)
	if err != nil {
		return nil, err
	}
	packs := packFiles(files, c.o.Compress)
	if len(packs) > maxImageBlobs {
		return nil, fmt.Errorf("the model has %d files, and a converted image has layers for %d; with %s it has room: %w",
			len(packs), maxImageBlobs, CompressChunked, errdefs.ErrNotImplemented)
	}
	if len(packs) == 0 && !c.o.DryRun {
		return nil, fmt.Errorf("the model has no content: %w", errdefs.ErrInvalidArgument)
	}
	if n := len(c.src.Model.Table.Blobs); n > 0 {
		c.lose("the %d blobs of the origin: their files are kept, compressed anew", n)
	}
	p := &plan{}
	c.hidden(p)
	for _, k := range packs {
		p.layers = append(p.layers, k.layer)
		k.prepare = func(ctx context.Context) error { return c.compress(ctx, k) }
		if c.o.Compress == CompressChunked {
			k.desc.MediaType = mediatype.Layer(mediatype.FormatModelPack, k.kind, filetable.ArchiveTar, filetable.CodecZstd)
		}
	}
	said := describe(ctx, files)
	p.documents = func() (documents, error) {
		from := c.src.Model
		model := &convert.Model{
			Config: convert.MergeConfig(from.Config, said.Config), Documents: from.Documents,
			ContextLength: cmp.Or(from.ContextLength, said.ContextLength), Runner: from.Runner,
		}
		model.Table = filetable.Table{Version: filetable.Version, Origin: from.Table.Origin}
		addPacks(model, files, packs)
		im, err := image.Build(model)
		if err != nil {
			return documents{}, err
		}
		return documents{im.Manifest, image.MediaType, [][]byte{im.Table, im.Config}}, nil
	}
	return p, nil
}

// packFiles returns which files go into which layer. Content that is there twice is packed once, but
// into a tar.
func packFiles(files []file, how Compression) []*pack {
	var packs []*pack
	add := func(list []file, all ...file) {
		k := &pack{files: all, kind: mediatype.KindWeightConfig, layer: &layer{
			name: fmt.Sprintf("%d small files", len(list)), desc: ocispec.Descriptor{Size: -1}}}
		for _, f := range list {
			k.total += f.Size
		}
		if len(list) == 1 {
			k.kind, k.path, k.name = cmp.Or(list[0].kind, convert.KindByPath(list[0].Path)), list[0].Path, list[0].Path
		}
		packs = append(packs, k)
	}
	if how == CompressSeekable {
		seen := map[digest.Digest]bool{}
		for _, f := range files {
			if f.Type == filetable.TypeReg && f.Size > 0 && !isInline(f) && (f.Digest == "" || !seen[f.Digest]) {
				seen[f.Digest] = true
				add([]file{f}, f)
			}
		}
		return packs
	}
	dirs := map[string]file{}
	for _, f := range files {
		if f.Type == filetable.TypeDir {
			dirs[f.Path] = f
		}
	}
	own, rest := group(files)
	if len(rest) > 0 {
		add(rest, withParents(rest, dirs)...)
	}
	for _, f := range own {
		add([]file{f}, withParents([]file{f}, dirs)...)
	}
	return packs
}

// isInline reports whether the content of a file is in the file table.
func isInline(f file) bool { return f.Source != nil && f.Source.Blob == "" && len(f.Source.Parts) == 0 }

// compress writes the blob of a pack to a temporary file, and makes it what its layer sends.
func (c *conversion) compress(ctx context.Context, k *pack) (err error) {
	w, err := newFrameWriter(c.o.TempDir)
	if err != nil {
		return fmt.Errorf("temporary file: %w", err)
	}
	files := make([]file, len(k.files))
	for i, f := range k.files {
		files[i] = f
		if open := f.open; open != nil {
			files[i].open = k.adding(open)
		}
	}
	k.done.Store(0)
	if c.o.Form == FormImage {
		w.plain = digest.SHA256.Hash()
	}
	annotations := map[string]string(nil)
	if c.o.Compress == CompressSeekable {
		k.members, err = w.writeSeekable(ctx, files[0])
	} else {
		k.members, annotations, err = w.writeTar(ctx, files)
	}
	if err == nil {
		k.desc.Digest, k.open, err = w.finish()
	}
	if err != nil {
		k.desc.Digest = ""
		w.Close() // err is why
		return err
	}
	if w.plain != nil {
		k.diffID = digest.NewDigest(digest.SHA256, w.plain)
	}
	k.desc.Size, k.desc.Annotations, k.release = w.off, annotations, w.Close
	return nil
}

// addPacks adds the files and the compressed blobs to a model.
func addPacks(m *convert.Model, files []file, packs []*pack) {
	sources := map[digest.Digest]*filetable.Source{} // by the digest of a file
	seen := map[digest.Digest]bool{}
	for i, k := range packs {
		if !seen[k.desc.Digest] {
			seen[k.desc.Digest] = true
			l := convert.Layer{Desc: k.desc, Kind: k.kind, Path: k.path, MediaType: k.desc.MediaType}
			l.Desc.MediaType = "" // no origin has it
			m.Layers = append(m.Layers, l)
			m.Table.Blobs = append(m.Table.Blobs, filetable.Blob{Digest: k.desc.Digest, Size: k.desc.Size, Archive: filetable.ArchiveChunks, Layer: i})
		}
		for _, member := range k.members {
			if len(member.Chunks) == 0 {
				continue
			}
			src := &filetable.Source{Blob: k.desc.Digest, Codec: filetable.CodecZstd}
			for _, c := range member.Chunks {
				if c.Zeros { // needs no bytes
					c.Digest, c.At, c.Len = "", 0, 0
				}
				src.Chunks = append(src.Chunks, c.Chunk)
			}
			sources[member.File.Digest] = src
		}
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
}
