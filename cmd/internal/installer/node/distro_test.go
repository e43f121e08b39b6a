package node

import (
	"os"
	"path/filepath"
	"testing"
)

// TestUnitOf has the cgroups of containerd's process on several distributions, and of one in a
// container.
func TestUnitOf(t *testing.T) {
	for cgroup, want := range map[string]string{
		"0::/system.slice/containerd.service\n":                                   "containerd",
		"0::/system.slice/k3s-agent.service\n":                                    "k3s-agent",
		"0::/system.slice/rke2-server.service/containerd\n":                       "rke2-server",
		"0::/system.slice/snap.microk8s.daemon-containerd.service\n":              "snap.microk8s.daemon-containerd",
		"12:pids:/system.slice/k0sworker.service\n1:name=systemd:/user.slice/x\n": "k0sworker",
		"0::/\n": "", "0::/../..\n": "", "": "", "0::/user.slice/user-0.slice/session-1.scope\n": "", "0::/system.slice/ssh.socket\n": "",
	} {
		if got := unitOf(cgroup); got != want {
			t.Errorf("%q: %q, want %q", cgroup, got, want)
		}
	}
}

// TestContainerdUnit finds the unit of a distribution whose containerd does not run.
func TestContainerdUnit(t *testing.T) {
	root := t.TempDir()
	for _, p := range []string{"var/lib/rancher/k3s/agent/etc/containerd", "etc/systemd/system"} {
		if err := os.MkdirAll(filepath.Join(root, p), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(root, "etc/systemd/system/k3s-agent.service"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	v, err := Look(t.Context(), Options{Root: root})
	if err != nil || v.Unit != "k3s-agent" || v.Distro.Name != K3s || v.State != nil {
		t.Errorf("got %+v, %v", v, err)
	}
}
