package store_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/store"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/ballast-dev/ballast/store/storetest"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// TestLyingStates checks that a table with wrong states makes no object of another digest and exposes
// no wrong chunk, and that right tables of the same file are not affected.
func TestLyingStates(t *testing.T) {
	const size = 1 << 20
	right := storetest.Random(1, 6*size+7)
	wrong := bytes.Clone(right)
	wrong[3*size+5] ^= 1
	d := digest.FromBytes(right)
	for name, lie := range map[string]func(right, wrong []filetable.Chunk){
		"one state":  func(r, w []filetable.Chunk) { r[2].State = w[3].State },
		"a tail":     func(r, w []filetable.Chunk) { copy(r[3:], w[3:]) },
		"other file": func(r, w []filetable.Chunk) { copy(r, w) },
		"digest only": func(r, w []filetable.Chunk) {
			r[3].Digest = w[3].Digest // reveals only which chunks are equal
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := storetest.Open(t, t.TempDir(), store.Options{})
			honest := storetest.NewBuilder("honest").RawChunks("f", right, 0o644, size).Stated(t, right)
			other := storetest.NewBuilder("other").RawChunks("f", wrong, 0o644, size).Stated(t, wrong)
			liar := storetest.NewBuilder("liar").RawChunks("f", right, 0o644, size).Stated(t, right)
			lie(liar.Table().Files[0].Source.Chunks, other.Table().Files[0].Source.Chunks)
			// A source with the bytes that match the states, under the digest of the file.
			f := storetest.NewFetcher(right)
			f.Blobs[d] = wrong
			table := liar.Put(t, s)
			hold(t, s, table)
			err := s.Hydrate(t.Context(), table, store.HydrateOptions{Sources: storetest.From(f)})
			if !errdefs.IsDataLoss(err) {
				t.Errorf("wrong bytes: %v", err)
			}
			if p, err := s.ReadBytes(d, int64(len(right)), nil); err == nil {
				t.Errorf("%d bytes have the name of the file", len(p))
			}
			f.Blobs[d] = right
			err = s.Hydrate(t.Context(), table, store.HydrateOptions{Sources: storetest.From(f)})
			if fits := name == "digest only"; fits != (err == nil) || !fits && !errdefs.IsDataLoss(err) {
				t.Errorf("right bytes: %v", err)
			}
			if err := s.Hydrate(t.Context(), honest.Put(t, s), store.HydrateOptions{Sources: storetest.From(f)}); err != nil {
				t.Errorf("honest table: %v", err)
			}
			if p, err := s.ReadBytes(d, int64(len(right)), nil); err != nil || !bytes.Equal(p, right) {
				t.Errorf("honest table: %v", err)
			}
		})
	}
}

// TestStatesResume checks that bytes staged by another process are also verified by states, and fetched
// again if they are wrong.
func TestStatesResume(t *testing.T) {
	const size = 1 << 20
	p := storetest.Random(2, 9*size+1)
	d := digest.FromBytes(p)
	b := storetest.NewBuilder("resumed").RawChunks("f", p, 0o644, size).Stated(t, p)
	dir := t.TempDir()
	s := storetest.Open(t, dir, store.Options{})
	table := b.Put(t, s)
	hold(t, s, table)
	f := storetest.NewFetcher(p)
	if err := s.Views.Expose(t.Context(), table, store.ExposeOptions{Sources: storetest.From(f)}); err != nil {
		t.Fatal(err)
	}
	for _, off := range []int{8 * size, 0, 5 * size} { // in no order
		buf := make([]byte, 100)
		if _, err := s.Views.View("").ReadAt(t.Context(), d, buf, int64(off)); err != nil || !bytes.Equal(buf, p[off:off+100]) {
			t.Fatalf("at %d: %v", off, err)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	staged, err := filepath.Glob(filepath.Join(dir, "partial", "*", "data"))
	if err != nil || len(staged) != 1 {
		t.Fatalf("staged: %v, %v", staged, err)
	}
	spoiled, err := os.OpenFile(staged[0], os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	_, err = spoiled.WriteAt([]byte("spoiled"), 5*size+50)
	if err := errors.Join(err, spoiled.Close()); err != nil {
		t.Fatal(err)
	}
	s = storetest.Open(t, dir, store.Options{})
	if err := s.Hydrate(t.Context(), table, store.HydrateOptions{Sources: storetest.From(f)}); err != nil {
		t.Fatal(err)
	}
	if got, err := s.ReadBytes(d, int64(len(p)), nil); err != nil || !bytes.Equal(got, p) {
		t.Errorf("object: %v", err)
	}
}

// TestStatesInTable checks that a table has all states or none, each with the length that its offset
// requires.
func TestStatesInTable(t *testing.T) {
	p := storetest.Random(3, 1000)
	for name, change := range map[string]func(c []filetable.Chunk){
		"one is missing":   func(c []filetable.Chunk) { c[1].State = nil },
		"only one":         func(c []filetable.Chunk) { c[0].State = nil; c[2].State = nil },
		"one at the end":   func(c []filetable.Chunk) { c[len(c)-1].State = c[0].State },
		"one is too long":  func(c []filetable.Chunk) { c[1].State = append(c[1].State, 0) },
		"one is too short": func(c []filetable.Chunk) { c[1].State = c[1].State[:31] },
	} {
		b := storetest.NewBuilder(name).RawChunks("f", p, 0o644, 300).Stated(t, p)
		if _, err := b.Table().Encode(); err != nil {
			t.Fatal(err)
		}
		change(b.Table().Files[0].Source.Chunks)
		if _, err := b.Table().Encode(); !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), "state") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
