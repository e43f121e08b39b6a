package e2e

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/test/e2e/node"
	"github.com/ballast-dev/ballast/test/e2e/systemctl"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// plainConfig is a configuration of containerd with some settings and no imports.
const plainConfig = `# of this machine
version = 3
disabled_plugins = ["io.containerd.nri.v1.nri"]

[plugins.'io.containerd.cri.v1.runtime']
  restrict_oom_score_adj = true # for machines without CAP_SYS_RESOURCE
  disable_apparmor = true
`

// TestSetup takes a machine from nothing to models, upgrades it and goes back while a container runs,
// and removes everything, with "ballast setup" alone.
func TestSetup(t *testing.T) {
	m := startMachine(t, plainConfig)
	b := converttest.ModelPackRaw(converttest.Files(weights(7, 3<<20)))
	m.registry.Push(t, "team/model", "v1", artifact(b))
	m.registry.Push(t, "busybox", "1", node.Busybox(t))
	model, image := m.registry.Ref("team/model", "v1"), m.registry.Ref("busybox", "1")
	if out := m.ctr("images", "pull", "--plain-http", image); out.Err != nil {
		t.Fatalf("before: %v\n%s", out.Err, out.Output())
	}
	before := m.tree()
	m.calls()

	dry := m.mustSetup("--registry", m.registry.Host, "--dry-run")
	if d := cmp.Diff(before, m.tree()); d != "" || m.calls() != nil {
		t.Fatalf("a dry run changed something (-before +after):\n%s", d)
	}
	if got := m.mustSetup("--registry", m.registry.Host); strings.ReplaceAll(dry, "dry run: nothing was changed\n", "") != got {
		t.Errorf("printed %q, did %q", dry, got)
	}
	m.checkSet(model, b)
	m.checkIdle()

	// An upgrade, and back, while a container has the model as its root.
	if out := m.ctr("run", "-d", "--snapshotter", "ballast", "--mount", node.BusyboxMount, model, "reader", "/.bin/busybox", "sleep", "100000"); out.Err != nil {
		t.Fatalf("%v\n%s", out.Err, out.Output())
	}
	containerd, old := systemctl.PID("containerd.service"), m.program("ballastd")
	for _, p := range programs {
		m.copy(node.Binary(t, p), m.dir+"/"+p, 0o755, "another version")
	}
	m.mustSetup()
	if bytes.Equal(m.program("ballastd"), old) || systemctl.PID("containerd.service") != containerd {
		t.Error("the upgrade did not replace the daemon, or restarted containerd")
	}
	m.checkReader()
	m.checkIdle()
	for _, p := range programs {
		m.copy(node.Binary(t, p), m.dir+"/"+p, 0o755, "")
	}
	m.mustSetup()
	if !bytes.Equal(m.program("ballastd"), old) || systemctl.PID("containerd.service") != containerd {
		t.Error("the version before is not back, or containerd was restarted")
	}
	m.checkReader()

	// The removal.
	held := t.TempDir()
	if out := m.ctr("images", "mount", "--snapshotter", "ballast", model, held); out.Err != nil {
		t.Fatal(out.Output())
	}
	m.ok(unix.Unmount(held, 0)) // containerd keeps a mount for it
	end := []string{"leases", "rm", "--sync", held}
	wantError(t, m.setup("--remove"), "default/reader", "--force", "ctr -n default "+strings.Join(end, " "))
	m.checkReader()
	if out := m.ctr(end...); out.Err != nil {
		t.Fatal(out.Output())
	}
	m.awaitUnmounted()
	if out := m.ctr("tasks", "rm", "-f", "reader"); out.Err != nil {
		t.Fatal(out.Output())
	}
	if out := m.ctr("containers", "rm", "reader"); out.Err != nil {
		t.Fatal(out.Output())
	}
	m.loseChild()
	m.mustSetup("--remove")
	m.checkGone(before, image)
}

// loseChild leaves a record of containerd without its snapshot, above one that exists.
func (m *machine) loseChild() {
	m.t.Helper()
	if out := m.ctr("snapshots", "--snapshotter", "ballast", "prepare", "lost", topOf(m.t, m.ctr)); out.Err != nil {
		m.t.Fatal(out.Output())
	}
	own := func(args ...string) node.Result {
		args = append([]string{node.ToolOf(m.t, m.at.version, "ctr"), "-a", "/run/ballast/ballastd.sock", "snapshots", "--snapshotter", "ballast"}, args...)
		return node.Command(context.Background(), nil, args...)
	}
	for line := range strings.Lines(own("ls").Stdout) {
		if key, _, _ := strings.Cut(line, " "); strings.HasSuffix(key, "/lost") {
			if out := own("rm", key); out.Err != nil {
				m.t.Fatal(out.Output())
			}
			return
		}
	}
	m.t.Fatalf("ballastd has no such snapshot:\n%s", own("ls").Output())
}

// TestSetupCrash kills a setup after each of its steps, and a removal: ordinary images can then be
// pulled, and another run completes it.
func TestSetupCrash(t *testing.T) {
	m := startMachine(t, plainConfig)
	m.registry.Push(t, "busybox", "1", node.Busybox(t))
	image := m.registry.Ref("busybox", "1")
	before := m.tree()
	steps := m.lines("--registry", "models.example", "--dry-run")
	if steps < 8 {
		t.Fatalf("a set-up has %d steps", steps)
	}
	for k := range steps {
		m.killAfter(k, "--registry", "models.example")
		m.checkPulls(image)
		m.mustSetup("--registry", "models.example")
		m.checkIdle()
		m.checkPulls(image)
		m.mustSetup("--remove")
		if d := cmp.Diff(before, m.tree()); d != "" {
			t.Fatalf("killed after step %d, set up, removed; left (-before +after):\n%s", k, d)
		}
	}
	m.mustSetup("--registry", "models.example")
	steps = m.lines("--remove", "--dry-run")
	for k := range steps {
		m.killAfter(k, "--remove")
		m.checkPulls(image)
		if k%2 == 0 && k > 0 && k < steps-2 { // a step in the middle
			wantError(t, m.setup(), "--remove")
		}
		m.mustSetup("--remove")
		if d := cmp.Diff(before, m.tree()); d != "" {
			t.Fatalf("killed after step %d of removing, removed; left (-before +after):\n%s", k, d)
		}
		m.mustSetup("--registry", "models.example")
	}
}

// TestSetupHost sets up a machine whose root is at another path, as in a pod: the daemon sees other
// paths, so its registry is unavailable when it has made its keys.
func TestSetupHost(t *testing.T) {
	m := startMachine(t, plainConfig)
	b := converttest.ModelPackRaw(converttest.Files(weights(9, 1<<20)))
	m.registry.Push(t, "team/model", "v1", artifact(b))
	m.registry.Push(t, "busybox", "1", node.Busybox(t))
	model, image := m.registry.Ref("team/model", "v1"), m.registry.Ref("busybox", "1")
	before := m.tree()
	host := t.TempDir()
	m.ok(unix.Mount("/", host, "", unix.MS_BIND|unix.MS_REC, ""))
	t.Cleanup(func() { m.ok(unix.Unmount(host, unix.MNT_DETACH)) })
	args := []string{"--host", host, "--no-service", "--runtime-handler", "ballast", "--registry", m.registry.Host}
	m.settings(nil)
	m.ok(os.MkdirAll("/run/ballast", 0o700))
	if out := m.mustSetup(args...); !strings.Contains(out, "run this command again when ballastd is running") {
		t.Errorf("without keys: %s", out)
	}
	if _, err := os.Stat("/usr/local/bin/ballastd"); !os.IsNotExist(err) {
		t.Errorf("the daemon was installed: %v", err)
	}
	daemon := node.Start(t, "ballastd", filepath.Join(m.dir, "log"), nil, filepath.Join(m.dir, "ballastd"))
	daemon.WaitReady(t, func() error { return m.ballast("ls").Err })
	if out := m.mustSetup(args...); !strings.Contains(out, "go through the facade") {
		t.Errorf("with keys: %s", out)
	}
	m.checkSet(model, b)
	if out := m.mustSetup("--host", host); !strings.Contains(out, "nothing to change") {
		t.Errorf("a run after that: %s", out)
	}
	if out := m.mustSetup("--host", host, "--remove"); !strings.Contains(out, "stop it, and run this command again") {
		t.Errorf("with a daemon that runs: %s", out)
	}
	m.checkPulls(image)
	daemon.Stop(t)
	m.ok(m.ballastd("unmount").Err)
	m.mustSetup("--host", host, "--remove")
	m.checkGone(before, image)
}

// TestDoctorFix damages everything that doctor can repair without a decision; files changed by the
// operator stay.
func TestDoctorFix(t *testing.T) {
	m := startMachine(t, plainConfig)
	b := converttest.ModelPackRaw(converttest.Files(weights(8, 1<<20)))
	m.registry.Push(t, "team/model", "v1", artifact(b))
	model := m.registry.Ref("team/model", "v1")
	doctor := func(args ...string) node.Result {
		return node.Command(t.Context(), nil, append([]string{filepath.Join(m.dir, "ballast"), "doctor"}, args...)...)
	}
	wantError(t, doctor("--fix"), "ballast setup")
	m.mustSetup("--registry", m.registry.Host)
	m.checkSet(model, b)
	right := m.tree()
	hosts := filepath.Join(machineHosts, m.registry.Host, "hosts.toml")

	m.ok(os.Remove(hosts))
	m.write("/etc/containerd/conf.d/ballast.toml", "version = 3\n# Written by \"ballast config containerd\" of a version that did less.\n", 0o644)
	m.write(machineConfig, plainConfig, 0o644)
	m.systemctl("disable", "ballastd.socket", "ballastd.service")
	m.systemctl("stop", "ballastd.service")
	m.systemctl("restart", "containerd")
	m.ok(os.Chmod("/var/lib/ballast", 0o755))
	m.ok(os.Chmod("/run/ballast", 0o755))
	if out := doctor(); out.Err == nil {
		t.Fatalf("the doctor sees nothing:\n%s", out.Output())
	}
	broken := m.tree()
	if out := doctor("--fix", "--dry-run"); out.Err != nil || !strings.Contains(out.Output(), hosts) {
		t.Errorf("%v\n%s", out.Err, out.Output())
	}
	if d := cmp.Diff(broken, m.tree()); d != "" {
		t.Errorf("a dry run changed (-before +after):\n%s", d)
	}
	// The drop-in was changed, so it stays unless --force is used.
	out := doctor("--fix")
	if !strings.Contains(out.Output(), "conf.d/ballast.toml was changed after setup wrote it") {
		t.Errorf("%v\n%s", out.Err, out.Output())
	}
	m.ok(os.Remove("/etc/containerd/conf.d/ballast.toml"))
	if out := doctor("--fix"); out.Err != nil {
		t.Errorf("not repaired: %v\n%s", out.Err, out.Output())
	}
	if d := cmp.Diff(right, m.tree()); d != "" {
		t.Errorf("repaired (-right +repaired):\n%s", d)
	}
	m.checkSet(model, b)
	if out := doctor("--fix"); out.Err != nil || !strings.Contains(out.Output(), "nothing to change") {
		t.Errorf("again: %v\n%s", out.Err, out.Output())
	}
}

// TestSetupHeals stops ballastd while a registry is unavailable. Images named by digest can be pulled,
// those named by tag when the registry is back; a setup that would make needed images unavailable is
// refused.
func TestSetupHeals(t *testing.T) {
	m := startMachine(t, plainConfig)
	d := m.registry.Push(t, "busybox", "1", node.Busybox(t))
	tag := m.registry.Ref("busybox", "1")
	pinned := m.registry.Host + "/busybox@" + d.String()
	wantError(t, m.setup("--registry", m.registry.Host, "--image", tag), tag, "by digest")
	wantError(t, node.Command(t.Context(), nil, "setpriv", "--reuid", "65534", "--clear-groups", filepath.Join(m.dir, "ballast"), "setup"), "as root")
	m.mustSetup("--registry", m.registry.Host, "--image", pinned, "--runtime-handler", "ballast")
	doctor := func() string {
		return node.Command(t.Context(), nil, filepath.Join(m.dir, "ballast"), "doctor").Output()
	}
	if got := doctor(); strings.Contains(got, "healing") {
		t.Errorf("named by digest: %s", got)
	}
	m.mustSetup("--image", tag, "--force")
	if got := doctor(); !strings.Contains(got, "WARN  healing: "+tag) {
		t.Errorf("named by tag: %s", got)
	}
	m.systemctl("stop", "ballastd.service")
	wantError(t, m.pull("overlayfs", tag), "127.0.0.1")
	if out := m.pull("overlayfs", pinned); out.Err != nil {
		t.Errorf("by digest: %v\n%s", out.Err, out.Output())
	}
	m.mustSetup("--open", m.registry.Host)
	if out := m.pull("overlayfs", tag); out.Err != nil {
		t.Errorf("opened: %v\n%s", out.Err, out.Output())
	}
	m.mustSetup("--registry", m.registry.Host, "--image", pinned)
	if !systemctl.Active("ballastd.service") {
		t.Error("a set-up does not start the daemon")
	}
	if out := m.pull("overlayfs", tag); out.Err != nil {
		t.Errorf("closed again, with ballastd: %v\n%s", out.Err, out.Output())
	}
}

// TestSetupOldContainerd has a containerd that does not start with the drop-in: its old configuration
// is restored, ballastd is gone, and pulls work.
func TestSetupOldContainerd(t *testing.T) {
	m := startMachine(t, plainConfig)
	m.registry.Push(t, "busybox", "1", node.Busybox(t))
	image := m.registry.Ref("busybox", "1")
	const wrapper = "/usr/local/sbin/old-containerd"
	tool := node.Tool(t, "containerd")
	m.write(wrapper, "#!/bin/sh\n[ ! -e /etc/containerd/conf.d/ballast.toml ] || exit 1\nexec "+tool+"\n", 0o755)
	unit, err := os.ReadFile(filepath.Join(systemctl.Units, "containerd.service"))
	m.ok(err)
	m.write(filepath.Join(systemctl.Units, "containerd.service"), strings.Replace(string(unit), "ExecStart="+tool, "ExecStart="+wrapper, 1), 0o644)
	wantError(t, m.setup("--registry", m.registry.Host), "containerd does not start", "everything was undone")
	if systemctl.Active("ballastd.service") {
		t.Error("ballastd still runs")
	}
	if b, err := os.ReadFile(machineConfig); err != nil || string(b) != plainConfig {
		t.Errorf("its configuration is %q, %v", b, err)
	}
	if _, err := os.Stat(filepath.Join(machineHosts, m.registry.Host)); !os.IsNotExist(err) {
		t.Errorf("its registry is closed: %v", err)
	}
	m.checkPulls(image)
	m.write(wrapper, "#!/bin/sh\nexec "+tool+"\n", 0o755) // an upgrade
	m.mustSetup("--registry", m.registry.Host)
	m.checkIdle()
	m.checkPulls(image)
}

// lines returns the number of steps that a command prints.
func (m *machine) lines(args ...string) int {
	m.t.Helper()
	out := m.setup(args...)
	if out.Err != nil {
		m.t.Fatalf("%v\n%s", out.Err, out.Output())
	}
	return strings.Count(out.Stdout, "\n")
}

// killAfter runs a setup and kills it after k lines of output.
func (m *machine) killAfter(k int, args ...string) {
	m.t.Helper()
	m.settings(args)
	cmd := exec.Command(filepath.Join(m.dir, "ballast"), append([]string{"setup"}, args...)...)
	out, err := cmd.StdoutPipe()
	m.ok(err)
	m.ok(cmd.Start())
	lines := bufio.NewScanner(out)
	for range k {
		lines.Scan()
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait() // killed
}

// checkPulls checks that ordinary images can be pulled as pods do, with the snapshotter that containerd
// has.
func (m *machine) checkPulls(image string) {
	m.t.Helper()
	if !systemctl.Active("containerd.service") { // killed between stop and start; a boot starts it
		m.systemctl("start", "containerd")
	}
	// The restart continues without the killed setup, so containerd may not have stopped yet, or not listen again.
	waitFor(m.t, "pull of an ordinary image", func() error {
		out := m.ctr("plugins", "ls")
		if out.Err != nil {
			return out.Err
		}
		snapshotter := "overlayfs"
		if strings.Contains(out.Stdout, "ballast-diff") {
			snapshotter = "ballast"
		}
		if out = m.pull(snapshotter, image); out.Err != nil {
			return fmt.Errorf("with %s: %w\n%s", snapshotter, out.Err, out.Output())
		}
		return nil
	})
	m.ctr("images", "rm", "--sync", image)
}

// program returns the content of an installed program.
func (m *machine) program(name string) []byte {
	m.t.Helper()
	b, err := os.ReadFile("/usr/local/bin/" + name)
	m.ok(err)
	return b
}

// checkSet checks that the machine shows models.
func (m *machine) checkSet(model string, b *converttest.Built) {
	m.t.Helper()
	if out := m.pull("ballast", model); out.Err != nil {
		m.t.Fatalf("pull %s: %v\n%s", model, out.Err, out.Output())
	}
	mnt := m.t.TempDir()
	if out := m.ctr("images", "mount", "--snapshotter", "ballast", model, mnt); out.Err != nil {
		m.t.Fatalf("mount: %v\n%s", out.Err, out.Output())
	}
	defer func() {
		if out := m.ctr("images", "unmount", "--snapshotter", "ballast", "--rm", mnt); out.Err != nil {
			m.t.Errorf("unmount: %v\n%s", out.Err, out.Output())
		}
		m.awaitUnmounted()
	}()
	for p, f := range b.Files {
		got, err := os.ReadFile(mnt + "/" + p)
		if err != nil || !bytes.Equal(got, f.Data) {
			m.t.Errorf("%s: %d bytes, %v", f.Path, len(got), err)
		}
	}
	out := m.ballast("doctor")
	if out.Err != nil {
		m.t.Errorf("doctor: %v\n%s", out.Err, out.Output())
	}
}

// awaitUnmounted waits until containerd has unmounted what it mounted for `ctr images mount`.
func (m *machine) awaitUnmounted() {
	m.t.Helper()
	waitFor(m.t, "containerd's garbage collection to unmount the model", func() error {
		if left := m.mountsBelow("/run/containerd/io.containerd.mount-manager.v1.bolt"); len(left) > 0 {
			return fmt.Errorf("%v", left)
		}
		return nil
	})
}

// checkIdle checks that a second run changes nothing, and does not call the service manager.
func (m *machine) checkIdle() {
	m.t.Helper()
	before := m.tree()
	m.calls()
	if out := m.mustSetup(); !strings.Contains(out, "nothing to change") {
		m.t.Errorf("a second run: %s", out)
	}
	if d := cmp.Diff(before, m.tree()); d != "" {
		m.t.Errorf("a second run changed (-before +after):\n%s", d)
	}
	if calls := m.calls(); calls != nil {
		m.t.Errorf("a second run asked for %q", calls)
	}
}

// checkReader checks that the running container sees its model.
func (m *machine) checkReader() {
	m.t.Helper()
	out := printed(".gguf", func(try string) node.Result {
		return m.ctr("tasks", "exec", "--exec-id", "look"+try, "reader", "/.bin/busybox", "find", "/", "-xdev", "-name", "*.gguf", "-size", "+2000k")
	})
	if out.Err != nil || strings.TrimSpace(out.Stdout) == "" {
		m.t.Errorf("the container that runs: %v\n%s", out.Err, out.Output())
	}
}

// checkGone checks that the machine is as it was before, with ordinary images.
func (m *machine) checkGone(before map[string]string, image string) {
	m.t.Helper()
	if d := cmp.Diff(before, m.tree()); d != "" {
		m.t.Errorf("left (-before +after):\n%s", d)
	}
	if _, err := os.Stat(machineSettings); err != nil {
		m.t.Errorf("the operator's settings: %v", err)
	}
	if systemctl.Active("ballastd.service") || !systemctl.Active("containerd.service") {
		m.t.Error("ballastd runs on, or containerd does not")
	}
	if out := m.ctr("plugins", "ls"); out.Err != nil || strings.Contains(out.Stdout, "ballast") {
		m.t.Errorf("containerd's plugins: %v\n%s", out.Err, out.Stdout)
	}
	m.checkOrdinary(image)
	if out := m.mustSetup("--remove"); !strings.Contains(out, "nothing to change") {
		m.t.Errorf("removed twice: %s", out)
	}
	slices.Sort(m.calls())
}

// checkOrdinary checks that ordinary images can be pulled again.
func (m *machine) checkOrdinary(image string) {
	m.t.Helper()
	m.ctr("images", "rm", "--sync", image)
	if out := m.ctr("images", "pull", "--plain-http", image); out.Err != nil {
		m.t.Errorf("an ordinary image: %v\n%s", out.Err, out.Output())
	}
}
