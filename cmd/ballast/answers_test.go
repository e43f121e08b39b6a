package main

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/ballast-dev/ballast/cmd/internal/contract/config"
	"github.com/ballast-dev/ballast/cmd/internal/door/upstream"
	"github.com/ballast-dev/ballast/convert"
	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/convert/layout"
	"github.com/ballast-dev/ballast/convert/registry"
	"github.com/ballast-dev/ballast/convert/remote"
	"github.com/ballast-dev/ballast/convert/resolve"
	"github.com/ballast-dev/ballast/store"
	"github.com/ballast-dev/ballast/store/storetest"
	"github.com/opencontainers/go-digest"
)

// facadeOf returns a function that requests a reference from a facade with a configuration, and
// returns the digest of the manifest.
func facadeOf(t *testing.T, file string) func(t *testing.T, name string) digest.Digest {
	t.Helper()
	cfg, err := config.Load(file)
	if err != nil {
		t.Fatal(err)
	}
	client, err := remote.New(upstream.Options(cfg, "test", upstream.Providers(cfg), nil))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	s, err := store.Open(t.TempDir(), store.Options{Reserve: 1})
	if err != nil {
		t.Fatal(err)
	}
	h := &registry.Handler{Resolver: upstream.Resolver(cfg, client, nil), Store: s}
	t.Cleanup(func() {
		if err := errors.Join(h.Close(), s.Close()); err != nil {
			t.Error(err)
		}
	})
	return func(t *testing.T, name string) digest.Digest {
		ref, err := resolve.ParseRef(name)
		if err != nil {
			t.Fatal(err)
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/v2/"+ref.Repository+"/manifests/"+ref.Object()+"?ns="+ref.Host, nil))
		if w.Code != http.StatusOK {
			t.Errorf("facade: %d: %s", w.Code, w.Body)
		}
		return digest.FromBytes(w.Body.Bytes())
	}
}

// put writes a file below a directory.
func put(t *testing.T, dir, name string, p []byte) string {
	t.Helper()
	at := filepath.Join(dir, name)
	if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(at, p, 0o644); err != nil {
		t.Fatal(err)
	}
	return at
}

// writeLayout writes an artifact to an OCI layout.
func writeLayout(t *testing.T, dir string, b *converttest.Built) string {
	t.Helper()
	l, err := layout.Create(dir, "v1")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for d, p := range b.Blobs {
		put(t, dir, "blobs/sha256/"+d.Encoded(), p)
	}
	if err := l.PutManifest(t.Context(), b.MediaType, b.Manifest); err != nil {
		t.Fatal(err)
	}
	return "oci:" + dir + ":v1"
}

// readLayout reads an artifact from an OCI layout.
func readLayout(t *testing.T, dir string) *converttest.Built {
	t.Helper()
	l, err := layout.Open(dir, "")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	m, err := convert.ParseManifest(l.Manifest())
	if err != nil {
		t.Fatal(err)
	}
	b := &converttest.Built{Manifest: l.Manifest(), MediaType: m.MediaType, Blobs: map[digest.Digest][]byte{}}
	files, err := os.ReadDir(filepath.Join(dir, "blobs", "sha256"))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		p, err := os.ReadFile(filepath.Join(dir, "blobs", "sha256", f.Name()))
		if err != nil {
			t.Fatal(err)
		}
		b.Blobs[digest.FromBytes(p)] = p
	}
	return b
}

// A kindOfSource is a row of TestAllSourcesGiveOneImage.
type kindOfSource struct {
	name, src string
	local     bool   // only visible to this process
	private   bool   // only readable by the node itself
	model     string // in an Ollama store, for import
}

// sources creates sources of all kinds, and the configuration that they need.
func sources(t *testing.T, s *site) []kindOfSource {
	t.Helper()
	weights := converttest.GGUF(converttest.SmallGGUF())
	files := converttest.Files(weights)
	c := converttest.GoodCarton(storetest.Random(81, 1<<20))
	web := cartonHost(t, c, true)
	other := converttest.Ollama(converttest.Files(storetest.Random(82, 1000)), converttest.OllamaConfigOld)
	list := converttest.OllamaList(1, converttest.ListEntry{Built: gguf(83), Runner: "ggml"}, converttest.ListEntry{Built: other, Runner: "mlx"})
	all := []kindOfSource{
		{name: "list", src: s.Add("a/list", "27b", list)},
		{name: "runner of a list", src: s.Host() + "/a/list:27b-mlx"},
		{name: "carton in a registry", src: s.Add("a/carton", "v1", converttest.CartonArtifact(c))},
		{name: "carton at a private URL", src: "carton+" + web.URL + "/models/team/tiny/v1.carton"},
		{name: "carton that a name is mapped to", src: "carton.example/team/tiny:v1"},
	}
	for _, b := range []*converttest.Built{
		converttest.ModelPackRaw(files), converttest.ModelPackTarGzip(files), converttest.CNAI(files), converttest.CNAIEarly(files, converttest.EarlyConfigFull),
		converttest.DockerAIGGUF(files), converttest.Ollama(files, converttest.OllamaConfigNew), converttest.KitOps(files),
	} {
		all = append(all, kindOfSource{name: b.Name, src: s.Add("a/"+b.Name, "v1", b)})
	}
	dir := t.TempDir()
	layoutDir := filepath.Join(dir, "layout")
	all = append(all, kindOfSource{name: "layout", src: writeLayout(t, layoutDir, converttest.ModelPackRaw(files)), local: true},
		kindOfSource{name: "carton file", src: put(t, dir, "tiny.carton", c.Bytes()), local: true},
		kindOfSource{name: "file", src: put(t, dir, "files/w.gguf", weights), local: true})
	put(t, dir, "files/README.md", []byte("read me"))
	all = append(all, kindOfSource{name: "directory", src: filepath.Join(dir, "files"), local: true})

	ollama := filepath.Join(dir, "ollama")
	if err := converttest.WriteOllamaStore(ollama, converttest.StoreV2Link, "ollama.com/library/x/1b", gguf(84)); err != nil {
		t.Fatal(err)
	}
	all = append(all, kindOfSource{name: "Ollama's store", src: "ollama:" + ollama + ":x:1b", local: true, model: "x:1b"})

	ahead := filepath.Join(dir, "ahead")
	s.ok(t, "convert", s.Host()+"/a/"+converttest.DockerAIGGUF(files).Name+":v1", "oci:"+ahead+":v1", "--no-chunks")
	for _, b := range converttest.DockerAIGGUF(files).Blobs { // the layout lacks blobs that are layers of the origin
		put(t, ahead, "blobs/sha256/"+digest.FromBytes(b).Encoded(), b)
	}
	all = append(all, kindOfSource{name: "converted ahead", src: s.Add("a/ahead", "v1", readLayout(t, ahead))}, kindOfSource{name: "layout of one converted ahead", src: "oci:" + ahead + ":v1", local: true})
	s.stop()
	s.more = "[[carton]]\nregistry = \"carton.example\"\nurl = \"" + web.URL + "/models/{repository}/{tag}.carton\"\nallow_http = true\n"
	hub := converttest.NewHub(t)
	t.Setenv("HF_ENDPOINT", hub.URL)
	t.Setenv("HF_TOKEN", "hf_secret")
	hub.Protect("Org/Private", "hf_secret")
	for _, name := range []string{"Org/Model", "Org/Private"} {
		hub.Push(name, "main", map[string]converttest.HubFile{
			"m-Q4_K_M.gguf": {Data: weights, LFS: true}, "m-Q8_0.gguf": {Data: storetest.Random(85, 1000), LFS: true}, "README.md": {Data: []byte(name)},
		})
	}
	all = append(all, kindOfSource{name: "repository of the Hub", src: "hf.co/Org/Model:main"}, kindOfSource{name: "quantisation", src: "hf.co/Org/Model:Q4_K_M"},
		kindOfSource{name: "scheme of the Hub", src: "hf:Org/Model@main"}, kindOfSource{name: "private repository of the Hub", src: "hf:Org/Private", private: true})
	t.Cleanup(func() {
		if l := hub.Leaked(); len(l) > 0 {
			t.Errorf("the token went to another host: %q", l)
		}
	})
	s.allow = []string{web.Host(), strings.TrimPrefix(hub.CDN.URL, "http://")}
	s.start(t, 1)
	return all
}

// TestAllSourcesGiveOneImage converts the same source in all possible ways: each gives the same image.
func TestAllSourcesGiveOneImage(t *testing.T) {
	s := newSite(t)
	all := sources(t, s)
	facade := facadeOf(t, s.config)
	for _, k := range all {
		t.Run(k.name, func(t *testing.T) {
			type seen struct{ Digest digest.Digest }
			got := map[string]digest.Digest{
				"digest":           parse[seen](t, s.ok(t, "digest", "-o", "json", k.src)).Digest,
				"inspect --remote": parse[seen](t, s.ok(t, "inspect", "--remote", "-o", "json", k.src)).Digest,
			}
			out := s.ok(t, "convert", k.src, "oci:"+filepath.Join(t.TempDir(), "out")+":v1", "--no-chunks", "-q")
			got["convert"] = digest.Digest(strings.TrimSpace(out))
			if !k.local {
				got["prefetch"] = digest.Digest(strings.TrimSpace(s.ok(t, "prefetch", "-q", k.src)))
				got["inspect"] = parse[seen](t, s.ok(t, "inspect", "-o", "json", k.src)).Digest
			}
			if !k.local && !k.private && !strings.HasPrefix(k.src, "carton+") { // containerd cannot name a URL
				got["facade"] = facade(t, k.src)
			}
			if !k.local {
				if out := s.ok(t, "digest", "--all", k.src); !strings.Contains(out, string(got["digest"])) {
					t.Errorf("digest --all:\n%s", out)
				}
			}
			if k.model != "" {
				dir := strings.TrimSuffix(strings.TrimPrefix(k.src, "ollama:"), ":"+k.model)
				got["import"] = digest.Digest(strings.TrimSpace(s.ok(t, "import", "ollama", k.model, "--dir", dir, "-q")))
			}
			for how, d := range got {
				if d != got["digest"] || d == "" {
					t.Errorf("%s gives %s, digest %s", how, d, got["digest"])
				}
			}
		})
	}
}

// An invalid model has an exit code of its own, whichever command finds it.
func TestInvalidModelExitCode(t *testing.T) {
	s := newSite(t)
	b := converttest.ModelPackRaw(converttest.Files([]byte("weights")))
	s.Add("a/bad", "v1", &converttest.Built{MediaType: b.MediaType, Blobs: b.Blobs, Manifest: []byte(strings.Replace(string(b.Manifest), `"model.gguf"`, `"../model.gguf"`, 1))})
	s.Put("a/worse", "v1", []byte(`{"schemaVersion":2,"layers":3}`), b.MediaType)
	out := "oci:" + filepath.Join(t.TempDir(), "out")
	for _, name := range []string{s.Host() + "/a/bad:v1", s.Host() + "/a/worse:v1"} {
		for _, args := range [][]string{{"digest", name}, {"inspect", "--remote", name}, {"convert", name, out}, {"prefetch", name}} {
			if code, _, stderr := s.ballast(t.Context(), args...); code != exitInvalid || strings.Contains(stderr, "usage:") {
				t.Errorf("%q: code %d, %s", args, code, stderr)
			}
		}
	}
}

// The error for a target that is not one says what a target is.
func TestConvertToURL(t *testing.T) {
	for _, dst := range []string{"carton+https://h.example/x.carton", "https://h.example/x"} {
		if code, _, stderr := ballast(t, "convert", modelDir(t), dst); code != exitUsage || !strings.Contains(stderr, "is not a target: write REGISTRY/REPOSITORY:TAG, oci:DIR, or with --as carton FILE.carton") {
			t.Errorf("%s: code %d, %s", dst, code, stderr)
		}
	}
}

// TestErrorsInOrderOfNames prints the errors of several names in their order.
func TestErrorsInOrderOfNames(t *testing.T) {
	s := newSite(t)
	_, _, stderr := s.ballast(t.Context(), "rm", "h.example/first:1", "h.example/second:1")
	if i, j := strings.Index(stderr, "first"), strings.Index(stderr, "second"); i < 0 || j < i || strings.Count(stderr, "first") != 1 {
		t.Errorf("got %q", stderr)
	}
}

// TestLimitOfTheHub: a command that reads the Hub itself waits for its limit, and says so.
func TestLimitOfTheHub(t *testing.T) {
	s := newSite(t)
	hub := converttest.NewHub(t)
	t.Setenv("HF_ENDPOINT", hub.URL)
	t.Setenv("HF_TOKEN", "")
	t.Setenv("HF_HOME", t.TempDir())
	hub.Push("Org/Model", "main", map[string]converttest.HubFile{"README.md": {Data: []byte("read me")}, "w.gguf": {Data: storetest.Random(86, 1000), LFS: true}})
	s.allow = []string{strings.TrimPrefix(hub.CDN.URL, "http://")}
	s.stop()
	s.start(t, 1)
	var asked atomic.Int64
	hub.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if asked.Add(1) == 1 {
			w.Header().Set("RateLimit", `"api";r=0;t=1`)
			w.WriteHeader(http.StatusTooManyRequests)
			return
		}
		hub.ServeHTTP(w, r)
	})
	for _, command := range [][]string{{"digest", "hf:Org/Model"}, {"inspect", "--remote", "hf:Org/Model"}, {"digest", "-q", "hf:Org/Model"}} {
		asked.Store(0)
		code, _, stderr := s.ballast(t.Context(), command...)
		if says := strings.Contains(stderr, "ballast: note: waits 1s for the limit of hf.co\n"); code != 0 || says == (command[1] == "-q") {
			t.Errorf("ballast %s: code %d: %s", strings.Join(command, " "), code, stderr)
		}
	}
}
