package losses_test

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/convert"
	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/convert/formats"
	"github.com/ballast-dev/ballast/convert/losses"
	"github.com/ballast-dev/ballast/convert/mediatype"
	"github.com/google/go-cmp/cmp"
)

const digest = `"sha256:2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881"`

// manifest is a manifest with members of its own and one layer.
func manifest(extra, layer string) []byte {
	return []byte(`{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json",` + extra +
		`"layers":[{"mediaType":"application/vnd.ollama.image.model","digest":` + digest + `,"size":1` + layer + `}]}`)
}

// lines are losses as text.
func lines(list []losses.Loss) []string {
	var out []string
	for _, l := range list {
		out = append(out, l.What+" → "+l.Kept)
	}
	return out
}

// TestOf lists, for every format, what has no place in ModelPack.
func TestOf(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		format mediatype.Format
		docs   convert.Documents
		want   []string
	}{
		{
			"ollama", mediatype.FormatOllama,
			convert.Documents{
				Manifest: manifest(`"runner":"ggml",`, `,"from":"/blobs/x"`),
				Config: []byte(`{"model_format":"gguf","model_family":"llama","model_families":["llama"],"model_type":"361.82M","file_type":"Q4_K_M",` +
					`"capabilities":["completion","insert"],"context_length":8192,"renderer":"r","draft":{"config":{"a":1}},"architecture":"amd64","rootfs":{"diff_ids":[]}}`),
			},
			[]string{
				"manifest runner → file ollama/manifest.json", "from of 1 layer → file ollama/manifest.json",
				"config architecture → file ollama/config.json", `config capabilities: "insert" → file ollama/config.json`,
				"config context_length → annotation dev.ballast.model.context.length", "config draft.config.a → file ollama/config.json",
				"config model_families → file ollama/config.json", `config model_type in its original spelling, "361.82M" → file ollama/config.json`,
				"config renderer → file ollama/config.json",
			},
		},
		{
			"docker-ai", mediatype.FormatDockerAI,
			convert.Documents{
				Manifest: manifest(`"annotations":{"a.b":"c"},`, `,"annotations":{"org.cncf.model.filepath":"x","org.cncf.model.file.metadata+json":"{\"uid\":1}","d.e":"f"}`),
				Config: []byte(`{"config":{"format":"gguf","architecture":"llama","parameters":"8B","quantization":"MOSTLY_Q4_K_M","size":"1GB","context_size":4096,` +
					`"gguf":{"architecture":"llama","general.license":"mit"}},"descriptor":{"created":"x"},"rootfs":{"type":"rootfs","diff_ids":["x"]}}`),
			},
			[]string{
				"manifest annotations.a.b → origin manifest", "annotation d.e of 1 layer → origin manifest",
				"config config.context_size → annotation dev.ballast.model.context.length", "config config.gguf.general.license → origin config",
				`config config.quantization in its original spelling, "MOSTLY_Q4_K_M" → origin config`, "config config.size → origin config",
			},
		},
		{
			"cnai-early", mediatype.FormatCNAIEarly,
			convert.Documents{Manifest: manifest(`"annotations":{"org.cnai.model.name":"n","org.cnai.model.ref.name":"r"},`, ""), Config: []byte(`{"Created":"x","rootfs":{"diff_ids":["x"]}}`)},
			[]string{"manifest annotations.org.cnai.model.ref.name → origin manifest", "config Created → origin config"},
		},
		{
			"modelpack", mediatype.FormatModelPack,
			convert.Documents{
				Manifest: manifest(`"subject":{"digest":"x"},`, ""),
				Config:   []byte(`{"descriptor":{"name":"n","x":"y"},"config":{"paramSize":"8b","capabilities":{"reasoning":true,"magic":true}},"modelfs":{"type":"layers"}}`),
			},
			[]string{"manifest subject.digest → origin manifest", "config config.capabilities.magic → origin config", "config descriptor.x → origin config"},
		},
		{
			"kitops", mediatype.FormatKitOps,
			convert.Documents{Manifest: manifest("", ""), Config: []byte(`{"manifestVersion":"1","package":{"name":"n"},"model":{"name":"m","path":"p","framework":"f"},"docs":[{"path":"."}]}`)},
			[]string{"config docs → file Kitfile", "config manifestVersion → file Kitfile", "config model.framework → file Kitfile", "config model.name → file Kitfile"},
		},
		{"nothing to lose", mediatype.FormatCNAI, convert.Documents{Manifest: manifest("", ""), Config: []byte(`{"config":{"puantization":"q"}}`)}, nil},
		{"documents that are none", mediatype.FormatCNAI, convert.Documents{Manifest: []byte("["), Config: []byte("[")}, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(tt.want, lines(losses.Of(formats.All().Get(string(tt.format)).Losses, tt.docs))); diff != "" {
				t.Errorf("losses (-want +got):\n%s", diff)
			}
		})
	}
}

// TestLostInformation names what is kept nowhere.
func TestLostInformation(t *testing.T) {
	t.Parallel()
	gone := func(f mediatype.Format, m []byte) (list []string) {
		for _, l := range losses.Of(formats.All().Get(string(f)).Losses, convert.Documents{Manifest: m}) {
			if l.Kept == "" {
				list = append(list, l.What)
			}
		}
		return list
	}
	if got := gone(mediatype.FormatCarton, converttest.GoodCarton([]byte("x")).ManifestBytes()); len(got) != 2 || !strings.Contains(got[0], "LINKS") {
		t.Errorf("carton: got %q", got)
	}
	var layers []converttest.Layer
	for _, part := range []string{"model", "embed", "template", "template", "template; name=a", "template; name=b", "template; name=b", "system", "hologram"} {
		layers = append(layers, converttest.Layer{MediaType: "application/vnd.ollama.image." + part, Data: part + fmt.Sprint(len(layers))})
	}
	b := converttest.Make(converttest.Spec{Layers: layers, ConfigType: mediatype.DockerConfig, Config: "{}"})
	want := []string{
		"content of 1 layer of type application/vnd.ollama.image.hologram, which Ollama ignores",
		"content of 1 layer of embeddings, which Ollama does not use", "content of 2 layers of template, of which Ollama uses only the last",
	}
	if diff := cmp.Diff(want, gone(mediatype.FormatOllama+"-list/ggml", b.Manifest)); diff != "" {
		t.Errorf("ollama (-want +got):\n%s", diff)
	}
}

// TestLimits gives an origin with very many members, and very long ones.
func TestLimits(t *testing.T) {
	t.Parallel()
	var config bytes.Buffer
	config.WriteString(`{"` + strings.Repeat("k\\u001b", 10_000) + `":1`)
	for i := range 5000 {
		fmt.Fprintf(&config, `,"k%d":1`, i)
	}
	config.WriteString("}")
	got := losses.Of(formats.All().Get("modelpack").Losses, convert.Documents{Manifest: manifest("", ""), Config: config.Bytes()})
	if len(got) > 101 || got[len(got)-1].What != "4901 more of this kind" {
		t.Errorf("got %d losses, the last is %q", len(got), got[len(got)-1].What)
	}
	if slices.ContainsFunc(got, func(l losses.Loss) bool { return len(l.What) > 200 || strings.Contains(l.What, "\x1b") }) {
		t.Error("a key is too long, or not clean")
	}
}
