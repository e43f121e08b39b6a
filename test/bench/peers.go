package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/test/e2e/node"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// withPeers is a configuration of containerd with the stargz snapshotter at a socket, and EROFS if
// possible.
func withPeers(socket string) string {
	config := fmt.Sprintf(`
[proxy_plugins.stargz]
  type = "snapshot"
  address = %q
  [proxy_plugins.stargz.exports]
    enable_remote_snapshot_annotations = "true"
`, socket)
	for _, s := range []struct{ snapshotter, differ string }{{"overlayfs", "walking"}, {"ballast", "ballast-diff"}, {"stargz", "walking"}, {erofs, erofsDiffer()}} {
		config += fmt.Sprintf("[[plugins.\"io.containerd.transfer.v1.local\".unpack_config]]\n  platform = \"linux/amd64\"\n  snapshotter = %q\n  differ = %q\n  optional = true\n", s.snapshotter, s.differ)
	}
	return config
}

const erofs = "erofs" // the snapshotter, its differ and the file system

// erofsDiffer is the differ of the EROFS snapshotter: its own, if mkfs.erofs can convert tars.
func erofsDiffer() string {
	help, _ := exec.Command("mkfs.erofs", "--help").CombinedOutput() // old versions also return an error
	if strings.Contains(string(help), "--tar=") {
		return erofs
	}
	return "walking"
}

// A peer is another way to read one model.
type peer struct {
	what    string
	missing error // why it cannot be measured
	run     func() (first, all, cpu time.Duration)
	blob    digest.Digest // at the registry
	first   series        // from the start of a pull until a page in the middle was read
	all     series        // until all of it was read, in order
	cpu     series        // of containerd, the snapshotters and clients
}

// peers measures other snapshotters, and clients without containerd, with the same bytes from the same
// registry.
func (b *bench) peers() {
	stargz := b.startStargz()
	m := b.pushModel("bench/peer", min(b.size, 512<<20), 500)
	tar := b.pushTar("peers/tar", m)
	tarRef := b.node.Registry.Ref("peers/tar", "v1")
	l := b.prepareLazy("peer", m)
	by := func(snapshotter, ref string, file digest.Digest) func() (first, all, cpu time.Duration) {
		return func() (first, all, cpu time.Duration) { return b.firstAndAll(stargz, snapshotter, ref, m.size, file) }
	}
	peers := []*peer{
		{what: "ballast, converted", run: by("ballast", l.ref, m.digest), blob: m.digest},
		{what: "containerd, overlayfs, tar", run: by("overlayfs", tarRef, ""), blob: tar},
		{what: "containerd, EROFS snapshotter and " + erofsDiffer() + " differ, tar", missing: b.noErofs(), run: by(erofs, tarRef, ""), blob: tar},
		b.ollamaPeer(m),
	}
	for _, format := range []converttest.ChunkedFormat{converttest.EStargz, converttest.ZstdChunkedStargz} {
		model, image, file, blob := b.pushChunked(format, m)
		peers = append(peers, &peer{what: "ballast, " + string(format), run: by("ballast", model, file), blob: blob},
			&peer{what: "stargz snapshotter, " + string(format), run: by("stargz", image, ""), blob: blob})
	}
	for range b.rounds {
		for _, p := range peers {
			if p.missing != nil {
				continue
			}
			b.settle(m.size, p.blob)
			first, all, cpu := p.run()
			p.first.add(first)
			p.all.add(all)
			p.cpu.add(cpu)
		}
	}
	stargz.Stop(b.t)
	b.addPeers(m, peers)
}

// addPeers makes the table of peers, compared with the first one.
func (b *bench) addPeers(m model, peers []*peer) {
	t := table{"From the start of a pull of " + sizeOf(m.size) + ", beside the first row; CPU-seconds of containerd, snapshotters and clients without the reader:",
		[][]string{{"what", "a page of the middle", "all, read in order", "times as long", "CPU"}}}
	for _, p := range peers {
		if p.missing != nil {
			t.rows = append(t.rows, []string{p.what, "not measured: " + p.missing.Error(), "", "", ""})
			continue
		}
		_, times := ratio(p.all, peers[0].all)
		t.rows = append(t.rows, []string{p.what, p.first.spread(millis), p.all.spread(millis), times, p.cpu.spread(seconds)})
	}
	b.addTable(t)
}

// noErofs returns why the EROFS snapshotter of containerd does not work here.
func (b *bench) noErofs() error {
	known, err := os.ReadFile("/proc/filesystems")
	if err != nil || !strings.Contains(string(known), "\t"+erofs+"\n") {
		return fmt.Errorf("the kernel does not have EROFS")
	}
	if _, err := exec.LookPath("mkfs.erofs"); err != nil {
		return fmt.Errorf("mkfs.erofs of erofs-utils is not installed")
	}
	if out := b.node.Ctr("plugins", "ls", "id=="+erofs, "type==io.containerd.snapshotter.v1"); !strings.Contains(out.Stdout, " ok") {
		return fmt.Errorf("containerd does not have it: %s", strings.Join(strings.Fields(out.Output()), " "))
	}
	return nil
}

// pushChunked pushes the file of a model as a layer in another format: a ModelPack for ballast, an
// image for the others.
func (b *bench) pushChunked(format converttest.ChunkedFormat, m model) (model, image string, file, blob digest.Digest) {
	fmt.Fprintf(os.Stderr, "bench: preparing %s of %s\n", format, sizeOf(m.size))
	data, err := io.ReadAll(m.bytes())
	if err != nil {
		b.t.Fatalf("%v", err)
	}
	built := converttest.ModelPackChunked([]converttest.File{{Path: modelFile, Data: data, Mode: 0o644}}, format, 4<<20)
	repository := "peers/" + string(format)
	b.node.Registry.Push(b.t, repository, "model", node.Artifact{Manifest: built.Manifest, MediaType: built.MediaType, Blobs: built.Blobs})
	blob = b.pushAsImage(repository, built)
	return b.node.Registry.Ref(repository, "model"), b.node.Registry.Ref(repository, "image"), m.digest, blob
}

// startStargz starts the stargz snapshotter.
func (b *bench) startStargz() *node.Process {
	root := filepath.Join(b.node.Dir, "stargz")
	p := node.Start(b.t, "stargz", filepath.Join(b.node.Dir, "stargz.log"), nil, b.stargz, root, b.stargzSocket)
	p.WaitReady(b.t, func() error {
		_, err := os.Stat(b.stargzSocket)
		return err
	})
	return p
}

// pushAsImage pushes an ordinary image with the layers of a model, and returns the largest.
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

// firstAndAll pulls an image, reads it and removes it. The file is what ballast must complete first.
func (b *bench) firstAndAll(stargz *node.Process, snapshotter, ref string, size int64, file digest.Digest) (first, all, cpu time.Duration) {
	used := func() time.Duration { return b.cpu(b.node) + b.cpuOf(stargz.Pid(), true) }
	before, start := used(), time.Now()
	b.must(b.node.Pull(snapshotter, ref))
	dir, unmount := b.mount(snapshotter, ref)
	path := filepath.Join(dir, modelFile)
	b.readOnce(path, size/2)
	first = time.Since(start)
	b.task("load", loaders[0].name, path)
	all = time.Since(start)
	if file != "" {
		b.awaitComplete(file)
	}
	cpu = used() - before
	unmount()
	b.forget(ref)
	return first, all, cpu
}
