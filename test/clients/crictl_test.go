package clients

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/test/e2e/node"
)

// TestCrictl pulls models, one of them with a password, inspects them, mounts them in a pod and removes them, as an
// administrator of a Kubernetes node does.
func TestCrictl(t *testing.T) {
	n := node.StartNode(t, node.Options{})
	n.Registry.Push(t, "busybox", "1", node.Busybox(t))
	client := slices.Clip([]string{tool(t, "crictl"), "--runtime-endpoint", "unix://" + n.Socket(), "--image-endpoint", "unix://" + n.Socket(), "--timeout", "60s"})
	crictl := func(args ...string) string {
		t.Helper()
		return run(t, nil, append(client, args...)...)
	}
	busybox := n.Registry.Ref("busybox", "1")
	crictl("pull", busybox)
	registry := private(t, n, "password-of-crictl")
	closed := converttest.ModelPackRaw(converttest.Files(weights(1<<20 + 5)))
	closed.Name = "private"
	all := append(models(), closed)
	refs := map[string]string{closed.Name: pushTo(t, registry, closed)}
	var mounts []map[string]any
	for _, b := range all {
		ref, flags := refs[b.Name], []string{"pull", "--creds", registry.User + ":" + registry.Password}
		if ref == "" {
			ref, flags = push(t, n, b), []string{"pull"}
			refs[b.Name] = ref
		} else if out := node.Command(t.Context(), nil, append(client, "pull", ref)...); out.Err == nil {
			t.Errorf("%s was pulled without a password", ref)
		}
		crictl(append(flags, ref)...)
		var im struct {
			Status struct {
				ID       string
				RepoTags []string
				Size     string
			}
		}
		if err := json.Unmarshal([]byte(crictl("inspecti", "--output", "json", ref)), &im); err != nil {
			t.Fatal(err)
		}
		if len(im.Status.RepoTags) != 1 || im.Status.RepoTags[0] != ref || im.Status.Size == "0" {
			t.Errorf("inspecti %s: %+v", ref, im)
		}
		mounts = append(mounts, map[string]any{"container_path": "/models/" + b.Name, "readonly": true, "image": map[string]any{"image": im.Status.ID}})
	}
	if got, want := len(strings.Fields(crictl("images", "--quiet"))), len(all)+1; got != want {
		t.Errorf("%d images, want %d", got, want)
	}
	if out := crictl("imagefsinfo"); !strings.Contains(out, n.Root()) {
		t.Errorf("imagefsinfo does not name %s: %s", n.Root(), out)
	}

	write := func(name string, v any) string {
		t.Helper()
		p, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(n.Dir, name)
		if err := os.WriteFile(file, p, 0o644); err != nil {
			t.Fatal(err)
		}
		return file
	}
	config := write("pod.json", map[string]any{
		"metadata": map[string]any{"name": "pod", "uid": "pod", "namespace": "default"}, "log_directory": filepath.Join(n.Dir, "logs"),
		"linux": map[string]any{"security_context": map[string]any{"namespace_options": map[string]any{"network": 2}}}, // host network
	})
	pod := strings.TrimSpace(crictl("runp", config))
	container := strings.TrimSpace(crictl("create", pod, write("container.json", map[string]any{
		"metadata": map[string]any{"name": "c"}, "image": map[string]any{"image": busybox}, "log_path": "c.log", "mounts": mounts, "linux": map[string]any{},
	}), config))
	crictl("start", container)
	for _, b := range all {
		dir := "/models/" + b.Name
		out := crictl(append([]string{"exec", container}, sumFiles(dir)...)...)
		same(t, fmt.Sprintf("volume of %s", b.Name), listed(out, dir), sums(b))
	}
	crictl("stopp", pod)
	crictl("rmp", pod)
	for _, ref := range refs {
		crictl("rmi", ref)
	}
	if got := strings.Fields(crictl("images", "--quiet")); len(got) != 1 {
		t.Errorf("images that are left: %q", got)
	}
}
