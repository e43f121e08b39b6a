package setup

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/ballast-dev/ballast/cmd/internal/host/containerdversion"
	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"
	"github.com/pelletier/go-toml/v2"
	"golang.org/x/sys/unix"
)

// wantError wants an error of a category, with words in its text.
func wantError(t *testing.T, err error, is func(error) bool, words ...string) {
	t.Helper()
	if err == nil || !is(err) {
		t.Fatalf("got %v", err)
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("%q does not say %q", err, w)
		}
	}
}

// oldTemplate has k3s generate the configuration of containerd from a template for version 2.
func oldTemplate(r *root) {
	const config = "var/lib/rancher/k3s/agent/etc/containerd/config.toml"
	r.write(config+".tmpl", "{{ template \"base\" . }}\n")
	r.write(config, "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\".containerd]\n  snapshotter = \"overlayfs\"\n")
}

// Hosts that cannot be set up as they are remain unchanged, with a message that says why.
func TestUnsuitableHostStaysUnchanged(t *testing.T) {
	for _, tt := range []struct {
		name, root string
		change     func(*root)
		o          Options
		words      string
	}{
		{"no systemd", "plain", func(r *root) { r.ok(os.RemoveAll(filepath.Join(r.dir, "run/systemd"))) }, Options{}, "--no-service --no-restart --runtime-handler ballast"},
		{"the pod of all pods", "kubeadm", nil, Options{NoService: true}, "--runtime-handler ballast"},
		{"broken configuration", "kubeadm", func(r *root) { r.write("etc/containerd/config.toml", "version = \n") }, Options{}, "/etc/containerd/config.toml"},
		{"k3s without drop-ins, all pods", "k3s-old", nil, Options{}, "--runtime-handler ballast"},
		{"k3s with an old template", "k3s-old", oldTemplate, Options{RuntimeHandler: "ballast", ContainerdVersion: "2.0"}, "config.toml.tmpl: rename that to config-v3.toml.tmpl"},
		{"newer k3s with an old template", "k3s-old", oldTemplate, Options{RuntimeHandler: "ballast", ContainerdVersion: "2.3"}, "config.toml.tmpl: rename that to config-v3.toml.tmpl"},
		{"old k3s", "k3s-old", oldTemplate, Options{RuntimeHandler: "ballast", ContainerdVersion: "1.7"}, "the containerd of before 2.0"},
		{"k3s that has not started", "k3s", func(r *root) {
			r.ok(os.Remove(filepath.Join(r.dir, "var/lib/rancher/k3s/agent/etc/containerd/config.toml")))
		}, Options{}, "start k3s-agent once"},
		{"newer record", "plain", func(r *root) { r.write("var/lib/ballast-setup/setup.json", `{"version":2}`) }, Options{}, "version 2"},
		{"damaged record", "plain", func(r *root) { r.write("var/lib/ballast-setup/setup.json", "{") }, Options{}, "setup.json"},
		{"the sandbox image", "k3s", nil, Options{Registries: []string{"docker.io"}}, "rancher/mirrored-pause:3.6"},
		{"its own image", "kubeadm", nil, Options{Registries: []string{"ghcr.io"}, Images: []string{"ghcr.io/x/ballast:1"}}, "ghcr.io/x/ballast:1"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRoot(t, tt.root)
			if tt.change != nil {
				tt.change(r)
			}
			before := r.files()
			_, err := r.plan(tt.o)
			wantError(t, err, errdefs.IsFailedPrecondition, tt.words)
			if d := cmp.Diff(before, r.files()); d != "" {
				t.Errorf("changed (-before +after):\n%s", d)
			}
		})
	}
}

// TestRegistryNames refuses names that are not registries before it looks at the host.
func TestRegistryNames(t *testing.T) {
	r := newRoot(t, "kubeadm")
	for name, advice := range map[string]string{
		"ghcr.io/team": "write a host name", "ollama": "has a dot or a port", "REGISTRY.OLLAMA.AI": "in lower case", "hub.docker.com": "write docker.io",
	} {
		_, err := r.plan(Options{Registries: []string{name}, Distro: "none"})
		wantError(t, err, errdefs.IsInvalidArgument, fmt.Sprintf("--registry: %q is not a registry: ", name), advice)
	}
	for _, name := range []string{"_default", "localhost", "registry:5000", "[::1]:5000", "registry.ollama.ai"} {
		_, err := r.plan(Options{Registries: []string{name}, Distro: "none"})
		wantError(t, err, errdefs.IsInvalidArgument, `"none" is not one of`) // it has looked
	}
}

// TestOpenIgnoresFiles opens a registry beside files of others in the directory of the registries.
func TestOpenIgnoresFiles(t *testing.T) {
	const dir = "etc/containerd/certs.d/"
	r := newRoot(t, "kubeadm")
	r.keys()
	r.set(Options{Registries: []string{"ghcr.io"}})
	r.write(dir+"README", "of others\n")
	r.ok(os.Symlink("nothing", filepath.Join(r.dir, dir, "ca.crt")))
	if stuck, err := Unreachable(t.Context(), r.dir); err != nil || stuck != nil {
		t.Errorf("unreachable: %q, %v", stuck, err)
	}
	p, err := NewOpen(t.Context(), Options{Host: r.dir}, []string{"ghcr.io"})
	r.ok(err)
	r.apply(p)
	if hostAt(r.dir).Exists("/" + dir + "ghcr.io/hosts.toml") {
		t.Error("ghcr.io is not open")
	}
}

// TestOpenRegistryNames refuses to open what is not a registry: that would be taken for open already, or written.
func TestOpenRegistryNames(t *testing.T) {
	for _, closed := range []string{"ghcr.io", "_default"} {
		r := newRoot(t, "kubeadm")
		r.keys()
		r.set(Options{Registries: []string{closed}})
		for _, name := range []string{"https://ghcr.io", "ghcr.io/team"} {
			_, err := NewOpen(t.Context(), Options{Host: r.dir}, []string{name})
			wantError(t, err, errdefs.IsInvalidArgument, "--open", name, "is not a registry")
		}
	}
}

// TestForeignHosts leaves hosts.toml files of others unchanged, replaces them by force, and
// restores them.
func TestForeignHosts(t *testing.T) {
	const file, theirs = "etc/containerd/certs.d/ghcr.io/hosts.toml", "server = \"https://mirror.example\"\n"
	r := newRoot(t, "kubeadm")
	r.keys()
	r.write(file, theirs)
	o := Options{Registries: []string{"ghcr.io"}}
	_, err := r.plan(o)
	wantError(t, err, errdefs.IsAlreadyExists, "--force")
	o.Force = true
	r.set(o)
	if got := r.read(file); !strings.Contains(got, "127.0.0.1:5757") {
		t.Errorf("got %s", got)
	}
	if again := r.set(Options{Registries: []string{"ghcr.io"}}); again != nil {
		t.Errorf("a second run: %q", again)
	}
	r.set(Options{})
	if got := r.read(file); got != theirs {
		t.Errorf("without the registry: got %s", got)
	}
}

// TestForeignHostsAreNotLost names what a hosts.toml of others says of a registry, and how ballastd gets that: when it
// refuses to replace the file, and when it is told to. Values, which can be secret, are not printed.
func TestForeignHostsAreNotLost(t *testing.T) {
	const file = "etc/containerd/certs.d/ghcr.io/hosts.toml"
	r := newRoot(t, "kubeadm")
	r.keys()
	r.write(file, "server = \"https://ghcr.io\"\nca = \"ca.pem\"\nskip_verify = true\n[header]\nx-key = \"s3cret\"\n[host.\"http://u:s3cret@cache.internal:5000\"]\ncapabilities = [\"pull\"]\n")
	o := Options{Registries: []string{"ghcr.io"}}
	words := []string{"(ca, capabilities, header, mirror cache.internal:5000, skip_verify)", "cp -a /etc/containerd/certs.d/ghcr.io/. /etc/ballast/hosts.d/ghcr.io/"}
	_, err := r.plan(o)
	wantError(t, err, errdefs.IsAlreadyExists, append(words, "--force")...)
	o.Force = true
	p, err := r.plan(o)
	r.ok(err)
	notes := strings.Join(p.Notes, "\n")
	for _, w := range append(words, " && cp -a "+keptDir+"/"+file) {
		if !strings.Contains(notes, w) {
			t.Errorf("the plan does not say %q: %q", w, p.Notes)
		}
	}
	if strings.Contains(notes, "s3cret") {
		t.Errorf("a secret is printed: %q", notes)
	}
	r.write("etc/ballast/hosts.d/ghcr.io/hosts.toml", r.read(file))
	if p, err = r.plan(o); err != nil || strings.Contains(strings.Join(p.Notes, "\n"), "cp -a") {
		t.Errorf("ballastd knows it: %q, %v", p.Notes, err)
	}
}

// TestClosedRegistryKeepsCertificates closes registries that have certificates in Docker's pattern: the plan says that
// they stay in use, containerd's connection to the registry has them, and a removal takes nothing but the hosts.toml.
func TestClosedRegistryKeepsCertificates(t *testing.T) {
	const dir, port = "etc/containerd/certs.d/ghcr.io/", "etc/containerd/certs.d/reg.example_5000_/"
	r := newRoot(t, "kubeadm")
	r.keys()
	for _, p := range []string{dir + "ca.crt", dir + "client.cert", dir + "client.key", dir + "old\".crt", port + "ca.crt"} {
		r.write(p, "of others\n")
	}
	before := r.files()
	p, err := r.plan(Options{Registries: []string{"ghcr.io", "quay.io", "reg.example:5000"}})
	r.ok(err)
	for _, s := range p.Steps {
		if filepath.Base(s.Target) == "hosts.toml" && strings.Contains(s.Why, "with the certificates in this directory") == strings.Contains(s.Target, "quay.io") {
			t.Errorf("the plan says %s: %s", s.Target, s.Why)
		}
	}
	r.apply(p)
	for file, want := range map[string]string{
		dir + "hosts.toml":  "\nca = [\"ca.crt\"]\nclient = [[\"client.cert\", \"client.key\"]]\n\n[host.",
		port + "hosts.toml": "\nca = [\"ca.crt\"]\n\n[host.", // which containerd reads before reg.example:5000
	} {
		if got := r.read(file); !strings.Contains(got, want) {
			t.Errorf("%s: got %s", file, got)
		}
	}
	if again := r.set(Options{Registries: []string{"ghcr.io", "quay.io", "reg.example:5000"}}); again != nil {
		t.Errorf("a second run: %q", again)
	}
	gone, err := NewRemoval(t.Context(), Options{Host: r.dir, NoRestart: true})
	r.ok(err)
	r.apply(gone)
	delete(before, "var/lib/ballast")
	r.left(before)
}

// TestOpenRegistryKeepsCertificates: the file that opens a registry below a closed default has its certificates.
func TestOpenRegistryKeepsCertificates(t *testing.T) {
	r := newRoot(t, "kubeadm")
	r.keys()
	r.write("etc/containerd/certs.d/reg.example/ca.crt", "of others\n")
	r.set(Options{Registries: []string{"_default"}, Images: []string{"reg.example/x/ballast:1"}})
	if got := r.read("etc/containerd/certs.d/reg.example/hosts.toml"); !strings.HasSuffix(got, "\nca = [\"ca.crt\"]\n") {
		t.Errorf("got %s", got)
	}
}

// TestClosedList cuts set-ups, openings and removals off after each step, and looks at what the list of files of closed
// registries says then: all of it is on the host as it says, and in the end it has each of them.
func TestClosedList(t *testing.T) {
	const theirs = "etc/containerd/certs.d/ghcr.io/hosts.toml"
	setup := func(registries ...string) func(*root) (*Plan, error) {
		return func(r *root) (*Plan, error) { return r.plan(Options{Registries: registries, Force: true}) }
	}
	open := func(registry string) func(*root) (*Plan, error) {
		return func(r *root) (*Plan, error) { return NewOpen(t.Context(), Options{Host: r.dir}, []string{registry}) }
	}
	r := newRoot(t, "kubeadm")
	r.keys()
	r.write(theirs, "server = \"https://ghcr.io\"\n")
	list := func() []string {
		t.Helper()
		c, err := hostAt(r.dir).config(nil)
		r.ok(err)
		var names []string
		for _, f := range c.Facade.Closed {
			if got, err := hostAt(r.dir).digestAt(f.File); err != nil || got != f.Digest {
				t.Errorf("%s is listed with %s, and has %s, %v", f.File, f.Digest, got, err)
			}
			names = append(names, filepath.Base(filepath.Dir(f.File)))
		}
		return names
	}
	for _, tt := range []struct {
		name string
		plan func(*root) (*Plan, error)
		want []string
	}{
		{"one", setup("ghcr.io"), []string{"ghcr.io"}},
		{"another", setup("quay.io"), []string{"quay.io"}}, // and the file of others is back
		{"all", setup("_default", "ghcr.io", "quay.io"), []string{"_default", "ghcr.io", "quay.io"}},
		{"another port", func(r *root) (*Plan, error) {
			r.write(configFile, "version = 1\n[facade]\nlisten = \"127.0.0.1:5758\"\n")
			return setup("_default", "ghcr.io", "quay.io")(r)
		}, []string{"_default", "ghcr.io", "quay.io"}},
		{"open below _default", open("ghcr.io"), []string{"_default", "quay.io"}},
		{"open", open("_default"), []string{"quay.io"}},
		{"open the last", open("quay.io"), nil},
		{"again", setup("quay.io"), []string{"quay.io"}},
		{"remove", func(r *root) (*Plan, error) {
			return NewRemoval(t.Context(), Options{Host: r.dir, NoRestart: true})
		}, nil},
	} {
		t.Log(tt.name)
		p, err := tt.plan(r)
		r.ok(err)
		r.ok(p.begin())
		for _, s := range p.Steps {
			r.ok(p.do(t.Context(), s))
			list()
		}
		r.ok(p.end())
		if got := list(); !slices.Equal(got, tt.want) {
			t.Errorf("%s: listed %q, want %q", tt.name, got, tt.want)
		}
	}
}

// TestNeededImagesCanBePulled checks which images can be pulled without ballastd, and opens their registries.
func TestNeededImagesCanBePulled(t *testing.T) {
	for _, tt := range []struct {
		name   string
		o      Options
		pinned string
		steps  []string // that write hosts.toml
		note   string
	}{
		{"by digest", Options{Registries: []string{"docker.io"}, Images: []string{"docker.io/x/cni@sha256:" + strings.Repeat("a", 64)}}, "", []string{"docker.io"}, ""},
		{"another registry", Options{Registries: []string{"docker.io"}, Images: []string{"quay.io/x/cni:1"}}, "", []string{"docker.io"}, ""},
		{"pinned", Options{Registries: []string{"docker.io"}, Images: []string{"x/cni:1"}}, "docker.io/x/cni:1", []string{"docker.io"}, "it is on the node and pinned"},
		{"forced", Options{Registries: []string{"docker.io"}, Images: []string{"x/cni:1"}, Force: true}, "", []string{"docker.io"}, "cannot be pulled while ballastd is stopped"},
		{"all others", Options{Registries: []string{"_default"}, Images: []string{"quay.io/x/cni:1", "quay.io/x/ballast:1"}}, "", []string{"quay.io", "registry.k8s.io", "_default"}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRoot(t, "kubeadm")
			r.keys()
			tt.o.Host, tt.o.NoRestart = r.dir, true
			o := tt.o
			v, err := look(t.Context(), &o)
			r.ok(err)
			v.running.pinned[tt.pinned] = true
			p, err := planOf(t.Context(), v, &o, r.programs)
			r.ok(err)
			var steps []string
			for _, s := range p.Steps {
				if filepath.Base(s.Target) == "hosts.toml" {
					steps = append(steps, filepath.Base(filepath.Dir(s.Target)))
				}
			}
			if d := cmp.Diff(steps, tt.steps); d != "" {
				t.Errorf("hosts.toml (got, want):\n%s", d)
			}
			if !strings.Contains(strings.Join(p.Notes, "\n"), tt.note) {
				t.Errorf("notes: %q", p.Notes)
			}
			r.apply(p)
			if tt.name != "pinned" {
				if again := r.set(tt.o); again != nil {
					t.Errorf("a second run: %q", again)
				}
			}
		})
	}
}

// TestOpenRegistries opens registries without ballast, and the next set-up closes them again.
func TestOpenRegistries(t *testing.T) {
	r := newRoot(t, "kubeadm")
	r.keys()
	r.set(Options{Registries: []string{"ghcr.io", "docker.io", "_default"}})
	open := func(name string) []string {
		p, err := NewOpen(t.Context(), Options{Host: r.dir}, []string{name})
		r.ok(err)
		return r.apply(p)
	}
	if got := open("ghcr.io"); !slices.Equal(got, []string{"remove " + closedConfig, "write /etc/containerd/certs.d/ghcr.io/hosts.toml", "write " + closedConfig}) {
		t.Errorf("below a closed default: %q", got)
	}
	if got := r.read("etc/containerd/certs.d/ghcr.io/hosts.toml"); !strings.Contains(got, "server = \"https://ghcr.io\"") || strings.Contains(got, "5757") {
		t.Errorf("got %s", got)
	}
	if got := open("_default"); !slices.Contains(got, "remove /etc/containerd/certs.d/_default/hosts.toml") {
		t.Errorf("the default: %q", got)
	}
	if got := open("docker.io"); !slices.Contains(got, "remove /etc/containerd/certs.d/docker.io/hosts.toml") {
		t.Errorf("the last: %q", got)
	}
	if got := open("docker.io"); got != nil {
		t.Errorf("twice: %q", got)
	}
	o, err := Recorded(r.dir)
	r.ok(err)
	if len(o.Registries) != 0 {
		t.Errorf("remembered as closed: %q", o.Registries)
	}
}

// TestUpgrade goes to another version and back, even after an interrupted upgrade.
func TestUpgrade(t *testing.T) {
	for cut := range 3 { // after this number of steps
		r := newRoot(t, "kubeadm")
		r.keys()
		o := Options{Registries: []string{"ghcr.io"}}
		r.set(o)
		first := r.files()
		r.version("2")
		p, err := r.plan(o)
		r.ok(err)
		r.ok(p.begin())
		for _, s := range p.Steps[:cut] {
			r.ok(p.do(t.Context(), s))
		}
		r.set(o)
		r.version("1")
		r.set(o)
		got := r.files()
		for _, all := range []map[string]string{first, got} {
			maps.DeleteFunc(all, func(p, _ string) bool { return strings.HasPrefix(p, "var/lib/ballast-setup") })
		}
		if d := cmp.Diff(first, got); d != "" {
			t.Errorf("cut off after %d steps, then put back (-first +got):\n%s", cut, d)
		}
	}
}

// TestInterruptedSetupContinues interrupts a set-up after each step: another does the rest, a removal leaves nothing.
func TestInterruptedSetupContinues(t *testing.T) {
	o := Options{Registries: []string{"ghcr.io", "_default"}, RuntimeHandler: "ballast"}
	whole := newRoot(t, "eks")
	whole.keys()
	whole.set(o)
	p, err := newRoot(t, "eks").plan(o)
	if err != nil {
		t.Fatal(err)
	}
	for k := range len(p.Steps) + 1 {
		for _, remove := range []bool{false, true} {
			r := newRoot(t, "eks")
			r.keys()
			before := r.files()
			p, err := r.plan(o)
			r.ok(err)
			r.ok(p.begin())
			for _, s := range p.Steps[:min(k, len(p.Steps))] {
				r.ok(p.do(t.Context(), s))
			}
			want := whole.files()
			if remove {
				gone, err := NewRemoval(t.Context(), Options{Host: r.dir, NoRestart: true})
				r.ok(err)
				r.apply(gone)
				delete(before, "var/lib/ballast")
				want = before
			} else {
				r.set(o)
			}
			got := r.files()
			for _, all := range []map[string]string{want, got} { // which contains this directory
				maps.DeleteFunc(all, func(p, _ string) bool { return p == "var/lib/ballast-setup/setup.json" })
			}
			if d := cmp.Diff(want, got); d != "" {
				t.Errorf("after %d steps, remove %v (-want +got):\n%s", k, remove, d)
			}
		}
	}
}

// Only root can read what setup keeps; files for other users are readable.
func TestFileModes(t *testing.T) {
	old := unix.Umask(0o077)
	defer unix.Umask(old)
	r := newRoot(t, "kubeadm")
	r.keys()
	r.set(Options{Registries: []string{"ghcr.io"}})
	for p, want := range map[string]os.FileMode{
		"var/lib/ballast-setup": 0o700, "var/lib/ballast-setup/setup.json": 0o600, "var/lib/ballast-setup/kept": 0o700,
		"usr/local/bin/ballast": 0o755, "etc/systemd/system/ballastd.service": 0o644, "etc/containerd/conf.d": 0o755,
		"etc/containerd/conf.d/ballast.toml": 0o644, "etc/containerd/certs.d/ghcr.io/hosts.toml": 0o644,
	} {
		info, err := os.Stat(filepath.Join(r.dir, p))
		r.ok(err)
		if info.Mode().Perm() != want {
			t.Errorf("%s has mode %o, want %o", p, info.Mode().Perm(), want)
		}
	}
}

// TestSymbolicLinks keeps a link to a configuration, and stays inside of the host when it follows it.
func TestSymbolicLinks(t *testing.T) {
	r := newRoot(t, "kubeadm")
	r.ok(os.MkdirAll(filepath.Join(r.dir, "data"), 0o755))
	r.ok(os.Rename(filepath.Join(r.dir, "etc/containerd"), filepath.Join(r.dir, "data/containerd")))
	r.ok(os.Symlink("/data/containerd", filepath.Join(r.dir, "etc/containerd"))) // of the host, not of this machine
	r.set(Options{})
	if got := r.read("data/containerd/config.toml"); !strings.Contains(got, "imports") {
		t.Errorf("got %s", got)
	}
	if info, err := os.Lstat(filepath.Join(r.dir, "etc/containerd")); err != nil || info.Mode()&os.ModeSymlink == 0 {
		t.Errorf("the link is %v, %v", info.Mode(), err)
	}
}

// TestVersions writes the drop-in for the containerd of the host, and reports what an old version
// does not support.
func TestVersions(t *testing.T) {
	for version, want := range map[string]string{"1.7.35": "version = 2\n", "2.1": "version = 3\n", "": "version = 3\n"} {
		r := newRoot(t, "plain")
		p, err := r.plan(Options{ContainerdVersion: version, RuntimeHandler: "ballast"})
		r.ok(err)
		r.apply(p)
		for _, f := range []string{"etc/containerd/config.toml", "etc/containerd/conf.d/ballast.toml"} {
			if got := r.read(f); !strings.Contains(got, want) {
				t.Errorf("%q: %s says %s", version, f, got)
			}
		}
		if old := strings.HasPrefix(version, "1"); old != strings.Contains(strings.Join(p.Notes, "\n"), "ignores drop-ins for Kubernetes") {
			t.Errorf("%q: notes %q", version, p.Notes)
		}
	}
	r := newRoot(t, "plain")
	r.program("usr/bin/containerd", "#!/bin/sh\necho containerd github.com/containerd/containerd/v2 v2.2.9 abc\n")
	r.set(Options{})
	if got := r.read("etc/containerd/conf.d/ballast.toml"); !strings.Contains(got, "containerd 2.2") {
		t.Errorf("of the program: %s", got)
	}
	_, err := newRoot(t, "plain").plan(Options{ContainerdVersion: "1.6"})
	wantError(t, err, errdefs.IsFailedPrecondition, "too old")
}

// TestRegistriesAreClosedAfterKeysExist closes registries only after a daemon that runs elsewhere has created its keys.
func TestRegistriesAreClosedAfterKeysExist(t *testing.T) {
	r := newRoot(t, "kubeadm")
	o := Options{NoService: true, RuntimeHandler: "ballast", Registries: []string{"ghcr.io"}}
	p, err := r.plan(o)
	r.ok(err)
	if steps := r.apply(p); slices.ContainsFunc(steps, func(s string) bool { return strings.HasSuffix(s, "hosts.toml") }) {
		t.Errorf("closed without keys: %q", steps)
	}
	if !slices.Contains(p.Pending, "hosts.toml") || !strings.Contains(strings.Join(p.Notes, "\n"), "run this command again") {
		t.Errorf("pending %q, notes %q", p.Pending, p.Notes)
	}
	r.keys()
	if steps := r.set(o); !slices.Equal(steps, []string{"write /etc/containerd/certs.d/ghcr.io/hosts.toml", "write " + closedConfig}) {
		t.Errorf("with keys: %q", steps)
	}
}

// TestEditedFileStaysUnchanged leaves a file unchanged that was edited since it was written, and keeps a copy when
// it is replaced by force.
func TestEditedFileStaysUnchanged(t *testing.T) {
	const unit = "etc/systemd/system/ballastd.service"
	r := newRoot(t, "kubeadm")
	r.set(Options{})
	theirs := r.read(unit) + "[Service]\nNice=5\n"
	r.write(unit, theirs)
	_, err := r.plan(Options{})
	wantError(t, err, errdefs.IsAlreadyExists, unit, "--force")
	fix, err := NewFix(t.Context(), Options{Host: r.dir, NoRestart: true})
	r.ok(err)
	if steps := r.apply(fix); steps != nil || !strings.Contains(strings.Join(fix.Notes, "\n"), unit) {
		t.Errorf("fixed %q, notes %q", steps, fix.Notes)
	}
	r.set(Options{Force: true})
	if got := r.read(kept("/"+unit, digest.FromString(theirs))[1:]); got != theirs {
		t.Errorf("kept: %q", got)
	}
	if again := r.set(Options{}); again != nil {
		t.Errorf("a run after that: %q", again)
	}
	r.write(unit, theirs)
	removal, err := NewRemoval(t.Context(), Options{Host: r.dir, NoRestart: true})
	r.ok(err)
	r.apply(removal)
	if got := r.read(unit); got != theirs || !strings.Contains(strings.Join(removal.Notes, "\n"), unit+" was edited") {
		t.Errorf("after the removal: %q, notes %q", got, removal.Notes)
	}
}

// TestWithoutRecord changes nothing on a host that setup did not set up, and names what looks like ballast's.
func TestWithoutRecord(t *testing.T) {
	const hosts = "etc/containerd/certs.d/ghcr.io/hosts.toml"
	r := newRoot(t, "default")
	r.program("usr/local/bin/ballastd", "#!/bin/sh\n")
	r.write("etc/containerd/conf.d/ballast.toml", "# Written by \"ballast config containerd\".\nversion = 3\n")
	r.write(hosts, "server = \"https://ghcr.io\"\n[host.\"https://127.0.0.1:5757\"]\n[host.\"https://mirror.example\"]\n")
	before := r.files()
	for name, plan := range map[string]func() (*Plan, error){
		"fix":  func() (*Plan, error) { return NewFix(t.Context(), Options{Host: r.dir}) },
		"open": func() (*Plan, error) { return NewOpen(t.Context(), Options{Host: r.dir}, []string{"ghcr.io"}) },
	} {
		_, err := plan()
		t.Log(name)
		wantError(t, err, errdefs.IsNotFound, "/"+hosts, "/usr/local/bin/ballastd", "/etc/containerd/conf.d/ballast.toml")
	}
	gone, err := NewRemoval(t.Context(), Options{Host: r.dir, Force: true})
	r.ok(err)
	if steps := r.apply(gone); steps != nil || !strings.Contains(strings.Join(gone.Notes, "\n"), "/"+hosts) {
		t.Errorf("removal: %q, notes %q", steps, gone.Notes)
	}
	if d := cmp.Diff(before, r.files()); d != "" {
		t.Errorf("changed (-before +after):\n%s", d)
	}
}

// TestLock runs one set-up of a host at a time, says that one waits, and leaves nothing. Who is not root can lock /run,
// and not what set-ups lock.
func TestLock(t *testing.T) {
	const dir = "run/ballast-setup"
	r := newRoot(t, "plain")
	anybody, err := os.Open(filepath.Join(r.dir, "run"))
	r.ok(err)
	defer anybody.Close()
	r.ok(unix.Flock(int(anybody.Fd()), unix.LOCK_EX))
	release, err := Lock(t.Context(), r.dir, func() { t.Error("another set-up is waited for") })
	r.ok(err)
	if info, err := os.Stat(filepath.Join(r.dir, dir)); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("%s: mode %v, %v", dir, info.Mode(), err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	_, err = Lock(ctx, r.dir, cancel)
	wantError(t, err, func(err error) bool { return errors.Is(err, context.Canceled) }, "another set-up runs")
	r.ok(release())

	var all sync.WaitGroup
	var running atomic.Int32
	for range 4 {
		all.Go(func() {
			for range 10 {
				release, err := Lock(t.Context(), r.dir, func() {})
				if err != nil {
					t.Error(err)
					return
				}
				if n := running.Add(1); n != 1 {
					t.Errorf("%d set-ups run", n)
				}
				running.Add(-1)
				if err := release(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	if hostAt(r.dir).Exists("/" + dir) {
		t.Errorf("%s is left", dir)
	}
}

// TestRemovalIsRefusedWhileMounted refuses to remove what is mounted, whether containerd runs or not.
func TestRemovalIsRefusedWhileMounted(t *testing.T) {
	r := newRoot(t, "kubeadm")
	r.set(Options{})
	r.write("proc/1/mountinfo", "1 2 0:1 / / rw - ext4 /dev/sda rw\n"+
		"3 1 0:2 / /run/containerd/rootfs rw - overlay overlay rw,lowerdir=/var/lib/ballast/snapshots/1/fs::/var/lib/ballast/objects,upperdir=/u,workdir=/w\n"+
		"4 1 0:3 / /run/other rw - overlay overlay rw,lowerdir=/var/lib/ballastic/1\n")
	_, err := NewRemoval(t.Context(), Options{Host: r.dir, NoRestart: true})
	wantError(t, err, errdefs.IsFailedPrecondition, "/run/containerd/rootfs", "--force")
	if strings.Contains(err.Error(), "/run/other") {
		t.Errorf("it names what others have mounted: %v", err)
	}
	r.keys()
	p, err := NewRemoval(t.Context(), Options{Host: r.dir, NoRestart: true, Force: true})
	r.ok(err)
	r.apply(p)
	if _, err := os.Stat(filepath.Join(r.dir, "var/lib/ballast/tls")); err != nil {
		t.Errorf("what is mounted was removed: %v", err)
	}
}

// TestContainerdAddressIsKept keeps the address of containerd that the operator has set.
func TestContainerdAddressIsKept(t *testing.T) {
	r := newRoot(t, "kubeadm")
	r.write("etc/ballast/config.toml", "version = 1\n[containerd]\naddress = \"/run/own.sock\"\n")
	if steps := r.set(Options{}); slices.ContainsFunc(steps, func(s string) bool { return strings.Contains(s, "00-setup") }) {
		t.Errorf("steps %q", steps)
	}
}

// TestOwnDiffers repeats the main file's entries for other snapshotters, because a list of the
// drop-in replaces them.
func TestOwnDiffers(t *testing.T) {
	r := newRoot(t, "plain")
	const own = `version = 3
[plugins."io.containerd.service.v1.diff-service"]
  default = ["erofs", "walking"]
[[plugins."io.containerd.transfer.v1.local".unpack_config]]
  platform = "linux/amd64"
  snapshotter = "overlayfs"
[[plugins."io.containerd.transfer.v1.local".unpack_config]]
  platform = "linux/amd64"
  snapshotter = "erofs"
  differ = "erofs"
`
	r.write("etc/containerd/config.toml", own)
	r.set(Options{})
	var parsed map[string]any
	r.ok(toml.Unmarshal([]byte(r.read("etc/containerd/conf.d/ballast.toml")), &parsed))
	if d := cmp.Diff(containerdversion.Setting(parsed, "plugins", "io.containerd.service.v1.diff-service", "default"), []any{"ballast-diff", "erofs", "walking"}); d != "" {
		t.Errorf("differs (got, want):\n%s", d)
	}
	entries, _ := containerdversion.Setting(parsed, "plugins", "io.containerd.transfer.v1.local", "unpack_config").([]any)
	for _, e := range entries {
		maps.DeleteFunc(e.(map[string]any), func(k string, _ any) bool { // the rest belongs to the snippet
			return !slices.Contains([]string{"platform", "snapshotter", "differ"}, k)
		})
	}
	if d := cmp.Diff(entries, []any{
		map[string]any{"platform": "linux/amd64", "snapshotter": "overlayfs"},
		map[string]any{"platform": "linux/amd64", "snapshotter": "erofs", "differ": "erofs"},
		map[string]any{"platform": "linux/amd64", "snapshotter": "ballast", "differ": "ballast-diff"},
	}); d != "" {
		t.Errorf("unpack_config (got, want):\n%s", d)
	}
	r.write("etc/containerd/config.toml", own+"  layer_types = [\"application/vnd.example\"]\n")
	_, err := r.plan(Options{})
	wantError(t, err, errdefs.IsFailedPrecondition, "unpack_config", "--force")
}

// TestTalos prints what to add to the machine configuration, and changes nothing.
func TestTalos(t *testing.T) {
	r := newRoot(t, "talos")
	p, err := r.plan(Options{RuntimeHandler: "ballast", Registries: []string{"ghcr.io"}})
	r.ok(err)
	all := p.Manifest
	if p.Changes() || !strings.Contains(all, "kind: CRICustomizationConfig") || !strings.Contains(all, "path: /var/lib/ballast-hosts/ghcr.io/hosts.toml") {
		t.Errorf("steps %v, manifest:\n%s", p.Steps, all)
	}
}
