package kubelet

import (
	"bytes"
	"encoding/json"
	"os/exec"
	"testing"

	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/test/e2e/node"
)

// placed is the first element of repositories whose models have the directory "models" by a rule of the node.
const placed = "placed"

// The containers that KServe gives a model to.
// https://github.com/kserve/kserve/blob/v0.20.0/pkg/constants/constants.go
const (
	inferenceContainer = "kserve-container" // of an InferenceService
	llmContainer       = "main"             // of an LLMInferenceService
)

// kserve returns a pod that the code of KServe has given a model to.
func (k *kubelet) kserve(t *testing.T, name, container, ref string) pod {
	t.Helper()
	p := k.pod(name, "", "")
	p.Spec.Volumes, p.Spec.Containers[0].Mounts, p.Spec.Containers[0].Name = nil, nil, container
	in, err := json.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(node.KServePod(t), "oci+native://"+ref, container)
	cmd.Stdin = bytes.NewReader(in)
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("kserve-pod: %v", err)
	}
	p = pod{}
	if err := json.Unmarshal(out, &p); err != nil {
		t.Fatal(err)
	}
	if m := p.Spec.Containers[0].Mounts; len(m) != 1 || m[0].SubPath != "models" || !m[0].ReadOnly || m[0].Path != "/mnt/models" {
		t.Fatalf("KServe mounts another way than the documentation says: %+v", m)
	}
	return p
}

// testKServe gives models to the pods of KServe, which mounts the directory "models" of an image: of a model that was converted with
// this prefix, of one that a rule of the node gives it to, by tag and by the digest of the registry, and of one that has none.
func testKServe(t *testing.T, k *kubelet) {
	b := converttest.ModelPackRaw(converttest.Files(weights(31, 1<<20+5)))
	k.node.Registry.Push(t, "models/kserve", "1", artifact(b))
	k.node.Registry.Push(t, placed+"/kserve", "1", artifact(b))
	if out := k.node.Ballast("convert", k.node.Registry.Ref("models/kserve", "1"), k.node.Registry.Ref("converted/kserve", "1"), "--prefix", "models"); out.Err != nil {
		t.Fatalf("ballast convert: %v\n%s", out.Err, out.Output())
	}
	byTag := k.node.Registry.Ref(placed+"/kserve", "1")
	pods := []pod{
		k.kserve(t, "kserve-converted", inferenceContainer, k.node.Registry.Ref("converted/kserve", "1")),
		k.kserve(t, "kserve-rule", llmContainer, byTag),
		k.kserve(t, "kserve-digest", inferenceContainer, k.node.Registry.Host+"/"+placed+"/kserve@"+b.Digest().String()),
	}
	none := k.kserve(t, "kserve-none", llmContainer, k.node.Registry.Ref("models/kserve", "1"))
	k.apply(t, append(pods, none)...)
	for _, p := range pods {
		k.awaitRunning(t, p)
		k.wantFiles(t, p.Metadata.Name, p.Spec.Containers[0].Name, "/mnt/models", states(b))
	}
	wantMessage(t, k.awaitWaiting(t, "kserve-none", "CreateContainerError"), `image subpath "models"`, documented(t, "no such file or directory"))
}
