package e2e

import (
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/test/e2e/node"
)

// stockDiffer makes containerd unpack with its own differ for the ballast snapshotter.
func stockDiffer(snippet string) string {
	return strings.NewReplacer(
		`default = ["ballast-diff", "walking"]`, `default = ["walking"]`,
		`differ = "ballast-diff"`, `differ = "walking"`,
	).Replace(snippet)
}

// TestClosed checks that a wrong setup leads to errors and never to an empty directory.
func TestClosed(t *testing.T) {
	b := converttest.ModelPackRaw(converttest.Files(weights(50, 1<<20)))

	t.Run("stock snapshotter", func(t *testing.T) {
		n := node.StartNode(t, node.Options{})
		ref := push(t, n, b)
		wantRefused(t, n, "overlayfs", ref, "no processor for media-type")
		wantRefused(t, n, "overlayfs", ref, "do not belong to the ballast snapshotter", "--local")
	})

	// Each pull has its own node, so that a garbage collection after a failed pull cannot affect the
	// next one.
	for _, flags := range [][]string{nil, {"--local"}} {
		t.Run(strings.Join(append([]string{"stock differ"}, flags...), " "), func(t *testing.T) {
			n := node.StartNode(t, node.Options{Edit: stockDiffer})
			wantRefused(t, n, "ballast", push(t, n, b), "no processor for media-type", flags...)
		})
	}

	t.Run("facade stopped", func(t *testing.T) {
		n := node.StartNode(t, node.Options{})
		ref := push(t, n, b)
		n.Ballastd.Stop(t)
		wantRefused(t, n, "overlayfs", ref, "connection refused")
	})

	t.Run("not converted", func(t *testing.T) {
		n := node.StartNode(t, node.Options{Config: "[facade]\norigin_digests = false\n"})
		n.Registry.Push(t, "busybox", "1", node.Busybox(t))
		ref := push(t, n, b)
		cri := n.CRI(t)
		busybox, err := cri.Pull(n.Registry.Ref("busybox", "1"), "")
		if err != nil {
			t.Fatal(err)
		}
		n.Direct(t, n.Registry.Host, n.Registry.Host) // as if there were no facade
		model, err := cri.Pull(ref, "")
		if err != nil {
			t.Logf("pull: %v", err)
			return
		}
		_, err = cri.RunPod(t, "").Run(busybox, node.ImageMount{Image: model, Path: "/model"})
		if err == nil {
			t.Fatal("a container started with a model that was not converted; want an error")
		}
		t.Logf("volume: %v", err)
		if !strings.Contains(err.Error(), "convert") {
			t.Errorf("the message does not say that the model was not converted: %v", err)
		}
	})
}

// wantRefused pulls and checks that the pull fails with an error that contains words.
func wantRefused(t *testing.T, n *node.Node, snapshotter, ref, words string, flags ...string) {
	t.Helper()
	switch out := n.Pull(snapshotter, ref, flags...); {
	case out.Err == nil:
		t.Errorf("pull %v: it succeeded, want an error", flags)
	case !strings.Contains(out.Stderr, words):
		t.Errorf("pull %v: %s; want %q in it", flags, strings.TrimSpace(out.Stderr), words)
	}
}
