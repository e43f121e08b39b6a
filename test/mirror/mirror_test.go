package mirror

import (
	"archive/tar"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	model "github.com/ballast-dev/ballast/convert"
	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/convert/export"
	"github.com/ballast-dev/ballast/convert/registry"
	"github.com/ballast-dev/ballast/convert/remote"
	"github.com/ballast-dev/ballast/convert/resolve"
	"github.com/ballast-dev/ballast/store"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/ballast-dev/ballast/test/e2e/node"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/crane"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2"
	orasremote "oras.land/oras-go/v2/registry/remote"
)

// A mirror copies a manifest or an index, with everything it refers to, from one reference to another.
type mirror struct {
	name string
	copy func(t *testing.T, from, to string)
}

var mirrors = append(skopeo,
	mirror{"crane", func(t *testing.T, from, to string) {
		if err := crane.Copy(from, to, crane.Insecure, crane.WithContext(t.Context())); err != nil {
			t.Fatal(err)
		}
	}},
	mirror{"oras", func(t *testing.T, from, to string) {
		src, dst := orasRepository(t, from), orasRepository(t, to)
		if _, err := oras.Copy(t.Context(), src, src.Reference.Reference, dst, dst.Reference.Reference, oras.DefaultCopyOptions); err != nil {
			t.Fatal(err)
		}
	}},
)

func orasRepository(t *testing.T, ref string) *orasremote.Repository {
	t.Helper()
	r, err := orasremote.NewRepository(ref)
	if err != nil {
		t.Fatal(err)
	}
	r.PlainHTTP = true
	return r
}

// newClient returns a client of registries on this machine.
func newClient(t *testing.T) *remote.Client {
	t.Helper()
	client, err := remote.New(remote.Options{Shared: remote.AnyHost})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	return client
}

// A facade is the facade of a node with an empty store.
type facade struct {
	*registry.Handler
	address string // of a registry with the facade's responses for one host
}

// newFacade starts a facade. ns is the registry that its address stands for.
func newFacade(t *testing.T, ns string) *facade {
	t.Helper()
	s, err := store.Open(t.TempDir(), store.Options{Reserve: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	f := &facade{Handler: &registry.Handler{Resolver: resolve.Resolver{Upstream: newClient(t)}, Store: s}}
	f.address = node.Serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.URL.RawQuery = url.Values{"ns": {ns}}.Encode() // as containerd adds it
		f.ServeHTTP(w, r)
	}))
	return f
}

// seen has the properties of a model that mirrors must keep.
type seen struct {
	Manifest      digest.Digest // returned by the facade
	Files         map[string]digest.Digest
	Origin        filetable.Origin
	Config        model.Config // without the list of layers
	ContextLength string
}

// look reads a model through a new facade, as containerd does, and fetches all of its files.
func look(t *testing.T, name string) seen {
	t.Helper()
	ref, err := remote.ParseRef(name)
	if err != nil {
		t.Fatal(err)
	}
	f := newFacade(t, ref.Host)
	repo := orasRepository(t, strings.Replace(name, ref.Host, f.address, 1))
	_, manifest, err := oras.FetchBytes(t.Context(), repo, repo.Reference.Reference, oras.DefaultFetchBytesOptions)
	if err != nil {
		t.Fatal(err)
	}
	s := seen{Manifest: digest.FromBytes(manifest), Files: map[string]digest.Digest{}}
	im, err := f.Convert(t.Context(), ref)
	if err != nil {
		t.Fatal(err)
	}
	s.Origin = im.Origin
	if _, manifest, err = oras.FetchBytes(t.Context(), repo, im.Manifest.String(), oras.DefaultFetchBytesOptions); err != nil {
		t.Fatal(err) // for an index, that of the model in it
	}
	var m ocispec.Manifest
	if err := json.Unmarshal(manifest, &m); err != nil {
		t.Fatal(err)
	}
	s.ContextLength = m.Annotations["dev.ballast.model.context.length"]
	_, config, err := oras.FetchBytes(t.Context(), repo.Blobs(), m.Config.Digest.String(), oras.DefaultFetchBytesOptions)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(config, &s.Config); err != nil {
		t.Fatal(err)
	}
	s.Config.ModelFS = model.ModelFS{}
	if err := f.Store.Hydrate(t.Context(), im.Table, store.HydrateOptions{Sources: f.Sources(im, registry.Names(im)...)}); err != nil {
		t.Fatal(err)
	}
	files, err := f.Store.Views.Files(im.Table)
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if file.Type == filetable.TypeReg {
			s.Files[file.Path] = file.Digest
		}
	}
	return s
}

// lookImage reads an ordinary image: its manifest through a new facade, which does not change it, and
// its layers from the registry, as containerd does.
func lookImage(t *testing.T, name string) seen {
	t.Helper()
	ref, err := remote.ParseRef(name)
	if err != nil {
		t.Fatal(err)
	}
	repo := orasRepository(t, strings.Replace(name, ref.Host, newFacade(t, ref.Host).address, 1))
	desc, err := oras.Resolve(t.Context(), repo, repo.Reference.Reference, oras.DefaultResolveOptions)
	if err != nil {
		t.Fatal(err)
	}
	s := seen{Manifest: desc.Digest, Files: map[string]digest.Digest{}}
	im, err := crane.Pull(ref.Host+"/"+ref.Repository+"@"+desc.Digest.String(), crane.Insecure)
	if err != nil {
		t.Fatal(err)
	}
	r := mutate.Extract(im)
	defer r.Close()
	for entries := tar.NewReader(r); ; {
		h, err := entries.Next()
		if err == io.EOF {
			return s
		}
		if err != nil {
			t.Fatal(err)
		}
		if h.Typeflag != tar.TypeReg {
			continue
		}
		if s.Files[h.Name], err = digest.FromReader(entries); err != nil {
			t.Fatal(err)
		}
	}
}

// TestMirrors copies each form with each mirror: the copy is the same model.
func TestMirrors(t *testing.T) {
	reg := node.StartRegistry(t, t.TempDir())
	b := converttest.DockerAIGGUF(converttest.Files(converttest.GGUF(converttest.SmallGGUF())))
	origin := reg.Ref("from/model", "1")
	reg.Push(t, "from/model", "1", node.Artifact{Manifest: b.Manifest, MediaType: b.MediaType, Blobs: b.Blobs})
	index, child := convertedIndex(t, reg, b)
	forms := []struct {
		name, ref string
		o         export.Options
	}{
		{"index", index, export.Options{}},
		{"child of an index", child, export.Options{}},
		{"ballast", "", export.Options{}},
		{"ballast, as nodes make it", "", export.Options{NoChunks: true}},
		{"ballast, compressed", "", export.Options{Compress: export.CompressChunked}},
		{"modelpack", "", export.Options{Form: export.FormModelPack}},
		{"image", "", export.Options{Form: export.FormImage}},
	}
	for _, form := range forms {
		look := look
		if form.o.Form == export.FormImage {
			look = lookImage
		}
		if form.ref == "" {
			form.ref = reg.Ref("converted/"+strings.NewReplacer(" ", "-", ",", "").Replace(form.name), "1")
			write(t, origin, form.ref, form.o)
		}
		want := look(t, form.ref)
		if diff := cmp.Diff(sums(b), want.Files); diff != "" {
			t.Errorf("%s: files (-origin +converted):\n%s", form.name, diff)
		}
		for _, m := range mirrors {
			t.Run(form.name+"/"+m.name, func(t *testing.T) {
				to := strings.ReplaceAll(form.ref, reg.Host, reg.Host+"/"+m.name)
				if repository, _, ok := strings.Cut(to, "@"); ok {
					to = repository + ":1"
				}
				m.copy(t, form.ref, to)
				if diff := cmp.Diff(want, look(t, to)); diff != "" {
					t.Errorf("the copy (-original +copy):\n%s", diff)
				}
			})
		}
	}
}

// write converts a model into a registry.
func write(t *testing.T, from, to string, o export.Options) {
	t.Helper()
	ref, err := remote.ParseRef(to)
	if err != nil {
		t.Fatal(err)
	}
	client := newClient(t)
	repo, err := client.Repository(ref, nil)
	if err != nil {
		t.Fatal(err)
	}
	convert(t, from, export.NewRegistry(repo, ref), o)
}

// convert converts a model, and returns its manifest.
func convert(t *testing.T, from string, to export.Target, o export.Options) (m ocispec.Manifest) {
	t.Helper()
	src, err := (&resolve.Resolver{Upstream: newClient(t)}).Open(t.Context(), from)
	if err != nil {
		t.Fatal(err)
	}
	defer src.Close()
	res, err := export.Run(t.Context(), src, to, o)
	if err != nil {
		t.Fatalf("%s as %+v: %v", from, o, err)
	}
	if err := json.Unmarshal(res.Manifest, &m); err != nil {
		t.Fatal(err)
	}
	return m
}

// convertedIndex pushes an index with a model for two platforms, converts it with a facade, and pushes
// the result. It returns the references of the converted index and of the first image in it.
func convertedIndex(t *testing.T, reg *node.Registry, b *converttest.Built) (index, child string) {
	t.Helper()
	p, err := json.Marshal(map[string]any{"schemaVersion": 2, "mediaType": ocispec.MediaTypeImageIndex, "manifests": []ocispec.Descriptor{
		{MediaType: b.MediaType, Digest: b.Digest(), Size: int64(len(b.Manifest))},
	}})
	if err != nil {
		t.Fatal(err)
	}
	reg.Push(t, "from/model", "list", node.Artifact{Manifest: p, MediaType: ocispec.MediaTypeImageIndex})
	from := orasRepository(t, newFacade(t, reg.Host).address+"/from/model:list")
	index = reg.Ref("converted/list", "1")
	desc, err := oras.Copy(t.Context(), from, "list", orasRepository(t, index), "1", oras.DefaultCopyOptions)
	if err != nil {
		t.Fatal(err)
	}
	_, p, err = oras.FetchBytes(t.Context(), orasRepository(t, index), desc.Digest.String(), oras.DefaultFetchBytesOptions)
	if err != nil {
		t.Fatal(err)
	}
	var idx ocispec.Index
	if err := json.Unmarshal(p, &idx); err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(idx.Manifests, func(d ocispec.Descriptor) bool { return d.ArtifactType != "" }) {
		t.Error("no entry of the index says that it is a model, so the copies show nothing")
	}
	return index, strings.TrimSuffix(index, ":1") + "@" + idx.Manifests[0].Digest.String()
}

func sums(b *converttest.Built) map[string]digest.Digest {
	m := map[string]digest.Digest{}
	for p, f := range b.Files {
		m[p] = digest.FromBytes(f.Data)
	}
	return m
}
