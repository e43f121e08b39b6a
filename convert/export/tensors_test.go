package export_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/convert/export"
	"github.com/ballast-dev/ballast/convert/registrytest"
	"github.com/ballast-dev/ballast/convert/remote"
	"github.com/ballast-dev/ballast/convert/resolve"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/containerd/errdefs"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// TestTensorLayers checks that tensors in layers of their own are assembled into files, if they are fewer
// or more than an image can have layers.
func TestTensorLayers(t *testing.T) {
	s, c := registrytest.New(t), client(t, remote.Credentials{})
	for _, n := range []int{20, 400} {
		m := converttest.OllamaTensors(converttest.TensorNamed, converttest.Tensors(n, 512))
		ref := s.Add(fmt.Sprintf("tensors/%d", n), "1", m.Built)
		for _, form := range forms {
			dir := t.TempDir()
			res, err := export.Run(t.Context(), fromServer(t, c, ref), toLayout(t, dir, "1"), form.o)
			if form.o.NoChunks && n > 256 {
				if !errdefs.IsNotImplemented(err) {
					t.Errorf("%d, %s: got %v", n, form.name, err)
				}
				continue
			}
			if err != nil {
				t.Fatalf("%d, %s: %v", n, form.name, err)
			}
			if want := form.o.Form != export.FormBallast || form.o.Compress != "" || n > 256; want != (len(res.Layers) < 20) {
				t.Errorf("%d, %s: %d layers", n, form.name, len(res.Layers))
			}
			files := read(t, dir, "1")
			keep := maps.Clone(m.Files)
			maps.DeleteFunc(files, func(p string, _ converttest.File) bool {
				_, known := keep[p]
				return !known && (strings.HasPrefix(p, "origin/") || strings.HasPrefix(p, "ollama/manifest") || strings.HasPrefix(p, "ollama/config"))
			})
			if err := m.Check(files); err != nil {
				t.Errorf("%d, %s: %v", n, form.name, err)
			}
		}
	}
}

// TestManyFiles checks a model with more files than a converted image can have layers: the smaller ones are in tars.
func TestManyFiles(t *testing.T) {
	dir := t.TempDir()
	files := map[string]string{"empty": "", "large.safetensors": string(weights(9 << 20))}
	for i := range 700 {
		files[fmt.Sprintf("%d/%03d.bin", i%3, i)] = strings.Repeat(fmt.Sprint(i, " "), i*20)
	}
	write(t, dir, files)
	for _, form := range forms {
		src, err := (&resolve.Resolver{}).Open(t.Context(), dir)
		if err != nil {
			t.Fatal(err)
		}
		out := t.TempDir()
		res, err := export.Run(t.Context(), src, toLayout(t, out, "1"), form.o)
		if form.o.Compress == export.CompressSeekable || form.o.NoChunks {
			if !errdefs.IsNotImplemented(err) {
				t.Errorf("%s: got %v", form.name, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", form.name, err)
			continue
		}
		got := read(t, out, "1")
		for name, want := range files {
			if string(got[name].Data) != want {
				t.Errorf("%s: %s has %d bytes", form.name, name, len(got[name].Data))
			}
		}
		if form.o.Form != export.FormBallast || form.o.Compress != "" {
			continue
		}
		if n := len(res.Layers); n > 256 || n < 240 {
			t.Errorf("%s: %d layers", form.name, n)
		}
		var m ocispec.Manifest
		if err := json.Unmarshal(res.Manifest, &m); err != nil {
			t.Fatal(err)
		}
		table, err := filetable.Decode(blobOf(t, out, m.Layers[len(m.Layers)-1].Digest))
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range table.Files {
			switch {
			case f.Type != filetable.TypeReg || f.Size == 0:
			case f.Digest == "":
				t.Errorf("%s: %s has no digest", form.name, f.Path)
			case len(f.Source.Chunks) == 0:
				t.Errorf("%s: %s has no chunks", form.name, f.Path)
			}
		}
	}
}
