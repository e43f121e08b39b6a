package carton_test

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/convert"
	"github.com/ballast-dev/ballast/convert/carton"
	"github.com/ballast-dev/ballast/convert/format"
	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"
)

// TestPackKeepsDescription packs a model and reads what the carton says about it: all that a carton can say.
func TestPackKeepsDescription(t *testing.T) {
	want := convert.ModelDescriptor{
		Name: "a name", Title: "a title", Description: "a description", Licenses: []string{"MIT"},
		SourceURL: "https://source.example", DocURL: "https://home.example",
	}
	path := filepath.Join(t.TempDir(), "m.carton")
	w, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	files := []format.File{{Path: "w", Size: 1, Digest: digest.FromString("w"), Open: func(context.Context) (io.ReadCloser, error) {
		return io.NopCloser(strings.NewReader("w")), nil
	}}}
	facts := format.Facts{Runner: "torchscript", Framework: "=1.12.1"}
	if _, err := carton.Pack(t.Context(), w, files, convert.Config{Descriptor: want}, facts); err != nil {
		t.Fatal(err)
	}
	src, err := carton.OpenFile(path)
	if err != nil {
		t.Fatal(err)
	}
	c, err := carton.Open(t.Context(), src, carton.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	m, err := c.Model(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	got := m.Config.Descriptor
	got.Revision = "" // the hash of the carton
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("description (-want +got):\n%s", d)
	}
}
