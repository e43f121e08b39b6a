package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/test/e2e/node"
)

// TestDistributions starts from the configuration of a distribution, with its version of containerd,
// adds the output of ballast config containerd, and pulls a model for a pod.
func TestDistributions(t *testing.T) {
	files, err := filepath.Glob("testdata/distributions/*.toml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no configurations: %v", err)
	}
	m := &matrix{name: "distributions", cells: map[[2]string]string{}}
	patch := map[string]string{} // releases by minor
	for _, v := range node.Versions(t) {
		patch[node.Minor(v)] = v
		m.columns = append(m.columns, node.Minor(v))
	}
	for _, file := range files {
		p, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		_, minors, _ := strings.Cut(string(p), "# containerd: ")
		minors, _, ok := strings.Cut(minors, "\n")
		if !ok {
			t.Fatalf("%s does not say for which versions it is", file)
		}
		name := "`" + strings.TrimSuffix(filepath.Base(file), ".toml") + "`"
		m.rows = append(m.rows, name)
		for _, minor := range strings.Fields(minors) {
			if t.Run(name+"/"+minor, func(t *testing.T) {
				testDistribution(t, node.Options{Version: patch[minor], Base: string(p)})
			}) {
				m.set(name, minor, works)
			}
		}
	}
	m.compare(t)
}

func testDistribution(t *testing.T, o node.Options) {
	n := startVersion(t, o)
	n.criPull(t)
	if n.volumes() {
		n.volume(t)
	}
	n.ordinary(t)
	// The other settings of the distribution still apply.
	dump := node.Command(t.Context(), nil, n.Tool("containerd"), "-c", n.ContainerdConfigFile(), "config", "dump")
	for _, setting := range []string{
		"discard_unpacked_layers = true", "use_local_image_pull = true", "disable_snapshot_annotations = false",
		"enable_unprivileged_ports = true", "runtimes.test-handler", "runtimes.untrusted", "X-Meta-Source-Client",
	} {
		if strings.Contains(o.Base, setting) && !strings.Contains(dump.Stdout, setting) {
			t.Errorf("with ballast, the node's %q is lost: %v\n%s", setting, dump.Err, dump.Output())
		}
	}
}
