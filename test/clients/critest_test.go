package clients

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/test/e2e/node"
	"github.com/google/go-cmp/cmp"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// critestFocus are the suites for images and mounts.
const critestFocus = "Image|volume|Mount"

// critestFails are the specs that fail with any snapshotter, with the reason.
var critestFails = map[string]string{
	"[k8s.io] Image Manager public image with digest should be pulled and removed [Conformance]": "only the image that critest's authors have pushed has the digest",
}

// TestCritest runs the suites for images and mounts: the same specs fail with ballast and with
// overlayfs.
func TestCritest(t *testing.T) {
	both(t, func(t *testing.T, n *node.Node, _ string) {
		network(t, n)
		pushCritest(t, n)
		report := filepath.Join(n.Dir, "critest.json")
		images := filepath.Join(n.Dir, "images.yaml")
		text := "defaultTestContainerImage: " + n.Registry.Ref("busybox", "1") + "\nwebServerTestImage: " + n.Registry.Ref("busybox", "1") + "\n"
		if err := os.WriteFile(images, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		out := node.Command(context.Background(), nil, tool(t, "critest"), "-runtime-endpoint", "unix://"+n.Socket(), "-image-endpoint", "unix://"+n.Socket(),
			"-test-images-file", images, "-ginkgo.focus", critestFocus, "-ginkgo.json-report", report, "-ginkgo.no-color")
		passed, failed := specs(t, report, out)
		t.Logf("%d passed: %q", len(passed), passed)
		var want []string
		for name := range critestFails {
			want = append(want, name)
		}
		slices.Sort(want)
		if diff := cmp.Diff(failed, want); diff != "" {
			t.Errorf("specs that fail (-got +want):\n%s\n%.20000s", diff, out.Output())
		}
	})
}

// pushCritest pushes substitutes for the images that critest pulls.
func pushCritest(t *testing.T, n *node.Node) {
	t.Helper()
	for _, host := range []string{"gcr.io", "registry.k8s.io", "k8s.gcr.io"} {
		n.Upstream(t, host, n.Registry.Host)
	}
	busybox := node.Busybox(t)
	const repository = "k8s-staging-cri-tools/test-image-"
	for name, user := range map[string]string{
		"user-uid": "1002", "user-username": "www-data", "user-uid-group": "1003:100", "user-username-group": "www-data:100",
		"latest": "", "tag:test": "", "tag:all": "", "1": "", "2": "", "3": "", "predefined-group": "",
	} {
		repo, tag, ok := strings.Cut(name, ":")
		if !ok {
			tag = "latest"
		}
		n.Registry.Push(t, repository+repo, tag, edited(t, busybox, func(im *ocispec.Image) {
			author(name)(im)
			im.Config.User = user
		}))
	}
	for _, tag := range []string{"1", "2", "3"} {
		n.Registry.Push(t, repository+"tags", tag, edited(t, busybox, author("tags")))
	}
	n.Registry.Push(t, "pause", "3.9", edited(t, busybox, author("pause")))
}

// specs returns the names of the specs that passed and that failed.
func specs(t *testing.T, report string, out node.Result) (passed, failed []string) {
	t.Helper()
	p, err := os.ReadFile(report)
	if err != nil {
		t.Fatalf("%v\n%s", err, out.Output())
	}
	var suites []struct {
		SpecReports []struct {
			ContainerHierarchyTexts []string
			LeafNodeText, State     string
		}
	}
	if err := json.Unmarshal(p, &suites); err != nil {
		t.Fatal(err)
	}
	for _, s := range suites {
		for _, r := range s.SpecReports {
			name := strings.TrimSpace(strings.Join(append(r.ContainerHierarchyTexts, r.LeafNodeText), " "))
			switch r.State {
			case "passed":
				passed = append(passed, name)
			case "skipped", "pending":
			default:
				failed = append(failed, name)
			}
		}
	}
	slices.Sort(passed)
	slices.Sort(failed)
	return passed, failed
}
