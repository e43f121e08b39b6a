package store_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ballast-dev/ballast/store"
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
