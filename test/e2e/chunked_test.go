package e2e

import (
	"bytes"
	"encoding/json"
	"slices"
	"testing"

	seekable "github.com/SaveTheRbtz/zstd-seekable-format-go/pkg"
	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/ballast-dev/ballast/test/e2e/node"
	"github.com/google/go-cmp/cmp"
	"github.com/klauspost/compress/zstd"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2"
	"oras.land/oras-go/v2/content"
	"oras.land/oras-go/v2/registry/remote"
)

// TestChunkedLayers pulls models whose layers are eStargz and zstd:chunked. The container sees exactly
// the files of the model.
func TestChunkedLayers(t *testing.T) {
	n := node.StartNode(t, node.Options{})
	files := converttest.Files(weights(95, 9<<20+5))
	for _, format := range converttest.ChunkedFormats {
		b := converttest.ModelPackChunked(files, format, 1<<20)
		ref := push(t, n, b)
		mustPull(t, n, "ballast", ref)
		wantFiles(t, n, ref, states(b))
	}
}

// TestConvertCompressed compresses a model and pulls the result. Each frame can be decompressed on its
// own, and is a chunk of the file table.
func TestConvertCompressed(t *testing.T) {
	n := node.StartNode(t, node.Options{})
	b := converttest.ModelPackRaw(converttest.Files(append(weights(96, 9<<20+5), make([]byte, 5<<20)...)))
	src := push(t, n, b)
	for _, how := range []string{"zstd-seekable", "zstd-chunked"} {
		dst := n.Registry.Ref("converted/"+how, "1")
		out := n.Ballast("convert", src, dst, "--compress", how)
		if out.Err != nil {
			t.Fatalf("ballast convert: %v\n%s", out.Err, out.Output())
		}
		checkFrames(t, n, "converted/"+how, how == "zstd-seekable", b)
		mustPull(t, n, "ballast", dst)
		got, err := n.List("ballast", dst, "/")
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(states(b), got); d != "" {
			t.Errorf("%s: files (-want +got):\n%s", how, d)
		}
	}
}

// checkFrames decompresses the chunks of each file one by one at the offsets in the file table, and
// files in the seekable format by their seek tables, with another implementation.
func checkFrames(t *testing.T, n *node.Node, repository string, seekTable bool, b *converttest.Built) {
	t.Helper()
	repo, err := remote.NewRepository(n.Registry.Ref(repository, "1"))
	if err != nil {
		t.Fatal(err)
	}
	repo.PlainHTTP = true
	_, p, err := oras.FetchBytes(t.Context(), repo, "1", oras.DefaultFetchBytesOptions)
	if err != nil {
		t.Fatal(err)
	}
	var m ocispec.Manifest
	if err := json.Unmarshal(p, &m); err != nil {
		t.Fatal(err)
	}
	blobs := map[digest.Digest][]byte{}
	for _, l := range m.Layers {
		if blobs[l.Digest], err = content.FetchAll(t.Context(), repo, l); err != nil {
			t.Fatal(err)
		}
	}
	table, err := filetable.Decode(blobs[m.Layers[len(m.Layers)-1].Digest])
	if err != nil {
		t.Fatal(err)
	}
	zd, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1))
	if err != nil {
		t.Fatal(err)
	}
	defer zd.Close()
	zeros := 0
	for _, f := range table.Files {
		want, blob, at := b.Files[f.Path].Data, blobs[f.Source.Blob], int64(0)
		for _, c := range f.Source.Chunks {
			plain := make([]byte, c.Size) // a chunk of zeros is not in the blob
			if c.Len == 0 {
				zeros++
			} else if plain, err = zd.DecodeAll(blob[c.At:c.At+c.Len], nil); err != nil || digest.FromBytes(plain) != c.Digest {
				t.Errorf("%s: frame %+v: %v, other bytes than the chunk", f.Path, c, err)
			}
			if c.Offset != at || c.Size != int64(len(plain)) || !bytes.HasPrefix(want[at:], plain) {
				t.Errorf("%s: chunk %+v at %d has %d other bytes", f.Path, c, at, len(plain))
			}
			at += c.Size
		}
		if at != int64(len(want)) || at != f.Size || f.Digest != digest.FromBytes(want) {
			t.Errorf("%s: chunks of %d bytes, of %d", f.Path, at, len(want))
		}
		if seekTable && f.Size > 0 {
			checkSeekTable(t, f, blob, zd)
		}
	}
	if zeros == 0 {
		t.Errorf("%s: no chunk of zeros", repository)
	}
}

// checkSeekTable reads each chunk of a file by the seek table of its blob.
func checkSeekTable(t *testing.T, f filetable.File, blob []byte, zd *zstd.Decoder) {
	t.Helper()
	r, err := seekable.NewReader(bytes.NewReader(blob), zd)
	if err != nil {
		t.Fatalf("%s: %v", f.Path, err)
	}
	defer r.Close()
	frames, err := r.SeekTable()
	if err != nil || frames.NumFrames() != int64(len(f.Source.Chunks)) {
		t.Errorf("%s: %d frames, %d chunks: %v", f.Path, frames.NumFrames(), len(f.Source.Chunks), err)
	}
	for _, c := range f.Source.Chunks {
		p := make([]byte, c.Size)
		if _, err := r.ReadAt(p, c.Offset); err != nil || c.Len > 0 && digest.FromBytes(p) != c.Digest {
			t.Errorf("%s: chunk %+v by the seek table: %v, other bytes", f.Path, c, err)
		}
	}
}

// TestForeignSeekable pulls layers in the zstd seekable format that others wrote: tars with a seek table at the end and
// frames that do not follow the members. Nothing has digests of the frames, so they are unpacked whole; "ballast
// convert --compress" makes a lazy model of them.
func TestForeignSeekable(t *testing.T) {
	n := node.StartNode(t, node.Options{})
	files := converttest.Files(append(weights(98, 20<<20+5), make([]byte, 100_000)...))
	b := converttest.ModelPackPacked(files, func(p []byte) []byte {
		var out bytes.Buffer
		enc, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1))
		if err != nil {
			t.Fatal(err)
		}
		defer enc.Close()
		w, err := seekable.NewWriter(&out, enc)
		if err != nil {
			t.Fatal(err)
		}
		for frame := range slices.Chunk(p, 1<<20) {
			if _, err := w.Write(frame); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		return out.Bytes()
	})
	ref := push(t, n, b)
	pause(t, n)
	mustPull(t, n, "ballast", ref)
	for _, f := range files {
		if len(f.Data) > 0 && !complete(n, f.Data) {
			t.Errorf("%s is not complete after the pull", f.Path)
		}
	}
	wantFiles(t, n, ref, states(b))
	other := node.StartNode(t, node.Options{Registry: n.Registry})
	lazyFormat(t, other, b, convertedModel(t, other, b, "--compress", "zstd-seekable"))
}
