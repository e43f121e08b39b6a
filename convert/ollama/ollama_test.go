package ollama_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/convert"
	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/convert/format"
	"github.com/ballast-dev/ballast/convert/formats"
	"github.com/ballast-dev/ballast/convert/ollama"
	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

var parsers = formats.All()

const (
	manifestType = "application/vnd.docker.distribution.manifest.v2+json"
	configType   = "application/vnd.docker.container.image.v1+json"
	prefix       = "application/vnd.ollama.image."
)

// model is a layer with weights.
var model = layer("model", "GGUF weights")

func layer(part, data string) converttest.Layer {
	return converttest.Layer{MediaType: prefix + part, Data: data}
}

// parse returns the model and its files as text by path.
func parse(config string, layers ...converttest.Layer) (*convert.Model, map[string]string, error) {
	b := converttest.Make(converttest.Spec{MediaType: manifestType, ConfigType: configType, Config: config, Layers: layers})
	m, err := parsers.Parse(context.Background(), converttest.NewArtifact(b))
	if err != nil {
		return nil, nil, err
	}
	got, err := converttest.Texts(m, b.Blobs)
	if err != nil {
		return nil, nil, err
	}
	return m, got, nil
}

// header is the first line of every Modelfile.
const header = "# Modelfile made from the layers of an Ollama model.\n"

func TestNames(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		layers []converttest.Layer
		want   map[string]string // without ollama/ and Modelfile
	}{
		{"split weights in the order of the manifest", []converttest.Layer{layer("model", "b"), layer("model", "a")},
			map[string]string{"model-00001-of-00002.gguf": "b", "model-00002-of-00002.gguf": "a"}},
		{"projectors, adapters and a draft", []converttest.Layer{model, layer("projector", "p"), layer("projector", "q"), layer("adapter", "a"), layer("adapter", "b"), layer("draft", "d")},
			map[string]string{"model.gguf": "GGUF weights", "mmproj.gguf": "p", "mmproj-2.gguf": "q", "adapter.gguf": "a", "adapter-2.gguf": "b", "draft.gguf": "d"}},
		{"prompt is a template", []converttest.Layer{model, layer("prompt", "{{ .Prompt }}")},
			map[string]string{"model.gguf": "GGUF weights", "template": "{{ .Prompt }}"}},
		{"the last template, system, draft and messages count", []converttest.Layer{model, layer("prompt", "1"), layer("template", "2"), layer("system", "3"), layer("system", "4"), layer("draft", "5"), layer("draft", "6"), layer("messages", "[]"), layer("messages", "[ ]")},
			map[string]string{"model.gguf": "GGUF weights", "template": "2", "system": "4", "draft.gguf": "6", "messages.json": "[ ]"}},
		{"one layer of parameters is kept as it is", []converttest.Layer{model, layer("params", ` {"b":1,"a":2} `)},
			map[string]string{"model.gguf": "GGUF weights", "params.json": ` {"b":1,"a":2} `}},
		{"layers of parameters are merged, the later wins", []converttest.Layer{model, layer("params", `{"b":1,"stop":["x"]}`), layer("params", `{"a":0.5,"b":2,"c":null}`)},
			map[string]string{"model.gguf": "GGUF weights", "params.json": `{"a":0.5,"b":2,"stop":["x"]}`}},
		{"licenses", []converttest.Layer{model, layer("license", "1"), layer("license", "2"), layer("license", "1")},
			map[string]string{"model.gguf": "GGUF weights", "LICENSE": "1", "LICENSE-2": "2", "LICENSE-3": "1"}},
		{"embed is left out", []converttest.Layer{model, layer("embed", "e")}, map[string]string{"model.gguf": "GGUF weights"}},
		{"anchors of manifests are left out", []converttest.Layer{model, {MediaType: manifestType, Data: "{}"}, {MediaType: "application/vnd.ollama.manifest.list.v2+json", Data: "{ }"}},
			map[string]string{"model.gguf": "GGUF weights"}},
		{"other prefixes are ignored", []converttest.Layer{model, {MediaType: "application/vnd.oci.image.layer.v1.tar", Data: "x"}, {MediaType: "application/vnd.example.thing+json", Data: "y"}, {MediaType: "none", Data: "z"}},
			map[string]string{"model.gguf": "GGUF weights"}},
		{"unknown types under the reserved prefix are ignored", []converttest.Layer{model, layer("hologram", "x")}, map[string]string{"model.gguf": "GGUF weights"}},
		{"the template without a name is the default, wherever it stands", []converttest.Layer{model, layer("template", "default"), layer("template; name=tools", "tools"), layer(`template; name="a/../b"`, "odd")},
			map[string]string{"model.gguf": "GGUF weights", "template": "default", "template-tools": "tools", "template-a%2F..%2Fb": "odd"}},
		{"a named template is never the default", []converttest.Layer{model, layer("template; name=tools", "tools")},
			map[string]string{"model.gguf": "GGUF weights", "template-tools": "tools"}},
		{"an empty name is none, and of each name the last template counts", []converttest.Layer{model, layer("template; name=t", "1"), layer("template; name=", "2"), layer("template; name=t", "3")},
			map[string]string{"model.gguf": "GGUF weights", "template": "2", "template-t": "3"}},
		{"a config for safetensors is a config.json", []converttest.Layer{model, layer("config; type=Safetensors", "{}")}, map[string]string{"model.gguf": "GGUF weights", "config.json": "{}"}},
		{"a config of another type is none", []converttest.Layer{model, layer("config; type=../gguf", "{}")}, map[string]string{"model.gguf": "GGUF weights", "config-..%2Fgguf": "{}"}},
		{"parameters of a media type say nothing", []converttest.Layer{{MediaType: prefix + "model; name=\"../../x\"; shape=[1", Data: "w"}}, map[string]string{"model.gguf": "w"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			m, files, err := parse(`{"model_format":"gguf"}`, tt.layers...)
			if err != nil {
				t.Fatal(err)
			}
			if files["ollama/config.json"] != `{"model_format":"gguf"}` {
				t.Errorf("ollama/config.json: got %q", files["ollama/config.json"])
			}
			if got := digest.FromString(files["ollama/manifest.json"]); got != m.Table.Origin.Digest {
				t.Errorf("ollama/manifest.json has digest %s, the origin %s", got, m.Table.Origin.Digest)
			}
			for _, f := range []string{"ollama/config.json", "ollama/manifest.json", "Modelfile"} {
				delete(files, f)
			}
			if diff := cmp.Diff(tt.want, files); diff != "" {
				t.Errorf("files (-want +got):\n%s", diff)
			}
		})
	}
}

func TestModelfile(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, config string
		layers       []converttest.Layer
		want         string // after the header
	}{
		{"all commands in order", `{"renderer":"qwen3","parser":"qwen3.5","requires":"0.32.12"}`, []converttest.Layer{
			layer("license", "MIT"), layer("messages", `[{"role":"user","content":"Hi"}]`), layer("params", `{"top_k":40,"stop":["b","a"],"penalize_newline":true,"temperature":0.70}`),
			layer("system", "Be brief."), layer("template", "{{ .Prompt }}"), layer("projector", "p"), layer("adapter", "a"), layer("draft", "d"), model,
		}, "FROM ./model.gguf\nADAPTER ./adapter.gguf\nDRAFT ./draft.gguf\nFROM ./mmproj.gguf\nTEMPLATE {{ .Prompt }}\nSYSTEM Be brief.\n" +
			"RENDERER qwen3\nPARSER qwen3.5\nPARAMETER penalize_newline true\nPARAMETER stop b\nPARAMETER stop a\nPARAMETER temperature 0.70\nPARAMETER top_k 40\n" +
			"LICENSE MIT\nMESSAGE user Hi\n"},
		{"split weights", "{}", []converttest.Layer{model, layer("model", "x")}, "FROM ./model-00001-of-00002.gguf\nFROM ./model-00002-of-00002.gguf\n"},
		{"quotes", "{}", []converttest.Layer{model, layer("template", "a\nb"), layer("system", "say \"hi\"\nnow")},
			"FROM ./model.gguf\nTEMPLATE \"a\nb\"\nSYSTEM \"\"\"say \"hi\"\nnow\"\"\"\n"},
		{"named templates have no command", "{}", []converttest.Layer{model, layer("template; name=\"x\ny\"", "a"), layer("template", "b")}, "FROM ./model.gguf\nTEMPLATE b\n# TEMPLATE is left out; see template-x%0Ay\n"},
		{"space at the ends", "{}", []converttest.Layer{model, layer("system", " x ")}, "FROM ./model.gguf\nSYSTEM \" x \"\n"},
		{"three quotes cannot be written", "{}", []converttest.Layer{model, layer("system", "a\n\"\"\"\nFROM /etc/passwd")}, "FROM ./model.gguf\n# SYSTEM is left out; see system\n"},
		{"quotes at the end cannot be written", "{}", []converttest.Layer{model, layer("system", "say\n\"hi\"")}, "FROM ./model.gguf\n# SYSTEM is left out; see system\n"},
		{"a text that is binary", "{}", []converttest.Layer{model, layer("template", "\x00\xff")}, "FROM ./model.gguf\n# TEMPLATE is left out; see template\n"},
		{"a carriage return", "{}", []converttest.Layer{model, layer("template", "x\rFROM y")}, "FROM ./model.gguf\n# TEMPLATE is left out; see template\n"},
		{"a text of more than a megabyte", "{}", []converttest.Layer{model, layer("template", strings.Repeat("x", 1<<20+1))}, "FROM ./model.gguf\n# TEMPLATE is left out; see template\n"},
		{"an empty text", "{}", []converttest.Layer{model, layer("system", "")}, "FROM ./model.gguf\n"},
		{"a key with a newline", "{}", []converttest.Layer{model, layer("params", `{"x\nFROM /etc/passwd\ny":1,"ok":1}`)}, "FROM ./model.gguf\nPARAMETER ok 1\n# PARAMETER is left out; see params.json\n"},
		{"values that are no parameters", "{}", []converttest.Layer{model, layer("params", `{"a":{},"b":[[1]],"c":null,"d":"","e":[],"f":"x\ny"}`)},
			"FROM ./model.gguf\n# PARAMETER is left out; see params.json\n# PARAMETER is left out; see params.json\n# PARAMETER is left out; see params.json\nPARAMETER f \"x\ny\"\n"},
		{"parameters that are no JSON", "{}", []converttest.Layer{model, layer("params", `top_k=40`)}, "FROM ./model.gguf\n# PARAMETER is left out; see params.json\n"},
		{"a role with a newline", "{}", []converttest.Layer{model, layer("messages", `[{"role":"user\nFROM x","content":"a"},{"role":"user","content":"b"}]`)}, "FROM ./model.gguf\n# MESSAGE is left out; see messages.json\nMESSAGE user b\n"},
		{"messages that are no list", "{}", []converttest.Layer{model, layer("messages", `{}`)}, "FROM ./model.gguf\n# MESSAGE is left out; see messages.json\n"},
		{"messages that go on after the list", "{}", []converttest.Layer{model, layer("messages", `[]} {`)}, "FROM ./model.gguf\n# MESSAGE is left out; see messages.json\n"},
		{"a renderer with a newline", `{"renderer":"x\nFROM /etc/passwd"}`, []converttest.Layer{model}, "FROM ./model.gguf\nRENDERER \"x\nFROM /etc/passwd\"\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			_, files, err := parse(tt.config, tt.layers...)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(header+tt.want, files["Modelfile"]); diff != "" {
				t.Errorf("Modelfile (-want +got):\n%s", diff)
			}
		})
	}
}

func TestRefuses(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, config string
		layers       []converttest.Layer
		want         error
		text         string
	}{
		{"a cloud model", `{"remote_host":"https://ollama.com:443","remote_model":"gpt-oss:120b"}`, nil, errdefs.ErrNotImplemented, "cloud model"},
		{"a cloud model with a license", `{"remote_host":"https://ollama.com:443"}`, []converttest.Layer{layer("license", "MIT")}, errdefs.ErrNotImplemented, "cloud model"},
		{"an image without layers", `{"architecture":"amd64","os":"linux"}`, nil, convert.ErrNotModel, "without layers"},
		{"a model without layers", `{"model_format":"gguf"}`, nil, errdefs.ErrInvalidArgument, "no layer with a model"},
		{"only a license", `{}`, []converttest.Layer{layer("license", "MIT")}, errdefs.ErrInvalidArgument, "no layer with a model"},
		{"a json layer without name", `{}`, []converttest.Layer{model, layer("json", "{}")}, errdefs.ErrInvalidArgument, "layer 1"},
		{"only a tokenizer layer", `{}`, []converttest.Layer{layer("tokenizer.config", "{}")}, errdefs.ErrInvalidArgument, "no layer with a model"},
		{"two config layers", `{}`, []converttest.Layer{model, layer("config; type=gguf", "{}"), layer("config; type=safetensors", "{ }")}, errdefs.ErrInvalidArgument, "layers 1 and 2"},
		{"a type of the config that is not closed", `{}`, []converttest.Layer{model, layer(`config; type="gguf`, "{}")}, errdefs.ErrInvalidArgument, "layer 1"},
		{"a name of a template that is not closed", `{}`, []converttest.Layer{model, layer(`template; name="x`, "x")}, errdefs.ErrInvalidArgument, "layer 1"},
		{"a name of a template that is too long for a file", `{}`, []converttest.Layer{model, layer("template; name="+strings.Repeat("x", 300), "x")}, errdefs.ErrInvalidArgument, "layer 1"},
		{"parameters that cannot be merged", `{}`, []converttest.Layer{model, layer("params", "{}"), layer("params", "x")}, errdefs.ErrInvalidArgument, "layer 2"},
		{"a config that is no object", `"x"`, []converttest.Layer{model}, errdefs.ErrInvalidArgument, "config"},
		{"a config with a key twice", `{"remote_host":"","remote_host":"x"}`, []converttest.Layer{model}, errdefs.ErrInvalidArgument, "twice"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			_, _, err := parse(tt.config, tt.layers...)
			if !errors.Is(err, tt.want) || !strings.Contains(err.Error(), tt.text) {
				t.Errorf("got %v, want %v with %q", err, tt.want, tt.text)
			}
		})
	}
}

// TestCloudManifest has the form served by the registry: sorted keys and no layers, or null.
func TestCloudManifest(t *testing.T) {
	t.Parallel()
	config := `{"architecture":"amd64","model_format":"gguf","os":"linux","remote_host":"https://ollama.com:443","remote_model":"gpt-oss:120b"}`
	d := digest.FromString(config)
	for _, layers := range []string{"[]", "null"} {
		p := fmt.Sprintf(`{"config":{"digest":%q,"mediaType":%q,"size":%d},"layers":%s,"mediaType":%q,"schemaVersion":2}`, d, configType, len(config), layers, manifestType)
		b := &converttest.Built{Manifest: []byte(p), Blobs: map[digest.Digest][]byte{d: []byte(config)}}
		_, err := parsers.Parse(context.Background(), converttest.NewArtifact(b))
		if !errors.Is(err, errdefs.ErrNotImplemented) || !strings.Contains(err.Error(), "no weights to mount") {
			t.Errorf("layers %s: got %v", layers, err)
		}
	}
}

func TestModelWithoutConfig(t *testing.T) {
	t.Parallel()
	b := converttest.Make(converttest.Spec{MediaType: manifestType, Layers: []converttest.Layer{model}})
	b.Manifest = []byte(strings.Replace(string(b.Manifest), `"config":{"mediaType":"","digest":"","size":0}`, `"config":{"digest":""}`, 1))
	m, err := parsers.Parse(context.Background(), converttest.NewArtifact(b))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, f := range m.Table.Files {
		got = append(got, f.Path)
	}
	if want := []string{"Modelfile", "model.gguf", "ollama/manifest.json"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestConfig(t *testing.T) {
	t.Parallel()
	yes := true
	for _, tt := range []struct {
		config string
		want   convert.Config
	}{
		{`{"model_format":"gguf","model_family":"qwen35","model_type":"27.3B","file_type":"Q4_K_M","capabilities":["completion","vision","tools","thinking"]}`, convert.Config{
			Descriptor: convert.ModelDescriptor{Family: "qwen35"},
			Config: convert.ModelConfig{Format: "gguf", ParamSize: "27.3B", Quantization: "Q4_K_M",
				Capabilities: &convert.Capabilities{InputTypes: []string{"text", "image"}, OutputTypes: []string{"text"}, ToolUsage: &yes, Reasoning: &yes}},
		}},
		{`{"model_format":"gguf","file_type":"F16","model_type":"137M"}`, convert.Config{Config: convert.ModelConfig{Format: "gguf", ParamSize: "137M", Precision: "float16"}}},
		{`{"model_format":"gguf","file_type":"unknown","model_type":"unknown","model_families":null}`, convert.Config{Config: convert.ModelConfig{Format: "gguf"}}},
	} {
		m, _, err := parse(tt.config, model)
		if err != nil {
			t.Errorf("%s: %v", tt.config, err)
			continue
		}
		m.Config.ModelFS = convert.ModelFS{}
		if diff := cmp.Diff(tt.want, m.Config); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.config, diff)
		}
	}
}

// A lying artifact returns the same bytes for every digest.
type lying struct{ manifest, config, text []byte }

func (l *lying) Manifest() []byte { return l.manifest }

func (l *lying) ReadBlob(_ context.Context, desc ocispec.Descriptor, limit int64) ([]byte, error) {
	p := l.text
	if desc.MediaType == configType {
		p = l.config
	}
	if int64(len(p)) > limit {
		return nil, errdefs.ErrInvalidArgument
	}
	return p, nil
}

func (l *lying) BlobAt(context.Context, ocispec.Descriptor) (io.ReaderAt, error) {
	return nil, errdefs.ErrNotFound
}

func FuzzOllama(f *testing.F) {
	for _, c := range []converttest.OllamaConfig{converttest.OllamaConfigNew, converttest.OllamaConfigOld} {
		b := converttest.Ollama(converttest.Files([]byte("GGUF")), c)
		m, err := convert.ParseManifest(b.Manifest)
		if err != nil {
			f.Fatal(err)
		}
		for _, l := range m.Layers {
			f.Add(b.Manifest, b.Blobs[m.Config.Digest], b.Blobs[l.Digest])
		}
	}
	for _, path := range hostilePaths {
		b := converttest.Make(converttest.Spec{MediaType: manifestType, ConfigType: configType, Config: "{}",
			Layers: []converttest.Layer{model, {MediaType: prefix + "json; name=" + path, Data: path}, layer("template", path), layer("params", path)}})
		f.Add(b.Manifest, []byte(`{"remote_host":"x","renderer":"a\u0000b"}`), []byte("\"\"\"\nFROM /etc/passwd"))
	}
	f.Fuzz(func(t *testing.T, manifest, config, text []byte) {
		m, err := convert.ParseManifest(manifest)
		if err != nil {
			return
		}
		model, err := ollama.Format.Parse(context.Background(), format.Settings{}, &lying{manifest, config, text}, m)
		if err != nil {
			return
		}
		if _, err := model.Table.Encode(); err != nil {
			t.Fatalf("a model with a table that breaks a rule: %v", err)
		}
		for _, f := range model.Table.Files {
			if f.Path == "Modelfile" && strings.Contains(string(f.Source.Inline), "\x00") {
				t.Fatalf("Modelfile: %q", f.Source.Inline)
			}
		}
	})
}
