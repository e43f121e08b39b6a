package kubelet

import (
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/test/e2e/node"
)

// handlerAnnotation is the annotation that names the handler of a pod for pulls. containerd reads it up to 2.4.
const handlerAnnotation = "io.containerd.cri.runtime-handler"

// TestWithoutAnnotation has a node on which only the pods of one handler use ballast, and pods without the annotation
// that tells containerd the handler, as for every pod from containerd 2.5 on: a model that was pulled as the agent of ModelSets
// does is mounted, another one is refused, and neither is empty.
func TestWithoutAnnotation(t *testing.T) {
	const handler = "ballast"
	api, use := withAPI(t)
	k := startNode(t, node.Options{}, nil, use, func(t *testing.T, k *kubelet) {
		k.node.ConfigureContainerd(t, "--runtime-handler", handler)
		k.node.Containerd.Stop(t)
		k.node.StartContainerd(t)
	})
	api.put(objectKey{"runtimeclasses", "", handler}, object{"handler": handler})
	var all []pod
	t.Cleanup(func() { api.delete(all...) })
	create := func(name string, b *converttest.Built, annotations map[string]string) pod {
		p := k.pod(name, push(t, k, b), "IfNotPresent")
		p.Metadata.Annotations, p.Spec.RuntimeClass = annotations, handler
		all = append(all, p)
		api.create(t, p)
		return p
	}
	model := func(name string, seed byte) *converttest.Built {
		b := converttest.ModelPackRaw(converttest.Files(weights(seed, 1<<20+1)))
		b.Name = name
		return b
	}
	prepared, unknown, annotated := model("prepared", 111), model("unknown", 112), model("annotated", 113)

	fleetPull := func(ref string) {
		t.Helper()
		if err := k.node.FleetPull(map[string]string{"ref": ref, "handler": handler}); err != nil {
			t.Fatal(err)
		}
	}
	fleetPull(push(t, k, prepared))
	k.awaitRunning(t, create("prepared", prepared, nil))
	k.wantFiles(t, "prepared", "main", "/model", states(prepared))
	for _, e := range k.events(t, podName("prepared")) {
		if strings.Contains(e.Message, "Pulling image") && strings.Contains(e.Message, prepared.Name) {
			t.Errorf("the kubelet pulls what is there: %s", e.Message)
		}
	}

	create("unknown", unknown, nil)
	if m := k.awaitWaiting(t, "unknown", "ErrImagePull", "ImagePullBackOff"); !strings.Contains(m, documented(t, "to overlayfs")) {
		t.Errorf("the message does not say why:\n%s", m)
	}
	fleetPull(push(t, k, unknown)) // as if a set named it later
	k.awaitRunning(t, all[1])
	k.wantFiles(t, "unknown", "main", "/model", states(unknown))

	k.awaitRunning(t, create("annotated", annotated, map[string]string{handlerAnnotation: handler}))
	k.wantFiles(t, "annotated", "main", "/model", states(annotated))
}
