package e2e

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/test/e2e/node"
)

// asUnit returns the beginning of a command line that has the capabilities of the unit.
func asUnit(t *testing.T) []string {
	t.Helper()
	unit, err := os.ReadFile("../../contrib/systemd/ballastd.service")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, ok := strings.Cut(string(unit), "\nCapabilityBoundingSet=")
	if !ok || !strings.Contains(string(unit), "\nNoNewPrivileges=yes\n") {
		t.Fatal("the unit takes no abilities away")
	}
	line, _, _ := strings.Cut(rest, "\n")
	caps := "-all"
	for _, c := range strings.Fields(line) {
		caps += ",+" + strings.ToLower(strings.TrimPrefix(c, "CAP_"))
	}
	return []string{"setpriv", "--no-new-privs", "--bounding-set=" + caps}
}

// TestUnit runs ballastd with the capabilities of its unit: it shows models and ordinary images,
// incomplete models can be read, and it can be restarted while they are.
func TestUnit(t *testing.T) {
	n := node.StartNode(t, node.Options{Wrap: asUnit(t)})
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", n.Ballastd.Pid()))
	if err != nil || !strings.Contains(string(status), "NoNewPrivs:\t1") || strings.Contains(string(status), "CapEff:\t000001ffffffffff") {
		t.Fatalf("the daemon has all abilities: %v\n%s", err, status)
	}
	b := converttest.ModelPackRaw(converttest.Files(weights(5, 3<<20)))
	model := push(t, n, b)
	mustPull(t, n, "ballast", model)
	wantFiles(t, n, model, states(b))
	n.Registry.Push(t, "busybox", "1", node.Busybox(t))
	image := n.Registry.Ref("busybox", "1")
	mustPull(t, n, "ballast", image)
	out := n.Ctr("run", "--rm", "--snapshotter", "ballast", "--user", "65534", image, "unit", "/bin/busybox", "ls", "/bin/busybox")
	if out.Err != nil {
		t.Errorf("an ordinary image, as nobody: %v\n%s", out.Err, out.Output())
	}
	m := mountLazy(t, n, 32<<20, 16<<20)
	if err := m.read(20<<20, 4096); err != nil {
		t.Error(err)
	}
	n.Ballastd.Kill()
	n.StartBallastd(t)
	if err := m.read(30<<20, 4096); err != nil {
		t.Errorf("after a restart: %v", err)
	}
	if got := n.Ballast("doctor"); strings.Contains(got.Output(), "hard links") {
		t.Errorf("doctor: %s", got.Output())
	}
}
