package localstore_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/ballast-dev/ballast/convert"
	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/convert/formats"
	"github.com/ballast-dev/ballast/convert/ollama"
	"github.com/ballast-dev/ballast/convert/ollama/localstore"
	"github.com/ballast-dev/ballast/store/verify"
	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

func gguf(weights string) *converttest.Built {
	return converttest.Ollama(converttest.Files([]byte(weights)), converttest.OllamaConfigNew)
}

// write writes models by name to a new store, and opens it.
func write(t *testing.T, layout converttest.StoreLayout, models map[string]*converttest.Built) (string, *localstore.Store) {
	t.Helper()
	dir := t.TempDir()
	for name, b := range models {
		add(t, dir, layout, name, b)
	}
	return dir, open(t, dir)
}

func add(t *testing.T, dir string, layout converttest.StoreLayout, name string, b *converttest.Built) {
	t.Helper()
	if err := converttest.WriteOllamaStore(dir, layout, name, b); err != nil {
		t.Fatal(err)
	}
}

func open(t *testing.T, dir string) *localstore.Store {
	t.Helper()
	s, err := localstore.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func names(t *testing.T, s *localstore.Store) []string {
	t.Helper()
	models, err := s.Models()
	if err != nil {
		t.Fatal(err)
	}
	var l []string
	for _, m := range models {
		l = append(l, m.Name.String())
	}
	return l
}

func TestLayoutsGiveEqualModels(t *testing.T) {
	t.Parallel()
	tensors := converttest.OllamaTensors(converttest.TensorNamed, converttest.Tensors(10, 64))
	for _, layout := range []converttest.StoreLayout{converttest.StoreLegacy, converttest.StoreV2Link, converttest.StoreV2Copy} {
		for _, b := range []*converttest.Built{gguf("GGUF weights"), tensors.Built} {
			t.Run(string(layout)+"/"+b.Name, func(t *testing.T) {
				t.Parallel()
				_, s := write(t, layout, map[string]*converttest.Built{"ollama.com/library/x/latest": b})
				a, err := s.Artifact("x")
				if err != nil {
					t.Fatal(err)
				}
				parsers := formats.All()
				got, err := parsers.Parse(context.Background(), a)
				if err != nil {
					t.Fatal(err)
				}
				want, err := parsers.Parse(context.Background(), converttest.NewArtifact(b))
				if err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("model (-registry +store):\n%s", diff)
				}
				for _, blob := range got.Table.Blobs {
					path, err := s.BlobPath(blob.Digest)
					if err != nil {
						t.Fatal(err)
					}
					p, err := os.ReadFile(path)
					if err != nil || verify.Bytes(blob.Digest, p) != nil {
						t.Errorf("%s: %v, or other bytes", path, err)
					}
				}
			})
		}
	}
}

func TestManifestList(t *testing.T) {
	t.Parallel()
	b := converttest.OllamaList(0, converttest.ListEntry{Built: gguf("GGUF weights"), Runner: "llamacpp", Format: "gguf"})
	_, s := write(t, converttest.StoreV2Link, map[string]*converttest.Built{"ollama.com/library/x/1b": b})
	a, err := s.Artifact("registry.ollama.ai/library/X:1B")
	if err != nil {
		t.Fatal(err)
	}
	l, err := ollama.ParseList(a.Manifest())
	if err != nil {
		t.Fatal(err)
	}
	c, err := ollama.Choose(l, "")
	if err != nil {
		t.Fatal(err)
	}
	p, err := s.ReadManifest(c.Digest)
	if err != nil {
		t.Fatal(err)
	}
	m, err := ollama.ParseChild(context.Background(), a, l, c, p)
	if err != nil || m.Table.Origin.Digest != b.Digest() {
		t.Errorf("got %v, %v", m, err)
	}
}

func TestModels(t *testing.T) {
	t.Parallel()
	old, current := gguf("GGUF old"), gguf("GGUF new")
	dir, s := write(t, converttest.StoreV2Link, map[string]*converttest.Built{
		"ollama.com/library/both/latest":                               current,
		"localhost:5000/me/new/q4":                                     current,
		"ollama.com/library/llamacpp/" + current.Digest().Encoded():    current,
		"ollama.com/library/.manifest-123/latest":                      current,
		"ollama.com/library/temp/.manifest-456":                        current,
		"ollama.com/library/temp/bad tag":                              current,
		"ollama.com/lib.rary/temp/latest":                              current,
		"ollama.com/library/temp/" + strings.Repeat("x", 81):           current,
		"hf.co/Org/Repo-GGUF/Q4_K_M":                                   current,
		"ollama.com/library/llamacpp/latest":                           current,
		"registry.example.com/team/llamacpp/" + old.Digest().Encoded(): current,
	})
	add(t, dir, converttest.StoreLegacy, "registry.ollama.ai/library/both/latest", old)
	add(t, dir, converttest.StoreLegacy, "registry.ollama.ai/library/older/latest", old)
	if err := os.Symlink("library", filepath.Join(dir, "manifests/registry.ollama.ai/linked")); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(dir, "manifests/registry.ollama.ai/library/older/dir"), 0o755); err != nil {
		t.Fatal(err)
	}
	want := []string{
		"hf.co/Org/Repo-GGUF:Q4_K_M",
		"localhost:5000/me/new:q4",
		"registry.example.com/team/llamacpp:" + old.Digest().Encoded(),
		"registry.ollama.ai/library/both:latest",
		"registry.ollama.ai/library/llamacpp:latest",
		"registry.ollama.ai/library/older:latest",
	}
	if diff := cmp.Diff(want, names(t, s)); diff != "" {
		t.Errorf("models (-want +got):\n%s", diff)
	}
	for name, want := range map[string]*converttest.Built{
		"both": current, "ollama.com/library/both:latest": current, "older": old, "OLDER:Latest": old,
		"hf.co/org/repo-gguf:q4_k_m": current, "localhost:5000/me/new:q4": current,
	} {
		a, err := s.Artifact(name)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if got := digest.FromBytes(a.Manifest()); got != want.Digest() {
			t.Errorf("%s: got manifest %s", name, got)
		}
	}
}

func TestNames(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"x":                                   "registry.ollama.ai/library/x:latest",
		"me/x:7b":                             "registry.ollama.ai/me/x:7b",
		"localhost:5000/me/x":                 "localhost:5000/me/x:latest",
		"ollama.com/library/x.y_z-1:a.b":      "registry.ollama.ai/library/x.y_z-1:a.b",
		"":                                    "",
		"a/b/c/d":                             "",
		"../x":                                "",
		"x:":                                  "",
		"x:../y":                              "",
		".x":                                  "",
		"a.b/x":                               "",
		"x\x00":                               "",
		"x@sha256:" + strings.Repeat("a", 64): "",
		"/etc/passwd":                         "",
	} {
		n, err := localstore.ParseName(in)
		if want == "" {
			if !errdefs.IsInvalidArgument(err) {
				t.Errorf("%q: got %v, %v; want errdefs.ErrInvalidArgument", in, n, err)
			}
			continue
		}
		if err != nil || n.String() != want {
			t.Errorf("%q: got %v, %v; want %s", in, n, err, want)
		}
	}
}

// TestHostileStores has entries that a store of another user can contain.
func TestHostileStores(t *testing.T) {
	t.Parallel()
	b := gguf("GGUF weights")
	const manifest = "manifests-v2/ollama.com/library/x/latest"
	blob := func(d digest.Digest) string { return "blobs/sha256-" + d.Encoded() }
	link := func(t *testing.T, dir, at, target string) {
		t.Helper()
		if err := os.RemoveAll(filepath.Join(dir, at)); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(target, filepath.Join(dir, at)); err != nil {
			t.Fatal(err)
		}
	}
	replace := func(t *testing.T, dir, at, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, at), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	outside := t.TempDir()
	replace(t, outside, "secret", string(b.Manifest))
	config := digest.Digest("")
	m, err := convert.ParseManifest(b.Manifest)
	if err != nil {
		t.Fatal(err)
	}
	config = m.Config.Digest
	for _, tt := range []struct {
		name string
		do   func(t *testing.T, dir string)
		want error
	}{
		{"a manifest that links out of the store", func(t *testing.T, dir string) { link(t, dir, manifest, filepath.Join(outside, "secret")) }, errdefs.ErrInvalidArgument},
		{"a manifest that links out, relative", func(t *testing.T, dir string) {
			link(t, dir, manifest, "../../../../../../"+filepath.Base(outside)+"/secret")
		}, errdefs.ErrInvalidArgument},
		{"a manifest that links to a blob by an absolute path", func(t *testing.T, dir string) { link(t, dir, manifest, filepath.Join(dir, blob(b.Digest()))) }, errdefs.ErrInvalidArgument},
		{"a manifest that links to another manifest", func(t *testing.T, dir string) { link(t, dir, manifest, "../y/latest") }, errdefs.ErrInvalidArgument},
		{"a manifest that links to a partial blob", func(t *testing.T, dir string) {
			link(t, dir, manifest, "../../../../"+blob(b.Digest())+"-partial")
		}, errdefs.ErrInvalidArgument},
		{"a manifest that links to nothing", func(t *testing.T, dir string) {
			link(t, dir, manifest, "../../../../"+blob(digest.FromString("gone")))
		}, errdefs.ErrNotFound},
		{"a manifest that has another digest than its blob", func(t *testing.T, dir string) { replace(t, dir, blob(b.Digest()), string(b.Manifest)+" ") }, errdefs.ErrDataLoss},
		{"a manifest of nine megabytes", func(t *testing.T, dir string) {
			link(t, dir, manifest, "x")
			if err := os.Remove(filepath.Join(dir, manifest)); err != nil {
				t.Fatal(err)
			}
			replace(t, dir, manifest, strings.Repeat(" ", 9<<20))
		}, errdefs.ErrInvalidArgument},
		{"a manifest that is a pipe", func(t *testing.T, dir string) {
			if err := os.Remove(filepath.Join(dir, manifest)); err != nil {
				t.Fatal(err)
			}
			if err := syscall.Mkfifo(filepath.Join(dir, manifest), 0o644); err != nil {
				t.Fatal(err)
			}
		}, errdefs.ErrInvalidArgument},
		{"a blob that links out of the store", func(t *testing.T, dir string) { link(t, dir, blob(config), filepath.Join(outside, "secret")) }, errdefs.ErrInvalidArgument},
		{"a blob that links to another", func(t *testing.T, dir string) { link(t, dir, blob(config), filepath.Base(blob(b.Digest()))) }, errdefs.ErrInvalidArgument},
		{"a blob that is a directory", func(t *testing.T, dir string) {
			if err := os.Remove(filepath.Join(dir, blob(config))); err != nil {
				t.Fatal(err)
			}
			if err := os.Mkdir(filepath.Join(dir, blob(config)), 0o755); err != nil {
				t.Fatal(err)
			}
		}, errdefs.ErrInvalidArgument},
		{"a blob with other bytes", func(t *testing.T, dir string) {
			replace(t, dir, blob(config), strings.Repeat("x", int(m.Config.Size)))
		}, errdefs.ErrDataLoss},
		{"a blob that is longer", func(t *testing.T, dir string) { replace(t, dir, blob(config), string(b.Blobs[config])+"x") }, errdefs.ErrDataLoss},
		{"a blob that is there in part", func(t *testing.T, dir string) {
			if err := os.Rename(filepath.Join(dir, blob(config)), filepath.Join(dir, blob(config)+"-partial")); err != nil {
				t.Fatal(err)
			}
			replace(t, dir, blob(config)+"-partial-0", `{"N":0,"Offset":0,"Size":1,"Completed":1}`)
		}, errdefs.ErrNotFound},
		{"a blob that Ollama removes meanwhile", func(t *testing.T, dir string) {
			if err := os.Remove(filepath.Join(dir, blob(config))); err != nil {
				t.Fatal(err)
			}
		}, errdefs.ErrNotFound},
		{"a directory of manifests that links out", func(t *testing.T, dir string) {
			link(t, dir, "manifests-v2/ollama.com", outside)
		}, errdefs.ErrNotFound},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			dir, s := write(t, converttest.StoreV2Link, map[string]*converttest.Built{"ollama.com/library/x/latest": b})
			tt.do(t, dir)
			a, err := s.Artifact("x")
			if err == nil {
				_, err = formats.All().Parse(context.Background(), a)
			}
			if !errors.Is(err, tt.want) {
				t.Errorf("got %v, want %v", err, tt.want)
			}
		})
	}
}

func TestOpenRefuses(t *testing.T) {
	t.Parallel()
	outside, linked := t.TempDir(), t.TempDir()
	if err := os.Symlink(outside, filepath.Join(linked, "blobs")); err != nil {
		t.Fatal(err)
	}
	for dir, want := range map[string]error{
		filepath.Join(outside, "missing"): errdefs.ErrNotFound,
		outside:                           errdefs.ErrNotFound,
		linked:                            errdefs.ErrInvalidArgument,
	} {
		if s, err := localstore.Open(dir); !errors.Is(err, want) {
			if err == nil {
				s.Close()
			}
			t.Errorf("%s: got %v, want %v", dir, err, want)
		}
	}
	dir := t.TempDir()
	for _, p := range []string{"blobs", "manifests"} {
		if err := os.Mkdir(filepath.Join(dir, p), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(outside, filepath.Join(dir, "manifests-v2")); err != nil {
		t.Fatal(err)
	}
	if _, err := open(t, dir).Models(); !errdefs.IsInvalidArgument(err) {
		t.Errorf("a layout that is a link: got %v", err)
	}
}

func TestBlobs(t *testing.T) {
	t.Parallel()
	b := gguf("GGUF weights")
	dir, s := write(t, converttest.StoreLegacy, map[string]*converttest.Built{"registry.ollama.ai/library/x/latest": b})
	weights := digest.FromString("GGUF weights")
	older := filepath.Join(dir, "blobs", weights.String()) // with a colon
	if err := os.Rename(filepath.Join(dir, "blobs/sha256-"+weights.Encoded()), older); err != nil {
		t.Fatal(err)
	}
	if got, err := s.BlobPath(weights); err != nil || got != older {
		t.Errorf("got %q, %v; want %q", got, err, older)
	}
	a, err := s.Artifact("x")
	if err != nil {
		t.Fatal(err)
	}
	r, err := a.BlobAt(context.Background(), ocispec.Descriptor{Digest: weights, Size: 12})
	if err != nil {
		t.Fatal(err)
	}
	p := make([]byte, 4)
	if _, err := r.ReadAt(p, 5); err != nil || string(p) != "weig" {
		t.Errorf("got %q, %v", p, err)
	}
	r.(*os.File).Close()
	if _, err := a.BlobAt(context.Background(), ocispec.Descriptor{Digest: weights, Size: 13}); !errdefs.IsDataLoss(err) {
		t.Errorf("another size: got %v", err)
	}
	for _, d := range []digest.Digest{"sha256:../../x", "", "md5:d41d8cd98f00b204e9800998ecf8427e"} {
		if _, err := s.OpenBlob(d); !errdefs.IsInvalidArgument(err) && !errdefs.IsNotImplemented(err) {
			t.Errorf("%q: got %v", d, err)
		}
	}
	if _, err := a.ReadBlob(context.Background(), ocispec.Descriptor{Digest: weights, Size: 12}, 11); !errdefs.IsInvalidArgument(err) {
		t.Errorf("more than the limit: got %v", err)
	}
}

func FuzzName(f *testing.F) {
	for _, s := range []string{"x", "localhost:5000/me/x:7b", "../x", "hf.co/Org/Repo:Q4", "a:b:c"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		n, err := localstore.ParseName(s)
		if err != nil {
			return
		}
		again, err := localstore.ParseName(n.String())
		if err != nil || again != n {
			t.Fatalf("%q: %v, parsed again %v, %v", s, n, again, err)
		}
	})
}
