package convert_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/convert"
	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/convert/mediatype"
	"github.com/ballast-dev/ballast/store/filetable"
)

// model builds a model of raw files at the given paths, with generated files.
func model(t *testing.T, paths []string, generated ...string) (*convert.Model, error) {
	t.Helper()
	var layers []converttest.Layer
	for i := range paths {
		layers = append(layers, converttest.Layer{MediaType: "a/b", Data: fmt.Sprint("content ", i)})
	}
	built := converttest.Make(converttest.Spec{ConfigType: "a/c", Config: "{}", Layers: layers})
	m, err := convert.ParseManifest(built.Manifest)
	if err != nil {
		t.Fatal(err)
	}
	b := convert.NewBuilder(m, mediatype.FormatOllama)
	for i, p := range paths {
		if err := b.Add(i, convert.Place{Kind: mediatype.KindWeight, Path: p}); err != nil {
			t.Fatal(err)
		}
	}
	for _, p := range generated {
		b.Generate(p, []byte("generated "+p))
	}
	return b.Model(context.Background(), converttest.NewArtifact(built), convert.Config{})
}

func TestGeneratedFileIsRenamedOnConflict(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name      string
		paths     []string
		generated []string
		want      []string // generated files
	}{
		{"nothing in the way", []string{"model.gguf"}, []string{"Modelfile", "ollama/manifest.json"}, []string{"Modelfile", "ollama/manifest.json"}},
		{"a file", []string{"Modelfile"}, []string{"Modelfile"}, []string{"Modelfile-2"}},
		{"two files", []string{"Modelfile", "Modelfile-2"}, []string{"Modelfile"}, []string{"Modelfile-3"}},
		{"a directory", []string{"Modelfile/x"}, []string{"Modelfile"}, []string{"Modelfile-2"}},
		{"a file where the directory would be", []string{"ollama"}, []string{"ollama/config.json", "ollama/manifest.json"}, []string{"ollama-2/config.json", "ollama-2/manifest.json"}},
		{"a file in the directory", []string{"ollama/manifest.json"}, []string{"ollama/manifest.json"}, []string{"ollama/manifest.json-2"}},
		{"another generated file", []string{"x"}, []string{"Modelfile", "Modelfile"}, []string{"Modelfile", "Modelfile-2"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m, err := model(t, tt.paths, tt.generated...)
			if err != nil {
				t.Fatal(err)
			}
			var got, source []string
			for _, f := range m.Table.Files {
				if f.Source.Blob == "" {
					got = append(got, f.Path)
				} else {
					source = append(source, f.Path)
				}
			}
			slices.Sort(tt.paths)
			if !slices.Equal(got, tt.want) || !slices.Equal(source, tt.paths) {
				t.Errorf("got generated %q and files %q, want %q and %q", got, source, tt.want, tt.paths)
			}
		})
	}
}

func TestLayersMatchBlobs(t *testing.T) {
	t.Parallel()
	m, err := model(t, []string{"z", "y", "x"})
	if err != nil {
		t.Fatal(err)
	}
	for i, b := range m.Table.Blobs {
		if b.Layer != i || m.Layers[i].Desc.Digest != b.Digest || m.Config.ModelFS.DiffIDs[i] != b.Digest {
			t.Errorf("blob %d: layer %d, %s, %s, %s", i, b.Layer, b.Digest, m.Layers[i].Desc.Digest, m.Config.ModelFS.DiffIDs[i])
		}
	}
	var paths []string
	for _, f := range m.Table.Files {
		paths = append(paths, f.Path)
	}
	if !slices.IsSorted(paths) {
		t.Errorf("files are not sorted: %q", paths)
	}
}

// TestTarWithRepeatedPath limits time and memory for members of unknown content that have one path.
func TestTarWithRepeatedPath(t *testing.T) {
	t.Parallel()
	var files []converttest.File
	for i := range 2000 {
		files = append(files, converttest.File{Path: "x", Data: fmt.Appendf(nil, "%04d", i), Mode: 0o644})
	}
	b := converttest.Make(converttest.Spec{
		ArtifactType: mediatype.ModelPackManifest, ConfigType: mediatype.ModelPackConfig, Config: "{}",
		Layers: []converttest.Layer{{MediaType: mediatype.Layer(mediatype.FormatModelPack, mediatype.KindDoc, filetable.ArchiveTar, filetable.CodecNone), Data: string(converttest.Tar(files...))}},
	})
	_, err := parsers.Parse(context.Background(), converttest.NewArtifact(b))
	if err == nil || !strings.Contains(err.Error(), `layer 0: path "x" more than`) {
		t.Errorf("got %v", err)
	}
}

// TestTarInManyLayers has one tar of 1,000 files in 201 layers: it counts once for each path.
func TestTarInManyLayers(t *testing.T) {
	t.Parallel()
	var files []converttest.File
	for i := range 1000 {
		files = append(files, converttest.File{Path: fmt.Sprint(i), Mode: 0o644})
	}
	built := converttest.Make(converttest.Spec{ConfigType: "a/c", Config: "{}", Layers: []converttest.Layer{{MediaType: "a/b", Data: string(converttest.Tar(files...))}}})
	parse := func(path func(layer int) string) (*convert.Model, error) {
		m, err := convert.ParseManifest(built.Manifest)
		if err != nil {
			t.Fatal(err)
		}
		m.Layers = slices.Repeat(m.Layers, 201)
		b := convert.NewBuilder(m, mediatype.FormatModelPack)
		if err := b.AddLayers(func(i int, _ convert.Descriptor) (convert.Place, error) {
			return convert.Place{Kind: mediatype.KindDoc, Archive: filetable.ArchiveTar, Path: path(i)}, nil
		}); err != nil {
			t.Fatal(err)
		}
		return b.Model(context.Background(), converttest.NewArtifact(built), convert.Config{})
	}
	if m, err := parse(func(int) string { return "a.tar" }); err != nil || len(m.Table.Files) != len(files) {
		t.Errorf("at one path: %v", err)
	}
	_, err := parse(func(i int) string { return fmt.Sprint(i) })
	if limit, ok := errors.AsType[*filetable.LimitError](err); !ok || limit.Limit != filetable.LimitFiles || !strings.Contains(err.Error(), "layer 200 (") {
		t.Errorf("at 201 paths: %v", err)
	}
}

func TestTarErrorNamesFirstInvalidLayer(t *testing.T) {
	t.Parallel()
	tar := mediatype.Layer(mediatype.FormatModelPack, mediatype.KindDoc, filetable.ArchiveTar, filetable.CodecNone)
	var layers []converttest.Layer
	for i := range 100 {
		p := converttest.Tar(converttest.File{Path: fmt.Sprint(i), Data: []byte("x"), Mode: 0o644})
		if i == 1 || i == 90 {
			p = []byte(strings.Repeat("x", 1024+i))
		}
		layers = append(layers, converttest.Layer{MediaType: tar, Data: string(p)})
	}
	b := converttest.Make(converttest.Spec{ArtifactType: mediatype.ModelPackManifest, ConfigType: mediatype.ModelPackConfig, Config: "{}", Layers: layers})
	_, err := parsers.Parse(context.Background(), converttest.NewArtifact(b))
	if err == nil || !strings.Contains(err.Error(), "layer 1 (sha256:") {
		t.Errorf("got %v", err)
	}
}

func TestKindByPath(t *testing.T) {
	t.Parallel()
	for path, want := range map[string]mediatype.Kind{
		"model.gguf": "weight", "a/b/MODEL-00001-of-00002.SAFETENSORS": "weight", "pytorch_model.bin": "weight",
		"README.md": "doc", "LICENSE": "doc", "license.txt": "doc", "docs/x.rst": "doc",
		"modeling.py": "code", "scripts/run.sh": "code",
		"config.json": "weight.config", "tokenizer.model": "weight.config", "merges.txt": "weight.config", "noname": "weight.config", "x.safetensors.index.json": "weight.config",
	} {
		if got := convert.KindByPath(path); got != want {
			t.Errorf("%s: got %s, want %s", path, got, want)
		}
	}
}
