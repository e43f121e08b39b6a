package main

import (
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/cmd/internal/contract/wire"
)

// TestEngineModel: an engine gets a path that it can load, or an error, and never a file that is no model by itself.
func TestEngineModel(t *testing.T) {
	for _, tt := range []struct {
		name, files string
		path        string // below that of the model
		format      string
		err         string
	}{
		{"one GGUF", "model.gguf README.md", "model.gguf", "gguf", ""},
		{"upper case", "MODEL.GGUF", "MODEL.GGUF", "gguf", ""},
		{"below", "Q4_K_M/m-Q4_K_M.gguf", "Q4_K_M/m-Q4_K_M.gguf", "gguf", ""},
		{"shards", "q/m-00001-of-00003.gguf q/m-00002-of-00003.gguf q/m-00003-of-00003.gguf", "q/m-00001-of-00003.gguf", "gguf", ""},
		{"beside a projector", "m.gguf mmproj-F16.gguf", "m.gguf", "gguf", ""},
		{"beside the parts of Ollama", "adapter-2.gguf adapter.gguf draft.gguf mmproj.gguf model.gguf", "model.gguf", "gguf", ""},
		{"a model that is a draft by name", "draft-model.gguf", "draft-model.gguf", "gguf", ""},
		{"beside safetensors", "config.json m.gguf model.safetensors", "m.gguf", "gguf", ""},
		{"several", "m-Q4_K_M.gguf m-Q8_0.gguf", "", "", "has 2 models in GGUF (m-Q4_K_M.gguf and m-Q8_0.gguf are two)"},
		{"several beside safetensors", "config.json m-Q4_K_M.gguf m-Q8_0.gguf model.safetensors", "", "safetensors", ""},
		{"a projector alone", "mmproj.gguf", "", "", "no file in GGUF or safetensors"},
		{"a shard alone", "m-00002-of-00003.gguf", "", "", "no file in GGUF or safetensors"},
		{"safetensors", "config.json model.safetensors", "", "safetensors", ""},
		{"safetensors below", "LICENSE m/config.json m/model.safetensors", "m", "safetensors", ""},
		{"safetensors without a configuration", "a/model.safetensors", "", "safetensors", ""},
		{"a configuration elsewhere", "a/model.safetensors b/config.json", "", "safetensors", ""},
		{"two parts", "a/config.json a/model.safetensors b/config.json b/model.safetensors", "", "safetensors", ""},
		{"Diffusers", "model_index.json text_encoder/config.json text_encoder/model.safetensors unet/diffusion.safetensors", "", "safetensors", ""},
		{"an adapter beside a model", "1_Pooling/config.json config.json lora/config.json lora/adapter.safetensors model.safetensors", "", "safetensors", ""},
		{"neither", "config.json pytorch_model.bin", "", "", "no file in GGUF or safetensors"},
		{"nothing", "", "", "", "no file in GGUF or safetensors"},
	} {
		m := wire.Resolved{Ref: "ghcr.io/team/model:v1", Path: "/srv/m"}
		for _, p := range strings.Fields(tt.files) {
			m.Files = append(m.Files, wire.ResolvedFile{Path: p})
		}
		got, err := engineModelOf(m)
		if tt.err != "" {
			if err == nil || !strings.Contains(err.Error(), tt.err) || exitCode(t.Context(), err) != exitUnsupported {
				t.Errorf("%s: got %v, %v", tt.name, got, err)
			}
			continue
		}
		want := engineModel{m.Ref, strings.TrimSuffix("/srv/m/"+tt.path, "/"), tt.format}
		if err != nil || got != want {
			t.Errorf("%s: got %v, %v, want %v", tt.name, got, err, want)
		}
	}
}
