package convert_test

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/convert"
	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/convert/formats"
	"github.com/ballast-dev/ballast/convert/mediatype"
	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// Digests of one letter each.
var (
	digestA = "sha256:" + strings.Repeat("a", 64)
	digestB = "sha256:" + strings.Repeat("b", 64)
	digestC = "sha256:" + strings.Repeat("c", 64)
)

// desc is a descriptor in JSON.
func desc(mediaType, digest string, size any, more ...string) string {
	return fmt.Sprintf(`{"mediaType":%q,"digest":%q,"size":%v%s}`, mediaType, digest, size, strings.Join(more, ""))
}

// manifest is an OCI manifest in JSON.
func manifest(config string, layers ...string) string {
	return fmt.Sprintf(`{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json","config":%s,"layers":[%s]}`, config, strings.Join(layers, ","))
}

func TestParseManifestRefuses(t *testing.T) {
	t.Parallel()
	const image = "application/vnd.oci.image.config.v1+json"
	const layer = "application/vnd.oci.image.layer.v1.tar"
	config := desc(image, digestA, 2)
	good := desc(layer, digestB, 3)
	for _, tt := range []struct {
		name, manifest string
		want           error
		text           string
	}{
		{"larger than the limit", `{"layers":[],"x":"` + strings.Repeat("x", convert.MaxManifestSize) + `"}`, errdefs.ErrInvalidArgument, "more than"},
		{"empty body", "", errdefs.ErrInvalidArgument, "empty"},
		{"HTML error page served with 200", "<html><body>502</body></html>", errdefs.ErrInvalidArgument, "not a manifest: an HTML page"},
		{"HTML with a doctype", "\n<!DOCTYPE html><html>", errdefs.ErrInvalidArgument, "HTML"},
		{"JSON array", "[]", errdefs.ErrInvalidArgument, "not a JSON object"},
		{"truncated", `{"layers":[`, errdefs.ErrInvalidArgument, "not JSON"},
		{"trailing data", manifest(config, good) + "{}", errdefs.ErrInvalidArgument, "after the JSON document"},
		{"byte order mark", "\ufeff" + manifest(config, good), errdefs.ErrInvalidArgument, "not a JSON object"},
		{"invalid UTF-8", `{"layers":[],"x":"` + "\xff" + `"}`, errdefs.ErrInvalidArgument, "UTF-8"},
		{"NaN", `{"layers":[],"x":NaN}`, errdefs.ErrInvalidArgument, "not JSON"},
		{"nested 100000 deep", `{"x":` + strings.Repeat("[", 100_000) + strings.Repeat("]", 100_000) + `}`, errdefs.ErrInvalidArgument, "nested deeper"},
		{"millions of values", `{"x":[` + strings.Repeat("0,", 2_000_000) + `0]}`, errdefs.ErrInvalidArgument, "tokens"},
		{"digest key twice", `{"layers":[{"mediaType":"a/b","digest":"` + digestA + `","digest":"` + digestB + `","size":1}]}`, errdefs.ErrInvalidArgument, `"digest" twice`},
		{"layers twice", `{"layers":[],"layers":[]}`, errdefs.ErrInvalidArgument, "twice"},
		{"DIGEST in capitals", `{"layers":[{"mediaType":"a/b","DIGEST":"` + digestA + `","size":1}]}`, errdefs.ErrInvalidArgument, `"DIGEST", which some readers take for "digest"`},
		{"digest with a long s", `{"layers":[{"mediaType":"a/b","digeſt":"` + digestA + `","size":1}]}`, errdefs.ErrInvalidArgument, `for "digest"`},
		{"digest twice, once in capitals", `{"layers":[{"mediaType":"a/b","digest":"` + digestB + `","DIGEST":"` + digestA + `","size":1}]}`, errdefs.ErrInvalidArgument, `for "digest"`},
		{"layers twice, once in capitals", `{"layers":[],"Layers":[` + good + `]}`, errdefs.ErrInvalidArgument, `"Layers", which some readers take for "layers"`},
		{"a platform in capitals", `{"manifests":[` + desc(layer, digestA, 1, `,"platform":{"OS":"linux"}`) + `]}`, errdefs.ErrInvalidArgument, `for "os"`},
		{"an unknown key twice, once in capitals", `{"layers":[],"new":1,"New":2}`, errdefs.ErrInvalidArgument, `"New" twice`},
		{"layers and manifests", `{"layers":[` + good + `],"manifests":[]}`, errdefs.ErrInvalidArgument, "both an index and an image"},
		{"config and manifests", `{"config":` + config + `,"manifests":[]}`, errdefs.ErrInvalidArgument, "both an index and an image"},
		{"neither layers nor manifests", `{"schemaVersion":2}`, errdefs.ErrInvalidArgument, "not a manifest"},
		{"index type with layers", `{"mediaType":"application/vnd.oci.image.index.v1+json","layers":[]}`, errdefs.ErrInvalidArgument, "without manifests"},
		{"manifest type with manifests", `{"mediaType":"application/vnd.oci.image.manifest.v1+json","manifests":[]}`, errdefs.ErrInvalidArgument, "with manifests"},
		{"schema 1", `{"schemaVersion":1,"fsLayers":[]}`, errdefs.ErrNotImplemented, "schema version 1"},
		{"layers is an object", `{"layers":{}}`, errdefs.ErrInvalidArgument, "layers"},
		{"layer is a string", `{"layers":["x"]}`, errdefs.ErrInvalidArgument, "layers[0]"},
		{"layer is null", `{"layers":[null]}`, errdefs.ErrInvalidArgument, "layers[0]"},
		{"layer without digest", manifest(config, good, `{"mediaType":"a/b","size":1}`), errdefs.ErrInvalidArgument, "layer 1"},
		{"layer without size", manifest(config, good, `{"mediaType":"a/b","digest":"`+digestC+`"}`), errdefs.ErrInvalidArgument, "layer 1"},
		{"layer without media type", manifest(config, good, `{"digest":"`+digestC+`","size":1}`), errdefs.ErrInvalidArgument, "layer 1"},
		{"size -1", manifest(config, desc(layer, digestB, -1)), errdefs.ErrInvalidArgument, "layer 0"},
		{"size 1.5", manifest(config, desc(layer, digestB, "1.5")), errdefs.ErrInvalidArgument, "size"},
		{"size is a string", manifest(config, desc(layer, digestB, `"3"`)), errdefs.ErrInvalidArgument, "size"},
		{"size 2^64", manifest(config, desc(layer, digestB, "18446744073709551616")), errdefs.ErrInvalidArgument, "size"},
		{"size 2^63-1", manifest(config, desc(layer, digestB, int64(math.MaxInt64))), errdefs.ErrInvalidArgument, "layer 0"},
		{"size 2^50+1", manifest(config, desc(layer, digestB, int64(1<<50+1))), errdefs.ErrInvalidArgument, "layer 0"},
		{"config of 2^50+1", manifest(desc(layer, digestA, int64(1<<50+1))), errdefs.ErrInvalidArgument, "config"},
		{"index entry of 2^50+1", `{"manifests":[` + desc(layer, digestA, int64(1<<50+1)) + `]}`, errdefs.ErrInvalidArgument, "entry 0"},
		{"sizes of more than 2^50 together", manifest(config, desc(layer, digestB, int64(1<<49)), desc(layer, digestC, int64(1<<49))), errdefs.ErrInvalidArgument, "add up"},
		{"digest is a path", manifest(config, desc(layer, "sha256:../../x", 1)), errdefs.ErrInvalidArgument, "layer 0"},
		{"digest in capitals", manifest(config, desc(layer, "sha256:"+strings.Repeat("A", 64), 1)), errdefs.ErrInvalidArgument, "layer 0"},
		{"digest with 63 characters", manifest(config, desc(layer, digestA[:70], 1)), errdefs.ErrInvalidArgument, "layer 0"},
		{"digest with 65 characters", manifest(config, desc(layer, digestA+"a", 1)), errdefs.ErrInvalidArgument, "layer 0"},
		{"md5 digest", manifest(config, desc(layer, "md5:"+strings.Repeat("a", 32), 1)), errdefs.ErrNotImplemented, "layer 0"},
		{"sha512 digest", manifest(config, desc(layer, "sha512:"+strings.Repeat("a", 128), 1)), errdefs.ErrNotImplemented, "sha512"},
		{"one digest with two sizes", manifest(config, good, desc(layer, digestB, 4)), errdefs.ErrInvalidArgument, "sizes 3 and 4"},
		{"config and layer of one digest with two sizes", manifest(config, desc(layer, digestA, 3)), errdefs.ErrInvalidArgument, "sizes"},
		{"1001 index entries", `{"manifests":[` + strings.TrimSuffix(strings.Repeat(good+",", 1001), ",") + `]}`, errdefs.ErrInvalidArgument, "more than 1000"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			m, err := convert.ParseManifest([]byte(tt.manifest))
			if !errors.Is(err, tt.want) || !strings.Contains(err.Error(), tt.text) {
				t.Errorf("got %v, %.300v; want %v with %q", m, err, tt.want, tt.text)
			}
			if err != nil && len(err.Error()) > 1000 {
				t.Errorf("the error has %d bytes", len(err.Error()))
			}
		})
	}
}

func TestParseManifestAccepts(t *testing.T) {
	t.Parallel()
	config := desc("application/vnd.oci.image.config.v1+json", digestA, 2)
	for _, tt := range []struct {
		name, manifest string
		layers         int
	}{
		{"unknown fields are ignored", `{"schemaVersion":2,"ggufFile":{"rfilename":"x"},"runner":"ggml","config":` + config + `,"layers":[` + desc("a/b", digestB, 1) + `]}`, 1},
		{"layers null", `{"config":` + config + `,"layers":null}`, 0},
		{"no media type in the body", `{"config":` + config + `,"layers":[]}`, 0},
		{"config without digest", `{"config":{"mediaType":"a/b","digest":"","size":0},"layers":[` + desc("a/b", digestB, 1) + `]}`, 1},
		{"no config", `{"layers":[` + desc("a/b", digestB, 1) + `]}`, 1},
		{"annotations in any letter case", `{"config":` + config + `,"layers":[],"annotations":{"Size":"1","size":"2","layers":"3"}}`, 0},
		{"keys of others in any letter case", `{"config":` + config + `,"layers":[],"x":{"Layers":1,"layers":2}}`, 0},
		{"space around", "\n " + manifest(config) + "\n", 0},
		{"one digest twice with one size", manifest(config, desc("a/b", digestB, 1), desc("a/c", digestB, 1)), 2},
		{"a size of 2^50", manifest(desc("a/b", digestA, 0), desc("a/b", digestB, int64(1<<50))), 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			m, err := convert.ParseManifest([]byte(tt.manifest))
			if err != nil {
				t.Fatal(err)
			}
			if got := len(m.Layers); got != tt.layers {
				t.Errorf("got %d layers, want %d", got, tt.layers)
			}
			if want := digest.FromString(tt.manifest); m.Digest != want {
				t.Errorf("digest: got %s, want %s", m.Digest, want)
			}
		})
	}
}

func TestDescriptorDataIsVerified(t *testing.T) {
	t.Parallel()
	hello := digest.FromString("hello").String()
	for _, tt := range []struct {
		name, descriptor string
		want             []byte
	}{
		{"the blob", desc("a/b", hello, 5, `,"data":"aGVsbG8="`), []byte("hello")},
		{"other bytes", desc("a/b", hello, 5, `,"data":"SGVsbG8="`), nil},
		{"longer than the size", desc("a/b", hello, 4, `,"data":"aGVsbG8="`), nil},
		{"none", desc("a/b", hello, 5, `,"urls":["http://169.254.169.254/"]`), nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m, err := convert.ParseManifest([]byte(manifest(tt.descriptor)))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, m.Config.Data); diff != "" {
				t.Errorf("data (-want +got):\n%s", diff)
			}
			if m.Config.URLs != nil {
				t.Errorf("got urls %v", m.Config.URLs)
			}
		})
	}
}

func TestDetect(t *testing.T) {
	t.Parallel()
	type fields = map[string]any
	d := func(mediaType, digest string) fields {
		return fields{"mediaType": mediaType, "digest": digest, "size": 1}
	}
	const (
		ociManifest = "application/vnd.oci.image.manifest.v1+json"
		ociConfig   = "application/vnd.oci.image.config.v1+json"
		ociLayer    = "application/vnd.oci.image.layer.v1.tar"
		docker      = "application/vnd.docker.distribution.manifest.v2+json"
	)
	early := fields{"mediaType": ociLayer, "digest": digestB, "size": 1, "artifactType": "application/vnd.cnai.model.layer.v1.tar"}
	for _, tt := range []struct {
		name     string
		manifest fields
		want     mediatype.Format
		text     string // of the error
	}{
		{name: "an image", manifest: fields{"mediaType": ociManifest, "config": d(ociConfig, digestA), "layers": []any{d(ociLayer, digestB)}}, want: mediatype.FormatImage},
		{name: "a chart", manifest: fields{"mediaType": ociManifest, "config": d("application/vnd.cncf.helm.config.v1+json", digestA), "layers": []any{d("application/tar+gzip", digestB)}}, want: mediatype.FormatImage},
		{name: "a Docker image", manifest: fields{"mediaType": docker, "config": d("application/vnd.docker.container.image.v1+json", digestA), "layers": []any{d("application/vnd.docker.image.rootfs.diff.tar.gzip", digestB)}}, want: mediatype.FormatImage},
		{name: "an index", manifest: fields{"mediaType": "application/vnd.oci.image.index.v1+json", "manifests": []any{d(ociManifest, digestA)}}, want: mediatype.FormatIndex},
		{name: "an index of models by artifact type", manifest: fields{"artifactType": "application/vnd.cncf.model.manifest.v1+json", "manifests": []any{d(ociManifest, digestA)}}, want: mediatype.FormatIndex},
		{name: "an Ollama list, whose entries have no size", manifest: fields{"mediaType": "application/vnd.ollama.manifest.list.v2+json", "manifests": []any{fields{"digest": digestA, "runner": "ggml"}}}, want: mediatype.FormatOllamaList},
		{name: "Ollama", manifest: fields{"mediaType": docker, "config": d("application/vnd.docker.container.image.v1+json", digestA), "layers": []any{d("application/vnd.ollama.image.model", digestB)}}, want: mediatype.FormatOllama},
		{name: "Ollama in capitals with parameters", manifest: fields{"mediaType": ociManifest, "config": d(ociConfig, digestA), "layers": []any{d("Application/vnd.Ollama.image.tensor; name=x; shape=1,2", digestB)}}, want: mediatype.FormatOllama},
		{name: "an Ollama cloud model", manifest: fields{"mediaType": docker, "config": d("application/vnd.docker.container.image.v1+json", digestA), "layers": []any{}}, want: mediatype.FormatOllama},
		{name: "ModelPack", manifest: fields{"mediaType": ociManifest, "artifactType": "application/vnd.cncf.model.manifest.v1+json", "config": d("application/vnd.cncf.model.config.v1+json", digestA), "layers": []any{d("application/vnd.cncf.model.weight.v1.raw", digestB)}}, want: mediatype.FormatModelPack},
		{name: "ModelPack by its config", manifest: fields{"mediaType": ociManifest, "config": d("application/vnd.cncf.model.config.v1+json", digestA), "layers": []any{}}, want: mediatype.FormatModelPack},
		{name: "ModelPack by a layer, the artifact type being lost", manifest: fields{"mediaType": ociManifest, "config": d("application/vnd.oci.empty.v1+json", digestA), "layers": []any{d("application/vnd.cncf.model.weight.v1.raw", digestB)}}, want: mediatype.FormatModelPack},
		{name: "CNAI", manifest: fields{"mediaType": ociManifest, "artifactType": "application/vnd.cnai.model.manifest.v1+json", "config": d("application/vnd.cnai.model.config.v1+json", digestA), "layers": []any{d("application/vnd.cnai.model.weight.v1.tar", digestB)}}, want: mediatype.FormatCNAI},
		{name: "CNAI early", manifest: fields{"mediaType": ociManifest, "artifactType": "application/vnd.cnai.model.manifest.v1+json", "config": d(ociConfig, digestA), "layers": []any{early}}, want: mediatype.FormatCNAIEarly},
		{name: "CNAI early with an empty config", manifest: fields{"mediaType": ociManifest, "artifactType": "application/vnd.cnai.model.manifest.v1+json", "config": d("application/vnd.oci.empty.v1+json", digestA), "layers": []any{early}}, want: mediatype.FormatCNAIEarly},
		{name: "CNAI early, the artifact type of the manifest being lost", manifest: fields{"mediaType": ociManifest, "config": d(ociConfig, digestA), "layers": []any{early}}, want: mediatype.FormatCNAIEarly},
		{name: "CNAI early by the media type of the manifest", manifest: fields{"mediaType": "application/vnd.cnai.model.manifest.v1+json", "config": d("application/vnd.cnai.model.config.v1+json", digestA), "layers": []any{d("application/vnd.cnai.model.layer.v1.tar", digestB)}}, want: mediatype.FormatCNAIEarly},
		{name: "Docker AI", manifest: fields{"mediaType": ociManifest, "config": d("application/vnd.docker.ai.model.config.v0.1+json", digestA), "layers": []any{d("application/vnd.docker.ai.gguf.v3", digestB)}}, want: mediatype.FormatDockerAI},
		{name: "Docker AI before its first release", manifest: fields{"mediaType": ociManifest, "config": d("application/vnd.docker.ai.model.config.v1+json", digestA), "layers": []any{d("application/vnd.docker.ai.model.file.v1+gguf", digestB)}}, want: mediatype.FormatDockerAI},
		{name: "KitOps", manifest: fields{"mediaType": ociManifest, "config": d("application/vnd.kitops.modelkit.config.v1+json", digestA), "layers": []any{d("application/vnd.kitops.modelkit.model.v1.tar", digestB)}}, want: mediatype.FormatKitOps},
		{name: "a carton", manifest: fields{"mediaType": ociManifest, "config": d("application/vnd.oci.empty.v1+json", digestA), "layers": []any{d(ociLayer, digestC), fields{"mediaType": ociLayer, "digest": digestB, "size": 1, "annotations": fields{"org.opencontainers.image.title": "a.carton"}}}}, want: mediatype.FormatCarton},
		{name: "two cartons", manifest: fields{"mediaType": ociManifest, "config": d(ociConfig, digestA), "layers": []any{d("application/vnd.carton.v1+zip", digestB), d("application/vnd.carton.v1+zip", digestC)}}, want: mediatype.FormatImage},
		{name: "an image that was converted before", manifest: fields{"mediaType": ociManifest, "artifactType": "application/vnd.cncf.model.manifest.v1+json", "config": d(ociConfig, digestA), "layers": []any{d("application/vnd.oci.image.layer.ballast.table.v1+json", digestB)}}, want: mediatype.FormatImage},
		{name: "ModelPack of version 2", manifest: fields{"mediaType": ociManifest, "artifactType": "application/vnd.cncf.model.manifest.v2+json", "config": d("application/vnd.cncf.model.config.v2+json", digestA), "layers": []any{}}, text: "unknown version v2"},
		{name: "Docker AI of an unknown version", manifest: fields{"mediaType": ociManifest, "config": d("application/vnd.docker.ai.model.config.v7+json", digestA), "layers": []any{}}, text: "unknown docker-ai media type"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			p, err := json.Marshal(tt.manifest)
			if err != nil {
				t.Fatal(err)
			}
			m, err := convert.ParseManifest(p)
			if err != nil {
				t.Fatal(err)
			}
			got, err := formats.All().Detect(m)
			if tt.text != "" {
				if !errors.Is(err, errdefs.ErrNotImplemented) || !strings.Contains(err.Error(), tt.text) {
					t.Errorf("got %v, want errdefs.ErrNotImplemented with %q", err, tt.text)
				}
				return
			}
			if err != nil || got != tt.want {
				t.Errorf("got %q, %v; want %q", got, err, tt.want)
			}
		})
	}
}

func TestUnsupportedFormatIsNamed(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, manifest, text string
		want                 error
	}{
		{"an empty list of variants", `{"mediaType":"application/vnd.ollama.manifest.list.v2+json","manifests":[]}`, "0 entries", errdefs.ErrInvalidArgument},
		{"KitOps", manifest(desc("application/vnd.kitops.modelkit.config.v2+json", digestA, 1)), "unknown version v2", errdefs.ErrNotImplemented},
		{"an index", `{"manifests":[]}`, "index", convert.ErrNotModel},
		{"an image", manifest(desc("application/vnd.oci.image.config.v1+json", digestA, 1)), "image", convert.ErrNotModel},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			a := converttest.NewArtifact(&converttest.Built{Manifest: []byte(tt.manifest)})
			_, err := parsers.Parse(context.Background(), a)
			if !errors.Is(err, tt.want) || !strings.Contains(err.Error(), tt.text) {
				t.Errorf("got %v, want %v with %q", err, tt.want, tt.text)
			}
		})
	}
}

func FuzzManifest(f *testing.F) {
	for _, b := range converttest.All(converttest.Files([]byte("GGUF"))) {
		f.Add(b.Manifest, uint64(0))
		f.Add(b.Manifest, uint64(1))
	}
	f.Add([]byte(`{"manifests":[`+desc("a/b", digestA, 1, `,"platform":{"os":"linux"}`)+`]}`), uint64(0))
	f.Add([]byte(`{"layers":null,"LAYERS":[{}]}`), uint64(0))
	f.Add([]byte(`<html>`), uint64(0))
	f.Fuzz(func(t *testing.T, p []byte, seed uint64) {
		if object := map[string]json.RawMessage(nil); seed > 0 && json.Unmarshal(p, &object) == nil && object != nil {
			p = converttest.Mutate(rand.New(rand.NewPCG(seed, 0)), p)
		}
		m, err := convert.ParseManifest(p)
		if err != nil {
			if !errors.Is(err, errdefs.ErrInvalidArgument) && !errors.Is(err, errdefs.ErrNotImplemented) {
				t.Fatalf("error without a category: %v", err)
			}
			return
		}
		var sum int64
		for i, l := range append(m.Layers, m.Config) {
			if sum += l.Size; l.Size < 0 || sum < 0 {
				t.Fatalf("layer %d: size %d, sum %d", i, l.Size, sum)
			}
			if l.Data != nil && digest.FromBytes(l.Data) != l.Digest {
				t.Fatalf("layer %d: data is not the blob", i)
			}
		}
		if m.IsIndex && len(m.Layers) > 0 {
			t.Fatal("an index with layers")
		}
		if _, err := formats.All().Detect(m); err != nil && !errors.Is(err, errdefs.ErrNotImplemented) && !errors.Is(err, errdefs.ErrInvalidArgument) {
			t.Fatalf("Detect: error without a category: %v", err)
		}
		sameForAll(t, p, m)
	})
}

// mutations is how many documents TestMutatedManifests changes.
var mutations = flag.Uint64("mutations", 5_000, "for TestMutatedManifests")

// TestMutatedManifests changes manifests and indexes in ways that mislead readers: whoever uses encoding/json, as
// containerd does, reads what ParseManifest does, or ParseManifest refuses the document.
func TestMutatedManifests(t *testing.T) {
	t.Parallel()
	good := desc("application/vnd.oci.image.layer.v1.tar", digestB, 3)
	docs := [][]byte{
		[]byte(`{"schemaVersion":2,"manifests":[` + good + `,` + desc("application/vnd.oci.image.manifest.v1+json", digestA, 1, `,"platform":{"os":"linux","architecture":"amd64"}`) + `]}`),
		[]byte(manifest(desc("application/vnd.oci.image.config.v1+json", digestA, 2), good, good)),
	}
	for _, b := range converttest.All(converttest.Files([]byte("GGUF"))) {
		docs = append(docs, b.Manifest)
	}
	read := 0
	for seed := range *mutations {
		p := converttest.Mutate(rand.New(rand.NewPCG(seed, 0)), docs[seed%uint64(len(docs))])
		m, err := convert.ParseManifest(p)
		if err != nil {
			continue
		}
		read++
		if sameForAll(t, p, m); t.Failed() {
			t.Fatalf("seed %d: %s", seed, p)
		}
	}
	if t.Logf("%d of %d documents are read", read, *mutations); read < int(*mutations/20) {
		t.Errorf("only %d of %d documents are read: the changes are too coarse to show a difference", read, *mutations)
	}
}

// sameForAll compares m with what encoding/json reads in p.
func sameForAll(t *testing.T, p []byte, m *convert.Manifest) {
	t.Helper()
	if mediatype.IsVariants(m.MediaType) {
		return // containerd does not read them
	}
	var image ocispec.Manifest
	var index ocispec.Index
	if json.Unmarshal(p, &image) != nil || json.Unmarshal(p, &index) != nil {
		return // containerd refuses it
	}
	plain := func(ds []convert.Descriptor) (out []ocispec.Descriptor) {
		for _, d := range ds {
			out = append(out, d.Descriptor)
		}
		return out
	}
	got := []any{m.MediaType, m.ArtifactType, m.Config.Digest, plain(m.Layers), plain(m.Manifests), m.Annotations}
	want := []any{image.MediaType, image.ArtifactType, image.Config.Digest, image.Layers, index.Manifests, image.Annotations}
	if m.Config.Digest != "" {
		got, want = append(got, m.Config.Descriptor), append(want, image.Config)
	}
	if diff := cmp.Diff(want, got, cmpopts.EquateEmpty(), cmpopts.IgnoreFields(ocispec.Descriptor{}, "URLs", "Data")); diff != "" {
		t.Errorf("readers differ (-encoding/json +ParseManifest):\n%s", diff)
	}
}
