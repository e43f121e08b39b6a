package converttest

import (
	"fmt"
	"path"
	"strings"

	"github.com/ballast-dev/ballast/convert"
	"github.com/ballast-dev/ballast/convert/mediatype"
	"github.com/opencontainers/go-digest"
)

// DockerAIGGUF makes a Docker AI v0.1 artifact. Of the files only weights, licenses and the
// chat template can be put in; their names are those of the format.
func DockerAIGGUF(files []File) *Built {
	b := newBuilder("docker-ai-gguf", mediatype.FormatDockerAI, mediatype.OCIManifest)
	b.dockerAI(files, func(f File) {
		b.layer(mediatype.DockerAIGGUF, f.Data, nil)
		b.expect(File{"model.gguf", f.Data, 0o644})
	})
	b.config(mediatype.DockerAIConfigV01, b.dockerAIConfig("gguf"))
	return b.done()
}

// DockerAIGGUFSharded is DockerAIGGUF with the weights cut in two.
func DockerAIGGUFSharded(files []File) *Built {
	b := newBuilder("docker-ai-gguf-sharded", mediatype.FormatDockerAI, mediatype.OCIManifest)
	b.dockerAI(files, func(f File) {
		b.halves(mediatype.DockerAIGGUF, f, "gguf")
	})
	// The config as the specification has it.
	b.config(mediatype.DockerAIConfigV01, []byte(`{"descriptor":{"createdAt":"2025-01-01T00:00:00Z"},"config":{"format":"gguf",`+
		`"format_version":"3","gguf":{"architecture":"llama","parameter_count":"1.10 B","quantization":"Q4_0"},"size":"635992801"}}`))
	return b.done()
}

// DockerAISafetensors makes a Docker AI v0.1 artifact with two shards and an archive of
// configuration files.
func DockerAISafetensors(files []File) *Built {
	b := newBuilder("docker-ai-safetensors", mediatype.FormatDockerAI, mediatype.OCIManifest)
	b.dockerAI(files, func(f File) {
		b.halves(mediatype.DockerAISafetensors, f, "safetensors")
	})
	var configs []File
	for _, f := range files {
		if strings.HasSuffix(f.Path, ".json") {
			configs = append(configs, f)
			b.expect(f)
		}
	}
	b.layer(mediatype.DockerAIVLLMConfig, Tar(configs...), nil)
	b.config(mediatype.DockerAIConfigV01, b.dockerAIConfig("safetensors"))
	return b.done()
}

// halves adds weights as two layers.
func (b *builder) halves(mediaType string, f File, ext string) {
	half := (len(f.Data) + 1) / 2
	for i, p := range [][]byte{f.Data[:half], f.Data[half:]} {
		b.layer(mediaType, p, nil)
		b.expect(File{fmt.Sprintf("model-0000%d-of-00002.%s", i+1, ext), p, 0o644})
	}
}

// dockerAI adds the layers that v0.1 artifacts have in common; weights adds those of a file of
// weights.
func (b *builder) dockerAI(files []File, weights func(File)) {
	for _, f := range files {
		switch {
		case convert.KindByPath(f.Path) == mediatype.KindWeight:
			weights(f)
		case path.Base(f.Path) == "LICENSE":
			b.layer(mediatype.DockerAILicense, f.Data, nil)
			b.expect(File{"LICENSE", f.Data, 0o644})
		case strings.HasSuffix(f.Path, ".jinja"):
			b.layer(mediatype.DockerAITemplate, f.Data, nil)
			b.expect(File{"template.jinja", f.Data, 0o644})
		}
	}
}

func (b *builder) dockerAIConfig(format string) []byte {
	var diffIDs []digest.Digest
	for _, l := range b.manifest.Layers {
		diffIDs = append(diffIDs, l.Digest)
	}
	return mustJSON(map[string]any{
		"config": map[string]any{
			"format": format, "quantization": "MOSTLY_Q4_K_M", "parameters": "361.82M", "architecture": "llama",
			"size": "256.35MiB", "gguf": map[string]string{"general.architecture": "llama"},
		},
		"descriptor": map[string]any{"created": "2025-01-01T00:00:00Z"},
		"rootfs":     map[string]any{"type": "rootfs", "diff_ids": diffIDs},
	})
}

// DockerAIFiles makes a Docker AI v0.2 artifact: a layer for each file, with its path.
func DockerAIFiles(files []File) *Built {
	b := newBuilder("docker-ai-files", mediatype.FormatDockerAI, mediatype.OCIManifest)
	for _, f := range files {
		mediaType := mediatype.DockerAIFile
		switch {
		case path.Ext(f.Path) == ".gguf":
			mediaType = mediatype.DockerAIGGUF
		case path.Ext(f.Path) == ".safetensors":
			mediaType = mediatype.DockerAISafetensors
		case path.Base(f.Path) == "LICENSE":
			mediaType = mediatype.DockerAILicense
		case path.Ext(f.Path) == ".jinja":
			mediaType = mediatype.DockerAITemplate
		}
		b.layer(mediaType, f.Data, map[string]string{
			mediatype.AnnotationFilepath: f.Path,
			mediatype.AnnotationMetadata: metadata(f),
			mediatype.AnnotationUntested: "false",
		})
		b.expect(f)
	}
	b.config(mediatype.DockerAIConfigV02, b.dockerAIConfig("gguf"))
	return b.done()
}
