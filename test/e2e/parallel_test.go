package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/ballast-dev/ballast/test/e2e/node"
	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/identity"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// parallel returns options for nodes that unpack four layers of an image at a time, which containerd
// logs.
func parallel() node.Options {
	return node.Options{Edit: node.UnpackAtOnce(4), Containerd: "[debug]\n  level = \"debug\"\n"}
}

// tenLayers returns an ordinary image of busybox and nine layers that add, replace and hide files and
// directories of the layers below, and the resulting files of /data.
func tenLayers(t *testing.T) (node.Artifact, map[string]node.FileState) {
	t.Helper()
	bin, err := os.ReadFile(node.BusyboxPath)
	if err != nil {
		t.Fatal(err)
	}
	first := []node.File{{Path: "bin/", Mode: 0o755}, {Path: "bin/busybox", Mode: 0o755, Data: bin}, {Path: "data/", Mode: 0o755}, {Path: "tmp/", Mode: 0o1777}}
	for _, a := range []string{"sh", "find", "stat", "sha256sum", "cat", "sleep", "readlink", "xargs", "sort", "test"} {
		first = append(first, node.File{Path: "bin/" + a, Link: "busybox"})
	}
	layers := [][]node.File{first}
	left := map[string]string{}
	for i := 1; i < 10; i++ {
		name := func(what string, n int) string { return fmt.Sprintf("%s%d", what, n) }
		files := []node.File{
			{Path: "data/", Mode: 0o755},
			{Path: "data/every", Mode: 0o644, Data: []byte(name("by ", i))},
			{Path: "data/" + name("kept", i), Mode: 0o644, Data: weights(byte(i), 100<<10)},
			{Path: "data/" + name("gone", i), Mode: 0o644, Data: []byte("x")},
			{Path: "data/" + name("dir", i) + "/", Mode: 0o755},
			{Path: "data/" + name("dir", i) + "/old", Mode: 0o644, Data: []byte("old")},
		}
		left[name("kept", i)] = string(weights(byte(i), 100<<10))
		left["every"] = name("by ", i)
		left[name("gone", i)], left[name("dir", i)+"/old"] = "x", "old"
		if i > 1 {
			files = append(files,
				node.File{Path: "data/.wh." + name("gone", i-1)},
				node.File{Path: "data/" + name("dir", i-1) + "/", Mode: 0o755},
				node.File{Path: "data/" + name("dir", i-1) + "/.wh..wh..opq"},
				node.File{Path: "data/" + name("dir", i-1) + "/new", Mode: 0o644, Data: []byte("new")})
			delete(left, name("gone", i-1))
			delete(left, name("dir", i-1)+"/old")
			left[name("dir", i-1)+"/new"] = "new"
		}
		layers = append(layers, files)
	}
	want := map[string]node.FileState{}
	for name, content := range left {
		want[name] = node.FileState{Mode: "644", Size: int64(len(content)), SHA256: digest.FromString(content).Encoded()}
	}
	return node.Image(t, []string{"/bin/sleep", "1000"}, layers...), want
}

// wantChain fails the test unless the snapshots of an image are one chain, in the order of its layers,
// or if containerd has downloaded a blob of a model.
func wantChain(t *testing.T, n *node.Node, namespace, ref string) {
	t.Helper()
	ctr := func(args ...string) []byte {
		t.Helper()
		out := n.Ctr(append([]string{"-n", namespace}, args...)...)
		if out.Err != nil {
			t.Fatalf("%v\n%s", out.Err, out.Output())
		}
		return []byte(out.Stdout)
	}
	var d string
	for line := range strings.Lines(string(ctr("images", "ls"))) {
		if f := strings.Fields(line); f[0] == ref {
			d = f[2]
		}
	}
	var m ocispec.Manifest
	var config ocispec.Image
	if err := json.Unmarshal(ctr("content", "get", d), &m); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(ctr("content", "get", m.Config.Digest.String()), &config); err != nil {
		t.Fatal(err)
	}
	if len(config.RootFS.DiffIDs) == 0 {
		t.Fatalf("%s has no layers", ref)
	}
	there := string(ctr("content", "ls", "-q"))
	for _, l := range m.Layers {
		if l.MediaType == filetable.MediaTypeBlobLayer && strings.Contains(there, l.Digest.String()) {
			t.Errorf("%s: containerd has downloaded the blob %s", ref, l.Digest)
		}
	}
	parent := ""
	for i, id := range identity.ChainIDs(config.RootFS.DiffIDs) {
		var info struct{ Name, Parent, Kind string }
		if err := json.Unmarshal(ctr("snapshots", "--snapshotter", "ballast", "info", id.String()), &info); err != nil {
			t.Fatal(err)
		}
		if info.Parent != parent || info.Kind != "Committed" {
			t.Errorf("%s: layer %d of %d: got %+v, want the parent %q", ref, i, len(m.Layers), info, parent)
		}
		parent = id.String()
	}
}

// unpackedInParallel returns the number of images of which containerd logged that it unpacked several
// layers at a time.
func unpackedInParallel(t *testing.T, n *node.Node) int {
	t.Helper()
	p, err := os.ReadFile(n.Containerd.Log)
	if err != nil {
		t.Fatal(err)
	}
	return strings.Count(string(p), "parallel=true")
}

// TestParallelFormats pulls a model of every format and an ordinary image of ten layers while
// containerd unpacks several layers at a time: each layer has the right parent, and all files are
// right.
func TestParallelFormats(t *testing.T) {
	for _, show := range ways {
		o := parallel()
		o.Config = showAs(show)
		n := node.StartNode(t, o)
		pulled := 0
		for i, b := range converttest.All(converttest.Files(weights(60, 3<<20+17))) {
			t.Run(show+"/"+b.Name, func(t *testing.T) {
				ref := push(t, n, b)
				mustPull(t, n, "ballast", ref)
				wantChain(t, n, "default", ref)
				wantFiles(t, n, ref, states(b))
			})
			pulled = i + 1
		}
		t.Run(show+"/ordinary", func(t *testing.T) {
			image, want := tenLayers(t)
			n.Registry.Push(t, "layered", "1", image)
			ref := n.Registry.Ref("layered", "1")
			for _, snapshotter := range []string{"ballast", "overlayfs"} {
				mustPull(t, n, snapshotter, ref)
				got, err := n.List(snapshotter, ref, "/data")
				if err != nil {
					t.Fatal(err)
				}
				if d := cmp.Diff(want, got); d != "" {
					t.Errorf("%s: files (-want +got):\n%s", snapshotter, d)
				}
			}
			wantChain(t, n, "default", ref)
		})
		if got, want := unpackedInParallel(t, n), pulled+2; got != want {
			t.Errorf("%s: containerd unpacked %d images in parallel, want %d", show, got, want)
		}
	}
}

// TestParallelVolume pulls by CRI and mounts the model as a volume, and by ctr in another namespace.
func TestParallelVolume(t *testing.T) {
	n := node.StartNode(t, parallel())
	cri := n.CRI(t)
	n.Registry.Push(t, "busybox", "1", node.Busybox(t)) // for the sandbox
	image, want := tenLayers(t)
	n.Registry.Push(t, "layered", "1", image)
	b := converttest.ModelPackRaw(converttest.Files(weights(61, 1<<20)))
	model := push(t, n, b)
	ordinary, err := cri.Pull(n.Registry.Ref("layered", "1"), "")
	if err != nil {
		t.Fatal(err)
	}
	volume, err := cri.Pull(model, "")
	if err != nil {
		t.Fatal(err)
	}
	mustPull(t, n, "ballast", model)
	for _, namespace := range []string{"k8s.io", "default"} {
		wantChain(t, n, namespace, model)
	}
	wantChain(t, n, "k8s.io", n.Registry.Ref("layered", "1"))
	c, err := cri.RunPod(t, "").Run(ordinary, node.ImageMount{Image: volume, Path: "/model"})
	if err != nil {
		t.Fatal(err)
	}
	wantVolume(t, cri, c, "/model", states(b))
	got, err := cri.List(c, "/data")
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("files of the container (-want +got):\n%s", d)
	}
	if got := unpackedInParallel(t, n); got < 3 { // with the sandbox
		t.Errorf("containerd unpacked %d images in parallel, want at least 3", got)
	}
}

// TestParallelCutOff kills ballastd, and then containerd, while layers are unpacked: the next pull
// succeeds, and after the images are removed no snapshot is left.
func TestParallelCutOff(t *testing.T) {
	n := node.StartNode(t, parallel())
	image, want := tenLayers(t)
	n.Registry.Push(t, "layered", "1", image)
	ordinary := n.Registry.Ref("layered", "1")
	outer := t // a restarted daemon must survive its subtest
	for i, who := range []string{"ballastd", "containerd"} {
		b := converttest.ModelPackRaw(converttest.Files(weights(byte(62+i), 8<<20))) // another model, because the store has the bytes of the one before
		model := push(t, n, b)
		for _, ref := range []string{ordinary, model} {
			t.Run(who+"/"+ref[strings.LastIndexByte(ref, '/')+1:], func(t *testing.T) {
				n.Registry.Wire.Link(512<<10, 0)
				done := make(chan node.Result, 1)
				go func() { done <- n.Pull("ballast", ref) }()
				waitFor(t, "a snapshot that is being made", func() error {
					dirs, err := filepath.Glob(filepath.Join(n.Root(), "snapshots", "*", "fs"))
					if err != nil || len(dirs) < 2 {
						return fmt.Errorf("there are %d: %v", len(dirs), err)
					}
					return nil
				})
				time.Sleep(200 * time.Millisecond) // some layers are being fetched
				if who == "ballastd" {
					n.Ballastd.Kill()
				} else {
					n.Containerd.Kill()
				}
				if out := <-done; out.Err == nil {
					t.Fatalf("the pull went on without %s", who)
				}
				n.Registry.Wire.Link(0, 0)
				if who == "ballastd" {
					n.StartBallastd(outer)
				} else {
					n.StartContainerd(outer)
				}
				mustPull(t, n, "ballast", ref)
				wantChain(t, n, "default", ref)
				if ref == model {
					wantFiles(t, n, ref, states(b))
				} else if got, err := n.List("ballast", ref, "/data"); err != nil || cmp.Diff(want, got) != "" {
					t.Errorf("files: %v (-want +got):\n%s", err, cmp.Diff(want, got))
				}
				if out := n.Ctr("images", "rm", "--sync", ref); out.Err != nil {
					t.Fatalf("%v\n%s", out.Err, out.Output())
				}
			})
		}
	}
	// Pulls that were killed have leases for a day.
	for _, id := range strings.Fields(n.Ctr("leases", "ls", "-q").Stdout) {
		n.Ctr("leases", "rm", "--sync", id)
	}
	waitFor(t, "no snapshot is left", func() error {
		if out := n.Ctr("snapshots", "--snapshotter", "ballast", "ls"); strings.Count(out.Stdout, "\n") > 1 {
			return fmt.Errorf("%s", out.Stdout)
		}
		return nil
	})
}
