package e2e

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/test/e2e/node"
	"github.com/ballast-dev/ballast/test/e2e/systemctl"
	"github.com/google/go-cmp/cmp"
)

// TestPackages takes a machine from nothing to models with the package and "ballast setup", upgrades the
// package and goes back while containers have models, also incomplete ones, and removes it: containerd is
// restarted by setup alone, and models and settings stay until the package is purged.
func TestPackages(t *testing.T) {
	m := startMachine(t, plainConfig)
	d := m.dpkg()
	one := d.built()
	two := d.repacked(one, "0.2.0")
	m.registry.Push(t, "busybox", "1", node.Busybox(t))
	b := converttest.ModelPackRaw(converttest.Files(weights(7, 3<<20)))
	m.registry.Push(t, "team/model", "v1", artifact(b))
	model, image := m.registry.Ref("team/model", "v1"), m.registry.Ref("busybox", "1")
	if out := m.ctr("images", "pull", "--plain-http", image); out.Err != nil {
		t.Fatalf("before: %v\n%s", out.Err, out.Output())
	}
	before, containerd := m.tree(), systemctl.PID("containerd.service")
	m.calls()

	if out := d.must("-i", one); !strings.Contains(out, "ballast setup --snapshotter-only") {
		t.Errorf("installed: %s", out)
	}
	if diff := cmp.Diff(before, m.tree()); diff != "" || systemctl.Active("ballastd.service") {
		t.Errorf("the package changed (-before +after):\n%s", diff)
	}
	m.dir = "/usr/bin"
	m.mustSetup("--registry", m.registry.Host)
	for _, p := range []string{"/usr/local/bin/ballast", "/etc/systemd/system/ballastd.service"} {
		if _, err := os.Lstat(p); !os.IsNotExist(err) {
			t.Errorf("%s: %v", p, err)
		}
	}
	m.checkSet(model, b)
	m.checkIdle()
	if containerd == systemctl.PID("containerd.service") {
		t.Error("the set-up did not restart containerd")
	}

	lazy := m.mountLazy(48 << 20)
	if out := m.ballast("pin", model); out.Err != nil {
		t.Fatalf("pin: %v\n%s", out.Err, out.Output())
	}
	if out := m.ctr("run", "-d", "--snapshotter", "ballast", "--mount", node.BusyboxMount, model, "reader", "/.bin/busybox", "sleep", "100000"); out.Err != nil {
		t.Fatalf("%v\n%s", out.Err, out.Output())
	}
	for _, p := range []string{two, one} { // an upgrade, and back
		d.replace(p)
	}
	lazy()

	wantError(t, d.run("-r", "ballast"), "ballast setup --remove")
	m.checkReader()
	m.checkIdle()
	for _, id := range []string{"reader", "lazy"} {
		if out := m.ctr("tasks", "rm", "-f", id); out.Err != nil {
			t.Fatal(out.Output())
		}
		if out := m.ctr("containers", "rm", id); out.Err != nil {
			t.Fatal(out.Output())
		}
	}
	m.mustSetup("--remove")
	m.checkGone(before, image)
	d.remove()
}

// replace installs another package while containers run and a model is read that is not complete.
func (d *dpkg) replace(p string) {
	m := d.machine
	m.t.Helper()
	containerd, daemon, was := systemctl.PID("containerd.service"), systemctl.PID("ballastd.service"), m.programOf("ballastd.service")
	if out := d.must("-i", p); !strings.Contains(out, "settings of this node") {
		m.t.Errorf("%s: %s", filepath.Base(p), out)
	}
	if systemctl.PID("containerd.service") != containerd {
		m.t.Errorf("%s restarted containerd", filepath.Base(p))
	}
	if systemctl.PID("ballastd.service") == daemon || bytes.Equal(m.programOf("ballastd.service"), was) {
		m.t.Errorf("%s did not replace the daemon", filepath.Base(p))
	}
	waitFor(m.t, "the daemon", func() error { return m.ballast("ls").Err })
	m.checkReader()
	m.checkIdle()
	if out := m.ballast("pin", "ls"); !strings.Contains(out.Stdout, "team/model") {
		m.t.Errorf("pins: %v\n%s", out.Err, out.Output())
	}
	if systemctl.PID("containerd.service") != containerd {
		m.t.Error("a set-up after that restarted containerd")
	}
}

// remove removes the package from a machine where ballast is not set up: models and settings stay until it
// is purged, and also then if something is mounted among them.
func (d *dpkg) remove() {
	m := d.machine
	m.t.Helper()
	const kept, busy = "/var/lib/ballast/objects", "/var/lib/ballast/mnt"
	m.write(kept+"/x", "a model", 0o600)
	d.must("-r", "ballast")
	if _, err := os.Stat("/usr/bin/ballast"); !os.IsNotExist(err) {
		m.t.Errorf("the program: %v", err)
	}
	there := func() bool {
		_, err := os.Stat(kept + "/x")
		_, err2 := os.Stat(machineSettings)
		return err == nil && err2 == nil
	}
	if !there() {
		m.t.Error("a removal took models or settings")
	}
	m.ok(os.Mkdir(busy, 0o755))
	m.ok(exec.Command("mount", "-t", "tmpfs", "tmpfs", busy).Run())
	if out := d.must("-P", "ballast"); !there() || !strings.Contains(out, "stay") {
		m.t.Errorf("purged with a mount, models and settings there: %v\n%s", there(), out)
	}
	m.ok(exec.Command("umount", busy).Run())
	d.must("-i", d.built())
	d.must("-P", "ballast")
	for _, p := range []string{"/var/lib/ballast", filepath.Dir(machineSettings)} {
		if _, err := os.Stat(p); !os.IsNotExist(err) {
			m.t.Errorf("%s after a purge: %v", p, err)
		}
	}
}

// mountLazy runs a container of a model that arrives slowly, and begins to read it. The returned function waits
// for the digest.
func (m *machine) mountLazy(size int) func() {
	m.t.Helper()
	want := weights(9, size)
	b := converttest.ModelPackRaw(converttest.Files(want))
	m.registry.Push(m.t, "team/lazy", "src", artifact(b))
	ref := m.registry.Ref("team/lazy", "v1")
	if out := m.ballast("convert", m.registry.Ref("team/lazy", "src"), ref); out.Err != nil {
		m.t.Fatalf("convert: %v\n%s", out.Err, out.Output())
	}
	m.registry.Wire.Link(64<<10, 5*time.Millisecond) // a quarter of an hour for all of it
	if out := m.pull("ballast", ref); out.Err != nil {
		m.t.Fatalf("pull %s: %v\n%s", ref, out.Err, out.Output())
	}
	if out := m.ctr("run", "-d", "--snapshotter", "ballast", "--mount", node.BusyboxMount, ref, "lazy", "/.bin/busybox", "sleep", "100000"); out.Err != nil {
		m.t.Fatalf("%v\n%s", out.Err, out.Output())
	}
	read := make(chan node.Result, 1)
	go func() {
		read <- m.ctr("tasks", "exec", "--exec-id", "sum", "lazy", "/.bin/busybox", "sha256sum", "/model.gguf")
	}()
	waitFor(m.t, "the reader", func() error {
		if out := m.ctr("tasks", "ps", "lazy"); strings.Count(out.Stdout, "\n") < 3 { // a header, the container, the reader
			return fmt.Errorf("%v\n%s", out.Err, out.Output())
		}
		return nil
	})
	return func() {
		m.t.Helper()
		select {
		case out := <-read:
			m.t.Errorf("the model was read before it was complete: %v\n%s", out.Err, out.Output())
			return
		default:
		}
		m.registry.Wire.Link(0, 0)
		if out := <-read; out.Err != nil || !strings.Contains(out.Stdout, fmt.Sprintf("%x", sha256.Sum256(want))) {
			m.t.Errorf("the model that was read while packages were replaced: %v\n%s", out.Err, out.Output())
		}
	}
}

// programOf returns the program that a unit runs.
func (m *machine) programOf(unit string) []byte {
	m.t.Helper()
	p, err := os.ReadFile(fmt.Sprintf("/proc/%d/exe", systemctl.PID(unit)))
	m.ok(err)
	return p
}

// dpkg is Debian's package manager with a database of its own, on a machine.
type dpkg struct {
	machine *machine
	dir     string
}

// dpkg makes what packages change a copy for this test.
func (m *machine) dpkg() *dpkg {
	m.t.Helper()
	dir := filepath.Dir(m.dir)
	for _, p := range []string{"/usr/bin", "/usr/lib", "/usr/share"} {
		m.cover(dir, p)
	}
	d := &dpkg{machine: m, dir: filepath.Join(dir, "dpkg")}
	for _, p := range []string{"info", "updates", "triggers"} {
		m.ok(os.MkdirAll(filepath.Join(d.dir, "db", p), 0o755))
	}
	for _, p := range []string{"db/status", "db/available"} {
		m.ok(os.WriteFile(filepath.Join(d.dir, p), nil, 0o644))
	}
	return d
}

func (d *dpkg) run(args ...string) node.Result {
	return node.Command(d.machine.t.Context(), nil, append([]string{"dpkg", "--admindir=" + filepath.Join(d.dir, "db"), "--log=" + filepath.Join(d.dir, "log")}, args...)...)
}

func (d *dpkg) must(args ...string) string {
	d.machine.t.Helper()
	out := d.run(args...)
	if out.Err != nil {
		d.machine.t.Fatalf("dpkg %v: %v\n%s", args, out.Err, out.Output())
	}
	return out.Output()
}

// built returns the package that make test-images has built.
func (d *dpkg) built() string {
	d.machine.t.Helper()
	found, err := filepath.Glob("../../bin/test/packages/ballast_0.1.0_*.deb")
	d.machine.ok(err)
	if len(found) != 1 {
		d.machine.t.Fatal("the package is not built; run `make test-images`")
	}
	return found[0]
}

// repacked returns a package with another version, whose programs do the same and have other bytes.
func (d *dpkg) repacked(p, version string) string {
	m := d.machine
	m.t.Helper()
	dir, to := filepath.Join(d.dir, version), filepath.Join(d.dir, "ballast_"+version+".deb")
	m.ok(exec.Command("dpkg-deb", "-R", p, dir).Run())
	control := filepath.Join(dir, "DEBIAN/control")
	text, err := os.ReadFile(control)
	m.ok(err)
	m.write(control, strings.Replace(string(text), "\nVersion: 0.1.0\n", "\nVersion: "+version+"\n", 1), 0o644)
	for _, name := range programs {
		m.copy(filepath.Join(dir, "usr/bin", name), filepath.Join(dir, "usr/bin", name), 0o755, version)
	}
	m.ok(exec.Command("dpkg-deb", "-Znone", "--root-owner-group", "-b", dir, to).Run())
	return to
}
