package converttest

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"slices"
	"testing"

	"github.com/ballast-dev/ballast/convert"
	"github.com/ballast-dev/ballast/convert/mediatype"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/ballast-dev/ballast/store/verify"
	"github.com/google/go-cmp/cmp"
	"github.com/klauspost/compress/zstd"
	"github.com/opencontainers/go-digest"
)

// Texts is Extract without modes.
func Texts(m *convert.Model, blobs map[digest.Digest][]byte) (map[string]string, error) {
	files, err := Extract(m, blobs)
	texts := map[string]string{}
	for path, f := range files {
		texts[path] = string(f.Data)
	}
	return texts, err
}

// Extract returns the regular files of a model, with the bytes at their places in the
// blobs. It is a second reader of file tables, independent of the store.
func Extract(m *convert.Model, blobs map[digest.Digest][]byte) (map[string]File, error) {
	all, err := entries(m, blobs)
	if err != nil {
		return nil, err
	}
	if m.Table.Stacked {
		if all, err = stack(all); err != nil {
			return nil, err
		}
	}
	files := map[string]File{}
	for _, e := range all {
		if e.typ != filetable.TypeReg {
			continue
		}
		if have, ok := files[e.Path]; ok && !bytes.Equal(have.Data, e.Data) {
			return nil, fmt.Errorf("file %q: different content", e.Path)
		}
		files[e.Path] = e.File
	}
	return files, nil
}

// An entry is a file, link or directory of a layer.
type entry struct {
	File
	typ   string
	layer int
}

// entries returns all that is in a table and in its archives.
func entries(m *convert.Model, blobs map[digest.Digest][]byte) ([]entry, error) {
	var all []entry
	for _, f := range m.Table.Files {
		e := entry{File{Path: f.Path, Mode: f.Mode}, f.Type, f.Layer}
		if f.Type == filetable.TypeReg {
			var err error
			if e.Data, err = source(*f.Source, blobs); err != nil {
				return nil, fmt.Errorf("file %q: %w", f.Path, err)
			}
			if f.Digest != "" {
				if err := verify.Bytes(f.Digest, e.Data); err != nil {
					return nil, fmt.Errorf("file %q: %w", f.Path, err)
				}
			}
		}
		all = append(all, e)
	}
	for _, u := range m.Table.Unpacks {
		i := slices.IndexFunc(m.Table.Blobs, func(b filetable.Blob) bool { return b.Digest == u.Blob })
		p, err := decompress(blobs[u.Blob], m.Table.Blobs[i].Codec)
		if err != nil {
			return nil, fmt.Errorf("blob %s: %w", u.Blob, err)
		}
		if d := m.Table.Blobs[i].DiffID; d != "" {
			if err := verify.Bytes(d, p); err != nil {
				return nil, fmt.Errorf("diffID of %s: %w", u.Blob, err)
			}
		}
		members, err := filetable.TarIndex(bytes.NewReader(p), int64(len(p)))
		if err != nil {
			return nil, fmt.Errorf("blob %s: %w", u.Blob, err)
		}
		for _, m := range filetable.PlaceTar(members, u.As) {
			all = append(all, entry{File{Path: m.Path, Data: p[m.Offset : m.Offset+m.Size], Mode: m.Mode}, m.Type, u.Layer})
		}
	}
	return all, nil
}

// stack returns the entries that are seen.
func stack(all []entry) ([]entry, error) {
	var files []filetable.File
	for i, e := range all {
		files = append(files, filetable.File{Path: e.Path, Type: e.typ, Layer: e.layer, Size: int64(i)}) // by which it is found again
	}
	files, err := filetable.Stack(files)
	var seen []entry
	for _, f := range files {
		seen = append(seen, all[f.Size])
	}
	return seen, err
}

// source returns the bytes of a source, which can have parts.
func source(src filetable.Source, blobs map[digest.Digest][]byte) ([]byte, error) {
	if src.Blob != "" {
		blob, ok := blobs[src.Blob]
		if !ok {
			return nil, fmt.Errorf("no blob %s", src.Blob)
		}
		if len(src.Chunks) > 0 && src.Size == 0 {
			return chunks(src, blob)
		}
		return blob[src.Offset : src.Offset+src.Size], nil
	}
	p := src.Inline
	for _, part := range src.Parts {
		b, err := source(part, blobs)
		if err != nil {
			return nil, err
		}
		p = append(p, b...)
	}
	return p, nil
}

// chunks returns the bytes of a source in a blob of chunks, each of which is verified.
func chunks(src filetable.Source, blob []byte) ([]byte, error) {
	var all []byte
	for _, c := range src.Chunks {
		p := make([]byte, c.Size)
		if c.Len == 0 {
			all = append(all, p...)
			continue
		}
		r, err := uncompressed(blob[c.At:c.At+c.Len], src.Codec)
		if err == nil {
			_, err = io.ReadFull(r, p)
		}
		if err != nil {
			return nil, fmt.Errorf("chunk at %d: %w", c.Offset, err)
		}
		if err := verify.Bytes(c.Digest, p); err != nil {
			return nil, fmt.Errorf("chunk at %d: %w", c.Offset, err)
		}
		all = append(all, p...)
	}
	return all, nil
}

// uncompressed returns p without its compression. The caller reads as much as it needs.
func uncompressed(p []byte, c filetable.Codec) (io.Reader, error) {
	r := bytes.NewReader(p)
	switch c {
	case filetable.CodecGzip:
		return gzip.NewReader(r)
	case filetable.CodecZstd:
		return zstd.NewReader(r, zstd.WithDecoderConcurrency(1))
	}
	return r, nil
}

func decompress(p []byte, c filetable.Codec) ([]byte, error) {
	r, err := uncompressed(p, c)
	if err != nil {
		return nil, err
	}
	return io.ReadAll(r)
}

// maxHeaders is how much of an archive its headers can take, in bytes.
const maxHeaders = 16 << 10

// TestParser checks that parse makes of b what it is: the files, in a valid table, the same
// each time, and without reading weights.
func TestParser(t *testing.T, parse func(context.Context, convert.Artifact) (*convert.Model, error), b *Built) {
	t.Helper()
	a := NewArtifact(b)
	m, err := parse(context.Background(), a)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := m.Table.Origin, (filetable.Origin{Format: string(b.Format), Digest: b.Digest(), Mapping: convert.MappingVersion}); got != want {
		t.Errorf("origin: got %v, want %v", got, want)
	}
	if err := m.Table.Validate(); err != nil {
		t.Errorf("table: %v", err)
	}
	files, err := Extract(m, b.Blobs)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(b.Files, files); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
	testLayers(t, a, m)
	again, err := parse(context.Background(), NewArtifact(b))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(m, again); diff != "" {
		t.Errorf("parsed again (-first +second):\n%s", diff)
	}
}

// testLayers checks that layers and blobs match, and that no content of weights was read.
func testLayers(t *testing.T, a *Artifact, m *convert.Model) {
	t.Helper()
	if got, want := len(m.Layers), len(m.Table.Blobs); got != want {
		t.Fatalf("got %d layers for %d blobs", got, want)
	}
	for i, l := range m.Layers {
		blob := m.Table.Blobs[i]
		if l.Desc.Digest != blob.Digest || l.Desc.Size != blob.Size {
			t.Errorf("layer %d is %s, its blob %s", i, l.Desc.Digest, blob.Digest)
		}
		if l.Kind != mediatype.KindWeight {
			continue
		}
		if n := a.BytesRead(l.Desc.Digest); blob.Archive == filetable.ArchiveNone && n > 0 || n > maxHeaders || a.ReadWhole(l.Desc.Digest) {
			t.Errorf("layer %d: %d bytes of weights were read", i, n)
		}
	}
}
