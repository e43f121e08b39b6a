package chunked_test

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ballast-dev/ballast/convert"
	"github.com/ballast-dev/ballast/convert/chunked"
	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/convert/formats"
	"github.com/ballast-dev/ballast/convert/mediatype"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/google/go-cmp/cmp"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"github.com/opencontainers/go-digest"
)

// random returns bytes that do not compress.
func random(n int) []byte {
	p := make([]byte, n)
	r := rand.NewChaCha8([32]byte{1})
	_, _ = r.Read(p)
	return p
}

// content returns bytes with a run of zeros in their middle.
func content(n int) []byte {
	p := bytes.Repeat([]byte("a weight is a number. "), n/22+1)[:n]
	clear(p[n/3 : n/2])
	return p
}

type member struct {
	tar.Header
	data []byte
}

// aTar returns a tar with members of all types that a model can have.
func aTar(t testing.TB) []byte {
	t.Helper()
	mtime := time.Date(2025, 2, 3, 4, 5, 6, 0, time.UTC)
	return makeTar(t, []member{
		{tar.Header{Typeflag: tar.TypeDir, Name: "./", Mode: 0o755}, nil},
		{tar.Header{Typeflag: tar.TypeDir, Name: "weights/", Mode: 0o2750, ModTime: mtime}, nil},
		{tar.Header{Typeflag: tar.TypeReg, Name: "weights/model.gguf", Mode: 0o640, ModTime: mtime}, content(300 << 10)},
		{tar.Header{Typeflag: tar.TypeReg, Name: "./weights/noise.bin", Mode: 0o4755, ModTime: mtime.Add(time.Hour)}, random(100 << 10)},
		{tar.Header{Typeflag: tar.TypeReg, Name: "empty", Mode: 0o600}, nil},
		{tar.Header{Typeflag: tar.TypeReg, Name: "zeros", Mode: 0o644, ModTime: mtime}, make([]byte, 70<<10)},
		{tar.Header{Typeflag: tar.TypeReg, Name: "LICENSE", Mode: 0o644, Uid: 1000, Gid: 100, ModTime: mtime}, []byte("Permission is granted.\n")},
		{tar.Header{Typeflag: tar.TypeSymlink, Name: "latest", Linkname: "weights/model.gguf", Mode: 0o777, ModTime: mtime}, nil},
		{tar.Header{Typeflag: tar.TypeLink, Name: "COPYING", Linkname: "./LICENSE", Mode: 0o600, ModTime: mtime}, nil},
		{tar.Header{Typeflag: tar.TypeReg, Name: ".wh.name", Mode: 0o644, ModTime: mtime}, []byte("a name, not a deletion")},
	})
}

func makeTar(t testing.TB, members []member) []byte {
	t.Helper()
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, m := range members {
		m.Size = int64(len(m.data))
		if err := w.WriteHeader(&m.Header); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(m.data); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

func layerOf(blob []byte, c filetable.Codec, annotations map[string]string) chunked.Layer {
	return chunked.Layer{Digest: digest.FromBytes(blob), Size: int64(len(blob)), Codec: c, Annotations: annotations}
}

// inflate returns the uncompressed content of a layer, as any tool would read it.
func inflate(t testing.TB, p []byte, c filetable.Codec) []byte {
	t.Helper()
	var r io.Reader
	var err error
	if c == filetable.CodecGzip {
		r, err = gzip.NewReader(bytes.NewReader(p))
	} else {
		r, err = zstd.NewReader(bytes.NewReader(p))
	}
	if err != nil {
		t.Fatal(err)
	}
	out, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// unpacked returns the files of a layer that is unpacked as a whole, without sources.
func unpacked(t testing.TB, blob []byte, c filetable.Codec, as string) []filetable.File {
	t.Helper()
	plain := inflate(t, blob, c)
	members, err := filetable.TarIndex(bytes.NewReader(plain), int64(len(plain)))
	if err != nil {
		t.Fatal(err)
	}
	members = slices.DeleteFunc(members, func(m filetable.Member) bool { // made by stargz
		return m.Path == "stargz.index.json" || strings.HasSuffix(m.Path, "prefetch.landmark")
	})
	var files []filetable.File
	for _, m := range filetable.PlaceTar(members, as) {
		f := m.File()
		if m.Type == filetable.TypeReg {
			f.Digest = digest.FromBytes(plain[m.Offset : m.Offset+m.Size])
		}
		files = append(files, f)
	}
	return files
}

// check checks that the files of a layer are those of the unpacked layer, that a table with them is
// valid, and that each chunk has the right content.
func check(t *testing.T, blob []byte, l chunked.Layer, as string) []filetable.File {
	t.Helper()
	placed, err := chunked.Files(bytes.NewReader(blob), anyRoom, l, as)
	if err != nil {
		t.Fatal(err)
	}
	files := placed[0]
	got := withoutSources(files)
	if d := cmp.Diff(unpacked(t, blob, l.Codec, as), got); d != "" {
		t.Errorf("files (-unpacked +chunked):\n%s", d)
	}
	validate(t, l, files)
	for _, f := range files {
		if f.Type != filetable.TypeReg {
			continue
		}
		m := &convert.Model{Table: filetable.Table{Files: []filetable.File{f}}}
		if _, err := converttest.Extract(m, map[digest.Digest][]byte{l.Digest: blob}); err != nil {
			t.Error(err)
		}
	}
	return files
}

// withoutSources returns files without their sources.
func withoutSources(files []filetable.File) []filetable.File {
	var out []filetable.File
	for _, f := range files {
		f.Source = nil
		out = append(out, f)
	}
	return out
}

// validate checks that a table can have each of the files.
func validate(t testing.TB, l chunked.Layer, files []filetable.File) {
	t.Helper()
	for _, f := range files {
		table := filetable.Table{
			Version: filetable.Version, Origin: filetable.Origin{Format: "test", Digest: l.Digest, Mapping: 1},
			Blobs: []filetable.Blob{{Digest: l.Digest, Size: l.Size, Archive: filetable.ArchiveChunks}},
			Files: []filetable.File{f},
		}
		if err := table.Validate(); err != nil && f.Type != filetable.TypeSymlink {
			t.Error(err)
		}
	}
}

func TestFilesEqualTar(t *testing.T) {
	plain := aTar(t)
	for _, format := range converttest.ChunkedFormats {
		for _, size := range []int{16 << 10, filetable.MaxChunk} {
			t.Run(string(format), func(t *testing.T) {
				blob, annotations := converttest.Chunked(format, plain, size)
				l := layerOf(blob, format.Codec(), annotations)
				if !chunked.Announced(l) {
					t.Fatal("Announced is false")
				}
				chunks, zeros := 0, 0
				for _, f := range check(t, blob, l, "") {
					if f.Source == nil {
						continue
					}
					for _, c := range f.Source.Chunks {
						if chunks++; c.Len == 0 {
							zeros++
						}
					}
				}
				if size == 16<<10 && chunks < 25 {
					t.Errorf("got %d chunks of %d bytes", chunks, size)
				}
				if podman := format == converttest.ZstdChunkedPodman; podman != (zeros > 0) {
					t.Errorf("got %d chunks of zeros", zeros)
				}
			})
		}
	}
}

// TestPodmanLayer reads a layer written by the code of Podman.
func TestPodmanLayer(t *testing.T) {
	blob, err := os.ReadFile("testdata/podman.zst")
	if err != nil {
		t.Fatal(err)
	}
	p, err := os.ReadFile("testdata/podman.json")
	if err != nil {
		t.Fatal(err)
	}
	var annotations map[string]string
	if err := json.Unmarshal(p, &annotations); err != nil {
		t.Fatal(err)
	}
	var chunks int
	for _, f := range check(t, blob, layerOf(blob, filetable.CodecZstd, annotations), "") {
		if f.Source != nil {
			chunks += len(f.Source.Chunks)
		}
	}
	if chunks < 5 {
		t.Errorf("got %d chunks", chunks)
	}
}

// TestPositionInFooter reads layers whose annotations have only the digest of the table.
func TestPositionInFooter(t *testing.T) {
	plain := aTar(t)
	blob, annotations := converttest.Chunked(converttest.ZstdChunkedStargz, plain, 32<<10)
	delete(annotations, mediatype.StargzTOCPosition)
	delete(annotations, mediatype.StargzTOCChecksum)
	check(t, blob, layerOf(blob, filetable.CodecZstd, annotations), "")

	blob, annotations = converttest.Chunked(converttest.ZstdChunkedPodman, plain, 32<<10)
	off, size := tocAt(t, annotations[mediatype.PodmanTOCPosition])
	toc := inflate(t, blob[off:off+size], filetable.CodecZstd)
	check(t, blob, layerOf(blob, filetable.CodecZstd, map[string]string{mediatype.AnnotationTOCDigest: digest.FromBytes(toc).String()}), "")
}

func TestPlace(t *testing.T) {
	one := converttest.Tar(converttest.File{Path: "model.gguf", Data: content(50 << 10), Mode: 0o644})
	blob, annotations := converttest.Chunked(converttest.ZstdChunkedPodman, one, 16<<10)
	files := check(t, blob, layerOf(blob, filetable.CodecZstd, annotations), "dir/model.gguf")
	if len(files) != 1 || files[0].Path != "dir/model.gguf" {
		t.Errorf("got %v", withoutSources(files))
	}
	files = check(t, blob, layerOf(blob, filetable.CodecZstd, annotations), "dir/other.gguf")
	if len(files) != 1 || files[0].Path != "model.gguf" {
		t.Errorf("got %v", withoutSources(files))
	}
}

// TestParse reads artifacts with chunked layers as a whole.
func TestParse(t *testing.T) {
	files := converttest.Files(content(200 << 10))
	for _, format := range converttest.ChunkedFormats {
		t.Run(string(format), func(t *testing.T) {
			b := converttest.ModelPackChunked(files, format, 32<<10)
			m, err := formats.All().Parse(context.Background(), converttest.NewArtifact(b))
			if err != nil {
				t.Fatal(err)
			}
			if len(m.Table.Unpacks) > 0 {
				t.Errorf("unpacks: %v", m.Table.Unpacks)
			}
			converttest.TestParser(t, formats.All().Parse, b)
		})
	}
}

// tocAt returns the place in an annotation.
func tocAt(t *testing.T, s string) (off, size int) {
	t.Helper()
	var n [4]int
	for i, f := range bytes.Split([]byte(s), []byte(":")) {
		if err := json.Unmarshal(f, &n[i]); err != nil {
			t.Fatal(err)
		}
	}
	return n[0], n[1]
}

func isOpaque(err error) bool { return errors.Is(err, chunked.ErrOpaque) }
