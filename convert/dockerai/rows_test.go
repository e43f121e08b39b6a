package dockerai_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/containerd/errdefs"
)

// TestConfigFields checks where each field of a config goes.
func TestConfigFields(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, config, at, want string }{
		{"format is the format", `{"config":{"format":"safetensors"}}`, "config.format", `"safetensors"`},
		{"format diffusers stays", `{"config":{"format":"diffusers"}}`, "config.format", `"diffusers"`},
		{"architecture is the architecture", `{"config":{"architecture":"llama"}}`, "config.architecture", `"llama"`},
		{"architecture is the family too", `{"config":{"architecture":"llama"}}`, "descriptor.family", `"llama"`},
		{"parameters are rounded", `{"config":{"parameters":"361.82M"}}`, "config.paramSize", `"361.8M"`},
		{"parameters with a space", `{"config":{"parameters":"1.10 B"}}`, "config.paramSize", `"1.1B"`},
		{"quantization without its prefix", `{"config":{"quantization":"MOSTLY_Q4_K_M"}}`, "config.quantization", `"Q4_K_M"`},
		{"size has no place", `{"config":{"size":"256.35MiB"}}`, "config.size", ""},
		{"context_size has no place", `{"config":{"context_size":4096}}`, "config.context_size", ""},
		{"gguf facts have no place but those that are known", `{"config":{"gguf":{"general.architecture":"x","quantization":"Q8_0"}}}`, "config.quantization", `"Q8_0"`},
		{"descriptor created is the time", `{"descriptor":{"created":"2025-05-05T10:00:00Z"}}`, "descriptor.createdAt", `"2025-05-05T10:00:00Z"`},
		{"descriptor createdAt is the time", `{"descriptor":{"createdAt":"2025-05-05T10:00:00Z"}}`, "descriptor.createdAt", `"2025-05-05T10:00:00Z"`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			m, err := parse(v01, tt.config, layer("gguf.v3", "a", ""))
			if err != nil {
				t.Fatal(err)
			}
			if got := converttest.Member(t, m.Config, tt.at); got != tt.want {
				t.Errorf("%s: got %s, want %s, in %+v", tt.at, got, tt.want, m.Config)
			}
		})
	}
}

// TestLayerTypes checks where each type of layer goes, and that the digest of a raw one is its
// diffID.
func TestLayerTypes(t *testing.T) {
	t.Parallel()
	config := tarOf("config.json", "{}")
	for _, tt := range []struct{ mediaType, data, as, path string }{
		{"gguf.v3", "w", "weight.v1.raw", "model.gguf"},
		{"model.file.v1+gguf", "w", "weight.v1.raw", "model.gguf"},
		{"gguf.v3.lora", "w", "weight.v1.raw", "adapter.gguf"},
		{"gguf.v3.mmproj", "w", "weight.v1.raw", "model.mmproj"},
		{"mmproj", "w", "weight.v1.raw", "model.mmproj"},
		{"safetensors", "w", "weight.v1.raw", "model.safetensors"},
		{"dduf", "w", "weight.v1.raw", "model.dduf"},
		{"vllm.config.tar", config, "weight.config.v1.tar", "config.json"},
		{"dir.tar", config, "weight.v1.tar", "config.json"},
		{"chat.template.jinja", "w", "weight.config.v1.raw", "template.jinja"},
		{"license", "w", "doc.v1.raw", "LICENSE"},
	} {
		t.Run(tt.mediaType, func(t *testing.T) {
			t.Parallel()
			m, err := parse(v01, "{}", layer(tt.mediaType, tt.data, ""))
			if err != nil {
				t.Fatal(err)
			}
			l := m.Layers[0]
			if got, want := l.MediaType, "application/vnd.cncf.model."+tt.as; got != want {
				t.Errorf("got the type %s, want %s", got, want)
			}
			if got := m.Table.Files[0].Path; got != tt.path {
				t.Errorf("got the path %s, want %s", got, tt.path)
			}
			if got := m.Config.ModelFS.DiffIDs; !slices.Contains(got, l.Desc.Digest) {
				t.Errorf("got diffIDs %v, want %s", got, l.Desc.Digest)
			}
		})
	}
}

// TestHostilePaths has files with paths that lead out of the model.
func TestHostilePaths(t *testing.T) {
	t.Parallel()
	for name, path := range map[string]string{
		"parent": "../etc/passwd", "parents": "../../../etc/passwd", "parents from below": "text_encoder/../../../etc/passwd",
		"a home": "../../home/user/text_encoder/model.safetensors", "absolute": "/etc/passwd", "dot": ".", "dot dot": "..", "slash": "/",
		"NUL": "model\x00.safetensors", "newline": "a\nb", "backslashes that leave": `..\..\x`,
		"a name of 256 bytes": strings.Repeat("a", 256), "65 directories": strings.Repeat("a/", 65) + "b",
	} {
		t.Run(name+" in annotation path", func(t *testing.T) {
			t.Parallel()
			_, err := parse(v02, "{}", layer("gguf.v3", "a", "good"), layer("safetensors", "b", path))
			if !errors.Is(err, errdefs.ErrInvalidArgument) || !strings.Contains(err.Error(), "layer 1") {
				t.Errorf("got %v, want an error that names layer 1", err)
			}
		})
		if strings.Contains(path, "\x00") || path == "." || path == "/" {
			continue // not a name in a tar, or that of its root
		}
		t.Run(name+" in an archive", func(t *testing.T) {
			t.Parallel()
			p := converttest.Tar(converttest.File{Path: path, Data: []byte("x"), Mode: 0o644})
			_, err := parse(v01, "{}", layer("gguf.v3", "a", ""), layer("dir.tar", string(p), ""))
			if !errors.Is(err, errdefs.ErrInvalidArgument) || !strings.Contains(err.Error(), "layer 1") {
				t.Errorf("got %v, want an error that names layer 1", err)
			}
		})
	}
	for path, want := range map[string]string{
		"model.safetensors": "model.safetensors", "text_encoder/model.safetensors": "text_encoder/model.safetensors",
		"a/b/c/d/model.safetensors": "a/b/c/d/model.safetensors", "foo/../bar/model.safetensors": "bar/model.safetensors",
		"text_encoder/": "text_encoder", "a..b": "a..b",
	} {
		m, err := parse(v02, "{}", layer("safetensors", "b", path))
		if err != nil || m.Table.Files[0].Path != want {
			t.Errorf("%q: got %v, %v; want %q", path, m, err, want)
		}
	}
}
