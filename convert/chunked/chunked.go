package chunked

import (
	"errors"
	"fmt"
	"io"

	"github.com/ballast-dev/ballast/convert/mediatype"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/ballast-dev/ballast/store/verify"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// ErrOpaque means that a layer cannot be used in chunks, and must be unpacked as a whole.
var ErrOpaque = errors.New("not usable in chunks")

func opaque(format string, args ...any) error {
	return fmt.Errorf("%w: %w", fmt.Errorf(format, args...), ErrOpaque)
}

// Limits of a table of contents, in bytes and in entries. The largest tables that Podman reads have
// 50 MiB.
const (
	maxCompressed = 16 << 20 // 16 MiB
	maxTOC        = 64 << 20 // 64 MiB
	maxEntries    = 300_000

	// MaxChunks limits the chunks of a layer, and is a suitable limit for all layers of a model: a
	// chunk takes about 200 bytes of a file table, of store.MaxTableSize.
	MaxChunks = 250_000

	// MaxMembers limits the files, links and directories of a layer, at all its paths together.
	MaxMembers = 100_000

	// tocWeight is the memory that a byte of a table of contents takes, in bytes, until its chunks are
	// those of a file table: the byte itself, and its part of the entries.
	tocWeight = 4

	// maxValue limits a value in a table of contents, in bytes.
	maxValue = 1 << 20

	// MaxMemory is the memory that a table of contents can take, in bytes.
	MaxMemory = tocWeight*maxTOC + maxCompressed

	// shortEntry is the size of a short entry of a table of contents, in bytes.
	shortEntry = 128
)

// tailSize is the number of bytes at the end of a layer that are read for its footer: most tables
// precede it and are included.
const tailSize = 256 << 10 // 256 KiB

// A Layer is the entry of a layer in a manifest.
type Layer struct {
	Digest      digest.Digest
	Size        int64 // bytes
	Codec       filetable.Codec
	Annotations map[string]string
}

// Announced reports whether the manifest has the digest of the table of contents of a layer.
func Announced(l Layer) bool {
	_, err := find(l)
	return err == nil
}

// A toc has the facts about the table of contents that are known before it is read.
type toc struct {
	codec filetable.Codec

	off, size int64         // of the compressed table in the blob; size is 0 if it is only in the footer
	plainSize int64         // bytes uncompressed; 0 if unknown
	checksum  digest.Digest // of the compressed table, or ""
	digest    digest.Digest // of the uncompressed table, or ""
}

// find returns the facts in the annotations of a layer.
func find(l Layer) (toc, error) {
	t := toc{codec: l.Codec}
	a := l.Annotations
	var err error
	if s := a[mediatype.AnnotationTOCDigest]; s != "" {
		if t.digest, err = verify.ParseDigest(s); err != nil {
			return t, opaque("%s: %v", mediatype.AnnotationTOCDigest, err)
		}
	}
	switch l.Codec {
	case filetable.CodecGzip:
	case filetable.CodecZstd:
		for _, keys := range [][2]string{
			{mediatype.PodmanTOCPosition, mediatype.PodmanTOCChecksum},
			{mediatype.StargzTOCPosition, mediatype.StargzTOCChecksum},
		} {
			if a[keys[0]] == "" {
				continue
			}
			if err := t.place(a[keys[0]], a[keys[1]], l.Size); err != nil {
				return t, err
			}
			break
		}
	default:
		return t, opaque("codec %q", l.Codec)
	}
	if t.digest == "" && t.checksum == "" {
		return t, opaque("no digest of a table of contents")
	}
	return t, nil
}

// place sets the values of annotations.
func (t *toc) place(position, checksum string, size int64) (err error) {
	if checksum != "" {
		if t.checksum, err = verify.ParseDigest(checksum); err != nil {
			return opaque("checksum: %v", err)
		}
	}
	p, err := parsePosition(position)
	if err != nil {
		return err
	}
	return t.set(p, size)
}

// set sets a place in a blob of the given size.
func (t *toc) set(p position, size int64) error {
	switch {
	case p.kind != tocType:
		return opaque("table of contents of type %d", p.kind)
	case p.size < 1 || p.size > maxCompressed || p.plainSize < 1 || p.plainSize > maxTOC:
		return opaque("table of contents of %d bytes, %d uncompressed", p.size, p.plainSize)
	case p.off < skippableHeader || p.off > size-p.size:
		return opaque("table of contents at %d+%d, beyond the %d bytes of the layer", p.off, p.size, size)
	}
	t.off, t.size, t.plainSize = p.off, p.size, p.plainSize
	return nil
}

// A Room reserves n bytes of memory before they are used.
type Room func(n int64) error

// Files returns the files of a layer, whose blob r reads without verification, at the paths of the
// model that store.PlaceTar gives for each of as. Their chunks are in a blob with
// store.ArchiveChunks.
//
// It returns an error that is ErrOpaque if the layer must be unpacked as a whole, and
// errdefs.ErrInvalidArgument if it contains something that a model must not contain, or the error
// of r or room.
func Files(r io.ReaderAt, room Room, l Layer, as ...string) ([][]filetable.File, error) {
	t, err := find(l)
	if err != nil {
		return nil, err
	}
	src := &blob{r: r, size: l.Size}
	entries, err := t.read(src, room)
	switch {
	case src.err != nil && !errdefs.IsNotImplemented(src.err): // a server without ranges cannot serve chunks
		return nil, fmt.Errorf("table of contents: %w", src.err)
	case err != nil:
		return nil, fmt.Errorf("table of contents: %w", err)
	}
	c := contents{l: l, end: t.off, stargz: t.digest != ""}
	if t.codec == filetable.CodecZstd {
		c.end -= skippableHeader
	}
	if err := c.add(entries); err != nil {
		return nil, err
	}
	if n := len(c.members) * len(as); n > MaxMembers {
		return nil, opaque("%d files at all paths, more than %d", n, MaxMembers)
	}
	out := make([][]filetable.File, len(as))
	for i, p := range as {
		out[i] = c.place(p)
	}
	return out, nil
}

// A blob reads ranges of a layer and records errors.
type blob struct {
	r    io.ReaderAt
	size int64
	err  error
	tail []byte // the end, once it was read
}

// read returns n bytes at off. The caller has checked that the range is in the blob.
func (b *blob) read(off, n int64) ([]byte, error) {
	if start := b.size - int64(len(b.tail)); off >= start {
		return b.tail[off-start : off-start+n], nil
	}
	p := make([]byte, n)
	if got, err := b.r.ReadAt(p, off); got < len(p) {
		b.err = err
		return nil, opaque("%v", err)
	}
	return p, nil
}

// end returns the last bytes, at most tailSize.
func (b *blob) end() ([]byte, error) {
	n := min(b.size, tailSize)
	p, err := b.read(b.size-n, n)
	b.tail = p
	return p, err
}
