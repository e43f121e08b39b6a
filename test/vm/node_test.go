//go:build vm

package vm

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/test/e2e/node"
)

// tools is the directory with the versions of containerd.
const tools = "../../.cache/tools"

// What a machine has before ballast is installed.
const (
	caFile   = "/usr/local/share/ca-certificates/test.crt"
	download = "/root/ballast" // what a user has downloaded
)

// The releases that build.sh builds.
const (
	thisVersion = "v0.1.0"
	nextVersion = "v0.2.0"
)

// rpmOf is packageOf for rpm.
func (m *machine) rpmOf(version string) string {
	arch := "x86_64"
	if m.arch == "arm64" {
		arch = "aarch64"
	}
	return "ballast-" + version[1:] + "-1." + arch + ".rpm"
}

// packageOf is the name of the Debian package of a release, for the machine's architecture.
func (m *machine) packageOf(version string) string {
	return "ballast_" + version[1:] + "_" + cmp.Or(m.arch, "amd64") + ".deb"
}

// tarballOf is the name of the tarball of a release, without its suffix: the directory that is in it.
func (m *machine) tarballOf(version string) string {
	return "ballast_" + version[1:] + "_linux_" + cmp.Or(m.arch, "amd64")
}

// newest is the newest version of containerd.
func newest(t *testing.T) string {
	t.Helper()
	versions := node.Versions(t)
	return versions[len(versions)-1]
}

// containerdCargo is an upstream release of containerd with runc, as its "Getting started" says.
func containerdCargo(t *testing.T, version string) cargo {
	t.Helper()
	c := cargo{
		"/usr/local/sbin/runc":                             {from: node.Runc(t), mode: 0o755},
		"/usr/local/lib/systemd/system/containerd.service": {from: image(t, "containerd.service"), mode: 0o644},
	}
	for _, p := range []string{"containerd", "containerd-shim-runc-v2", "ctr"} {
		c["/usr/local/bin/"+p] = load{from: filepath.Join(tools, version, p), mode: 0o755}
	}
	return c
}

// ballastCargo is what a user has downloaded: two releases of ballast.
func (m *machine) ballastCargo(t *testing.T) cargo {
	t.Helper()
	c := cargo{caFile: {text: string(m.registries.Authority), mode: 0o644}, download + "/demo.tar": {from: "../../bin/demo.tar", mode: 0o644}}
	for _, v := range []string{thisVersion, nextVersion} {
		for _, name := range []string{m.packageOf(v), m.rpmOf(v), m.tarballOf(v) + ".tar.gz"} {
			c[download+"/"+name] = load{from: image(t, filepath.Join(v, name)), mode: 0o644}
		}
	}
	return c
}

// startNode starts a machine with a kernel, a version of containerd and perhaps more, and without ballast.
func startNode(t *testing.T, k kind, kernel, containerd string, more ...cargo) *machine {
	t.Helper()
	r := startRegistries(t)
	m := newMachine(t, k, r)
	c := containerdCargo(t, containerd)
	for _, x := range more {
		maps.Copy(c, x)
	}
	maps.Copy(c, m.ballastCargo(t))
	m.boot(t, kernel, c)
	m.sh(t, "cat "+caFile+" >>/etc/ssl/certs/ca-certificates.crt")
	m.sh(t, "! command -v restorecon || restorecon -R /usr/local /root") // SELinux: labels of what was unpacked
	m.installContainerd(t)
	return m
}

// installContainerd does what containerd's "Getting started" says after unpacking, and what Kubernetes wants: the
// cgroups of systemd, a sandbox image, CNI plugins, and a network.
func (m *machine) installContainerd(t *testing.T) {
	t.Helper()
	m.registries.pushImage(t, "pause")
	m.sh(t, `mkdir -p /etc/containerd /etc/cni/net.d /opt/cni
ln -sfn /usr/lib/cni /opt/cni/bin
containerd config default |
	sed -e 's/SystemdCgroup = false/SystemdCgroup = true/' -e "s#registry.k8s.io/pause:[0-9.]*#registry.example/pause:1#" >/etc/containerd/config.toml
cat >/etc/cni/net.d/10-pods.conflist <<'END'
`+network+`END
systemctl daemon-reload
systemctl enable --now containerd`)
	m.sh(t, "ctr version >/dev/null")
	m.containerd = strings.Fields(m.sh(t, "containerd --version"))[2]
}

// network is a network for pods.
const network = `{"cniVersion": "1.0.0", "name": "pods", "plugins": [
  {"type": "ptp", "ipam": {"type": "host-local", "dataDir": "/run/cni", "ranges": [[{"subnet": "10.88.0.0/24"}]]}}
]}
`

// answers waits until ballastd answers.
func (m *machine) answers(t *testing.T) {
	t.Helper()
	eventually(t, "answer of ballastd", func() error {
		out := m.try("ballast status")
		if out.Err != nil {
			return fmt.Errorf("%w: %s", out.Err, out.Output())
		}
		return nil
	})
}

// healthy checks that the doctor finds no failure.
func (m *machine) healthy(t *testing.T) {
	t.Helper()
	m.answers(t)
	if out := m.try("ballast doctor"); out.Err != nil {
		t.Errorf("doctor: %v\n%s", out.Err, out.Output())
	}
}

// pull pulls a model or an image with ballast.
func (m *machine) pull(ref string) node.Result {
	return m.try("ctr images pull --snapshotter ballast --hosts-dir /etc/containerd/certs.d " + ref + " >/dev/null")
}

func (m *machine) mustPull(t *testing.T, ref string) {
	t.Helper()
	if out := m.pull(ref); out.Err != nil {
		t.Fatalf("pull %s: %v\n%s", ref, out.Err, out.Output())
	}
}

// mountPoint returns another directory with each call: containerd may know a mount a while after it was unmounted.
func (m *machine) mountPoint() string {
	m.mounts++
	return fmt.Sprintf("/run/look%d", m.mounts)
}

// holds checks the weights of a model that was pulled.
func (m *machine) holds(t *testing.T, want model) {
	t.Helper()
	look := m.mountPoint()
	eventually(t, "mount of "+want.ref, func() error { // without stubs, when it is complete
		out := m.try(fmt.Sprintf("mkdir -p %[1]s\nctr images mount --snapshotter ballast %[2]s %[1]s", look, want.ref))
		if out.Err != nil && !strings.Contains(out.Output(), "is not complete") {
			t.Fatalf("%v\n%s", out.Err, out.Output())
		}
		return out.Err
	})
	got := m.sh(t, fmt.Sprintf("sha256sum %[1]s/model.gguf || true\nctr images unmount --snapshotter ballast --rm %[1]s >/dev/null", look))
	if sum, _, _ := strings.Cut(got, " "); sum != want.sum {
		t.Errorf("%s: the weights have the digest %q, want %s", want.ref, got, want.sum)
	}
}

// runs checks that an ordinary image can be run with a snapshotter.
func (m *machine) runs(t *testing.T, snapshotter, ref string) {
	t.Helper()
	m.sh(t, "ctr images pull --snapshotter "+snapshotter+" --hosts-dir /etc/containerd/certs.d "+ref+" >/dev/null")
	// ctr may end before it has copied all output, so the container says by its exit code what it found.
	m.sh(t, "ctr run --rm --snapshotter "+snapshotter+" "+ref+" try sh -c 'test \"$(cat /data/changed)\" = after'")
}

// mainPID is the process of ballastd that systemd started last.
func (m *machine) mainPID(t *testing.T) string {
	t.Helper()
	return strings.TrimSpace(m.sh(t, "systemctl show -P MainPID ballastd"))
}

// replaced waits until another process of ballastd than the one before answers.
func (m *machine) replaced(t *testing.T, before string) {
	t.Helper()
	eventually(t, "next process of ballastd", func() error {
		if now := m.mainPID(t); now == before || now == "0" {
			return errors.New("the process is " + now)
		}
		return nil
	})
	m.answers(t)
}

// foreignFiles lists everything that is not ballast's, containerd's, systemd's, skopeo's or a package manager's own
// state: modes, owners, links and digests.
func (m *machine) foreignFiles(t *testing.T) map[string]string {
	t.Helper()
	const dirs = `/etc /usr/local /opt /srv /home /mnt /var/lib -xdev \( -path /var/lib/containerd -o -path /var/lib/dpkg -o -path /var/lib/rpm -o -path /var/lib/containers -o -path /var/lib/apt -o -path /var/lib/cni -o -path /var/lib/systemd -o -path /var/lib/private \) -prune -o`
	return node.Tree(func(script string) string { return m.sh(t, script) }, dirs)
}
