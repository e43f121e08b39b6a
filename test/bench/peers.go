package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/test/e2e/node"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// withPeers is a node whose containerd knows the stargz snapshotter at a socket too.
func withPeers(socket string) node.Options {
	config := fmt.Sprintf(`
[proxy_plugins.stargz]
  type = "snapshot"
  address = %q
  [proxy_plugins.stargz.exports]
    enable_remote_snapshot_annotations = "true"
`, socket)
	for _, s := range []struct{ snapshotter, differ string }{{"overlayfs", "walking"}, {"ballast", "ballast-diff"}, {"stargz", "walking"}} {
		config += fmt.Sprintf("[[plugins.\"io.containerd.transfer.v1.local\".unpack_config]]\n  platform = \"linux/amd64\"\n  snapshotter = %q\n  differ = %q\n", s.snapshotter, s.differ)
	}
	return node.Options{Containerd: config}
}

// peers measures other snapshotters that show files before they are complete, with the same layers.
func (b *bench) peers() {
	stop := b.startStargz()
	defer stop()
	size := min(b.size, 512<<20)
	for _, format := range []converttest.ChunkedFormat{converttest.EStargz, converttest.ZstdChunkedStargz} {
		fmt.Fprintf(os.Stderr, "bench: preparing %s of %s\n", format, sizeOf(size))
		data, err := io.ReadAll(model{size: size, seed: 500}.bytes())
		if err != nil {
			b.t.Fatalf("%v", err)
		}
		file := digest.FromBytes(data)
		built := converttest.ModelPackChunked([]converttest.File{{Path: modelFile, Data: data, Mode: 0o644}}, format, 4<<20)
		repository := "peers/" + string(format)
		b.node.Registry.Push(b.t, repository, "model", node.Artifact{Manifest: built.Manifest, MediaType: built.MediaType, Blobs: built.Blobs})
		blob := b.pushAsImage(repository, built)
		var first, all, peerFirst, peerAll series
		for range b.rounds {
			for _, s := range []struct {
				snapshotter, tag string
				first, all       *series
			}{{"ballast", "model", &first, &all}, {"stargz", "image", &peerFirst, &peerAll}} {
				b.settle(size, blob)
				f, a := b.firstAndAll(s.snapshotter, b.node.Registry.Ref(repository, s.tag), size, file)
				s.first.add(f)
				s.all.add(a)
			}
		}
		for _, r := range []struct {
			what       string
			ours, peer series
		}{{"pull to first byte", first, peerFirst}, {"pull to last byte, read in order", all, peerAll}} {
			b.rows = append(b.rows, row{fmt.Sprintf("%s, %s: %s", format, sizeOf(size), r.what), millis(r.ours.median()),
				"stargz " + millis(r.peer.median()), fmt.Sprintf("%.2f × sooner", r.peer.median().Seconds()/r.ours.median().Seconds()), ""})
		}
	}
}

// startStargz starts the stargz snapshotter.
func (b *bench) startStargz() (stop func()) {
	root := filepath.Join(b.node.Dir, "stargz")
	p := node.Start(b.t, "stargz", filepath.Join(b.node.Dir, "stargz.log"), nil, b.stargz, root, b.stargzSocket)
	p.WaitReady(b.t, func() error {
		_, err := os.Stat(b.stargzSocket)
		return err
	})
	return func() { p.Stop(b.t) }
}

// pushAsImage gives the layers of a model the manifest of an ordinary image, and returns the largest.
func (b *bench) pushAsImage(repository string, built *converttest.Built) digest.Digest {
	var m ocispec.Manifest
	var config struct {
		ModelFS struct {
			DiffIDs []digest.Digest `json:"diffIds"`
		} `json:"modelfs"`
	}
	err := json.Unmarshal(built.Manifest, &m)
	if err == nil {
		err = json.Unmarshal(built.Blobs[m.Config.Digest], &config)
	}
	if err != nil || len(m.Layers) != 1 {
		b.t.Fatalf("model of %d layers: %v", len(m.Layers), err)
	}
	layer := m.Layers[0]
	layer.MediaType = ocispec.MediaTypeImageLayerGzip
	if strings.HasSuffix(m.Layers[0].MediaType, "zstd") {
		layer.MediaType = ocispec.MediaTypeImageLayerZstd
	}
	image := ocispec.Image{Platform: ocispec.Platform{OS: "linux", Architecture: "amd64"}, RootFS: ocispec.RootFS{Type: "layers", DiffIDs: config.ModelFS.DiffIDs}}
	b.push(repository, "image", ocispec.Manifest{Layers: []ocispec.Descriptor{layer}}, ocispec.MediaTypeImageConfig, image, nil)
	return layer.Digest
}

// firstAndAll pulls an image, and returns when a page of the middle of its file could be read, and when
// all of it had been read, from the start of the pull. Then it removes the image.
func (b *bench) firstAndAll(snapshotter, ref string, size int64, file digest.Digest) (first, all time.Duration) {
	start := time.Now()
	b.must(b.node.Pull(snapshotter, ref))
	dir, unmount := b.mount(snapshotter, ref)
	b.readOnce(filepath.Join(dir, modelFile), size/2)
	first = time.Since(start)
	b.task("read", filepath.Join(dir, modelFile))
	all = time.Since(start)
	if snapshotter == "ballast" {
		b.awaitComplete(file)
	}
	unmount()
	b.forget(ref)
	return first, all
}
