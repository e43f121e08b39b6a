package e2e

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/ballast-dev/ballast/test/e2e/node"
	"github.com/google/go-cmp/cmp"
)

// TestContrib checks that the examples equal the output of the command for an empty configuration.
func TestContrib(t *testing.T) {
	const contrib = "../../contrib"
	empty := filepath.Join(t.TempDir(), "config.toml")
	if err := os.WriteFile(empty, []byte("version = 1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	files := map[string][]string{
		"containerd/ballast.toml": {"config", "containerd", "--platform", "linux/amd64", "--containerd-version", "2.3", "--containerd-config", empty + ".none"},
	}
	dirs, err := os.ReadDir(filepath.Join(contrib, "hosts"))
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range dirs {
		files["hosts/"+d.Name()+"/hosts.toml"] = []string{"config", "hosts", d.Name()}
	}
	for name, args := range files {
		want, err := os.ReadFile(filepath.Join(contrib, name))
		if err != nil {
			t.Fatal(err)
		}
		out := node.Command(context.Background(), nil, append([]string{node.Binary(t, "ballast"), "--config", empty}, args...)...)
		if out.Err != nil {
			t.Fatalf("ballast %v: %v\n%s", args, out.Err, out.Output())
		}
		if d := cmp.Diff(string(want), out.Stdout); d != "" {
			t.Errorf("%s is not what ballast %v prints (-file +printed):\n%s", name, args, d)
		}
	}
}
