package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/test/e2e/node"
	"github.com/ballast-dev/ballast/test/e2e/systemctl"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// imageValues are the values of the chart for a version of the image.
func (c *clusterNode) imageValues(tag string, more map[string]any) map[string]any {
	v := map[string]any{"image": map[string]any{"registry": c.own.Host, "repository": "ballast", "tag": tag}}
	for k, x := range more {
		v[k] = x
	}
	return v
}

// state returns the files of the machine, except those of the kubelet and CRI at fixed paths.
func (c *clusterNode) state() map[string]string {
	c.t.Helper()
	all := c.tree()
	for p := range all {
		if strings.HasPrefix(p, "/var/lib/kubelet") || strings.HasPrefix(p, "/etc/cni/") {
			delete(all, p)
		}
	}
	return all
}

// restarts returns the units that were restarted since the last call.
func (c *clusterNode) restarts() (units []string) {
	for _, call := range c.calls() {
		if u, ok := strings.CutPrefix(call, "restart "); ok {
			units = append(units, u)
		}
	}
	return units
}

// model pushes a model and returns its reference.
func (c *clusterNode) model(seed byte) (string, *converttest.Built) {
	b := converttest.ModelPackRaw(converttest.Files(weights(seed, 3<<20)))
	c.registry.Push(c.t, "team/model", fmt.Sprintf("v%d", seed), artifact(b))
	return c.registry.Ref("team/model", fmt.Sprintf("v%d", seed)), b
}

// startReader starts a container with the model as its root.
func (c *clusterNode) startReader(model string) {
	c.t.Helper()
	out := c.ctr("run", "-d", "--snapshotter", "ballast", "--mount", node.BusyboxMount, model, "reader", "/.bin/busybox", "sleep", "100000")
	if out.Err != nil {
		c.t.Fatalf("%v\n%s", out.Err, out.Output())
	}
}

func (c *clusterNode) endReader() {
	c.t.Helper()
	for _, what := range []string{"tasks", "containers"} {
		args := []string{what, "rm", "reader"}
		if what == "tasks" {
			args = []string{what, "rm", "-f", "reader"}
		}
		if out := c.ctr(args...); out.Err != nil {
			c.t.Fatal(out.Output())
		}
	}
}

// version returns the version that the daemon reports.
func (c *clusterNode) version() string {
	c.t.Helper()
	out := node.Command(c.t.Context(), nil, "/usr/local/bin/ballast", "version")
	if out.Err != nil {
		c.t.Fatalf("%v\n%s", out.Err, out.Output())
	}
	return out.Stdout
}

// TestDaemonSet installs ballast with the pod of the chart on a node with a real kubelet, upgrades it
// and rolls it back while a container runs, and removes it.
func TestDaemonSet(t *testing.T) {
	c := startClusterNode(t)
	before := c.state()
	c.calls()
	model, b := c.model(1)

	c.apply("ballast", nil)
	if got := c.restarts(); !slices.Equal(got, []string{"ballastd.service", "containerd"}) {
		t.Errorf("restarted: %q", got)
	}
	c.checkSet(model, b)
	c.startReader(model)
	containerd, daemon := systemctl.PID("containerd.service"), systemctl.PID("ballastd.service")

	c.apply("ballast", nil)
	if got := c.calls(); got != nil {
		t.Errorf("the second pod asked for %q", got)
	}
	for _, tag := range []string{"two", "one"} { // helm upgrade, helm rollback
		c.apply("ballast", c.imageValues(tag, nil))
		if got := c.version(); !strings.Contains(got, "v0.1.0-"+tag) {
			t.Errorf("version: %s, want %s", got, tag)
		}
		if systemctl.PID("containerd.service") != containerd || systemctl.PID("ballastd.service") == daemon {
			t.Error("containerd was restarted, or ballastd was not")
		}
		daemon = systemctl.PID("ballastd.service")
		c.checkReader()
	}
	c.apply("ballast", map[string]any{"config": "[gc]\nquota = \"7GiB\"\n"})
	if got, err := os.ReadFile("/etc/ballast/conf.d/50-chart.toml"); err != nil || !strings.Contains(string(got), "7GiB") || systemctl.PID("ballastd.service") == daemon {
		t.Errorf("settings: %v\n%s", err, got)
	}
	c.checkReader()

	c.checkHeals()

	c.stopPod("ballast")
	c.launch("ballast-remove", nil)
	c.await("the removal to say who uses ballast", func() error {
		if !strings.Contains(c.logs(), "default/reader") {
			return fmt.Errorf("%s", c.tell(c.pod("ballast-remove")))
		}
		return nil
	})
	c.checkReader()
	c.endReader()
	c.awaitReady("ballast-remove") // it tries again
	logs := c.logs()
	c.stopPod("ballast-remove")
	if d := cmp.Diff(before, c.state()); d != "" {
		t.Errorf("left (-before +after):\n%s\n%s", d, logs)
	}
	if systemctl.PID("ballastd.service") != 0 || systemctl.PID("containerd.service") == 0 {
		t.Error("ballastd runs on, or containerd does not")
	}
}

// checkHeals stops the daemon while its registries are unavailable, and removes its image from the
// node: the next pod starts nevertheless, and starts the daemon.
func (c *clusterNode) checkHeals() {
	c.t.Helper()
	c.systemctl("stop", "ballastd.socket")
	c.systemctl("stop", "ballastd.service")
	c.stopPod("ballast")
	c.k8s("images", "rm", "--sync", c.own.Ref("ballast", "one"))
	if out := c.pull("overlayfs", "docker.io/library/busybox:1"); out.Err == nil || !strings.Contains(out.Output(), "127.0.0.1:5757") {
		c.t.Errorf("docker.io is not closed: %v\n%s", out.Err, out.Output())
	}
	c.apply("ballast", nil)
	if systemctl.PID("ballastd.service") == 0 {
		c.t.Error("the daemon is not back")
	}
	c.checkReader()
}

// daemonPid returns the process id of the daemon.
func (c *clusterNode) daemonPid() int {
	c.t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	c.ok(err)
	for _, f := range files {
		if p, err := os.ReadFile(f); err == nil && string(p) == "ballastd\x00" {
			pid, err := strconv.Atoi(filepath.Base(filepath.Dir(f)))
			c.ok(err)
			return pid
		}
	}
	c.t.Fatal("the daemon does not run")
	return 0
}

// TestDaemonSetPod runs the daemon in a pod: it is killed, and its pod is replaced by another version,
// while a container reads an incomplete model.
func TestDaemonSetPod(t *testing.T) {
	c := startClusterNode(t)
	before := c.state()
	pod := map[string]any{"daemon": "pod"}
	c.launch("ballast-holder", pod)
	c.apply("ballast", pod)

	want := weights(3, 24<<20)
	b := converttest.ModelPackRaw(converttest.Files(want))
	c.registry.Push(t, "team/model", "v3", artifact(b))
	lazy := c.registry.Ref("team/lazy", "v3")
	if out := node.Command(t.Context(), nil, node.Binary(t, "ballast"), "convert", c.registry.Ref("team/model", "v3"), lazy); out.Err != nil {
		t.Fatalf("convert: %v\n%s", out.Err, out.Output())
	}
	c.registry.Wire.Link(512<<10, 0)
	if out := c.pull("ballast", lazy); out.Err != nil {
		t.Fatalf("pull: %v\n%s", out.Err, out.Output())
	}
	c.startReader(lazy)
	read := func(when string, off int) {
		t.Helper()
		f, err := os.Open("/run/containerd/io.containerd.runtime.v2.task/default/reader/rootfs/model.gguf")
		c.ok(err)
		defer f.Close()
		p := make([]byte, 4096)
		if _, err := f.ReadAt(p, int64(off)); err != nil || !bytes.Equal(p, want[off:off+len(p)]) {
			t.Errorf("%s: read at %d: %v", when, off, err)
		}
	}
	read("at first", 8<<20)
	c.ok(unix.Kill(c.daemonPid(), unix.SIGKILL))
	c.await("the daemon to be started again", func() error {
		if p := c.pod("ballast"); p == nil || !p.ready() || !strings.Contains(c.tell(p), "ballastd: ready true, 1 restarts") {
			return errors.New(c.tell(p))
		}
		return nil
	})
	read("after a kill", 12<<20)
	c.apply("ballast", c.imageValues("two", pod))
	if got := c.version(); !strings.Contains(got, "v0.1.0-two") {
		t.Errorf("version: %s", got)
	}
	read("after an upgrade", 16<<20)
	if out := node.Command(t.Context(), nil, "/usr/local/bin/ballast", "ls"); out.Err != nil || !strings.Contains(out.Stdout, "lazy") {
		t.Errorf("the model is complete, which shows nothing: %v\n%s", out.Err, out.Output())
	}
	c.registry.Wire.Link(0, 0)

	c.endReader()
	c.stopPod("ballast")
	c.stopPod("ballast-holder")
	c.apply("ballast-remove", c.imageValues("two", pod))
	logs := c.logs()
	c.stopPod("ballast-remove")
	if d := cmp.Diff(before, c.state()); d != "" {
		t.Errorf("left (-before +after):\n%s\n%s", d, logs)
	}
}
