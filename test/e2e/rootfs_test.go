package e2e

import (
	"context"
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/test/e2e/node"
)

// rootMount runs the command that `ctr snapshots mounts` printed, with other directories for changes:
// those printed belong to a running container.
func rootMount(t *testing.T, command, target string) {
	t.Helper()
	f := strings.Fields(command)
	// mount -t overlay overlay TARGET -o key=value,...
	if len(f) != 7 || f[0] != "mount" || f[2] != "overlay" || f[4] != target {
		t.Fatalf("unexpected mount %q", command)
	}
	var options []string
	for _, o := range strings.Split(f[6], ",") {
		if !strings.HasPrefix(o, "upperdir=") && !strings.HasPrefix(o, "workdir=") {
			options = append(options, o)
		}
	}
	work := target + ".work"
	upper := target + ".upper"
	if out := node.Command(t.Context(), nil, "mkdir", work, upper); out.Err != nil {
		t.Fatal(out.Output())
	}
	options = append(options, "upperdir="+upper, "workdir="+work)
	if out := node.Command(t.Context(), nil, "mount", "-t", "overlay", "overlay", target, "-o", strings.Join(options, ",")); out.Err != nil {
		t.Fatalf("mount: %v: %s", out.Err, out.Output())
	}
	t.Cleanup(func() {
		if out := node.Command(context.Background(), nil, "umount", target); out.Err != nil {
			t.Errorf("umount: %v: %s", out.Err, out.Output())
		}
	})
}
