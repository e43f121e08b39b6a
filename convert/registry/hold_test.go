package registry_test

import (
	"net/http"
	"slices"
	"testing"

	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/convert/remote"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// TestHold: a tag that has moved points to the digest that it had, for every client and until the release, and its
// image is recorded by the tag, also if the registry has no manifests by digest for others.
func TestHold(t *testing.T) {
	t.Parallel()
	u := newUpstream(t)
	f := newFacade(t, remote.Options{})
	ref, err := remote.NewRef(u.Host(), "org/model", "v1")
	if err != nil {
		t.Fatal(err)
	}
	first := converttest.ModelPackRaw(converttest.Files(weights(1000)))
	u.Add("org/model", "v1", first)
	v1, err := f.h.Version(t.Context(), ref, nil)
	if err != nil || v1 != first.Digest() {
		t.Fatalf("version %s, %v, want %s", v1, err, first.Digest())
	}
	second := converttest.ModelPackRaw(converttest.Files(weights(2000)))
	u.Add("org/model", "v1", second)
	if v2, err := f.h.Version(t.Context(), ref, &remote.Credentials{}); err != nil || v2 != second.Digest() {
		t.Errorf("version %s, %v, want %s", v2, err, second.Digest())
	}
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

// TestUnversioned: no digest says what a tag of several variants points to.
func TestUnversioned(t *testing.T) {
	t.Parallel()
	u := newUpstream(t)
	u.Before(asOllama)
	list, _ := lists()
	u.Add("library/model", "27b", list)
	f := newFacade(t, ollamaAt(u))
	for tag, want := range map[string]func(error) bool{"27b": errdefs.IsNotImplemented, "27b-mlx": errdefs.IsNotImplemented, "none": errdefs.IsNotFound} {
		ref, err := remote.NewRef(u.Host(), "library/model", tag)
		if err != nil {
			t.Fatal(err)
		}
		if d, err := f.h.Version(t.Context(), ref, nil); !want(err) {
			t.Errorf("%s: %s, %v", tag, d, err)
		}
	}
}
