package registry_test

import (
	"net/http"
	"slices"
	"testing"

	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/convert/registry"
	"github.com/ballast-dev/ballast/convert/remote"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// TestHold: a tag that has moved points to the digest that it had, for every client and until the release, and its
// image is recorded by the tag. A lookup of the version still asks the registry.
func TestHold(t *testing.T) {
	t.Parallel()
	u := newUpstream(t)
	f := newFacade(t, remote.Options{})
	ref := u.ref(t, "org/model", "v1")
	first := converttest.ModelPackRaw(converttest.Files(weights(1000)))
	u.Add("org/model", "v1", first)
	version := func() digest.Digest {
		t.Helper()
		v, err := f.h.Version(t.Context(), ref, nil)
		if err != nil || v.Imported {
			t.Fatalf("version %+v, %v", v, err)
		}
		return v.Digest
	}
	v1 := version()
	if v1 != first.Digest() {
		t.Errorf("version %s, want %s", v1, first.Digest())
	}
	second := converttest.ModelPackRaw(converttest.Files(weights(2000)))
	u.Add("org/model", "v1", second)
	served := func() digest.Digest {
		t.Helper()
		got := f.ask(t, http.MethodGet, "/v2/org/model/manifests/v1", u.Host())
		im, err := f.h.Store.Catalog.Image(digest.FromBytes(got.body))
		if err != nil || !slices.Contains(im.Refs, ref.String()) {
			t.Fatalf("status %d, image %v of %q, %v", got.status, im.Manifest, im.Refs, err)
		}
		return im.Origin.Digest
	}
	release := f.h.Hold(ref, v1)
	if got := served(); got != v1 {
		t.Errorf("held: got %s, want %s", got, v1)
	}
	if got := version(); got != second.Digest() {
		t.Errorf("the version is %s, want what the registry says: %s", got, second.Digest())
	}
	if im, err := f.h.Convert(t.Context(), ref); err != nil || im.Origin.Digest != v1 || len(im.Refs) != 1 {
		t.Errorf("converted: %s of %q, %v", im.Origin.Digest, im.Refs, err)
	}
	later := f.h.Hold(ref, second.Digest())
	if got := served(); got != second.Digest() {
		t.Errorf("held by a later one: got %s", got)
	}
	later()
	if got := served(); got != v1 {
		t.Errorf("the later one has ended: got %s, want %s", got, v1)
	}
	release()
	if got := served(); got != second.Digest() {
		t.Errorf("released: got %s, want %s", got, second.Digest())
	}
}

// TestHoldIsNoKey: while a tag is held for a pull with credentials, nobody gets the model without them.
func TestHoldIsNoKey(t *testing.T) {
	t.Parallel()
	u := newUpstream(t)
	first := converttest.ModelPackRaw(converttest.Files(weights(1008)))
	u.Add("org/model", "v1", first)
	u.Add("org/model", "v1", converttest.ModelPackRaw(converttest.Files(weights(1009))))
	u.tokenGate(0, "")
	f := newFacade(t, remote.Options{})
	ref := u.ref(t, "org/model", "v1")
	defer f.h.Hold(ref, first.Digest())()
	if im, err := f.h.ConvertAs(t.Context(), ref, remote.Credentials{Username: "alice", Secret: "s3cret"}); err != nil || im.Origin.Digest != first.Digest() {
		t.Fatalf("%s, %v", im.Origin.Digest, err)
	}
	for who, want := range map[string]int{"": http.StatusUnauthorized, "mallory:guess": http.StatusUnauthorized, "alice:s3cret": http.StatusOK} {
		var header []string
		if who != "" {
			header = basic(who)
		}
		if got := f.ask(t, http.MethodGet, "/v2/org/model/manifests/v1", u.Host(), header...); got.status != want {
			t.Errorf("%q: status %d, want %d", who, got.status, want)
		}
	}
}

// TestUnversioned: no digest says what a tag of several variants points to.
func TestUnversioned(t *testing.T) {
	t.Parallel()
	u := newUpstream(t)
	u.Before(asOllama)
	list, _ := lists()
	u.Add("library/model", "27b", list)
	f := newFacade(t, ollamaAt(u))
	for tag, there := range map[string]bool{"27b": true, "27b-mlx": true, "none": false} {
		if v, err := f.h.Version(t.Context(), u.ref(t, "library/model", tag), nil); v != (registry.Version{}) || there && err != nil || !there && !errdefs.IsNotFound(err) {
			t.Errorf("%s: %+v, %v", tag, v, err)
		}
	}
}
