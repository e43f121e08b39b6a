package convert_test

import (
	"testing"

	"github.com/ballast-dev/ballast/convert"
	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/convert/formats"
	"github.com/ballast-dev/ballast/convert/image"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
)

// chosen returns the paths of the files of a model that a choice selects.
func chosen(t *testing.T, m *convert.Model, c convert.Choice) (paths []string, of *convert.Model) {
	t.Helper()
	of, err := c.Of(m)
	if errdefs.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		t.Fatalf("%+v: %v", c, err)
	}
	for _, f := range of.Table.Files {
		paths = append(paths, f.Path)
	}
	return paths, of
}

// TestChoice matches patterns as the client of the Hub does.
func TestChoice(t *testing.T) {
	t.Parallel()
	m := &convert.Model{Table: filetable.Table{Version: filetable.Version}}
	for _, p := range []string{"README.md", "a[1].txt", "onnx", "onnx/deep/m.onnx", "onnx/m.onnx", "w-1.bin", "w-2.bin", "wü.bin"} {
		f := filetable.File{Path: p, Type: filetable.TypeReg, Source: &filetable.Source{Inline: []byte{}}}
		if p == "onnx" {
			f = filetable.File{Path: p, Type: filetable.TypeDir}
		}
		m.Table.Files = append(m.Table.Files, f)
	}
	for _, tt := range []struct{ include, exclude, want []string }{
		{[]string{"*.onnx"}, nil, []string{"onnx", "onnx/deep/m.onnx", "onnx/m.onnx"}}, // * crosses slashes
		{[]string{"onnx/"}, []string{"*/deep/*"}, []string{"onnx", "onnx/m.onnx"}},
		{nil, []string{"onnx/", "w*", "a*"}, []string{"README.md"}},
		{[]string{"w-?.bin"}, nil, []string{"w-1.bin", "w-2.bin"}},
		{[]string{"w?.bin"}, nil, []string{"wü.bin"}},
		{[]string{"w-[2-9].bin"}, nil, []string{"w-2.bin"}},
		{[]string{"w-[!2].bin"}, nil, []string{"w-1.bin"}},
		{[]string{"a[[]1].txt"}, nil, []string{"a[1].txt"}},
		{[]string{"a[*"}, nil, []string{"a[1].txt"}},
		{[]string{"readme.md", "README"}, nil, nil}, // case counts, and all of a path
		{[]string{"*"}, []string{"*"}, nil},
	} {
		got, _ := chosen(t, m, convert.Choice{Include: tt.include, Exclude: tt.exclude})
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%q without %q (-want +got):\n%s", tt.include, tt.exclude, diff)
		}
	}
	for _, p := range []string{"", "[z-a]"} {
		if _, err := (convert.Choice{Exclude: []string{p}}).Of(m); !errdefs.IsInvalidArgument(err) {
			t.Errorf("pattern %q: %v", p, err)
		}
	}
}

// TestChoiceHasItsOwnOrigin chooses from models of all formats: what is chosen is a whole model, and never taken for
// the one that it is from.
func TestChoiceHasItsOwnOrigin(t *testing.T) {
	t.Parallel()
	for _, b := range converttest.All(converttest.Files(weights())) {
		m, err := formats.All().Parse(t.Context(), converttest.NewArtifact(b))
		if err != nil {
			t.Fatal(err)
		}
		if same, err := (convert.Choice{}).Of(m); err != nil || same != m {
			t.Errorf("%s: no choice: %v", b.Name, err)
		}
		c := convert.Choice{Exclude: []string{"*LICENSE*"}}
		if len(m.Table.Unpacks) > 0 {
			if _, err := c.Of(m); !errdefs.IsNotImplemented(err) {
				t.Errorf("%s: of an archive whose files are not known: %v", b.Name, err)
			}
			continue
		}
		paths, of := chosen(t, m, c)
		if len(paths) == 0 || of.Table.Origin.Digest == m.Table.Origin.Digest || of.Table.Origin.Format != "files" || of.Documents.Manifest != nil {
			t.Fatalf("%s: %q of origin %+v", b.Name, paths, of.Table.Origin)
		}
		if err := of.Table.Validate(); err != nil {
			t.Errorf("%s: %v", b.Name, err)
		}
		if _, err := image.Build(of); err != nil {
			t.Errorf("%s: %v", b.Name, err)
		}
		files, err := converttest.Extract(of, b.Blobs)
		if err != nil {
			t.Fatal(err)
		}
		for path, f := range files {
			if diff := cmp.Diff(b.Files[path], f); diff != "" {
				t.Errorf("%s: %s (-want +got):\n%s", b.Name, path, diff)
			}
		}
		if _, again := chosen(t, m, c); again.Table.Origin != of.Table.Origin {
			t.Errorf("%s: chosen again: %v", b.Name, again.Table.Origin)
		}
		if _, other := chosen(t, m, convert.Choice{Include: paths[:1]}); len(paths) > 1 && other.Table.Origin == of.Table.Origin {
			t.Errorf("%s: another choice has the same origin", b.Name)
		}
	}
}

func FuzzChoice(f *testing.F) {
	for _, p := range []string{"*", "a/", "[!a-z]?", "[]", "[!]", "[]]", "a[", "[[:alpha:]]", `\`, "(?i)x", "[z-a]", "\xff"} {
		f.Add(p, "a/b")
	}
	f.Add("x", "/") // it has no directory above that is another
	f.Fuzz(func(t *testing.T, pattern, path string) {
		m := convert.Model{Table: filetable.Table{Version: filetable.Version}}
		m.Table.Files = []filetable.File{{Path: path, Type: filetable.TypeReg, Source: &filetable.Source{Inline: []byte{}}}}
		_, err := (convert.Choice{Include: []string{pattern, "*"}}).Of(&m)
		if err != nil && !errdefs.IsInvalidArgument(err) {
			t.Fatal(err)
		}
	})
}
