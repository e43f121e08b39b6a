package main

import (
	"archive/zip"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/ballast-dev/ballast/test/e2e/node"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/errgroup"
)

// tensorLayers is the number of layers of a model with 27 billion parameters in Ollama's registry.
const tensorLayers = 1209

// tensorConfig is a config of such a model.
const tensorConfig = `{"model_format":"safetensors","model_family":"qwen3","model_type":"27B","file_type":"bf16"}`

const dockerManifest = "application/vnd.docker.distribution.manifest.v2+json"

const ollamaPrefix = "application/vnd.ollama.image."

// tensors measures a model with a layer for each tensor: its conversion, and its pull compared with
// that of one file of the same size.
func (b *bench) tensors() {
	const repository, small = "bench/tensors", "bench/small-tensors"
	fmt.Fprintln(os.Stderr, "bench: preparing a model of", tensorLayers, "layers")
	layers, size := b.pushTensors(repository, b.size, 1)
	b.pushTensorManifest(repository, "v1", layers)
	b.ask(repository, "v1") // its conversion is measured separately
	one := b.pushModel("bench/one", size, 50)
	var pull, single, plain, conversion, answer series
	for i := range b.rounds {
		tag := fmt.Sprintf("run%d", i)
		few, _ := b.pushTensors(small, tensorLayers<<10, uint64(2+i))
		b.pushTensorManifest(small, tag, few)
		own, whole := b.tensorConversion(small, tag)
		conversion.add(own)
		answer.add(whole)
		for _, m := range []struct {
			repository string
			blobs      []digest.Digest
			to         *series
		}{{repository, digestsOf(layers), &pull}, {"bench/one", []digest.Digest{one.digest}, &single}} {
			ref := b.node.Registry.Ref(m.repository, "v1")
			m.to.add(b.pullOnce(ref, size, m.blobs...))
			b.forget(ref)
		}
		plain.add(b.fetchEach(rawModel{repository: repository, layers: layers, blobs: digestsOf(layers)}))
	}
	b.figure(fmt.Sprintf("conversion of %d tensors, less upstream", tensorLayers), conversion.median().Seconds()*1000, "%.0f ms",
		"in all "+answer.spread(seconds), atMost(200, " ms"))
	b.times(fmt.Sprintf("pull of %d tensors, %s", tensorLayers, sizeOf(size)), pull, "one file", single, atMost(1.8, ""))
	b.times("the same", pull, "their requests, hashed and written", plain, target{})
}

// small measures a model of small files compared with one file of the same total size.
func (b *bench) small() {
	const each = 1 << 10
	one := b.pushModel("bench/small-one", tensorLayers*each, 91)
	oneRef := b.node.Registry.Ref(one.repository, "v1")
	b.ask(one.repository, "v1") // its conversion is measured separately
	models := b.pushRaws("small", tensorLayers*each, tensorLayers, 90)
	var many, single, plain series
	for _, m := range models {
		many.add(b.pullOnce(m.ref, one.size, m.blobs...))
		single.add(b.pullOnce(oneRef, one.size, one.digest))
		plain.add(b.fetchEach(m))
		b.forget(oneRef)
	}
	for _, m := range models {
		b.forget(m.ref)
	}
	more := many.median() - single.median()
	b.add(row{fmt.Sprintf("pull of %d raw files of %s", tensorLayers, sizeOf(each)), many.spread(seconds),
		"one file of their bytes " + single.spread(seconds), fmt.Sprintf("%+.2f s", more.Seconds()), more.Seconds(), atMost(1, " s more")})
	b.times("the same", many, "their requests, hashed and written", plain, target{})
}

// A rawModel is a model whose layers are its files.
type rawModel struct {
	repository, ref string
	layers          []ocispec.Descriptor
	blobs           []digest.Digest // of the layers
}

// pushRaws makes a model for each round, with files of their own, and converts them. The rounds of a measurement of many
// small files pull different ones and remove none in between: ext4 without a journal looks at each inode that was freed in
// the last minute before it takes another one, which can take longer than the pull.
// https://git.kernel.org/pub/scm/linux/kernel/git/stable/linux.git/tree/fs/ext4/ialloc.c?h=v6.12 (recently_deleted)
func (b *bench) pushRaws(name string, size int64, n int, seed uint64) (all []rawModel) {
	for i := range b.rounds {
		m := rawModel{repository: fmt.Sprintf("bench/%s%d", name, i)}
		m.ref, m.layers = b.pushRaw(fmt.Sprintf("%s%d", name, i), size, n, seed<<8+uint64(i))
		m.blobs = digestsOf(m.layers)
		b.ask(m.repository, "v1")
		all = append(all, m)
	}
	return all
}

// fetchEach returns the time to only fetch, hash and write blobs.
func (b *bench) fetchEach(m rawModel) time.Duration {
	var list bytes.Buffer
	var size int64
	for _, l := range m.layers {
		fmt.Fprintln(&list, l.Size, b.node.Registry.BlobURL(m.repository, l.Digest))
		size += l.Size
	}
	name := filepath.Join(b.node.Dir, "blobs")
	if err := os.WriteFile(name, list.Bytes(), 0o644); err != nil {
		b.t.Fatalf("%v", err)
	}
	defer os.Remove(name)
	b.settle(size, m.blobs...)
	return b.task("each", name, b.node.Dir)
}

// ask returns the time of the facade's response for a tag, on a new connection, as in a pull.
func (b *bench) ask(repository, tag string) time.Duration {
	client := b.node.FacadeClient(b.t)
	defer client.CloseIdleConnections()
	return timed(func() { b.getBy(client, b.node.FacadeURL(b.node.Registry.Host, repository, tag)) })
}

// tensorBlob returns the blob of a tensor with about size bytes, different for each seed.
func tensorBlob(i int, size int64, seed uint64) (header []byte, data model) {
	rows := size / (2 * 256)
	head := fmt.Appendf(nil, `{"model.layers.%d.weight":{"dtype":"BF16","shape":[%d,256],"data_offsets":[0,%d]}}`, i, rows, rows*512)
	head = append(head, bytes.Repeat([]byte(" "), -len(head)&7)...)
	header = binary.LittleEndian.AppendUint64(nil, uint64(len(head)))
	return append(header, head...), model{size: rows * 512, seed: seed<<32 + uint64(i)}
}

// pushTensors pushes the blobs of a model and returns their descriptors and total size.
func (b *bench) pushTensors(repository string, size int64, seed uint64) (layers []ocispec.Descriptor, sum int64) {
	for i := range tensorLayers {
		header, data := tensorBlob(i, size/tensorLayers, seed)
		stream := func() io.Reader { return io.MultiReader(bytes.NewReader(header), data.bytes()) }
		d, n, err := hashOf(stream())
		if err != nil {
			b.t.Fatalf("%v", err)
		}
		b.node.Registry.PushBlob(b.t, repository, d, n, stream())
		layers = append(layers, ocispec.Descriptor{MediaType: ollamaPrefix + "tensor", Digest: d, Size: n})
		sum += n
	}
	return layers, sum
}

// pushTensorManifest pushes a manifest of the blobs that no other tag has.
func (b *bench) pushTensorManifest(repository, tag string, layers []ocispec.Descriptor) {
	type layer struct {
		MediaType string        `json:"mediaType"`
		Digest    digest.Digest `json:"digest"`
		Size      int64         `json:"size"`
		Name      string        `json:"name,omitempty"`
	}
	license := []byte("license of " + tag)
	list := []layer{{ollamaPrefix + "license", digest.FromBytes(license), int64(len(license)), ""}}
	for i, l := range layers {
		list = append(list, layer{l.MediaType, l.Digest, l.Size, fmt.Sprintf("model.layers.%d.weight", i)})
	}
	config := []byte(tensorConfig)
	p, err := json.Marshal(map[string]any{"schemaVersion": 2, "mediaType": dockerManifest, "layers": list,
		"config": layer{"application/vnd.docker.container.image.v1+json", digest.FromBytes(config), int64(len(config)), ""}})
	if err != nil {
		b.t.Fatalf("%v", err)
	}
	b.node.Registry.Push(b.t, repository, tag, node.Artifact{Manifest: p, MediaType: dockerManifest,
		Blobs: map[digest.Digest][]byte{digest.FromBytes(config): config, digest.FromBytes(license): license}})
}

// tensorConversion returns the time of the facade's response for a tag of a tensor model, without the
// time of its own requests repeated with the same concurrency, and with it.
func (b *bench) tensorConversion(repository, tag string) (own, whole time.Duration) {
	const together = 32
	wire := b.node.Registry.Wire
	wire.Reset()
	facade := b.ask(repository, tag)
	requests := wire.Requests()
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: together, DisableCompression: true}}
	defer client.CloseIdleConnections()
	upstream := timed(func() {
		var g errgroup.Group
		g.SetLimit(together)
		for _, r := range requests {
			g.Go(func() error { return again(client, "http://"+b.node.Registry.Host, r) })
		}
		if err := g.Wait(); err != nil {
			b.t.Fatalf("%v", err)
		}
	})
	return max(0, facade-upstream), facade
}

// again repeats a recorded request.
func again(client *http.Client, registry string, r node.Request) error {
	req, err := http.NewRequest(r.Method, registry+r.Path, nil)
	if err != nil {
		return err
	}
	if r.Range != "" {
		req.Header.Set("Range", r.Range)
	}
	req.Header.Set("Accept", strings.Join([]string{ocispec.MediaTypeImageManifest, dockerManifest}, ", "))
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, resp.Body)
	return err
}

// cartonParts is the number of files of the weights in a carton.
const cartonParts = 4

// carton measures the pull of a carton, whose members are stored, compared with that of a raw blob.
func (b *bench) carton() {
	size := min(b.size, 1<<30)
	fmt.Fprintln(os.Stderr, "bench: preparing a carton of", sizeOf(size))
	d := b.pushCarton("bench/carton", size)
	one := b.pushModel("bench/raw", size, 60)
	var carton, raw series
	for range b.rounds {
		ref := b.node.Registry.Ref("bench/carton", "v1")
		carton.add(b.pullOnce(ref, size, d))
		b.forget(ref)
		ref = b.node.Registry.Ref("bench/raw", "v1")
		raw.add(b.pullOnce(ref, size, one.digest))
		b.forget(ref)
	}
	b.times("pull of a carton, "+sizeOf(size)+" stored", carton, "raw blob", raw, atMost(1.05, ""))
}

// pushCarton pushes a carton as the layer of an artifact and returns the digest of the layer.
func (b *bench) pushCarton(repository string, size int64) digest.Digest {
	info := []byte("spec_version = 1\n[runner]\nrunner_name = \"noop\"\nrequired_framework_version = \"*\"\n")
	files := []member{{"carton.toml", func() io.Reader { return bytes.NewReader(info) }}}
	for i := range cartonParts {
		part := model{size: size / cartonParts, seed: uint64(70 + i)}
		files = append(files, member{fmt.Sprintf("model/weights-%d.bin", i), part.bytes})
	}
	var manifest bytes.Buffer
	for _, f := range files {
		d, _, err := hashOf(f.open())
		if err != nil {
			b.t.Fatalf("%v", err)
		}
		fmt.Fprintf(&manifest, "%s=%s\n", f.name, d.Encoded())
	}
	files = append(files, member{"MANIFEST", func() io.Reader { return bytes.NewReader(manifest.Bytes()) }})
	stream := func() io.Reader {
		r, w := io.Pipe()
		go func() { w.CloseWithError(writeStored(w, files)) }()
		return r
	}
	d, n, err := hashOf(stream())
	if err != nil {
		b.t.Fatalf("%v", err)
	}
	b.node.Registry.PushBlob(b.t, repository, d, n, stream())
	layer := ocispec.Descriptor{MediaType: "application/octet-stream", Digest: d, Size: n,
		Annotations: map[string]string{ocispec.AnnotationTitle: "model.carton"}}
	b.push(repository, "v1", ocispec.Manifest{Layers: []ocispec.Descriptor{layer}}, ocispec.MediaTypeEmptyJSON, map[string]any{}, nil)
	return d
}

// A member is a file of an archive.
type member struct {
	name string
	open func() io.Reader
}

// writeStored writes a zip archive whose members are not compressed.
func writeStored(w io.Writer, files []member) error {
	zw := zip.NewWriter(w)
	for _, f := range files {
		sum := crc32.NewIEEE()
		n, err := io.Copy(sum, f.open())
		if err != nil {
			return err
		}
		to, err := zw.CreateRaw(&zip.FileHeader{Name: f.name, Method: zip.Store, CRC32: sum.Sum32(),
			CompressedSize64: uint64(n), UncompressedSize64: uint64(n)})
		if err != nil {
			return err
		}
		if _, err := io.Copy(to, f.open()); err != nil {
			return err
		}
	}
	return zw.Close()
}
