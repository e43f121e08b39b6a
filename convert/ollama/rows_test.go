package ollama_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
)

// TestConfigFields checks where each field of a config goes, and the facts that ModelPack has
// no place for.
func TestConfigFields(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, config, at, want string }{
		{"model_format gguf is the format", `{"model_format":"gguf"}`, "config.format", `"gguf"`},
		{"model_format ggml stays", `{"model_format":"ggml"}`, "config.format", `"ggml"`},
		{"model_family is the family", `{"model_family":"qwen35"}`, "descriptor.family", `"qwen35"`},
		{"model_type is the number of parameters", `{"model_type":"27.3B"}`, "config.paramSize", `"27.3B"`},
		{"model_type unknown is left out", `{"model_type":"unknown"}`, "config.paramSize", ""},
		{"file_type is the quantization", `{"file_type":"Q4_K_M"}`, "config.quantization", `"Q4_K_M"`},
		{"file_type F16 is a precision", `{"file_type":"F16"}`, "config.precision", `"float16"`},
		{"file_type F32 is a precision", `{"file_type":"F32"}`, "config.precision", `"float32"`},
		{"file_type BF16 is a precision", `{"file_type":"BF16"}`, "config.precision", `"bfloat16"`},
		{"file_type BF16 is no quantization", `{"file_type":"BF16"}`, "config.quantization", ""},
		{"file_type unknown is left out", `{"file_type":"unknown"}`, "config.quantization", ""},
		{"completion is text", `{"capabilities":["completion"]}`, "config.capabilities.outputTypes", `["text"]`},
		{"vision is an input", `{"capabilities":["vision"]}`, "config.capabilities.inputTypes", `["image"]`},
		{"audio is an input", `{"capabilities":["audio"]}`, "config.capabilities.inputTypes", `["audio"]`},
		{"embedding is an output", `{"capabilities":["embedding"]}`, "config.capabilities.outputTypes", `["embedding"]`},
		{"image is an output", `{"capabilities":["image"]}`, "config.capabilities.outputTypes", `["image"]`},
		{"tools are tool usage", `{"capabilities":["tools"]}`, "config.capabilities.toolUsage", "true"},
		{"thinking is reasoning", `{"capabilities":["thinking"]}`, "config.capabilities.reasoning", "true"},
		{"a capability that is not known is nothing", `{"capabilities":["telepathy"]}`, "config.capabilities.outputTypes", ""},
		{"the architecture of a machine is dropped", `{"model_format":"gguf","architecture":"amd64","os":"linux"}`, "config.architecture", ""},
		{"there is no time of creation", `{"model_format":"gguf"}`, "descriptor.createdAt", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			m, _, err := parse(tt.config, model, layer("license", "Apache License"))
			if err != nil {
				t.Fatal(err)
			}
			p, err := json.Marshal(m.Config)
			if err != nil {
				t.Fatal(err)
			}
			if got := field(t, p, tt.at); got != tt.want {
				t.Errorf("%s: got %s, want %s, in %s", tt.at, got, tt.want, p)
			}
			if got := field(t, p, "descriptor.licenses"); strings.Contains(got, "Apache License") {
				t.Errorf("the text of a license is %s, which are names", got)
			}
		})
	}
}

// field returns the JSON at a path of keys, "" if there is none.
func field(t *testing.T, p []byte, path string) string {
	t.Helper()
	for key := range strings.SplitSeq(path, ".") {
		var o map[string]json.RawMessage
		if err := json.Unmarshal(p, &o); err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		if p = o[key]; p == nil {
			return ""
		}
	}
	return string(p)
}

// For fields that the config of the model has no place for, the documents of the origin are files,
// byte for byte.
func TestDocumentsKeepUnmappedFields(t *testing.T) {
	t.Parallel()
	config := `{"model_format":"gguf","renderer":"qwen3","parser":"qwen3.5","requires":"0.32.12","base_name":"b","draft":{},"context_length":4096,"embedding_length":64,"rootfs":{"diff_ids":["sha256:x"]}}`
	b := converttest.Make(converttest.Spec{MediaType: manifestType, ConfigType: configType, Config: config,
		Layers: []converttest.Layer{model, layer("license", "MIT")}})
	b.Manifest = bytes.Replace(b.Manifest, []byte("{"), []byte(`{"runner":"ggml","format":"gguf","ggufFile":{"rfilename":"x"},`), 1)
	m, err := parsers.Parse(context.Background(), converttest.NewArtifact(b))
	if err != nil {
		t.Fatal(err)
	}
	files, err := converttest.Extract(m, b.Blobs)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(config, string(files["ollama/config.json"].Data)); diff != "" {
		t.Errorf("ollama/config.json (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(string(b.Manifest), string(files["ollama/manifest.json"].Data)); diff != "" {
		t.Errorf("ollama/manifest.json (-want +got):\n%s", diff)
	}
	if m.Table.Origin.Digest != b.Digest() {
		t.Errorf("origin: got %s, want %s", m.Table.Origin.Digest, b.Digest())
	}
}

// hostilePaths are names that are not valid for a file.
var hostilePaths = map[string]string{
	"parent": "../etc/passwd", "parents": "../../../etc/passwd", "parents from below": "text_encoder/../../../etc/passwd",
	"absolute": "/etc/passwd", "empty": "", "dot": ".", "dot dot": "..", "slash": "/", "NUL": "model\x00.safetensors",
	"newline": "a\nb", "escape": "a\x1b[2J", "backslashes that leave": `..\..\x`, "backslashes in the middle": `a\..\..\x`,
	"a name of 256 bytes": strings.Repeat("a", 256), "a path of 5000 bytes": strings.Repeat("ab/", 1700),
	"65 directories": strings.Repeat("a/", 65) + "b",
}

// TestHostilePaths has layers whose names lead out of the model.
func TestHostilePaths(t *testing.T) {
	t.Parallel()
	for name, path := range hostilePaths {
		t.Run(name+" in the name of a json layer", func(t *testing.T) {
			t.Parallel()
			_, _, err := build("", func(b *converttest.OllamaBuilder) {
				b.Layer(tensorType, st(entries("a"), "aaaa"), "")
				b.Layer(prefix+"json", []byte("{}"), path)
			})
			if !errors.Is(err, errdefs.ErrInvalidArgument) || !strings.Contains(err.Error(), "layer 1") {
				t.Errorf("got %v, want an error that names layer 1", err)
			}
		})
		// The name of a tensor is never the name of a file.
		t.Run(name+" in the name of a tensor", func(t *testing.T) {
			t.Parallel()
			m, _, err := build("", func(b *converttest.OllamaBuilder) {
				b.Layer(tensorType, st(entries("x"), "aaaa"), path)
			})
			if err != nil {
				if !errors.Is(err, errdefs.ErrInvalidArgument) {
					t.Errorf("got %v", err)
				}
				return
			}
			for p := range m {
				if c, err := filetable.CleanPath(p); err != nil || c != p || strings.Contains(p, "passwd") {
					t.Errorf("a file %q: %v", p, err)
				}
			}
		})
	}
}

// TestHostileMediaTypes has parameters of a tensor layer that a strict parser refuses.
func TestHostileMediaTypes(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct{ params, want string }{
		"a name that is a path in another charset": {`; name*=utf-8''..%2f..%2fx; dtype=F32; shape=[1]`, "../../x=abcd"},
		"a shape without brackets":                 {`; name=x; dtype=F32; shape=1,1`, "x=abcd"},
		"a shape without its end":                  {`; name=x; dtype=F32; shape=[1,1`, ""},
		"a shape of 1e9 by 1e9":                    {`; name=x; dtype=F32; shape=[1000000000,1000000000]`, ""},
		"a shape whose product wraps to one":       {`; name=x; dtype=F32; shape=[18446744073709551615,18446744073709551615]`, ""},
		"a charset that is none":                   {`; name*=klingon''x; dtype=F32; shape=1`, ""},
		"percent signs that are cut":               {`; name*=utf-8''%2; dtype=F32; shape=1`, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, _, err := build("", func(b *converttest.OllamaBuilder) { b.Layer(tensorType+tt.params, []byte("abcd"), "") })
			if tt.want == "" {
				if !errors.Is(err, errdefs.ErrInvalidArgument) || !strings.Contains(err.Error(), "layer 0") {
					t.Errorf("got %v, want an error that names layer 0", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if l, _ := names(t, got["model.safetensors"]); len(l) != 1 || l[0] != tt.want {
				t.Errorf("got %q, want %q", l, tt.want)
			}
		})
	}
}
