package export_test

import (
	"archive/tar"
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/convert/export"
	"github.com/ballast-dev/ballast/convert/registrytest"
	"github.com/ballast-dev/ballast/convert/remote"
	"github.com/ballast-dev/ballast/convert/resolve"
	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"
)

// write creates files; a value that begins with "→" is a symbolic link.
func write(t testing.TB, dir string, files map[string]string) {
	t.Helper()
	for name, content := range files {
		p := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		var err error
		if target, ok := strings.CutPrefix(content, "→"); ok {
			err = os.Symlink(target, p)
		} else {
			err = os.WriteFile(p, []byte(content), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// TestDirectory checks that a directory, the snapshot of a hub's cache with the same files, and a copy
// give equal results.
func TestDirectory(t *testing.T) {
	tensors := string(converttest.Safetensors(converttest.SmallSafetensors(), nil))
	config := `{"architectures":["LlamaForCausalLM"],"model_type":"llama"}`
	plain, cache := t.TempDir(), t.TempDir()
	write(t, plain, map[string]string{
		"model.safetensors": tensors, "config.json": config, "run.py": "x", "sub/copy.json": config,
		".git/HEAD": "ref", "sub/.cache/x": "y",
	})
	if err := os.Chmod(filepath.Join(plain, "run.py"), 0o711); err != nil {
		t.Fatal(err)
	}
	hex := digest.FromString(tensors).Encoded()
	write(t, cache, map[string]string{
		"blobs/" + hex: tensors, "blobs/0a1b": config, "blobs/2c3d": "x",
		"snapshots/r/model.safetensors": "→../../blobs/" + hex, "snapshots/r/config.json": "→../../blobs/0a1b",
		"snapshots/r/run.py": "→../../blobs/2c3d", "snapshots/r/sub/copy.json": "→../config.json",
	})
	if err := os.Chmod(filepath.Join(cache, "blobs/2c3d"), 0o755); err != nil {
		t.Fatal(err)
	}
	want := map[string]converttest.File{}
	for name, content := range map[string]string{"model.safetensors": tensors, "config.json": config, "sub/copy.json": config, "run.py": "x"} {
		want[name] = converttest.File{Data: []byte(content), Mode: 0o644}
	}
	want["run.py"] = converttest.File{Data: []byte("x"), Mode: 0o755}
	for _, form := range forms {
		var first digest.Digest
		for _, dir := range []string{plain, filepath.Join(cache, "snapshots/r")} {
			src, err := (&resolve.Resolver{}).Open(t.Context(), dir)
			if err != nil {
				t.Fatal(err)
			}
			if got := src.Model.Config.Config; got.Format != "safetensors" || got.Architecture == "" {
				t.Errorf("config: got %+v", got)
			}
			out := t.TempDir()
			res, err := export.Run(t.Context(), src, toLayout(t, out, "1"), form.o)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(sums(want), sums(read(t, out, "1"))); diff != "" {
				t.Errorf("%s of %s (-want +got):\n%s", form.name, dir, diff)
			}
			if first == "" {
				first = res.Digest
				if len(res.Losses) < 2 || !strings.Contains(strings.Join(res.Losses, " "), ".git") {
					t.Errorf("losses: %q", res.Losses)
				}
			} else if res.Digest != first {
				t.Errorf("%s: %s, and of the cache %s", form.name, first, res.Digest)
			}
		}
	}
}

// TestOneFile converts a single file.
func TestOneFile(t *testing.T) {
	dir, out := t.TempDir(), t.TempDir()
	write(t, dir, map[string]string{"a.gguf": string(converttest.GGUF(converttest.SmallGGUF()))})
	src, err := (&resolve.Resolver{}).Open(t.Context(), filepath.Join(dir, "a.gguf"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := export.Run(t.Context(), src, toLayout(t, out, "1"), export.Options{Form: export.FormModelPack}); err != nil {
		t.Fatal(err)
	}
	if got := read(t, out, "1"); len(got) != 1 || got["a.gguf"].Data == nil {
		t.Errorf("got %v", sums(got))
	}
}

// TestHostileDirectory checks that links out of the directory and files that are not regular are refused.
func TestHostileDirectory(t *testing.T) {
	elsewhere := t.TempDir()
	write(t, elsewhere, map[string]string{"secret": "s", "blobs/x": "y"})
	for name, tt := range map[string]struct {
		files map[string]string
		is    func(error) bool
	}{
		"link out of the directory":          {map[string]string{"a": "→" + elsewhere + "/secret"}, errdefs.IsInvalidArgument},
		"link to blobs":                      {map[string]string{"a": "→" + elsewhere + "/blobs/x"}, errdefs.IsInvalidArgument},
		"relative link out of the directory": {map[string]string{"d/a": "→../../../../../../../../etc/passwd"}, errdefs.IsInvalidArgument},
		"link in a link":                     {map[string]string{"a": "→b", "b": "→" + elsewhere + "/secret"}, errdefs.IsInvalidArgument},
		"directory":                          {map[string]string{"d/a": "x", "l": "→d"}, errdefs.IsNotImplemented},
		"control character":                  {map[string]string{"a\nb": "x"}, errdefs.IsInvalidArgument},
		"nothing":                            {nil, errdefs.IsNotFound},
	} {
		dir := filepath.Join(t.TempDir(), "m")
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		write(t, dir, tt.files)
		if _, err := (&resolve.Resolver{}).Open(t.Context(), dir); !tt.is(err) {
			t.Errorf("%s: got %v", name, err)
		}
	}
	if _, err := (&resolve.Resolver{}).Open(t.Context(), elsewhere+"/none"); !errdefs.IsNotFound(err) {
		t.Errorf("a missing directory: got %v", err)
	}
}

// TestWrongHubBlob checks that a blob of a hub's cache whose name is not its digest is refused.
func TestWrongHubBlob(t *testing.T) {
	cache, out := t.TempDir(), t.TempDir()
	hex := digest.FromString("right").Encoded()
	write(t, cache, map[string]string{"blobs/" + hex: "wrong", "snapshots/r/w.bin": "→../../blobs/" + hex})
	src, err := (&resolve.Resolver{}).Open(t.Context(), filepath.Join(cache, "snapshots/r"))
	if err != nil {
		t.Fatal(err)
	}
	for _, form := range forms {
		if _, err := export.Run(t.Context(), src, toLayout(t, out, "1"), form.o); !errdefs.IsDataLoss(err) {
			t.Errorf("%s: got %v", form.name, err)
		}
	}
}

// TestWhiteoutNames checks names that mean a deletion in an image.
func TestWhiteoutNames(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, map[string]string{"a/.wh.b": "x", "long/" + strings.Repeat("n", 200) + "/" + strings.Repeat("ü", 100): "y"})
	src, err := (&resolve.Resolver{}).Open(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, form := range forms {
		out := t.TempDir()
		_, err := export.Run(t.Context(), src, toLayout(t, out, "1"), form.o)
		if form.o.Form == export.FormImage {
			if !errdefs.IsNotImplemented(err) {
				t.Errorf("image: got %v", err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", form.name, err)
		} else if got := read(t, out, "1"); len(got) != 2 {
			t.Errorf("%s: got %v", form.name, sums(got))
		}
	}
}

// linked returns a ModelPack with one archive, which has a file, a link to it and directories.
func linked() *converttest.Built {
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, h := range []tar.Header{
		{Name: "dir/", Typeflag: tar.TypeDir, Mode: 0o750},
		{Name: "dir/w.bin", Typeflag: tar.TypeReg, Mode: 0o644, Size: 5},
		{Name: "empty/", Typeflag: tar.TypeDir, Mode: 0o755},
		{Name: "link.bin", Typeflag: tar.TypeSymlink, Linkname: "dir/w.bin"},
	} {
		if err := w.WriteHeader(&h); err != nil {
			panic(err)
		}
		if h.Size > 0 {
			if _, err := w.Write([]byte("bytes")); err != nil {
				panic(err)
			}
		}
	}
	if err := w.Close(); err != nil {
		panic(err)
	}
	return converttest.Make(converttest.Spec{
		ArtifactType: "application/vnd.cncf.model.manifest.v1+json",
		ConfigType:   "application/vnd.cncf.model.config.v1+json", Config: `{}`,
		Layers: []converttest.Layer{{MediaType: "application/vnd.cncf.model.weight.v1.tar", Data: buf.String()}},
	})
}

// TestLinks converts an archive with links and directories.
func TestLinks(t *testing.T) {
	s, c := registrytest.New(t), client(t, remote.Credentials{})
	b := linked()
	ref := s.Add("m", "1", b)
	for _, form := range forms {
		out := t.TempDir()
		res, err := export.Run(t.Context(), fromServer(t, c, ref), toLayout(t, out, "1"), form.o)
		if err != nil {
			t.Errorf("%s: %v", form.name, err)
			continue
		}
		got := sums(read(t, out, "1"))
		if form.o.Form == export.FormBallast || form.o.Tar || form.o.Form == export.FormImage {
			if len(got) != 1 {
				t.Errorf("%s: got %v", form.name, got)
			}
			continue
		}
		if got["dir/w.bin"] == "" || got["link.bin"] != got["dir/w.bin"] || len(got) != 2 {
			t.Errorf("%s: got %v", form.name, got)
		}
		if !strings.Contains(strings.Join(res.Losses, " "), "link.bin") {
			t.Errorf("%s: losses %q", form.name, res.Losses)
		}
	}
}

// TestAdviceForManyFiles checks that the error for too many files names what has room for them, and comes
// before anything is sent.
func TestAdviceForManyFiles(t *testing.T) {
	dir, made := t.TempDir(), 0
	for _, tt := range []struct {
		files int
		o     export.Options
		want  string // "" if there is room
	}{
		{300, export.Options{}, ""},
		{300, export.Options{NoChunks: true}, "has 300 blobs, and a converted image has layers for 256: it can be packed, but not with --no-chunks"},
		{300, export.Options{Compress: export.CompressSeekable}, "write it with --compress zstd-chunked, or take fewer files"},
		{300, export.Options{Compress: export.CompressChunked}, ""},
		{300, export.Options{Form: export.FormModelPack}, ""},
		{8900, export.Options{Form: export.FormCNAI}, "for 8900 files, and registries take 4194304"},
		{12000, export.Options{}, ""},
		{12000, export.Options{Form: export.FormModelPack}, "for 12000 files, and registries take 4194304; write it --as image, or take fewer files"},
		{12000, export.Options{Form: export.FormImage}, ""},
	} {
		for ; made < tt.files; made++ {
			if err := os.WriteFile(fmt.Sprintf("%s/a-name-of-ordinary-length-%05d.json", dir, made), fmt.Append(nil, made), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		src, err := (&resolve.Resolver{}).Open(t.Context(), dir)
		if err != nil {
			t.Fatal(err)
		}
		tt.o.DryRun = true
		_, err = export.Run(t.Context(), src, nil, tt.o)
		if tt.want == "" && err != nil || tt.want != "" && (!errdefs.IsNotImplemented(err) || !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("%d files, %+v: got %v, want %q", tt.files, tt.o, err, tt.want)
		}
		if err := src.Close(); err != nil {
			t.Error(err)
		}
	}
}
