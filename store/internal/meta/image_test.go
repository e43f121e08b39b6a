package meta

import (
	"fmt"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// TestRefsFlood resolves one image by more names of one registry than are kept.
func TestRefsFlood(t *testing.T) {
	db, err := Open(filepath.Join(t.TempDir(), "store.db"), Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	manifest := number(1)
	put := func(name, tag string) {
		t.Helper()
		if err := db.PutImage(Image{Manifest: manifest, Refs: []string{name + ":" + tag}, PrivateNames: []string{name}, Read: map[string]time.Time{name: time.Now()}}); err != nil {
			t.Fatal(err)
		}
	}
	put("good.example/team/model", "v1")
	for i := range 2 * maxRefs {
		put(fmt.Sprintf("evil.example/%03d", i), "latest")
	}
	put("zoo.example/model", "v1")
	im, err := db.Image(manifest)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"good.example/team/model", "zoo.example/model"} {
		if !slices.Contains(im.Refs, want+":v1") || !slices.Contains(im.PrivateNames, want) {
			t.Errorf("%s is forgotten", want)
		}
	}
	if len(im.Refs) != maxRefs || len(im.PrivateNames) != maxRefs || len(im.Read) != maxRefs {
		t.Errorf("got %d references, %d private names, %d that were read, want %d", len(im.Refs), len(im.PrivateNames), len(im.Read), maxRefs)
	}
}

// TestExpiredIndexes checks that all indexes unused for a week are removed: they have no table, and one
// does not keep another.
func TestExpiredIndexes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db, err := Open(filepath.Join(t.TempDir(), "store.db"), Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer db.Close()
		put := func(n int) {
			t.Helper()
			if err := db.PutImage(Image{Manifest: number(n)}); err != nil {
				t.Fatal(err)
			}
		}
		for n := range 3 {
			put(n + 1)
		}
		time.Sleep(imageTTL + time.Hour) // in the synctest bubble
		put(4)
		e, err := db.Expire(false)
		if err != nil || e.Images != 3 {
			t.Errorf("forgot %d images, %v, want 3", e.Images, err)
		}
	})
}
