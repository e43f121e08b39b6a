package e2e

import (
	"path"
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/test/e2e/node"
)

// handler is the runtime handler whose pods use the snapshotter that is not the default of the node.
const plainHandler = `
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.plain]
  runtime_type = "io.containerd.runc.v2"
  snapshotter = "overlayfs"
`

// TestVolumes mounts models of every format as image volumes of one pod.
func TestVolumes(t *testing.T) {
	n, cri, busybox := startPods(t, node.Options{})
	models := converttest.All(converttest.Files(weights(11, 1<<20+1)))
	var mounts []node.ImageMount
	for _, b := range models {
		id, err := cri.Pull(push(t, n, b), "")
		if err != nil {
			t.Fatalf("pull %s: %v", b.Name, err)
		}
		mounts = append(mounts, node.ImageMount{Image: id, Path: "/models/" + b.Name})
	}
	pod := cri.RunPod(t, "")
	c, err := pod.Run(busybox, mounts...)
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range models {
		wantVolume(t, cri, c, "/models/"+b.Name, states(b))
	}

	// A volume is read-only.
	target := "/models/" + models[0].Name + "/README.md"
	if _, err := cri.Exec(c, "/bin/busybox", "sh", "-c", "echo x > "+target); err == nil || !strings.Contains(err.Error(), "ead-only") {
		t.Errorf("write to a volume: got %v, want: read-only file system", err)
	}
}

// TestVolumeShared mounts one model in two containers of a pod, in one of them a directory of it, and
// in a second pod.
func TestVolumeShared(t *testing.T) {
	for _, show := range ways {
		t.Run(show, func(t *testing.T) { testVolumeShared(t, show) })
	}
}

func testVolumeShared(t *testing.T, show string) {
	n, cri, busybox := startPods(t, node.Options{Config: showAs(show)})
	b := converttest.ModelPackTarGzip(converttest.Files(weights(12, 2<<20)))
	model, err := cri.Pull(push(t, n, b), "")
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		pod := cri.RunPod(t, "")
		whole, err := pod.Run(busybox, node.ImageMount{Image: model, Path: "/model"})
		if err != nil {
			t.Fatal(err)
		}
		part, err := pod.Run(busybox, node.ImageMount{Image: model, Path: "/scripts", SubPath: "scripts"})
		if err != nil {
			t.Fatal(err)
		}
		wantVolume(t, cri, whole, "/model", states(b))
		below := map[string]node.FileState{}
		for p, f := range b.Files {
			if path.Dir(p) == "scripts" {
				below[path.Base(p)] = state(f)
			}
		}
		wantVolume(t, cri, part, "/scripts", below)
	}
}

// TestVolumeOtherSnapshotter mounts a model in a pod whose handler has another snapshotter: that fails,
// and never shows an empty directory.
func TestVolumeOtherSnapshotter(t *testing.T) {
	n := node.StartNode(t, node.Options{Containerd: plainHandler})
	n.Registry.Push(t, "busybox", "1", node.Busybox(t))
	cri := n.CRI(t)
	busybox, err := cri.Pull(n.Registry.Ref("busybox", "1"), "plain")
	if err != nil {
		t.Fatal(err)
	}
	b := converttest.ModelPackRaw(converttest.Files(weights(13, 1<<20)))
	ref := push(t, n, b)
	if id, err := cri.Pull(ref, "plain"); err == nil {
		// The pull may fetch the content only; the volume must fail.
		pod := cri.RunPod(t, "plain")
		if _, err := pod.Run(busybox, node.ImageMount{Image: id, Path: "/model"}); err == nil {
			t.Error("a container started with a model in overlayfs; want an error")
		} else {
			t.Logf("volume: %v", err)
		}
	} else {
		t.Logf("pull: %v", err)
	}

	// Pulled for ballast, then used by the other handler.
	id, err := cri.Pull(ref, "")
	if err != nil {
		t.Fatal(err)
	}
	pod := cri.RunPod(t, "plain")
	if _, err := pod.Run(busybox, node.ImageMount{Image: id, Path: "/model"}); err == nil {
		t.Error("a container started with a model in overlayfs; want an error")
	} else {
		t.Logf("volume: %v", err)
	}
}
