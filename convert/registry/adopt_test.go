package registry_test

import (
	"encoding/json"
	"testing"

	"github.com/ballast-dev/ballast/convert"
	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/convert/mediatype"
	"github.com/ballast-dev/ballast/convert/remote"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// TestPreconverted serves an image that was converted before it was pushed unchanged, and records its name.
// The origin that it claims is not trusted: a request for that origin gets the image made here.
func TestPreconverted(t *testing.T) {
	t.Parallel()
	u := newUpstream(t)
	b := converttest.ModelPackRaw(converttest.Files(weights(1000)))
	u.push("org/model", "v1", b)
	first := newFacade(t, remote.Options{})
	made := first.get(t, u, "org/model", "v1")
	m := decode[ocispec.Manifest](t, made)
	im, err := first.h.Store.ImageByOrigin(filetable.Origin{Format: "modelpack", Digest: b.Digest(), Mapping: convert.MappingVersion})
	if err != nil {
		t.Fatal(err)
	}
	// A changed image is pushed that claims the same origin.
	m.Annotations["org.example.changed"] = "yes"
	spoilt, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	ahead := &converttest.Built{Manifest: spoilt, MediaType: mediatype.OCIManifest, Blobs: map[digest.Digest][]byte{}}
	for _, d := range []ocispec.Descriptor{m.Config, m.Layers[len(m.Layers)-1]} {
		p, err := first.h.Store.ReadBytes(t.Context(), d.Digest, d.Size)
		if err != nil {
			t.Fatal(err)
		}
		ahead.Blobs[d.Digest] = p
	}
	d := u.push("other/converted", "v1", ahead)

	f := newFacade(t, remote.Options{})
	if got := f.get(t, u, "other/converted", "v1"); string(got.body) != string(spoilt) {
		t.Error("the image was changed on its way")
	}
	ref, err := remote.NewRef(u.host(), "other/converted", "v1")
	if err != nil {
		t.Fatal(err)
	}
	known, err := f.h.Convert(t.Context(), ref)
	if err != nil || known.Manifest != d || known.Table != im.Table || len(known.Refs) != 1 {
		t.Errorf("known as %+v, %v", known, err)
	}
	if got := f.get(t, u, "org/model", "v1"); string(got.body) != string(made.body) {
		t.Error("the origin is answered with an image that somebody else made")
	}
	if _, err := f.h.Store.Image(d); errdefs.IsNotFound(err) {
		t.Error("the image is forgotten")
	}
}
