package registry_test

import (
	"net/http"
	"testing"

	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/convert/mediatype"
	"github.com/ballast-dev/ballast/convert/remote"
	"github.com/ballast-dev/ballast/store/filetable"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// pushed is what "oras push" makes of one file.
func pushed(data string) *converttest.Built {
	b := converttest.Make(converttest.Spec{ArtifactType: "application/vnd.unknown.artifact.v1", ConfigType: mediatype.OCIEmpty, Config: "{}",
		Layers: []converttest.Layer{{MediaType: mediatype.OCILayer, Data: data, Annotations: map[string]string{mediatype.AnnotationTitle: "model.gguf"}}}})
	b.Format = mediatype.FormatTitled
	b.Files = map[string]converttest.File{"model.gguf": {Path: "model.gguf", Data: []byte(data), Mode: 0o644}}
	return b
}

// TestTitledArtifactsOnRequest pulls an artifact of files: it passes as it is, unless the repository
// is named, or the node itself has asked for it.
func TestTitledArtifactsOnRequest(t *testing.T) {
	t.Parallel()
	u := newUpstream(t)
	u.Add("org/files", "v1", pushed("some weights"))
	b := pushed("other weights")
	u.Add("models/files", "v1", b)
	image := converttest.Make(converttest.Spec{ConfigType: mediatype.OCIConfig, Config: "{}",
		Layers: []converttest.Layer{{MediaType: mediatype.OCILayer, Data: "x", Annotations: map[string]string{mediatype.AnnotationTitle: "x"}}}})
	u.Add("models/image", "v1", image)
	f := newFacade(t, remote.Options{})
	f.h.Titled = func(repository string) bool {
		return repository == u.Host()+"/models/files" || repository == u.Host()+"/models/image"
	}

	converted := func(r reply) bool {
		m := decode[ocispec.Manifest](t, r)
		return m.Layers[len(m.Layers)-1].MediaType == filetable.MediaTypeTableLayer
	}
	if converted(f.get(t, u, "org/files", "v1")) {
		t.Error("an artifact of a repository that is not named was converted")
	}
	if got := f.get(t, u, "models/image", "v1"); string(got.body) != string(image.Manifest) {
		t.Error("an image was taken for an artifact of files")
	}
	got := f.get(t, u, "models/files", "v1")
	if !converted(got) {
		t.Fatalf("an artifact of a repository that is named passed: %s", got.body)
	}
	table := decode[ocispec.Manifest](t, got).Layers[1]
	hydrate(t, f, u, "models/files", table.Digest, b)
	if r := f.ask(t, http.MethodGet, "/v2/models/files/manifests/"+b.Digest().String(), u.Host()); r.status < 400 {
		t.Errorf("the digest of the origin: status %d, %s", r.status, r.body)
	}

	ref, err := remote.NewRef(u.Host(), "org/files", "v1")
	if err != nil {
		t.Fatal(err)
	}
	im, err := f.h.Convert(t.Context(), ref) // a prefetch
	if err != nil {
		t.Fatal(err)
	}
	if r := f.get(t, u, "org/files", "v1"); r.header.Get("Docker-Content-Digest") != im.Manifest.String() {
		t.Errorf("what was prefetched is not what is pulled: %s, want %s", r.header.Get("Docker-Content-Digest"), im.Manifest)
	}
}
