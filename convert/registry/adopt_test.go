package registry_test

import (
	"encoding/json"
	"testing"

	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/convert/mediatype"
	"github.com/ballast-dev/ballast/convert/remote"
	"github.com/ballast-dev/ballast/convert/signature"
	"github.com/ballast-dev/ballast/convert/signature/cosign"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// ahead adds the documents of the image of a tag, as a facade makes it, to the repository. It returns
// its manifest.
func (u *upstream) ahead(t *testing.T, repository, tag string) (ocispec.Manifest, []byte) {
	t.Helper()
	g := newFacade(t, remote.Options{}) // that of whom converts ahead
	answer := g.get(t, u, repository, tag)
	m := decode[ocispec.Manifest](t, answer)
	for _, d := range []ocispec.Descriptor{m.Config, m.Layers[len(m.Layers)-1]} {
		p, err := g.h.Store.ReadBytes(d.Digest, d.Size, nil)
		if err != nil {
			t.Fatal(err)
		}
		u.PutBlob(repository, p)
	}
	return m, answer.body
}

// TestPreconverted serves an image that was converted before it was pushed, and records its name. One that
// somebody has changed is built again, unless its bytes are asked for, or signed.
// The origin that it claims is not trusted: a request for that origin gets the image made here.
func TestPreconverted(t *testing.T) {
	t.Parallel()
	key, public := converttest.Signer(t, t.TempDir())
	u := newUpstream(t)
	b := converttest.ModelPackRaw(converttest.Files(weights(1000)))
	u.Add("org/model", "v1", b)
	m, made := u.ahead(t, "org/model", "v1")
	same := u.Put("other/converted", "same", made, mediatype.OCIManifest)
	m.Annotations["org.example.changed"] = "yes"
	changed, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range []string{"other/converted", "team/m"} {
		u.Mount("org/model", r)
		u.Put(r, "changed", changed, mediatype.OCIManifest)
	}
	d := digest.FromBytes(changed)
	u.attach(t, "api", "team/m", d, mediatype.Bundle, mediatype.Bundle, bundleOf(t, key, cosign.Statement(d)))

	f := newFacade(t, remote.Options{})
	f.rule(t, signature.RuleOptions{Mode: signature.Enforce, Any: []signature.SignerOptions{{Type: signature.TypeCosign, Key: public}}})
	for _, tt := range []struct {
		name, repository, object string
		want                     []byte
	}{
		{"by tag", "other/converted", "same", made},
		{"by digest", "other/converted", same.String(), made},
		{"changed, by tag", "other/converted", "changed", made},
		{"changed, by digest", "other/converted", d.String(), changed},
		{"changed and signed, by tag", "team/m", "changed", changed},
		{"changed and signed, by digest", "team/m", d.String(), changed},
		{"the origin that it claims", "org/model", "v1", made},
	} {
		if got := f.get(t, u, tt.repository, tt.object); string(got.body) != string(tt.want) {
			t.Errorf("%s: got %s\nwant %s", tt.name, got.body, tt.want)
		}
	}
	for _, object := range []string{"same", "changed"} {
		known, err := f.h.Convert(t.Context(), u.ref(t, "other/converted", object))
		if err != nil || known.Manifest != same || known.Table != m.Layers[len(m.Layers)-1].Digest || len(known.Refs) == 0 {
			t.Errorf("%s is known as %+v, %v", object, known, err)
		}
	}
	im, err := f.h.Convert(t.Context(), u.ref(t, "org/model", "v1"))
	if err != nil || im.Ahead || im.Origin.Digest != b.Digest() {
		t.Errorf("the image made here is %+v, %v", im, err)
	}
}
