package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/ballast-dev/ballast/convert/carton"
	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/google/go-cmp/cmp"
)

var facts = []string{"--runner", "torchscript", "--runner-framework", "=1.12.1"}

// converted runs "ballast convert" and returns its result.
func converted(t *testing.T, args ...string) conversion {
	t.Helper()
	code, stdout, stderr := ballast(t, append([]string{"convert", "-o", "json"}, args...)...)
	if code != 0 {
		t.Fatalf("%q: code %d: %s", args, code, stderr)
	}
	lines := strings.Split(strings.TrimSpace(stdout), "\n")
	var c conversion
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), &c); err != nil {
		t.Fatal(err)
	}
	return c
}

// unzipped returns the result of unzip for an archive: path → content.
func unzipped(t *testing.T, file string) map[string]string {
	t.Helper()
	dir := t.TempDir()
	if out, err := exec.Command("unzip", "-q", file, "-d", dir).CombinedOutput(); err != nil {
		t.Fatalf("unzip: %v\n%s", err, out)
	}
	got := map[string]string{}
	err := filepath.WalkDir(dir, func(p string, e os.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		b, err := os.ReadFile(p)
		rel, _ := filepath.Rel(dir, p)
		got[rel] = string(b)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// openCarton opens a carton with our reader.
func openCarton(t *testing.T, file string) *carton.Carton {
	t.Helper()
	src, err := carton.OpenFile(file)
	if err != nil {
		t.Fatal(err)
	}
	c, err := carton.Open(t.Context(), src, carton.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// TestPackedCarton writes a directory as a carton, which unzip and our reader can read, and which
// equals the conversion of the directory with the same facts.
func TestPackedCarton(t *testing.T) {
	if _, err := exec.LookPath("unzip"); err != nil {
		t.Fatal("unzip is missing; make tools installs it")
	}
	dir, out := modelDir(t), filepath.Join(t.TempDir(), "m.carton")
	if err := os.WriteFile(filepath.Join(dir, "empty"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	res := converted(t, append([]string{dir, out, "--as", "carton"}, facts...)...)
	got := unzipped(t, out)
	if !strings.Contains(got["carton.toml"], "=1.12.1") || strings.Count(got["MANIFEST"], "\n") != 4 {
		t.Errorf("carton.toml %q, MANIFEST %q", got["carton.toml"], got["MANIFEST"])
	}
	delete(got, "carton.toml")
	delete(got, "MANIFEST")
	if diff := cmp.Diff(map[string]string{"model/w.safetensors": "weights", "model/README.md": "read me", "model/empty": ""}, got); diff != "" {
		t.Errorf("unzipped (-want +got):\n%s", diff)
	}
	c := openCarton(t, out)
	m, err := c.Model(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if r := m.Runner; c.Hash() != res.Digest || r.Name != "torchscript" || r.FrameworkVersion != "=1.12.1" {
		t.Errorf("hash %s, want %s; runner %+v", c.Hash(), res.Digest, r)
	}
	// The directory, never packed, is the same carton in any form.
	if same := converted(t, append([]string{dir, "oci:" + t.TempDir() + "/l:v1"}, facts...)...); same.Origin.Format != "carton" || same.Origin.Digest != res.Digest {
		t.Errorf("origin of the directory %+v, want %s", same.Origin, res.Digest)
	}
	if again := converted(t, out, filepath.Join(t.TempDir(), "again.carton"), "--as", "carton"); again.Digest != res.Digest {
		t.Errorf("packed again: %s, want %s", again.Digest, res.Digest)
	}
}

// TestPackedFromOthers packs a carton with all its facts, and a model of a registry with archives.
func TestPackedFromOthers(t *testing.T) {
	dir := t.TempDir()
	good := converttest.GoodCarton([]byte("weights"))
	from := filepath.Join(dir, "good.carton")
	if err := os.WriteFile(from, good.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
	to := filepath.Join(dir, "packed.carton")
	if res := converted(t, from, to, "--as", "carton"); res.Digest != good.Hash() || openCarton(t, to).Hash() != good.Hash() {
		t.Errorf("got %s, want %s", res.Digest, good.Hash())
	}
	s := newSite(t)
	b := converttest.ModelPackTarGzip(converttest.Files([]byte("other weights")))
	to = filepath.Join(dir, "model.carton")
	converted(t, append([]string{"--config", s.config, s.Add("a/model", "v1", b), to, "--as", "carton"}, facts...)...)
	m, err := openCarton(t, to).Model(t.Context())
	if err != nil || len(m.Table.Files) != len(b.Files)+2 {
		t.Errorf("%d files, want %d and two more: %v", len(m.Table.Files), len(b.Files), err)
	}
}

// TestCartonUmask writes a carton with the permissions that the umask leaves.
func TestCartonUmask(t *testing.T) {
	for umask, want := range map[int]os.FileMode{0o022: 0o644, 0o077: 0o600} {
		out := filepath.Join(t.TempDir(), "m.carton")
		before := syscall.Umask(umask)
		t.Cleanup(func() { syscall.Umask(before) })
		converted(t, append([]string{modelDir(t), out, "--as", "carton"}, facts...)...)
		info, err := os.Stat(out)
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode() != want {
			t.Errorf("with the umask %03o: %v", umask, info.Mode())
		}
	}
}

func TestPackRefuses(t *testing.T) {
	dir, out := modelDir(t), filepath.Join(t.TempDir(), "m.carton")
	good := filepath.Join(t.TempDir(), "good.carton")
	if err := os.WriteFile(good, converttest.GoodCarton([]byte("x")).Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{dir, out, "--as", "carton"}, {dir, out, "--as", "carton", "--runner", "x"}, {dir, "ghcr.io/a/b:v1", "--runner", "x"},
		append([]string{dir, "ghcr.io/a/b:v1", "--as", "carton"}, facts...), append([]string{good, out, "--as", "carton"}, facts...),
		append([]string{good, "oci:" + t.TempDir() + "/x"}, facts...), append([]string{dir, out, "--as", "carton", "--tar"}, facts...),
		append([]string{dir, out, "--as", "carton", "--dry-run"}, facts...),
	} {
		if code, _, stderr := ballast(t, append([]string{"convert"}, args...)...); code != exitUsage {
			t.Errorf("%q: code %d: %s", args, code, stderr)
		}
	}
	if code, _, stderr := ballast(t, "convert", dir, out, "--as", "carton", "--runner", "x", "--runner-framework", "newest"); code == 0 || !strings.Contains(stderr, "required_framework_version") {
		t.Errorf("a version that is none: code %d: %s", code, stderr)
	}
	pointer := modelDir(t)
	if err := os.WriteFile(filepath.Join(pointer, "w.safetensors"), fmt.Appendf(nil, "version https://git-lfs.github.com/spec/v1\noid sha256:%064d\nsize 4976698672\n", 0), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"oci:" + t.TempDir() + "/l:v1"}, {out, "--as", "carton"}} {
		code, _, stderr := ballast(t, append(append([]string{"convert", pointer}, args...), facts...)...)
		if code != exitState || !strings.Contains(stderr, `"w.safetensors" is a pointer of Git LFS`) {
			t.Errorf("a pointer of Git LFS to %q: code %d: %s", args, code, stderr)
		}
	}
	if _, err := os.Stat(out); err == nil {
		t.Error("what failed left a file")
	}
	if err := os.Mkdir(out, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, src := range []string{dir, "./no-such-model"} {
		if code, _, stderr := ballast(t, "convert", src, out, "--as", "carton", "--force"); code != exitExists || !strings.Contains(stderr, "is a directory; choose another name") {
			t.Errorf("a directory in place of a file, and %s: code %d: %s", src, code, stderr)
		}
	}
	if left, _ := filepath.Glob(filepath.Dir(out) + "/.ballast*"); left != nil {
		t.Errorf("left over: %q", left)
	}
}
