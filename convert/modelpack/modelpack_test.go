package modelpack_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ballast-dev/ballast/convert"
	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/convert/format"
	"github.com/ballast-dev/ballast/convert/formats"
	"github.com/ballast-dev/ballast/convert/mediatype"
	"github.com/ballast-dev/ballast/convert/modelpack"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"
)

var parsers = formats.All()

const (
	modelPackType = "application/vnd.cncf.model.manifest.v1+json"
	cnaiType      = "application/vnd.cnai.model.manifest.v1+json"
	configType    = "application/vnd.cncf.model.config.v1+json"
	raw           = "application/vnd.cncf.model.weight.v1.raw"
	docRaw        = "application/vnd.cncf.model.doc.v1.raw"
	tarType       = "application/vnd.cncf.model.weight.v1.tar"
	gzipType      = "application/vnd.cncf.model.weight.v1.tar+gzip"
)

// parse parses ModelPack with the given layers and config.
func parse(config string, layers ...converttest.Layer) (*convert.Model, error) {
	b := converttest.Make(converttest.Spec{ArtifactType: modelPackType, ConfigType: configType, Config: config, Layers: layers})
	return parsers.Parse(context.Background(), converttest.NewArtifact(b))
}

func tarOf(files ...converttest.File) string { return string(converttest.Tar(files...)) }

func file(path, data string) converttest.File {
	return converttest.File{Path: path, Data: []byte(data), Mode: 0o644}
}

// paths returns the paths of a model's files, as "path", or "path(mode)" for unusual modes.
func paths(m *convert.Model) []string {
	var list []string
	for _, f := range m.Table.Files {
		list = append(list, f.Path)
	}
	return list
}

func TestKindsPackingsAndDialects(t *testing.T) {
	t.Parallel()
	for dialect, artifactType := range map[string]string{"cncf": modelPackType, "cnai": cnaiType} {
		for _, kind := range []string{"weight", "weight.config", "doc", "code", "dataset"} {
			for _, packing := range []string{"raw", "tar", "tar+gzip", "tar+zstd"} {
				mediaType := fmt.Sprintf("application/vnd.%s.model.%s.v1.%s", dialect, kind, packing)
				t.Run(mediaType, func(t *testing.T) {
					t.Parallel()
					f := converttest.File{Path: "dir/file.txt", Data: []byte("content"), Mode: 0o644}
					data := map[string][]byte{
						"raw": f.Data, "tar": converttest.Tar(f),
						"tar+gzip": converttest.Compress(converttest.Tar(f), filetable.CodecGzip),
						"tar+zstd": converttest.Compress(converttest.Tar(f), filetable.CodecZstd),
					}[packing]
					b := converttest.Make(converttest.Spec{
						ArtifactType: artifactType,
						ConfigType:   fmt.Sprintf("application/vnd.%s.model.config.v1+json", dialect), Config: "{}",
						Layers: []converttest.Layer{{MediaType: mediaType, Data: string(data), Annotations: map[string]string{"org." + dialect + ".model.filepath": f.Path}}},
					})
					m, err := parsers.Parse(context.Background(), converttest.NewArtifact(b))
					if err != nil {
						t.Fatal(err)
					}
					got, err := converttest.Extract(m, b.Blobs)
					if err != nil {
						t.Fatal(err)
					}
					if diff := cmp.Diff(map[string]converttest.File{f.Path: f}, got); diff != "" {
						t.Errorf("files (-want +got):\n%s", diff)
					}
					if got, want := m.Layers[0].MediaType, "application/vnd.cncf.model."+kind+".v1."+packing; got != want {
						t.Errorf("media type: got %s, want %s", got, want)
					}
					if got := m.Layers[0].Kind; string(got) != kind {
						t.Errorf("kind: got %s, want %s", got, kind)
					}
				})
			}
		}
	}
}

func TestUnsafePathErrorNamesLayer(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, path string }{
		{"leaves the model", "../etc/passwd"},
		{"leaves the model far", "../../../etc/passwd"},
		{"leaves the model from below", "text_encoder/../../../etc/passwd"},
		{"absolute", "/etc/passwd"},
		{"dot", "."},
		{"dot dot", ".."},
		{"root", "/"},
		{"NUL", "model\x00.safetensors"},
		{"newline", "a\nb"},
		{"backslashes that leave the model", `..\..\x`},
		{"backslashes that leave the model in the middle", `a\..\..\x`},
		{"a name of 256 bytes", strings.Repeat("a", 256)},
		{"a path of 5000 bytes", strings.Repeat("a/", 2500) + "b"},
		{"65 directories", strings.Repeat("a/", 65) + "b"},
	} {
		t.Run("annotation "+tt.name, func(t *testing.T) {
			t.Parallel()
			_, err := parse("{}", converttest.Layer{MediaType: raw, Data: "x", Annotations: converttest.At("good")},
				converttest.Layer{MediaType: raw, Data: "y", Annotations: converttest.At(tt.path)})
			d := digest.FromString("y").String()
			if !errors.Is(err, errdefs.ErrInvalidArgument) || !strings.Contains(err.Error(), "layer 1") || !strings.Contains(err.Error(), d) {
				t.Errorf("got %v, want an error that names layer 1 and %s", err, d)
			}
		})
	}
	for _, name := range []string{"../x", "/etc/passwd", "a/../../x"} {
		t.Run("tar member "+name, func(t *testing.T) {
			t.Parallel()
			_, err := parse("{}", converttest.Layer{MediaType: tarType, Data: tarOf(file(name, "x"))})
			if !errors.Is(err, errdefs.ErrInvalidArgument) || !strings.Contains(err.Error(), "layer 0") {
				t.Errorf("got %v, want an error that names layer 0", err)
			}
		})
	}
	// Compressed archives are not opened, but their annotation is checked.
	if _, err := parse("{}", converttest.Layer{MediaType: gzipType, Data: "x", Annotations: converttest.At("../x")}); !errors.Is(err, errdefs.ErrInvalidArgument) {
		t.Errorf("got %v for the annotation of a compressed archive", err)
	}
}

func TestUnusualPathsAreAccepted(t *testing.T) {
	t.Parallel()
	for path, want := range map[string]string{
		"text_encoder/model.safetensors":    "text_encoder/model.safetensors",
		"a/b/c/d/model.safetensors":         "a/b/c/d/model.safetensors",
		"foo/../bar/model.safetensors":      "bar/model.safetensors",
		"text_encoder/":                     "text_encoder",
		"./x":                               "x",
		"a..b":                              "a..b",
		"-rf":                               "-rf",
		".wh.model.gguf":                    ".wh.model.gguf",
		".wh..wh..opq":                      ".wh..wh..opq",
		"Модель/模型.gguf":                    "Модель/模型.gguf",
		`C:\x`:                              `C:\x`,
		"Modelfile":                         "Modelfile",
		strings.Repeat("a", 255) + "/b.bin": strings.Repeat("a", 255) + "/b.bin",
	} {
		m, err := parse("{}", converttest.Layer{MediaType: raw, Data: "x", Annotations: converttest.At(path)})
		if err != nil {
			t.Errorf("%q: %v", path, err)
			continue
		}
		if got := paths(m); !slices.Equal(got, []string{want}) {
			t.Errorf("%q: got %q, want %q", path, got, want)
		}
	}
}

func TestLayersWithEqualPaths(t *testing.T) {
	t.Parallel()
	at := converttest.At
	for _, tt := range []struct {
		name   string
		layers []converttest.Layer
		want   []string // paths; nil for an error
		text   string
	}{
		{"same content is there once", []converttest.Layer{{MediaType: raw, Data: "x", Annotations: at("a")}, {MediaType: docRaw, Data: "x", Annotations: at("a")}}, []string{"a"}, ""},
		{"different content names both layers", []converttest.Layer{{MediaType: raw, Data: "x", Annotations: at("a")}, {MediaType: raw, Data: "y", Annotations: at("b")}, {MediaType: raw, Data: "z", Annotations: at("a")}}, nil, `layers 0 and 2: path "a"`},
		{"the same path in other words", []converttest.Layer{{MediaType: raw, Data: "x", Annotations: at("a")}, {MediaType: raw, Data: "y", Annotations: at("b/../a")}}, nil, "layers 0 and 1"},
		{"a raw layer and a tar of another size", []converttest.Layer{{MediaType: raw, Data: "x", Annotations: at("a")}, {MediaType: tarType, Data: tarOf(file("a", "xx"))}}, nil, "1 and 2 bytes"},
		{"a raw layer and a tar of the same size stay until read", []converttest.Layer{{MediaType: raw, Data: "x", Annotations: at("a")}, {MediaType: tarType, Data: tarOf(file("a", "x"))}}, []string{"a", "a"}, ""},
		{"empty files are the same", []converttest.Layer{{MediaType: raw, Data: "", Annotations: at("a")}, {MediaType: tarType, Data: tarOf(file("a", ""))}}, []string{"a"}, ""},
		{"one blob at two paths", []converttest.Layer{{MediaType: raw, Data: "x", Annotations: at("a")}, {MediaType: raw, Data: "x", Annotations: at("b")}}, []string{"a", "b"}, ""},
		{"one tar twice", []converttest.Layer{{MediaType: tarType, Data: tarOf(file("a", "x"))}, {MediaType: tarType, Data: tarOf(file("a", "x"))}}, []string{"a"}, ""},
		{"one blob as a tar and as a file", []converttest.Layer{{MediaType: tarType, Data: tarOf(file("a", "x"))}, {MediaType: raw, Data: tarOf(file("a", "x")), Annotations: at("b")}}, nil, "layer 1"},
		{"a file and a directory", []converttest.Layer{{MediaType: raw, Data: "x", Annotations: at("a")}, {MediaType: raw, Data: "y", Annotations: at("a/b")}}, nil, `layers 0 and 1: "a" is a file, but "a/b" is below it`},
		{"a file and a directory two levels down", []converttest.Layer{{MediaType: tarType, Data: tarOf(file("a/b/c", "x"))}, {MediaType: raw, Data: "y", Annotations: at("a")}}, nil, "below it"},
		{"names that differ in case are two", []converttest.Layer{{MediaType: raw, Data: "x", Annotations: at("Model.gguf")}, {MediaType: raw, Data: "y", Annotations: at("model.gguf")}}, []string{"Model.gguf", "model.gguf"}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			m, err := parse("{}", tt.layers...)
			if tt.want == nil {
				if !errors.Is(err, errdefs.ErrInvalidArgument) || !strings.Contains(err.Error(), tt.text) {
					t.Errorf("got %v, want errdefs.ErrInvalidArgument with %q", err, tt.text)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got := paths(m); !slices.Equal(got, tt.want) {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

func TestRefuses(t *testing.T) {
	t.Parallel()
	at := converttest.At
	x := digest.FromString("x").String()
	good := converttest.Layer{MediaType: raw, Data: "x", Annotations: at("a")}
	for _, tt := range []struct {
		name, config string
		layers       []converttest.Layer
		want         error
		text         string
	}{
		{"no layers", "{}", nil, errdefs.ErrInvalidArgument, "no layers"},
		{"raw without a path", "{}", []converttest.Layer{good, {MediaType: docRaw, Data: "y"}}, errdefs.ErrInvalidArgument, "layer 1"},
		{"unknown model layer type", "{}", []converttest.Layer{good, {MediaType: "application/vnd.cncf.model.weight.v1.exe", Data: "y", Annotations: at("b")}}, errdefs.ErrNotImplemented, "layer 1"},
		{"layer of version 2", "{}", []converttest.Layer{{MediaType: "application/vnd.cncf.model.weight.v2.raw", Data: "y", Annotations: at("b")}}, errdefs.ErrNotImplemented, "unknown version v2"},
		{"a layer that is a manifest", "{}", []converttest.Layer{{MediaType: modelPackType, Data: "y", Annotations: at("b")}}, errdefs.ErrNotImplemented, "not a layer of a model"},
		{"a layer of Docker AI", "{}", []converttest.Layer{{MediaType: "application/vnd.docker.ai.gguf.v3", Data: "y", Annotations: at("b")}}, errdefs.ErrNotImplemented, "not a layer of a model"},
		{"a layer that is a zip", "{}", []converttest.Layer{{MediaType: "application/zip", Data: "y", Annotations: at("b")}}, errdefs.ErrNotImplemented, "application/zip"},
		{"config is not JSON", "model", []converttest.Layer{good}, errdefs.ErrInvalidArgument, "config"},
		{"config has a key twice", `{"config":{"format":"a","format":"b"}}`, []converttest.Layer{good}, errdefs.ErrInvalidArgument, "twice"},
		{"config larger than the limit", `{"x":"` + strings.Repeat("x", convert.MaxConfigSize) + `"}`, []converttest.Layer{good}, errdefs.ErrInvalidArgument, "config"},
		{"a diffID that is none", `{"modelfs":{"diffIds":["sha256:x"]}}`, []converttest.Layer{good}, errdefs.ErrInvalidArgument, "diffID 0"},
		{"diffIDs of another type", `{"modelfs":{"diffIds":{"a":1}}}`, []converttest.Layer{good}, errdefs.ErrInvalidArgument, "diffIds"},
		{"too many diffIDs", `{"modelfs":{"diffIds":["` + x + `","` + x + `"]}}`, []converttest.Layer{good}, errdefs.ErrInvalidArgument, "2 diffIDs for 1 layers"},
		{"a raw layer with another diffID", `{"modelfs":{"diffIds":["` + digest.FromString("y").String() + `"]}}`, []converttest.Layer{good}, errdefs.ErrInvalidArgument, "layer 0 (" + x + ")"},
		{"gzip bytes in a plain tar", "{}", []converttest.Layer{{MediaType: tarType, Data: string(converttest.Compress(converttest.Tar(file("a", "x")), filetable.CodecGzip))}}, errdefs.ErrInvalidArgument, "gzip"},
		{"a GGUF file in a plain tar", "{}", []converttest.Layer{{MediaType: tarType, Data: "GGUF" + strings.Repeat("x", 2000)}}, errdefs.ErrInvalidArgument, "layer 0"},
		{"a tar that ends early", "{}", []converttest.Layer{{MediaType: tarType, Data: tarOf(file("a", strings.Repeat("x", 2000)))[:1024]}}, errdefs.ErrInvalidArgument, "layer 0"},
		{"an empty tar layer", "{}", []converttest.Layer{{MediaType: tarType, Data: ""}}, errdefs.ErrInvalidArgument, "layer 0"},
		{"metadata of another size", "{}", []converttest.Layer{{MediaType: raw, Data: "x", Annotations: with(at("a"), `{"size":2}`)}}, errdefs.ErrInvalidArgument, "says 2 bytes"},
		{"metadata of a directory", "{}", []converttest.Layer{{MediaType: raw, Data: "x", Annotations: with(at("a"), `{"typeflag":5}`)}}, errdefs.ErrInvalidArgument, "directory"},
		{"metadata that is not JSON", "{}", []converttest.Layer{{MediaType: raw, Data: "x", Annotations: with(at("a"), `mode=1`)}}, errdefs.ErrInvalidArgument, "file metadata"},
		{"metadata of a megabyte", "{}", []converttest.Layer{{MediaType: raw, Data: "x", Annotations: with(at("a"), `{"x":"`+strings.Repeat("x", 1<<20)+`"}`)}}, errdefs.ErrInvalidArgument, "file metadata"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			_, err := parse(tt.config, tt.layers...)
			if !errors.Is(err, tt.want) || !strings.Contains(err.Error(), tt.text) {
				t.Errorf("got %v, want %v with %q", err, tt.want, tt.text)
			}
		})
	}
}

// with adds file metadata to annotations.
func with(a map[string]string, metadata string) map[string]string {
	a = maps.Clone(a)
	a[mediatype.AnnotationMetadata] = metadata
	return a
}

// TestRawLayerAttributes reads the file metadata of raw layers.
func TestRawLayerAttributes(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		metadata string
		want     filetable.File
	}{
		{`{}`, filetable.File{Mode: 0o644}},
		{`{"mode":420}`, filetable.File{Mode: 0o644}},
		{`{"mode":493,"mtime":"2025-02-03T04:05:06+08:00"}`, filetable.File{Mode: 0o755, ModTime: time.Date(2025, 2, 2, 20, 5, 6, 0, time.UTC)}},
		{`{"mode":3565}`, filetable.File{Mode: 0o755}}, // setuid, setgid and sticky are dropped
		{`{"mode":-1}`, filetable.File{Mode: 0o777}},
		{`{"mode":"0644","mtime":"yesterday"}`, filetable.File{Mode: 0o644}},
		{`{"mtime":"0001-01-01T00:00:00Z"}`, filetable.File{Mode: 0o644}},
		{`{"mtime":"9999-12-31T23:59:59-23:00"}`, filetable.File{Mode: 0o644}},
		{`{"name":"../../x","typeflag":48}`, filetable.File{Mode: 0o644}},
		{`{"uid":1000,"gid":4294967294}`, filetable.File{Mode: 0o644, UID: 1000, GID: 1<<32 - 2}},
		{`{"uid":-1,"gid":4294967295}`, filetable.File{Mode: 0o644}}, // no owner
	} {
		m, err := parse("{}", converttest.Layer{MediaType: raw, Data: "x", Annotations: with(converttest.At("a"), tt.metadata)})
		if err != nil {
			t.Errorf("%s: %v", tt.metadata, err)
			continue
		}
		f := m.Table.Files[0]
		if f.Mode != tt.want.Mode || f.UID != tt.want.UID || f.GID != tt.want.GID || !f.ModTime.Equal(tt.want.ModTime) {
			t.Errorf("%s: got %+v, want %+v", tt.metadata, f, tt.want)
		}
	}
	if _, err := parse("{}", converttest.Layer{MediaType: raw, Data: "x", Annotations: with(converttest.At("a"), `{"uid":-2}`)}); !errdefs.IsInvalidArgument(err) {
		t.Errorf("user -2: %v", err)
	}
}

func TestTarWithBaseNameUsesAnnotatedPath(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, as string
		members  []converttest.File
		want     []string
	}{
		{"base name", "foo/bar.json", []converttest.File{file("bar.json", "x")}, []string{"foo/bar.json"}},
		{"whole path", "foo/bar.json", []converttest.File{file("foo/bar.json", "x")}, []string{"foo/bar.json"}},
		{"another name keeps it", "foo/bar.json", []converttest.File{file("baz.json", "x")}, []string{"baz.json"}},
		{"two members keep theirs", "foo/bar.json", []converttest.File{file("bar.json", "x"), file("baz.json", "y")}, []string{"bar.json", "baz.json"}},
		{"no annotation", "", []converttest.File{file("bar.json", "x")}, []string{"bar.json"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m, err := parse("{}", converttest.Layer{MediaType: tarType, Data: tarOf(tt.members...), Annotations: converttest.At(tt.as)})
			if err != nil {
				t.Fatal(err)
			}
			if got := paths(m); !slices.Equal(got, tt.want) {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

func TestCompressedLayersHaveDiffIDs(t *testing.T) {
	t.Parallel()
	p := converttest.Tar(file("a", "x"))
	l := converttest.Layer{MediaType: gzipType, Data: string(converttest.Compress(p, filetable.CodecGzip))}
	want := digest.FromBytes(p)
	for _, tt := range []struct {
		config string
		want   digest.Digest
	}{
		{`{"modelfs":{"diffIds":["` + want.String() + `"]}}`, want},
		{`{"modelfs":{"diff_ids":["` + want.String() + `"]}}`, want},
		{`{"modelfs":{"diff_ids":null}}`, ""},
		{`{"modelfs":{}}`, ""},
		{`{}`, ""},
	} {
		m, err := parse(tt.config, l)
		if err != nil {
			t.Errorf("%s: %v", tt.config, err)
			continue
		}
		if got := m.Table.Blobs[0].DiffID; got != tt.want {
			t.Errorf("%s: got %q, want %q", tt.config, got, tt.want)
		}
	}
}

// TestModctlManifests parses manifests made by modctl, without their archives: each is replaced
// by one of the same size, with a member named as by modctl of that time.
func TestModctlManifests(t *testing.T) {
	t.Parallel()
	want := []string{"LICENSE", "README.md", "config.json", "foo/bar.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "vocab.json"}
	kinds := []mediatype.Kind{"doc", "doc", "weight.config", "weight.config", "weight.config", "weight.config", "weight.config", "weight.config"}
	for _, tt := range []struct {
		file   string
		format mediatype.Format
		config convert.Config
	}{
		{"cnai-early.modctl-inspect.manifest.json", mediatype.FormatCNAIEarly, convert.Config{
			Descriptor: convert.ModelDescriptor{CreatedAt: "2024-11-11T21:16:41+08:00", Family: "qwen2", Name: "Qwen2.5-0.5B"},
			Config:     convert.ModelConfig{Architecture: "transformer", Format: "tensorflow", ParamSize: "0.49B", Precision: "int8", Quantization: "gptq"},
		}},
		{"cnai-later.modctl-inspect.manifest.json", mediatype.FormatCNAI, convert.Config{}},
	} {
		t.Run(tt.file, func(t *testing.T) {
			p, err := os.ReadFile("testdata/" + tt.file)
			if err != nil {
				t.Fatal(err)
			}
			m, err := parsers.Parse(context.Background(), &standIn{manifest: p, config: []byte(`{"Created":"2024-11-11T21:16:41+08:00"}`)})
			if err != nil {
				t.Fatal(err)
			}
			if got := paths(m); !slices.Equal(got, want) {
				t.Errorf("paths: got %q, want %q", got, want)
			}
			if m.Table.Origin.Format != string(tt.format) || m.Table.Origin.Digest != digest.FromBytes(p) {
				t.Errorf("origin: got %v", m.Table.Origin)
			}
			for i, l := range m.Layers {
				if l.Kind != kinds[i] {
					t.Errorf("layer %d: kind %s, want %s", i, l.Kind, kinds[i])
				}
			}
			m.Config.ModelFS = convert.ModelFS{}
			if diff := cmp.Diff(tt.config, m.Config); diff != "" {
				t.Errorf("config (-want +got):\n%s", diff)
			}
		})
	}
}

func TestSpecificationExamplesAreDetected(t *testing.T) {
	t.Parallel()
	for file, want := range map[string]mediatype.Format{
		"cnai-seed002-example.manifest.json":   mediatype.FormatCNAI,
		"modelpack-spec-example.manifest.json": mediatype.FormatModelPack,
	} {
		p, err := os.ReadFile("testdata/" + file)
		if err != nil {
			t.Fatal(err)
		}
		m, err := convert.ParseManifest(p)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := formats.All().Detect(m); got != want || err != nil {
			t.Errorf("%s: got %q, %v; want %q", file, got, err, want)
		}
		if got := len(m.Layers); got != 4 {
			t.Errorf("%s: got %d layers, want 4", file, got)
		}
	}
}

// TestSpecificationConfig reads the example and writes it again.
func TestSpecificationConfig(t *testing.T) {
	t.Parallel()
	p, err := os.ReadFile("testdata/modelpack-config-example.config.json")
	if err != nil {
		t.Fatal(err)
	}
	cfg, err := convert.ParseConfig(p)
	if err != nil {
		t.Fatal(err)
	}
	q, err := json.Marshal(cfg)
	if err != nil {
		t.Fatal(err)
	}
	var want, got any
	if err := errors.Join(json.Unmarshal(p, &want), json.Unmarshal(q, &got)); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("config (-want +got):\n%s", diff)
	}
}

func TestConfigAliases(t *testing.T) {
	t.Parallel()
	yes := true
	for _, tt := range []struct {
		config string
		want   convert.Config
	}{
		{`{"config":{"puantization":"gptq"}}`, convert.Config{Config: convert.ModelConfig{Quantization: "gptq"}}},
		{`{"config":{"parameterSize":8030000000}}`, convert.Config{Config: convert.ModelConfig{ParamSize: "8B"}}},
		{`{"config":{"parameterSize":1235814400}}`, convert.Config{Config: convert.ModelConfig{ParamSize: "1.2B"}}},
		{`{"config":{"parameterSize":"8b"}}`, convert.Config{Config: convert.ModelConfig{ParamSize: "8b"}}},
		{`{"config":{"parameterSize":183}}`, convert.Config{}},
		{`{"config":{"parameterSize":1e300}}`, convert.Config{}},
		{`{"descriptor":{"createTime":"2025-01-01T00:00:00Z","infoURL":"https://x"}}`, convert.Config{Descriptor: convert.ModelDescriptor{CreatedAt: "2025-01-01T00:00:00Z", DocURL: "https://x"}}},
		{`{"descriptor":{"createdAt":"yesterday","version":3.1,"name":["x"],"authors":"me"}}`, convert.Config{}},
		{`{"config":{"capabilities":{"input_types":["text"],"output_types":["image"],"knowledge_cutoff":"2024-05-21T00:00:00Z","tool_usage":true}}}`,
			convert.Config{Config: convert.ModelConfig{Capabilities: &convert.Capabilities{InputTypes: []string{"text"}, OutputTypes: []string{"image"}, KnowledgeCutoff: "2024-05-21T00:00:00Z", ToolUsage: &yes}}}},
		{`{"config":{"capabilities":{"outputTypes":["text"],"embedding":true}}}`,
			convert.Config{Config: convert.ModelConfig{Capabilities: &convert.Capabilities{OutputTypes: []string{"text", "embedding"}}}}},
		{`{"config":{"FORMAT":"gguf","Env":["LD_PRELOAD=x"],"Volumes":{"/":{}}}}`, convert.Config{}},
	} {
		got, err := convert.ParseConfig([]byte(tt.config))
		if err != nil {
			t.Errorf("%s: %v", tt.config, err)
			continue
		}
		tt.want.ModelFS.Type = "layers"
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.config, diff)
		}
	}
}

func FuzzModelPack(f *testing.F) {
	for _, b := range converttest.All(converttest.Files([]byte("GGUF"))) {
		m, err := convert.ParseManifest(b.Manifest)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b.Manifest, b.Blobs[m.Config.Digest], b.Blobs[m.Layers[0].Digest])
	}
	f.Add([]byte(`{"artifactType":"application/vnd.cncf.model.manifest.v1+json","layers":[]}`), []byte(`{"modelfs":{"diffIds":[]}}`), []byte{})
	for _, path := range []string{"../x", "/x", `..\..\x`, "a\nb", ".wh..wh..opq", "a/../../x"} {
		p := converttest.Tar(file("a", "x"), file(path, "y"))
		b := converttest.Make(converttest.Spec{ArtifactType: modelPackType, ConfigType: configType, Config: `{"modelfs":{"diffIds":["sha256:x"]}}`,
			Layers: []converttest.Layer{{MediaType: tarType, Data: string(p), Annotations: converttest.At(path)}, {MediaType: raw, Data: "x", Annotations: with(converttest.At(path), `{"mode":-1,"size":2}`)}}})
		f.Add(b.Manifest, []byte(`{"modelfs":{"diff_ids":null},"config":{"parameterSize":1e300}}`), p)
	}
	f.Fuzz(func(t *testing.T, manifest, config, layer []byte) {
		m, err := convert.ParseManifest(manifest)
		if err != nil {
			return
		}
		for _, spelling := range []format.Format{modelpack.Format, modelpack.CNAI, modelpack.Early} {
			model, err := spelling.Parse(context.Background(), format.Settings{}, &standIn{manifest: manifest, config: config, layer: layer}, m)
			if err != nil {
				continue
			}
			if _, err := model.Table.Encode(); err != nil {
				t.Fatalf("a model with a table that breaks a rule: %v", err)
			}
		}
	})
}
