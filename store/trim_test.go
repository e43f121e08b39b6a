package store_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ballast-dev/ballast/store"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/ballast-dev/ballast/store/storetest"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// TestTrimImages resolves more images than the limit: unused images of the host with the most images
// are removed.
func TestTrimImages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := storetest.Open(t, t.TempDir(), store.Options{})
		resolve := func(host, name string, size int) store.Image {
			t.Helper()
			d, err := s.PutBytes(storetest.Random(uint64(len(host)*1000+len(name)), size))
			if err != nil {
				t.Fatal(err)
			}
			im := store.Image{Manifest: d, Table: storetest.NewBuilder(name).Inline("a", []byte(host+name), 0o644).Put(t, s), Refs: []string{host + "/m:" + name}}
			im.Config = im.Table
			if err := s.PutImage(im); err != nil {
				t.Fatal(err)
			}
			return im
		}
		there := func(im store.Image) bool {
			_, err := s.Catalog.Image(im.Manifest)
			_, statErr := os.Stat(filepath.Join(s.ObjectsDir(), store.ObjectName(im.Manifest)))
			if (err == nil) != (statErr == nil) {
				t.Errorf("image: %v, its manifest: %v", err, statErr)
			}
			return err == nil
		}
		victim := resolve("good.example", "victim", 1<<20)
		used := resolve("evil.example", "used", 20<<20)
		if err := s.AddRef("snapshot/1", used.Table, time.Time{}); err != nil {
			t.Fatal(err)
		}
		var evil []store.Image
		for i := range 2 {
			if err := s.TrimImages("evil.example"); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second)
			evil = append(evil, resolve("evil.example", fmt.Sprintf("%0*d", i+20, i), 20<<20))
		}
		if err := s.TrimImages("evil.example"); !errdefs.IsResourceExhausted(err) {
			t.Errorf("40 MiB that were resolved just now: %v, want a refusal", err)
		}
		if err := s.TrimImages("good.example"); err != nil {
			t.Errorf("another registry: %v", err)
		}
		time.Sleep(10 * time.Minute)
		if err := s.TrimImages("evil.example"); err != nil {
			t.Fatal(err)
		}
		if !there(victim) || !there(used) || there(evil[0]) || !there(evil[1]) {
			t.Errorf("there are: the victim's %t, what is used %t, the older %t, the newer %t", there(victim), there(used), there(evil[0]), there(evil[1]))
		}
	})
}

// TestRemoveImages removes images with their files: at once, also those that have just arrived, but not what another
// image has or a reference needs.
func TestRemoveImages(t *testing.T) {
	s := storetest.Open(t, t.TempDir(), store.Options{})
	common, only, other, held := storetest.Random(1, 1<<20), storetest.Random(2, 1<<20), storetest.Random(3, 1<<20), storetest.Random(4, 1<<20)
	has := func(p []byte) bool {
		_, err := os.Stat(filepath.Join(s.ObjectsDir(), store.ObjectName(digest.FromBytes(p))))
		return err == nil
	}
	add := func(name string, files ...[]byte) store.Image {
		t.Helper()
		b := storetest.NewBuilder(name)
		for i, p := range files {
			b.Raw(fmt.Sprint(i), p, 0o644)
		}
		manifest, err := s.PutBytes([]byte(name))
		if err != nil {
			t.Fatal(err)
		}
		im := store.Image{Manifest: manifest, Config: manifest, Table: b.Put(t, s), Refs: []string{"r.example/" + name + ":1"}}
		if err := s.PutImage(im); err != nil {
			t.Fatal(err)
		}
		if err := s.Hydrate(t.Context(), im.Table, store.HydrateOptions{Sources: storetest.From(storetest.NewFetcher(files...))}); err != nil {
			t.Fatal(err)
		}
		return im
	}
	one, two, three := add("one", common, only), add("two", common, other), add("three", held)
	if err := s.AddRef("snapshot/1", three.Table, time.Time{}); err != nil {
		t.Fatal(err)
	}
	objects, bytes, err := s.RemoveImages([]store.Image{one, three})
	if err != nil || objects < 2 || bytes < int64(len(only)) || bytes > int64(len(only))+1<<16 {
		t.Errorf("%d objects of %d bytes were removed, %v", objects, bytes, err)
	}
	if has(only) || !has(common) || !has(other) || !has(held) {
		t.Errorf("its own file: %v; of another image: %v, %v; of a reference: %v", has(only), has(common), has(other), has(held))
	}
	if left := s.Catalog.Images(); len(left) != 1 || left[0].Manifest != two.Manifest {
		t.Errorf("images that are left: %+v", left)
	}
	if st, err := s.State(t.Context(), two.Table); err != nil || st.Incomplete() {
		t.Errorf("the other image: %+v, %v", st, err)
	}
	if _, bytes, err = s.RemoveImages([]store.Image{two}); err != nil || has(common) || has(other) || !has(held) {
		t.Errorf("the last image: %d bytes, %v", bytes, err)
	}
}

// TestRemoveStaged removes what is staged of a download that was interrupted: with the last image that has it, and
// after an import that failed.
func TestRemoveStaged(t *testing.T) {
	weights, parts := storetest.Random(1, 12<<20), fragments(3, 5<<20)
	chunks := &storetest.Compressed{Codec: filetable.CodecZstd, Size: 1 << 20}
	storetest.NewBuilder("chunks").Compressed(t, chunks.Add("w", weights))
	for name, tt := range map[string]struct {
		add   func(*testing.T, *storetest.Builder)
		blobs [][]byte
	}{
		"blob":      {func(_ *testing.T, b *storetest.Builder) { b.Raw("w", weights, 0o644) }, [][]byte{weights}},
		"chunks":    {func(t *testing.T, b *storetest.Builder) { b.Compressed(t, chunks) }, [][]byte{chunks.Blob}},
		"fragments": {func(_ *testing.T, b *storetest.Builder) { merged(b, "w", "header", parts) }, parts},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			s := storetest.Open(t, dir, store.Options{})
			staged := func() int64 {
				t.Helper()
				u, err := s.Usage()
				if err != nil {
					t.Fatal(err)
				}
				return u.Partial
			}
			image := func(name string) store.Image {
				t.Helper()
				manifest, err := s.PutBytes([]byte(name))
				if err != nil {
					t.Fatal(err)
				}
				b := storetest.NewBuilder(name)
				tt.add(t, b)
				im := store.Image{Manifest: manifest, Config: manifest, Table: b.Put(t, s), Refs: []string{"r.example/" + name + ":1"}}
				if err := s.PutImage(im); err != nil {
					t.Fatal(err)
				}
				return im
			}
			interrupt := func(im store.Image) {
				t.Helper()
				f := storetest.NewFetcher(tt.blobs...)
				f.Allow = func(off, _ int64) bool { return off < 4<<20 }
				done := later(func() error {
					return s.Hydrate(t.Context(), im.Table, store.HydrateOptions{Sources: storetest.From(f)})
				})
				waitFor(t, "staged bytes", func() bool { return staged() >= 1<<20 })
				if err := s.Close(); err != nil {
					t.Fatal(err)
				}
				if <-done == nil {
					t.Fatal("complete without its end")
				}
				s = storetest.Open(t, dir, store.Options{})
			}
			one, two := image("one"), image("two")
			interrupt(one)
			if _, _, err := s.RemoveImages([]store.Image{one}); err != nil || staged() < 1<<20 {
				t.Errorf("while another image has them: %d bytes are staged, %v", staged(), err)
			}
			if _, _, err := s.RemoveImages([]store.Image{two}); err != nil || staged() > 0 {
				t.Errorf("without images: %d bytes are staged, %v", staged(), err)
			}
			three := image("three")
			table, err := s.Table(three.Table)
			if err != nil {
				t.Fatal(err)
			}
			had := s.Holdings(table)
			interrupt(three)
			if err := s.Discard(table, had); err != nil || staged() > 0 {
				t.Errorf("after an import: %d bytes are staged, %v", staged(), err)
			}
		})
	}
}
