package converttest

import (
	"path"

	"github.com/ballast-dev/ballast/convert"
	"github.com/ballast-dev/ballast/convert/mediatype"
	"github.com/opencontainers/go-digest"
)

// OllamaConfig is the form of the config of an Ollama model.
type OllamaConfig string

// The configs seen.
const (
	OllamaConfigOld OllamaConfig = "old" // with a rootfs, until August 2026
	OllamaConfigNew OllamaConfig = "new"
)

// What every Ollama model made here has beside its files.
const (
	ollamaTemplate = "{{ if .System }}<|system|>\n{{ .System }}<|end|>\n{{ end }}<|user|>\n{{ .Prompt }}<|end|>\n"
	ollamaSystem   = "You are a helpful assistant."
	ollamaParams   = `{"num_ctx":4096,"stop":["<|end|>","<|user|>"],"temperature":0.7}`
	ollamaMessages = `[{"role":"user","content":"Hello"},{"role":"assistant","content":"Hi there"}]`
)

// Ollama makes an Ollama model. Of the files only weights and licenses can be put in; there is
// a template, a system prompt, parameters and messages. The generated Modelfile is expected
// too, and the origin's manifest and config.
func Ollama(files []File, c OllamaConfig) *Built {
	b := newBuilder("ollama-"+string(c), mediatype.FormatOllama, mediatype.DockerManifest)
	var license string
	add := func(mediaType, name string, p []byte) {
		b.layer(mediaType, p, nil)
		b.expect(File{name, p, 0o644})
	}
	for _, f := range files {
		switch {
		case convert.KindByPath(f.Path) == mediatype.KindWeight:
			add(mediatype.OllamaModel, "model.gguf", f.Data)
		case path.Base(f.Path) == "LICENSE":
			add(mediatype.OllamaLicense, "LICENSE", f.Data)
			license = string(f.Data)
		}
	}
	add(mediatype.OllamaTemplate, "template", []byte(ollamaTemplate))
	add(mediatype.OllamaSystem, "system", []byte(ollamaSystem))
	add(mediatype.OllamaParams, "params.json", []byte(ollamaParams))
	add(mediatype.OllamaMessages, "messages.json", []byte(ollamaMessages))

	cfg := map[string]any{
		"model_format": "gguf", "model_family": "llama", "model_families": []string{"llama"},
		"model_type": "1.2B", "file_type": "Q4_K_M", "architecture": "amd64", "os": "linux",
	}
	if c == OllamaConfigOld {
		var diffIDs []digest.Digest
		for _, l := range b.manifest.Layers {
			diffIDs = append(diffIDs, l.Digest)
		}
		cfg["rootfs"] = map[string]any{"type": "layers", "diff_ids": diffIDs}
	}
	config := mustJSON(cfg)
	b.config(mediatype.DockerConfig, config)
	b.expect(File{"Modelfile", []byte(modelfile(license)), 0o644})
	b.expect(File{"ollama/config.json", config, 0o644})
	built := b.done()
	b.expect(File{"ollama/manifest.json", built.Manifest, 0o644})
	return built
}

func modelfile(license string) string {
	s := "# Modelfile made from the layers of an Ollama model.\n" +
		"FROM ./model.gguf\n" +
		"TEMPLATE \"" + ollamaTemplate + "\"\n" +
		"SYSTEM " + ollamaSystem + "\n" +
		"PARAMETER num_ctx 4096\n" +
		"PARAMETER stop <|end|>\n" +
		"PARAMETER stop <|user|>\n" +
		"PARAMETER temperature 0.7\n"
	if license != "" {
		s += "LICENSE \"" + license + "\"\n"
	}
	return s + "MESSAGE user Hello\nMESSAGE assistant Hi there\n"
}
