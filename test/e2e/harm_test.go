package e2e

import (
	"os"
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

// checkCRI checks that CRI has started.
func (m *machine) checkCRI() {
	m.t.Helper()
	out := m.ctr("plugins", "ls")
	for _, id := range []string{"cri", "images", "runtime"} {
		found := slices.ContainsFunc(strings.Split(out.Stdout, "\n"), func(line string) bool {
			f := strings.Fields(line)
			return len(f) > 2 && strings.Contains(f[0], "cri") && f[1] == id && f[len(f)-1] == "ok"
		})
		if id == "cri" {
			found = slices.ContainsFunc(strings.Split(out.Stdout, "\n"), func(line string) bool {
				f := strings.Fields(line)
				return len(f) > 2 && f[1] == id && f[len(f)-1] == "ok"
			})
		}
		if !found {
			m.t.Errorf("CRI's plugin %s has not started:\n%s", id, out.Output())
		}
	}
}

// restartWith gives containerd another main file, and restarts it.
func (m *machine) restartWith(config string) {
	m.t.Helper()
	m.write(machineConfig, config, 0o644)
	m.systemctl("restart", "containerd")
	waitFor(m.t, "containerd", func() error { return m.ctr("version").Err })
}

// TestSetupRefusesConflicts has settings with which ballast does not work, and settings of others that it would change:
// set-up is refused before anything changes, and names the file and what to do.
func TestSetupRefusesConflicts(t *testing.T) {
	m := startMachine(t, plainConfig)
	dropIns := "imports = [\"/etc/containerd/conf.d/*.toml\"]\n"
	for _, tt := range []struct {
		name, main, dropIn string
		words              []string
	}{
		{"mirrors", plainConfig + "[plugins.'io.containerd.cri.v1.images'.registry.mirrors.'docker.io']\n  endpoint = [\"https://mirror.example\"]\n", "",
			[]string{"registry.mirrors (" + machineConfig + ")", "hosts.toml"}},
		{"mirrors in the tables of format 2", strings.Replace(dropIns, "imports", "version = 2\nimports", 1) + "[plugins.'io.containerd.grpc.v1.cri'.registry.mirrors.'docker.io']\n  endpoint = [\"https://mirror.example\"]\n", "",
			[]string{"registry.mirrors (" + machineConfig + ")"}},
		{"snapshotter of others", dropIns + plainConfig, "version = 3\n[proxy_plugins.nydus]\n  type = \"snapshot\"\n  address = \"/run/nydus.sock\"\n[plugins.'io.containerd.cri.v1.images']\n  snapshotter = \"nydus\"\n",
			[]string{"/etc/containerd/conf.d/50-other.toml", "nydus", "--runtime-handler ballast"}},
		{"a list that is read later", dropIns + plainConfig, "", []string{"/etc/containerd/conf.d/zz-other.toml", "no entry for ballast"}},
		{"a drop-in that was not imported", plainConfig, "version = 3\n[plugins.'io.containerd.cri.v1.images']\n  image_pull_progress_timeout = \"broken\"\n",
			[]string{"/etc/containerd/conf.d/50-other.toml", "image_pull_progress_timeout"}},
	} {
		name := "/etc/containerd/conf.d/50-other.toml"
		m.ok(os.RemoveAll("/etc/containerd/conf.d"))
		if tt.dropIn != "" {
			m.write(name, tt.dropIn, 0o644)
		}
		if tt.name == "a list that is read later" {
			m.write("/etc/containerd/conf.d/zz-other.toml", "version = 3\n[[plugins.'io.containerd.transfer.v1.local'.unpack_config]]\n  platform = \"linux/amd64\"\n  snapshotter = \"overlayfs\"\n", 0o644)
		}
		m.restartWith(tt.main)
		m.settings(nil)
		before := m.tree()
		m.calls()
		out := m.setup("--registry", "models.example")
		wantError(t, out, append(tt.words, "nothing was changed")...)
		if d := cmp.Diff(before, m.tree()); d != "" || m.calls() != nil {
			t.Errorf("%s: a refused set-up changed something (-before +after):\n%s", tt.name, d)
		}
		if !strings.Contains(tt.dropIn, "nydus") {
			m.checkCRI()
		}
	}
}

// TestSetupUndoes has a drop-in of somebody else that CRI does not start with, and that only the import of setup
// brings into effect: forced, setup sees after the restart that CRI is gone, and undoes everything.
func TestSetupUndoes(t *testing.T) {
	m := startMachine(t, plainConfig)
	m.registry.Push(t, "busybox", "1", node.Busybox(t))
	m.write("/etc/containerd/conf.d/50-other.toml", "version = 3\n[plugins.'io.containerd.cri.v1.images']\n  image_pull_progress_timeout = \"broken\"\n", 0o644)
	m.settings(nil)
	m.checkCRI()
	before := m.tree()
	wantError(t, m.setup("--registry", "models.example", "--force"), "io.containerd.cri.v1.images", "invalid image pull progress timeout", "everything was undone")
	after := m.tree()
	delete(after, "/var/lib/ballast") // made by the daemon that has run
	delete(after, "/run/ballast")
	for p := range after {
		if strings.HasPrefix(p, "/run/ballast/") {
			delete(after, p)
		}
	}
	if d := cmp.Diff(before, after); d != "" {
		t.Errorf("left (-before +after):\n%s", d)
	}
	if systemctl.Active("ballastd.service") {
		t.Error("ballastd still runs")
	}
	m.checkCRI()
	m.checkPulls(m.registry.Ref("busybox", "1"))
	m.ok(os.Remove("/etc/containerd/conf.d/50-other.toml"))
	m.mustSetup("--registry", "models.example")
	m.checkIdle()
	m.checkCRI()
}

// TestRemovalKeepsImages removes ballast from a node with an image that only ballast has unpacked, and whose registry
// is gone: the image runs with the next snapshotter. The image of a model goes, as do files of ballast, and what
// others have put beside them stays.
func TestRemovalKeepsImages(t *testing.T) {
	m := startMachine(t, plainConfig)
	m.ok(os.MkdirAll("/var/lib/ballast", 0o700))
	m.ok(unix.Mount("tmpfs", "/var/lib/ballast", "tmpfs", 0, "mode=700")) // models usually have a disk of their own
	b := converttest.ModelPackRaw(converttest.Files(weights(11, 1<<20)))
	m.registry.Push(t, "team/model", "v1", artifact(b))
	m.registry.Push(t, "busybox", "1", node.Busybox(t))
	model, image := m.registry.Ref("team/model", "v1"), m.registry.Ref("busybox", "1")
	m.mustSetup("--registry", m.registry.Host)
	m.checkSet(model, b)
	if out := m.pull("ballast", image); out.Err != nil {
		t.Fatalf("%v\n%s", out.Err, out.Output())
	}
	hosts := filepath.Join(machineHosts, m.registry.Host, "hosts.toml")
	text, err := os.ReadFile(hosts)
	m.ok(err)
	m.write(hosts, string(text)+"# edited\n", 0o644)
	m.write("/var/lib/ballast/notes.txt", "of the operator", 0o644)
	m.write("/run/ballast/other.pid", "1", 0o644)
	out := m.mustSetup("--remove")
	for _, stays := range []string{hosts, "notes.txt", "other.pid"} {
		if _, err := os.Stat(filepath.Join("/", stays)); !strings.Contains(out, stays) || filepath.IsAbs(stays) && err != nil {
			t.Errorf("%s is not named: %v\n%s", stays, err, out)
		}
	}
	left, err := os.ReadDir("/var/lib/ballast")
	m.ok(err)
	if len(left) != 1 || left[0].Name() != "notes.txt" {
		t.Errorf("in the root: %v", left)
	}
	names := m.ctr("images", "ls", "-q").Stdout
	if strings.Contains(names, model) || !strings.Contains(names, image) {
		t.Errorf("images after the removal:\n%s", names)
	}
	m.ok(os.RemoveAll(filepath.Dir(hosts)))
	if out := m.ctr("run", "--rm", "--snapshotter", "overlayfs", image, "again", "/bin/busybox", "true"); out.Err != nil {
		t.Errorf("the image does not run with overlayfs: %v\n%s", out.Err, out.Output())
	}
	m.ok(os.Remove("/var/lib/ballast/notes.txt"))
	m.ok(os.RemoveAll("/run/ballast"))
	m.mustSetup("--registry", m.registry.Host) // the mount is a root again
	m.checkSet(model, b)
}

// TestRuntimeOfHandler has a runtime beside runc, as that of NVIDIA: pods of ballast's handler run with it, where it
// is the default and where --like names it.
func TestRuntimeOfHandler(t *testing.T) {
	for _, tt := range []struct {
		name, isDefault string
		flags           []string
	}{
		{"default handler", "[plugins.\"io.containerd.cri.v1.runtime\".containerd]\n  default_runtime_name = \"gpu\"\n", nil},
		{"handler beside the default", "", []string{"--like", "gpu"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir, err := os.MkdirTemp("", "gpu")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { os.RemoveAll(dir) })
			wrapper, calls := filepath.Join(dir, "gpu-runtime"), filepath.Join(dir, "calls")
			script := "#!/bin/sh\necho \"$@\" >>" + calls + "\nexec " + node.Runc(t) + " \"$@\"\n"
			if err := os.WriteFile(wrapper, []byte(script), 0o755); err != nil {
				t.Fatal(err)
			}
			n, cri, _ := startPods(t, node.Options{Containerd: tt.isDefault + `
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.gpu]
  runtime_type = "io.containerd.runc.v2"
  [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.gpu.options]
    BinaryName = "` + wrapper + `"
`})
			n.ConfigureContainerd(t, append([]string{"--runtime-handler", "models"}, tt.flags...)...)
			n.Containerd.Stop(t)
			n.StartContainerd(t)
			if err := os.RemoveAll(calls); err != nil {
				t.Fatal(err)
			}
			b := converttest.ModelPackRaw(converttest.Files(weights(31, 1<<20)))
			model, err := cri.Pull(push(t, n, b), "models")
			if err != nil {
				t.Fatal(err)
			}
			busybox, err := cri.Pull(n.Registry.Ref("busybox", "1"), "models")
			if err != nil {
				t.Fatal(err)
			}
			c, err := cri.RunPod(t, "models").Run(busybox, node.ImageMount{Image: model, Path: "/model"})
			if err != nil {
				t.Fatal(err)
			}
			wantVolume(t, cri, c, "/model", states(b))
			if got, err := os.ReadFile(calls); err != nil || !strings.Contains(string(got), "create") {
				t.Errorf("the runtime was not called: %q, %v", got, err)
			}
		})
	}
}
