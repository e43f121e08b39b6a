package main

import (
	"archive/tar"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/ballast-dev/ballast/test/e2e/node"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// modelFile is the name of the only file of a model.
const modelFile = "model.safetensors"

const modelPack = "application/vnd.cncf.model."

// model is a file of incompressible bytes in a registry.
type model struct {
	size   int64
	seed   uint64
	digest digest.Digest

	repository string // with the tag v1
}

// bytes streams the content.
func (m model) bytes() io.Reader {
	var key [32]byte
	binary.LittleEndian.PutUint64(key[:], m.seed)
	return io.LimitReader(rand.NewChaCha8(key), m.size)
}

func hashOf(r io.Reader) (digest.Digest, int64, error) {
	h := sha256.New()
	n, err := io.Copy(h, r)
	return digest.NewDigest(digest.SHA256, h), n, err
}

// pushModel pushes a ModelPack of one raw layer.
func (b *bench) pushModel(repository string, size int64, seed uint64) model {
	m := model{size: size, seed: seed, repository: repository}
	d, _, err := hashOf(m.bytes())
	if err != nil {
		b.t.Fatalf("%v", err)
	}
	m.digest = d
	b.node.Registry.PushBlob(b.t, repository, d, size, m.bytes())
	layer := ocispec.Descriptor{MediaType: modelPack + "weight.v1.raw", Digest: d, Size: size,
		Annotations: map[string]string{"org.cncf.model.filepath": modelFile}}
	b.pushModelPack(repository, "v1", []ocispec.Descriptor{layer}, nil)
	return m
}

func (b *bench) pushModelPack(repository, tag string, layers []ocispec.Descriptor, blobs map[digest.Digest][]byte) {
	config := map[string]any{
		"descriptor": map[string]any{"name": repository}, "config": map[string]any{"format": "safetensors"},
		"modelfs": map[string]any{"type": "layers", "diffIds": digestsOf(layers)},
	}
	b.push(repository, tag, ocispec.Manifest{ArtifactType: modelPack + "manifest.v1+json", Layers: layers}, modelPack+"config.v1+json", config, blobs)
}

// pushTar pushes the same bytes as an ordinary image of one uncompressed layer, the fastest form for
// stock containerd. It returns the digest of the layer.
func (b *bench) pushTar(repository string, m model) digest.Digest {
	stream := func() io.Reader {
		r, w := io.Pipe()
		go func() {
			tw := tar.NewWriter(w)
			h := &tar.Header{Name: modelFile, Mode: 0o644, Size: m.size, Typeflag: tar.TypeReg, ModTime: time.Unix(1_700_000_000, 0)}
			err := tw.WriteHeader(h)
			if err == nil {
				_, err = io.Copy(tw, m.bytes())
			}
			if err == nil {
				err = tw.Close()
			}
			w.CloseWithError(err)
		}()
		return r
	}
	d, n, err := hashOf(stream())
	if err != nil {
		b.t.Fatalf("%v", err)
	}
	b.node.Registry.PushBlob(b.t, repository, d, n, stream())
	layer := ocispec.Descriptor{MediaType: ocispec.MediaTypeImageLayer, Digest: d, Size: n}
	config := ocispec.Image{Platform: ocispec.Platform{OS: "linux", Architecture: "amd64"}, RootFS: ocispec.RootFS{Type: "layers", DiffIDs: []digest.Digest{d}}}
	b.push(repository, "v1", ocispec.Manifest{Layers: []ocispec.Descriptor{layer}}, ocispec.MediaTypeImageConfig, config, nil)
	return d
}

func (b *bench) push(repository, tag string, m ocispec.Manifest, configType string, config any, blobs map[digest.Digest][]byte) {
	c, err := json.Marshal(config)
	if err != nil {
		b.t.Fatalf("%v", err)
	}
	m.Versioned, m.MediaType = specs.Versioned{SchemaVersion: 2}, ocispec.MediaTypeImageManifest
	m.Config = ocispec.Descriptor{MediaType: configType, Digest: digest.FromBytes(c), Size: int64(len(c))}
	p, err := json.Marshal(m)
	if err != nil {
		b.t.Fatalf("%v", err)
	}
	all := map[digest.Digest][]byte{m.Config.Digest: c}
	for d, p := range blobs {
		all[d] = p
	}
	b.node.Registry.Push(b.t, repository, tag, node.Artifact{Manifest: p, MediaType: m.MediaType, Blobs: all})
}

func digestsOf(layers []ocispec.Descriptor) (ds []digest.Digest) {
	for _, l := range layers {
		ds = append(ds, l.Digest)
	}
	return ds
}

// conversion returns the time of the facade's response for a new tag, and for the same tag again,
// without the time of the same requests at the registry.
func (b *bench) conversion(layers, run int) (first, again time.Duration) {
	const repository = "bench/layers"
	blobs := map[digest.Digest][]byte{}
	var descs []ocispec.Descriptor
	for i := range layers {
		p := fmt.Appendf(nil, "layer %d of run %d", i, run)
		d := digest.FromBytes(p)
		blobs[d] = p
		descs = append(descs, ocispec.Descriptor{MediaType: modelPack + "weight.v1.raw", Digest: d, Size: int64(len(p)),
			Annotations: map[string]string{"org.cncf.model.filepath": fmt.Sprintf("tensors/%03d.safetensors", i)}})
	}
	tag := fmt.Sprintf("run%d", run)
	b.pushModelPack(repository, tag, descs, blobs)
	var m ocispec.Manifest
	manifest := timed(func() {
		p := b.get("http://" + b.node.Registry.Host + "/v2/" + repository + "/manifests/" + tag)
		if err := json.Unmarshal(p, &m); err != nil {
			b.t.Fatalf("%v", err)
		}
	})
	config := timed(func() {
		b.get("http://" + b.node.Registry.Host + "/v2/" + repository + "/blobs/" + m.Config.Digest.String())
	})
	first = b.ask(repository, tag) - manifest - config
	again = b.ask(repository, tag) - manifest
	return max(0, first), max(0, again)
}

func (b *bench) get(url string) []byte { return b.getBy(http.DefaultClient, url) }

func (b *bench) getBy(client *http.Client, url string) []byte {
	req, err := http.NewRequest(http.MethodGet, url, nil)
	if err != nil {
		b.t.Fatalf("%v", err)
	}
	req.Header.Set("Accept", ocispec.MediaTypeImageManifest)
	resp, err := client.Do(req)
	if err != nil {
		b.t.Fatalf("%v", err)
	}
	defer resp.Body.Close()
	p, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		b.t.Fatalf("GET %s: %s: %v: %s", url, resp.Status, err, p)
	}
	return p
}

func timed(f func()) time.Duration {
	start := time.Now()
	f()
	return time.Since(start)
}

// settle gives all runs the same start: only the blobs at the registry are cached, and the machine's
// memory was just touched. A hypervisor may take back free memory, so that is done last.
func (b *bench) settle(size int64, blobs ...digest.Digest) {
	flush(b.node.Dir)
	drop()
	for _, d := range blobs {
		f, err := os.Open(filepath.Join(b.node.Registry.Dir, "docker/registry/v2/blobs/sha256", d.Encoded()[:2], d.Encoded(), "data"))
		if err != nil {
			b.t.Fatalf("%v", err)
		}
		_, err = io.Copy(io.Discard, f)
		f.Close()
		if err != nil {
			b.t.Fatalf("%v", err)
		}
	}
	b.touch(3*size + (1 << 30))
}
