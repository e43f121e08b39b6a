package image_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/convert"
	"github.com/ballast-dev/ballast/convert/carton"
	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/convert/formats"
	"github.com/ballast-dev/ballast/convert/image"
	"github.com/ballast-dev/ballast/convert/mediatype"
	"github.com/ballast-dev/ballast/convert/ollama"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// rebuilt returns the documents of the origin that a converted image has by itself.
func rebuilt(t *testing.T, im *image.Image) convert.Documents {
	t.Helper()
	table, err := filetable.Decode(im.Table)
	if err != nil {
		t.Fatal(err)
	}
	docs, err := image.Documents(im.Config, table)
	if err != nil {
		t.Fatal(err)
	}
	return docs
}

// wantOrigin compares the documents that an image has with those that it was made from.
func wantOrigin(t *testing.T, im *image.Image, b *converttest.Built) {
	t.Helper()
	docs := rebuilt(t, im)
	if got := digest.FromBytes(docs.Manifest); got != b.Digest() || !bytes.Equal(docs.Manifest, b.Manifest) {
		t.Errorf("manifest: got %s, want %s", got, b.Digest())
	}
	m, err := convert.ParseManifest(b.Manifest)
	if err != nil {
		t.Fatal(err)
	}
	if want := m.Config.Digest; want != "" && digest.FromBytes(docs.Config) != want {
		t.Errorf("config: got %q, want %s", docs.Config, want)
	}
}

// TestDocuments rebuilds the manifest and the config of the origin from the converted
// image alone, for every format.
func TestDocuments(t *testing.T) {
	t.Parallel()
	all := append(converttest.All(converttest.Files([]byte("GGUF and some weights"))), manyLayers(1209))
	made := map[mediatype.Format]bool{}
	for i, b := range all {
		t.Run(fmt.Sprint(i, b.Name), func(t *testing.T) {
			m, im := build(t, b)
			wantOrigin(t, im, b)
			made[mediatype.Format(m.Table.Origin.Format)] = true
		})
	}
	for _, f := range parsers {
		if f.Parse != nil && f.Archives == nil && f.Name != mediatype.FormatTitled && !made[f.Name] {
			t.Errorf("no model of format %s", f.Name)
		}
	}
}

// TestDocumentsOfOllamaList rebuilds a list, the manifest of the model in it, and its config.
func TestDocumentsOfOllamaList(t *testing.T) {
	t.Parallel()
	child := converttest.Ollama(converttest.Files([]byte("GGUF")), converttest.OllamaConfigNew)
	b := converttest.OllamaList(0, converttest.ListEntry{Built: child, Runner: ollama.RunnerGGML, Inline: true})
	ps := formats.All()
	m, err := ps.Parse(context.Background(), converttest.NewArtifact(b))
	if err != nil {
		t.Fatal(err)
	}
	im, err := image.Build(m)
	if err != nil {
		t.Fatal(err)
	}
	wantOrigin(t, im, b)
	docs := rebuilt(t, im)
	if !bytes.Equal(docs.Child, child.Manifest) {
		t.Errorf("child: got %q", docs.Child)
	}
	if parsed, _ := convert.ParseManifest(child.Manifest); digest.FromBytes(docs.Config) != parsed.Config.Digest {
		t.Errorf("config: got %q", docs.Config)
	}
}

// TestDocumentsOfCarton rebuilds the MANIFEST of a carton, and the manifest of an artifact that a
// carton is in.
func TestDocumentsOfCarton(t *testing.T) {
	t.Parallel()
	good := converttest.GoodCarton([]byte("weights"))
	p := good.Bytes()
	c, err := carton.Open(context.Background(), carton.At(bytes.NewReader(p), int64(len(p))), carton.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	m, err := c.Model(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	im, err := image.Build(m)
	if err != nil {
		t.Fatal(err)
	}
	if docs := rebuilt(t, im); !bytes.Equal(docs.Manifest, good.ManifestBytes()) {
		t.Errorf("MANIFEST: got %q", docs.Manifest)
	}

	b := converttest.CartonArtifact(good)
	ps := formats.All()
	if m, err = ps.Parse(context.Background(), converttest.NewArtifact(b)); err != nil {
		t.Fatal(err)
	}
	if im, err = image.Build(m); err != nil {
		t.Fatal(err)
	}
	wantOrigin(t, im, b)
}

// TestLargeDocumentIsFile converts a model whose manifest is too large for a config.
func TestLargeDocumentIsFile(t *testing.T) {
	t.Parallel()
	b := converttest.Make(converttest.Spec{
		ArtifactType: mediatype.ModelPackManifest, ConfigType: mediatype.ModelPackConfig, Config: `{"x":"` + strings.Repeat("c", convert.MaxKept) + `"}`,
		Annotations: map[string]string{"x": strings.Repeat("m", convert.MaxKept)},
		Layers:      []converttest.Layer{{MediaType: "application/vnd.cncf.model.weight.v1.raw", Data: "x", Annotations: converttest.At("origin")}},
	})
	m, im := build(t, b)
	wantOrigin(t, im, b)
	if len(im.Config) > convert.MaxKept || len(im.Manifest) > convert.MaxKept {
		t.Errorf("config of %d bytes, manifest of %d", len(im.Config), len(im.Manifest))
	}
	want := map[string]string{"origin": "reg", "origin-2/manifest.json": "reg", "origin-2/config.json": "reg"}
	got := map[string]string{}
	for _, f := range m.Table.Files {
		got[f.Path] = f.Type
	}
	if !maps.Equal(got, want) {
		t.Errorf("files: got %v, want %v", got, want)
	}
}

// TestWrongDocuments puts another manifest into an image; it must not be taken for the origin.
func TestWrongDocuments(t *testing.T) {
	t.Parallel()
	m, _ := build(t, converttest.ModelPackRaw(converttest.Files([]byte("GGUF"))))
	m.Documents.Manifest = []byte(`{"schemaVersion":2,"layers":[]}`)
	im, err := image.Build(m)
	if err != nil {
		t.Fatal(err)
	}
	if docs, err := image.Documents(im.Config, &m.Table); !errdefs.IsNotFound(err) {
		t.Errorf("got %q, %v; want errdefs.ErrNotFound", docs.Manifest, err)
	}
	if _, err := image.Documents([]byte("["), &m.Table); !errdefs.IsInvalidArgument(err) {
		t.Errorf("a config that is none: got %v", err)
	}
}

// TestEmptyBlobsHaveNoLayers converts a model with an empty file: it is in the table, and the image
// has no layer for it.
func TestEmptyBlobsHaveNoLayers(t *testing.T) {
	t.Parallel()
	raw := func(path, data string) converttest.Layer {
		return converttest.Layer{MediaType: "application/vnd.cncf.model.weight.v1.raw", Data: data, Annotations: converttest.At(path)}
	}
	for _, layers := range [][]converttest.Layer{{raw("a", "x"), raw("empty", ""), raw("b", "y")}, {raw("empty", "")}} {
		m, im := build(t, converttest.Make(converttest.Spec{ArtifactType: mediatype.ModelPackManifest, Layers: layers, ConfigType: mediatype.ModelPackConfig, Config: "{}"}))
		var man ocispec.Manifest
		var cfg ocispec.Image
		if err := json.Unmarshal(im.Manifest, &man); err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(im.Config, &cfg); err != nil {
			t.Fatal(err)
		}
		if got, want := len(man.Layers), len(layers); got != want { // without the empty one, with the table
			t.Errorf("got %d layers, want %d", got, want)
		}
		if len(cfg.RootFS.DiffIDs) != len(man.Layers) {
			t.Errorf("got %d diffIDs for %d layers", len(cfg.RootFS.DiffIDs), len(man.Layers))
		}
		for _, l := range man.Layers {
			if l.Size == 0 {
				t.Errorf("layer %s is empty", l.Digest)
			}
		}
		if len(m.Table.Blobs) != len(layers) || len(m.Table.Files) != len(layers) {
			t.Errorf("table: got %d blobs, %d files", len(m.Table.Blobs), len(m.Table.Files))
		}
	}
}

// TestContextLength checks the annotation for origins with a context length.
func TestContextLength(t *testing.T) {
	t.Parallel()
	for name, spec := range map[string]converttest.Spec{
		"ollama": {MediaType: mediatype.DockerManifest, ConfigType: mediatype.DockerConfig, Config: `{"model_format":"gguf","context_length":8192}`,
			Layers: []converttest.Layer{{MediaType: mediatype.OllamaModel, Data: "x"}}},
		"docker-ai": {ConfigType: mediatype.DockerAIConfigV01, Config: `{"config":{"format":"gguf","context_size":8192}}`,
			Layers: []converttest.Layer{{MediaType: mediatype.DockerAIGGUF, Data: "x"}}},
	} {
		m, im := build(t, converttest.Make(spec))
		var man ocispec.Manifest
		if err := json.Unmarshal(im.Manifest, &man); err != nil {
			t.Fatal(err)
		}
		if got := image.ContextLength(man.Annotations); m.ContextLength != 8192 || got != 8192 {
			t.Errorf("%s: got %d in the model, %d in the image", name, m.ContextLength, got)
		}
	}
	for _, s := range []string{"", "x", "-1"} {
		if got := image.ContextLength(map[string]string{mediatype.AnnotationContextLength: s}); got != 0 {
			t.Errorf("%q: got %d", s, got)
		}
	}
}
