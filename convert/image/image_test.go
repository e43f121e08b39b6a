package image_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/convert"
	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/convert/formats"
	"github.com/ballast-dev/ballast/convert/image"
	"github.com/ballast-dev/ballast/convert/mediatype"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

var update = flag.Bool("update", false, "write the golden files")

var parsers = formats.All()

func build(t testing.TB, b *converttest.Built) (*convert.Model, *image.Image) {
	t.Helper()
	m, err := parsers.Parse(context.Background(), converttest.NewArtifact(b))
	if err != nil {
		t.Fatal(err)
	}
	im, err := image.Build(m)
	if err != nil {
		t.Fatal(err)
	}
	return m, im
}

// TestGolden holds the bytes of converted images. If they change, MappingVersion must.
// Compressed layers are left out: their bytes change with the compressor.
func TestGolden(t *testing.T) {
	t.Parallel()
	for _, b := range converttest.All(converttest.Files([]byte("GGUF and some weights"))) {
		if strings.Contains(b.Name, "gzip") || strings.Contains(b.Name, "zstd") {
			continue
		}
		t.Run(b.Name, func(t *testing.T) {
			_, im := build(t, b)
			var got bytes.Buffer
			for _, part := range []struct {
				name string
				p    []byte
			}{{"manifest", im.Manifest}, {"config", im.Config}, {"table", im.Table}} {
				fmt.Fprintf(&got, "-- %s %s --\n", part.name, digest.FromBytes(part.p))
				if err := json.Indent(&got, part.p, "", "  "); err != nil {
					t.Fatal(err)
				}
				got.WriteByte('\n')
			}
			file := filepath.Join("testdata", b.Name+".golden")
			if *update {
				if err := os.WriteFile(file, got.Bytes(), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), got.String()); diff != "" {
				t.Errorf("image (-want +got):\n%s", diff)
			}
		})
	}
}

// TestContainerdAcceptsImage checks what has to hold of every image.
func TestContainerdAcceptsImage(t *testing.T) {
	t.Parallel()
	configs := map[digest.Digest]string{}
	for _, b := range converttest.All(converttest.Files([]byte("GGUF and some weights"))) {
		t.Run(b.Name, func(t *testing.T) {
			m, im := build(t, b)
			var man ocispec.Manifest
			var cfg ocispec.Image
			if err := errors.Join(json.Unmarshal(im.Manifest, &man), json.Unmarshal(im.Config, &cfg)); err != nil {
				t.Fatal(err)
			}
			if man.MediaType != "application/vnd.oci.image.manifest.v1+json" || man.ArtifactType != "application/vnd.cncf.model.manifest.v1+json" {
				t.Errorf("got types %s and %s", man.MediaType, man.ArtifactType)
			}
			want := map[string]string{"dev.ballast.origin.format": string(b.Format), "dev.ballast.origin.digest": b.Digest().String(), "dev.ballast.mapping.version": strconv.Itoa(convert.MappingVersion)}
			if diff := cmp.Diff(want, man.Annotations); diff != "" {
				t.Errorf("annotations (-want +got):\n%s", diff)
			}
			wantConfig := ocispec.Descriptor{MediaType: "application/vnd.oci.image.config.v1+json", Digest: digest.FromBytes(im.Config), Size: int64(len(im.Config))}
			if diff := cmp.Diff(wantConfig, man.Config); diff != "" {
				t.Errorf("config (-want +got):\n%s", diff)
			}
			if cfg.OS != "linux" || cfg.Architecture != "amd64" || cfg.RootFS.Type != "layers" {
				t.Errorf("config: got %+v", cfg)
			}
			if diff := cmp.Diff(ocispec.ImageConfig{}, cfg.Config); diff != "" {
				t.Errorf("the config of a container is not empty:\n%s", diff)
			}
			checkLayers(t, m, im, man, cfg)
			if other, ok := configs[im.ConfigDigest]; ok {
				t.Errorf("the same config as %s", other)
			}
			configs[im.ConfigDigest] = b.Name
		})
	}
}

func checkLayers(t *testing.T, m *convert.Model, im *image.Image, man ocispec.Manifest, cfg ocispec.Image) {
	t.Helper()
	if len(man.Layers) != len(cfg.RootFS.DiffIDs) || len(man.Layers) != len(m.Table.Blobs)+1 {
		t.Fatalf("got %d layers, %d diffIDs, %d blobs", len(man.Layers), len(cfg.RootFS.DiffIDs), len(m.Table.Blobs))
	}
	for i, blob := range m.Table.Blobs {
		l := man.Layers[i]
		if l.MediaType != "application/vnd.oci.image.layer.ballast.blob.v1" || l.Digest != blob.Digest || l.Size != blob.Size {
			t.Errorf("layer %d: got %+v for blob %+v", i, l, blob)
		}
		if got := l.Annotations["containerd.io/snapshot/ballast.blob"]; got != blob.Digest.String() {
			t.Errorf("layer %d: label %q", i, got)
		}
		if got := l.Annotations["dev.ballast.layer.mediatype"]; !strings.HasPrefix(got, "application/vnd.cncf.model.") {
			t.Errorf("layer %d: type %q", i, got)
		}
		if got, want := cfg.RootFS.DiffIDs[i], filetable.BlobDiffID(blob.Digest); got != want {
			t.Errorf("layer %d: diffID %s, want %s", i, got, want)
		}
	}
	last := len(man.Layers) - 1
	want := ocispec.Descriptor{
		MediaType: "application/vnd.oci.image.layer.ballast.table.v1+json", Digest: digest.FromBytes(im.Table), Size: int64(len(im.Table)),
		Annotations: map[string]string{"containerd.io/snapshot/ballast.table": digest.FromBytes(im.Table).String()},
	}
	if diff := cmp.Diff(want, man.Layers[last]); diff != "" {
		t.Errorf("table layer (-want +got):\n%s", diff)
	}
	if got := cfg.RootFS.DiffIDs[last]; got != want.Digest {
		t.Errorf("table layer: diffID %s, want %s", got, want.Digest)
	}
	table, err := filetable.Decode(im.Table)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(&m.Table, table); diff != "" {
		t.Errorf("table (-model +image):\n%s", diff)
	}
}

func TestBuildIsDeterministic(t *testing.T) {
	t.Parallel()
	files := converttest.Files([]byte("GGUF and some weights"))
	for i, first := range converttest.All(files) {
		_, want := build(t, first)
		for range 10 {
			b := converttest.All(files)[i]
			b.Blobs = shuffled(b.Blobs)
			_, got := build(t, b)
			if !bytes.Equal(want.Manifest, got.Manifest) || !bytes.Equal(want.Config, got.Config) || !bytes.Equal(want.Table, got.Table) {
				t.Fatalf("%s: two builds differ", b.Name)
			}
		}
	}
}

// TestAnnotationOrderIsIrrelevant builds the model of manifests that differ in the order
// of keys only; all but the digest of the origin must be the same.
func TestAnnotationOrderIsIrrelevant(t *testing.T) {
	t.Parallel()
	var want *convert.Model
	for _, order := range []string{
		`"org.cncf.model.filepath":"a","org.cncf.model.file.metadata+json":"{\"mode\":493}"`,
		`"org.cncf.model.file.metadata+json":"{\"mode\":493}","org.cncf.model.filepath":"a"`,
	} {
		b := &converttest.Built{Manifest: []byte(`{"artifactType":"application/vnd.cncf.model.manifest.v1+json","layers":[{"mediaType":"application/vnd.cncf.model.weight.v1.raw",` +
			`"digest":"` + digest.FromString("x").String() + `","size":1,"annotations":{` + order + `}}]}`)}
		m, _ := build(t, b)
		m.Table.Origin.Digest = digest.FromString("")
		m.Documents = convert.Documents{}
		if want == nil {
			want = m
		}
		if diff := cmp.Diff(want, m); diff != "" {
			t.Errorf("models (-first +second):\n%s", diff)
		}
	}
}

// shuffled returns a map that was filled in another order.
func shuffled(m map[digest.Digest][]byte) map[digest.Digest][]byte {
	out := map[digest.Digest][]byte{}
	for _, k := range slices.Backward(slices.Sorted(maps.Keys(m))) {
		out[k] = m[k]
	}
	return out
}

// manyLayers makes ModelPack with n raw layers, whose sizes repeat.
func manyLayers(n int) *converttest.Built {
	var layers []converttest.Layer
	for i := range n {
		layers = append(layers, converttest.Layer{
			MediaType: "application/vnd.cncf.model.weight.v1.raw", Data: fmt.Sprintf("%d%s", i, strings.Repeat("x", i%7)),
			Annotations: converttest.At(fmt.Sprintf("dir/model-%05d-of-%05d.safetensors", i, n)),
		})
	}
	return converttest.Make(converttest.Spec{
		ArtifactType: "application/vnd.cncf.model.manifest.v1+json", ConfigType: "application/vnd.cncf.model.config.v1+json", Config: "{}", Layers: layers,
	})
}

func TestMoreThan256Blobs(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ blobs, want int }{{255, 255}, {256, 256}, {257, 32}, {1209, 32}} {
		m, im := build(t, manyLayers(tt.blobs))
		var man ocispec.Manifest
		if err := json.Unmarshal(im.Manifest, &man); err != nil {
			t.Fatal(err)
		}
		kept := man.Layers[:len(man.Layers)-1]
		if len(kept) != tt.want || len(m.Table.Blobs) != tt.blobs {
			t.Fatalf("%d blobs: got %d layers, %d blobs in the table", tt.blobs, len(kept), len(m.Table.Blobs))
		}
		smallest := kept[0].Size
		in := map[digest.Digest]bool{}
		for _, l := range kept {
			smallest = min(smallest, l.Size)
			in[l.Digest] = true
		}
		next := 0
		for _, b := range m.Table.Blobs {
			if !in[b.Digest] && b.Size > smallest {
				t.Errorf("%d blobs: %s with %d bytes is left out, one of %d bytes is not", tt.blobs, b.Digest, b.Size, smallest)
			}
			if next < len(kept) && kept[next].Digest == b.Digest {
				next++
			}
		}
		if next != len(kept) {
			t.Errorf("%d blobs: the layers are not in the order of the origin", tt.blobs)
		}
	}
}

func TestOriginSetsNoContainerConfig(t *testing.T) {
	t.Parallel()
	b := converttest.Make(converttest.Spec{
		ArtifactType: "application/vnd.cncf.model.manifest.v1+json", ConfigType: "application/vnd.cncf.model.config.v1+json",
		Config: `{"config":{"Env":["LD_PRELOAD=/x"],"Entrypoint":["/x"],"Cmd":["x"],"Volumes":{"/etc":{}},"Labels":{"io.cri-containerd.image":"x"},"User":"0","architecture":"a"},` +
			`"created":"2025-01-01T00:00:00Z","rootfs":{"type":"layers","diff_ids":[]},"history":[{}],"os":"windows"}`,
		Annotations: map[string]string{"containerd.io/snapshot/x": "y", "dev.ballast.origin.format": "z"},
		Layers: []converttest.Layer{{MediaType: "application/vnd.cncf.model.weight.v1.raw", Data: "x", Annotations: map[string]string{
			"org.cncf.model.filepath": "a", "containerd.io/snapshot/ballast.table": "x", "containerd.io/snapshot/overlay.upperdir": "/",
		}}},
	})
	_, im := build(t, b)
	for _, word := range []string{"LD_PRELOAD", "Entrypoint", "Cmd", "Volumes", "Labels", "Env", "User", "windows", "history", "created", "upperdir", `"y"`, `"z"`} {
		if bytes.Contains(im.Config, []byte(word)) || bytes.Contains(im.Manifest, []byte(word)) {
			t.Errorf("%q is in\n%s\n%s", word, im.Manifest, im.Config)
		}
	}
}

func TestAnnotationLength(t *testing.T) {
	t.Parallel()
	path := strings.Repeat(strings.Repeat("p", 250)+"/", 16) + "x" // 4017 bytes
	long := path + strings.Repeat("y", 70)
	b := converttest.Make(converttest.Spec{
		ArtifactType: "application/vnd.cncf.model.manifest.v1+json",
		Layers: []converttest.Layer{
			{MediaType: "application/vnd.cncf.model.weight.v1.raw", Data: "x", Annotations: converttest.At(path)},
			{MediaType: "application/vnd.cncf.model.weight.v1.raw", Data: "y", Annotations: converttest.At(long)},
		},
	})
	b.Manifest = bytes.Replace(b.Manifest, []byte(`"config":{"mediaType":"","digest":"","size":0},`), nil, 1)
	_, im := build(t, b)
	var man ocispec.Manifest
	if err := json.Unmarshal(im.Manifest, &man); err != nil {
		t.Fatal(err)
	}
	for i, l := range man.Layers {
		for k, v := range l.Annotations {
			if len(k)+len(v) > 4096 {
				t.Errorf("layer %d: %s has %d bytes", i, k, len(v))
			}
		}
	}
	if got := man.Layers[0].Annotations["org.cncf.model.filepath"]; got != path {
		t.Errorf("got path %q", got)
	}
}

func TestBuildRefusesInvalidModels(t *testing.T) {
	t.Parallel()
	m, _ := build(t, converttest.ModelPackRaw(converttest.Files([]byte("GGUF"))))
	m.Table.Files[0].Path = "../x"
	if _, err := image.Build(m); !errors.Is(err, errdefs.ErrInvalidArgument) {
		t.Errorf("got %v, want errdefs.ErrInvalidArgument", err)
	}
	m, _ = build(t, converttest.ModelPackRaw(converttest.Files([]byte("GGUF"))))
	m.Layers = m.Layers[1:]
	if _, err := image.Build(m); !errors.Is(err, errdefs.ErrInvalidArgument) {
		t.Errorf("got %v, want errdefs.ErrInvalidArgument", err)
	}
}

func TestBuildIndex(t *testing.T) {
	t.Parallel()
	b := converttest.ModelPackRaw(converttest.Files([]byte("GGUF")))
	_, im := build(t, b)
	amd64 := &ocispec.Platform{OS: "linux", Architecture: "amd64"}
	arm64 := &ocispec.Platform{OS: "linux", Architecture: "arm64"}
	riscv := &ocispec.Platform{OS: "linux", Architecture: "riscv64"}
	origin := ocispec.Descriptor{MediaType: mediatype.OCIManifest, Digest: b.Digest(), Size: int64(len(b.Manifest))}
	withPlatform := origin
	withPlatform.Platform = riscv
	ordinary := ocispec.Descriptor{MediaType: mediatype.OCIManifest, Digest: digest.FromString("x"), Size: 1, Platform: amd64}
	idx, err := image.BuildIndex(digest.FromString("index"), []image.Child{{Desc: origin, Image: im}, {Desc: ordinary}, {Desc: withPlatform, Image: im}})
	if err != nil {
		t.Fatal(err)
	}
	if idx.Digest != digest.FromBytes(idx.Manifest) {
		t.Errorf("digest %s is not that of the bytes", idx.Digest)
	}
	var got ocispec.Index
	if err := json.Unmarshal(idx.Manifest, &got); err != nil {
		t.Fatal(err)
	}
	entry := func(p *ocispec.Platform) ocispec.Descriptor {
		return ocispec.Descriptor{
			MediaType: "application/vnd.oci.image.manifest.v1+json", ArtifactType: "application/vnd.cncf.model.manifest.v1+json", Digest: im.Digest, Size: int64(len(im.Manifest)),
			Annotations: map[string]string{"dev.ballast.origin.digest": b.Digest().String()}, Platform: p,
		}
	}
	if diff := cmp.Diff([]ocispec.Descriptor{entry(amd64), entry(arm64), ordinary, entry(riscv)}, got.Manifests); diff != "" {
		t.Errorf("entries (-want +got):\n%s", diff)
	}
	if _, err := image.BuildIndex(digest.FromString("index"), nil); !errors.Is(err, errdefs.ErrInvalidArgument) {
		t.Errorf("no entries: got %v", err)
	}
}

// BenchmarkConvert parses and builds a model of 256 layers.
func BenchmarkConvert(b *testing.B) {
	built := manyLayers(256)
	b.ReportAllocs()
	for b.Loop() {
		build(b, built)
	}
}
