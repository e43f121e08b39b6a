package clients

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/test/e2e/node"
)

// TestDemoImage runs the image of the demo in a privileged container, as the README says, but without a network.
func TestDemoImage(t *testing.T) {
	image, err := filepath.Abs("../../bin/demo.tar")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(image); err != nil {
		t.Fatalf("the image is not built; run `make demo-image`: %v", err)
	}
	dir := t.TempDir()
	podman := []string{"podman", "--root", filepath.Join(dir, "root"), "--runroot", filepath.Join(dir, "run"), "--runtime", node.Runc(t),
		"--cgroup-manager", "cgroupfs", "--events-backend", "file", "--tmpdir", filepath.Join(dir, "tmp")}
	out := node.Command(t.Context(), nil, append(podman, "run", "--rm", "--privileged", "--network", "none",
		"--ulimit", "nofile=4096:4096", "--ulimit", "nproc=4096:4096" /* for machines without CAP_SYS_RESOURCE */, "oci-archive:"+image)...)
	for _, want := range []string{"model.gguf: OK", "All is stopped and removed again", "of the 40 layers"} {
		if out.Err != nil || !strings.Contains(out.Stdout, want) {
			t.Fatalf("podman run: %v, want %q\n%s", out.Err, want, out.Output())
		}
	}
	if strings.Contains(out.Stdout, "FAILED") {
		t.Errorf("podman run:\n%s", out.Stdout)
	}
	if left := node.Command(t.Context(), nil, append(podman, "volume", "ls", "-q")...); left.Err != nil || strings.TrimSpace(left.Stdout) != "" {
		t.Errorf("left: %v\n%s", left.Err, left.Output())
	}
}
