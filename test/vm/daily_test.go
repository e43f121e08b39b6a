//go:build vm

package vm

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestDebian12 has one machine from its first boot to the removal of ballast: installed as the page says, with every way in
// which a service ends, an upgrade, another kernel and back, pods in user namespaces, and power cuts.
func TestDebian12(t *testing.T) {
	m := startNode(t, debian12, "6.1", newest(t))
	r := m.registries
	llama := r.pushOllama(t, "library/llama3.2", "1b", weights(1, 64<<20))
	busybox := r.pushImage(t, "busybox")
	before := m.foreignFiles(t)

	if !m.journey(t, "install.md", m.install) {
		t.FailNow()
	}
	m.journey(t, "first pull", func(t *testing.T) { m.firstPull(t, llama) })
	m.journey(t, "ordinary image", func(t *testing.T) { m.runs(t, "ballast", busybox) })
	m.journey(t, "container with a model", func(t *testing.T) { m.startReader(t, "reader", llama, busybox) })
	m.units(t, llama)
	m.journey(t, "upgrade", m.upgrade)
	m.journey(t, "rollback", m.rollback)
	m.journey(t, "container after all this", func(t *testing.T) { m.reads(t, "reader", llama); m.stopReader(t, "reader") })

	m.journey(t, "reboot into 6.12", func(t *testing.T) { m.rebooted(t, "6.12", llama, busybox) })
	m.lazy(t)
	m.cuts(t, *cutsFlag, "6.12", "6.1")
	m.journey(t, "pod with hostUsers: false", m.userPod)
	m.journey(t, "reboot into 6.1", func(t *testing.T) { m.rebooted(t, "6.1", llama, busybox) })
	m.journey(t, "setup after the root was emptied", func(t *testing.T) { m.emptied(t, llama) })
	m.journey(t, "removal by force, and setup", func(t *testing.T) { m.forced(t, llama, busybox) })
	m.journey(t, "removal", func(t *testing.T) { m.remove(t, before, busybox) })
	m.journey(t, "registry.mirrors in the configuration", m.mirrors)
}

// install follows the page word by word.
func (m *machine) install(t *testing.T) {
	t.Helper()
	commands := typed(t, "contrib/docs/install.md", "# Installing on a node")
	if len(commands) != 3 || commands[0] != "make build" {
		t.Fatalf("the page has other commands than this test knows: %q", commands)
	}
	before := m.foreignFiles(t)
	plan := m.sh(t, "cd "+download+" && "+commands[1]+" --dry-run")
	if d := cmp.Diff(before, m.foreignFiles(t)); d != "" {
		t.Errorf("the dry run changed (-before +after):\n%s", d)
	}
	did := m.sh(t, "cd "+download+" && "+commands[1])
	if plan := strings.ReplaceAll(plan, "dry run: nothing was changed\n", ""); plan != did {
		t.Errorf("planned and done differ (-planned +done):\n%s", cmp.Diff(plan, did))
	}
	if again := m.sh(t, "cd "+download+" && "+commands[1]+" 2>&1"); !strings.Contains(again, "nothing to change") {
		t.Errorf("a second setup: %s", again)
	}
	t.Logf("doctor:\n%s", m.sh(t, commands[2]))
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
	commands := typed(t, "README.md", "## First pull")
	if len(commands) != 4 || commands[0] != "ref="+want.ref || commands[3] != "ls /mnt" {
		t.Fatalf("the page has other commands than this test knows: %q", commands)
	}
	got := strings.Fields(m.sh(t, strings.Join(commands[:3], " >/dev/null\n")+" >/dev/null\n"+commands[3]))
	for _, name := range []string{"LICENSE", "Modelfile", "model.gguf", "ollama", "params.json", "template"} {
		if !strings.Contains(" "+strings.Join(got, " ")+" ", " "+name+" ") {
			t.Errorf("%s is not among %q", name, got)
		}
	}
	if sum := m.sh(t, "sha256sum /mnt/model.gguf; ctr images unmount --snapshotter ballast --rm /mnt >/dev/null"); !strings.HasPrefix(sum, want.sum) {
		t.Errorf("the weights have the digest %q, want %s", sum, want.sum)
	}
}

// upgrade upgrades to the next version under a running container.
func (m *machine) upgrade(t *testing.T) {
	t.Helper()
	pid, containerd := m.mainPID(t), m.sh(t, "systemctl show -P MainPID containerd")
	m.sh(t, next+"/bin/ballast setup")
	m.replaced(t, pid)
	if v := m.sh(t, "ballast version; ballast doctor"); strings.Count(v, nextVersion) < 2 {
		t.Errorf("the version is %s", v)
	}
	if now := m.sh(t, "systemctl show -P MainPID containerd"); now != containerd {
		t.Errorf("containerd was restarted: %s, %s", containerd, now)
	}
}

// rollback goes back, forward and back again.
func (m *machine) rollback(t *testing.T) {
	t.Helper()
	for _, want := range []bool{false, true, false} {
		pid := m.mainPID(t)
		m.sh(t, "ballast setup --rollback")
		m.replaced(t, pid)
		if v := m.sh(t, "ballast version"); strings.Contains(v, nextVersion) != want {
			t.Errorf("the version is %s", v)
		}
	}
	m.healthy(t)
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

// remove removes ballast, and wants the machine to be as it was before the installation.
func (m *machine) remove(t *testing.T, before map[string]string, busybox string) {
	t.Helper()
	// A mount that its user unmounted, but not with ctr: containerd keeps one for it, and the refusal says what ends that.
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
	if d := cmp.Diff(before, m.foreignFiles(t)); d != "" {
		t.Errorf("left (-before +after):\n%s", d)
	}
	if left := m.sh(t, "grep -e ballast /proc/mounts /proc/[0-9]*/comm || true; ls -d /run/ballast 2>/dev/null || true; ctr plugins ls | grep ballast || true; systemctl list-units --all --plain --no-legend 'ballast*'"); left != "" {
		t.Errorf("left:\n%s", left)
	}
	m.runs(t, "overlayfs", busybox)
}
