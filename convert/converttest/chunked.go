package converttest

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"io"
	"maps"
	"time"

	"github.com/ballast-dev/ballast/convert"
	"github.com/ballast-dev/ballast/convert/mediatype"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/containerd/stargz-snapshotter/estargz"
	"github.com/containerd/stargz-snapshotter/estargz/zstdchunked"
	"github.com/klauspost/compress/zstd"
	"github.com/opencontainers/go-digest"
)

// A ChunkedFormat is a format of layers that can be read in chunks.
type ChunkedFormat string

// The formats.
const (
	EStargz           ChunkedFormat = "estargz"             // tar+gzip
	ZstdChunkedStargz ChunkedFormat = "zstd-chunked-stargz" // tar+zstd, as stargz writes it
	ZstdChunkedPodman ChunkedFormat = "zstd-chunked-podman" // tar+zstd, as Podman does
)

// ChunkedFormats are all formats.
var ChunkedFormats = []ChunkedFormat{EStargz, ZstdChunkedStargz, ZstdChunkedPodman}

// Codec returns how a layer of the format is compressed.
func (f ChunkedFormat) Codec() filetable.Codec {
	if f == EStargz {
		return filetable.CodecGzip
	}
	return filetable.CodecZstd
}

// Chunked returns a tar as a layer of the format, and the annotations that the manifest gives it. Size
// is the size of a chunk in bytes, at most. The layers of stargz come from the code of stargz; that of
// Podman is made here, with a chunk of zeros for each run of a kibibyte of them.
func Chunked(format ChunkedFormat, plain []byte, size int) (blob []byte, annotations map[string]string) {
	switch format {
	case EStargz:
		return stargz(plain, size, nil)
	case ZstdChunkedStargz:
		c := &zstdchunked.Compressor{CompressionLevel: zstd.SpeedFastest, Metadata: map[string]string{}}
		return stargz(plain, size, c)
	case ZstdChunkedPodman:
		return podman(plain, size)
	}
	panic(fmt.Sprintf("converttest: internal error: format %q", format))
}

// ModelPackChunked makes a ModelPack artifact with a chunked layer for each file.
func ModelPackChunked(files []File, format ChunkedFormat, size int) *Built {
	b := newBuilder("modelpack-"+string(format), mediatype.FormatModelPack, mediatype.OCIManifest)
	b.manifest.ArtifactType = mediatype.ModelPackManifest
	var diffIDs []digest.Digest
	for _, f := range files {
		blob, annotations := Chunked(format, Tar(f), size)
		plain, err := decompress(blob, format.Codec())
		must(err)
		diffIDs = append(diffIDs, digest.FromBytes(plain))
		annotations = maps.Clone(annotations)
		annotations[mediatype.AnnotationFilepath] = f.Path
		b.layer(mediatype.Layer(mediatype.FormatModelPack, convert.KindByPath(f.Path), filetable.ArchiveTar, format.Codec()), blob, annotations)
		b.expect(f)
	}
	b.config(mediatype.ModelPackConfig, mustJSON(map[string]any{
		"descriptor": map[string]any{"name": "a-model"},
		"config":     map[string]any{},
		"modelfs":    map[string]any{"type": "layers", "diffIds": diffIDs},
	}))
	return b.done()
}

// stargz has a layer made by stargz; a nil Compressor is gzip.
func stargz(plain []byte, size int, c *zstdchunked.Compressor) ([]byte, map[string]string) {
	annotations := map[string]string{}
	options := []estargz.Option{estargz.WithChunkSize(size), estargz.WithParallelism(1), estargz.WithCompressionLevel(gzip.BestSpeed)}
	if c != nil {
		options = append(options, estargz.WithCompression(struct {
			*zstdchunked.Compressor
			*zstdchunked.Decompressor
		}{c, &zstdchunked.Decompressor{}}))
	}
	b, err := estargz.Build(io.NewSectionReader(bytes.NewReader(plain), 0, int64(len(plain))), options...)
	must(err)
	blob, err := io.ReadAll(b)
	must(err)
	must(b.Close())
	if c != nil {
		maps.Copy(annotations, c.Metadata)
	}
	annotations[mediatype.AnnotationTOCDigest] = b.TOCDigest().String()
	return blob, annotations
}

// minZeros is the length of a run of zeros that is a chunk of its own, in bytes.
const minZeros = 1 << 10

// podman makes a layer as Podman does, without the data that puts the tar together again.
func podman(plain []byte, size int) ([]byte, map[string]string) {
	p := &podmanLayer{}
	r := bytes.NewReader(plain)
	tr := tar.NewReader(r)
	var done int64 // bytes of plain
	upTo := func(end int64) {
		p.frame(plain[done:end])
		done = end
	}
	for {
		hdr, err := tr.Next()
		if err == io.EOF {
			break
		}
		must(err)
		at := int64(len(plain)) - int64(r.Len())
		upTo(at)
		p.member(hdr, plain[at:at+max(hdr.Size, 0)], size)
		done += hdr.Size
	}
	upTo(int64(len(plain)))
	return p.finish()
}

type podmanLayer struct {
	out     bytes.Buffer
	entries []map[string]any
}

// frame appends a frame and returns where it is.
func (p *podmanLayer) frame(b []byte) (start, end int) {
	start = p.out.Len()
	if len(b) > 0 {
		p.out.Write(Compress(b, filetable.CodecZstd))
	}
	return start, p.out.Len()
}

var podmanTypes = map[byte]string{
	tar.TypeReg: "reg", tar.TypeDir: "dir", tar.TypeSymlink: "symlink", tar.TypeLink: "hardlink",
	tar.TypeChar: "char", tar.TypeBlock: "block", tar.TypeFifo: "fifo",
}

func (p *podmanLayer) member(hdr *tar.Header, data []byte, size int) {
	e := map[string]any{
		"type": podmanTypes[hdr.Typeflag], "name": hdr.Name, "mode": hdr.Mode, "size": hdr.Size, "uid": hdr.Uid, "gid": hdr.Gid,
		"modtime": hdr.ModTime.In(time.FixedZone("", 3600)), "linkName": hdr.Linkname,
		"xattrs": map[string]string{"user.a": base64.StdEncoding.EncodeToString([]byte("b"))},
	}
	p.entries = append(p.entries, e)
	if len(data) == 0 {
		return
	}
	e["digest"] = digest.FromBytes(data)
	chunks := cutPodman(data, size)
	off := 0
	for i, c := range chunks {
		start, end := p.frame(c)
		if i > 0 {
			p.entries = append(p.entries, map[string]any{"type": "chunk", "name": hdr.Name, "chunkOffset": off})
		}
		last := p.entries[len(p.entries)-1]
		last["offset"] = start
		if len(chunks) > 1 {
			last["chunkSize"], last["chunkDigest"] = len(c), digest.FromBytes(c)
			if len(bytes.Trim(c, "\x00")) == 0 {
				last["chunkType"] = "zeros"
			}
		}
		e["endOffset"] = end
		off += len(c)
	}
}

// cutPodman cuts where runs of zeros begin and end, and else where size is reached.
func cutPodman(data []byte, size int) [][]byte {
	var chunks [][]byte
	start := 0
	cut := func(end int) {
		if end > start {
			chunks = append(chunks, data[start:end])
			start = end
		}
	}
	for i := 0; i < len(data); {
		run := 0
		for i+run < len(data) && data[i+run] == 0 {
			run++
		}
		if run >= minZeros {
			cut(i)
			cut(i + run)
		}
		if i += max(run, 1); i-start >= size {
			cut(i)
		}
	}
	cut(len(data))
	return chunks
}

// finish appends the table of contents and the footer.
func (p *podmanLayer) finish() ([]byte, map[string]string) {
	toc := mustJSON(map[string]any{"version": 1, "entries": p.entries, "tarSplitDigest": digest.FromString("")})
	compressed := Compress(toc, filetable.CodecZstd)
	off := p.out.Len() + 8
	p.skippable(compressed)
	split := p.out.Len() + 8
	p.skippable(nil)
	var footer []byte
	for _, n := range []int{off, len(compressed), len(toc), 1, split, 0, 0} {
		footer = binary.LittleEndian.AppendUint64(footer, uint64(n))
	}
	p.skippable(append(footer, "GNUlInUx"...))
	return p.out.Bytes(), map[string]string{
		mediatype.PodmanTOCPosition:      fmt.Sprintf("%d:%d:%d:1", off, len(compressed), len(toc)),
		mediatype.PodmanTOCChecksum:      digest.FromBytes(compressed).String(),
		mediatype.PodmanTarSplitPosition: fmt.Sprintf("%d:0:0", split),
	}
}

// skippable appends a frame that is not data.
func (p *podmanLayer) skippable(b []byte) {
	p.out.Write([]byte{0x50, 0x2a, 0x4d, 0x18})
	p.out.Write(binary.LittleEndian.AppendUint32(nil, uint32(len(b))))
	p.out.Write(b)
}
