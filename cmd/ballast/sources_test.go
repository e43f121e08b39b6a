package main

import (
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/convert/export"
	"github.com/ballast-dev/ballast/convert/layout"
	"github.com/ballast-dev/ballast/convert/registrytest"
	"github.com/ballast-dev/ballast/convert/resolve"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/ballast-dev/ballast/store/storetest"
	"github.com/ballast-dev/ballast/store/verify"
	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"
)

// digests returns the digests of the files of a model, by path.
func digests(files map[string]converttest.File) map[string]digest.Digest {
	m := map[string]digest.Digest{}
	for _, f := range files {
		m[f.Path] = digest.FromBytes(f.Data)
	}
	return m
}

// packed converts SRC to a ModelPack in a layout and returns its files, by path. The content is
// compared with its digest.
func packed(t *testing.T, src string, flags ...string) map[string]digest.Digest {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "layout")
	args := append([]string{"convert", src, "oci:" + dir + ":v1", "--as", "modelpack"}, flags...)
	if code, _, stderr := ballast(t, args...); code != 0 {
		t.Fatalf("%q: code %d, stderr %q", args, code, stderr)
	}
	m, err := new(resolve.Resolver).Open(t.Context(), "oci:"+dir+":v1")
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	got := map[string]digest.Digest{}
	for _, f := range m.Model.Table.Files {
		if f.Type != filetable.TypeReg {
			continue
		}
		got[f.Path] = f.Digest
		p, err := os.ReadFile(filepath.Join(dir, "blobs", "sha256", f.Digest.Encoded()))
		if f.Source.Blob != "" && (err != nil || verify.Bytes(f.Digest, p) != nil) {
			t.Errorf("%s: %v, or other bytes", f.Path, err)
		}
	}
	return got
}

// TestConvertOllamaStore converts models of a local Ollama store, of both layouts, with the same
// result as for a registry.
func TestConvertOllamaStore(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "with:colon")
	b := gguf(70)
	list := converttest.OllamaList(0, converttest.ListEntry{Built: gguf(71), Runner: "llamacpp", Format: "gguf"})
	tensors := converttest.OllamaTensors(converttest.TensorNamed, converttest.Tensors(20, 4<<10))
	for name, m := range map[string]*converttest.Built{"old": b, "new": b, "list": list, "tensors": tensors.Built} {
		layout := converttest.StoreV2Link
		if name == "old" {
			layout = converttest.StoreLegacy
		}
		host := map[bool]string{true: "registry.ollama.ai", false: "ollama.com"}[name == "old"]
		if err := converttest.WriteOllamaStore(dir, layout, host+"/library/"+name+"/1b", m); err != nil {
			t.Fatal(err)
		}
	}
	for name, want := range map[string]map[string]digest.Digest{"old": digests(b.Files), "new": digests(b.Files), "list": digests(list.Files)} {
		if diff := cmp.Diff(want, packed(t, "ollama:"+dir+":"+name+":1b")); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	got := packed(t, "ollama:"+dir+":registry.ollama.ai/library/tensors:1b")
	if _, ok := got["model.safetensors"]; !ok {
		t.Errorf("tensors: got %v", got)
	}
	t.Setenv("OLLAMA_MODELS", dir)
	if diff := cmp.Diff(digests(b.Files), packed(t, "ollama:new:1b")); diff != "" {
		t.Errorf("by $OLLAMA_MODELS (-want +got):\n%s", diff)
	}
}

// A failure leaves no target.
func TestConvertOllamaFails(t *testing.T) {
	dir, b := t.TempDir(), gguf(72)
	if err := converttest.WriteOllamaStore(dir, converttest.StoreV2Link, "ollama.com/library/x/1b", b); err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(t.TempDir(), "out")
	for _, tt := range []struct {
		src  string
		code int
		word string
	}{
		{"ollama:" + dir + ":other", exitNotFound, "x:1b"},
		{"ollama:" + dir + "/none:x", exitNotFound, "none"},
		{"ollama:" + dir, exitUsage, "model name"},
		{"ollama:" + dir + ":../x", exitUsage, "model name"},
	} {
		if code, _, stderr := ballast(t, "convert", tt.src, "oci:"+out); code != tt.code || !strings.Contains(stderr, tt.word) {
			t.Errorf("%s: code %d, stderr %q", tt.src, code, stderr)
		}
	}
	if _, err := os.Stat(out); !os.IsNotExist(err) {
		t.Errorf("a target is there: %v", err)
	}
	if err := damage(blobFile(dir, b)); err != nil {
		t.Fatal(err)
	}
	if code, _, stderr := ballast(t, "convert", "ollama:"+dir+":x:1b", "oci:"+out+":v1", "--as", "modelpack"); code != exitVerify {
		t.Errorf("damaged: code %d, stderr %q", code, stderr)
	}
	if l, err := layout.Open(out, "v1"); err == nil {
		l.Close()
		t.Error("a damaged model has a tag")
	}
}

// A cartonHost serves a carton at /models/team/tiny/v1.carton, and as a layer of an artifact in the
// repository team/tiny.
func cartonHost(t *testing.T, c converttest.Carton, ranges bool) *registrytest.Server {
	t.Helper()
	const path = "/models/team/tiny/v1.carton"
	s := registrytest.New(t)
	s.Add("team/tiny", "v1", converttest.CartonArtifact(c))
	s.Serve(path, c.Bytes())
	s.Before(func(_ http.ResponseWriter, r *http.Request) bool {
		if !ranges && r.URL.Path == path {
			r.Header.Del("Range")
		}
		return false
	})
	return s
}

// TestConvertCarton converts a carton from every kind of source.
func TestConvertCarton(t *testing.T) {
	c := converttest.GoodCarton(storetest.Random(73, 5<<20+1))
	dir := t.TempDir()
	file := filepath.Join(dir, "tiny.carton")
	if err := os.WriteFile(file, c.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
	layout := "oci:" + filepath.Join(dir, "layout") + ":carton"
	folder := filepath.Join(dir, "unpacked")
	for _, f := range c.Model() {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(folder, f.Path)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(folder, f.Path), f.Data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	with, without := cartonHost(t, c, true), cartonHost(t, c, false)
	registry := with.Host() + "/team/tiny:v1"
	want := digests(c.Model())
	for _, src := range []string{
		file, folder, with.URL + "/models/team/tiny/v1.carton", "carton+" + without.URL + "/models/team/tiny/v1.carton", registry,
	} {
		if diff := cmp.Diff(want, packed(t, src)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", src, diff)
		}
		// Its host is allowed, wherever it is.
		if code, _, stderr := ballast(t, "inspect", "--remote", src); code != 0 {
			t.Errorf("inspect --remote %s: code %d, %q", src, code, stderr)
		}
	}
	for _, form := range export.Forms() {
		if code, _, stderr := ballast(t, "convert", file, layout, "--as", form); code != 0 {
			t.Errorf("--as %s: code %d, %q", form, code, stderr)
		}
	}
	if err := os.WriteFile(filepath.Join(folder, "model/weights.bin"), storetest.Random(76, 5<<20+1), 0o644); err != nil {
		t.Fatal(err)
	}
	if code, _, stderr := ballast(t, "convert", folder, "oci:"+filepath.Join(dir, "other")+":v1", "--as", "modelpack"); code != exitVerify {
		t.Errorf("a directory with another file than MANIFEST says: code %d, %q", code, stderr)
	}
	if code, _, stderr := ballast(t, "convert", filepath.Join(dir, "none.carton"), layout); code != exitNotFound || !strings.Contains(stderr, "none.carton") {
		t.Errorf("no such file: code %d, %q", code, stderr)
	}
	if err := os.WriteFile(file, []byte("no zip"), 0o644); err != nil {
		t.Fatal(err)
	}
	if code, _, stderr := ballast(t, "convert", file, layout); code != exitInvalid || !strings.Contains(stderr, "carton") {
		t.Errorf("not a carton: code %d, %q", code, stderr)
	}
}

// TestConvertConfig uses the configuration: names mapped to cartons, and the runner.
func TestConvertConfig(t *testing.T) {
	c := converttest.GoodCarton(storetest.Random(74, 1<<20))
	host := cartonHost(t, c, true)
	ggml := gguf(75)
	mlx := converttest.OllamaTensors(converttest.TensorNamed, converttest.Tensors(3, 4<<10))
	list := converttest.OllamaList(0, converttest.ListEntry{Built: ggml, Runner: "ggml"}, converttest.ListEntry{Built: mlx.Built, Runner: "mlx"})
	ref := registrytest.New(t).Add("team/x", "27b", list)
	dir := t.TempDir()
	config := filepath.Join(dir, "config.toml")
	text := fmt.Sprintf("version = 1\nroot = %q\n[upstream]\nollama_runner = \"mlx\"\n[[carton]]\nregistry = \"carton.example\"\nurl = %q\nallow_http = true\n",
		dir, host.URL+"/models/{repository}/{tag}.carton")
	if err := os.WriteFile(config, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(digests(c.Model()), packed(t, "carton.example/team/tiny:v1", "--config", config)); diff != "" {
		t.Errorf("carton (-want +got):\n%s", diff)
	}
	if got := packed(t, ref, "--config", config); got["model.safetensors"] == "" {
		t.Errorf("runner of the configuration: %v", got)
	}
	if diff := cmp.Diff(digests(list.Files), packed(t, ref+"-ggml", "--config", config)); diff != "" {
		t.Errorf("runner of the tag (-want +got):\n%s", diff)
	}
	seenOf := func(name string) seen {
		code, stdout, stderr := ballast(t, "digest", name, "--config", config, "-o", "json")
		var s seen
		if err := json.Unmarshal([]byte(stdout), &s); code != 0 || err != nil {
			t.Errorf("digest %s: code %d, %v, %q", name, code, err, stderr)
		}
		return s
	}
	for _, args := range [][]string{{"digest", "carton.example/team/none:v2"}, {"inspect", "--remote", "carton.example/team/none:v2"},
		{"convert", "carton.example/team/none:v2", "oci:" + dir + "/none"}} {
		want := "carton.example/team/none:v2, which is " + host.URL + "/models/team/none/v2.carton here: "
		if code, _, stderr := ballast(t, append(args, "--config", config)...); code != exitNotFound || !strings.Contains(stderr, want) {
			t.Errorf("%q: code %d, %q; want %q in it", args, code, stderr, want)
		}
	}
	if s := seenOf("carton.example/team/tiny:v1"); s.Origin != c.Hash() || s.Digest != seenOf("carton+"+host.URL+"/models/team/tiny/v1.carton").Digest {
		t.Errorf("digest of a carton: %+v", s)
	}
	if a, b, m := seenOf(ref), seenOf(ref+"-ggml"), seenOf(ref+"-mlx"); a.Digest != m.Digest || a.Digest == b.Digest {
		t.Errorf("digests: %s, of ggml %s, of mlx %s", a.Digest, b.Digest, m.Digest)
	}
}

// TestUntrustedCarton names the host of a carton once, and does not advise a retry.
func TestUntrustedCarton(t *testing.T) {
	server := httptest.NewUnstartedServer(http.NotFoundHandler())
	server.Config.ErrorLog = log.New(io.Discard, "", 0) // of handshakes
	server.StartTLS()
	t.Cleanup(server.Close)
	host := strings.TrimPrefix(server.URL, "https://")
	code, _, stderr := ballast(t, "convert", server.URL+"/a.carton", "oci:"+t.TempDir())
	if code != exitState || strings.Count(stderr, host+": ") != 1 || !strings.Contains(stderr, "certificate signed by unknown authority") {
		t.Errorf("code %d, %q", code, stderr)
	}
}
