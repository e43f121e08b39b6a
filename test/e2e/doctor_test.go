package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/test/e2e/node"
	"golang.org/x/sys/unix"
)

func doctor(n *node.Node) node.Result {
	return n.Ballast("doctor", "--containerd-config", n.ContainerdConfigFile(), "--hosts-dir", n.HostsDir())
}

// TestDoctor finds no problem on a node that is set up by the commands, and each fault that the test
// makes.
func TestDoctor(t *testing.T) {
	t.Run("no fault", func(t *testing.T) {
		if out := doctor(node.StartNode(t, node.Options{})); out.Err != nil {
			t.Errorf("%v\n%s", out.Err, out.Output())
		} else if want := "own their files; the container runtime supports id-mapped mounts"; !strings.Contains(out.Stdout, want) {
			t.Errorf("no %q in\n%s", want, out.Stdout)
		}
	})
	remove := func(line string) func(string) string {
		return func(s string) string { return strings.Replace(s, line, "", 1) }
	}
	for _, tt := range []struct {
		name    string
		options node.Options
		break_  func(*testing.T, *node.Node)
		words   []string
	}{
		{
			name:    "differ missing from unpack_config",
			options: node.Options{Edit: remove("  differ = \"ballast-diff\"\n")},
			words:   []string{"unpack_config", "ballast-diff"},
		},
		{
			name:    "differ missing from the diff service",
			options: node.Options{Edit: remove(`"ballast-diff", `)},
			words:   []string{"diff-service", "ballast-diff"},
		},
		{
			name:    "hosts.toml fails open",
			options: node.Options{},
			break_: func(t *testing.T, n *node.Node) {
				p := filepath.Join(n.HostsDir(), n.Registry.Host, "hosts.toml")
				open := "server = \"http://" + n.Registry.Host + "\"\n[host.\"http://" + n.Facade + "\"]\n  capabilities = [\"pull\", \"resolve\"]\n"
				if err := os.WriteFile(p, []byte(open), 0o644); err != nil {
					t.Fatal(err)
				}
			},
			words: []string{"hosts.toml", "resolve"},
		},
		{
			name:    "another root",
			options: node.Options{Edit: func(s string) string { return strings.Replace(s, "/ballast\"", "/elsewhere\"", 1) }},
			words:   []string{"root"},
		},
		{
			// A file system on which a mount with data-only layers fails looks like a kernel without
			// them: both are found by trying.
			name:    "no data-only layers",
			options: node.Options{},
			break_: func(t *testing.T, n *node.Node) {
				n.Ballastd.Stop(t)
				if err := unix.Mount("none", n.Root(), "ramfs", 0, ""); err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() {
					if err := unix.Unmount(n.Root(), unix.MNT_DETACH); err != nil {
						t.Error(err)
					}
				})
				n.StartBallastd(t)
			},
			words: []string{"overlayfs does not support data-only lower layers", "hard links", "Linux 6.5"},
		},
		{
			name:    "daemon down",
			options: node.Options{},
			break_:  func(t *testing.T, n *node.Node) { n.Ballastd.Stop(t) },
			words:   []string{"ballastd"},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n := node.StartNode(t, tt.options)
			if tt.break_ != nil {
				tt.break_(t, n)
			}
			out := doctor(n)
			wantError(t, out, append(tt.words, "fix:")...)
			t.Logf("%s", out.Stdout)
		})
	}
}
