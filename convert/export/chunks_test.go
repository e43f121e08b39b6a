package export

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/ballast-dev/ballast/store/verify"
	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"
)

// noise returns bytes that depend on seed.
func noise(seed byte, n int) []byte {
	p := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{seed}).Read(p)
	return p
}

// cutAll cuts a file written in pieces of the given size, and checks that the chunks cover it with
// correct digests.
func cutAll(t testing.TB, p []byte, piece int) []filetable.Chunk {
	t.Helper()
	c := newChunker(int64(len(p)))
	for at := 0; at < len(p); at += piece {
		if _, err := c.Write(p[at:min(at+piece, len(p))]); err != nil {
			t.Fatal(err)
		}
	}
	var at int64
	var before verify.State
	for _, k := range c.chunks {
		if k.Offset != at || k.Size < 1 || k.Size > filetable.MaxChunk {
			t.Fatalf("chunk %+v, want one at %d", k, at)
		}
		if err := verify.Bytes(k.Digest, p[k.Offset:k.Offset+k.Size]); err != nil {
			t.Fatal(err)
		}
		step := verify.Step{Off: k.Offset, Before: before, After: k.State, Whole: digest.FromBytes(p)}
		if err := step.Verify(p[k.Offset : k.Offset+k.Size]); err != nil {
			t.Fatalf("chunk at %d is no step of the file: %v", k.Offset, err)
		}
		at, before = at+k.Size, k.State
	}
	if at != int64(len(p)) {
		t.Fatalf("chunks of %d bytes, of %d", at, len(p))
	}
	return c.chunks
}

// tensors returns the tensors of a small model: large ones of several chunks and of less than one,
// and many small ones. changed is the one that a fine-tune changed.
func tensors(changed int) (safe []converttest.SafeTensor, gguf []converttest.GGUFTensor) {
	for i, size := range []int{9 << 20, 512, 1024, 300 << 10, 5 << 20, 100 << 10, 512, 255 << 10, 256 << 10} {
		data := noise(byte(i), size)
		if i == changed {
			data = noise(100, size)
		}
		name := fmt.Sprintf("tensor.%d", i)
		safe = append(safe, converttest.SafeTensor{Name: name, DType: "U8", Shape: []uint64{uint64(size)}, Data: data})
		gguf = append(gguf, converttest.GGUFTensor{Name: name, Shape: []uint64{uint64(size / 4)}, Type: 0, Data: data})
	}
	return safe, gguf
}

// shared returns the number of bytes of the chunks of b that are also in chunks of a.
func shared(a, b []filetable.Chunk) (n int64) {
	have := map[digest.Digest]bool{}
	for _, k := range a {
		have[k.Digest] = true
	}
	for _, k := range b {
		if have[k.Digest] {
			n += k.Size
		}
	}
	return n
}

// TestTensorsShareChunks checks that files with the same tensors, except one, and other headers share
// chunks.
func TestTensorsShareChunks(t *testing.T) {
	safe, gguf := tensors(-1)
	tuned, tunedGGUF := tensors(4)
	long := strings.Repeat("tuned ", 1000)
	for name, files := range map[string][2][]byte{
		"safetensors": {converttest.Safetensors(safe, nil), converttest.Safetensors(tuned, map[string]string{"about": long})},
		"GGUF": {converttest.GGUF(converttest.GGUFFile{Tensors: gguf}), converttest.GGUF(converttest.GGUFFile{
			Keys: []converttest.GGUFKey{{Name: "general.description", Value: long}}, Tensors: tunedGGUF})},
	} {
		a, b := cutAll(t, files[0], 1<<20), cutAll(t, files[1], 1<<20)
		// All chunks except those of the header and of the changed tensor.
		if got, want := shared(a, b), int64(len(files[1])-5<<20-16<<10); got < want {
			t.Errorf("%s: %d bytes are in chunks of both, want at least %d", name, got, want)
		}
		if len(a) > 16 {
			t.Errorf("%s: got %d chunks", name, len(a))
		}
	}
}

// The sizes of the written pieces do not change the chunks.
func TestChunksDoNotDependOnWrites(t *testing.T) {
	safe, gguf := tensors(-1)
	for name, p := range map[string][]byte{
		"safetensors": converttest.Safetensors(safe, nil), "GGUF": converttest.GGUF(converttest.GGUFFile{Tensors: gguf}), "other": noise(7, 9<<20),
	} {
		want := cutAll(t, p, len(p))
		for _, piece := range []int{997, 64 << 10, 1<<20 + 1} {
			if diff := cmp.Diff(want, cutAll(t, p, piece)); diff != "" {
				t.Errorf("%s in pieces of %d (-want +got):\n%s", name, piece, diff)
			}
		}
	}
}

// TestManyTensors checks that a large number of tensors does not make a large number of chunks.
func TestManyTensors(t *testing.T) {
	c := newCutter(8 << 40)
	ends := make([]int64, 0, 1<<20)
	for i := range int64(1 << 20) {
		ends = append(ends, (i+1)*8<<20)
	}
	c.plan(0, ends)
	if n := len(c.cuts); n > 2<<20 {
		t.Errorf("got %d cuts", n)
	}
	for at := int64(0); at < 1<<30; {
		end := c.next(at)
		if end <= at || end-at > filetable.MaxChunk {
			t.Fatalf("chunk from %d to %d", at, end)
		}
		at = end
	}
}

// TestPassageOfTar checks the digests of the files in a tar.
func TestPassageOfTar(t *testing.T) {
	safe, _ := tensors(-1)
	model := converttest.Safetensors(safe, nil)
	plain := converttest.Tar(
		converttest.File{Path: "README", Data: []byte("about it")},
		converttest.File{Path: "empty"},
		converttest.File{Path: "model.safetensors", Data: model},
	)
	members, err := filetable.TarIndex(bytes.NewReader(plain), int64(len(plain)))
	if err != nil {
		t.Fatal(err)
	}
	blob := filetable.Blob{Digest: digest.FromBytes(plain), Size: int64(len(plain)), Archive: filetable.ArchiveTar, Index: filetable.IndexDigest(members)}
	table := &filetable.Table{Blobs: []filetable.Blob{blob}}
	for _, m := range members {
		table.Files = append(table.Files, filetable.File{Path: m.Path, Type: m.Type, Size: m.Size,
			Source: &filetable.Source{Blob: blob.Digest, Offset: m.Offset, Size: m.Size}})
	}
	table.Files = append(table.Files, table.Files[2]) // a hard link
	r := newRanges(table, blob)
	read := func(n int) *passage {
		p := r.pass()
		t.Cleanup(p.close)
		for at := 0; at < n; at += 1000 {
			_, _ = p.Write(plain[at:min(at+1000, n)])
		}
		return p
	}
	read(len(plain) / 2) // until an error
	p := read(len(plain))
	if err := p.verify(blob.Digest, blob.Size); err != nil {
		t.Error(err)
	}
	for i, want := range [][]byte{[]byte("about it"), {}, model, model} {
		f := table.Files[i]
		p.note(&f)
		if err := verify.Bytes(f.Digest, want); err != nil {
			t.Errorf("%s: %v", f.Path, err)
		}
		if diff := cmp.Diff(cutAll(t, want, max(len(want), 1)), f.Source.Chunks); diff != "" {
			t.Errorf("%s: chunks (-want +got):\n%s", f.Path, diff)
		}
	}
	members[0].Path = "LICENSE"
	r.index = filetable.IndexDigest(members)
	if err := read(len(plain)).verify(blob.Digest, blob.Size); !errdefs.IsInvalidArgument(err) {
		t.Errorf("another name in the table: %v", err)
	}
	table.Files[0].Size = 1 << 20
	if newRanges(table, blob) != nil {
		t.Error("overlapping files have chunks")
	}
}

func FuzzChunker(f *testing.F) {
	safe, gguf := tensors(-1)
	for i := range safe {
		safe[i].Data, gguf[i].Data = safe[i].Data[:64], gguf[i].Data[:64]
		safe[i].Shape, gguf[i].Shape = []uint64{64}, []uint64{16}
	}
	f.Add(converttest.Safetensors(safe, nil), uint16(100))
	f.Add(converttest.GGUF(converttest.GGUFFile{Tensors: gguf}), uint16(7))
	f.Add([]byte("GGUF\x03\x00\x00\x00"), uint16(1))
	f.Fuzz(func(t *testing.T, p []byte, piece uint16) {
		want := cutAll(t, p, max(len(p), 1))
		if diff := cmp.Diff(want, cutAll(t, p, int(piece)+1)); diff != "" {
			t.Errorf("in pieces of %d (-want +got):\n%s", int(piece)+1, diff)
		}
	})
}
