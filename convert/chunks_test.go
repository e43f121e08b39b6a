package convert_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/convert"
	"github.com/ballast-dev/ballast/convert/chunked"
	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/convert/formats"
	"github.com/ballast-dev/ballast/convert/mediatype"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"
)

// tarZstd is the type of a layer of weights.
var tarZstd = mediatype.Layer(mediatype.FormatModelPack, mediatype.KindWeight, filetable.ArchiveTar, filetable.CodecZstd)

// chunkedSpec returns an artifact with the given layers.
func chunkedSpec(layers ...converttest.Layer) *converttest.Built {
	return converttest.Make(converttest.Spec{
		ArtifactType: mediatype.ModelPackManifest, ConfigType: mediatype.OCIEmpty, Config: "{}", Layers: layers,
	})
}

func parseChunked(t *testing.T, b *converttest.Built) (*convert.Model, *converttest.Artifact, error) {
	t.Helper()
	a := converttest.NewArtifact(b)
	m, err := formats.All().Parse(context.Background(), a)
	return m, a, err
}

// podmanLayer is a layer of one file.
func podmanLayer(path string) converttest.Layer {
	plain := converttest.Tar(converttest.File{Path: path, Data: bytes.Repeat([]byte("weights "), 50<<10), Mode: 0o644})
	blob, annotations := converttest.Chunked(converttest.ZstdChunkedPodman, plain, 64<<10)
	return converttest.Layer{MediaType: tarZstd, Data: string(blob), Annotations: annotations}
}

// TestOpaque checks that a layer whose table of contents can not be used is unpacked as any other, and
// that of a layer that does not announce one nothing is read.
func TestOpaque(t *testing.T) {
	ordinary := podmanLayer("a.bin")
	ordinary.Annotations = nil
	wrong := podmanLayer("a.bin")
	wrong.Annotations[mediatype.PodmanTOCChecksum] = digest.FromString("another").String()
	for name, l := range map[string]converttest.Layer{"ordinary": ordinary, "wrong": wrong} {
		m, a, err := parseChunked(t, chunkedSpec(l))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		want := []filetable.Unpack{{Blob: digest.FromString(l.Data)}}
		if diff := cmp.Diff(want, m.Table.Unpacks); diff != "" || len(m.Table.Files) > 0 {
			t.Errorf("%s: %d files, unpacks (-want +got):\n%s", name, len(m.Table.Files), diff)
		}
		if n := a.BytesRead(want[0].Blob); (n > 0) != (name == "wrong") {
			t.Errorf("%s: %d bytes were read", name, n)
		}
	}
}

// TestChunkedTwice has one chunked blob at two paths.
func TestChunkedTwice(t *testing.T) {
	first, second := podmanLayer("a.bin"), podmanLayer("a.bin")
	second.Annotations[mediatype.AnnotationFilepath] = "dir/a.bin"
	b := chunkedSpec(first, second)
	m, _, err := parseChunked(t, b)
	if err != nil {
		t.Fatal(err)
	}
	if len(m.Table.Unpacks) > 0 || len(m.Table.Blobs) != 1 || m.Table.Blobs[0].Archive != filetable.ArchiveChunks {
		t.Errorf("got unpacks %v, blobs %v", m.Table.Unpacks, m.Table.Blobs)
	}
	files, err := converttest.Extract(m, b.Blobs)
	if err != nil || len(files) != 2 || files["dir/a.bin"].Path == "" {
		t.Errorf("got %d files: %v", len(files), err)
	}
}

// zerosLayer is a layer whose table of contents has one file of zeros, of the given size.
func zerosLayer(t *testing.T, path string, size int64) converttest.Layer {
	t.Helper()
	blob := converttest.Compress([]byte(path), filetable.CodecZstd)
	all := chunked.Chunk{Chunk: filetable.Chunk{Size: size, At: 1, Len: 1, Digest: digest.FromString("")}, Zeros: true}
	last := all
	last.Offset, last.Size = size, 1
	tail, annotations, err := chunked.TOC(int64(len(blob)), []chunked.Member{{
		File:   filetable.File{Path: path, Type: filetable.TypeReg, Size: size + 1, Digest: digest.FromString(path)},
		Chunks: []chunked.Chunk{all, last},
	}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return converttest.Layer{MediaType: tarZstd, Data: string(blob) + string(tail), Annotations: annotations}
}

// TestTooManyChunks gives layers of more chunks than a file table has room for: the first are read in
// chunks, and what has no room is not.
func TestTooManyChunks(t *testing.T) {
	const size = 100_000 * filetable.MaxChunk
	b := chunkedSpec(zerosLayer(t, "a", size), zerosLayer(t, "b", size), zerosLayer(t, "c", size), podmanLayer("d"))
	m, _, err := parseChunked(t, b)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, f := range m.Table.Files {
		got = append(got, f.Path)
	}
	if diff := cmp.Diff([]string{"a", "b", "d"}, got); diff != "" || len(m.Table.Unpacks) != 1 {
		t.Errorf("%d unpacks, files (-want +got):\n%s", len(m.Table.Unpacks), diff)
	}
	p, err := m.Table.Encode()
	if err != nil || len(p) > filetable.MaxSize {
		t.Errorf("table of %d bytes: %v", len(p), err)
	}
}

// TestChunkedHostile has what a model must not contain in a table of contents.
func TestChunkedHostile(t *testing.T) {
	good := podmanLayer("a")
	bad := zerosLayer(t, "../a", 5)
	_, _, err := parseChunked(t, chunkedSpec(good, bad))
	if !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), "layer 1 ("+digest.FromString(bad.Data).String()) {
		t.Errorf("got %v", err)
	}
}

// TestManyTables has layers with large tables of contents that cannot be used: after some of them,
// layers are unpacked whole without a look at their tables.
func TestManyTables(t *testing.T) {
	toc := []byte(`{"version":1,` + strings.Repeat(" ", 1<<20) + `"entries":[` + strings.Repeat(`{"type":"chunk","name":"`+strings.Repeat("a", 900_000)+`"},`, 60) + `]`)
	p := converttest.Compress(toc, filetable.CodecZstd)
	const layers = 7
	var all []converttest.Layer
	for i := range layers {
		blob := bytes.Clone(p)
		blob = append(append([]byte{0x50, 0x2a, 0x4d, 0x18}, binary.LittleEndian.AppendUint32(nil, uint32(len(p)))...), blob...)
		blob = append(blob, byte(i))
		all = append(all, converttest.Layer{MediaType: tarZstd, Data: string(blob), Annotations: map[string]string{
			mediatype.AnnotationFilepath: strconv.Itoa(i),
			mediatype.PodmanTOCPosition:  fmt.Sprintf("8:%d:%d:1", len(p), len(toc)), mediatype.PodmanTOCChecksum: digest.FromBytes(p).String(),
		}})
	}
	var tables int
	ctx := convert.WithRoom(t.Context(), func(_ context.Context, n int64) error {
		if n > 100<<20 {
			tables++
		}
		return nil
	})
	m, err := formats.All().Parse(ctx, converttest.NewArtifact(chunkedSpec(all...)))
	if err != nil {
		t.Fatal(err)
	}
	if len(m.Table.Unpacks) != layers || tables != 3 {
		t.Errorf("%d tables were read, and %d layers are unpacked whole; want 3 and %d", tables, len(m.Table.Unpacks), layers)
	}
}
