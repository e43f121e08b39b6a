//go:build vm

package vm

import (
	"cmp"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/test/e2e/node"
	gocmp "github.com/google/go-cmp/cmp"
)

// TestDebian12 has one machine from its first boot to the removal of ballast: installed as the page says, with every
// way in which a service ends, an upgrade and a downgrade of the package, another kernel and back, pods in user
// namespaces, and power cuts.
func TestDebian12(t *testing.T) {
	m := startNode(t, debian12, "6.1", newest(t))
	r := m.registries
	llama := r.pushOllama(t, "library/llama3.2", "1b", weights(1, 64<<20))
	busybox := r.pushImage(t, "busybox")
	before := m.foreignFiles(t)

	m.journey(t, "demo", m.demo)
	m.journey(t, "demo in a container", m.demoImage)
	if !m.journey(t, "install.md", m.install) {
		t.FailNow()
	}
	m.journey(t, "first pull", func(t *testing.T) { m.firstPull(t, llama) })
	m.journey(t, "ordinary image", func(t *testing.T) { m.runs(t, "ballast", busybox) })
	m.journey(t, "container with a model", func(t *testing.T) { m.startReader(t, "reader", llama, busybox) })
	m.units(t, llama)
	m.journey(t, "upgrade and downgrade", m.packages)
	m.journey(t, "container after all this", func(t *testing.T) { m.reads(t, "reader", llama); m.stopReader(t, "reader") })

	m.journey(t, "reboot into 6.12", func(t *testing.T) { m.rebooted(t, "6.12", llama, busybox) })
	m.lazy(t)
	m.journey(t, "read ahead", func(t *testing.T) { m.readAhead(t, llama) })
	m.cuts(t, *cutsFlag, "6.12", "6.1")
	m.journey(t, "power cut in an upgrade", func(t *testing.T) { m.cutPackage(t, llama, "6.12") })
	m.journey(t, "pod with hostUsers: false", m.userPod)
	m.journey(t, "reboot into 6.1", func(t *testing.T) { m.rebooted(t, "6.1", llama, busybox) })
	m.journey(t, "setup after the root was emptied", func(t *testing.T) { m.emptied(t, llama) })
	m.journey(t, "removal by force, and setup", func(t *testing.T) { m.forced(t, llama, busybox) })
	m.journey(t, "removal", func(t *testing.T) { m.purge(t, before, busybox) })
	m.journey(t, "rpm", func(t *testing.T) { m.rpm(t, before, llama, busybox) })
	m.journey(t, "registry.mirrors in the configuration", m.mirrors)
}

// demo runs the demo of the tarball, with small weights: it uses the machine's programs, and leaves the machine as it
// was.
func (m *machine) demo(t *testing.T) {
	t.Helper()
	commands := node.Typed(t, "README.md", "Without Docker")
	if len(commands) != 2 || !strings.HasSuffix(commands[1], "/ballast-demo") {
		t.Fatalf("the page has other commands than this test knows: %q", commands)
	}
	before, containerd := m.foreignFiles(t), m.sh(t, "systemctl show -P MainPID containerd")
	out := m.sh(t, "cd "+download+"\n"+strings.Join(commands, "\n")+" -size 16 2>&1\nrm -r "+m.tarballOf(thisVersion))
	wantDemo(t, out)
	if d := gocmp.Diff(before, m.foreignFiles(t)); d != "" || m.sh(t, "systemctl show -P MainPID containerd") != containerd {
		t.Errorf("the demo restarted containerd or changed (-before +after):\n%s", d)
	}
}

// demoImage runs the image of the demo in a privileged container with the mounts that Docker makes, where control
// groups are of version 2.
func (m *machine) demoImage(t *testing.T) {
	t.Helper()
	out := m.sh(t, `ctr images import `+download+`/demo.tar >/dev/null
mkdir /root/volume
ctr run --rm --privileged --mount type=bind,src=/root/volume,dst=/tmp,options=rbind:rw --mount type=cgroup,src=cgroup,dst=/sys/fs/cgroup,options=rw $(ctr images ls -q name~=ballast-demo) demo ballast-demo -size 16 2>&1
rm -r /root/volume
ctr images rm --sync $(ctr images ls -q name~=ballast-demo) >/dev/null`)
	wantDemo(t, out)
}

func wantDemo(t *testing.T, out string) {
	t.Helper()
	if !strings.Contains(out, "model.gguf: OK") || !strings.Contains(out, "stopped and removed again\n") || strings.Contains(out, "FAILED") {
		t.Errorf("the demo:\n%s", out)
	}
}

const installPage = "contrib/docs/install.md"

// install follows the page word by word.
func (m *machine) install(t *testing.T) {
	t.Helper()
	commands := node.Typed(t, installPage, "# Installing on a node")
	if len(commands) != 3 || commands[0] != "sudo apt install ./ballast_0.1.0_amd64.deb" {
		t.Fatalf("the page has other commands than this test knows: %q", commands)
	}
	before, containerd := m.foreignFiles(t), m.sh(t, "systemctl show -P MainPID containerd")
	out := m.sh(t, "cd "+download+"\n"+strings.ReplaceAll(commands[0], "amd64", cmp.Or(m.arch, "amd64")))
	if !strings.Contains(out, "ballast setup --snapshotter-only") {
		t.Errorf("installed:\n%s", out)
	}
	if d := gocmp.Diff(before, m.foreignFiles(t)); d != "" || m.sh(t, "systemctl show -P MainPID containerd") != containerd {
		t.Errorf("the package restarted containerd or changed (-before +after):\n%s", d)
	}
	m.setUp(t, commands[1], commands[2])
}

// unpack follows the page word by word where there is no package.
func (m *machine) unpack(t *testing.T) {
	t.Helper()
	commands, doctor := node.Typed(t, installPage, "Anywhere, use the tarball"), node.Typed(t, installPage, "# Installing on a node")[2]
	if len(commands) != 2 || commands[0] != "tar xf ballast_0.1.0_linux_amd64.tar.gz" {
		t.Fatalf("the page has other commands than this test knows: %q", commands)
	}
	m.sh(t, "cd "+download+"\n"+commands[0])
	m.setUp(t, commands[1], doctor)
}

// setUp sets up the machine, after a dry run, and checks what the page says of it.
func (m *machine) setUp(t *testing.T, setup, doctor string) {
	t.Helper()
	in := "cd " + download + " && "
	before := m.foreignFiles(t)
	plan := m.sh(t, in+setup+" --dry-run")
	if d := gocmp.Diff(before, m.foreignFiles(t)); d != "" {
		t.Errorf("the dry run changed (-before +after):\n%s", d)
	}
	did := m.sh(t, in+setup)
	if plan := strings.ReplaceAll(plan, "dry run: nothing was changed\n", ""); plan != did {
		t.Errorf("planned and done differ (-planned +done):\n%s", gocmp.Diff(plan, did))
	}
	if again := m.sh(t, in+setup+" 2>&1"); !strings.Contains(again, "nothing to change") {
		t.Errorf("a second setup: %s", again)
	}
	t.Logf("doctor:\n%s", m.sh(t, doctor))
	for _, u := range []string{"ballastd.socket", "ballastd.service", "containerd.service"} {
		if got := m.sh(t, "systemctl is-enabled "+u+"; systemctl is-active "+u); got != "enabled\nactive\n" {
			t.Errorf("%s is %q", u, got)
		}
	}
	if out := m.sh(t, "systemctl --failed --plain --no-legend; journalctl -b -p err --no-pager -o cat -u ballastd.service -u ballastd.socket"); out != "" {
		t.Errorf("failures:\n%s", out)
	}
}

// firstPull follows the README, and looks at all files.
func (m *machine) firstPull(t *testing.T, want model) {
	t.Helper()
	commands := node.Typed(t, "README.md", "## First pull")
	if len(commands) != 4 || commands[0] != "ref="+want.ref || commands[3] != "ls /mnt" {
		t.Fatalf("the page has other commands than this test knows: %q", commands)
	}
	got := strings.Fields(m.sh(t, strings.Join(commands[:3], " >/dev/null\n")+" >/dev/null\n"+commands[3]))
	for _, name := range []string{"LICENSE", "Modelfile", "model.gguf", "ollama", "params.json", "template"} {
		if !strings.Contains(" "+strings.Join(got, " ")+" ", " "+name+" ") {
			t.Errorf("%s is not among %q", name, got)
		}
	}
	if sum := m.sh(t, "sha256sum /mnt/model.gguf"); !strings.HasPrefix(sum, want.sum) {
		t.Errorf("the weights have the digest %q, want %s", sum, want.sum)
	}
	m.lookAround(t, want)
}

// lookAround follows the README after the first pull, up to the removal of the model, and pulls it again.
func (m *machine) lookAround(t *testing.T, want model) {
	t.Helper()
	commands := node.Typed(t, "README.md", "## Look around")
	if len(commands) != 5 || commands[2] != "sudo ballast top" {
		t.Fatalf("the page has other commands than this test knows: %q", commands)
	}
	commands[2] = "timeout --preserve-status --signal INT 5 " + commands[2]
	var outs []string
	for _, c := range commands {
		outs = append(outs, m.sh(t, "ref="+want.ref+"\n"+c))
	}
	for i, words := range [][]string{{want.ref, "complete"}, {want.ref, "images rm --sync " + want.ref, "/mnt"}, {"REGISTRY"}} {
		for _, w := range words {
			if !strings.Contains(outs[i], w) {
				t.Errorf("%q is not in the output of %s:\n%s", w, commands[i], outs[i])
			}
		}
	}
	if out := m.sh(t, "ballast ls"); strings.Contains(out, want.ref) {
		t.Errorf("after the removal there is\n%s", out)
	}
	m.mustPull(t, want.ref)
}

// changeTo goes to a release under a running container, with a command.
func (m *machine) changeTo(t *testing.T, version, command string) {
	t.Helper()
	pid, containerd := m.mainPID(t), m.sh(t, "systemctl show -P MainPID containerd")
	m.sh(t, "cd "+download+"\n"+command)
	m.replaced(t, pid)
	if v := m.sh(t, "ballast version; ballast doctor"); strings.Count(v, version) < 2 {
		t.Errorf("the version is %s", v)
	}
	if now := m.sh(t, "systemctl show -P MainPID containerd"); now != containerd {
		t.Errorf("containerd was restarted: %s, %s", containerd, now)
	}
}

// setupOf is the command that upgrades with a tarball.
func (m *machine) setupOf(version string) string {
	dir := m.tarballOf(version)
	return "tar xf " + dir + ".tar.gz\n" + dir + "/ballast setup"
}

// aptOf are the commands that go to a release with a package, as the page says.
func (m *machine) aptOf(version string) string {
	return "apt install --yes --allow-downgrades ./" + m.packageOf(version) + "\nballast setup"
}

// packages goes to the next release and back with packages.
func (m *machine) packages(t *testing.T) {
	t.Helper()
	for _, want := range []string{nextVersion, thisVersion} {
		m.changeTo(t, want, m.aptOf(want))
	}
}

// cutPackage cuts the power in the middle of an upgrade of the package, which apt completes after the next boot.
func (m *machine) cutPackage(t *testing.T, want model, kernel string) {
	t.Helper()
	m.sh(t, "systemd-run --quiet --unit upgrade.service --working-directory="+download+" apt install --yes ./"+m.packageOf(nextVersion))
	eventually(t, "dpkg", func() error {
		if out := m.try("grep -E ' (status (half|unpacked)|upgrade) .*ballast' /var/log/dpkg.log | grep -F " + nextVersion[1:]); out.Err != nil {
			return fmt.Errorf("%w: %s", out.Err, out.Output())
		}
		return nil
	})
	m.cut()
	m.boot(t, kernel, nil)
	t.Log(m.sh(t, "dpkg --configure -a\ncd "+download+"\n"+m.aptOf(nextVersion)+" 2>&1"))
	m.answers(t)
	m.healthy(t)
	m.holds(t, want)
	m.changeTo(t, thisVersion, m.aptOf(thisVersion))
}

// rebooted reboots the machine, with another kernel, under the models and containers that there are.
func (m *machine) rebooted(t *testing.T, kernel string, want model, busybox string) {
	t.Helper()
	m.reboot(t, kernel, kubeletCargo())
	m.healthy(t)
	const order = "systemctl show -P ActiveEnterTimestampMonotonic ballastd.socket ballastd.service containerd.service"
	if at := strings.Fields(m.sh(t, order)); len(at) != 3 || number(t, at[0]) > number(t, at[1]) || number(t, at[1]) > number(t, at[2]) {
		t.Errorf("ballastd.socket, ballastd and containerd were active after %v microseconds", at)
	}
	m.holds(t, want)
	m.runs(t, "ballast", busybox)
	// The first kernel shows its files as stubs, which the second cannot mount.
	again := m.registries.pushOllama(t, "library/after-reboot", "1b", weights(70, 8<<20))
	m.mustPull(t, again.ref)
	m.holds(t, again)
}

func number(t *testing.T, text string) int64 {
	t.Helper()
	n, err := strconv.ParseInt(strings.TrimSpace(text), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// purge removes ballast and its package, in the order that the page says, and no other.
func (m *machine) purge(t *testing.T, before map[string]string, busybox string) {
	t.Helper()
	if out := m.try("apt remove --yes ballast"); out.Err == nil || !strings.Contains(out.Output(), "ballast setup --remove") {
		t.Errorf("the package was removed under containerd: %v\n%s", out.Err, out.Output())
	}
	m.healthy(t)
	m.removed(t, busybox)
	m.sh(t, "apt purge --yes ballast")
	m.clean(t, before, busybox)
}

// rpm installs, upgrades, downgrades and removes the other package. The rpm of Debian knows nothing of Debian's
// packages, and ours requires none.
func (m *machine) rpm(t *testing.T, before map[string]string, want model, busybox string) {
	t.Helper()
	m.sh(t, "cd "+download+"\nrpm --install ./"+m.rpmOf(thisVersion))
	commands := node.Typed(t, installPage, "# Installing on a node")
	m.setUp(t, commands[1], commands[2])
	m.mustPull(t, want.ref)
	m.startReader(t, "of-rpm", want, busybox)
	m.changeTo(t, nextVersion, "rpm --upgrade ./"+m.rpmOf(nextVersion)+"\nballast setup")
	m.changeTo(t, thisVersion, "rpm --upgrade --oldpackage ./"+m.rpmOf(thisVersion)+"\nballast setup")
	m.reads(t, "of-rpm", want)
	m.stopReader(t, "of-rpm")
	if out := m.try("rpm --erase ballast"); out.Err == nil || !strings.Contains(out.Output(), "ballast setup --remove") {
		t.Errorf("the package was removed under containerd: %v\n%s", out.Err, out.Output())
	}
	m.healthy(t)
	m.removed(t, busybox)
	m.sh(t, "rpm --erase ballast")
	m.clean(t, before, busybox)
}

// remove removes ballast, and wants the machine to be as it was before the installation.
func (m *machine) remove(t *testing.T, before map[string]string, busybox string) {
	t.Helper()
	m.removed(t, busybox)
	m.clean(t, before, busybox)
}

// removed removes ballast.
func (m *machine) removed(t *testing.T, busybox string) {
	t.Helper()
	// A mount that its user unmounted, but not with ctr: containerd keeps one for it, and the refusal says what ends
	// that.
	at := m.mountPoint()
	m.mustPull(t, busybox)
	m.sh(t, fmt.Sprintf("mkdir %[1]s; ctr images mount --snapshotter ballast %[2]s %[1]s >/dev/null; umount %[1]s", at, busybox))
	end := "ctr -n default leases rm --sync " + at
	out := m.try("ballast setup --remove")
	if out.Err == nil || !strings.Contains(out.Output(), end) {
		t.Errorf("a removal with a mount that containerd keeps: %v\n%s", out.Err, out.Output())
	}
	m.sh(t, end)
	eventually(t, "end of containerd's mounts", func() error {
		if left := m.sh(t, "grep io.containerd.mount-manager /proc/mounts || true"); left != "" {
			return errors.New(left)
		}
		return nil
	})
	t.Log(m.sh(t, "ballast setup --remove 2>&1"))
}

// clean wants the machine as it was.
func (m *machine) clean(t *testing.T, before map[string]string, busybox string) {
	t.Helper()
	if d := gocmp.Diff(before, m.foreignFiles(t)); d != "" {
		t.Errorf("left (-before +after):\n%s", d)
	}
	if left := m.sh(t, "grep -e ballast /proc/mounts /proc/[0-9]*/comm || true; ls -d /run/ballast 2>/dev/null || true; ctr plugins ls | grep ballast || true; systemctl list-units --all --plain --no-legend 'ballast*'"); left != "" {
		t.Errorf("left:\n%s", left)
	}
	m.runs(t, "overlayfs", busybox)
}
