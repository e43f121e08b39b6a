package export_test

import (
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/convert/export"
	"github.com/ballast-dev/ballast/convert/remote"
	"github.com/ballast-dev/ballast/convert/resolve"
	"github.com/containerd/errdefs"
)

// TestTensorLayers checks that tensors in layers of their own are assembled into files, if they are fewer
// or more than an image can have layers.
func TestTensorLayers(t *testing.T) {
	s, c := newServer(t), client(t, remote.Credentials{})
	for _, n := range []int{20, 400} {
		m := converttest.OllamaTensors(converttest.TensorNamed, converttest.Tensors(n, 512))
		ref := s.add(fmt.Sprintf("tensors/%d", n), "1", m.Built)
		for _, form := range forms {
			dir := t.TempDir()
			res, err := export.Run(t.Context(), fromServer(t, c, ref), toLayout(t, dir, "1"), form.o)
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

// TestTooManyFiles checks a model with more files than a converted image can have layers.
func TestTooManyFiles(t *testing.T) {
	dir := t.TempDir()
	files := map[string]string{}
	for i := range 300 {
		files[fmt.Sprintf("%03d.bin", i)] = fmt.Sprint(i)
	}
	write(t, dir, files)
	for _, form := range forms {
		src, err := (&resolve.Resolver{}).Open(t.Context(), dir)
		if err != nil {
			t.Fatal(err)
		}
		out := t.TempDir()
		_, err = export.Run(t.Context(), src, toLayout(t, out, "1"), form.o)
		if form.o.Form == export.FormBallast && form.o.Compress != export.CompressChunked {
			if !errdefs.IsNotImplemented(err) {
				t.Errorf("%s: got %v", form.name, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", form.name, err)
		} else if got := read(t, out, "1"); len(got) != 300 {
			t.Errorf("%s: %d files", form.name, len(got))
		}
	}
}
