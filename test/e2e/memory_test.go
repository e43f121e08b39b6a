package e2e

import (
	"crypto/rand"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/ballast-dev/ballast/test/e2e/node"
)

// A memoryGroup is a control group with a limit of memory.
type memoryGroup struct {
	dir    string
	second bool // of the second version of control groups
}

// memoryGroupOf makes a control group with the limits of the daemon's unit, and moves the daemon of n into it
// until the end of the test. The few MiB that the daemon already has stay with its earlier group.
func memoryGroupOf(t *testing.T, n *node.Node) memoryGroup {
	t.Helper()
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		t.Fatal(err)
	}
	var root string
	var g memoryGroup
	for line := range strings.Lines(string(mounts)) {
		switch f := strings.Fields(line); {
		case f[2] == "cgroup" && slices.Contains(strings.Split(f[3], ","), "memory"):
			root, g.second = f[1], false
		case f[2] == "cgroup2" && root == "":
			root, g.second = f[1], true
		}
	}
	write := func(dir, file, value string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, file), []byte(value), 0); err != nil {
			t.Fatal(err)
		}
	}
	limits := map[string]string{}
	unit, err := os.ReadFile("../../contrib/systemd/ballastd.service")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(unit)) {
		if k, v, ok := strings.Cut(strings.TrimSpace(line), "="); ok {
			limits[k] = v
		}
	}
	if g.second {
		write(root, "cgroup.subtree_control", "+memory")
	}
	g.dir = filepath.Join(root, "ballast-test-"+rand.Text())
	if err := os.Mkdir(g.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		waitFor(t, "the control group to be empty", func() error {
			left, err := os.ReadFile(filepath.Join(g.dir, "cgroup.procs"))
			for pid := range strings.FieldsSeq(string(left)) {
				_ = os.WriteFile(filepath.Join(root, "cgroup.procs"), []byte(pid), 0) // it may have ended
			}
			return errors.Join(err, syscall.Rmdir(g.dir))
		})
	})
	if g.second {
		write(g.dir, "memory.high", limits["MemoryHigh"])
		write(g.dir, "memory.max", limits["MemoryMax"])
	} else {
		write(g.dir, "memory.limit_in_bytes", limits["MemoryMax"])
	}
	write(g.dir, "cgroup.procs", strconv.Itoa(n.Ballastd.Pid()))
	return g
}

// check fails the test if the limit was reached. The first version of control groups also counts reclaimed cache
// of files, so only the processes that were killed count there.
func (g memoryGroup) check(t *testing.T) {
	t.Helper()
	file, zero := "memory.oom_control", []string{"under_oom", "oom_kill"}
	if g.second {
		file, zero = "memory.events", []string{"max", "oom", "oom_kill"}
	}
	p, err := os.ReadFile(filepath.Join(g.dir, file))
	if err != nil {
		t.Fatal(err)
	}
	events := strings.Fields(string(p))
	for _, event := range zero {
		if i := slices.Index(events, event); i < 0 || events[i+1] != "0" {
			t.Errorf("%s of the daemon's control group, want %s 0:\n%s", file, event, p)
		}
	}
}
