package e2e

import (
	"context"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/test/e2e/node"
	"github.com/opencontainers/go-digest"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	criapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// A kruise makes the calls of the daemon of OpenKruise for an ImagePullJob.
// https://github.com/openkruise/kruise/blob/v1.8.0/pkg/daemon/criruntime/imageruntime/cri.go
type kruise struct {
	*node.CRI
	annotations map[string]string // of the sandboxConfig of the job
	timeout     time.Duration     // of its pullPolicy
}

// pull pulls an image with the pull secrets of the job one after the other, as the daemon does in one attempt.
func (k *kruise) pull(t *testing.T, ref string, secrets ...*criapi.AuthConfig) error {
	ctx, cancel := context.WithTimeout(t.Context(), k.timeout)
	defer cancel()
	if len(secrets) == 0 {
		secrets = append(secrets, nil)
	}
	var err error
	for _, auth := range secrets {
		annotations := map[string]string{"apps.kruise.io/pulling-image-by": "kruise-daemon"}
		maps.Copy(annotations, k.annotations)
		_, err = k.Images.PullImage(ctx, &criapi.PullImageRequest{
			Image:         &criapi.ImageSpec{Image: ref, Annotations: map[string]string{}},
			Auth:          auth,
			SandboxConfig: &criapi.PodSandboxConfig{Annotations: annotations},
		})
		if err == nil {
			return nil
		}
	}
	return err
}

// has looks for an image as the daemon does before and after a pull.
func (k *kruise) has(t *testing.T, ref string) bool {
	t.Helper()
	resp, err := k.Images.ListImages(t.Context(), &criapi.ListImagesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	return slices.ContainsFunc(resp.Images, func(i *criapi.Image) bool { return slices.Contains(i.RepoTags, ref) })
}

// TestKruise pulls models as an ImagePullJob does, on a node where ballast is not the default snapshotter. An attempt
// that ends at its timeout leaves the download to the node, and the next attempt joins it.
func TestKruise(t *testing.T) {
	n := node.StartNode(t, node.Options{})
	n.ConfigureContainerd(t, "--runtime-handler", "ballast")
	n.Containerd.Stop(t)
	n.StartContainerd(t)
	k := &kruise{CRI: n.CRI(t), timeout: time.Minute}
	if err := k.pull(t, push(t, n, converttest.ModelPackRaw(converttest.Files(weights(150, 1<<20))))); err == nil {
		t.Error("a job without the annotation pulled a model for overlayfs")
	}
	k.annotations = map[string]string{"io.containerd.cri.runtime-handler": "ballast"}

	const size = 8 << 20
	b := converttest.ModelPackRaw(converttest.Files(weights(151, size)))
	b.Name = "slow"
	file := digest.FromBytes(b.Files["model.gguf"].Data)
	quick := n.Registry.Wire.Add(node.Fault{Match: node.Blob(file), Rate: 128 << 10})
	ref := push(t, n, b)
	k.timeout = 5 * time.Second
	if err := k.pull(t, ref); status.Code(err) != codes.DeadlineExceeded || k.has(t, ref) {
		t.Fatalf("first attempt: %v", err)
	}
	quick()
	k.timeout = 5 * time.Minute
	if err := k.pull(t, ref); err != nil {
		t.Fatal(err)
	}
	if !k.has(t, ref) {
		t.Errorf("the list of images lacks %s", ref)
	}
	if got := n.Registry.Wire.BlobBytes()[file]; got > size*3/2 {
		t.Errorf("%d bytes were sent for a file of %d in two attempts", got, size)
	}

	private := privateRegistry(t, n, "kruise.test", "alice", aliceSecret)
	secret := converttest.ModelPackRaw(converttest.Files(weights(152, 1<<20)))
	private.Push(t, "team/model", "1", artifact(secret))
	name := "kruise.test/team/model:1"
	if err := k.pull(t, name); err == nil {
		t.Error("a private model was pulled without a secret")
	}
	node.Belongs("wrong", private.Host)
	node.Belongs(aliceSecret, private.Host)
	if err := k.pull(t, name, &criapi.AuthConfig{Username: "mallory", Password: "wrong"}, &criapi.AuthConfig{Username: "alice", Password: aliceSecret}); err != nil {
		t.Errorf("with two secrets: %v", err)
	}
}
