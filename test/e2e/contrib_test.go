package e2e

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/ballast-dev/ballast/test/e2e/node"
	"github.com/google/go-cmp/cmp"
)

// TestContrib checks that the example of the drop-in equals the output of the command for an empty configuration.
func TestContrib(t *testing.T) {
	empty := filepath.Join(t.TempDir(), "config.toml")
	if err := os.WriteFile(empty, []byte("version = 1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	args := []string{"--config", empty, "config", "containerd", "--platform", "linux/amd64", "--containerd-version", "2.3", "--containerd-config", empty + ".none"}
	want, err := os.ReadFile("../../contrib/containerd/ballast.toml")
	if err != nil {
		t.Fatal(err)
	}
	out := node.Command(context.Background(), nil, append([]string{node.Binary(t, "ballast")}, args...)...)
	if out.Err != nil {
		t.Fatalf("ballast %v: %v\n%s", args, out.Err, out.Output())
	}
	if d := cmp.Diff(string(want), out.Stdout); d != "" {
		t.Errorf("it is not what ballast %v prints (-file +printed):\n%s", args, d)
	}
}
