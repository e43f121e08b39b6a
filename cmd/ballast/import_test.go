package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/ballast-dev/ballast/cmd/internal/contract/wire"
	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/store"
	"github.com/ballast-dev/ballast/store/storetest"
	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"
)

// addOllama puts an Ollama model into the registry and into an Ollama store, under the same name.
func (s *site) addOllama(t *testing.T, dir, repository string, layout converttest.StoreLayout, b *converttest.Built) (ref string) {
	t.Helper()
	ref = s.Add(repository, "latest", b)
	if err := converttest.WriteOllamaStore(dir, layout, s.Host()+"/"+repository+"/latest", b); err != nil {
		t.Fatal(err)
	}
	return ref
}

func gguf(seed uint64) *converttest.Built {
	return converttest.Ollama(converttest.Files(storetest.Random(seed, 5<<20+1)), converttest.OllamaConfigNew)
}

// blobFile returns the file of the weights in an Ollama store.
func blobFile(dir string, b *converttest.Built) string {
	return filepath.Join(dir, "blobs", "sha256-"+digest.FromBytes(b.Files["model.gguf"].Data).Encoded())
}

// snapshotOf returns what must not change in a directory: names, owners, modes, sizes and times.
func snapshotOf(t *testing.T, dir string) map[string][6]int64 {
	t.Helper()
	all := map[string][6]int64{}
	err := filepath.Walk(dir, func(p string, info os.FileInfo, err error) error {
		if err == nil {
			st := info.Sys().(*syscall.Stat_t)
			all[p] = [6]int64{int64(st.Mode), int64(st.Uid), int64(st.Gid), st.Size, st.Mtim.Nano(), int64(st.Ino)}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// inspected returns the files of a model on the node, by path.
func (s *site) inspected(t *testing.T, ref string) map[string]digest.Digest {
	t.Helper()
	got := map[string]digest.Digest{}
	for _, f := range parse[wire.Detail](t, s.ok(t, "inspect", "-o", "json", ref)).Files {
		got[f.Path] = f.Digest
	}
	return got
}

// TestImport imports a model from a store of each layout, linked or copied. A prefetch by name then
// downloads little more than the manifest: the registry shows that it has the files too.
func TestImport(t *testing.T) {
	s := newSite(t)
	for i, tt := range []struct {
		layout converttest.StoreLayout
		uid    int
	}{{converttest.StoreLegacy, 0}, {converttest.StoreV2Link, 1000}, {converttest.StoreV2Copy, 0}} {
		t.Run(string(tt.layout), func(t *testing.T) {
			dir, b := t.TempDir(), gguf(uint64(40+i))
			ref := s.addOllama(t, dir, "team/of-"+string(tt.layout), tt.layout, b)
			name := strings.TrimSuffix(ref, ":latest")
			if err := os.Chown(blobFile(dir, b), tt.uid, 0); err != nil {
				t.Fatal(err)
			}
			seen := strings.TrimSpace(s.ok(t, "digest", ref))
			before, sent := snapshotOf(t, dir), s.Sent()

			lines := strings.Split(strings.TrimSpace(s.ok(t, "import", "ollama", name, "--dir", dir, "-o", "json")), "\n")
			last := parse[wire.ImportEvent](t, lines[len(lines)-1])
			if last.Status != wire.StatusSuccess || len(last.Imported) != 1 || last.Imported[0].Ref != ref || last.Imported[0].Image.Manifest.String() != seen {
				t.Fatalf("last line: %+v, want the image %s", last, seen)
			}
			if linked := last.Imported[0].Linked; (linked.Hard >= 5<<20) != (tt.uid == 0) {
				t.Errorf("linked: %+v with owner %d", linked, tt.uid)
			}
			want := map[string]digest.Digest{}
			for p, f := range b.Files {
				want[p] = digest.FromBytes(f.Data)
			}
			if diff := cmp.Diff(want, s.inspected(t, ref)); diff != "" {
				t.Errorf("files (-want +got):\n%s", diff)
			}
			if out := s.ok(t, "ls"); !strings.Contains(out, ref) || !strings.Contains(out, "complete, pinned") {
				t.Errorf("ls:\n%s", out)
			}
			if out := s.ok(t, "-q", "prefetch", ref); strings.TrimSpace(out) != seen || s.Sent()-sent > 128<<10 {
				t.Errorf("prefetch: %q, and %d bytes of blobs", out, s.Sent()-sent)
			}
			if diff := cmp.Diff(before, snapshotOf(t, dir)); diff != "" {
				t.Errorf("Ollama's files changed:\n%s", diff)
			}
			// The Ollama store is no longer needed.
			if err := os.RemoveAll(dir); err != nil {
				t.Fatal(err)
			}
			s.ok(t, "verify", ref)
		})
	}
}

// TestImportRewritten imports models whose manifests were written anew by an earlier Ollama, which ends them with a
// newline: the origin differs from that of the registry, and the weights are the local ones. The pin says so.
func TestImportRewritten(t *testing.T) {
	var indented bytes.Buffer
	if err := json.Indent(&indented, gguf(52).Manifest, "", " "); err != nil {
		t.Fatal(err)
	}
	for name, manifest := range map[string][]byte{"indented": indented.Bytes(), "newline": append(slices.Clone(gguf(52).Manifest), '\n')} {
		t.Run(name, func(t *testing.T) { importRewritten(t, manifest) })
	}
}

func importRewritten(t *testing.T, manifest []byte) {
	s := newSite(t)
	dir, b := t.TempDir(), gguf(52)
	ref := s.addOllama(t, dir, "team/model", converttest.StoreLegacy, b)
	rewritten := *b
	rewritten.Manifest = manifest
	s.addOllama(t, dir, "team/model", converttest.StoreLegacy, &rewritten)
	s.Add("team/model", "latest", b)
	imported := strings.TrimSpace(s.ok(t, "import", "ollama", "-q", "--dir", dir))
	before := s.Sent()
	pulled := strings.TrimSpace(s.ok(t, "prefetch", "-q", "--no-pin", ref))
	if sent := s.Sent() - before; imported == pulled || sent > 64<<10 {
		t.Errorf("imported %s, pulled %s, %d bytes of blobs", imported, pulled, sent)
	}
	if d := parse[wire.Detail](t, s.ok(t, "inspect", "-o", "json", ref)); d.Manifest.String() != pulled || d.State != wire.StateComplete {
		t.Errorf("%s is %s and %s", ref, d.Manifest, d.State)
	}
	if out := s.ok(t, "pin", "ls"); !strings.Contains(out, "(moved: the name now is ") {
		t.Errorf("the pin does not say that the name has moved:\n%s", out)
	}
}

// TestImportAll imports all models of a store, including tensors, then again without effect, and
// without a pin.
func TestImportAll(t *testing.T) {
	s := newSite(t)
	dir, one := t.TempDir(), gguf(50)
	tensors := converttest.OllamaTensors(converttest.TensorNamed, converttest.Tensors(20, 4<<10))
	list := converttest.OllamaList(0, converttest.ListEntry{Built: gguf(51), Runner: "llamacpp", Format: "gguf"})
	refs := []string{
		s.addOllama(t, dir, "team/list", converttest.StoreV2Link, list),
		s.addOllama(t, dir, "team/one", converttest.StoreLegacy, one),
		s.addOllama(t, dir, "team/tensors", converttest.StoreV2Link, tensors.Built),
	}
	t.Setenv("OLLAMA_MODELS", dir)
	if out := s.ok(t, "import", "ollama", "--no-pin"); strings.Count(out, "\n") != 3 || strings.Count(out, " linked)") != 3 {
		t.Errorf("got\n%s", out)
	}
	if pins := parse[[]wire.Ref](t, s.ok(t, "pin", "ls", "-o", "json")); len(pins) != 0 {
		t.Errorf("pins: %+v", pins)
	}
	if out := s.ok(t, "import", "ollama", "--ttl", "1h", "-q"); strings.Count(out, "sha256:") != 3 {
		t.Errorf("once more: %q", out)
	}
	if pins := parse[[]wire.Ref](t, s.ok(t, "pin", "ls", "-o", "json")); len(pins) != 3 || pins[0].Expires.IsZero() {
		t.Errorf("pins: %+v", pins)
	}
	for _, ref := range refs {
		if d := parse[wire.Detail](t, s.ok(t, "inspect", "-o", "json", ref)); d.State != wire.StateComplete {
			t.Errorf("%s is %s", ref, d.State)
		}
	}
	for _, ref := range refs { // the registry has all of it
		if got := strings.TrimSpace(s.ok(t, "-q", "prefetch", ref)); got != strings.TrimSpace(s.ok(t, "digest", ref)) {
			t.Errorf("%s: %s is not what the registry has", ref, got)
		}
	}
}

// TestImportFails checks the messages of errors.
func TestImportFails(t *testing.T) {
	s := newSite(t)
	for _, tt := range []struct {
		name, model string
		spoil       func(dir, blob string) error
		code        int
		words       []string
	}{
		{"no such model", "other", nil, exitNotFound, []string{"registry.ollama.ai/library/other:latest is not in ", "team/model:latest"}},
		{"damaged", "", func(_, blob string) error { return damage(blob) }, exitVerify, []string{"is damaged; remove it", "blobs/sha256-", `"ollama pull `}},
		{"damaged, of a user", "", func(_, blob string) error {
			if err := os.Chown(blob, 1000, 1000); err != nil {
				return err
			}
			return damage(blob)
		}, exitVerify, []string{"is damaged; remove it", "blobs/sha256-"}},
		{"short, of a user", "", func(_, blob string) error {
			if err := os.Chown(blob, 1000, 1000); err != nil {
				return err
			}
			return os.Truncate(blob, 5)
		}, exitVerify, []string{"is damaged; remove it", "got 5 bytes"}},
		{"not whole", "", func(_, blob string) error { return os.Rename(blob, blob+"-partial") }, exitNotFound, []string{"not all of it is in the store", `"ollama pull `}},
		{"no store", "", func(dir, _ string) error { return os.RemoveAll(dir) }, exitNotFound, []string{"ollama store"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir, b := t.TempDir(), gguf(60)
			ref := s.addOllama(t, dir, "team/model", converttest.StoreV2Link, b)
			model := tt.model
			if model == "" {
				model = strings.TrimSuffix(ref, ":latest")
			}
			if tt.spoil != nil {
				if err := tt.spoil(dir, blobFile(dir, b)); err != nil {
					t.Fatal(err)
				}
			}
			code, stdout, stderr := s.ballast(t.Context(), "import", "ollama", model, "--dir", dir)
			if code != tt.code || stdout != "" {
				t.Errorf("code %d, want %d; stdout %q", code, tt.code, stdout)
			}
			for _, w := range tt.words {
				if !strings.Contains(stderr, w) {
					t.Errorf("no %q in %q", w, stderr)
				}
			}
			if _, err := os.Stat(filepath.Join(s.dir, "root/objects", store.ObjectName(digest.FromBytes(b.Files["model.gguf"].Data)))); !os.IsNotExist(err) {
				t.Errorf("an object of it is there: %v", err)
			}
			code, stdout, _ = s.ballast(t.Context(), "import", "ollama", model, "--dir", dir, "-o", "json")
			lines := strings.Split(strings.TrimSpace(stdout), "\n")
			if last := parse[wire.Event](t, lines[len(lines)-1]); code != tt.code || last.Status != wire.StatusError || last.Error == nil {
				t.Errorf("json: code %d, last line %+v", code, last)
			}
		})
	}
	for _, dir := range []string{"relative", ""} {
		c := wire.NewClient(s.address)
		if _, err := c.ImportModels(t.Context(), dir); err == nil || !strings.Contains(err.Error(), "not absolute") {
			t.Errorf("directory %q: %v", dir, err)
		}
		c.Close()
	}
	t.Setenv("OLLAMA_MODELS", "")
	t.Setenv("HOME", t.TempDir())
	if code, _, stderr := s.ballast(t.Context(), "import", "ollama"); code != exitNotFound || !strings.Contains(stderr, "with --dir or $OLLAMA_MODELS") {
		t.Errorf("nothing there: code %d, %q", code, stderr)
	}
	if code, _, stderr := s.ballast(t.Context(), "convert", "ollama:nosuch", "oci:"+t.TempDir()); code != exitNotFound || !strings.Contains(stderr, "with ollama:DIR:nosuch or $OLLAMA_MODELS") {
		t.Errorf("convert: code %d, stderr %q", code, stderr)
	}
}

// damage changes the last byte of a file.
func damage(name string) error {
	p, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	p[len(p)-1] ^= 1
	return os.WriteFile(name, p, 0o644)
}

func TestImportUsage(t *testing.T) {
	for _, args := range [][]string{
		{"import", "fly"}, {"import", "ollama", "../x"}, {"import", "ollama", "--ttl", "-1s"}, {"import", "ollama", "-o", "yaml"},
	} {
		if code, stdout, stderr := ballast(t, args...); code != exitUsage || stdout != "" {
			t.Errorf("%q: code %d, stdout %q, stderr %q", args, code, stdout, stderr)
		}
	}
	if code, _, stderr := ballast(t, "import", "ollama", "--dir", t.TempDir()); code != exitNetwork || !strings.Contains(stderr, "ballastd is not running") {
		t.Errorf("no daemon: code %d, %q", code, stderr)
	}
}
