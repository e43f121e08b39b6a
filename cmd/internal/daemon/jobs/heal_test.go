package jobs

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/convert/mediatype"
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
	manifests := map[string][]byte{"aaa/x": good.Manifest, "team/m": good.Manifest}
	blobs := map[digest.Digest][]byte{}
	for _, b := range []*converttest.Built{good, moved} {
		for k, p := range b.Blobs {
			blobs[k] = p
		}
	}
	u := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		path := strings.TrimPrefix(r.URL.Path, "/v2/")
		if repository, _, ok := strings.Cut(path, "/manifests/"); ok {
			w.Header().Set("Content-Type", mediatype.OCIManifest)
			w.Write(manifests[repository])
			return
		}
		_, blob, _ := strings.Cut(path, "/blobs/")
		w.Write(blobs[digest.Digest(blob)])
	}))
	defer u.Close()
	host := strings.TrimPrefix(u.URL, "http://")
	resolve := func(repository string) digest.Digest {
		t.Helper()
		ref, err := resolve.ParseRef(host + "/" + repository + ":1")
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
	manifests["aaa/x"] = moved.Manifest
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
