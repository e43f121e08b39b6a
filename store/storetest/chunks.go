package storetest

import (
	"bytes"
	"compress/gzip"
	"slices"
	"testing"

	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/ballast-dev/ballast/store/verify"
	"github.com/klauspost/compress/zstd"
	"github.com/opencontainers/go-digest"
)

// chunks splits p into chunks of size bytes.
func chunks(p []byte, size int) []filetable.Chunk {
	var out []filetable.Chunk
	for at := 0; at < len(p); at += size {
		part := p[at:min(at+size, len(p))]
		out = append(out, filetable.Chunk{Offset: int64(at), Size: int64(len(part)), Digest: digest.FromBytes(part)})
	}
	return out
}

// RawChunks adds a file that is a whole blob, with the digests of its chunks of size bytes.
func (b *Builder) RawChunks(path string, p []byte, mode uint32, size int) *Builder {
	b.Raw(path, p, mode)
	b.t.Files[len(b.t.Files)-1].Source.Chunks = chunks(p, size)
	return b
}

// TarChunks adds the members of a plain tar, with the digests of the members and of their chunks.
func (b *Builder) TarChunks(t testing.TB, p []byte, size int) *Builder {
	t.Helper()
	first := len(b.t.Files)
	b.Tar(t, p)
	for i, f := range b.t.Files[first:] {
		if f.Type != filetable.TypeReg {
			continue
		}
		body := p[f.Source.Offset:][:f.Size]
		b.t.Files[first+i].Digest = digest.FromBytes(body)
		b.t.Files[first+i].Source.Chunks = chunks(body, size)
	}
	return b
}

// Stated adds the states of the file digests to the chunks of the files with these contents.
func (b *Builder) Stated(t testing.TB, contents ...[]byte) *Builder {
	t.Helper()
	for _, p := range contents {
		d := digest.FromBytes(p)
		for _, f := range b.t.Files {
			if f.Digest != d {
				continue
			}
			h := verify.NewHash()
			for i, c := range f.Source.Chunks[:len(f.Source.Chunks)-1] {
				h.Write(p[c.Offset:][:c.Size])
				var err error
				if f.Source.Chunks[i].State, err = h.State(); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	return b
}

// A Compressed is a blob of chunks that are compressed individually.
type Compressed struct {
	Codec filetable.Codec
	Size  int // of a chunk, in bytes
	Files []struct {
		Path  string
		Bytes []byte
	}
	Blob []byte // set by Builder.Compressed
}

// Add adds a file.
func (c *Compressed) Add(path string, p []byte) *Compressed {
	c.Files = append(c.Files, struct {
		Path  string
		Bytes []byte
	}{path, p})
	return c
}

// Compressed adds the files of c. A chunk of zeros takes no bytes in the blob.
func (b *Builder) Compressed(t testing.TB, c *Compressed) *Builder {
	t.Helper()
	var blob bytes.Buffer
	blob.WriteString("something that is not a chunk")
	files := make([]filetable.File, len(c.Files))
	for i, f := range c.Files {
		cs := chunks(f.Bytes, c.Size)
		for j := range cs {
			part := f.Bytes[cs[j].Offset:][:cs[j].Size]
			if len(bytes.TrimLeft(part, "\x00")) == 0 {
				cs[j].Digest = ""
				continue
			}
			cs[j].At = int64(blob.Len())
			blob.Write(Compress(t, part, c.Codec))
			cs[j].Len = int64(blob.Len()) - cs[j].At
		}
		blob.WriteString("header of the next file")
		files[i] = filetable.File{Path: f.Path, Type: filetable.TypeReg, Mode: 0o644, Size: int64(len(f.Bytes)), Digest: digest.FromBytes(f.Bytes),
			Source: &filetable.Source{Codec: c.Codec, Chunks: cs}}
	}
	c.Blob = blob.Bytes()
	d := b.blob(c.Blob, filetable.ArchiveChunks, filetable.CodecNone)
	for _, f := range files {
		f.Source.Blob = d
		b.File(f)
	}
	return b
}

// TarFrames adds the members of a plain tar, which is compressed as stargz does: in frames with a chunk of size
// bytes of a member each, of which the last also has everything up to the next member. It returns the blob.
func (b *Builder) TarFrames(t testing.TB, p []byte, codec filetable.Codec, size int) []byte {
	t.Helper()
	members, err := filetable.TarIndex(bytes.NewReader(p), int64(len(p)))
	if err != nil {
		t.Fatal(err)
	}
	members = slices.DeleteFunc(members, func(m filetable.Member) bool { return m.Type != filetable.TypeReg || m.Size == 0 })
	blob := Compress(t, p[:members[0].Offset], codec)
	files := make([]filetable.File, len(members))
	for i, m := range members {
		body, end := p[m.Offset:][:m.Size], len(p)
		if i+1 < len(members) {
			end = int(members[i+1].Offset)
		}
		cs := chunks(body, size)
		for j := range cs {
			part := body[cs[j].Offset:][:cs[j].Size]
			if j == len(cs)-1 {
				part = p[int(m.Offset+cs[j].Offset):end]
			}
			cs[j].At = int64(len(blob))
			blob = append(blob, Compress(t, part, codec)...)
			cs[j].Len = int64(len(blob)) - cs[j].At
		}
		files[i] = filetable.File{Path: m.Path, Type: filetable.TypeReg, Mode: m.Mode, Size: m.Size, Digest: digest.FromBytes(body),
			Source: &filetable.Source{Codec: codec, Chunks: cs}}
	}
	d := b.blob(blob, filetable.ArchiveChunks, filetable.CodecNone)
	for _, f := range files {
		f.Source.Blob = d
		b.File(f)
	}
	return blob
}

// Compress returns p compressed with codec c.
func Compress(t testing.TB, p []byte, c filetable.Codec) []byte {
	t.Helper()
	switch c {
	case filetable.CodecZstd:
		e, err := zstd.NewWriter(nil)
		if err != nil {
			t.Fatal(err)
		}
		defer e.Close()
		return e.EncodeAll(p, nil)
	case filetable.CodecGzip:
		var b bytes.Buffer
		// The default level takes eight times longer with the race detector.
		g, err := gzip.NewWriterLevel(&b, gzip.BestSpeed)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := g.Write(p); err != nil {
			t.Fatal(err)
		}
		if err := g.Close(); err != nil {
			t.Fatal(err)
		}
		return b.Bytes()
	}
	return p
}
