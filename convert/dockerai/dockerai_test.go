package dockerai_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/convert"
	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/convert/dockerai"
	"github.com/ballast-dev/ballast/convert/format"
	"github.com/ballast-dev/ballast/convert/formats"
	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

var parsers = formats.All()

const prefix = "application/vnd.docker.ai."

// layer is a layer of a Docker AI type, with a path if it is not "".
func layer(mediaType, data, path string) converttest.Layer {
	l := converttest.Layer{MediaType: prefix + mediaType, Data: data}
	if path != "" {
		l.Annotations = converttest.At(path)
	}
	return l
}

func parse(configType, config string, layers ...converttest.Layer) (*convert.Model, error) {
	b := converttest.Make(converttest.Spec{ConfigType: prefix + configType, Config: config, Layers: layers})
	return parsers.Parse(context.Background(), converttest.NewArtifact(b))
}

const (
	v01 = "model.config.v0.1+json"
	v02 = "model.config.v0.2+json"
)

func tarOf(path, data string) string {
	return string(converttest.Tar(converttest.File{Path: path, Data: []byte(data), Mode: 0o644}))
}

func TestNames(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, config string
		layers       []converttest.Layer
		want         []string // path=content of the files, sorted
	}{
		{"one GGUF, whatever its annotation", v01, []converttest.Layer{layer("gguf.v3", "a", "smollm.gguf")}, []string{"model.gguf=a"}},
		{"GGUF shards in the order of the manifest", v01, []converttest.Layer{layer("gguf.v3", "a", ""), layer("license", "l", ""), layer("gguf.v3", "b", "")},
			[]string{"LICENSE=l", "model-00001-of-00002.gguf=a", "model-00002-of-00002.gguf=b"}},
		{"equal shards are two files", v01, []converttest.Layer{layer("gguf.v3", "a", ""), layer("gguf.v3", "a", "")},
			[]string{"model-00001-of-00002.gguf=a", "model-00002-of-00002.gguf=a"}},
		{"types before the first release", "model.config.v1+json", []converttest.Layer{layer("model.file.v1+gguf", "a", ""), layer("license", "l", "")}, []string{"LICENSE=l", "model.gguf=a"}},
		{"one safetensors", v01, []converttest.Layer{layer("safetensors", "a", "")}, []string{"model.safetensors=a"}},
		{"safetensors keep their annotation", v01, []converttest.Layer{layer("safetensors", "a", "unet/x.safetensors"), layer("safetensors", "b", "")},
			[]string{"model.safetensors=b", "unet/x.safetensors=a"}},
		{"DDUF", v01, []converttest.Layer{layer("dduf", "a", "")}, []string{"model.dduf=a"}},
		{"DDUF with a path", v01, []converttest.Layer{layer("dduf", "a", "flux.dduf")}, []string{"flux.dduf=a"}},
		{"projector in both spellings", v01, []converttest.Layer{layer("gguf.v3", "a", ""), layer("mmproj", "b", ""), layer("gguf.v3.mmproj", "c", "")},
			[]string{"model-2.mmproj=c", "model.gguf=a", "model.mmproj=b"}},
		{"adapters", v01, []converttest.Layer{layer("gguf.v3", "a", ""), layer("gguf.v3.lora", "b", ""), layer("gguf.v3.lora", "c", "")},
			[]string{"adapter-2.gguf=c", "adapter.gguf=b", "model.gguf=a"}},
		{"chat template", v01, []converttest.Layer{layer("gguf.v3", "a", ""), layer("chat.template.jinja", "t", "")}, []string{"model.gguf=a", "template.jinja=t"}},
		{"three licenses", v01, []converttest.Layer{layer("gguf.v3", "a", ""), layer("license", "1", ""), layer("license", "2", ""), layer("license", "1", "")},
			[]string{"LICENSE-2=2", "LICENSE-3=1", "LICENSE=1", "model.gguf=a"}},
		{"archives are extracted", v01, []converttest.Layer{layer("safetensors", "a", ""), layer("vllm.config.tar", tarOf("config.json", "c"), ""), layer("dir.tar", tarOf("unet/config.json", "d"), "")},
			[]string{"config.json=c", "model.safetensors=a", "unet/config.json=d"}},
		{"a generic file has its path", v01, []converttest.Layer{layer("gguf.v3", "a", ""), layer("model.file", "f", "x/README.md")}, []string{"model.gguf=a", "x/README.md=f"}},
		{"v0.2 takes all paths", v02, []converttest.Layer{layer("gguf.v3", "a", "q4/smollm.gguf"), layer("license", "l", "LICENSE.txt"), layer("chat.template.jinja", "t", "chat_template.jinja")},
			[]string{"LICENSE.txt=l", "chat_template.jinja=t", "q4/smollm.gguf=a"}},
		{"v0.2 without a path is named as v0.1", v02, []converttest.Layer{layer("gguf.v3", "a", "x.gguf"), layer("gguf.v3", "b", "")}, []string{"model.gguf=b", "x.gguf=a"}},
		{"v0.2 extracts archives", v02, []converttest.Layer{layer("gguf.v3", "a", "x.gguf"), layer("dir.tar", tarOf("d/e", "f"), "d.tar")}, []string{"d/e=f", "x.gguf=a"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			b := converttest.Make(converttest.Spec{ConfigType: prefix + tt.config, Config: "{}", Layers: tt.layers})
			m, err := parsers.Parse(context.Background(), converttest.NewArtifact(b))
			if err != nil {
				t.Fatal(err)
			}
			files, err := converttest.Extract(m, b.Blobs)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, f := range files {
				got = append(got, f.Path+"="+string(f.Data))
			}
			slices.Sort(got)
			slices.Sort(tt.want)
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("files (-want +got):\n%s", diff)
			}
		})
	}
}

func TestKinds(t *testing.T) {
	t.Parallel()
	m, err := parse(v01, "{}", layer("gguf.v3", "a", ""), layer("mmproj", "b", ""), layer("license", "c", ""), layer("chat.template.jinja", "d", ""),
		layer("vllm.config.tar", tarOf("config.json", "c"), ""), layer("dir.tar", tarOf("x", "y"), ""), layer("model.file", "e", "README.md"), layer("model.file", "f", "run.py"))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, l := range m.Layers {
		got = append(got, strings.TrimPrefix(l.MediaType, "application/vnd.cncf.model."))
	}
	want := []string{"weight.v1.raw", "weight.v1.raw", "doc.v1.raw", "weight.config.v1.raw", "weight.config.v1.tar", "weight.v1.tar", "doc.v1.raw", "code.v1.raw"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("media types (-want +got):\n%s", diff)
	}
}

func TestRefuses(t *testing.T) {
	t.Parallel()
	gguf := layer("gguf.v3", "a", "")
	for _, tt := range []struct {
		name, config, body string
		layers             []converttest.Layer
		want               error
		text               string
	}{
		{"no layers", v01, "{}", nil, errdefs.ErrInvalidArgument, "no layers"},
		{"unknown layer type", v01, "{}", []converttest.Layer{gguf, layer("gguf.v4", "b", "")}, errdefs.ErrNotImplemented, "layer 1"},
		{"an image layer", v01, "{}", []converttest.Layer{gguf, {MediaType: "application/vnd.oci.image.layer.v1.tar", Data: "b"}}, errdefs.ErrNotImplemented, "layer 1"},
		{"a config as layer", v01, "{}", []converttest.Layer{gguf, layer(v01, "b", "")}, errdefs.ErrNotImplemented, "layer 1"},
		{"a generic file without a path", v01, "{}", []converttest.Layer{gguf, layer("model.file", "b", "")}, errdefs.ErrInvalidArgument, "layer 1"},
		{"a path that leaves the model", v02, "{}", []converttest.Layer{gguf, layer("model.file", "b", "../../home/user/x")}, errdefs.ErrInvalidArgument, "layer 1"},
		{"two files at one path", v02, "{}", []converttest.Layer{gguf, layer("model.file", "b", "x"), layer("model.file", "c", "x")}, errdefs.ErrInvalidArgument, "layers 1 and 2"},
		{"a file at the name of another", v01, "{}", []converttest.Layer{gguf, layer("model.file", "b", "model.gguf")}, errdefs.ErrInvalidArgument, `path "model.gguf"`},
		{"an archive with a path that leaves the model", v01, "{}", []converttest.Layer{gguf, layer("dir.tar", tarOf("../x", "y"), "")}, errdefs.ErrInvalidArgument, "layer 1"},
		{"an archive that is none", v01, "{}", []converttest.Layer{gguf, layer("vllm.config.tar", strings.Repeat("x", 1024), "")}, errdefs.ErrInvalidArgument, "layer 1"},
		{"a config that is no object", v01, "[]", []converttest.Layer{gguf}, errdefs.ErrInvalidArgument, "config"},
		{"a config with a key twice", v01, `{"config":{},"config":{}}`, []converttest.Layer{gguf}, errdefs.ErrInvalidArgument, "twice"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			_, err := parse(tt.config, tt.body, tt.layers...)
			if !errors.Is(err, tt.want) || !strings.Contains(err.Error(), tt.text) {
				t.Errorf("got %v, want %v with %q", err, tt.want, tt.text)
			}
		})
	}
}

func TestConfigShapes(t *testing.T) {
	t.Parallel()
	spec, err := os.ReadFile("testdata/docker-spec-config-example.config.json")
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name, config string
		want         convert.Config
	}{
		{"of the specification", string(spec), convert.Config{
			Descriptor: convert.ModelDescriptor{CreatedAt: "2025-01-01T00:00:00Z", Family: "llama"},
			Config:     convert.ModelConfig{Architecture: "llama", Format: "gguf", ParamSize: "1.1B", Quantization: "Q4_0"},
		}},
		{"of the program", `{"config":{"format":"gguf","quantization":"MOSTLY_Q4_K_M","parameters":"361.82M","architecture":"llama","size":"256.35MiB",` +
			`"gguf":{"general.architecture":"llama"},"context_size":4096},"descriptor":{"created":"2025-05-05T10:00:00Z"},"rootfs":{"type":"rootfs","diff_ids":null}}`, convert.Config{
			Descriptor: convert.ModelDescriptor{CreatedAt: "2025-05-05T10:00:00Z", Family: "llama"},
			Config:     convert.ModelConfig{Architecture: "llama", Format: "gguf", ParamSize: "361.8M", Quantization: "Q4_K_M"},
		}},
		{"with what cannot be said", `{"config":{"format":"gguf","quantization":"Unknown","parameters":"183","gguf":[]},"descriptor":{"created":1}}`,
			convert.Config{Config: convert.ModelConfig{Format: "gguf"}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m, err := parse(v01, tt.config, layer("gguf.v3", "a", ""))
			if err != nil {
				t.Fatal(err)
			}
			m.Config.ModelFS = convert.ModelFS{}
			if diff := cmp.Diff(tt.want, m.Config); diff != "" {
				t.Errorf("config (-want +got):\n%s", diff)
			}
		})
	}
}

// TestSpecificationExamples parses manifests without their blobs.
func TestSpecificationExamples(t *testing.T) {
	t.Parallel()
	for file, want := range map[string][]string{
		"docker-seed004-gguf.manifest.json":                {"LICENSE", "model.gguf"},
		"docker-seed004-safetensors-sharded.manifest.json": {"LICENSE", "config.json", "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"},
	} {
		p, err := os.ReadFile("testdata/" + file)
		if err != nil {
			t.Fatal(err)
		}
		m, err := parsers.Parse(context.Background(), &standIn{manifest: p, config: []byte("{}"), layer: []byte(tarOf("config.json", "{}"))})
		if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		var got []string
		for _, f := range m.Table.Files {
			got = append(got, f.Path)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", file, diff)
		}
	}
}

// A standIn is an artifact with a real manifest only. It returns the same config and the same layer
// for every digest, as a lying registry would.
type standIn struct{ manifest, config, layer []byte }

func (s *standIn) Manifest() []byte { return s.manifest }

func (s *standIn) ReadBlob(_ context.Context, desc ocispec.Descriptor, limit int64) ([]byte, error) {
	if int64(len(s.config)) > limit {
		return nil, fmt.Errorf("blob %s: %w", desc.Digest, errdefs.ErrInvalidArgument)
	}
	return s.config, nil
}

func (s *standIn) BlobAt(context.Context, ocispec.Descriptor) (io.ReaderAt, error) {
	return bytes.NewReader(s.layer), nil
}

func FuzzDockerAI(f *testing.F) {
	files := converttest.Files([]byte("GGUF"))
	for _, b := range []*converttest.Built{
		converttest.DockerAIGGUF(files), converttest.DockerAIGGUFSharded(files), converttest.DockerAISafetensors(files), converttest.DockerAIFiles(files),
	} {
		m, err := convert.ParseManifest(b.Manifest)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b.Manifest, b.Blobs[m.Config.Digest], b.Blobs[m.Layers[len(m.Layers)-1].Digest])
	}
	for _, path := range []string{"../x", "/x", `..\..\x`, "a\nb", ".wh..wh..opq", "a/../../x"} {
		b := converttest.Make(converttest.Spec{ConfigType: prefix + v02, Config: "{}",
			Layers: []converttest.Layer{layer("dir.tar", tarOf(path, "x"), path), layer("model.file", "x", path), layer("gguf.v4", "x", "")}})
		f.Add(b.Manifest, []byte(`{"config":{"gguf":[],"parameters":"1e999B"},"config":{}}`), []byte(tarOf(path, "x")))
	}
	f.Fuzz(func(t *testing.T, manifest, config, layer []byte) {
		m, err := convert.ParseManifest(manifest)
		if err != nil {
			return
		}
		model, err := dockerai.Format.Parse(context.Background(), format.Settings{}, &standIn{manifest, config, layer}, m)
		if err != nil {
			return
		}
		if _, err := model.Table.Encode(); err != nil {
			t.Fatalf("a model with a table that breaks a rule: %v", err)
		}
		named := map[string]bool{}
		for _, f := range model.Table.Files {
			named[string(f.Source.Blob)] = true
		}
		for i, b := range model.Table.Blobs {
			if b.Archive == "" && !named[string(b.Digest)] {
				t.Fatalf("layer %d has no file", i)
			}
		}
	})
}
