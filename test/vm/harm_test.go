//go:build vm

package vm

import (
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/test/e2e/node"
	"github.com/google/go-cmp/cmp"
)

// emptied empties the root under a running daemon. Setup restores what is missing, and models can be pulled.
func (m *machine) emptied(t *testing.T, want model) {
	t.Helper()
	m.sh(t, "find /var/lib/ballast -xdev -mindepth 1 -delete 2>/dev/null || true")
	if out := m.sh(t, "ballast setup 2>&1"); strings.Contains(out, "nothing to change") {
		t.Errorf("setup does not see that the keys of the facade are gone: %s", out)
	}
	m.answers(t)
	fresh := m.registries.pushOllama(t, "library/fresh", "1b", weights(42, 4<<20))
	m.mustPull(t, fresh.ref)
	m.holds(t, fresh)
	// What doctor says about the records that containerd has of lost snapshots.
	for _, l := range node.Lines(m.try("ballast doctor").Stdout) {
		if fix, ok := strings.CutPrefix(l, "fix: "); ok && strings.HasPrefix(fix, "ctr ") {
			m.sh(t, fix+" >/dev/null")
		}
	}
	m.sh(t, "ballast verify --repair") // what no image keeps
	m.healthy(t)
	if out := m.pull(want.ref); out.Err != nil {
		t.Errorf("pull %s, of which containerd has records: %v\n%s", want.ref, out.Err, out.Output())
	}
}

// forced removes ballast under a container that uses it, and what that leaves, as setup says. After another setup the
// same models can be pulled.
func (m *machine) forced(t *testing.T, want model, busybox string) {
	t.Helper()
	m.mustPull(t, want.ref)
	m.mustPull(t, busybox)
	m.startReader(t, "forced", want, busybox)
	if out := m.try("ballast setup --remove"); out.Err == nil {
		t.Errorf("removed under a container:\n%s", out.Output())
	}
	t.Log(m.sh(t, "ballast setup --remove --force 2>&1"))
	m.reads(t, "forced", want)
	m.sh(t, `ctr tasks rm -f forced
ctr containers rm --keep-snapshot forced
timeout 120 umount -l /run/model-forced
ctr leases rm --sync /run/model-forced`)
	t.Log(m.sh(t, "ballast setup --remove 2>&1"))
	m.sh(t, "ballast setup --registry registry.ollama.ai")
	m.sh(t, "ballast verify --repair") // containerd has records of the snapshots of the container
	m.healthy(t)
	m.mustPull(t, want.ref)
	m.holds(t, want)
}

// legacy is a configuration that is valid, and not together with a directory of hosts.toml files.
const legacy = `version = 2
[plugins."io.containerd.grpc.v1.cri".registry.mirrors."docker.io"]
  endpoint = ["https://registry.example"]
`

// mirrors sets up a machine whose containerd has registry.mirrors: setup refuses or rolls back, and CRI works on.
func (m *machine) mirrors(t *testing.T) {
	t.Helper()
	m.sh(t, "cat >/etc/containerd/config.toml <<'END'\n"+legacy+"END\nsystemctl restart containerd")
	before := m.foreignFiles(t)
	if !m.cri(t) {
		t.Fatal("CRI does not work before the setup")
	}
	out := m.try("cd " + download + "\ntar xf " + m.tarballOf(thisVersion) + ".tar.gz\n" + m.tarballOf(thisVersion) + "/ballast setup --registry registry.ollama.ai")
	if !m.cri(t) {
		t.Errorf("CRI is down after a setup that ended with %v:\n%s", out.Err, out.Output())
	}
	if out.Err == nil {
		t.Logf("setup:\n%s", out.Output())
		m.healthy(t)
		m.sh(t, "ballast setup --remove")
	} else {
		t.Logf("setup refused: %s", out.Output())
	}
	if d := cmp.Diff(before, m.foreignFiles(t)); d != "" {
		t.Errorf("left (-before +after):\n%s", d)
	}
}

// cri reports whether both plugins of CRI have been loaded.
func (m *machine) cri(t *testing.T) bool {
	t.Helper()
	out := m.sh(t, "ctr plugins ls | awk '$1 ~ /^io.containerd.(grpc|cri)/ && $2 ~ /^(cri|images|runtime)$/ { print $NF }'")
	return out != "" && !strings.Contains(out, "error")
}
