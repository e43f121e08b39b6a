//go:build vm

package vm

import (
	"maps"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/test/e2e/node"
)

// TestDebian13 has a newer systemd, which keeps the files of a service that is stopped.
func TestDebian13(t *testing.T) {
	m := startNode(t, debian13, kernel13, newest(t))
	m.short(t, kernel13)
}

// TestPowerCuts is Debian 13 for the cuts that TestDebian12 has no time for.
func TestPowerCuts(t *testing.T) {
	m := startNode(t, debian13, kernel13, newest(t))
	m.journey(t, "install.md", m.install)
	m.cuts(t, *cutsFlag, kernel13)
}

// TestVersions runs older versions of containerd on Debian 12.
func TestVersions(t *testing.T) {
	for _, v := range node.Versions(t) {
		if v == newest(t) {
			continue // TestDebian12
		}
		t.Run(v, func(t *testing.T) {
			m := startNode(t, debian12, "6.12", v)
			if strings.HasPrefix(v, "1.") {
				m.journey(t, "setup for an old containerd", m.oldContainerd)
				return
			}
			m.short(t, "6.1")
		})
	}
}

// oldContainerd has a containerd that ignores drop-ins: setup prints what to write into its tables, and breaks nothing.
func (m *machine) oldContainerd(t *testing.T) {
	t.Helper()
	out := m.sh(t, "cd "+download+"\nsudo apt install ./"+m.packageOf(thisVersion)+" >/dev/null 2>&1\nballast setup --registry registry.ollama.ai 2>&1")
	t.Log(out)
	if !m.cri(t) {
		t.Error("CRI is down")
	}
	m.runs(t, "overlayfs", m.registries.pushImage(t, "busybox"))
	m.sh(t, "ballast setup --remove")
}

// TestSELinux runs Debian 12 with its SELinux policy enforced.
func TestSELinux(t *testing.T) {
	m := startNode(t, kind{name: "selinux", distro: "Debian 12, SELinux enforcing", kernel: "security=selinux selinux=1 enforcing=1"}, "6.12", newest(t))
	m.journey(t, "SELinux is enforced", func(t *testing.T) {
		if got := m.sh(t, "getenforce; ps -eZ | grep -c unconfined || true"); !strings.HasPrefix(got, "Enforcing\n") {
			t.Fatalf("SELinux is %s", got)
		}
	})
	m.short(t, "6.12")
	m.journey(t, "nothing was denied", func(t *testing.T) {
		t.Log(m.sh(t, "ps -eZ | grep -e ballastd -e containerd || true"))
		denied := m.sh(t, "journalctl -k --no-pager -o cat | grep 'avc:  denied' | sed 's/.*avc: //' | sort | uniq -c | sort -rn | head -n 40")
		if strings.Contains(denied, "ballast") {
			t.Errorf("denied:\n%s", denied)
		} else {
			t.Logf("denied to others:\n%s", denied)
		}
	})
}

// short is the life of a node without what only the service manager does, with the tarball instead of the package.
func (m *machine) short(t *testing.T, kernel string) {
	t.Helper()
	r := m.registries
	llama := r.pushOllama(t, "library/llama3.2", "1b", weights(1, 16<<20))
	busybox := r.pushImage(t, "busybox")
	before := m.foreignFiles(t)
	if !m.journey(t, "install.md, the tarball", m.unpack) {
		return
	}
	m.journey(t, "first pull", func(t *testing.T) { m.firstPull(t, llama) })
	m.journey(t, "ordinary image", func(t *testing.T) { m.runs(t, "ballast", busybox) })
	m.journey(t, "container with a model", func(t *testing.T) { m.startReader(t, "reader", llama, busybox) })
	m.units(t, llama)
	m.journey(t, "upgrade", func(t *testing.T) { m.changeTo(t, nextVersion, m.setupOf(nextVersion)) })
	m.journey(t, "downgrade", func(t *testing.T) { m.changeTo(t, thisVersion, m.setupOf(thisVersion)) })
	m.journey(t, "container after all this", func(t *testing.T) { m.reads(t, "reader", llama); m.stopReader(t, "reader") })
	m.lazy(t)
	m.journey(t, "reboot into "+kernel, func(t *testing.T) { m.rebooted(t, kernel, llama, busybox) })
	m.journey(t, "removal", func(t *testing.T) { m.remove(t, before, busybox) })
}

// TestArm64 installs ballast on a machine for arm64, pulls, runs, and reads a model before it is complete.
func TestArm64(t *testing.T) {
	r := startRegistries(t)
	m := newMachine(t, kind{name: "arm64", distro: "Debian 13 arm64", arch: "arm64"}, r)
	c := containerdCargo(t, newest(t))
	delete(c, "/usr/local/sbin/runc") // Debian's
	maps.Copy(c, m.ballastCargo(t))
	for _, p := range []string{"containerd", "containerd-shim-runc-v2", "ctr"} {
		c["/usr/local/bin/"+p] = load{from: image(t, filepath.Join("arm64", p)), mode: 0o755}
	}
	m.boot(t, "arm64", c)
	m.sh(t, "cat "+caFile+" >>/etc/ssl/certs/ca-certificates.crt")
	m.installContainerd(t)
	llama := r.pushOllama(t, "library/llama3.2", "1b", weights(1, 16<<20))
	r.OCI.Push(t, "busybox", "1", node.BusyboxFor(t, "arm64", image(t, "arm64/busybox")))
	r.OCI.Push(t, "pause", "1", node.BusyboxFor(t, "arm64", image(t, "arm64/busybox")))
	busybox := node.OtherHost + "/busybox:1"
	before := m.foreignFiles(t)
	if !m.journey(t, "install.md", m.install) {
		return
	}
	m.journey(t, "first pull", func(t *testing.T) { m.firstPull(t, llama) })
	m.journey(t, "ordinary image", func(t *testing.T) { m.runs(t, "ballast", busybox) })
	m.journey(t, "lazy read", func(t *testing.T) {
		m.readsWhile(t, "lazy/arm", 50, func(*testing.T) {})
	})
	m.journey(t, "reboot", func(t *testing.T) { m.rebooted(t, "arm64", llama, busybox) })
	m.journey(t, "removal", func(t *testing.T) { m.remove(t, before, busybox) })
}
