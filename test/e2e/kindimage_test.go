package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/test/e2e/node"
)

// TestKindImage does the steps of the Dockerfile of a node image for kind on a machine with the configuration of kind's
// containerd, and then what its unit does at the first and the second boot.
func TestKindImage(t *testing.T) {
	const dir = "../../contrib/kind/"
	base, err := os.ReadFile(setupRoots + "kind/etc/containerd/config.toml")
	if err != nil {
		t.Fatal(err)
	}
	m := startMachine(t, string(base))
	m.write("/etc/containerd/cri-base.json", "{}", 0o644)
	m.restartWith(string(base))
	d := m.dpkg()
	m.write("/usr/local/sbin/dpkg", fmt.Sprintf("#!/bin/sh\nexec /usr/bin/dpkg --admindir=%s/db --log=%[1]s/log \"$@\"\n", d.dir), 0o755)
	before := m.tree()

	text, err := os.ReadFile(dir + "Dockerfile")
	m.ok(err)
	for line := range strings.Lines(string(text)) {
		f := strings.Fields(line)
		switch {
		case len(f) == 0 || strings.HasPrefix(f[0], "#") || f[0] == "ARG" || f[0] == "FROM":
		case f[0] == "COPY" && f[1] == "ballast_*.deb":
			m.copy(d.built(), f[2], 0o644, "")
		case f[0] == "COPY" && strings.HasSuffix(f[2], "/"):
			m.copy(dir+f[1], filepath.Join(f[2], f[1]), 0o644, "")
		case f[0] == "RUN":
			if out := m.shell(strings.TrimPrefix(line, "RUN ")); out.Err != nil {
				t.Fatalf("%s: %v\n%s", line, out.Err, out.Output())
			}
		default:
			t.Fatalf("the Dockerfile has a line that this test does not know: %s", line)
		}
	}
	for p := range m.tree() {
		if _, was := before[p]; !was && strings.Contains(p, "ballast") && !strings.Contains(p, "ballast-setup.service") {
			t.Errorf("the image has %s", p)
		}
	}
	// The registry has its name, as pods write it.
	const ref = "registry.ollama.ai/library/tiny:1b"
	m.settings(nil)
	m.write("/etc/ballast/hosts.d/registry.ollama.ai/hosts.toml", fmt.Sprintf("server = \"http://%s\"\n", m.registry.Host), 0o644)
	b := converttest.Ollama(converttest.Files(weights(51, 1<<20)), converttest.OllamaConfigNew)
	m.registry.Push(t, "library/tiny", "1b", artifact(b))
	unit, err := os.ReadFile("/etc/systemd/system/ballast-setup.service")
	m.ok(err)
	_, start, _ := strings.Cut(string(unit), "\nExecStart=")
	start, _, _ = strings.Cut(start, "\n")
	m.dir = "/usr/bin"
	for _, want := range []string{"restart", "nothing to change"} {
		if out := m.shell(start); out.Err != nil || !strings.Contains(out.Output(), want) {
			t.Fatalf("%s: %v, want %q\n%s", start, out.Err, want, out.Output())
		}
		m.checkSet(ref, b)
	}
	if out := m.ctr("plugins", "ls"); !strings.Contains(out.Stdout, "ballast") {
		t.Errorf("plugins:\n%s", out.Output())
	}
}

// shell runs a command line on the machine.
func (m *machine) shell(line string) node.Result {
	return node.Command(context.Background(), nil, "sh", "-c", line)
}
