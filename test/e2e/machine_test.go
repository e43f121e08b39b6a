package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/test/e2e/node"
	"github.com/ballast-dev/ballast/test/e2e/systemctl"
	"golang.org/x/sys/unix"
)

// A machine is a newly installed machine for "ballast setup": the usual directories, with a containerd
// that runs as a service. /etc and /usr/local are copies for this test, and /var/lib is empty; the
// service manager is emulated, see package systemctl.
type machine struct {
	t        *testing.T
	dir      string // with the downloaded programs
	registry *node.Registry
	facade   string // its address; the usual one may be in use on this machine
	at       place
}

// programs are the names of what setup installs.
var programs = []string{"ballast", "ballastd", "ballast-keyless"}

// A place is where a distribution has containerd, and which version.
type place struct{ version, unit, config, hosts, socket string }

// usual is the place of containerd's own packages, with the newest version.
func usual(t *testing.T) place {
	versions := node.Versions(t)
	return place{versions[len(versions)-1], "containerd", machineConfig, machineHosts, "/run/containerd/containerd.sock"}
}

const (
	machineConfig   = "/etc/containerd/config.toml"
	machineHosts    = "/etc/containerd/certs.d"
	machineSettings = "/etc/ballast/config.toml"
)

// startMachine makes a machine with a configuration of containerd; "" means none.
func startMachine(t *testing.T, config string) *machine {
	t.Helper()
	return startMachineAt(t, usual(t), config)
}

// startMachineAt is startMachine with containerd at a place.
func startMachineAt(t *testing.T, at place, config string) *machine {
	t.Helper()
	dir, err := os.MkdirTemp("", "m")
	if err != nil {
		t.Fatal(err)
	}
	m := &machine{t: t, dir: filepath.Join(dir, "download"), at: at}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	for _, p := range []string{"/etc", "/usr/local"} {
		m.cover(dir, p)
	}
	m.empty(dir, "/var/lib")
	for _, d := range []string{m.dir, filepath.Dir(at.config)} {
		m.ok(os.MkdirAll(d, 0o755))
	}
	t.Cleanup(func() { m.ok(os.RemoveAll("/run/systemd")) })
	m.ok(os.Chmod(dir, 0o755))
	for _, b := range programs {
		m.copy(node.Binary(t, b), filepath.Join(m.dir, b), 0o755, "")
	}
	m.ok(systemctl.Install(false))
	tool := node.ToolOf(t, at.version, "containerd")
	m.write(filepath.Join(systemctl.Units, at.unit+".service"), systemctl.Unit("containerd container runtime", tool+" -c "+at.config, filepath.Dir(tool)+":"+filepath.Dir(node.Runc(t))+":"+os.Getenv("PATH")), 0o644)
	if config != "" {
		m.write(at.config, config, 0o644)
	}
	m.registry = node.StartRegistry(t, filepath.Join(dir, "registry"))
	m.facade = node.FreeAddress(t)
	t.Cleanup(m.stop)
	m.systemctl("enable", at.unit)
	m.systemctl("start", at.unit)
	return m
}

// cover mounts a writable copy over a directory.
func (m *machine) cover(dir, p string) { m.mounted(p, node.Cover(dir, p)) }

// empty mounts an empty directory over a directory.
func (m *machine) empty(dir, p string) { m.mounted(p, node.Empty(dir, p)) }

func (m *machine) mounted(p string, err error) {
	m.t.Helper()
	m.ok(err)
	m.t.Cleanup(func() { m.ok(unix.Unmount(p, unix.MNT_DETACH)) })
}

func (m *machine) ok(err error) {
	m.t.Helper()
	if err != nil {
		m.t.Fatal(err)
	}
}

func (m *machine) write(p, text string, mode os.FileMode) {
	m.t.Helper()
	m.ok(os.MkdirAll(filepath.Dir(p), 0o755))
	m.ok(os.WriteFile(p, []byte(text), mode))
}

// copy copies a program. more is appended to it, which makes another version with the same behaviour.
func (m *machine) copy(from, to string, mode os.FileMode, more string) {
	m.t.Helper()
	b, err := os.ReadFile(from)
	m.ok(err)
	m.ok(os.WriteFile(to+".new", append(b, more...), mode))
	m.ok(os.Rename(to+".new", to))
}

func (m *machine) systemctl(args ...string) {
	m.t.Helper()
	out := node.Command(context.Background(), nil, append([]string{"/usr/local/sbin/systemctl"}, args...)...)
	if out.Err != nil {
		m.t.Fatalf("systemctl %v: %v\n%s", args, out.Err, out.Output())
	}
}

// stop ends all processes of the machine.
func (m *machine) stop() {
	for _, id := range strings.Fields(m.ctr("tasks", "ls", "-q").Stdout) {
		m.ctr("tasks", "rm", "-f", id)
	}
	for _, u := range []string{"ballastd.service", "ballastd-holder.service", m.at.unit + ".service"} {
		if m.t.Failed() {
			if p, err := os.ReadFile(filepath.Join(systemctl.State, u+".log")); err == nil {
				lines := strings.Split(string(p), "\n")
				m.t.Logf("---- end of the log of %s ----\n%s", u, strings.Join(lines[max(0, len(lines)-15):], "\n"))
			}
		}
		if err := systemctl.Stop(u); err != nil {
			m.t.Errorf("stop %s: %v", u, err)
		}
	}
	for _, dir := range []string{"/run/ballast", "/run/containerd", "/run/k3s"} {
		for _, p := range m.mountsBelow(dir) {
			m.ok(unix.Unmount(p, unix.MNT_DETACH))
		}
		m.ok(os.RemoveAll(dir))
	}
	for _, p := range m.mountsBelow("/var/lib") {
		m.ok(unix.Unmount(p, unix.MNT_DETACH))
	}
}

// mountsBelow returns the mount points below a directory, innermost first.
func (m *machine) mountsBelow(dir string) []string {
	b, err := os.ReadFile("/proc/self/mountinfo")
	m.ok(err)
	var found []string
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); strings.HasPrefix(f[4], dir+"/") {
			found = append(found, f[4])
		}
	}
	sort.Sort(sort.Reverse(sort.StringSlice(found)))
	return found
}

func (m *machine) ctr(args ...string) node.Result {
	return node.Command(context.Background(), nil, append([]string{node.ToolOf(m.t, m.at.version, "ctr"), "-a", m.at.socket}, node.WithCgroup(args)...)...)
}

// ballast runs a downloaded program.
func (m *machine) ballast(args ...string) node.Result {
	return node.Command(context.Background(), nil, append([]string{filepath.Join(m.dir, "ballast")}, args...)...)
}

func (m *machine) ballastd(args ...string) node.Result {
	return node.Command(context.Background(), nil, append([]string{filepath.Join(m.dir, "ballastd")}, args...)...)
}

// settings is the only setting made before a setup: the address of the facade.
func (m *machine) settings(args []string) {
	m.t.Helper()
	if !slices.Contains(args, "--remove") {
		m.write(machineSettings, fmt.Sprintf("version = 1\n[facade]\nlisten = %q\n", m.facade), 0o644)
	}
}

// setup runs the downloaded "ballast setup".
func (m *machine) setup(args ...string) node.Result {
	m.settings(args)
	return node.Command(context.Background(), nil, append([]string{filepath.Join(m.dir, "ballast"), "setup"}, args...)...)
}

// mustSetup is setup that must succeed.
func (m *machine) mustSetup(args ...string) string {
	m.t.Helper()
	out := m.setup(args...)
	if out.Err != nil {
		m.t.Fatalf("ballast setup %v: %v\n%s", args, out.Err, out.Output())
	}
	return out.Output()
}

// pull pulls with the hosts.toml files of the machine.
func (m *machine) pull(snapshotter, ref string) node.Result {
	return m.ctr("images", "pull", "--snapshotter", snapshotter, "--hosts-dir", m.at.hosts, ref)
}

// calls returns the calls of systemctl since the last call.
func (m *machine) calls() []string {
	m.t.Helper()
	p := filepath.Join(systemctl.State, "calls")
	b, err := os.ReadFile(p)
	if os.IsNotExist(err) {
		return nil
	}
	m.ok(err)
	m.ok(os.Remove(p))
	calls := strings.Split(strings.TrimSpace(string(b)), "\n")
	if calls = slices.DeleteFunc(calls, func(c string) bool { return strings.HasPrefix(c, "show ") }); len(calls) == 0 {
		return nil
	}
	return calls
}

// tree returns the files below the directories that a setup changes, with their modes and the content
// of small files, except those that containerd and Docker write.
func (m *machine) tree() map[string]string {
	m.t.Helper()
	found := map[string]string{}
	for _, top := range []string{"/etc", "/usr/local/bin", "/usr/local/lib", "/var/lib", "/run"} {
		err := filepath.WalkDir(top, func(p string, d os.DirEntry, err error) error {
			if err != nil {
				return err
			}
			if p == filepath.Dir(machineSettings) || p == machineSettings { // made by the test
				return nil
			}
			if slices.Contains([]string{"/var/lib/containerd", "/run/containerd", "/var/lib/docker", "/run/docker", "/run/systemd", "/run/k3s"}, p) || strings.HasSuffix(p, "/agent/containerd") {
				return filepath.SkipDir
			}
			info, err := d.Info()
			if err != nil {
				return err
			}
			text := info.Mode().String()
			if p == "/var/lib/ballast" { // models are added and removed
				found[p] = text
				return filepath.SkipDir
			}
			if info.Mode().IsRegular() && info.Size() < 1<<20 {
				b, err := os.ReadFile(p)
				if err != nil {
					return err
				}
				text += " " + string(b)
			}
			found[p] = text
			return nil
		})
		m.ok(err)
	}
	return found
}
