package jobs

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/convert/registrytest"
	"github.com/ballast-dev/ballast/convert/resolve"
	"github.com/ballast-dev/ballast/snapshotter/tree"
	"github.com/ballast-dev/ballast/store"
	"github.com/opencontainers/go-digest"
)

// TestResolveMovedName restores the documents of an image whose first name refers to another image
// now.
func TestResolveMovedName(t *testing.T) {
	s, _ := newSources(t, tree.Links)
	good := converttest.ModelPackRaw(converttest.Files([]byte("weights")))
	moved := converttest.ModelPackRaw(converttest.Files([]byte("others")))
	u := registrytest.New(t)
	u.Add("aaa/x", "1", good)
	u.Add("team/m", "1", good)
	resolve := func(repository string) digest.Digest {
		t.Helper()
		ref, err := resolve.ParseRef(u.Host() + "/" + repository + ":1")
		if err != nil {
			t.Fatal(err)
		}
		im, err := s.Facade.Convert(t.Context(), ref)
		if err != nil {
			t.Fatal(err)
		}
		return im.Manifest
	}
	resolve("aaa/x")
	im, err := s.Store.Catalog.Image(resolve("team/m"))
	if err != nil {
		t.Fatal(err)
	}
	u.Add("aaa/x", "1", moved)
	if err := os.Remove(filepath.Join(s.Store.ObjectsDir(), store.ObjectName(im.Config))); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Store.Check(t.Context(), "", nil); err != nil {
		t.Fatal(err)
	}
	if err := (&Jobs{Facade: s.Facade}).Restore(t.Context(), im); err != nil {
		t.Fatal(err)
	}
	if !s.Store.Has(im.Documents()...) {
		t.Error("the config is not there")
	}
}
