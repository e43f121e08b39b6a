package kitops_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/convert"
	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/convert/formats"
	"github.com/ballast-dev/ballast/convert/mediatype"
	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"
)

var parsers = formats.All()

// TestKitOps parses complete kits, with compressed and uncompressed layers.
func TestKitOps(t *testing.T) {
	t.Parallel()
	for _, build := range []func([]converttest.File) *converttest.Built{converttest.KitOps, converttest.KitOpsGzip} {
		b := build(converttest.Files([]byte("GGUF and some weights")))
		t.Run(b.Name, func(t *testing.T) { converttest.TestParser(t, parsers.Parse, b) })
	}
}

// parse parses a kit with the given Kitfile and layers.
func parse(kitfile string, layers ...converttest.Layer) (*convert.Model, *converttest.Built, error) {
	b := converttest.Make(converttest.Spec{
		ArtifactType: "application/vnd.kitops.modelkit.manifest.v1+json",
		ConfigType:   "application/vnd.kitops.modelkit.config.v1+json", Config: kitfile, Layers: layers,
	})
	m, err := parsers.Parse(context.Background(), converttest.NewArtifact(b))
	return m, b, err
}

// layer returns a layer of a kind, with an optional path.
func layer(kind, data, path string) converttest.Layer {
	l := converttest.Layer{MediaType: "application/vnd.kitops.modelkit." + kind, Data: data}
	if path != "" {
		l.Annotations = converttest.At(path)
	}
	return l
}

func tarOf(paths ...string) string {
	var files []converttest.File
	for _, p := range paths {
		files = append(files, converttest.File{Path: p, Data: []byte("data of " + p), Mode: 0o644})
	}
	return string(converttest.Tar(files...))
}

// TestLayers parses kits of all generations and checks the paths and kinds of their files.
func TestLayers(t *testing.T) {
	t.Parallel()
	model := tarOf("m.gguf")
	for _, tt := range []struct {
		name, kitfile string
		layers        []converttest.Layer
		want          []string // paths, except that of the Kitfile
		kinds         []mediatype.Kind
	}{
		{
			name:    "tars with whole paths",
			kitfile: fmt.Sprintf(`{"model":{"path":"models/m.gguf","digest":%q},"docs":[{"path":"."}]}`, digest.FromString(tarOf("models/m.gguf"))),
			layers:  []converttest.Layer{layer("model.v1.tar", tarOf("models/m.gguf"), ""), layer("docs.v1.tar", tarOf("README.md", "docs/a.md"), "")},
			want:    []string{"README.md", "docs/a.md", "models/m.gguf"},
			kinds:   []mediatype.Kind{mediatype.KindWeight, mediatype.KindDoc},
		},
		{
			name:    "an early kit, with paths from where the Kitfile says",
			kitfile: `{"model":{"path":"./models/m.gguf","parts":[{"path":"lora/a.safetensors"},{"path":"tok.json"}]}}`,
			layers:  []converttest.Layer{layer("model.v1.tar", model, ""), layer("modelpart.v1.tar", tarOf("a.safetensors"), ""), layer("modelpart.v1.tar", tarOf("tok.json"), "")},
			want:    []string{"lora/a.safetensors", "models/m.gguf", "tok.json"},
			kinds:   []mediatype.Kind{mediatype.KindWeight, mediatype.KindWeight, mediatype.KindWeightConfig},
		},
		{
			name: "raw files",
			kitfile: fmt.Sprintf(`{"model":{"path":"m.gguf","digest":%q},"mcpServers":[{"name":"x","path":"server.mcpb","digest":%q}]}`,
				digest.FromString("GGUF"), digest.FromString("PK")),
			layers: []converttest.Layer{layer("model.v1.raw", "GGUF", "dir/m.gguf"), layer("mcpb.v1.raw", "PK", "")},
			want:   []string{"dir/m.gguf", "server.mcpb"},
			kinds:  []mediatype.Kind{mediatype.KindWeight, mediatype.KindCode},
		},
		{
			name:    "code, a prompt and a dataset, and one that is elsewhere",
			kitfile: `{"code":[{"path":"src"}],"prompts":[{"path":"p.md"}],"datasets":[{"path":"far","remotePath":"s3://a/b"},{"path":"near/d.csv"}]}`,
			layers:  []converttest.Layer{layer("code.v1.tar", tarOf("src/a.py"), ""), layer("dataset.v1.tar", tarOf("d.csv"), ""), layer("code.v1.tar", tarOf("p.md"), "")},
			want:    []string{"near/d.csv", "p.md", "src/a.py"},
			kinds:   []mediatype.Kind{mediatype.KindCode, mediatype.KindDataset, mediatype.KindCode},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			m, b, err := parse(tt.kitfile, tt.layers...)
			if err != nil {
				t.Fatal(err)
			}
			files, err := converttest.Extract(m, b.Blobs)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, f := range m.Table.Files {
				if _, ok := files[f.Path]; ok && f.Path != "Kitfile" {
					got = append(got, f.Path)
				}
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("files (-want +got):\n%s", diff)
			}
			var kinds []mediatype.Kind
			for _, l := range m.Layers {
				kinds = append(kinds, l.Kind)
			}
			if diff := cmp.Diff(tt.kinds, kinds); diff != "" {
				t.Errorf("kinds (-want +got):\n%s", diff)
			}
		})
	}
}

// TestKitfile checks the config and the Kitfile of a model.
func TestKitfile(t *testing.T) {
	t.Parallel()
	d := digest.FromString(tarOf("m.gguf"))
	kitfile := fmt.Sprintf(`{"manifestVersion":"1.0.0","package":{"name":"n","version":"2","description":"a <b>","license":"MIT","authors":["A","B"]},`+
		`"model":{"name":"m","path":"m.gguf","format":"gguf","license":"Apache-2.0","digest":%[1]q,"diffId":%[1]q,"parameters":{"digest":"stays","n":1.50}}}`, d)
	m, b, err := parse(kitfile, layer("model.v1.tar", tarOf("m.gguf"), ""))
	if err != nil {
		t.Fatal(err)
	}
	want := convert.Config{
		Descriptor: convert.ModelDescriptor{Name: "n", Version: "2", Description: "a <b>", Authors: []string{"A", "B"}, Licenses: []string{"Apache-2.0", "MIT"}},
		ModelFS:    convert.ModelFS{Type: "layers", DiffIDs: []digest.Digest{d}},
		Config:     convert.ModelConfig{Format: "gguf"},
	}
	if diff := cmp.Diff(want, m.Config); diff != "" {
		t.Errorf("config (-want +got):\n%s", diff)
	}
	if string(m.Documents.Config) != kitfile || string(m.Documents.Manifest) != string(b.Manifest) {
		t.Error("the documents of the origin are others")
	}
	files, err := converttest.Extract(m, b.Blobs)
	if err != nil {
		t.Fatal(err)
	}
	text := string(files["Kitfile"].Data)
	if !json.Valid([]byte(text)) || strings.Contains(text, d.String()) || strings.Contains(text, "diffId") {
		t.Errorf("Kitfile:\n%s", text)
	}
	for _, word := range []string{`"stays"`, "1.50", "a <b>", `"manifestVersion": "1.0.0"`} {
		if !strings.Contains(text, word) {
			t.Errorf("Kitfile without %s:\n%s", word, text)
		}
	}
}

// TestRefused parses kits that must be refused, with a word of the error.
func TestRefused(t *testing.T) {
	t.Parallel()
	model := layer("model.v1.tar", tarOf("m.gguf"), "m.gguf")
	for _, tt := range []struct {
		name, kitfile string
		layers        []converttest.Layer
		want          error
		word          string
	}{
		{"no layers", `{}`, nil, errdefs.ErrInvalidArgument, "no layers"},
		{"a model in another kit", `{"model":{"path":"ghcr.io/a/b:v1"}}`, []converttest.Layer{layer("docs.v1.tar", tarOf("a"), "")}, errdefs.ErrNotImplemented, "ghcr.io/a/b:v1"},
		{"a compressed raw layer", `{}`, []converttest.Layer{layer("model.v1.raw+gzip", "x", "a")}, errdefs.ErrNotImplemented, "raw+gzip"},
		{"a kind that is not known", `{}`, []converttest.Layer{layer("soul.v1.tar", tarOf("a"), "")}, errdefs.ErrNotImplemented, "soul"},
		{"a later version", `{}`, []converttest.Layer{layer("model.v2.tar", tarOf("a"), "")}, errdefs.ErrNotImplemented, "unknown version v2"},
		{"a layer of another format", `{}`, []converttest.Layer{{MediaType: "application/vnd.oci.image.layer.v1.tar", Data: tarOf("a")}}, errdefs.ErrNotImplemented, "not a layer of a ModelKit"},
		{"a raw layer without a path", `{}`, []converttest.Layer{layer("model.v1.raw", "x", "")}, errdefs.ErrInvalidArgument, "Kitfile"},
		{"a path that leaves the kit", `{}`, []converttest.Layer{layer("model.v1.raw", "x", "../x")}, errdefs.ErrInvalidArgument, "../x"},
		{"a path of an early kit that leaves it", `{"model":{"path":"../m.gguf"}}`, []converttest.Layer{layer("model.v1.tar", tarOf("m.gguf"), "")}, errdefs.ErrInvalidArgument, "../m.gguf"},
		{"a member that leaves the kit", `{}`, []converttest.Layer{layer("model.v1.tar", tarOf("../../x"), "")}, errdefs.ErrInvalidArgument, ".."},
		{"a digest that is none", `{"model":{"path":"m.gguf","digest":"sha256:x"}}`, []converttest.Layer{model}, errdefs.ErrInvalidArgument, "digest of"},
		{"a diffID of another layer", fmt.Sprintf(`{"model":{"path":"m.gguf","digest":%q,"diffId":%q}}`, digest.FromString(model.Data), digest.FromString("x")),
			[]converttest.Layer{model}, errdefs.ErrInvalidArgument, "diffID"},
		{"a Kitfile that is none", `[]`, []converttest.Layer{model}, errdefs.ErrInvalidArgument, "config"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			_, _, err := parse(tt.kitfile, tt.layers...)
			if !errors.Is(err, tt.want) || !strings.Contains(err.Error(), tt.word) {
				t.Errorf("got %v; want %v with %q", err, tt.want, tt.word)
			}
		})
	}
}

func FuzzKitOps(f *testing.F) {
	tar := tarOf("a", "b/c")
	for _, s := range []string{
		`{"model":{"path":"m.gguf","parts":[{"path":"a"}]},"code":[{"path":"."}]}`, `{"model":{"path":"../x"}}`, `{"model":[]}`,
		`{"model":{"parameters":{"a":[1e400,{"digest":"x"}]}}}`, `{"datasets":[{"remotePath":"s3://x"}],"docs":[null]}`, `{"code":{}}`, "",
	} {
		f.Add(s, "model.v1.tar", tar, "a")
		f.Add(s, "modelpart.v1.raw", "x", "")
	}
	f.Fuzz(func(t *testing.T, kitfile, kind, data, path string) {
		m, b, err := parse(kitfile, layer(kind, data, path))
		if err != nil {
			return
		}
		if err := m.Table.Validate(); err != nil {
			t.Fatal(err)
		}
		if m.Table.Origin.Digest != b.Digest() {
			t.Fatalf("origin %s", m.Table.Origin.Digest)
		}
	})
}
