package registry_test

import (
	"errors"
	"net/http"
	"slices"
	"testing"

	"github.com/ballast-dev/ballast/convert"
	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/convert/remote"
	"github.com/opencontainers/go-digest"
)

// TestConvertLocal records a local model as a pull of its name does, with the same access rules.
func TestConvertLocal(t *testing.T) {
	t.Parallel()
	u := newUpstream(t)
	b := converttest.Ollama(converttest.Files(weights(5000)), converttest.OllamaConfigNew)
	u.push("team/model", "v1", b)
	u.users["team/model"] = "alice:s3cr3t-value"
	f := newFacade(t, remote.Options{})
	ref := remote.Ref{Host: u.host(), Repository: "team/model", Tag: "v1"}
	_, planned, err := f.h.BuildLocal(t.Context(), ref, converttest.NewArtifact(b))
	if err != nil {
		t.Fatal(err)
	}
	if all := f.h.Store.Images(); len(all) != 0 {
		t.Errorf("BuildLocal left %v, %v", all, err)
	}
	im, err := f.h.ConvertLocal(t.Context(), ref, converttest.NewArtifact(b), true)
	if err != nil || im.Manifest != planned || !slices.Equal(im.Refs, []string{ref.String()}) {
		t.Fatalf("got %+v, %v", im, err)
	}
	alice := basic("alice:s3cr3t-value")
	byDigest := "/v2/team/model/manifests/" + im.Manifest.String()
	if n := f.ask(t, http.MethodGet, byDigest, u.host()).status; n == 200 {
		t.Error("a private model is given to everybody")
	}
	if n := f.ask(t, http.MethodGet, byDigest, u.host(), alice...).status; n != 200 {
		t.Errorf("with credentials: status %d", n)
	}
	if got := f.get(t, u, "team/model", "v1", alice...); digest.FromBytes(got.body) != im.Manifest {
		t.Errorf("a pull by tag gives %s, not %s", digest.FromBytes(got.body), im.Manifest)
	}
	// Once the registry gives it to everybody, so do we, and an import later changes nothing.
	u.mu.Lock()
	delete(u.users, "team/model")
	u.mu.Unlock()
	f.get(t, u, "team/model", "v1")
	im, err = f.h.ConvertLocal(t.Context(), ref, converttest.NewArtifact(b), true)
	if err != nil || len(im.PrivateNames) != 0 {
		t.Errorf("got %+v, %v", im, err)
	}
	// One that no registry has is there by its digest, if it is for everybody.
	own := converttest.Ollama(converttest.Files(weights(4000)), converttest.OllamaConfigOld)
	ref.Repository = "team/own"
	if im, err = f.h.ConvertLocal(t.Context(), ref, converttest.NewArtifact(own), false); err != nil {
		t.Fatal(err)
	}
	if n := f.ask(t, http.MethodGet, "/v2/team/own/manifests/"+im.Manifest.String(), u.host()).status; n != 200 {
		t.Errorf("own model by digest: status %d", n)
	}
	image := *own
	image.Manifest = []byte(`{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json","config":{"mediaType":"application/vnd.oci.image.config.v1+json","digest":"` + string(digest.FromString("c")) + `","size":2},"layers":[]}`)
	if _, err := f.h.ConvertLocal(t.Context(), ref, converttest.NewArtifact(&image), false); !errors.Is(err, convert.ErrNotModel) {
		t.Errorf("an image: %v", err)
	}
}
