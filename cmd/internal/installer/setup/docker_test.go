package setup

import (
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
)

// TestDockerSettings gives Docker ballast beside settings of others, and takes it away: byte by byte where nobody has
// edited its file since, and otherwise with what was added.
func TestDockerSettings(t *testing.T) {
	const theirs = "{\"log-driver\": \"local\",\n  \"storage-driver\": \"overlayfs\", \"features\": {\"cdi\": true}, \"max-download-attempts\": 12345678901234567890}\n"
	const ours = `{
  "features": {
    "cdi": true,
    "containerd-snapshotter": true
  },
  "log-driver": "local",
  "max-download-attempts": 12345678901234567890,
  "storage-driver": "ballast"
}
`
	o := Options{Docker: true, SnapshotterOnly: true, Registries: []string{"registry.ollama.ai"}}
	for _, tt := range []struct{ name, before, edited, after string }{
		{"no file", "", "", ""},
		{"an empty file", "\n", "", "\n"},
		{"settings of others", theirs, "", theirs},
		{"edited since", theirs, strings.Replace(ours, `"local"`, `"none"`, 1), strings.NewReplacer(`"local"`, `"none"`, `"ballast"`, `"overlayfs"`, ",\n    \"containerd-snapshotter\": true", "").Replace(ours)},
		{"made by setup, edited since", "", `{"features": {"containerd-snapshotter": true}, "storage-driver": "ballast", "debug": true}`, "{\n  \"debug\": true\n}\n"},
		{"another driver since", theirs, `{"storage-driver": "native", "features": {"containerd-snapshotter": true}}`, "{\n  \"features\": {},\n  \"storage-driver\": \"native\"\n}\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRoot(t, "docker")
			r.keys()
			r.ok(os.MkdirAll(filepath.Join(r.dir, "etc/docker"), 0o755))
			if tt.before != "" {
				r.write(dockerConfig, tt.before)
			}
			p, err := r.plan(o)
			r.ok(err)
			steps := r.apply(p)
			for _, want := range []string{"write /etc/docker/certs.d/registry.ollama.ai/hosts.toml", "write /etc/containerd/certs.d/registry.ollama.ai/hosts.toml", "write " + dockerConfig} {
				if !slices.Contains(steps, want) {
					t.Errorf("%q is not in %q", want, steps)
				}
			}
			if steps[len(steps)-1] != "write "+dockerConfig || !slices.Contains(p.Pending, pendingDocker) {
				t.Errorf("Docker is not the last: %q, pending %q", steps, p.Pending)
			}
			if tt.before == theirs {
				if d := cmp.Diff(r.read(dockerConfig), ours); d != "" {
					t.Errorf("settings (-got +want):\n%s", d)
				}
			}
			if tt.edited != "" {
				r.write(dockerConfig, tt.edited)
			} else if again := r.set(o); again != nil {
				t.Errorf("a second run: %q", again)
			}
			if got := r.read("etc/docker/certs.d/registry.ollama.ai/hosts.toml"); got != r.read("etc/containerd/certs.d/registry.ollama.ai/hosts.toml") {
				t.Errorf("hosts.toml of Docker:\n%s", got)
			}
			gone, err := NewRemoval(t.Context(), Options{Host: r.dir})
			r.ok(err)
			if slices.ContainsFunc(gone.Steps, func(s Step) bool { return s.Target == dockerService }) {
				t.Errorf("a Docker that does not run, or is not installed any more, is restarted: %v", gone.Steps)
			}
			gone, err = NewRemoval(t.Context(), Options{Host: r.dir, NoRestart: true})
			r.ok(err)
			if s := gone.Steps[0]; s.Target != dockerConfig {
				t.Errorf("Docker is not the first: %v", s)
			}
			r.apply(gone)
			switch got, err := os.ReadFile(filepath.Join(r.dir, dockerConfig)); {
			case tt.after == "":
				if !os.IsNotExist(err) {
					t.Errorf("left: %s, %v", got, err)
				}
			case err != nil || string(got) != tt.after:
				t.Errorf("got %s, want %s, %v", got, tt.after, err)
			}
			if _, err := os.Stat(filepath.Join(r.dir, "etc/docker/certs.d")); !os.IsNotExist(err) {
				t.Errorf("hosts.toml files of Docker are left: %v", err)
			}
		})
	}
}

// TestDirectoriesOfDockerAndCRI sets up a node whose CRI reads the hosts.toml files of Docker too: neither those of setup
// nor certificates that others add later are in the way of another run, also if containerd has lost the drop-in.
func TestDirectoriesOfDockerAndCRI(t *testing.T) {
	for _, name := range []string{"docker", "default"} {
		r := newRoot(t, name)
		r.keys()
		o := Options{Docker: true, RuntimeHandler: "ballast", ContainerdVersion: "2.4", Registries: []string{"docker.io"}}
		r.set(o)
		for _, dir := range []string{"etc/containerd", "etc/docker"} {
			r.read(dir + "/certs.d/docker.io/hosts.toml")
		}
		const dropIn = "etc/containerd/conf.d/" + dropInName
		before := r.read(dropIn)
		r.ok(os.Remove(filepath.Join(r.dir, dropIn)))
		if again := r.set(o); !slices.Equal(again, []string{"write /" + dropIn}) || r.read(dropIn) != before {
			t.Errorf("%s, without the drop-in: %q", name, again)
		}
		r.write("etc/docker/certs.d/corp.example/ca.crt", "of others\n")
		if again := r.set(o); again != nil {
			t.Errorf("%s, with a certificate of others: %q", name, again)
		}
	}
}

// TestDockerOpened opens and closes a registry of Docker, and gives Docker its former storage driver without a removal.
func TestDockerOpened(t *testing.T) {
	const hosts = "etc/docker/certs.d/ghcr.io/hosts.toml"
	r := newRoot(t, "docker")
	r.keys()
	o := Options{Docker: true, SnapshotterOnly: true, Registries: []string{"ghcr.io"}}
	r.set(o)
	p, err := NewOpen(t.Context(), Options{Host: r.dir}, o.Registries)
	r.ok(err)
	r.apply(p)
	if _, err := os.Stat(filepath.Join(r.dir, hosts)); !os.IsNotExist(err) {
		t.Errorf("ghcr.io is not open: %v", err)
	}
	r.set(o)
	r.read(hosts)
	o.Docker = false
	p, err = r.plan(o)
	r.ok(err)
	r.apply(p)
	for _, f := range []string{hosts, dockerConfig} {
		if _, err := os.Stat(filepath.Join(r.dir, f)); !os.IsNotExist(err) {
			t.Errorf("%s is left: %v", f, err)
		}
	}
	if !slices.Contains(p.Pending, pendingDocker) {
		t.Errorf("Docker is not restarted: %q", p.Pending)
	}

	// A Docker that has ballast is not restarted for its settings, and keeps ballast while it has containers.
	r.docker(map[string]any{"ServerVersion": "29.7.2", "Driver": "ballast", "Containers": 1})
	o.Docker = true
	if p, err = r.plan(o); err != nil || slices.Contains(p.Pending, pendingDocker) {
		t.Errorf("a Docker that has ballast: %v, pending %q", err, p.Pending)
	}
	r.apply(p)
	o.Docker = false
	_, err = r.plan(o)
	wantError(t, err, errdefs.IsFailedPrecondition, "1 containers of Docker use ballast")
}

// TestTextOfUndoneRemovals has a Docker that does not restart, which is the first restart of a removal: that images of
// models must be pulled again is said only where they have been removed before.
func TestTextOfUndoneRemovals(t *testing.T) {
	const again = "images of models must be pulled again"
	r := newRoot(t, "docker")
	r.keys()
	r.set(Options{Docker: true, SnapshotterOnly: true})
	r.docker(map[string]any{"ServerVersion": "29.7.2", "Driver": "ballast"})
	before := r.read(dockerConfig)
	r.program("usr/bin/systemctl", "#!/bin/sh\n[ \"$*\" != \"restart docker\" ] || [ -e /run/once ] || { echo >/run/once; exit 1; }\n"+systemctl[len("#!/bin/sh\n"):])
	p, err := NewRemoval(t.Context(), Options{Host: r.dir})
	r.ok(err)
	err = p.Apply(t.Context(), func(Step) {})
	wantError(t, err, errdefs.IsFailedPrecondition, "restart docker", "were restored")
	if strings.Contains(err.Error(), again) || r.read(dockerConfig) != before {
		t.Errorf("no image was removed: %v; %s has %q", err, dockerConfig, r.read(dockerConfig))
	}
	r.ok(p.begin())
	err = p.failed(t.Context(), []Step{{Action: Images, Target: "images"}}, errdefs.ErrUnavailable)
	wantError(t, err, errdefs.IsFailedPrecondition, "were restored", again)
}

// TestLostOriginals removes ballast where the kept originals of files of others are lost: Docker's former storage
// driver is then not known, and that is said; containerd's import is taken out without them.
func TestLostOriginals(t *testing.T) {
	const config = "etc/containerd/config.toml"
	r := newRoot(t, "docker")
	r.keys()
	r.write(dockerConfig, `{"storage-driver": "overlayfs"}`)
	r.write(config, "version = 2\n")
	r.set(Options{Docker: true, SnapshotterOnly: true})
	r.ok(os.RemoveAll(filepath.Join(r.dir, keptDir)))
	before := r.files()
	gone := Options{Host: r.dir, NoRestart: true, Force: true}
	_, err := NewRemoval(t.Context(), gone)
	wantError(t, err, errdefs.IsFailedPrecondition, "the original of "+dockerConfig+", is lost", "take storage-driver and features.containerd-snapshotter out of "+dockerConfig)
	if d := cmp.Diff(before, r.files()); d != "" {
		t.Errorf("changed (-before +after):\n%s", d)
	}
	r.write(dockerConfig, `{"storage-driver": "overlayfs"}`) // by hand
	p, err := NewRemoval(t.Context(), gone)
	r.ok(err)
	r.apply(p)
	if got := r.read(config); !strings.HasPrefix(got, "version = 2\n") || strings.Contains(got, "conf.d") {
		t.Errorf("%s is %q", config, got)
	}
	if got := r.read(dockerConfig); got != `{"storage-driver": "overlayfs"}` {
		t.Errorf("%s is %q", dockerConfig, got)
	}
}

// TestDockerConflicts refuses a Docker that cannot have ballast, and one with settings of others that would be
// replaced.
func TestDockerConflicts(t *testing.T) {
	running := func(change func(map[string]any)) map[string]any {
		is := map[string]any{
			"ServerVersion": "29.7.2", "Driver": "overlayfs", "DriverStatus": [][]string{{"driver-type", "io.containerd.snapshotter.v1"}},
			"Containerd": map[string]string{"Address": "/run/containerd/containerd.sock"},
		}
		change(is)
		return is
	}
	for _, tt := range []struct {
		name, settings string
		is             map[string]any
		restart, force bool // whether --force helps
		words          string
	}{
		{"no JSON", "{", nil, false, false, "no JSON object"},
		{"no object", "null", nil, false, false, "no JSON object (it is null)"},
		{"another type", "[]", nil, false, false, "cannot unmarshal array"},
		{"garbage after it", `{"debug": true} garbage`, nil, false, false, "no JSON object (more follows it)"},
		{"two objects", "{}\n{}", nil, false, false, "no JSON object (more follows it)"},
		{"a byte order mark", "\ufeff{}", nil, false, false, "no JSON object (it begins with a byte order mark: take it out)"},
		{"a graph driver", `{"storage-driver": "overlay2"}`, nil, false, true, `storage-driver = "overlay2"`},
		{"images of Docker's own", `{"features": {"containerd-snapshotter": false}}`, nil, false, true, "containerd-snapshotter = false"},
		{"user namespaces", `{"userns-remap": "default"}`, nil, false, false, "userns-remap"},
		{"another containerd", `{"containerd": "/run/other.sock"}`, nil, false, false, "/run/other.sock"},
		{"it does not run", "", nil, true, false, "start Docker first"},
		{"an older one", "", running(func(is map[string]any) { is["ServerVersion"] = "28.5.2" }), false, false, "28.5.2 is too old"},
		{"a containerd of its own", "", running(func(is map[string]any) { is["Containerd"] = map[string]string{"Address": "/run/docker/c.sock"} }), false, false, "/run/docker/c.sock"},
		{"containers", "", running(func(is map[string]any) { is["ContainersRunning"] = 2 }), true, true, "2 containers run in Docker"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRoot(t, "docker")
			r.keys()
			r.write(dockerConfig, tt.settings)
			if tt.is != nil {
				r.docker(tt.is)
			}
			o := Options{Host: r.dir, Docker: true, SnapshotterOnly: true, NoRestart: !tt.restart}
			before := r.files()
			_, err := New(t.Context(), o, r.programs)
			wantError(t, err, errdefs.IsFailedPrecondition, tt.words)
			if d := cmp.Diff(before, r.files()); d != "" {
				t.Errorf("changed (-before +after):\n%s", d)
			}
			o.Force = true
			if p, err := New(t.Context(), o, r.programs); (err == nil) != tt.force {
				t.Errorf("by force: %v", err)
			} else if tt.force && !strings.Contains(strings.Join(p.Notes, "\n"), tt.words) {
				t.Errorf("the plan does not say %q: %q", tt.words, p.Notes)
			}
		})
	}
	// What is hidden is said.
	r := newRoot(t, "docker")
	r.keys()
	r.docker(running(func(is map[string]any) {
		is["Driver"], is["DriverStatus"], is["Containers"] = "overlay2", [][]string{{"Backing Filesystem", "extfs"}}, 3
	}))
	p, err := r.plan(Options{Docker: true, SnapshotterOnly: true})
	r.ok(err)
	for _, want := range []string{"its 3 containers of the storage driver overlay2", "its images of the storage driver overlay2"} {
		if !strings.Contains(strings.Join(p.Notes, "\n"), want) {
			t.Errorf("the plan does not say %q: %q", want, p.Notes)
		}
	}
}

// TestHungDaemons has a ballastd that does not answer: Docker is asked nevertheless, so a removal restarts it, and its
// containers are known.
func TestHungDaemons(t *testing.T) {
	t.Parallel() // it waits for ballastd
	r := newRoot(t, "docker")
	r.keys()
	o := Options{Docker: true, SnapshotterOnly: true}
	r.set(o)
	r.docker(map[string]any{"ServerVersion": "29.7.2", "Driver": "ballast", "Containers": 3})
	r.ok(os.MkdirAll(filepath.Join(r.dir, "run/ballast"), 0o700))
	l, err := net.Listen("unix", filepath.Join(r.dir, "run/ballast/admin.sock"))
	r.ok(err)
	defer l.Close()
	gone, err := NewRemoval(t.Context(), Options{Host: r.dir})
	r.ok(err)
	if !slices.ContainsFunc(gone.Steps, func(s Step) bool { return s.Action == Restart && s.Target == dockerService }) {
		t.Errorf("Docker is not restarted: %s", list(gone.Steps))
	}
	o.Docker = false
	_, err = planOf(t.Context(), gone.view, &o, r.programs)
	wantError(t, err, errdefs.IsFailedPrecondition, "3 containers of Docker use ballast")
}

// TestHungDocker takes ballast out of a Docker that is there and does not answer only by force: its containers are not
// known, and it would not be restarted.
func TestHungDocker(t *testing.T) {
	r := newRoot(t, "docker")
	r.keys()
	o := Options{Docker: true, SnapshotterOnly: true}
	r.set(o)
	l, err := net.Listen("unix", filepath.Join(r.dir, "run/docker.sock"))
	r.ok(err)
	s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) })}
	go func() { _ = s.Serve(l) }()
	defer s.Close()
	for _, force := range []bool{false, true} {
		o := Options{Host: r.dir, SnapshotterOnly: true, Force: force}
		_, set := New(t.Context(), o, r.programs)
		gone, err := NewRemoval(t.Context(), o)
		if force {
			r.ok(errors.Join(set, err))
			if notes := strings.Join(gone.Notes, "\n"); !strings.Contains(notes, "systemctl restart docker") {
				t.Errorf("notes: %q", notes)
			}
			continue
		}
		for _, err := range []error{set, err} {
			wantError(t, err, errdefs.IsFailedPrecondition, "503", "it is not known which of its containers use ballast", "--force")
		}
	}
}

// docker answers as Docker Engine does, for the rest of the test.
func (r *root) docker(is map[string]any) {
	r.t.Helper()
	l, err := net.Listen("unix", filepath.Join(r.dir, "run/docker.sock"))
	r.ok(err)
	s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.URL.Path == "/info" {
			_ = json.NewEncoder(w).Encode(is)
		}
	})}
	go func() { _ = s.Serve(l) }()
	r.t.Cleanup(func() { r.ok(s.Close()) })
}
