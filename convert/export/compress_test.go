package export_test

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/convert/chunked"
	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/convert/export"
	"github.com/ballast-dev/ballast/convert/layout"
	"github.com/ballast-dev/ballast/convert/mediatype"
	"github.com/ballast-dev/ballast/convert/registrytest"
	"github.com/ballast-dev/ballast/convert/remote"
	"github.com/ballast-dev/ballast/convert/resolve"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/ballast-dev/ballast/store/verify"
	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// modelDir creates a directory with a model of compressible and incompressible files, zeros, and
// empty files.
func modelDir(t testing.TB) (dir string, files map[string][]byte) {
	t.Helper()
	var tensors []converttest.SafeTensor
	for i, size := range []int{6 << 20, 300, 5 << 20} {
		data := weights(size)
		if i == 2 {
			clear(data)
		}
		tensors = append(tensors, converttest.SafeTensor{Name: fmt.Sprint(i), DType: "U8", Shape: []uint64{uint64(size)}, Data: data})
	}
	noise := make([]byte, 5<<20+1)
	for i, x := 0, uint32(1); i < len(noise); i++ {
		x = x*1664525 + 1013904223
		noise[i] = byte(x >> 24)
	}
	files = map[string][]byte{
		"model.safetensors": converttest.Safetensors(tensors, nil),
		"noise.bin":         noise,
		"copy/noise.bin":    noise,
		"config.json":       []byte("{}\n"),
		"empty":             {},
		"text/README.md":    []byte(strings.Repeat("A model. ", 1000)),
	}
	dir = t.TempDir()
	for p, data := range files {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, p)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, p), data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir, files
}

// compressed converts the model of modelDir, and returns the manifest, the table and the layout.
func compressed(t testing.TB, how export.Compression) (m ocispec.Manifest, table *filetable.Table, layout string, files map[string][]byte) {
	t.Helper()
	dir, files := modelDir(t)
	src, err := (&resolve.Resolver{}).Open(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	layout, temp := t.TempDir(), t.TempDir()
	o := export.Options{Compress: how, TempDir: temp}
	res, err := export.Run(t.Context(), src, toLayout(t, layout, "1"), o)
	if err != nil {
		t.Fatal(err)
	}
	again, err := export.Run(t.Context(), src, toLayout(t, t.TempDir(), "1"), o)
	if err != nil || again.Digest != res.Digest {
		t.Errorf("converted again: got %v, %v, want %s", again, err, res.Digest)
	}
	if left, err := os.ReadDir(temp); err != nil || len(left) > 0 {
		t.Errorf("temporary files are left: %v, %v", left, err)
	}
	if err := json.Unmarshal(res.Manifest, &m); err != nil {
		t.Fatal(err)
	}
	last := m.Layers[len(m.Layers)-1]
	if table, err = filetable.Decode(blobOf(t, layout, last.Digest)); err != nil {
		t.Fatal(err)
	}
	return m, table, layout, files
}

func blobOf(t testing.TB, layout string, d digest.Digest) []byte {
	t.Helper()
	p, err := os.ReadFile(filepath.Join(layout, "blobs/sha256", d.Encoded()))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// checkTable checks that the table has the files in chunks with correct content.
func checkTable(t *testing.T, table *filetable.Table, layout string, files map[string][]byte) {
	t.Helper()
	zeros := 0
	for _, f := range table.Files {
		if err := verify.Bytes(f.Digest, files[f.Path]); err != nil {
			t.Errorf("%s: %v", f.Path, err)
		}
		for _, c := range f.Source.Chunks {
			if c.Len == 0 {
				zeros++
			}
		}
	}
	if len(table.Files) != len(files) || zeros != 2 {
		t.Errorf("got %d files with %d chunks of zeros, want %d with 2", len(table.Files), zeros, len(files))
	}
	got := read(t, layout, "1") // verifies each chunk
	for p, data := range files {
		if !bytes.Equal(got[p].Data, data) {
			t.Errorf("%s: wrong content", p)
		}
	}
}

// tool runs a program in a directory with bytes as its input, and returns its output.
func tool(t *testing.T, in []byte, dir, name string, args ...string) []byte {
	t.Helper()
	if _, err := exec.LookPath(name); err != nil {
		t.Fatalf("%s (test/install.sh installs it): %v", name, err)
	}
	cmd := exec.CommandContext(t.Context(), name, args...)
	var stderr bytes.Buffer
	cmd.Stdin, cmd.Dir, cmd.Stderr = bytes.NewReader(in), dir, &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v: %s", name, err, stderr.Bytes())
	}
	return out
}

// TestSeekable checks files in the zstd seekable format with this reader and with other tools.
func TestSeekable(t *testing.T) {
	_, table, layout, files := compressed(t, export.CompressSeekable)
	checkTable(t, table, layout, files)
	if len(table.Blobs) != 4 { // equal files share a blob, and empty files have none
		t.Errorf("got %d blobs", len(table.Blobs))
	}
	for _, f := range table.Files {
		if f.Size == 0 {
			continue
		}
		blob := blobOf(t, layout, f.Source.Blob)
		frames := blob[len(blob)-9-8*len(f.Source.Chunks):] // compressed and uncompressed sizes; see convert/chunked
		at := int64(0)
		for i, c := range f.Source.Chunks {
			n, plain := int64(binary.LittleEndian.Uint32(frames[8*i:])), int64(binary.LittleEndian.Uint32(frames[8*i+4:]))
			if c.Len > 0 && (c.At != at || c.Len != n) || c.Size != plain {
				t.Errorf("%s: chunk %+v, frame of %d bytes, %d uncompressed, at %d", f.Path, c, n, plain, at)
			}
			at += n
		}
		if end := int64(len(blob) - len(frames) - 8); at != end {
			t.Errorf("%s: frames up to %d, want %d", f.Path, at, end)
		}
		if !bytes.Equal(tool(t, blob, "", "zstd", "-d", "-c"), files[f.Path]) {
			t.Errorf("%s: zstd returns wrong content", f.Path)
		}
	}
}

// TestZstdChunked checks tars in zstd:chunked with this reader, with and without a table, and with other
// tools.
func TestZstdChunked(t *testing.T) {
	m, table, layout, files := compressed(t, export.CompressChunked)
	checkTable(t, table, layout, files)
	unpacked := t.TempDir()
	inTOC := map[string][]filetable.Chunk{}
	for _, l := range m.Layers[:len(m.Layers)-1] {
		blob := blobOf(t, layout, l.Digest)
		layer := chunked.Layer{Digest: l.Digest, Size: l.Size, Codec: filetable.CodecZstd, Annotations: l.Annotations}
		placed, err := chunked.Files(bytes.NewReader(blob), func(int64) error { return nil }, layer, "")
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range placed[0] {
			if f.Source != nil {
				inTOC[f.Path] = f.Source.Chunks
			}
		}
		if got, want := l.Annotations[mediatype.AnnotationLayerType], "tar+zstd"; !strings.HasSuffix(got, want) {
			t.Errorf("type %q, want …%s", got, want)
		}
		tool(t, tool(t, blob, "", "zstd", "-d", "-c"), unpacked, "tar", "-x")
	}
	for p, data := range files {
		got, err := os.ReadFile(filepath.Join(unpacked, p))
		if err != nil || !bytes.Equal(got, data) {
			t.Errorf("%s: tar returns wrong content: %v", p, err)
		}
	}
	for _, f := range table.Files {
		if slices.Contains([]string{"noise.bin", "copy/noise.bin"}, f.Path) {
			continue // it is in two layers, and the table has one of them for both
		}
		if diff := cmp.Diff(f.Source.Chunks, inTOC[f.Path], cmpopts.IgnoreFields(filetable.Chunk{}, "State")); diff != "" {
			t.Errorf("%s: chunks (-table of the image +table of the layer):\n%s", f.Path, diff)
		}
	}
}

// TestCompressAgain converts a converted image again, also into a form without compression.
func TestCompressAgain(t *testing.T) {
	_, _, dir, files := compressed(t, export.CompressChunked)
	for _, o := range []export.Options{{Compress: export.CompressSeekable}, {}, {Form: export.FormModelPack}} {
		l, err := layout.Open(dir, "1")
		if err != nil {
			t.Fatal(err)
		}
		dir := t.TempDir()
		if _, err := export.Run(t.Context(), fromLayout(t, l), toLayout(t, dir, "1"), o); err != nil {
			t.Fatalf("%+v: %v", o, err)
		}
		l.Close()
		got := read(t, dir, "1")
		for p, data := range files {
			if !bytes.Equal(got[p].Data, data) {
				t.Errorf("%+v: %s: wrong content", o, p)
			}
		}
	}
}

// TestInvalidOptions checks that invalid combinations of settings are refused.
func TestInvalidOptions(t *testing.T) {
	s, c := registrytest.New(t), client(t, remote.Credentials{})
	src := fromServer(t, c, s.Add("m", "1", converttest.ModelPackRaw(converttest.Files(weights(100)))))
	for _, o := range []export.Options{
		{Compress: export.CompressSeekable, Form: export.FormImage}, {Compress: export.CompressSeekable, NoChunks: true},
		{Form: "zip"}, {Compress: "gzip"}, {Tar: true}, {Form: export.FormImage, NoChunks: true},
		{Referrer: true}, {Form: export.FormModelPack, NoChunks: true, Referrer: true},
	} {
		if _, err := export.Run(t.Context(), src, nil, o); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%+v: got %v", o, err)
		}
	}
	if _, err := export.ParseCompression("gzip"); !errdefs.IsInvalidArgument(err) {
		t.Errorf("gzip: got %v", err)
	}
}

// TestChunkedSources converts models whose layers are in chunks already.
func TestChunkedSources(t *testing.T) {
	s, c := registrytest.New(t), client(t, remote.Credentials{})
	for i, format := range converttest.ChunkedFormats {
		b := converttest.ModelPackChunked(converttest.Files(weights(300<<10)), format, 64<<10)
		ref := s.Add("m", fmt.Sprint(i), b)
		for _, o := range []export.Options{{}, {Form: export.FormModelPack}, {Compress: export.CompressChunked}} {
			src := fromServer(t, c, ref)
			for _, blob := range src.Model.Table.Blobs {
				if blob.Archive != filetable.ArchiveChunks {
					t.Errorf("%s: blob %+v is not of chunks", b.Name, blob)
				}
			}
			dir := t.TempDir()
			if _, err := export.Run(t.Context(), src, toLayout(t, dir, "1"), o); err != nil {
				t.Errorf("%s: %+v: %v", b.Name, o, err)
				continue
			}
			if diff := cmp.Diff(sums(b.Files), sums(read(t, dir, "1"))); diff != "" {
				t.Errorf("%s: %+v: files (-want +got):\n%s", b.Name, o, diff)
			}
		}
	}
}
