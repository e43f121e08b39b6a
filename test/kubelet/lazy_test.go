package kubelet

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/test/e2e/node"
	"github.com/opencontainers/go-digest"
)

// The registry is slow. Pods read a model with digests of chunks long before it is complete. The pod of
// a model without them starts when it is complete, however long that takes: no timeout of the runtime
// ends the pull, and a restart of the kubelet does not repeat it.
func TestSlowRegistry(t *testing.T) {
	const size, rate = 8 << 20, 1 << 20 // bytes, bytes a second of each connection
	k := startNode(t, node.Options{
		// With two connections the pull takes several times the timeout.
		Config:     "[fetch]\nconnections = 2\n",
		Containerd: "[plugins.\"io.containerd.cri.v1.images\"]\n  image_pull_progress_timeout = \"1s\"\n",
	}, nil)
	whole, early := converttest.ModelPackRaw(converttest.Files(weights(70, 2*size))), converttest.ModelPackRaw(converttest.Files(weights(71, 8*size)))
	early.Name = "early"
	ref := k.convert(t, push(t, k, early), "early")
	slow := k.node.Registry.Wire.Add(node.Fault{Match: node.AnyBlob, Rate: rate})

	p := k.pod("complete", push(t, k, whole), "IfNotPresent")
	k.apply(t, p)
	k.awaitPulling(t, whole.Name)
	k.process.Kill()
	k.start(t)
	k.awaitRunning(t, p)
	k.wantFiles(t, "complete", "main", "/model", states(whole))
	if n := k.node.Registry.Wire.BlobBytes()[digest.FromBytes(whole.Files["model.gguf"].Data)]; n > 2*size*3/2 {
		t.Errorf("%d bytes were sent of a file of %d", n, 2*size)
	}

	k.ballast(t, "pause") // only reads fetch
	for i, name := range []string{"early", "second"} {
		k.run(t, k.pod(name, ref, "Always"))
		k.wantRead(t, name, early, (7-i)*size)
		if k.complete(early) {
			t.Errorf("pod %s: the model was complete before it was read; the test proves little", name)
		}
	}
	slow()
	k.ballast(t, "resume")
	eventually(t, "complete model", func() error {
		if !k.complete(early) {
			return errors.New("it is not")
		}
		return nil
	})
	for _, name := range []string{"early", "second"} {
		k.wantFiles(t, name, "main", "/model", states(early))
	}
}

// ballast runs ballast.
func (k *kubelet) ballast(t *testing.T, command string) {
	t.Helper()
	if out := k.node.Ballast(command); out.Err != nil {
		t.Fatalf("ballast %s: %v\n%s", command, out.Err, out.Output())
	}
}

// awaitPulling waits until the node fetches a model with this name.
func (k *kubelet) awaitPulling(t *testing.T, name string) {
	t.Helper()
	eventually(t, "pull of "+name, func() error {
		out := k.node.Ballast("ls")
		for line := range strings.Lines(out.Stdout) {
			if strings.Contains(line, name) && strings.Contains(line, "pulling") {
				return nil
			}
		}
		return fmt.Errorf("it has not begun: %s", out.Output())
	})
}

// complete reports whether the weights of a model are an object of the store.
func (k *kubelet) complete(b *converttest.Built) bool {
	_, err := os.Stat(k.object(b, "model.gguf"))
	return err == nil
}
