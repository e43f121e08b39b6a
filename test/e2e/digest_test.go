package e2e

import (
	"testing"

	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/test/e2e/node"
	criapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// TestDigestOfAnotherNode pulls a private model by the digest that another node saw, on nodes that
// never saw its tag: while the tag still has that digest, and after it was moved.
func TestDigestOfAnotherNode(t *testing.T) {
	first := node.StartNode(t, node.Options{})
	reg := first.Registry
	reg.Push(t, "busybox", "1", node.Busybox(t))
	b := converttest.ModelPackTar(converttest.Files(weights(90, 1<<20)))
	reg.Push(t, "team/model", "v1", artifact(b))
	reg.User, reg.Password = "alice", "s3cret"
	auth := &criapi.AuthConfig{Username: "alice", Password: "s3cret"}
	tag := reg.Ref("team/model", "v1")
	if _, err := first.CRI(t).PullAs(tag, "", auth); err != nil {
		t.Fatal(err)
	}
	mustPull(t, first, "ballast", tag, "--user", "alice:s3cret")
	ref := reg.Host + "/team/model@" + imageDigest(t, first, tag)

	pull := func(t *testing.T, want bool) {
		t.Helper()
		n := node.StartNode(t, node.Options{Registry: reg})
		cri := n.CRI(t)
		if id, err := cri.Pull(ref, ""); err == nil {
			t.Errorf("without the secret: pulled %s", id)
		}
		id, err := cri.PullAs(ref, "", auth)
		if (err == nil) != want {
			t.Fatalf("pull: got %v, want one: %v", err, want)
		}
		if !want {
			return
		}
		busybox, err := cri.PullAs(reg.Ref("busybox", "1"), "", auth)
		if err != nil {
			t.Fatal(err)
		}
		c, err := cri.RunPod(t, "").Run(busybox, node.ImageMount{Image: id, Path: "/model"})
		if err != nil {
			t.Fatal(err)
		}
		wantVolume(t, cri, c, "/model", states(b))
	}
	t.Run("tag", func(t *testing.T) { pull(t, true) })

	other := converttest.ModelPackTar(converttest.Files(weights(91, 1<<20)))
	reg.User = ""
	reg.Push(t, "team/model", "v1", artifact(other))
	reg.User = "alice"
	t.Run("moved tag", func(t *testing.T) { pull(t, false) })
}
