package meta

import (
	"path/filepath"
	"slices"
	"testing"

	"github.com/opencontainers/go-digest"
)

// TestImported keeps the references of imports as long as the image has them: many pulls by other names do not
// push them out, and an image that gets the reference is no import.
func TestImported(t *testing.T) {
	db, err := Open(filepath.Join(t.TempDir(), "db"), Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	const ref = "away.example/team/x:v1"
	one, two := digest.FromString("one"), digest.FromString("two")
	put := func(im Image) Image {
		t.Helper()
		if err := db.PutImage(im); err != nil {
			t.Fatal(err)
		}
		im, err := db.Image(im.Manifest)
		if err != nil {
			t.Fatal(err)
		}
		return im
	}
	put(Image{Manifest: one, Refs: []string{ref}, Imported: []string{ref}})
	for i := range maxRefs + 10 {
		put(Image{Manifest: one, Refs: []string{"away.example/team/y" + digest.FromString(string(rune('a' + i))).Encoded()[:8] + ":v1"}})
	}
	if im := put(Image{Manifest: one, Refs: []string{"other.example/x:v1"}}); !slices.Equal(im.Imported, []string{ref}) || !slices.Contains(im.Refs, ref) {
		t.Errorf("after many pulls: %v of %d", im.Imported, len(im.Refs))
	}
	if im := put(Image{Manifest: two, Refs: []string{ref}}); len(im.Imported) > 0 {
		t.Errorf("the registry's image is an import: %v", im.Imported)
	}
	if im, err := db.Image(one); err != nil || len(im.Imported) > 0 || slices.Contains(im.Refs, ref) {
		t.Errorf("the reference stays with the import: %+v, %v", im, err)
	}
}
