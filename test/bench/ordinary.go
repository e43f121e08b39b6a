package main

import (
	"archive/tar"
	"compress/gzip"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/ballast-dev/ballast/test/e2e/node"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// ordinaryBytes is the size of an ordinary image, compressed.
const ordinaryBytes = 300 << 20

// unpackAtOnce is the number of layers that containerd unpacks concurrently, where it does.
const unpackAtOnce = 4

// stockName is the registry's name for pulls without the facade.
const stockName = "stock.example"

// ordinaryImages measures pulls of ordinary images compared with overlayfs, in time and in CPU-seconds
// of containerd and ballastd.
func (b *bench) ordinaryImages() {
	fmt.Fprintln(os.Stderr, "bench: preparing ordinary images of", sizeOf(ordinaryBytes))
	one, ten := b.pushOrdinary("bench/one-layer", 1, 100), b.pushOrdinary("bench/ten-layers", 10, 200)
	b.ordinaryPulls(b.node, "one gzip layer of "+sizeOf(ordinaryBytes), one)
	b.ordinaryPulls(b.node, "ten gzip layers of "+sizeOf(ordinaryBytes/10), ten)
	parallel := node.StartNode(b.t, node.Options{Registry: b.node.Registry, Edit: node.UnpackAtOnce(unpackAtOnce)})
	b.ordinaryPulls(parallel, fmt.Sprintf("the ten layers, %d unpacked at a time", unpackAtOnce), ten)
}

// An image is an ordinary image in the registry, with the tag v1.
type image struct {
	repository string
	layers     []ocispec.Descriptor
}

// ordinaryPulls adds the rows of one image on one node.
func (b *bench) ordinaryPulls(n *node.Node, what string, im image) {
	host := b.node.Registry.Host
	n.Direct(b.t, stockName, host)
	// As on nodes without hosts.toml for ballastd: layers come directly from the registry.
	if err := os.RemoveAll(filepath.Join(n.Dir, "ballast.d", host)); err != nil {
		b.t.Fatalf("%v", err)
	}
	defer n.Upstream(b.t, host, host)
	type series2 struct{ wall, cpu series }
	var ours, stock series2
	pull := func(snapshotter, ref string, to *series2) {
		b.settle(ordinaryBytes, digestsOf(im.layers)...)
		cpu, start := b.cpu(n), time.Now()
		b.must(n.Pull(snapshotter, ref))
		to.wall.add(time.Since(start))
		to.cpu.add(b.cpu(n) - cpu)
		b.must(n.Ctr("images", "rm", "--sync", ref))
	}
	for i := range 2 * b.rounds {
		runs := []func(){
			func() { pull("ballast", b.node.Registry.Ref(im.repository, "v1"), &ours) },
			func() { pull("overlayfs", stockName+"/"+im.repository+":v1", &stock) },
		}
		if i%2 == 1 {
			slices.Reverse(runs)
		}
		for _, run := range runs {
			run()
		}
	}
	b.times("ordinary: "+what, ours.wall, "overlayfs", stock.wall, atMost(1.05, ""))
	b.times("the same, CPU", ours.cpu, "overlayfs", stock.cpu, atMost(1.05, ""))
}

// pushOrdinary pushes an ordinary image with gzip layers of ordinaryBytes in total.
func (b *bench) pushOrdinary(repository string, layers int, seed uint64) image {
	im := image{repository: repository}
	config := ocispec.Image{Platform: ocispec.Platform{OS: "linux", Architecture: "amd64"}, RootFS: ocispec.RootFS{Type: "layers"}}
	for i := range layers {
		file := filepath.Join(b.node.Dir, "layer")
		desc, diffID, err := writeLayer(file, ordinaryBytes/int64(layers), seed+uint64(i))
		if err != nil {
			b.t.Fatalf("%v", err)
		}
		f, err := os.Open(file)
		if err != nil {
			b.t.Fatalf("%v", err)
		}
		b.node.Registry.PushBlob(b.t, repository, desc.Digest, desc.Size, f)
		f.Close()
		os.Remove(file)
		im.layers = append(im.layers, desc)
		config.RootFS.DiffIDs = append(config.RootFS.DiffIDs, diffID)
	}
	b.push(repository, "v1", ocispec.Manifest{Layers: im.layers}, ocispec.MediaTypeImageConfig, config, nil)
	return im
}

// A hashed writer has the digest and size of the bytes written.
type hashed struct {
	io.Writer
	sum hash.Hash
	n   int64
}

func newHashed(w io.Writer) *hashed {
	sum := sha256.New()
	return &hashed{Writer: io.MultiWriter(w, sum), sum: sum}
}

func (h *hashed) Write(p []byte) (int, error) {
	n, err := h.Writer.Write(p)
	h.n += int64(n)
	return n, err
}

func (h *hashed) digest() digest.Digest { return digest.NewDigest(digest.SHA256, h.sum) }

// writeLayer writes a gzip layer of at least size bytes with files as images have them: many small,
// some large, half of their bytes compressible.
func writeLayer(file string, size int64, seed uint64) (ocispec.Descriptor, digest.Digest, error) {
	f, err := os.Create(file)
	if err != nil {
		return ocispec.Descriptor{}, "", err
	}
	packed := newHashed(f)
	zw, err := gzip.NewWriterLevel(packed, gzip.BestSpeed)
	if err != nil {
		return ocispec.Descriptor{}, "", err
	}
	plain := newHashed(zw)
	tw := tar.NewWriter(plain)
	var key [32]byte
	binary.LittleEndian.PutUint64(key[:], seed)
	source := rand.NewChaCha8(key)
	random := rand.New(source)
	for i := 0; packed.n < size && err == nil; i++ {
		content := make([]byte, 1<<(8+random.IntN(15))) // 256 bytes to 4 MiB
		half := len(content) / 2
		_, _ = source.Read(content[:half]) // never fails
		for j := half; j < len(content); j += 16 {
			copy(content[j:], fmt.Sprintf("line %10d\n", random.IntN(1000)))
		}
		err = tw.WriteHeader(&tar.Header{Name: fmt.Sprintf("layer%d/%02d/%d", seed, i%50, i), Mode: 0o644,
			Size: int64(len(content)), ModTime: time.Unix(1_700_000_000, 0)})
		if err == nil {
			_, err = tw.Write(content)
		}
	}
	err = errors.Join(err, tw.Close(), zw.Close(), f.Close())
	return ocispec.Descriptor{MediaType: ocispec.MediaTypeImageLayerGzip, Digest: packed.digest(), Size: packed.n}, plain.digest(), err
}
