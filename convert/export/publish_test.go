package export_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/convert"
	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/convert/export"
	"github.com/ballast-dev/ballast/convert/format"
	"github.com/ballast-dev/ballast/convert/resolve"
	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
)

// opened returns the source of a directory, of which some files are chosen.
func opened(t *testing.T, dir string, c convert.Choice) *resolve.Source {
	t.Helper()
	src, err := new(resolve.Resolver).Open(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { src.Close() })
	if err := src.Choose(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	return src
}

// TestPointers: a pointer of Git LFS is not published as if it were the file.
func TestPointers(t *testing.T) {
	dir := t.TempDir()
	pointer := fmt.Sprintf("version https://git-lfs.github.com/spec/v1\noid sha256:%064d\nsize 4976698672\n", 0)
	write(t, dir, map[string]string{"sub/model.bin": pointer, "config.json": "{}", "about-lfs.md": pointer + strings.Repeat("x", 1024)})
	for _, form := range forms {
		_, err := export.Run(t.Context(), opened(t, dir, convert.Choice{}), toLayout(t, t.TempDir(), "1"), form.o)
		if !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), `"sub/model.bin" is a pointer of Git LFS`) || !strings.Contains(err.Error(), "git lfs pull") {
			t.Errorf("%s: %v", form.name, err)
		}
		if _, err := export.Run(t.Context(), opened(t, dir, convert.Choice{Exclude: []string{"*.bin"}}), toLayout(t, t.TempDir(), "1"), form.o); err != nil {
			t.Errorf("%s, without it: %v", form.name, err)
		}
	}
	if _, _, err := export.Files(t.Context(), opened(t, dir, convert.Choice{}), export.Options{}, nil); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("packed: %v", err)
	}
}

// TestProblems: every form says once what is wrong with the files, and writes them.
func TestProblems(t *testing.T) {
	dir := t.TempDir()
	tensors := converttest.Safetensors(converttest.SmallSafetensors(), nil)
	write(t, dir, map[string]string{"model-00001-of-00003.safetensors": string(tensors), "model-00002-of-00003.safetensors": string(tensors[:30]), "a.gguf": "<html>"})
	check := func(name string, problems []string) {
		t.Helper()
		if len(problems) != 3 || !strings.HasPrefix(problems[0], `"a.gguf": `) || !strings.HasPrefix(problems[1], `"model-00002-of-00003.safetensors": `) ||
			problems[2] != `"model-00003-of-00003.safetensors": missing, with 1 of 3 files of its set` {
			t.Errorf("%s: problems %q", name, problems)
		}
	}
	for _, form := range forms {
		res, err := export.Run(t.Context(), opened(t, dir, convert.Choice{}), toLayout(t, t.TempDir(), "1"), form.o)
		if err != nil {
			t.Fatal(err)
		}
		check(form.name, res.Problems)
	}
	_, problems, err := export.Files(t.Context(), opened(t, dir, convert.Choice{}), export.Options{}, func([]format.File) error { return nil })
	if err != nil {
		t.Fatal(err)
	}
	check("packed", problems)
}

// TestChosenIsDescribed: the config is that of the chosen weights, also without chunks, and from a registry.
func TestChosenIsDescribed(t *testing.T) {
	dir, gguf := t.TempDir(), string(converttest.GGUF(converttest.SmallGGUF()))
	write(t, dir, map[string]string{
		"README.md": "---\nlicense: mit\n---\n", "model.safetensors": string(converttest.Safetensors(converttest.SmallSafetensors(), nil)), "m.gguf": gguf, "copy/m.gguf": gguf,
	})
	for _, o := range []export.Options{{}, {NoChunks: true}, {Form: export.FormModelPack}} {
		l := toLayout(t, t.TempDir(), "1")
		if _, err := export.Run(t.Context(), opened(t, dir, convert.Choice{Include: []string{"*.gguf"}}), l, o); err != nil {
			t.Fatal(err)
		}
		got := fromLayout(t, l).Model.Config
		got.Config.Capabilities = nil
		want := convert.ModelConfig{Architecture: "llama", Format: "gguf", ParamSize: "8.3K", Quantization: "Q8_0"}
		if d := cmp.Diff(got.Config, want); d != "" || len(got.Descriptor.Licenses) != 1 || got.Descriptor.Licenses[0] != "mit" {
			t.Errorf("%+v: licences %q; config (-got +want):\n%s", o, got.Descriptor.Licenses, d)
		}
	}
	all := toLayout(t, t.TempDir(), "1")
	if _, err := export.Run(t.Context(), opened(t, dir, convert.Choice{}), all, export.Options{Form: export.FormModelPack}); err != nil {
		t.Fatal(err)
	}
	some := fromLayout(t, all)
	if err := some.Choose(t.Context(), convert.Choice{Include: []string{"model.safetensors"}}); err != nil {
		t.Fatal(err)
	}
	if k := some.Model.Config.Config; k.Quantization != "" || k.ParamSize != "" || k.Format != "" {
		t.Errorf("some weights have the config of all: %+v", k)
	}
}

// TestAnnotations: those of the publisher are in the manifest, and change nothing that readers rely on.
func TestAnnotations(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, map[string]string{"config.json": "{}"})
	for _, form := range []export.Form{export.FormModelPack, export.FormCNAI, export.FormImage} {
		var out string
		run := func(key string) error {
			out = t.TempDir()
			_, err := export.Run(t.Context(), opened(t, dir, convert.Choice{}), toLayout(t, out, "1"), export.Options{Form: form, Annotations: map[string]string{key: "a=b"}})
			return err
		}
		for _, key := range []string{"dev.ballast.origin.digest", "org.cncf.model.filepath", "org.cnai.model.filepath"} {
			if err := run(key); !errdefs.IsInvalidArgument(err) {
				t.Errorf("%s: %s: %v", form, key, err)
			}
		}
		if err := run("org.example.x"); err != nil {
			t.Fatal(err)
		}
		index, err := os.ReadFile(filepath.Join(out, "index.json"))
		if err != nil {
			t.Fatal(err)
		}
		_, hex, _ := strings.Cut(string(index), `"sha256:`)
		p, err := os.ReadFile(filepath.Join(out, "blobs/sha256", hex[:64]))
		if err != nil || !strings.Contains(string(p), `"org.example.x":"a=b"`) {
			t.Errorf("%s: %v: %s", form, err, p)
		}
	}
	if err := (export.Options{Annotations: map[string]string{"a": "b"}}).Check(); !errdefs.IsInvalidArgument(err) {
		t.Errorf("an image of nodes: %v", err)
	}
}
