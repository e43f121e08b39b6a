package e2e

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/test/e2e/node"
	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"
)

// ordinaryFiles is what /data of the Busybox image shows once its layers are stacked.
func ordinaryFiles() map[string]node.FileState {
	file := func(mode, content string) node.FileState {
		return node.FileState{Mode: mode, Size: int64(len(content)), SHA256: digest.FromString(content).Encoded()}
	}
	return map[string]node.FileState{
		"kept":    file("4755", "kept\n"),
		"changed": file("600", "after\n"),
		"dir/new": file("640", "new\n"),
	}
}

// TestStockImage checks the test setup: stock containerd with overlayfs runs an ordinary image, through
// ctr and through CRI.
func TestStockImage(t *testing.T) {
	n := node.StartNode(t, node.Options{Stock: true})
	n.Registry.Push(t, "busybox", "1", node.Busybox(t))
	ref := n.Registry.Ref("busybox", "1")
	if out := n.Pull("overlayfs", ref); out.Err != nil {
		t.Fatalf("pull: %v\n%s", out.Err, out.Output())
	}
	got, err := n.List("overlayfs", ref, "/data")
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(ordinaryFiles(), got); d != "" {
		t.Errorf("files (-want +got):\n%s", d)
	}

	cri := n.CRI(t)
	image, err := cri.Pull(ref, "")
	if err != nil {
		t.Fatal(err)
	}
	pod := cri.RunPod(t, "")
	c, err := pod.Run(image, node.ImageMount{Image: image, Path: "/volume", SubPath: "data"})
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{"/data", "/volume"} {
		got, err := cri.List(c, dir)
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(ordinaryFiles(), got); d != "" {
			t.Errorf("%s (-want +got):\n%s", dir, d)
		}
	}
}

// TestStockModel records the behaviour without ballast: stock containerd pulls a ModelPack model
// without an error, downloads all of it, and shows an empty directory in the pod.
func TestStockModel(t *testing.T) {
	n := node.StartNode(t, node.Options{Stock: true})
	n.Registry.Push(t, "busybox", "1", node.Busybox(t))
	weights := []byte(strings.Repeat("weights ", 1<<16))
	n.Registry.Push(t, "model", "1", modelPack(t, map[string][]byte{"model.gguf": weights}))
	cri := n.CRI(t)
	busybox, err := cri.Pull(n.Registry.Ref("busybox", "1"), "")
	if err != nil {
		t.Fatal(err)
	}
	model, err := cri.Pull(n.Registry.Ref("model", "1"), "")
	if err != nil {
		t.Fatalf("pull of a model: got %v, want no error", err)
	}
	blob := digest.FromBytes(weights)
	if _, err := os.Stat(filepath.Join(n.Dir, "root/io.containerd.content.v1.content/blobs/sha256", blob.Encoded())); err != nil {
		t.Errorf("the weights were not downloaded: %v", err)
	}
	c, err := cri.RunPod(t, "").Run(busybox, node.ImageMount{Image: model, Path: "/model"})
	if err != nil {
		t.Fatalf("container with a model: got %v, want no error", err)
	}
	got, err := cri.List(c, "/model")
	if err != nil {
		t.Fatal(err)
	}
	if len(got) != 0 {
		t.Errorf("files of the model: got %v, want none; stock containerd has learnt about models", got)
	}
}

// modelPack is a ModelPack artifact with raw weight layers.
func modelPack(t *testing.T, files map[string][]byte) node.Artifact {
	t.Helper()
	type descriptor struct {
		MediaType   string            `json:"mediaType"`
		Digest      digest.Digest     `json:"digest"`
		Size        int               `json:"size"`
		Annotations map[string]string `json:"annotations,omitempty"`
	}
	const base = "application/vnd.cncf.model."
	a := node.Artifact{MediaType: "application/vnd.oci.image.manifest.v1+json", Blobs: map[digest.Digest][]byte{}}
	put := func(mediaType string, p []byte, annotations map[string]string) descriptor {
		d := digest.FromBytes(p)
		a.Blobs[d] = p
		return descriptor{mediaType, d, len(p), annotations}
	}
	var layers []descriptor
	var diffIDs []digest.Digest
	for name, p := range files {
		layers = append(layers, put(base+"weight.v1.raw", p, map[string]string{"org.cncf.model.filepath": name}))
		diffIDs = append(diffIDs, digest.FromBytes(p))
	}
	config, err := json.Marshal(map[string]any{
		"descriptor": map[string]any{"name": "test"}, "config": map[string]any{},
		"modelfs": map[string]any{"type": "layers", "diffIds": diffIDs},
	})
	if err != nil {
		t.Fatal(err)
	}
	a.Manifest, err = json.Marshal(map[string]any{
		"schemaVersion": 2, "mediaType": a.MediaType, "artifactType": base + "manifest.v1+json",
		"config": put(base+"config.v1+json", config, nil), "layers": layers,
	})
	if err != nil {
		t.Fatal(err)
	}
	return a
}
