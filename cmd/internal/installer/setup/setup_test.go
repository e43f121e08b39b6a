package setup

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/cmd/internal/host/containerdversion"
	"github.com/ballast-dev/ballast/cmd/internal/installer/node"
	"github.com/google/go-cmp/cmp"
	"github.com/pelletier/go-toml/v2"
)

// A root is a host in a directory, with systemd except for its manager: systemctl records its
// arguments.
type root struct {
	t        *testing.T
	dir      string
	programs string
}

// systemctl is the systemctl of a root: it creates the links of units.
const systemctl = `#!/bin/sh
echo "$*" >>/run/calls
verb=$1
shift
[ $verb != show ] || exec busybox cat /run/environment 2>/run/noise
for u; do
	d=/etc/systemd/system/multi-user.target.wants
	[ "$u" = "${u%.socket}" ] || d=/etc/systemd/system/sockets.target.wants
	case $verb in
	enable) busybox mkdir -p $d && busybox ln -sf ../$u $d/$u ;;
	disable) busybox rm -f $d/$u; busybox rmdir $d 2>/run/noise ;;
	esac
done
exit 0
`

// newRoot creates a host from testdata.
func newRoot(t *testing.T, name string) *root {
	t.Helper()
	r := &root{t: t, dir: t.TempDir(), programs: t.TempDir()}
	r.ok(os.CopyFS(r.dir, os.DirFS(filepath.Join("testdata", name))))
	for _, d := range []string{"run/systemd/system", "etc/systemd/system"} {
		r.ok(os.MkdirAll(filepath.Join(r.dir, d), 0o755))
	}
	busybox, err := os.ReadFile("/usr/bin/busybox")
	r.ok(err)
	r.program("bin/busybox", string(busybox))
	r.ok(os.Symlink("busybox", filepath.Join(r.dir, "bin/sh")))
	r.program("usr/bin/systemctl", systemctl)
	r.version("1")
	return r
}

func (r *root) ok(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatal(err)
	}
}

func (r *root) write(p, text string) {
	r.t.Helper()
	p = filepath.Join(r.dir, p)
	r.ok(os.MkdirAll(filepath.Dir(p), 0o755))
	r.ok(os.WriteFile(p, []byte(text), 0o644))
}

func (r *root) program(p, text string) {
	r.t.Helper()
	r.write(p, text)
	r.ok(os.Chmod(filepath.Join(r.dir, p), 0o755))
}

// version creates another version of the programs.
func (r *root) version(v string) {
	r.t.Helper()
	for _, p := range programs {
		r.ok(os.WriteFile(filepath.Join(r.programs, p), []byte("#!/bin/sh\n# "+p+" "+v+"\n"), 0o755))
	}
}

func (r *root) read(p string) string {
	r.t.Helper()
	b, err := os.ReadFile(filepath.Join(r.dir, p))
	r.ok(err)
	return string(b)
}

// keys creates the keys of a daemon that has run, and its database.
func (r *root) keys() {
	r.write("var/lib/ballast/store.db", "")
	for _, k := range []string{"ca.pem", "client.pem"} {
		r.write("var/lib/ballast/tls/"+k, "")
	}
}

// plan returns the plan of a set-up without restarts.
func (r *root) plan(o Options) (*Plan, error) {
	o.Host, o.NoRestart = r.dir, true
	return New(r.t.Context(), o, r.programs)
}

// set executes a set-up without restarts, and returns the written paths.
func (r *root) set(o Options) []string {
	r.t.Helper()
	p, err := r.plan(o)
	r.ok(err)
	return r.apply(p)
}

func (r *root) apply(p *Plan) []string {
	r.t.Helper()
	var done []string
	r.ok(p.Apply(r.t.Context(), func(s Step) { done = append(done, string(s.Action)+" "+s.Target) }))
	return done
}

// left compares all files with those that were there before.
func (r *root) left(before map[string]string) {
	r.t.Helper()
	if d := cmp.Diff(before, r.files()); d != "" {
		r.t.Errorf("left (-before +after):\n%s", d)
	}
}

// files returns all files with their content, except those written by systemctl.
func (r *root) files() map[string]string {
	r.t.Helper()
	all := map[string]string{}
	r.ok(filepath.WalkDir(r.dir, func(p string, d fs.DirEntry, err error) error {
		name, _ := strings.CutPrefix(p, r.dir+"/")
		if err != nil || p == r.dir || strings.HasPrefix(name, "run/") || strings.HasPrefix(name, "var/lib/ballast/") {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		all[name] = info.Mode().String()
		if info.Mode().IsRegular() && info.Size() < 1<<16 {
			all[name] += " " + r.read(name)
		}
		return nil
	}))
	return all
}

const (
	units          = "write /etc/systemd/system/ballastd.service|write /etc/systemd/system/ballastd.socket|write /etc/systemd/system/ballastd-holder.service|enable ballastd.service ballastd.socket ballastd-holder.service"
	install        = "copy /usr/local/bin/ballast|copy /usr/local/bin/ballastd|copy /usr/local/bin/ballast-keyless|" + units
	rancherInstall = "copy /usr/local/bin/ballast|write /etc/ballast/conf.d/00-setup.toml|copy /usr/local/bin/ballastd|copy /usr/local/bin/ballast-keyless|" + units
)

// TestDistros sets up a host of each distribution: it checks the written files and the resulting
// configuration of containerd, that a second run changes nothing, and that a removal restores the
// original state.
func TestDistros(t *testing.T) {
	const k3sDir, rke2Dir = "/var/lib/rancher/k3s/agent/etc/containerd", "/var/lib/rancher/rke2/agent/etc/containerd"
	const ollama = "/registry.ollama.ai/hosts.toml|write " + closedConfig
	for _, tt := range []struct {
		name   string
		o      Options
		want   string // steps
		distro string
		unit   string
		cgroup bool
		dropIn string
	}{
		{"plain", Options{}, install + "|write /etc/containerd/conf.d/ballast.toml|write /etc/containerd/config.toml|write /etc/containerd/certs.d" + ollama, node.Plain, "containerd", false, "/etc/containerd/conf.d/ballast.toml"},
		{"docker", Options{}, install + "|write /etc/containerd/conf.d/ballast.toml|write /etc/containerd/config.toml|write /etc/containerd/certs.d" + ollama, node.Plain, "containerd", false, "/etc/containerd/conf.d/ballast.toml"},
		{"debian", Options{}, install + "|write /etc/containerd/conf.d/ballast.toml|write /etc/containerd/config.toml|write /etc/containerd/certs.d" + ollama, node.Plain, "containerd", false, "/etc/containerd/conf.d/ballast.toml"},
		{"default", Options{}, install + "|write /etc/containerd/conf.d/ballast.toml|write /etc/containerd/certs.d" + ollama, node.Plain, "containerd", false, "/etc/containerd/conf.d/ballast.toml"},
		{"kubeadm", Options{RuntimeHandler: "ballast"}, install + "|write /etc/containerd/conf.d/ballast.toml|write /etc/containerd/config.toml|write /etc/containerd/certs.d" + ollama, node.Kubeadm, "containerd", true, "/etc/containerd/conf.d/ballast.toml"},
		{"kind", Options{RuntimeHandler: "ballast"}, install + "|write /etc/containerd/conf.d/ballast.toml|write /etc/containerd/config.toml|write /etc/containerd/certs.d" + ollama, node.Kind, "containerd", true, "/etc/containerd/conf.d/ballast.toml"},
		{"eks", Options{RuntimeHandler: "ballast"}, install + "|write /etc/containerd/conf.d/ballast.toml|write /etc/containerd/config.toml|write /etc/containerd/certs.d" + ollama, node.EKS, "containerd", true, "/etc/containerd/conf.d/ballast.toml"},
		{"eks-al2", Options{RuntimeHandler: "ballast"}, install + "|write /etc/containerd/config.d/ballast.toml|write /etc/containerd/certs.d" + ollama, node.EKS, "containerd", true, "/etc/containerd/config.d/ballast.toml"},
		{"k3s", Options{}, rancherInstall + "|write " + k3sDir + "/config-v3.toml.d/ballast.toml|write " + k3sDir + "/certs.d" + ollama, node.K3s, "k3s-agent", false, k3sDir + "/config-v3.toml.d/ballast.toml"},
		{"k3s-old", Options{RuntimeHandler: "ballast"}, rancherInstall + "|write " + k3sDir + "/config-v3.toml.tmpl|write " + k3sDir + "/certs.d" + ollama, node.K3s, "k3s-agent", true, k3sDir + "/config-v3.toml.tmpl"},
		{"rke2", Options{RuntimeHandler: "ballast"}, rancherInstall + "|write " + rke2Dir + "/config-v3.toml.d/ballast.toml|write " + rke2Dir + "/certs.d" + ollama, node.RKE2, "rke2-server", true, rke2Dir + "/config-v3.toml.d/ballast.toml"},
		{"kubeadm", Options{NoService: true, RuntimeHandler: "ballast"}, "copy /usr/local/bin/ballast|write /etc/containerd/conf.d/ballast.toml|write /etc/containerd/config.toml|write /etc/containerd/certs.d" + ollama, node.Kubeadm, "containerd", true, "/etc/containerd/conf.d/ballast.toml"},
	} {
		t.Run(fmt.Sprint(tt.name, tt.o.NoService), func(t *testing.T) {
			r := newRoot(t, tt.name)
			r.keys()
			before := r.files()
			tt.o.Registries = []string{"registry.ollama.ai"}
			p, err := r.plan(tt.o)
			r.ok(err)
			if p.Distro != tt.distro || p.view.Unit != tt.unit || !slices.Contains(p.Pending, pendingContainerd) {
				t.Errorf("got %s, %s, pending %q", p.Distro, p.view.Unit, p.Pending)
			}
			if d := cmp.Diff(r.apply(p), strings.Split(tt.want, "|")); d != "" {
				t.Errorf("steps (got, want):\n%s", d)
			}
			text := strings.TrimPrefix(r.read(tt.dropIn), "{{ template \"base\" . }}\n")
			var parsed map[string]any
			r.ok(toml.Unmarshal([]byte(text), &parsed))
			if got := strings.Contains(text, "SystemdCgroup = true"); got != tt.cgroup {
				t.Errorf("SystemdCgroup of the handler is %v", got)
			}
			if got := containerdversion.Setting(parsed, "proxy_plugins", "ballast", "type"); got != "snapshot" {
				t.Errorf("no snapshotter in\n%s", text)
			}
			after := r.files()
			if again := r.set(tt.o); again != nil {
				t.Errorf("a second run: %q", again)
			}
			if d := cmp.Diff(after, r.files()); d != "" {
				t.Errorf("a second run changed (-before +after):\n%s", d)
			}
			gone, err := NewRemoval(t.Context(), Options{Host: r.dir, NoRestart: true})
			r.ok(err)
			r.apply(gone)
			delete(before, "var/lib/ballast")
			r.left(before)
		})
	}
}
