package registry_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"runtime"
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/convert/mediatype"
	"github.com/ballast-dev/ballast/convert/registry"
	"github.com/ballast-dev/ballast/convert/remote"
	"github.com/containerd/containerd/v2/plugins/content/local"
	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

func indexOf(entries ...ocispec.Descriptor) []byte {
	idx := ocispec.Index{MediaType: mediatype.OCIIndex, Manifests: entries}
	idx.SchemaVersion = 2
	p, err := json.Marshal(idx)
	if err != nil {
		panic(err)
	}
	return p
}

func entry(b *converttest.Built, artifactType string, p *ocispec.Platform) ocispec.Descriptor {
	return ocispec.Descriptor{
		MediaType: mediatype.OCIManifest, ArtifactType: artifactType, Platform: p,
		Digest: b.Digest(), Size: int64(len(b.Manifest)),
	}
}

func TestIndex(t *testing.T) {
	t.Parallel()
	u := newUpstream(t)
	one := converttest.ModelPackRaw(converttest.Files(weights(1000)))
	two := converttest.DockerAIGGUF(converttest.Files(weights(2000)))
	arm := &ocispec.Platform{OS: "linux", Architecture: "arm64"}
	riscv := &ocispec.Platform{OS: "linux", Architecture: "riscv64"}
	for _, b := range []*converttest.Built{one, two} {
		u.Add("org/model", "", b)
	}
	image := ocispec.Descriptor{MediaType: mediatype.OCIManifest, Digest: digest.FromString("img"), Size: 9, Platform: riscv}
	d := u.Put("org/model", "v1", indexOf(
		entry(one, mediatype.ModelPackManifest, arm), // by artifactType
		image,               // by platform
		entry(two, "", nil), // must be read
	), mediatype.OCIIndex)
	f := newFacade(t, remote.Options{})

	got := f.get(t, u, "org/model", "v1")
	if ct := got.header.Get("Content-Type"); ct != mediatype.OCIIndex {
		t.Errorf("Content-Type is %s", ct)
	}
	if n := u.Count(image.Digest.String()); n != 0 {
		t.Error("the entry of an ordinary image was read")
	}
	idx := decode[ocispec.Index](t, got)
	if len(idx.Manifests) != 4 { // arm64; the image; two platforms
		t.Fatalf("%d entries, want 4: %s", len(idx.Manifests), got.body)
	}
	if diff := cmp.Diff(idx.Manifests[1], image); diff != "" {
		t.Errorf("the ordinary image (-got +want):\n%s", diff)
	}
	if diff := cmp.Diff(idx.Manifests[0].Platform, arm); diff != "" {
		t.Errorf("platform (-got +want):\n%s", diff)
	}
	for _, i := range []int{0, 2, 3} {
		child := f.get(t, u, "org/model", idx.Manifests[i].Digest.String())
		if m := decode[ocispec.Manifest](t, child); m.Layers[len(m.Layers)-1].MediaType != mediatype.TableLayer {
			t.Errorf("entry %d is not converted", i)
		}
	}
	again := f.get(t, u, "org/model", digest.FromBytes(got.body).String())
	if again.header.Get("Content-Type") != mediatype.OCIIndex || string(again.body) != string(got.body) {
		t.Error("the index by digest differs")
	}
	refused := f.ask(t, http.MethodGet, "/v2/org/model/manifests/"+d.String(), u.Host())
	if refused.status != http.StatusForbidden || !strings.Contains(refused.errorText(t), digest.FromBytes(got.body).String()) {
		t.Errorf("the index of models by its digest upstream: status %d: %s", refused.status, refused.body)
	}
	for _, object := range []string{"v1", digest.FromBytes(got.body).String()} {
		ref, err := remote.NewRef(u.Host(), "org/model", object)
		if err != nil {
			t.Fatal(err)
		}
		im, err := f.h.Convert(t.Context(), ref)
		if err != nil {
			t.Fatal(err)
		}
		if im.Table == "" || len(f.h.Sources(im, registry.Names(im)...)) != 1 {
			t.Errorf("Convert(%s) = %+v", ref, im)
		}
	}
	// The same without a facade.
	src, err := f.h.Open(t.Context(), u.ref(t, "org/model", "v1").String())
	if err != nil {
		t.Fatal(err)
	}
	defer src.Close()
	if alone, err := f.h.Index(t.Context(), src.Origin); err != nil || alone.Digest != digest.FromBytes(got.body) {
		t.Errorf("without a facade: %v, %v", alone, err)
	}
	if err := src.NotModel(); err == nil || !strings.Contains(err.Error(), two.Digest().String()) {
		t.Errorf("an index as a model: %v", err)
	}
	// The same on another node.
	if second := newFacade(t, remote.Options{}).get(t, u, "org/model", "v1"); string(second.body) != string(got.body) {
		t.Error("another node makes another index")
	}
}

// TestIndexOfCog pulls an index of Cog: an image for a platform, which containerd picks, beside weights for none. The
// weights are converted there too, and are pulled by their own name.
func TestIndexOfCog(t *testing.T) {
	t.Parallel()
	u := newUpstream(t)
	layer := digest.FromString("layer of the image")
	config := fmt.Appendf(nil, `{"architecture":%q,"os":"linux","rootfs":{"type":"layers","diff_ids":[%q]}}`, runtime.GOARCH, layer)
	image := ocispec.Manifest{
		MediaType: mediatype.OCIManifest,
		Config:    ocispec.Descriptor{MediaType: mediatype.OCIConfig, Digest: digest.FromBytes(config), Size: int64(len(config))},
		Layers:    []ocispec.Descriptor{{MediaType: mediatype.OCILayer, Digest: layer, Size: 10240}},
	}
	image.SchemaVersion = 2
	p, err := json.Marshal(image)
	if err != nil {
		t.Fatal(err)
	}
	u.PutBlob("team/m", config)
	runs := ocispec.Descriptor{
		MediaType: mediatype.OCIManifest, Digest: u.Put("team/m", "", p, mediatype.OCIManifest), Size: int64(len(p)),
		Platform: &ocispec.Platform{OS: "linux", Architecture: runtime.GOARCH},
	}
	b := converttest.Cog(converttest.Files(weights(3000)))
	u.Add("team/m", "weights", b)
	beside := entry(b, mediatype.CogWeight, &ocispec.Platform{OS: "unknown", Architecture: "unknown"})
	beside.Annotations = map[string]string{"run.cog.weight.name": "a-model", "run.cog.weight.set-digest": digest.FromString("set").String()}
	u.Put("team/m", "v1", indexOf(runs, beside), mediatype.OCIIndex)
	f := newFacade(t, remote.Options{})

	idx := decode[ocispec.Index](t, f.get(t, u, "team/m", "v1"))
	if len(idx.Manifests) != 2 {
		t.Fatalf("entries %+v", idx.Manifests)
	}
	if d := cmp.Diff(runs, idx.Manifests[0]); d != "" {
		t.Errorf("the image (-want +got):\n%s", d)
	}
	if d := cmp.Diff(beside.Platform, idx.Manifests[1].Platform); d != "" {
		t.Errorf("platform of the weights (-want +got):\n%s", d)
	}
	for _, name := range []string{"weights", idx.Manifests[1].Digest.String()} {
		got := f.get(t, u, "team/m", name)
		m := decode[ocispec.Manifest](t, got)
		if digest.FromBytes(got.body) != idx.Manifests[1].Digest || m.Layers[len(m.Layers)-1].MediaType != mediatype.TableLayer {
			t.Errorf("%s: got %s, want the converted weights of the index", name, got.body)
		}
	}
	if r := f.ask(t, http.MethodGet, "/v2/team/m/manifests/"+b.Digest().String(), u.Host()); r.status != http.StatusForbidden || !strings.Contains(r.errorText(t), idx.Manifests[1].Digest.String()) {
		t.Errorf("the weights by their digest upstream: status %d: %s", r.status, r.body)
	}
	content, err := local.NewStore(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	picked, _, err := f.containerd(t.Context(), content, u, "v1")
	if d := cmp.Diff(image, picked); err != nil || d != "" {
		t.Errorf("containerd: %v (-want +got):\n%s", err, d)
	}
	if im, err := f.h.Convert(t.Context(), u.ref(t, "team/m", "v1")); !errdefs.IsNotFound(err) {
		t.Errorf("as a model: %+v, %v", im, err)
	}
}

func TestIndexRefused(t *testing.T) {
	t.Parallel()
	u := newUpstream(t)
	b := converttest.ModelPackRaw(converttest.Files(weights(1000)))
	u.Add("org/model", "", b)
	u.Put("org/model", "", ordinary(1), mediatype.OCIManifest)
	f := newFacade(t, remote.Options{})
	liar := ocispec.Descriptor{MediaType: mediatype.OCIManifest, ArtifactType: mediatype.ModelPackManifest,
		Digest: digest.FromBytes(ordinary(1)), Size: int64(len(ordinary(1)))}
	nested := ocispec.Descriptor{MediaType: mediatype.OCIIndex, Digest: digest.FromString("i"), Size: 5}
	var many []ocispec.Descriptor
	for range 100 {
		many = append(many, entry(b, "", nil))
	}
	for name, tt := range map[string]struct {
		index []byte
		want  string
	}{
		"index in index":          {indexOf(entry(b, mediatype.ModelPackManifest, nil), nested), "is an index"},
		"an image as a model":     {indexOf(liar), "it is an image"},
		"many that say nothing":   {indexOf(many...), "more than 64"},
		"an index without a type": {append([]byte(`{"layers":[],`), indexOf(liar)[1:]...), "both"},
	} {
		u.Put("org/model", "v1", tt.index, mediatype.OCIIndex)
		u.Count("")
		got := f.ask(t, http.MethodGet, "/v2/org/model/manifests/v1", u.Host())
		if got.status != http.StatusForbidden || !strings.Contains(got.errorText(t), tt.want) {
			t.Errorf("%s: status %d: %s", name, got.status, got.body)
		}
		if n := u.Count(""); n > 70 {
			t.Errorf("%s: %d requests upstream", name, n)
		}
	}
}

// TestMirroredIndex pushes an index that was made here elsewhere, with the images in it, and pulls it from there
// through a facade: it stays as it is, and its model can be prefetched.
func TestMirroredIndex(t *testing.T) {
	t.Parallel()
	u, mirror := newUpstream(t), newUpstream(t)
	b := converttest.ModelPackRaw(converttest.Files(weights(1000)))
	u.Add("org/model", "", b)
	u.Put("org/model", "v1", indexOf(entry(b, mediatype.ModelPackManifest, nil)), mediatype.OCIIndex)
	first := newFacade(t, remote.Options{})
	index := first.get(t, u, "org/model", "v1")
	mirror.Put("org/copy", "v1", index.body, mediatype.OCIIndex)
	im := first.get(t, u, "org/model", decode[ocispec.Index](t, index).Manifests[0].Digest.String())
	mirror.Put("org/copy", "", im.body, mediatype.OCIManifest)
	m := decode[ocispec.Manifest](t, im)
	for _, d := range append(m.Layers, m.Config) {
		if d.MediaType == mediatype.BlobLayer {
			mirror.PutBlob("org/copy", b.Blobs[d.Digest])
		} else {
			mirror.PutBlob("org/copy", first.ask(t, http.MethodGet, "/v2/org/model/blobs/"+d.Digest.String(), u.Host()).body)
		}
	}

	second := newFacade(t, remote.Options{})
	for range 2 {
		if got := second.get(t, mirror, "org/copy", "v1"); string(got.body) != string(index.body) {
			t.Errorf("the mirrored index became %s", got.body)
		}
	}
	if got := second.get(t, mirror, "org/copy", digest.FromBytes(index.body).String()); string(got.body) != string(index.body) {
		t.Error("the mirrored index by digest differs")
	}
	converted, err := second.h.Convert(t.Context(), mirror.ref(t, "org/copy", "v1"))
	if err != nil || converted.Manifest != digest.FromBytes(im.body) {
		t.Fatalf("Convert: %s, %v; want %s", converted.Manifest, err, digest.FromBytes(im.body))
	}
	if diff := cmp.Diff(files(t, second, converted), wanted(b.Files)); diff != "" {
		t.Errorf("files (-got +want):\n%s", diff)
	}
}

// TestIndexOnce requests an index again, and concurrently: its entries are read once, even those whose
// descriptors do not classify them.
func TestIndexOnce(t *testing.T) {
	t.Parallel()
	u := newUpstream(t)
	b := converttest.ModelPackRaw(converttest.Files(weights(1000)))
	u.Add("org/model", "", b)
	u.Put("org/model", "v1", indexOf(entry(b, "", nil)), mediatype.OCIIndex)
	f := newFacade(t, remote.Options{})
	want := f.get(t, u, "org/model", "v1")
	if n := u.Count("/manifests/sha256:"); n != 1 {
		t.Errorf("its one entry was read %d times", n)
	}
	if got := f.get(t, u, "org/model", "v1"); string(got.body) != string(want.body) {
		t.Error("another index")
	}
	if n := u.Count("/manifests/sha256:"); n != 0 {
		t.Errorf("entries of an index that is known were read %d times", n)
	}
	// By another name the entries have to be there too.
	u.Put("evil/copy", "v1", indexOf(entry(b, "", nil)), mediatype.OCIIndex)
	if got := f.ask(t, http.MethodGet, "/v2/evil/copy/manifests/v1", u.Host()); got.status != http.StatusNotFound {
		t.Errorf("an index of entries that its repository does not have: status %d", got.status)
	}
}
