package ollama_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/convert"
	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/convert/format"
	"github.com/ballast-dev/ballast/convert/image"
	"github.com/ballast-dev/ballast/convert/ollama"
	"github.com/containerd/errdefs"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// A fileArtifact returns the same bytes for every blob.
type fileArtifact struct{ manifest, blob []byte }

func (a *fileArtifact) Manifest() []byte { return a.manifest }

func (a *fileArtifact) ReadBlob(context.Context, ocispec.Descriptor, int64) ([]byte, error) {
	return a.blob, nil
}

func (a *fileArtifact) BlobAt(context.Context, ocispec.Descriptor) (io.ReaderAt, error) {
	return strings.NewReader(string(a.blob)), nil
}

// FuzzTensors parses a model of two tensor layers and reads back accepted ones.
func FuzzTensors(f *testing.F) {
	f.Add("; name=x; dtype=F32; shape=1,1", "", []byte("abcd"), entries("b"), "bbbb")
	f.Add("", "vae/a", st(entries("data"), "aaaa"), entries("data"), "bbbb")
	f.Add("", "draft.a", st(entries("a", "a.scale"), "aaaassss"), `{"__metadata__":{"quant_type":"int8"},`+entries("b")[1:], "bbbb")
	f.Add("", "", st(`{"__metadata__":{"quant_type":"int4","a.x":"y"},`+entries("a", "draft.a")[1:], "aaaabbbb"), entries("c"), "cccc")
	for _, params := range []string{
		`; name="../../x"; dtype=F32; shape=[1]`, "; name*=utf-8''..%2f; dtype=F32; shape=1", "; name=x; dtype=F32; shape=[1e9,1e9]", "; name=x; dtype=F32; shape=[1",
		"; name=x; dtype=F32; shape=[4294967296,4294967296]", "; name=x; name*=utf-8''y; dtype=F32; shape=1", "; name=__metadata__; dtype=F32; shape=1",
	} {
		f.Add(params, "../x", []byte("abcd"), entries("data"), "aaaa")
	}
	for _, head := range []string{
		`{"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}}`, `{"a":{"dtype":"F32","shape":[1],"data_offsets":[-4,0]}}`, `{"__metadata__":{"x":1}}`,
		`{"__metadata__":{"quant_type":"martian9"},` + entries("a")[1:], entries("data", "a"), entries(""), entries("a", "b"),
	} {
		f.Add("", "/etc/passwd", st(entries("data"), "aaaa"), head, "aaaabbbb")
	}
	f.Fuzz(func(t *testing.T, params, name string, first []byte, head, data string) {
		b := converttest.NewOllama("", `{"draft":{"tensor_prefix":"draft."}}`)
		b.Layer(tensorType+params, first, name)
		b.Layer(tensorType, st(head, data), "x")
		b.JSON("vae/config.json", "{}")
		built := b.Done()
		m, err := parsers.Parse(context.Background(), converttest.NewArtifact(built))
		if err != nil {
			if !errdefs.IsInvalidArgument(err) && !errdefs.IsNotImplemented(err) && !errors.Is(err, io.ErrUnexpectedEOF) {
				t.Fatalf("error without a category: %v", err)
			}
			return
		}
		files, err := converttest.Extract(m, built.Blobs)
		if err != nil {
			t.Fatal(err)
		}
		for path, file := range files {
			if strings.HasSuffix(path, ".safetensors") {
				if _, _, err := converttest.ReadSafetensors(file.Data); err != nil {
					t.Fatalf("%q: %v", path, err)
				}
			}
		}
		if _, err := converttest.RebuildBlobs(files); err != nil {
			t.Fatal(err)
		}
	})
}

// FuzzTensorManifest parses manifests whose blobs are all the same.
func FuzzTensorManifest(f *testing.F) {
	for _, g := range converttest.Generations {
		m := converttest.OllamaTensors(g, converttest.Tensors(3, 8))
		for _, p := range m.Blobs {
			f.Add(m.Manifest, p)
		}
	}
	f.Fuzz(func(t *testing.T, manifest, blob []byte) {
		m, err := convert.ParseManifest(manifest)
		if err != nil {
			return
		}
		model, err := ollama.Format.Parse(context.Background(), format.Settings{}, &fileArtifact{manifest, blob}, m)
		if err != nil {
			return
		}
		if _, err := model.Table.Encode(); err != nil {
			t.Fatalf("a model with a table that breaks a rule: %v", err)
		}
	})
}

// BenchmarkTensorModel parses the manifest of a model with 1,209 layers and builds its image; the
// blobs are in memory.
func BenchmarkTensorModel(b *testing.B) {
	tensors := converttest.Tensors(1207, 64)
	m := converttest.OllamaTensors(converttest.TensorNamed, tensors)
	var manifest converttest.OllamaManifest
	if err := json.Unmarshal(m.Manifest, &manifest); err != nil {
		b.Fatal(err)
	}
	if n := len(manifest.Layers); n != 1209 {
		b.Fatalf("got %d layers", n)
	}
	for b.Loop() {
		model, err := parsers.Parse(context.Background(), converttest.NewArtifact(m.Built))
		if err != nil {
			b.Fatal(err)
		}
		if _, err := image.Build(model); err != nil {
			b.Fatal(err)
		}
	}
}
