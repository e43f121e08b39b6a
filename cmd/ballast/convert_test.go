package main

import (
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/convert/export"
	"github.com/ballast-dev/ballast/convert/registrytest"
	"github.com/ballast-dev/ballast/convert/resolve"
)

// modelDir creates a directory of model files.
func modelDir(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for name, p := range map[string]string{"w.safetensors": "weights", "README.md": "read me"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(p), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// TestConvertReferrer says which flags do not go with --referrer.
func TestConvertReferrer(t *testing.T) {
	for _, flags := range [][]string{{"--as", "image"}, {"--compress", "zstd-seekable"}, {"--include", "*"}} {
		code, _, stderr := ballast(t, append([]string{"convert", "ghcr.io/a/b:c", "--referrer"}, flags...)...)
		if code != exitUsage || !strings.Contains(stderr, "--referrer goes with --as ballast") {
			t.Errorf("%q: code %d, %s", flags, code, stderr)
		}
	}
}

func TestConvertUsage(t *testing.T) {
	dir := modelDir(t)
	for _, args := range [][]string{
		{"convert"}, {"convert", dir}, {"convert", dir, "oci:"}, {"convert", dir, "/tmp/x"}, {"convert", dir, "llama"},
		{"convert", dir, "ghcr.io/a/b:v1", "--as", "zip"}, {"convert", dir, "ghcr.io/a/b:v1", "--tar"},
		{"convert", dir, "ghcr.io/a/b:v1", "--as", "image", "--no-chunks"}, {"convert", dir, "ghcr.io/a/b:v1", "--as", "image", "--compress", "zstd-seekable"},
		{"convert", dir, "ghcr.io/a/b:v1", "--compress", "gzip"}, {"convert", dir, "ghcr.io/a/b:v1", "--compress", "zstd-seekable", "--no-chunks"}, {"convert", "llama", "oci:/tmp/x"},
		{"convert", dir, "ghcr.io/a/b:v1", "--prefix", "../models"}, {"convert", dir, "a.carton", "--as", "carton", "--prefix", "models"},
		{"convert", dir, "ghcr.io/a/b@sha256:" + strings.Repeat("0", 64)},
		{"digest"}, {"digest", "llama"}, {"digest", "ghcr.io/a/b:v1", "x"},
	} {
		if code, stdout, stderr := ballast(t, args...); code != exitUsage || stdout != "" {
			t.Errorf("%q: code %d, stdout %q, stderr %q", args, code, stdout, stderr)
		}
	}
}

func TestConvertExitCodes(t *testing.T) {
	dir := modelDir(t)
	forbidden := registrytest.New(t)
	forbidden.Before(func(w http.ResponseWriter, r *http.Request) bool {
		writes := r.Method != http.MethodGet && r.Method != http.MethodHead
		if writes {
			w.WriteHeader(http.StatusForbidden)
		}
		return writes
	})
	host := forbidden.Host()
	out := "oci:" + filepath.Join(t.TempDir(), "new")
	for _, tt := range []struct {
		src, dst string
		code     int
		word     string
	}{
		{dir, host + "/out:1", exitUnauthorised, "403"},
		{dir, "localhost:1/out:1", exitNetwork, "localhost:1"},
		{host + "/none:1", out, exitNotFound, "has no such repository or tag"},
		{dir + "/none", out, exitNotFound, "none"},
		{"oci:" + dir, out, exitNotFound, "oci-layout"},
	} {
		code, _, stderr := ballast(t, "convert", tt.src, tt.dst)
		if code != tt.code || !strings.Contains(stderr, tt.word) {
			t.Errorf("%s to %s: code %d, stderr %q", tt.src, tt.dst, code, stderr)
		}
	}
	if _, err := os.Stat(strings.TrimPrefix(out, "oci:")); !os.IsNotExist(err) {
		t.Errorf("a source that is not there makes a target: %v", err)
	}
	if code, _, _ := ballast(t, "digest", host+"/none:1"); code != exitNotFound {
		t.Errorf("digest: code %d", code)
	}
}

func TestConvertOutput(t *testing.T) {
	dir, layout := modelDir(t), filepath.Join(t.TempDir(), "l")
	code, stdout, stderr := ballast(t, "convert", dir, "oci:"+layout+":v1", "--as", "modelpack", "--dry-run", "-o", "json")
	var dry, res conversion
	if err := json.Unmarshal([]byte(stdout), &dry); code != 0 || err != nil || dry.Status != export.StatePlanned || !dry.DryRun || dry.Digest == "" {
		t.Errorf("dry run: code %d, %v, stdout %q, stderr %q", code, err, stdout, stderr)
	}
	if _, err := os.Stat(layout); !os.IsNotExist(err) {
		t.Errorf("a dry run made the layout: %v", err)
	}
	code, stdout, stderr = ballast(t, "convert", dir, "oci:"+layout+":v1", "--as", "modelpack", "-o", "json")
	lines := strings.Split(strings.TrimSpace(stdout), "\n")
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), &res); code != 0 || err != nil || res.Status != "success" || res.Digest != dry.Digest || res.Sent != 14 {
		t.Errorf("code %d, %v, stdout %q, stderr %q", code, err, stdout, stderr)
	}
	for _, line := range lines {
		if !json.Valid([]byte(line)) {
			t.Errorf("line %q is not JSON", line)
		}
	}
	code, stdout, stderr = ballast(t, "convert", layout, "oci:"+layout+":v2", "--as", "modelpack", "-q")
	if code != 0 || !strings.HasPrefix(stdout, "sha256:") || strings.Count(stdout, "\n") != 1 {
		t.Errorf("code %d, stdout %q, stderr %q", code, stdout, stderr)
	}
	code, stdout, stderr = ballast(t, "convert", dir, "oci:"+layout+":image", "--as", "image")
	if code != 0 || !strings.Contains(stdout, "sha256:") || !strings.Contains(stderr, "not kept: ") || !strings.Contains(stderr, "complete") {
		t.Errorf("code %d, stdout %q, stderr %q", code, stdout, stderr)
	}
	// Three manifests, so one must be named.
	if code, _, stderr := ballast(t, "convert", layout, "oci:"+layout+":v3"); code != exitState || !strings.Contains(stderr, "v2") {
		t.Errorf("code %d, stderr %q", code, stderr)
	}
	if code, _, stderr := ballast(t, "convert", "oci:"+layout+":image", "oci:"+layout+":v3"); code != exitUnsupported || !strings.Contains(stderr, "not a model") {
		t.Errorf("an image as the source: code %d, stderr %q", code, stderr)
	}
}

// TestConvertKeepsTargets checks that SRC itself and a file are replaced by force only.
func TestConvertKeepsTargets(t *testing.T) {
	dir, layout := modelDir(t), "oci:"+filepath.Join(t.TempDir(), "l")+":v1"
	first := converted(t, dir, layout)
	if again := converted(t, dir, layout); again.Result.Digest != first.Result.Digest {
		t.Errorf("again: %s, want %s", again.Result.Digest, first.Result.Digest)
	}
	file := filepath.Join(t.TempDir(), "m.carton")
	pack := append([]string{dir, file, "--as", "carton"}, facts...)
	converted(t, pack...)
	for _, args := range [][]string{{layout, layout, "--as", "image"}, pack, {file, file, "--as", "carton"}} {
		code, stdout, stderr := ballast(t, append([]string{"convert"}, args...)...)
		if code != exitExists || stdout != "" || !strings.Contains(stderr, "choose another name, or replace it with --force\n") {
			t.Errorf("%q: code %d, stdout %q, stderr %q", args, code, stdout, stderr)
		}
		converted(t, append(args, "--force")...)
	}
}

// TestConvertPublication puts what the publisher says into the config, above what README.md says.
func TestConvertPublication(t *testing.T) {
	dir := modelDir(t)
	if err := os.WriteFile(filepath.Join(dir, "README.md"), []byte("---\nlicense: mit\nlanguage: en\n---\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		flags         []string
		license, name string
	}{
		{nil, "mit", ""},
		{[]string{"--license", "Apache-2.0", "--name", "mine", "--version", "7", "--compress", "zstd-seekable"}, "Apache-2.0", "mine"},
		{[]string{"--license", "Apache-2.0", "--name", "mine", "--annotation", "a=b", "--as", "modelpack"}, "Apache-2.0", "mine"},
	} {
		dst := "oci:" + t.TempDir() + "/l:v1"
		if code, _, stderr := ballast(t, append([]string{"convert", dir, dst}, tt.flags...)...); code != 0 || !strings.Contains(stderr, `warning: "w.safetensors": `) {
			t.Fatalf("%q: code %d, %s", tt.flags, code, stderr)
		}
		m, err := new(resolve.Resolver).Open(t.Context(), dst)
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		d := m.Model.Config
		if strings.Join(d.Descriptor.Licenses, " ") != tt.license || d.Descriptor.Name != tt.name || d.Config.Capabilities == nil {
			t.Errorf("%q: %+v", tt.flags, d)
		}
	}
	for _, flags := range [][]string{
		{"--license", "mit", "--as", "image"}, {"--name", "x", "--no-chunks"}, {"--annotation", "a=b"}, {"--annotation", "a", "--as", "image"},
		{"--annotation", "a=b", "--annotation", "a=c", "--as", "image"}, {"--version", "x", "--as", "carton", "--runner", "x", "--runner-framework", "=1.0.0"},
	} {
		if code, _, stderr := ballast(t, append([]string{"convert", dir, "oci:" + t.TempDir() + "/l:v1"}, flags...)...); code != exitUsage {
			t.Errorf("%q: code %d, %s", flags, code, stderr)
		}
	}
}

// TestConvertChosen converts chosen files: inspect shows the files that are converted, in any form,
// and the model differs from the one with all files.
func TestConvertChosen(t *testing.T) {
	dir := modelDir(t)
	choice := []string{"--include", "*.safetensors", "--include", "README*", "--exclude", "*.md"}
	got := packed(t, dir, choice...)
	if len(got) != 1 || got["w.safetensors"] == "" {
		t.Errorf("got %v", got)
	}
	all := converted(t, dir, "oci:"+t.TempDir()+"/l:v1", "--no-chunks")
	some := converted(t, append([]string{dir, "oci:" + t.TempDir() + "/l:v1", "--no-chunks"}, choice...)...)
	if some.Origin.Digest == all.Origin.Digest || some.Result.Digest == all.Result.Digest {
		t.Errorf("some files have the origin and digest of all: %+v", some.Origin)
	}
	code, stdout, stderr := ballast(t, append([]string{"inspect", "--remote", "-o", "json", dir}, choice...)...)
	if code != 0 || !strings.Contains(stdout, some.Result.Digest.String()) || strings.Contains(stdout, "README.md") {
		t.Errorf("inspect: code %d, %s, %s; want %s", code, stdout, stderr, some.Result.Digest)
	}
	for _, tt := range []struct {
		args []string
		code int
	}{
		{[]string{"inspect", "--include", "*", "ghcr.io/a/b:c"}, exitUsage},
		{[]string{"convert", "ghcr.io/a/b:c", "--referrer", "--exclude", "*.md"}, exitUsage},
		{[]string{"convert", "ghcr.io/a/b:c", "--as", "carton", "--referrer"}, exitUsage},
		{[]string{"convert", dir, "oci:" + t.TempDir() + "/l:v1", "--include", "*.gguf"}, exitNotFound},
		{[]string{"convert", dir, "oci:" + t.TempDir() + "/l:v1", "--include", "[z-a]"}, exitInvalid},
	} {
		if code, _, stderr := ballast(t, tt.args...); code != tt.code {
			t.Errorf("%q: code %d, want %d: %s", tt.args, code, tt.code, stderr)
		}
	}
}
