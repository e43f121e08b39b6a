package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/test/e2e/node"
	"github.com/google/go-cmp/cmp"
)

// A distribution is what "ballast setup" finds on a node of it.
type distribution struct {
	base  string            // the configuration of containerd: a file of testdata/distributions, or of setup's testdata
	minor string            // of containerd
	home  string            // of k3s or RKE2; empty if containerd is where it usually is
	unit  string            // empty is containerd
	files map[string]string // others of the distribution

}

// setupRoots has the trees of distributions that are also the testdata of package setup.
const setupRoots = "../../cmd/internal/installer/setup/testdata/"

func TestSetupKubeadm(t *testing.T) {
	testSetupDistribution(t, distribution{base: setupRoots + "kubeadm/etc/containerd/config.toml", minor: "2.2", files: map[string]string{"/var/lib/kubelet/kubeadm-flags.env": "\n"}})
}

func TestSetupKind(t *testing.T) {
	testSetupDistribution(t, distribution{base: setupRoots + "kind/etc/containerd/config.toml", minor: "2.3", files: map[string]string{"/etc/containerd/cri-base.json": "{}"}})
}

func TestSetupEKS(t *testing.T) {
	testSetupDistribution(t, distribution{base: "testdata/distributions/eks-al2023.toml", minor: "2.2", files: map[string]string{"/etc/eks/release": "al2023\n"}})
}

func TestSetupGKE(t *testing.T) {
	testSetupDistribution(t, distribution{base: "testdata/distributions/gke.toml", minor: "2.0"})
}

func TestSetupAKS(t *testing.T) {
	testSetupDistribution(t, distribution{base: "testdata/distributions/aks-ubuntu.toml", minor: "2.3"})
}

func TestSetupK3s(t *testing.T) {
	home := "/var/lib/rancher/k3s/agent"
	testSetupDistribution(t, distribution{base: setupRoots + "k3s" + home + "/etc/containerd/config.toml", minor: "2.3", home: home, unit: "k3s-agent"})
}

func TestSetupRKE2(t *testing.T) {
	home := "/var/lib/rancher/rke2/agent"
	testSetupDistribution(t, distribution{base: setupRoots + "rke2" + home + "/etc/containerd/config.toml", minor: "2.1", home: home, unit: "rke2-server"})
}

// testSetupDistribution sets a node up beside neighbours. Settings that conflict are refused before anything changes;
// beside files of others models can be pulled, and the removal leaves all as it was.
func testSetupDistribution(t *testing.T, d distribution) {
	at := usual(t)
	for _, v := range node.Versions(t) {
		if node.Minor(v) == d.minor {
			at.version = v
		}
	}
	dropIns := "/etc/containerd/conf.d"
	if d.home != "" {
		dir := d.home + "/etc/containerd"
		at.unit, at.config, at.hosts, at.socket, dropIns = d.unit, dir+"/config.toml", dir+"/certs.d", "/run/k3s/containerd/containerd.sock", dir+"/config-v3.toml.d"
	}
	base, err := os.ReadFile(d.base)
	if err != nil {
		t.Fatal(err)
	}
	m := startMachineAt(t, at, string(base))
	for p, text := range d.files {
		m.write(p, text, 0o644)
	}
	b := converttest.ModelPackRaw(converttest.Files(weights(41, 1<<20)))
	m.registry.Push(t, "team/model", "v1", artifact(b))
	m.registry.Push(t, "busybox", "1", node.Busybox(t))
	model, image := m.registry.Ref("team/model", "v1"), m.registry.Ref("busybox", "1")

	const mirrors = "\n[plugins.'io.containerd.cri.v1.images'.registry.mirrors.'docker.io']\n  endpoint = [\"https://mirror.example\"]\n"
	for _, hostile := range []struct {
		name, file, text string
		words            []string
	}{
		{"another snapshotter", dropIns + "/50-nydus.toml", "version = 3\n[proxy_plugins.nydus]\n  type = \"snapshot\"\n  address = \"/run/nydus.sock\"\n[plugins.'io.containerd.cri.v1.images']\n  snapshotter = \"nydus\"\n", []string{"nydus"}},
		{"mirrors", dropIns + "/60-mirrors.toml", "version = 3\n" + mirrors, []string{"registry.mirrors"}},
		{"the file of somebody else", dropIns + "/ballast.toml", "version = 3\n# of others\n", []string{dropIns + "/ballast.toml", "--force"}},
		{"a hosts.toml", filepath.Join(at.hosts, "models.example", "hosts.toml"), "server = \"https://models.example\"\n", []string{"models.example/hosts.toml", "--force"}},
		{"an edited file", at.config, string(base) + mirrors, []string{"registry.mirrors"}},
	} {
		was, err := os.ReadFile(hostile.file)
		edited := err == nil
		m.write(hostile.file, hostile.text, 0o644)
		m.settings(nil)
		before := m.tree()
		m.calls()
		out := m.setup("--registry", "models.example")
		wantError(t, out, hostile.words...)
		if d := cmp.Diff(before, m.tree()); d != "" || m.calls() != nil {
			t.Errorf("%s: a refused set-up changed something (-before +after):\n%s", hostile.name, d)
		}
		if edited {
			m.write(hostile.file, string(was), 0o644)
		} else {
			m.ok(os.Remove(hostile.file))
		}
	}

	if d.home == "" { // as an operator does for drop-ins
		m.restartWith(strings.Replace(string(base), "\nversion = ", "\nimports = [\""+dropIns+"/*.toml\"]\nversion = ", 1))
	}
	m.write(filepath.Join(at.hosts, "other.example", "hosts.toml"), "server = \"https://other.example\"\n", 0o600)
	m.write(filepath.Join(dropIns, "50-stargz.toml"), "version = 3\n[proxy_plugins.stargz]\n  type = \"snapshot\"\n  address = \"/run/stargz.sock\"\n", 0o640)
	m.write(at.config+".bak", string(base), 0o600)
	if out := m.ctr("images", "pull", "--plain-http", image); out.Err != nil {
		t.Fatalf("before: %v\n%s", out.Err, out.Output())
	}
	m.settings(nil)
	before := m.tree()
	m.mustSetup("--registry", m.registry.Host)
	m.checkSet(model, b)
	m.checkCRI()
	if out := m.ctr("plugins", "ls"); !strings.Contains(out.Stdout, "stargz") {
		t.Errorf("the snapshotter of others is not loaded:\n%s", out.Output())
	}
	m.checkIdle()
	m.mustSetup("--remove")
	if d := cmp.Diff(before, m.tree()); d != "" {
		t.Errorf("left (-before +after):\n%s", d)
	}
	m.checkCRI()
	if out := m.ctr("run", "--rm", "--snapshotter", "overlayfs", image, "again", "/bin/busybox", "true"); out.Err != nil {
		t.Errorf("an image that was there before does not run: %v\n%s", out.Err, out.Output())
	}
}
