package e2e

import (
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/test/e2e/node"
)

// users starts a pod in a user namespace: all files belong to its users. 1.7 copies the files for that.
func (n *aVersion) users(t *testing.T) string {
	before := snapshotCount(t, n.Node)
	id, err := n.pods.RunUserPod(t, 100000).Run(n.busybox)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := n.pods.Exec(id, "/bin/busybox", "stat", "-c", "%u:%g", "/data/kept"); err != nil || got != "0:0\n" {
		t.Errorf("got %q, %v, want 0:0", got, err)
	}
	copied := snapshotCount(t, n.Node)-before > 2 // those of the sandbox and of the container
	if want := n.minor == "1.7"; copied != want {
		t.Errorf("a copy was made: %t, want %t", copied, want)
	}
	if copied {
		return "by copying"
	}
	return works
}

// usersVolume mounts a model whose weights only owner and group may read.
func (n *aVersion) usersVolume(t *testing.T) string {
	if !n.volumes() {
		return none
	}
	n.seed++
	w := weights(n.seed, 1<<20)
	n.Registry.Push(t, "models/users", "1", artifact(converttest.ModelPackRaw(private(w))))
	id, err := n.pods.Pull(n.Registry.Ref("models/users", "1"), "")
	if err != nil {
		t.Fatal(err)
	}
	startUserPod(t, n.pods, 200000, n.busybox, id).looks(t, w)
	return works
}

// usersLazy mounts an incomplete model. Where that is impossible, the error says so, and it works when
// the model is complete.
func (n *aVersion) usersLazy(t *testing.T) string {
	if !n.volumes() {
		return none
	}
	n.seed++
	w := weights(n.seed, 24<<20)
	ref := convertedModel(t, n.Node, converttest.ModelPackRaw(private(w)))
	pause(t, n.Node)
	id, err := n.pods.Pull(ref, "")
	if err != nil {
		t.Fatal(err)
	}
	p := &userPod{Pod: n.pods.RunUserPod(t, 300000), cri: n.pods, host: 300000, mode: "640"}
	volume := node.ImageMount{Image: id, Path: "/model"}
	found := works
	if p.id, err = p.Run(n.busybox, volume); err != nil && (n.minor == "2.1" || n.minor == "2.2") {
		if !strings.Contains(err.Error(), "is not complete and cannot be mounted for a user namespace yet") {
			t.Errorf("the reason is missing: %v", err)
		}
		found = "when it is complete"
	} else if err != nil {
		t.Fatal(err)
	} else if got, want := p.sh(t, "tail -c 4096 /model/model.gguf | sha256sum"), sum(w[len(w)-4096:])+"  -\n"; got != want {
		t.Errorf("end of the file: got %q, want %q", got, want)
	}
	if complete(n.Node, w) {
		t.Error("the model was complete before it was read")
	}
	resume(t, n.Node)
	if err := pullRest(n.Node, ref); err != nil {
		t.Error(err)
	}
	if found != works {
		if p.id, err = p.Run(n.busybox, volume); err != nil {
			t.Fatal(err)
		}
	}
	p.looks(t, w)
	return found
}
