package store_test

import (
	"archive/tar"
	"bytes"
	"fmt"
	"slices"
	"testing"

	"github.com/ballast-dev/ballast/store"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/ballast-dev/ballast/store/storetest"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// A notInChunks is a layer whose table of contents fits, and of which not all can be read by chunks.
type notInChunks struct {
	table *storetest.Builder
	blob  []byte
	files map[string][]byte
	first bool // the beginning of the largest file cannot
}

// layersNotInChunks are tars of a large and two small files. The tar headers of many directories follow a file in
// its last frame, which says its size: more than is decompressed for a chunk.
func layersNotInChunks(t *testing.T) map[string]notInChunks {
	layer := func(name string, codec filetable.Codec, after string, edit func(files []filetable.File)) notInChunks {
		l := notInChunks{table: storetest.NewBuilder(name), files: map[string][]byte{
			"a": storetest.Random(1, 100_000), "large": storetest.Random(2, 9<<20), "z": storetest.Random(3, 1000),
		}}
		var headers []tar.Header
		var contents [][]byte
		for _, p := range []string{"a", "large", "z"} {
			headers, contents = append(headers, tar.Header{Name: p, Mode: 0o644}), append(contents, l.files[p])
			for i := range 400 {
				if p == after {
					headers, contents = append(headers, tar.Header{Name: fmt.Sprintf("%d/", i), Typeflag: tar.TypeDir, Mode: 0o755}), append(contents, nil)
				}
			}
		}
		l.blob = l.table.TarFrames(t, storetest.Tar(t, headers, contents), codec, 1<<20)
		if edit != nil {
			edit(l.table.Table().Files)
		}
		return l
	}
	all := map[string]notInChunks{
		"a small file":              layer("small", filetable.CodecZstd, "a", nil),
		"the end of the large file": layer("end", filetable.CodecZstd, "large", nil),
		"the large file": layer("large", filetable.CodecZstd, "", func(files []filetable.File) {
			c := files[1].Source.Chunks // in no frame, as after a change of the blob
			for i := range c {
				c[i].At++
			}
		}),
		"the large file, gzip": layer("gzip", filetable.CodecGzip, "", func(files []filetable.File) {
			files[1].Source.Chunks[0].At++
		}),
		"a chunk with the digest of another": layer("digest", filetable.CodecZstd, "", func(files []filetable.File) {
			c := files[1].Source.Chunks
			c[0].Digest = c[1].Digest
		}),
	}
	for name, l := range all {
		l.first = name != "a small file" && name != "the end of the large file"
		all[name] = l
	}
	return all
}

// TestUnpackedWhole completes models of which some layer cannot be read by chunks: the layer is unpacked whole,
// once.
func TestUnpackedWhole(t *testing.T) {
	for name, l := range layersNotInChunks(t) {
		t.Run(name, func(t *testing.T) {
			s := storetest.Open(t, t.TempDir(), store.Options{})
			f := storetest.NewFetcher(l.blob)
			table := l.table.Put(t, s)
			hold(t, s, table)
			if err := s.Hydrate(t.Context(), table, store.HydrateOptions{Sources: storetest.From(f)}); err != nil {
				t.Fatal(err)
			}
			for name, want := range l.files {
				if got, err := s.ReadBytes(digest.FromBytes(want), int64(len(want)), nil); err != nil || !bytes.Equal(got, want) {
					t.Errorf("%s: %v", name, err)
				}
			}
			if n := f.Sent(digest.FromBytes(l.blob)); n > 2*int64(len(l.blob))+int64(3*filetable.MaxChunk) {
				t.Errorf("%d bytes crossed the wire for a layer of %d", n, len(l.blob))
			}
			if got := leftovers(t, s); len(got) > 0 {
				t.Errorf("left over: %v", got)
			}
		})
	}
}

// TestReadUnpackedWhole shows such models early: not at all if the beginning of the largest file cannot be read by
// chunks, and otherwise readers of what cannot wait until the layer is unpacked.
func TestReadUnpackedWhole(t *testing.T) {
	for name, l := range layersNotInChunks(t) {
		t.Run(name, func(t *testing.T) {
			s := storetest.Open(t, t.TempDir(), store.Options{})
			f := storetest.NewFetcher(l.blob)
			table := l.table.Put(t, s)
			hold(t, s, table)
			err := s.Views.Expose(t.Context(), table, store.ExposeOptions{Sources: storetest.From(f), Probe: true})
			if l.first != errdefs.IsFailedPrecondition(err) || !l.first && err != nil {
				t.Fatalf("expose: %v", err)
			}
			done := make(chan error, 1)
			go func() {
				done <- s.Hydrate(t.Context(), table, store.HydrateOptions{Sources: storetest.From(f), Background: true})
			}()
			if l.first {
				if err := <-done; err != nil {
					t.Fatal(err)
				}
			}
			for name, want := range l.files {
				got := make([]byte, len(want))
				if _, err := s.Views.View("").ReadAt(t.Context(), digest.FromBytes(want), got, 0); err != nil || !bytes.Equal(got, want) {
					t.Errorf("%s: %v", name, err)
				}
			}
			if !l.first {
				if err := <-done; err != nil {
					t.Fatal(err)
				}
			}
			if isExposed(s, table) {
				t.Error("a complete table is still exposed")
			}
		})
	}
}

// TestUnpackedWholeLacksFile reports a layer that cannot be read by chunks and does not have what its table of
// contents lists.
func TestUnpackedWholeLacksFile(t *testing.T) {
	l := layersNotInChunks(t)["a small file"]
	files := l.table.Table().Files
	files[0].Digest = digest.FromString("another file")
	s := storetest.Open(t, t.TempDir(), store.Options{})
	table := l.table.Put(t, s)
	err := s.Hydrate(t.Context(), table, store.HydrateOptions{Sources: storetest.From(storetest.NewFetcher(l.blob))})
	if !errdefs.IsInvalidArgument(err) {
		t.Errorf("got %v", err)
	}
	if got, want := fmt.Sprint(err), []string{"does not have what its table of contents lists", "cannot be decompressed by chunks"}; slices.ContainsFunc(want, func(s string) bool { return !bytes.Contains([]byte(got), []byte(s)) }) {
		t.Errorf("got %v, want %q", err, want)
	}
}
