package kubelet

import (
	"testing"

	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/test/e2e/node"
)

// The disk is full: a pod whose model does not fit waits, and its status says what is missing. Running
// pods continue, and pods with a complete model start. When there is space again, the pod starts
// without help.
func TestFullDisk(t *testing.T) {
	k := startNode(t, node.Options{}, nil)
	there, large := converttest.ModelPackRaw(converttest.Files(weights(80, 8<<20))), converttest.ModelPackRaw(converttest.Files(weights(81, 32<<20)))
	large.Name = "large"
	ref, largeRef := push(t, k, there), push(t, k, large)
	k.run(t, witness(k.pod("running", ref, "IfNotPresent")))

	free := k.fill(t, 4) // about 80 MB, of which 64 MiB stay in reserve
	waiting := k.pod("waiting", largeRef, "IfNotPresent")
	k.apply(t, waiting)
	message := k.awaitWaiting(t, "waiting", "ErrImagePull", "ImagePullBackOff")
	t.Log(message)
	wantMessage(t, message, "fetch model "+k.node.Registry.Host+"/models/large: the model needs 34 MB more", "and 67 MB stay in reserve, but "+k.node.Root(),
		documented(t, "and no unused objects to remove; \"ballast df\" shows what takes space; make room on the node, or run the pod on another one"))
	k.run(t, k.pod("shares", ref, "IfNotPresent")) // needs no space

	free()
	k.awaitRunning(t, waiting)
	for name, b := range map[string]*converttest.Built{"waiting": large, "shares": there, "running": there} {
		k.wantFiles(t, name, "main", "/model", states(b))
	}
	if s, _, err := k.status("running"); err != nil || s.Containers[0].Restarts != 0 {
		t.Errorf("the pod that ran before was disturbed: %v\n%s", err, describe(s))
	}
}
