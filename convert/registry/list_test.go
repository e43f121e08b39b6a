package registry_test

import (
	"bytes"
	"net/http"
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/convert"
	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/convert/format"
	"github.com/ballast-dev/ballast/convert/ollama"
	"github.com/ballast-dev/ballast/convert/registry"
	"github.com/ballast-dev/ballast/convert/remote"
	"github.com/ballast-dev/ballast/store"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// lists returns a list of two models, with the first or the second chosen.
func lists() (ggml, mlx *converttest.Built) {
	one := converttest.Ollama(converttest.Files(weights(9000)), converttest.OllamaConfigNew)
	two := converttest.Ollama(converttest.Files(weights(7000)), converttest.OllamaConfigOld)
	entries := []converttest.ListEntry{{Built: one, Runner: "ggml"}, {Built: two, Runner: "mlx"}}
	return converttest.OllamaList(0, entries...), converttest.OllamaList(1, entries...)
}

// TestOllamaList pulls a list by its tag, with a runner of the configuration, and with one at the
// end of the tag.
func TestOllamaList(t *testing.T) {
	t.Parallel()
	ggml, mlx := lists()
	for _, tt := range []struct {
		name, runner, tag string
		want              *converttest.Built
		format            string
	}{
		{"default", "", "27b", ggml, "ollama-list/ggml"},
		{"configured", "mlx", "27b", mlx, "ollama-list/mlx"},
		{"suffix", "ggml", "27b-mlx", mlx, "ollama-list/mlx"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			u := newUpstream(t)
			u.Before(asOllama)
			u.Add("library/model", "27b", ggml)
			f := newFacade(t, ollamaAt(u))
			f.h.Variant = tt.runner
			got := f.get(t, u, "library/model", tt.tag)
			u.Count("")
			again := f.get(t, u, "library/model", tt.tag)
			if !bytes.Equal(again.body, got.body) || u.Count("/blobs/") != 0 {
				t.Error("a list that is known was converted again, or to something else")
			}
			ref, err := remote.NewRef(u.Host(), "library/model", tt.tag)
			if err != nil {
				t.Fatal(err)
			}
			im, err := f.h.Convert(t.Context(), ref)
			if err != nil {
				t.Fatal(err)
			}
			if want := (filetable.Origin{Format: tt.format, Digest: ggml.Digest(), Mapping: convert.MappingVersion}); im.Origin != want || im.Manifest != digest.FromBytes(got.body) {
				t.Errorf("image is %+v, want one made from %+v", im, want)
			}
			if diff := cmp.Diff(files(t, f, im), wanted(tt.want.Files)); diff != "" {
				t.Errorf("files (-got +want):\n%s", diff)
			}
			// What is asked for by digest next is there.
			f.get(t, u, "library/model", im.Manifest.String())
			m := decode[ocispec.Manifest](t, got)
			if n := f.ask(t, http.MethodGet, "/v2/library/model/blobs/"+m.Config.Digest.String(), u.Host()).status; n != 200 {
				t.Errorf("config: status %d", n)
			}
		})
	}
}

// TestOllamaListSuffix has tags with the name of a runner that do not stand for one.
func TestOllamaListSuffix(t *testing.T) {
	t.Parallel()
	ggml, _ := lists()
	u := newUpstream(t)
	u.Add("library/model", "x", ggml)
	u.Add("library/model", "x-mlx", converttest.ModelPackRaw(converttest.Files(weights(100))))
	u.Add("library/model", "y", converttest.ModelPackRaw(converttest.Files(weights(100))))
	f := newFacade(t, remote.Options{})
	ref, err := remote.NewRef(u.Host(), "library/model", "x-mlx")
	if err != nil {
		t.Fatal(err)
	}
	if im, err := f.h.Convert(t.Context(), ref); err != nil || im.Origin.Format != "modelpack" {
		t.Errorf("a tag that is there: %+v, %v", im, err)
	}
	for _, tag := range []string{"y-mlx", "z-mlx", "x-llamacpp", "x-cuda", "-mlx"} {
		if n := f.ask(t, http.MethodGet, "/v2/library/model/manifests/"+tag, u.Host()).status; n == 200 {
			t.Errorf("tag %s: status 200", tag)
		}
	}
	// The digest of a list names no image.
	got := f.ask(t, http.MethodGet, "/v2/library/model/manifests/"+ggml.Digest().String(), u.Host())
	converted := digest.FromBytes(f.get(t, u, "library/model", "x").body)
	if got.status != 403 || !strings.Contains(got.errorText(t), converted.String()) {
		t.Errorf("by digest: status %d %s, want 403 that names %s", got.status, got.body, converted)
	}
}

// TestOllamaListPrivate asks by digest for what was made of a private list.
func TestOllamaListPrivate(t *testing.T) {
	t.Parallel()
	ggml, _ := lists()
	u := newUpstream(t)
	u.Before(func(w http.ResponseWriter, r *http.Request) bool {
		return r.Header.Get("Authorization") != "" && asOllama(w, r) // to nobody it says 401 to all
	})
	u.Add("secret/model", "x", ggml)
	u.SetUser("secret/model", "alice:s3cr3t-value")
	f := newFacade(t, ollamaAt(u))
	alice := basic("alice:s3cr3t-value")
	for _, tag := range []string{"x-mlx", "x"} {
		d := digest.FromBytes(f.get(t, u, "secret/model", tag, alice...).body)
		f.get(t, u, "secret/model", d.String(), alice...)
		if n := f.ask(t, http.MethodGet, "/v2/secret/model/manifests/"+d.String(), u.Host()).status; n != 401 {
			t.Errorf("%s by digest without credentials: status %d, want 401", tag, n)
		}
	}
}

// files fetches an image and returns the digests of its files, by path.
func files(t *testing.T, f *facade, im store.Image) map[string]digest.Digest {
	t.Helper()
	if err := f.h.Store.Hydrate(t.Context(), im.Table, store.HydrateOptions{Sources: f.h.Sources(im, registry.Names(im)...)}); err != nil {
		t.Fatal(err)
	}
	all, err := f.h.Store.Views.Files(im.Table)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]digest.Digest{}
	for _, file := range all {
		if file.Type == filetable.TypeReg {
			got[file.Path] = file.Digest
		}
	}
	return got
}

func wanted(files map[string]converttest.File) map[string]digest.Digest {
	want := map[string]digest.Digest{}
	for p, file := range files {
		want[p] = digest.FromBytes(file.Data)
	}
	return want
}

// asOllama makes an upstream behave as the registry of Ollama, which gives manifests by tags only.
func asOllama(w http.ResponseWriter, r *http.Request) bool {
	_, object, ok := strings.Cut(r.URL.Path, "/manifests/")
	if !ok {
		return false
	}
	if r.Method != http.MethodGet || strings.Contains(object, ":") {
		w.WriteHeader(http.StatusMethodNotAllowed)
		return true
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	return false
}

// ollamaAt are options for an upstream that behaves as the registry of Ollama.
func ollamaAt(u *upstream) remote.Options {
	hosts, _ := ollama.Format.Hosts(format.Settings{}) // it reads no environment
	return remote.Options{Manners: map[string]remote.Manner{u.Host(): hosts.Manner}}
}
