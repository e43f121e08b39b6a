package converttest

import (
	"encoding/json"
	"fmt"
	"maps"

	"github.com/ballast-dev/ballast/convert/mediatype"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// A File is a file of a model.
type File struct {
	Path string
	Data []byte
	Mode uint32 // permission bits
}

// A Built is a complete artifact.
type Built struct {
	// Name identifies it, for the name of a test or a repository.
	Name string

	Format    mediatype.Format
	MediaType string // Content-Type of the manifest
	Manifest  []byte

	// Blobs are the config and the layers by digest.
	Blobs map[digest.Digest][]byte

	// Files are all files of the mounted model, by path.
	Files map[string]File
}

// Digest returns the digest of the manifest.
func (b *Built) Digest() digest.Digest { return digest.FromBytes(b.Manifest) }

// Files returns the files of a small model whose weights are in model.gguf. A file in a
// directory, and one that can be executed, are among them.
func Files(weights []byte) []File {
	return []File{
		{"LICENSE", []byte("Permission is granted to everyone for everything.\n"), 0o644},
		{"README.md", []byte("# A model\n\nIt answers every question.\n"), 0o644},
		{"chat_template.jinja", []byte("{% for m in messages %}{{ m.content }}{% endfor %}\n"), 0o644},
		{"config.json", []byte(`{"architectures":["LlamaForCausalLM"],"model_type":"llama"}` + "\n"), 0o644},
		{"model.gguf", weights, 0o644},
		{"scripts/generate.sh", []byte("#!/bin/sh\nexec llama-cli -m model.gguf\n"), 0o755},
		{"tokenizer/vocab.json", []byte(`{"<s>":0,"</s>":1}` + "\n"), 0o640},
	}
}

// All returns the files in every format that there is a builder for. Names are unique.
func All(files []File) []*Built {
	return []*Built{
		ModelPackRaw(files),
		ModelPackTar(files),
		ModelPackTarGzip(files),
		ModelPackTarZstd(files),
		CNAI(files),
		CNAIWeightAlias(files),
		cnaiManifestType(files),
		CNAIEarly(files, EarlyConfigFull),
		CNAIEarly(files, EarlyConfigCreated),
		CNAIEarly(files, EarlyConfigEmpty),
		CNAIEarlyGzip(files),
		DockerAIGGUF(files),
		DockerAIGGUFSharded(files),
		DockerAISafetensors(files),
		DockerAIFiles(files),
		Ollama(files, OllamaConfigOld),
		Ollama(files, OllamaConfigNew),
		KitOps(files),
		KitOpsGzip(files),
		Cog(files),
	}
}

// builder collects an artifact.
type builder struct {
	built    *Built
	manifest ocispec.Manifest
}

func newBuilder(name string, f mediatype.Format, mediaType string) *builder {
	return &builder{
		built: &Built{
			Name: name, Format: f, MediaType: mediaType,
			Blobs: map[digest.Digest][]byte{}, Files: map[string]File{},
		},
		manifest: ocispec.Manifest{
			Versioned: specs.Versioned{SchemaVersion: 2},
			MediaType: mediaType,
			Layers:    []ocispec.Descriptor{},
		},
	}
}

// blob adds a blob and returns its descriptor.
func (b *builder) blob(mediaType string, p []byte) ocispec.Descriptor {
	d := digest.FromBytes(p)
	b.built.Blobs[d] = p
	return ocispec.Descriptor{MediaType: mediaType, Digest: d, Size: int64(len(p))}
}

// layer adds a layer.
func (b *builder) layer(mediaType string, p []byte, annotations map[string]string) *ocispec.Descriptor {
	desc := b.blob(mediaType, p)
	desc.Annotations = maps.Clone(annotations)
	b.manifest.Layers = append(b.manifest.Layers, desc)
	return &b.manifest.Layers[len(b.manifest.Layers)-1]
}

// config sets the config.
func (b *builder) config(mediaType string, p []byte) {
	b.manifest.Config = b.blob(mediaType, p)
}

// expect adds a file that must be seen.
func (b *builder) expect(f File) {
	if _, ok := b.built.Files[f.Path]; ok {
		panic(fmt.Sprintf("converttest: internal error: %q twice", f.Path))
	}
	b.built.Files[f.Path] = f
}

// done writes the manifest.
func (b *builder) done() *Built {
	b.built.Manifest = mustJSON(b.manifest)
	return b.built
}

func mustJSON(v any) []byte {
	p, err := json.Marshal(v)
	must(err)
	return p
}
