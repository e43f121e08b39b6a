package registry_test

import (
	"bytes"
	"context"
	"crypto"
	"encoding/json"
	"errors"
	"flag"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/remotes"
	"github.com/containerd/containerd/v2/core/remotes/docker"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/containerd/v2/plugins/content/local"
	"github.com/containerd/log"
	"github.com/containerd/platforms"
	"github.com/google/go-cmp/cmp"
	"math/rand/v2"
	"net/http"
	"runtime"
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/convert/mediatype"
	"github.com/ballast-dev/ballast/convert/remote"
	"github.com/ballast-dev/ballast/convert/signature"
	"github.com/ballast-dev/ballast/convert/signature/cosign"
	"github.com/ballast-dev/ballast/convert/signature/oms"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// signedFiles returns a key and files with its OMS signature, and makes f accept only what the key has signed.
func (f *facade) signedFiles(t *testing.T, kinds ...string) (crypto.Signer, []converttest.File) {
	t.Helper()
	key, public := converttest.Signer(t, t.TempDir())
	var any []signature.SignerOptions
	for _, kind := range kinds {
		any = append(any, signature.SignerOptions{Type: kind, Key: public})
	}
	f.rule(t, signature.RuleOptions{Mode: signature.Enforce, Any: any})
	files := converttest.Files(weights(1000))
	return key, append([]converttest.File{{Path: oms.SignatureFile, Data: sign(t, key, files), Mode: 0o644}}, files...)
}

// cosign signs a manifest of team/m.
func (u *upstream) cosign(t *testing.T, key crypto.Signer, d digest.Digest) {
	t.Helper()
	u.attach(t, "tag", "team/m", d, mediatype.Bundle, mediatype.Bundle, bundleOf(t, key, cosign.Statement(d)))
}

// TestAmbiguousManifests refuses manifests with keys that containerd takes for others, because encoding/json ignores
// their letter case: signed are the layers, containerd would unpack the Layers.
func TestAmbiguousManifests(t *testing.T) {
	t.Parallel()
	f, u := newFacade(t, remote.Options{}), newUpstream(t)
	_, files := f.signedFiles(t, signature.TypeOMS)
	u.Add("team/m", "v1", converttest.ModelPackRaw(files))
	_, body := u.ahead(t, "team/m", "v1")
	layer := `[{"mediaType":"application/vnd.oci.image.layer.v1.tar","digest":"` + digest.FromString("layer").String() + `","size":10240}]`
	for _, more := range []string{
		`"Layers":` + layer, `"LAYERS":` + layer, `"layerſ":` + layer, `"layerſ":` + layer, `"Config":{}`, `"Manifests":[]`, `"mediatype":"x"`, `"\u004cayers":` + layer,
	} {
		evil := append(bytes.TrimSuffix(bytes.Clone(body), []byte("}")), ","+more+"}"...)
		d := u.Put("team/m", "evil", evil, mediatype.OCIManifest)
		for _, object := range []string{"evil", d.String()} {
			if r := f.team(t, u, object); r.status != http.StatusForbidden || !strings.Contains(r.errorText(t), "which some readers take for") {
				t.Errorf("%s, %s: status %d: %.200s", more, object, r.status, r.body)
			}
		}
	}
}

// TestPlatformSpellings refuses an index with a signed model, and an ordinary image for a platform that containerd
// takes for that of this machine.
func TestPlatformSpellings(t *testing.T) {
	t.Parallel()
	alias := map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[runtime.GOARCH]
	for _, kind := range []string{signature.TypeCosign, signature.TypeOMS} {
		f, u := newFacade(t, remote.Options{}), newUpstream(t)
		key, files := f.signedFiles(t, kind)
		b := converttest.ModelPackRaw(files)
		u.Add("team/m", "", b)
		u.cosign(t, key, b.Digest())
		image := ocispec.Descriptor{MediaType: mediatype.OCIManifest, Digest: u.Put("team/m", "", ordinary(1), mediatype.OCIManifest), Size: int64(len(ordinary(1)))}
		for _, p := range []*ocispec.Platform{
			{OS: "linux", Architecture: runtime.GOARCH}, {OS: "Linux", Architecture: runtime.GOARCH}, {OS: "LINUX", Architecture: strings.ToUpper(runtime.GOARCH)},
			{OS: "linux", Architecture: alias}, {OS: "Linux", Architecture: "386"}, {OS: "", Architecture: runtime.GOARCH}, {OS: "linux", Architecture: "riscv64"}, {},
		} {
			image.Platform = p
			u.Put("team/m", "v1", indexOf(image, entry(b, mediatype.ModelPackManifest, nil)), mediatype.OCIIndex)
			if r := f.team(t, u, "v1"); r.status != http.StatusForbidden {
				t.Errorf("%s, an image for %+v: status %d: %s", kind, *p, r.status, r.body)
			}
		}
		image.Platform = &ocispec.Platform{OS: "Windows", Architecture: runtime.GOARCH}
		u.Put("team/m", "v1", indexOf(image, entry(b, mediatype.ModelPackManifest, nil)), mediatype.OCIIndex)
		if r := f.team(t, u, "v1"); r.status != http.StatusOK {
			t.Errorf("%s, an image for another system: status %d: %s", kind, r.status, r.body)
		}
	}
}

// TestEntryForHere converts the entry of an index that containerd takes, whatever the spelling of its platform, and
// no other.
func TestEntryForHere(t *testing.T) {
	t.Parallel()
	f, u := newFacade(t, remote.Options{}), newUpstream(t)
	one, two := converttest.ModelPackRaw(converttest.Files(weights(1000))), converttest.ModelPackRaw(converttest.Files(weights(2000)))
	u.Add("org/m", "", one)
	u.Add("org/m", "", two)
	here := &ocispec.Platform{OS: "linux", Architecture: runtime.GOARCH}
	spelt := &ocispec.Platform{OS: "Linux", Architecture: map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[runtime.GOARCH]}
	u.Put("org/m", "v1", indexOf(entry(one, mediatype.ModelPackManifest, spelt), entry(two, mediatype.ModelPackManifest, here)), mediatype.OCIIndex)
	if im, err := f.h.Convert(t.Context(), u.ref(t, "org/m", "v1")); err != nil || im.Origin.Digest != one.Digest() {
		t.Errorf("got %+v, %v, want the first", im, err)
	}
	image := ocispec.Descriptor{MediaType: mediatype.OCIManifest, Digest: u.Put("org/m", "", ordinary(1), mediatype.OCIManifest), Size: int64(len(ordinary(1))), Platform: spelt}
	u.Put("org/m", "v2", indexOf(image, entry(two, mediatype.ModelPackManifest, here)), mediatype.OCIIndex)
	if im, err := f.h.Convert(t.Context(), u.ref(t, "org/m", "v2")); err == nil {
		t.Errorf("an index of which containerd takes an image: got %+v", im)
	}
}

// TestPreconvertedConfig refuses the configs of images that were converted before they were pushed, if containerd
// would show other layers or a container would get more than files.
func TestPreconvertedConfig(t *testing.T) {
	t.Parallel()
	f, u := newFacade(t, remote.Options{}), newUpstream(t)
	_, files := f.signedFiles(t, signature.TypeOMS)
	u.Add("team/m", "v1", converttest.ModelPackRaw(files))
	m, _ := u.ahead(t, "team/m", "v1")
	u.Mount("team/m", "free/m")
	others := []string{digest.FromString("evil").String(), digest.FromString("more").String()}
	for _, tt := range []struct {
		name string
		edit func(map[string]any)
		want string
	}{
		{"diffIDs of other layers", func(c map[string]any) {
			ids := c["rootfs"].(map[string]any)["diff_ids"].([]any)
			ids[0] = others[0]
		}, "diffID 0"},
		{"another diffID of the table", func(c map[string]any) {
			ids := c["rootfs"].(map[string]any)["diff_ids"].([]any)
			ids[len(ids)-1] = others[0]
		}, "that of the layer is"},
		{"fewer diffIDs", func(c map[string]any) { c["rootfs"].(map[string]any)["diff_ids"] = others }, "2 diffIDs for"},
		{"no rootfs", func(c map[string]any) { delete(c, "rootfs") }, "0 diffIDs for"},
		{"diffIDs in another spelling", func(c map[string]any) { c["Rootfs"] = map[string]any{"type": "layers", "diff_ids": others} }, `"rootfs"`},
		{"diffIDs in another spelling, below", func(c map[string]any) { c["rootfs"].(map[string]any)["diff_idſ"] = others }, `"diff_ids"`},
		{"environment", func(c map[string]any) { c["config"].(map[string]any)["Env"] = []string{"LD_PRELOAD=/model.gguf"} }, `"Env"`},
		{"environment in another spelling", func(c map[string]any) { c["config"].(map[string]any)["env"] = []string{"LD_PRELOAD=/model.gguf"} }, `"Env"`},
		{"another config", func(c map[string]any) { c["Config"] = map[string]any{"Env": []string{"LD_PRELOAD=/model.gguf"}} }, `"config"`},
		{"entrypoint", func(c map[string]any) { c["config"].(map[string]any)["Entrypoint"] = []string{"/evil"} }, `"Entrypoint"`},
		{"labels", func(c map[string]any) { c["config"].(map[string]any)["Labels"] = map[string]string{"x": "y"} }, `"Labels"`},
		{"a member that Docker defines", func(c map[string]any) {
			c["config"].(map[string]any)["Healthcheck"] = map[string]any{"Test": []string{"CMD", "/evil"}}
		}, `"Healthcheck"`},
	} {
		for _, repository := range []string{"team/m", "free/m"} { // with a rule and without
			d := u.withConfig(t, repository, "evil", m, tt.edit)
			for _, object := range []string{"evil", d.String()} {
				r := f.ask(t, http.MethodGet, "/v2/"+repository+"/manifests/"+object, u.Host())
				if r.status != http.StatusForbidden || !strings.Contains(r.errorText(t), tt.want) {
					t.Errorf("%s, %s@%s: status %d: %.300s, want %s", tt.name, repository, object, r.status, r.body, tt.want)
				}
			}
		}
	}
}

// TestChangedImage answers an image that was converted ahead, and changed, with what the signed files make, and not
// at all by the digest of bytes that nobody signed.
func TestChangedImage(t *testing.T) {
	t.Parallel()
	f, u := newFacade(t, remote.Options{}), newUpstream(t)
	_, files := f.signedFiles(t, signature.TypeOMS)
	u.Add("team/m", "v1", converttest.ModelPackRaw(files))
	m, built := u.ahead(t, "team/m", "v1")
	m.Annotations["org.example.changed"] = "yes"
	p, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	d := u.Put("team/m", "changed", p, mediatype.OCIManifest)
	if r := f.team(t, u, "changed"); !bytes.Equal(r.body, built) {
		t.Errorf("by tag: status %d: %s", r.status, r.body)
	}
	if r := f.team(t, u, d.String()); r.status != http.StatusForbidden {
		t.Errorf("by digest: status %d: %s", r.status, r.body)
	}
}

// TestImageOfModel passes an image that was made from a model, with an environment and a layer of its own, and asks
// for a signature of its manifest if there is a rule.
func TestImageOfModel(t *testing.T) {
	t.Parallel()
	f, u := newFacade(t, remote.Options{}), newUpstream(t)
	key, files := f.signedFiles(t, signature.TypeOMS, signature.TypeCosign)
	u.Add("team/m", "v1", converttest.ModelPackRaw(files))
	m, _ := u.ahead(t, "team/m", "v1")
	u.Mount("team/m", "free/m")
	m.Layers = append(m.Layers, ocispec.Descriptor{MediaType: ocispec.MediaTypeImageLayer, Digest: digest.FromString("layer"), Size: 5})
	var d digest.Digest
	for _, repository := range []string{"team/m", "free/m"} {
		d = u.withConfig(t, repository, "app", m, func(c map[string]any) {
			root := c["rootfs"].(map[string]any)
			root["diff_ids"] = append(root["diff_ids"].([]any), digest.FromString("a commit").String())
			c["config"].(map[string]any)["Env"] = []string{"A=b"}
		})
	}
	if r := f.ask(t, http.MethodGet, "/v2/free/m/manifests/app", u.Host()); digest.FromBytes(r.body) != d {
		t.Errorf("without a rule: status %d: %s", r.status, r.body)
	}
	if r := f.team(t, u, "app"); r.status != http.StatusForbidden {
		t.Errorf("its files are signed, its manifest is not: status %d: %s", r.status, r.body)
	}
	u.cosign(t, key, d)
	if r := f.team(t, u, "app"); digest.FromBytes(r.body) != d {
		t.Errorf("signed: status %d: %s", r.status, r.body)
	}
}

// TestLayeredSigned refuses a model in its original form, which containerd unpacks by its config, if only its files
// are signed.
func TestLayeredSigned(t *testing.T) {
	t.Parallel()
	f, u := newFacade(t, remote.Options{}), newUpstream(t)
	key, files := f.signedFiles(t, signature.TypeOMS, signature.TypeCosign)
	b := converttest.CNAIEarly(files, converttest.EarlyConfigFull)
	u.Add("team/m", "v1", b)
	if r := f.team(t, u, "v1"); r.status != http.StatusOK {
		t.Fatalf("converted: status %d: %s", r.status, r.body)
	}
	if r := f.team(t, u, b.Digest().String()); r.status != http.StatusForbidden {
		t.Errorf("its files are signed: status %d: %s", r.status, r.body)
	}
	u.cosign(t, key, b.Digest())
	if r := f.team(t, u, b.Digest().String()); r.status != http.StatusOK {
		t.Errorf("its manifest is signed: status %d: %s", r.status, r.body)
	}
}

// containerd reads an image as containerd does: it resolves a reference at the facade, fetches manifests and configs
// with the code of containerd into a content store, and returns what would be unpacked on this machine.
func (f *facade) containerd(ctx context.Context, store content.Store, u *upstream, object string) (manifest ocispec.Manifest, config ocispec.Image, err error) {
	ctx = namespaces.WithNamespace(ctx, "test")
	resolver := docker.NewResolver(docker.ResolverOptions{Hosts: func(string) ([]docker.RegistryHost, error) {
		return []docker.RegistryHost{{
			Client: f.Client(), Host: strings.TrimPrefix(f.URL, "http://"), Scheme: "http", Path: "/v2", Capabilities: docker.HostCapabilityPull | docker.HostCapabilityResolve,
		}}, nil
	}})
	name := u.Host() + "/team/m" + map[bool]string{true: "@", false: ":"}[strings.HasPrefix(object, "sha256:")] + object
	name, target, err := resolver.Resolve(ctx, name)
	if err != nil {
		return manifest, config, err
	}
	fetcher, err := resolver.Fetcher(ctx, name)
	if err != nil {
		return manifest, config, err
	}
	fetch := remotes.FetchHandler(store, fetcher)
	children := images.LimitManifests(images.FilterPlatforms(images.ChildrenHandler(store), platforms.Default()), platforms.Default(), 1)
	err = images.Walk(ctx, images.HandlerFunc(func(ctx context.Context, d ocispec.Descriptor) ([]ocispec.Descriptor, error) {
		if images.IsLayerType(d.MediaType) && d.MediaType != mediatype.TableLayer {
			return nil, images.ErrSkipDesc // it is unpacked, whatever it is
		}
		if _, err := fetch(ctx, d); err != nil {
			return nil, err
		}
		return children(ctx, d)
	}), target)
	if err != nil {
		return manifest, config, err
	}
	if manifest, err = images.Manifest(ctx, store, target, platforms.Default()); err != nil {
		return manifest, config, err
	}
	p, err := content.ReadBlob(ctx, store, manifest.Config)
	if err == nil {
		err = json.Unmarshal(p, &config)
	}
	if err == nil && len(config.RootFS.DiffIDs) != len(manifest.Layers) {
		err = errors.New("mismatched image rootfs and manifest layers") // as core/unpack says
	}
	return manifest, config, err
}

func digestsOf(files []filetable.File) map[string]digest.Digest {
	all := map[string]digest.Digest{}
	for _, f := range files {
		all[f.Path] = f.Digest
	}
	return all
}

// mutations is how many documents TestWhatWasJudged changes.
var mutations = flag.Uint64("mutations", 300, "for TestWhatWasJudged")

// TestWhatWasJudged changes documents of a signed model, of its image that was converted ahead, and of indexes with
// them and with an image that nobody signed, in ways that mislead readers. Whatever the facade answers, containerd
// reads the signed model in it and nothing else, or refuses it.
func TestWhatWasJudged(t *testing.T) {
	t.Parallel()
	f, u := newFacade(t, remote.Options{}), newUpstream(t)
	key, files := f.signedFiles(t, signature.TypeOMS, signature.TypeCosign)
	b := converttest.ModelPackRaw(files)
	u.Add("team/m", "v1", b)
	u.cosign(t, key, b.Digest())
	m, ahead := u.ahead(t, "team/m", "v1")
	digests := map[string]digest.Digest{}
	for _, f := range files {
		digests[f.Path] = digest.FromBytes(f.Data)
	}
	config := u.Blob("team/m", m.Config.Digest)
	put := func(object string, p []byte, mediaType string) digest.Digest {
		return u.Put("team/m", object, p, mediaType)
	}
	of := func(p []byte, artifactType, system string) ocispec.Descriptor {
		d := ocispec.Descriptor{MediaType: mediatype.OCIManifest, ArtifactType: artifactType, Digest: put("", p, mediatype.OCIManifest), Size: int64(len(p))}
		if system != "" {
			d.Platform = &ocispec.Platform{OS: system, Architecture: runtime.GOARCH}
		}
		return d
	}
	if err := log.SetLevel("error"); err != nil { // of containerd
		t.Fatal(err)
	}
	store, err := local.NewStore(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	answered, read := 0, 0
	for seed := range *mutations {
		r := rand.New(rand.NewPCG(seed, 1))
		mutate := func(p []byte) []byte { return converttest.Mutate(r, p) }
		image := of(ordinary(1), "", []string{"Linux", "windows", "linux"}[r.IntN(3)])
		var p []byte
		kind := []string{mediatype.OCIManifest, mediatype.OCIIndex}[seed%6/3]
		switch seed % 6 {
		case 0:
			p = mutate(b.Manifest)
		case 1:
			p = mutate(ahead)
		case 2:
			c := mutate(config)
			m.Config.Digest, m.Config.Size = u.PutBlob("team/m", c), int64(len(c))
			p, _ = json.Marshal(m)
		case 3:
			p = mutate(indexOf(image, of(b.Manifest, mediatype.ModelPackManifest, "linux")))
		case 4:
			p = mutate(indexOf(of(ahead, "", "linux"), image))
		case 5:
			p = indexOf(of(mutate(b.Manifest), mediatype.ModelPackManifest, ""), of(mutate(ahead), "", "linux"), image)
		}
		d := put("evil", p, kind)
		for _, object := range []string{"evil", d.String()} {
			manifest, config, err := f.containerd(t.Context(), store, u, object)
			if err != nil {
				continue
			}
			answered++
			for i, l := range manifest.Layers {
				want := filetable.BlobDiffID(l.Digest)
				switch l.MediaType {
				case mediatype.BlobLayer:
				case mediatype.TableLayer:
					want = l.Digest
					read++
					p, err := content.ReadBlob(t.Context(), store, l)
					if err != nil {
						t.Fatal(err)
					}
					table, err := filetable.Decode(p)
					if err != nil {
						t.Fatal(err)
					}
					if diff := cmp.Diff(digests, digestsOf(table.Files)); diff != "" {
						t.Errorf("files (-signed +read): %s", diff)
					}
				default:
					t.Errorf("layer %+v", l)
				}
				if config.RootFS.DiffIDs[i] != want {
					t.Errorf("diffID %d is %s, want %s", i, config.RootFS.DiffIDs[i], want)
				}
			}
			if diff := cmp.Diff(ocispec.ImageConfig{}, config.Config); diff != "" {
				t.Errorf("config of a container: %s", diff)
			}
			if t.Failed() {
				t.Fatalf("seed %d, %s: asked for %s\nread %+v", seed, object, p, manifest)
			}
		}
	}
	if t.Logf("of %d documents, %d answers, %d with the model", *mutations, answered, read); read < int(*mutations/40) {
		t.Errorf("only %d answers with the model: the changes are too coarse to show a difference", read)
	}
}
