package registry_test

import (
	"net/http"
	"testing"

	"github.com/ballast-dev/ballast/convert"
	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/convert/remote"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/opencontainers/go-digest"
)

// TestTagMoves moves a tag between the request that resolves it and the one that gets the bytes:
// these are of the digest that was resolved.
func TestTagMoves(t *testing.T) {
	t.Parallel()
	u := newUpstream(t)
	u.Add("org/model", "v1", converttest.ModelPackRaw(converttest.Files(weights(1000))))
	f := newFacade(t, remote.Options{})
	head := f.ask(t, http.MethodHead, "/v2/org/model/manifests/v1", u.Host())
	resolved := head.header.Get("Docker-Content-Digest")
	if head.status != http.StatusOK || resolved == "" {
		t.Fatalf("HEAD: status %d, digest %q", head.status, resolved)
	}
	u.Add("org/model", "v1", converttest.ModelPackRaw(converttest.Files(weights(2000))))
	got := f.ask(t, http.MethodGet, "/v2/org/model/manifests/"+resolved, u.Host())
	if got.status != http.StatusOK || digest.FromBytes(got.body).String() != resolved {
		t.Errorf("GET by digest: status %d, digest %s, want %s", got.status, digest.FromBytes(got.body), resolved)
	}
	moved := f.ask(t, http.MethodGet, "/v2/org/model/manifests/v1", u.Host())
	if d := digest.FromBytes(moved.body).String(); moved.status != http.StatusOK || d == resolved || moved.header.Get("Docker-Content-Digest") != d {
		t.Errorf("GET by tag: status %d, digest %s, header %s; the tag has moved from %s", moved.status, d, moved.header.Get("Docker-Content-Digest"), resolved)
	}
}

// TestOtherMapping has an image in the store that other mapping rules made of the same origin: a
// tag is converted anew.
func TestOtherMapping(t *testing.T) {
	t.Parallel()
	u := newUpstream(t)
	b := converttest.ModelPackRaw(converttest.Files(weights(1000)))
	u.Add("org/model", "v1", b)
	f := newFacade(t, remote.Options{})
	f.get(t, u, "org/model", "v1")
	want := filetable.Origin{Format: string(b.Format), Digest: b.Digest(), Mapping: convert.MappingVersion}
	im, err := f.h.Store.Catalog.ImageByOrigin(want)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.h.Store.Catalog.RemoveImage(im.Manifest); err != nil {
		t.Fatal(err)
	}
	other := im
	other.Origin.Mapping++
	if err := f.h.Store.PutImage(other); err != nil {
		t.Fatal(err)
	}
	f.get(t, u, "org/model", "v1")
	if _, err := f.h.Store.Catalog.ImageByOrigin(want); err != nil {
		t.Errorf("the image of other rules was served: %v", err)
	}
}
