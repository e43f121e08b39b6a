package meta

import (
	"fmt"
	"path/filepath"
	"slices"
	"testing"
)

// TestRefsFlood has one registry name an image in more ways than are remembered.
func TestRefsFlood(t *testing.T) {
	db, err := Open(filepath.Join(t.TempDir(), "store.db"), Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	manifest := number(1)
	put := func(name, tag string) {
		t.Helper()
		if err := db.PutImage(Image{Manifest: manifest, Refs: []string{name + ":" + tag}, PrivateNames: []string{name}}); err != nil {
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
	if len(im.Refs) != maxRefs || len(im.PrivateNames) != maxRefs {
		t.Errorf("got %d references, %d private names, want %d", len(im.Refs), len(im.PrivateNames), maxRefs)
	}
}
