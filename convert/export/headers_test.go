package export_test

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/ballast-dev/ballast/convert"
	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/convert/export"
	"github.com/ballast-dev/ballast/convert/mediatype"
	"github.com/ballast-dev/ballast/convert/registrytest"
	"github.com/ballast-dev/ballast/convert/remote"
	"github.com/ballast-dev/ballast/convert/resolve"
	"github.com/google/go-cmp/cmp"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// result converts a model and returns its config and manifest.
func result(t *testing.T, s *registrytest.Server, c *remote.Client, src *resolve.Source, repository string, o export.Options) (convert.Config, ocispec.Manifest) {
	t.Helper()
	res, err := export.Run(t.Context(), src, toServer(t, c, s.Host()+"/"+repository+":1"), o)
	if err != nil {
		t.Fatal(err)
	}
	var m ocispec.Manifest
	var cfg convert.Config
	if err := json.Unmarshal(res.Manifest, &m); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(s.Blob(repository, m.Config.Digest), &cfg); err != nil {
		t.Fatal(err)
	}
	return cfg, m
}

// TestHeaders checks that facts in the header of weights are in the config of each form that has a config,
// if the origin has none, and in no form that must equal the image of a node.
func TestHeaders(t *testing.T) {
	s, c := registrytest.New(t), client(t, remote.Credentials{})
	weights := converttest.GGUF(converttest.SmallGGUF())
	for _, b := range []*converttest.Built{
		converttest.Ollama(converttest.Files(weights), converttest.OllamaConfigNew), converttest.DockerAIGGUF(converttest.Files(weights)),
		converttest.KitOps(converttest.Files(weights)),
	} {
		ref := s.Add("from/"+b.Name, "1", b)
		for _, o := range []export.Options{{}, {NoChunks: true}, {Form: export.FormModelPack}} {
			from := fromServer(t, c, ref)
			known := from.Model.Config
			cfg, m := result(t, s, c, from, "to/"+b.Name, o)
			filled := !o.NoChunks
			if b.Format == mediatype.FormatKitOps && (o.Form == "" || o.Form == export.FormBallast) {
				filled = false // its weights are in an archive
			}
			want := convert.ModelConfig{Architecture: "llama", Format: "gguf", ParamSize: "8.3K", Quantization: "Q8_0"}
			if !filled {
				want = convert.ModelConfig{}
			}
			want = convert.MergeConfig(known, convert.Config{Config: want}).Config
			got := cfg.Config
			got.Capabilities = nil
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%s as %+v (-want +got):\n%s", b.Name, o, diff)
			}
			if got := m.Annotations["dev.ballast.model.context.length"]; (got == "2048") != filled {
				t.Errorf("%s as %+v: context length %q", b.Name, o, got)
			}
		}
	}
}

// TestOriginOfConvertedImage checks that a converted image has the documents of its origin.
func TestOriginOfConvertedImage(t *testing.T) {
	s, c := registrytest.New(t), client(t, remote.Credentials{})
	for _, b := range models() {
		first := fromServer(t, c, s.Add("from/"+b.Name, "1", b))
		res, err := export.Run(t.Context(), first, toServer(t, c, s.Host()+"/to/"+b.Name+":1"), export.Options{NoChunks: true})
		if err != nil {
			t.Fatal(err)
		}
		src := fromServer(t, c, s.Host()+"/to/"+b.Name+":1")
		if !bytes.Equal(src.Model.Documents.Manifest, b.Manifest) || !bytes.Equal(src.Model.Documents.Config, first.Model.Documents.Config) || len(src.Losses) != 0 {
			t.Errorf("%s: manifest %.200q, config %.200q, losses %v", b.Name, src.Model.Documents.Manifest, src.Model.Documents.Config, src.Losses)
		}
		again, err := export.Run(t.Context(), src, nil, export.Options{NoChunks: true, DryRun: true})
		if err != nil {
			t.Errorf("%s: converted again: %v", b.Name, err)
		} else if again.Digest != res.Digest {
			t.Errorf("%s: converted again: got %s, want %s", b.Name, again.Digest, res.Digest)
		}
	}
}
