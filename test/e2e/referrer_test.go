package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/test/e2e/node"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	criapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// TestReferrer pushes the converted image of a model next to it: registry, pod status and signature
// have one digest, and a node that never saw the tag pulls it from the registry.
func TestReferrer(t *testing.T) {
	key, public := converttest.KeyPair(t, t.TempDir(), "team")
	b := converttest.ModelPackTarGzip(converttest.Files(weights(80, 2<<20)))
	first, cri, _ := startPods(t, node.Options{})
	tag := push(t, first, b)
	if out := first.Ballast("digest", "--all", tag); !strings.Contains(out.Stdout, "not in the registry") {
		t.Errorf("digests before:\n%s", out.Output())
	}
	first.Registry.Wire.Reset()
	out := first.Ballast("convert", tag, "--referrer", "--sign", key, "-o", "json")
	if out.Err != nil {
		t.Fatalf("%v\n%s", out.Err, out.Output())
	}
	res := lastLine(t, out.Stdout)
	if res.Sent != 0 {
		t.Errorf("%d bytes of blobs were sent, all of which were there", res.Sent)
	}
	want := convertedDigest(t, first, tag)
	if res.Digest != want {
		t.Errorf("the registry has %s, nodes see %s", res.Digest, want)
	}
	out = first.Ballast("digest", "--all", tag)
	if !strings.Contains(out.Stdout, "the registry has it, as referrer sha256:") || !strings.Contains(out.Stdout, b.Digest().String()) {
		t.Errorf("digests:\n%s", out.Output())
	}

	// The registry has no referrers API, so the fallback tag has the list.
	var list, index ocispec.Index
	fetch(t, first, b.Name, strings.ReplaceAll(b.Digest().String(), ":", "-"), &list)
	if len(list.Manifests) != 1 || list.Manifests[0].ArtifactType != "application/vnd.ballast.converted.v1+json" {
		t.Fatalf("referrers: %+v", list.Manifests)
	}
	fetch(t, first, b.Name, list.Manifests[0].Digest.String(), &index)
	if index.Subject == nil || index.Subject.Digest != b.Digest() || index.Subject.Size != int64(len(b.Manifest)) || index.Manifests[0].Digest.String() != want {
		t.Errorf("referrer: %+v", index)
	}

	// By the tag on one node; by the digest, and with a rule, on another node that never saw the tag.
	id, err := cri.Pull(tag, "")
	if err != nil {
		t.Fatal(err)
	}
	if status := repoDigests(t, cri, id); !strings.Contains(status, want) {
		t.Errorf("pod status has %s, want %s", status, want)
	}
	rule := fmt.Sprintf("[[verify.rule]]\nmatch = \"*/models/*\"\nmode = \"enforce\"\nany = [{type = \"cosign\", key = %q}]\n", public)
	for _, ref := range []string{first.Registry.Host + "/models/" + b.Name + "@" + want, tag} {
		second, cri, busybox := startPods(t, node.Options{Registry: first.Registry, Config: rule})
		if id, err = cri.Pull(ref, ""); err != nil {
			t.Fatal(err)
		}
		if status := repoDigests(t, cri, id); !strings.Contains(status, want) {
			t.Errorf("%s: pod status has %s, want %s", ref, status, want)
		}
		c, err := cri.RunPod(t, "").Run(busybox, node.ImageMount{Image: id, Path: "/model"})
		if err != nil {
			t.Fatal(err)
		}
		wantVolume(t, cri, c, "/model", states(b))
		mustPull(t, second, "ballast", ref)
	}

	// A prefetch does the same; the referrer exists already.
	out = first.Ballast("prefetch", "--referrer", tag)
	if out.Err != nil || !strings.Contains(out.Stdout, want) {
		t.Errorf("prefetch: %v\n%s", out.Err, out.Output())
	}
	wantError(t, first.Ballast("convert", "./nowhere", "--referrer"), "registry")
	wantError(t, first.Ballast("convert", tag, first.Registry.Ref("elsewhere", "1"), "--referrer"), "repository of the model")
}

// repoDigests returns the digests in the status of an image.
func repoDigests(t *testing.T, cri *node.CRI, id string) string {
	t.Helper()
	resp, err := cri.Images.ImageStatus(t.Context(), &criapi.ImageStatusRequest{Image: &criapi.ImageSpec{Image: id}})
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(resp.GetImage().GetRepoDigests(), " ")
}

// fetch reads a manifest of a model's repository.
func fetch(t *testing.T, n *node.Node, name, object string, v any) {
	t.Helper()
	resp, err := http.Get(fmt.Sprintf("http://%s/v2/models/%s/manifests/%s", n.Registry.Host, name, object))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if err := json.NewDecoder(resp.Body).Decode(v); err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s, %v", object, resp.Status, err)
	}
}
