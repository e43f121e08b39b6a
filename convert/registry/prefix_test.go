package registry_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/convert"
	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/convert/mediatype"
	"github.com/ballast-dev/ballast/convert/remote"
	"github.com/ballast-dev/ballast/store"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// TestPrefix pulls one model from repositories with another place in mounts: as two images with the same blobs, also as an
// entry of an index, and by the digest of the registry.
func TestPrefix(t *testing.T) {
	t.Parallel()
	u := newUpstream(t)
	b := converttest.ModelPackRaw(converttest.Files(weights(1007)))
	index := indexOf(entry(b, mediatype.ModelPackManifest, nil))
	var indexed digest.Digest
	for _, r := range []string{"org/plain", "org/placed"} {
		u.Add(r, "v1", b)
		indexed = u.Put(r, "index", index, mediatype.OCIIndex)
		u.list(r, "index", "v1")
	}
	f := newFacade(t, remote.Options{})
	f.h.Origins = true
	f.h.Prefix = func(name string) string {
		if name == u.Host()+"/org/placed" {
			return "models"
		}
		return ""
	}
	want := map[string]string{"org/plain": "", "org/placed": "models"}
	images := map[string]store.Image{}
	for range 2 { // the second time the images are known
		for r, prefix := range want {
			got := f.get(t, u, r, "v1")
			im, err := f.h.Store.Catalog.Image(digest.FromBytes(got.body))
			if err != nil {
				t.Fatal(err)
			}
			if was, ok := images[r]; ok && was.Manifest != im.Manifest {
				t.Errorf("%s: first %s, then %s", r, was.Manifest, im.Manifest)
			}
			images[r] = im
			table, err := f.h.Store.Table(im.Table)
			if err != nil || table.Origin.Prefix != prefix || im.Origin.Prefix != prefix || im.Origin.Digest != b.Digest() {
				t.Errorf("%s: table %+v, image %+v, %v", r, table.Origin, im.Origin, err)
			}
			if m := decode[ocispec.Manifest](t, got); m.Annotations[mediatype.AnnotationPrefix] != prefix {
				t.Errorf("%s: annotations %v", r, m.Annotations)
			}
			child := decode[ocispec.Index](t, f.get(t, u, r, "index")).Manifests[0].Digest
			if child != im.Manifest {
				t.Errorf("%s: the index has %s, the tag %s", r, child, im.Manifest)
			}
			made, err := f.h.Made(b.Digest(), prefix)
			if err != nil || made.Manifest != im.Manifest {
				t.Errorf("%s: made %s, %v, want %s", r, made.Manifest, err, im.Manifest)
			}
			if made, err := f.h.Made(indexed, prefix); err != nil || made.Origin.Prefix != prefix || made.Manifest == "" {
				t.Errorf("%s: made of the index %+v, %v", r, made, err)
			}
			if r := f.ask(t, http.MethodGet, "/v2/"+r+"/manifests/"+b.Digest().String(), u.Host()); r.status != http.StatusOK || string(r.body) != string(b.Manifest) {
				t.Errorf("by the digest of the registry: status %d, %s", r.status, r.body)
			}
		}
	}
	plain, placed := images["org/plain"], images["org/placed"]
	if plain.Manifest == placed.Manifest || plain.Table == placed.Table {
		t.Errorf("the place is not part of the digest: %s", plain.Manifest)
	}
	// The digest of an image with a place is found anew in the repository that has the place, and in no other.
	if err := f.h.Store.Catalog.RemoveImage(placed.Manifest); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		repository string
		status     int
	}{{"org/plain", http.StatusNotFound}, {"org/placed", http.StatusOK}} {
		got := f.ask(t, http.MethodGet, "/v2/"+tt.repository+"/manifests/"+placed.Manifest.String(), u.Host())
		if got.status != tt.status {
			t.Errorf("%s: status %d, want %d: %s", tt.repository, got.status, tt.status, got.body)
		}
	}
}

// TestPrefixOfConverted leaves an image that was converted ahead of time at its place.
func TestPrefixOfConverted(t *testing.T) {
	t.Parallel()
	u := newUpstream(t)
	b := converttest.ModelPackRaw(converttest.Files(weights(1008)))
	u.Add("org/model", "v1", b)
	made := newFacade(t, remote.Options{})
	made.h.Prefix = func(string) string { return "models" }
	im, err := made.h.Convert(t.Context(), remote.Ref{Host: u.Host(), Repository: "org/model", Tag: "v1"})
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range im.Documents() {
		p, err := made.h.Store.ReadDocument(im, d, convert.MaxManifestSize)
		if err != nil {
			t.Fatal(err)
		}
		if d == im.Manifest {
			u.Put("org/model", "ahead", p, mediatype.OCIManifest)
		} else {
			u.PutBlob("org/model", p)
		}
	}
	f := newFacade(t, remote.Options{})
	f.h.Prefix = func(name string) string { return strings.TrimPrefix(name, u.Host()+"/") }
	got := f.get(t, u, "org/model", "ahead")
	if d := digest.FromBytes(got.body); d != im.Manifest {
		t.Errorf("got %s, want %s", d, im.Manifest)
	}
	if adopted, err := f.h.Store.Catalog.Image(im.Manifest); err != nil || !adopted.Ahead || adopted.Origin.Prefix != "models" {
		t.Errorf("adopted %+v, %v", adopted, err)
	}
}
