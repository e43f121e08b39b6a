package modelpack_test

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/convert"
	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/convert/mediatype"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
)

const ociTar = "application/vnd.oci.image.layer.v1.tar"

// early parses early CNAI.
func early(annotations map[string]string, config string, layers ...converttest.Layer) (*convert.Model, error) {
	b := converttest.Make(converttest.Spec{ArtifactType: cnaiType, ConfigType: "application/vnd.oci.image.config.v1+json", Config: config, Layers: layers})
	var m map[string]any
	if err := json.Unmarshal(b.Manifest, &m); err != nil {
		return nil, err
	}
	m["annotations"] = annotations
	var err error
	if b.Manifest, err = json.Marshal(m); err != nil {
		return nil, err
	}
	return parsers.Parse(context.Background(), converttest.NewArtifact(b))
}

// TestAnnotationsOfEarlyCNAI checks where each annotation of a manifest goes.
func TestAnnotationsOfEarlyCNAI(t *testing.T) {
	t.Parallel()
	type fields = map[string]string
	for _, tt := range []struct {
		name        string
		annotations fields // without the prefix org.cnai.model.
		want        convert.Config
	}{
		{"name", fields{"name": "x"}, convert.Config{Descriptor: convert.ModelDescriptor{Name: "x"}}},
		{"title", fields{"title": "x"}, convert.Config{Descriptor: convert.ModelDescriptor{Title: "x"}}},
		{"description", fields{"description": "x"}, convert.Config{Descriptor: convert.ModelDescriptor{Description: "x"}}},
		{"version", fields{"version": "x"}, convert.Config{Descriptor: convert.ModelDescriptor{Version: "x"}}},
		{"vendor", fields{"vendor": "x"}, convert.Config{Descriptor: convert.ModelDescriptor{Vendor: "x"}}},
		{"revision", fields{"revision": "x"}, convert.Config{Descriptor: convert.ModelDescriptor{Revision: "x"}}},
		{"authors is one text and a list of one", fields{"authors": "x, y"}, convert.Config{Descriptor: convert.ModelDescriptor{Authors: []string{"x, y"}}}},
		{"documentation is the URL of the documents", fields{"documentation": "https://d"}, convert.Config{Descriptor: convert.ModelDescriptor{DocURL: "https://d"}}},
		{"source is the URL of the source", fields{"source": "https://s"}, convert.Config{Descriptor: convert.ModelDescriptor{SourceURL: "https://s"}}},
		{"url is that of the documents if there is no documentation", fields{"url": "https://u"}, convert.Config{Descriptor: convert.ModelDescriptor{DocURL: "https://u"}}},
		{"url is that of the source beside documentation", fields{"url": "https://u", "documentation": "https://d"},
			convert.Config{Descriptor: convert.ModelDescriptor{DocURL: "https://d", SourceURL: "https://u"}}},
		{"licenses with AND and a comma", fields{"licenses": "MIT AND Apache-2.0, BSD-3-Clause"},
			convert.Config{Descriptor: convert.ModelDescriptor{Licenses: []string{"MIT", "Apache-2.0", "BSD-3-Clause"}}}},
		{"created", fields{"created": "2025-01-01T00:00:00Z"}, convert.Config{Descriptor: convert.ModelDescriptor{CreatedAt: "2025-01-01T00:00:00Z"}}},
		{"created that is no time", fields{"created": "yesterday"}, convert.Config{}},
		{"architecture", fields{"architecture": "x"}, convert.Config{Config: convert.ModelConfig{Architecture: "x"}}},
		{"family", fields{"family": "x"}, convert.Config{Descriptor: convert.ModelDescriptor{Family: "x"}}},
		{"format", fields{"format": "x"}, convert.Config{Config: convert.ModelConfig{Format: "x"}}},
		{"param.size", fields{"param.size": "8B"}, convert.Config{Config: convert.ModelConfig{ParamSize: "8B"}}},
		{"precision", fields{"precision": "x"}, convert.Config{Config: convert.ModelConfig{Precision: "x"}}},
		{"quantization", fields{"quantization": "x"}, convert.Config{Config: convert.ModelConfig{Quantization: "x"}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			annotations := fields{}
			for k, v := range tt.annotations {
				annotations["org.cnai.model."+k] = v
			}
			m, err := early(annotations, `{"Created":"2025-01-01T00:00:00Z"}`, converttest.Layer{MediaType: ociTar, Data: tarOf(file("a", "x"))})
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

// TestKindsOfEarlyCNAI checks what determines the kind of a layer, and that its bytes are
// unchanged.
func TestKindsOfEarlyCNAI(t *testing.T) {
	t.Parallel()
	const artifact = "application/vnd.cnai.model."
	for _, tt := range []struct {
		name, artifactType, path string
		say                      string // annotation that is true
		want                     mediatype.Kind
	}{
		{"annotation readme", artifact + "weight.v1.tar", "model.bin", "readme", "doc"},
		{"annotation license", artifact + "weight.v1.tar", "model.bin", "license", "doc"},
		{"annotation config", artifact + "weight.v1.tar", "model.bin", "config", "weight.config"},
		{"annotation model", artifact + "doc.v1.tar", "README.md", "model", "weight"},
		{"artifact type of a document", artifact + "doc.v1.tar", "model.bin", "", "doc"},
		{"artifact type of a configuration", artifact + "config.v1.tar", "model.bin", "", "weight.config"},
		{"artifact type that says nothing, and a README", artifact + "layer.v1.tar", "README.md", "", "doc"},
		{"artifact type that says nothing, and weights", artifact + "layer.v1.tar", "model.safetensors", "", "weight"},
		{"nothing", "", "", "", "weight"},
	} {
		for suffix, codec := range map[string]filetable.Codec{"": filetable.CodecNone, "+gzip": filetable.CodecGzip} {
			t.Run(tt.name+suffix, func(t *testing.T) {
				t.Parallel()
				p := converttest.Tar(file("a", "x"))
				if codec != filetable.CodecNone {
					p = converttest.Compress(p, codec)
				}
				l := converttest.Layer{MediaType: ociTar + suffix, Data: string(p), Annotations: map[string]string{}, ArtifactType: tt.artifactType}
				if l.ArtifactType != "" {
					l.ArtifactType += suffix
				}
				if tt.path != "" {
					l.Annotations["org.cnai.model.filepath"] = tt.path
				}
				if tt.say != "" {
					l.Annotations["org.cnai.model."+tt.say] = "true"
				}
				m, err := early(nil, "{}", l)
				if err != nil {
					t.Fatal(err)
				}
				got := m.Layers[0]
				if want := "application/vnd.cncf.model." + string(tt.want) + ".v1.tar" + suffix; got.MediaType != want || got.Kind != tt.want {
					t.Errorf("got %s, %s; want %s", got.Kind, got.MediaType, want)
				}
				if got.Desc.Size != int64(len(p)) || m.Table.Blobs[0].Digest != got.Desc.Digest {
					t.Errorf("the blob is %d bytes, want %d", got.Desc.Size, len(p))
				}
			})
		}
	}
}

// TestHostilePaths has members of plain archives with names that lead out of the model.
func TestHostilePaths(t *testing.T) {
	t.Parallel()
	for name, path := range map[string]string{
		"parent": "../etc/passwd", "parents": "../../../etc/passwd", "parents from below": "text_encoder/../../../etc/passwd",
		"absolute": "/etc/passwd", "dot": ".", "dot dot": "..", "newline": "a\nb", "delete": "a\x7fb", "invalid UTF-8": "a\xffb",
		"backslashes that leave": `..\..\x`, "backslashes in the middle": `a\..\..\x`,
		"a name of 256 bytes": strings.Repeat("a", 256), "a path of 5000 bytes": strings.Repeat("ab/", 1700) + "x", "65 directories": strings.Repeat("a/", 65) + "b",
	} {
		t.Run(name+" in a tar", func(t *testing.T) {
			t.Parallel()
			_, err := parse("{}", converttest.Layer{MediaType: tarType, Data: tarOf(file("good", "x"), file(path, "x"))})
			if !errors.Is(err, errdefs.ErrInvalidArgument) || !strings.Contains(err.Error(), "layer 0") {
				t.Errorf("got %v, want an error that names layer 0", err)
			}
		})
	}
}

// TestSimilarNames has names that differ on Linux, but not on other systems.
func TestSimilarNames(t *testing.T) {
	t.Parallel()
	for name, pair := range map[string][2]string{
		"one composed, one decomposed": {"mod\u00e8le.gguf", "mode\u0300le.gguf"},
		"one in capitals":              {"MODEL.gguf", "model.gguf"},
		"one with a drive letter":      {`C:\model.gguf`, "model.gguf"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m, err := parse("{}", converttest.Layer{MediaType: raw, Data: "x", Annotations: converttest.At(pair[0])},
				converttest.Layer{MediaType: raw, Data: "y", Annotations: converttest.At(pair[1])})
			if err != nil {
				t.Fatal(err)
			}
			want := pair[:]
			slices.Sort(want)
			if got := paths(m); !slices.Equal(got, want) {
				t.Errorf("got %q, want %q", got, want)
			}
		})
	}
}
