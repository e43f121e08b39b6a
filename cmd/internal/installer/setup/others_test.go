package setup

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/store"
	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
)

// TestAdditionsStay has others who add to the file that setup has edited, before set-up runs once more: removal
// takes the part of setup alone, also from a file that setup has made.
func TestAdditionsStay(t *testing.T) {
	const config, theirs = "etc/containerd/config.toml", "# of others\n"
	for _, name := range []string{"kubeadm", "plain"} {
		r := newRoot(t, name)
		before, err := hostAt(r.dir).Text("/" + config)
		r.ok(err)
		r.set(Options{})
		r.write(config, r.read(config)+theirs)
		r.ok(os.Chmod(filepath.Join(r.dir, config), 0o600))
		r.version("2")
		r.set(Options{Force: true})
		p, err := NewRemoval(t.Context(), Options{Host: r.dir, NoRestart: true})
		r.ok(err)
		r.apply(p)
		if got := r.read(config); !strings.HasSuffix(got, theirs) || !strings.Contains(got, strings.TrimSpace(before)) && !strings.Contains(got, "imports = []") {
			t.Errorf("%s: got %q, before %q", name, got, before)
		}
		if info, err := os.Stat(filepath.Join(r.dir, config)); err != nil || info.Mode() != 0o600 {
			t.Errorf("%s: the mode of others is %v, %v", name, info.Mode(), err)
		}
	}
}

// TestTwoEditsAreKept replaces a file by force that others have edited, twice: both edits are kept.
func TestTwoEditsAreKept(t *testing.T) {
	const unit = "etc/systemd/system/ballastd.service"
	r := newRoot(t, "kubeadm")
	r.set(Options{})
	for _, text := range []string{"# one\n", "# two\n"} {
		r.write(unit, text)
		r.set(Options{Force: true})
	}
	var kept []string
	for name, text := range r.files() {
		if strings.Contains(name, keptDir[1:]+"/"+unit) {
			kept = append(kept, text[len("-rw-r--r-- "):])
		}
	}
	if slices.Sort(kept); !slices.Equal(kept, []string{"# one\n", "# two\n"}) {
		t.Errorf("kept: %q", kept)
	}
}

// TestOpenTwice opens a registry that is open already: its file is still removed with ballast.
func TestOpenTwice(t *testing.T) {
	r := newRoot(t, "kubeadm")
	r.keys()
	before := r.files()
	r.set(Options{Registries: []string{"ghcr.io", "_default"}})
	for _, name := range []string{"ghcr.io", "_default", "ghcr.io"} {
		p, err := NewOpen(t.Context(), Options{Host: r.dir}, []string{name})
		r.ok(err)
		r.apply(p)
	}
	p, err := NewRemoval(t.Context(), Options{Host: r.dir, NoRestart: true})
	r.ok(err)
	r.apply(p)
	delete(before, "var/lib/ballast")
	r.left(before)
}

// TestUnreadDropIns has drop-ins of others that nothing imports before setup does: entries of lists are kept by the
// drop-in of setup from the first run on, and a second run changes nothing; other settings are a conflict.
func TestUnreadDropIns(t *testing.T) {
	r := newRoot(t, "kubeadm")
	r.write("etc/containerd/conf.d/50-soci.toml", `version = 3
[proxy_plugins.soci]
  type = "snapshot"
  address = "/run/soci.sock"
[[plugins.'io.containerd.transfer.v1.local'.unpack_config]]
  platform = "linux/amd64"
  snapshotter = "soci"
`)
	_, err := r.plan(Options{RuntimeHandler: "ballast"})
	wantError(t, err, errdefs.IsFailedPrecondition, "/etc/containerd/conf.d/50-soci.toml", "proxy_plugins.soci")
	r.set(Options{RuntimeHandler: "ballast", Force: true})
	if got := r.read("etc/containerd/conf.d/ballast.toml"); !strings.Contains(got, "\"soci\"") {
		t.Errorf("the entry of others is lost in\n%s", got)
	}
	if again := r.set(Options{RuntimeHandler: "ballast"}); again != nil {
		t.Errorf("a second run: %q", again)
	}
	r = newRoot(t, "kubeadm")
	r.write("etc/containerd/conf.d/50-nydus.toml", "version = 3\n[plugins.'io.containerd.cri.v1.images']\n  snapshotter = \"nydus\"\n")
	before := r.files()
	_, err = r.plan(Options{})
	wantError(t, err, errdefs.IsFailedPrecondition, "/etc/containerd/conf.d/50-nydus.toml", "nydus", "--force")
	if d := cmp.Diff(before, r.files()); d != "" {
		t.Errorf("changed (-before +after):\n%s", d)
	}
}

// TestRemovedUnits removes ballast where others have removed a unit of it: systemctl does not know it any more.
func TestRemovedUnits(t *testing.T) {
	r := newRoot(t, "kubeadm")
	r.keys()
	before := r.files()
	r.set(Options{})
	r.ok(os.Remove(filepath.Join(r.dir, "etc/systemd/system/ballastd.socket")))
	r.program("usr/bin/systemctl", "#!/bin/sh\n[ \"$1\" != disable ] || [ -e /etc/systemd/system/$3 ] || exit 1\n"+systemctl[len("#!/bin/sh\n"):])
	before["usr/bin/systemctl"] = r.files()["usr/bin/systemctl"]
	p, err := NewRemoval(t.Context(), Options{Host: r.dir, NoRestart: true})
	r.ok(err)
	r.apply(p)
	delete(before, "var/lib/ballast")
	after := r.files()
	delete(after, "etc/systemd/system/sockets.target.wants") // systemctl removes it
	if d := cmp.Diff(before, after); d != "" {
		t.Errorf("left (-before +after):\n%s", d)
	}
}

// TestNewerStore refuses to install a version that cannot open the store, before anything changes, and installs
// one that can.
func TestNewerStore(t *testing.T) {
	r := newRoot(t, "kubeadm")
	r.set(Options{})
	older := r.read("usr/local/bin/ballastd")
	r.version("2")
	r.set(Options{})
	s, err := store.Open(filepath.Join(r.dir, "var/lib/ballast"), store.Options{Reserve: 1})
	r.ok(err)
	r.ok(s.Close())
	reads, err := strconv.Atoi(store.SchemaVersion)
	r.ok(err)
	r.write("var/lib/ballast/store.db.schema", fmt.Sprintln(reads+1)) // as the next version does
	before := r.files()
	r.version("1")
	_, err = r.plan(Options{})
	wantError(t, err, errdefs.IsFailedPrecondition, fmt.Sprintf("schema %d", reads+1), "ballast setup --remove")
	if d := cmp.Diff(before, r.files()); d != "" {
		t.Errorf("changed (-before +after):\n%s", d)
	}
	r.write("var/lib/ballast/store.db.schema", store.SchemaVersion+"\n")
	r.set(Options{})
	if got := r.read("usr/local/bin/ballastd"); got != older {
		t.Errorf("got %q, want %q", got, older)
	}
}

// TestCrashBeforeTheFirstChange kills a set-up while it keeps what it is about to change: others edit that, and a
// removal leaves what they have made, and no record.
func TestCrashBeforeTheFirstChange(t *testing.T) {
	const hosts = "etc/containerd/certs.d/ghcr.io/hosts.toml"
	for at := 6; at < 60; at += 9 {
		r := newRoot(t, "kubeadm")
		r.keys()
		r.write(hosts, "# one\n")
		o := operation{Kind: "setup", Host: r.dir, Programs: r.programs, NoRestart: true, Force: true, Options: Options{Registries: []string{"ghcr.io"}}}
		r.kill(o, at)
		if rec, err := hostAt(r.dir).readRecord(); err != nil || rec != nil {
			break
		}
		r.write(hosts, "# two\n")
		for _, set := range []bool{false, true} {
			if set {
				r.kill(o, 0)
			}
			if set && Fresh(r.dir) {
				t.Errorf("killed before call %d: set up, and not known to be", at)
			}
			p, err := NewRemoval(t.Context(), Options{Host: r.dir, NoRestart: true})
			r.ok(err)
			r.apply(p)
			if got := r.read(hosts); got != "# two\n" {
				t.Errorf("killed before call %d, set up %v: got %q", at, set, got)
			}
			all, err := hostAt(r.dir).versions()
			r.ok(err)
			delete(all, "/"+hosts) // of others
			if len(all) > 0 || hostAt(r.dir).Exists(stateFile) {
				t.Errorf("killed before call %d, set up %v: records are left", at, set)
			}
			if !Fresh(r.dir) {
				t.Errorf("killed before call %d, set up %v: not fresh after the removal", at, set)
			}
		}
	}
}

// TestPlansNameForeignFiles has a file of others in the root: a set-up and a removal say, before they change
// anything, that it stays.
func TestPlansNameForeignFiles(t *testing.T) {
	const notes = "/var/lib/ballast/notes.txt"
	r := newRoot(t, "kubeadm")
	r.keys()
	r.write(notes, "of others\n")
	p, err := r.plan(Options{})
	r.ok(err)
	if !slices.ContainsFunc(p.Notes, func(n string) bool { return strings.Contains(n, notes) }) {
		t.Errorf("set-up: %q", p.Notes)
	}
	r.apply(p)
	p, err = NewRemoval(t.Context(), Options{Host: r.dir, NoRestart: true})
	r.ok(err)
	if !slices.ContainsFunc(p.Steps, func(s Step) bool { return s.Action == Purge && strings.Contains(s.Why, notes) }) {
		t.Errorf("removal: %v", p.Steps)
	}
}

// TestNeighboursKeepOwners replaces files beside drafts of others, and files with an owner of theirs.
func TestNeighboursKeepOwners(t *testing.T) {
	const config, hosts = "etc/containerd/config.toml", "etc/containerd/certs.d/ghcr.io/hosts.toml"
	r := newRoot(t, "kubeadm")
	r.keys()
	r.write(hosts, "# of others\n")
	for _, p := range []string{config, hosts} {
		r.write(p+".new", "# a draft\n")
		r.ok(os.Chown(filepath.Join(r.dir, p), 33, 12))
		r.ok(os.Chmod(filepath.Join(r.dir, p), 0o640))
	}
	before := (&world{root: r}).state()
	r.set(Options{Force: true, Registries: []string{"ghcr.io"}})
	r.set(Options{Force: true, SnapshotterOnly: true})
	set := (&world{root: r}).state()
	if was, is := before[config], set[config]; is.mode != was.mode || is.uid != was.uid || is.gid != was.gid {
		t.Errorf("%s: %v of %d:%d, was %v of %d:%d", config, is.mode, is.uid, is.gid, was.mode, was.uid, was.gid)
	}
	p, err := NewRemoval(t.Context(), Options{Host: r.dir, NoRestart: true})
	r.ok(err)
	r.apply(p)
	maps.DeleteFunc(before, func(p string, _ entry) bool { return ofDaemon(p) })
	if d := difference(before, (&world{root: r}).state()); d != "" {
		t.Errorf("left:\n%s", d)
	}
}

// TestImportStays removes ballast where others have put drop-ins into the directory that setup made containerd import:
// they stay in effect.
func TestImportStays(t *testing.T) {
	r := newRoot(t, "kubeadm")
	r.set(Options{})
	with := r.read("etc/containerd/config.toml")
	r.write("etc/containerd/conf.d/60-other.toml", "version = 3\n")
	p, err := NewRemoval(t.Context(), Options{Host: r.dir, NoRestart: true})
	r.ok(err)
	r.apply(p)
	if got := r.read("etc/containerd/config.toml"); got != with || !strings.Contains(strings.Join(p.Notes, "\n"), "60-other.toml") {
		t.Errorf("got %q, notes %q", got, p.Notes)
	}
}

// TestUndoneRemoval has a containerd that does not restart after the removal: its configuration and the hosts.toml
// files become what they were, also those in whose place originals of others had been put.
func TestUndoneRemoval(t *testing.T) {
	r := newRoot(t, "kubeadm")
	r.keys()
	r.write("etc/containerd/certs.d/ghcr.io/hosts.toml", "# of others\n")
	r.set(Options{Force: true, Registries: []string{"ghcr.io", "quay.io"}})
	r.write("etc/containerd/config.toml", r.read("etc/containerd/config.toml")+"# of others\n")
	before := r.files()
	p, err := NewRemoval(t.Context(), Options{Host: r.dir})
	r.ok(err)
	r.program("usr/bin/systemctl", "#!/bin/sh\n[ \"$1\" != restart ] || exit 1\n")
	wantError(t, p.Apply(t.Context(), func(Step) {}), errdefs.IsFailedPrecondition, "were restored")
	after := r.files()
	for _, all := range []map[string]string{before, after} {
		maps.DeleteFunc(all, func(p, _ string) bool { return strings.HasPrefix(p, "etc/systemd/") || p == "usr/bin/systemctl" })
	}
	if d := cmp.Diff(before, after); d != "" {
		t.Errorf("undone (-before +after):\n%s", d)
	}
}

// TestEditedWhileSetupRuns has others who edit a file between the plan and the step that changes it: the run ends
// without that step, their edit stays, and so does all that a second run and a removal leave of it.
func TestEditedWhileSetupRuns(t *testing.T) {
	const config, nvidia = "/etc/containerd/config.toml", `{"runtimes": {"nvidia": {"path": "nvidia-container-runtime"}}}`
	o := Options{Docker: true, SnapshotterOnly: true}
	for _, tt := range []struct{ name, path, before, edit, ours string }{
		{"Docker's settings", dockerConfig, `{"debug": true}`, nvidia, `{"storage-driver": "ballast", "features": {"containerd-snapshotter": true}, ` + nvidia[1:]},
		{"new settings of Docker", dockerConfig, "", nvidia, `{"storage-driver": "ballast", "features": {"containerd-snapshotter": true}, ` + nvidia[1:]},
		{"containerd's file", config, "version = 2\n", "version = 2\n# of others\n", "version = 2\nimports = [\"/etc/containerd/conf.d/*.toml\"]\n# of others\n# since\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRoot(t, "docker")
			r.keys()
			if tt.before != "" {
				r.write(tt.path, tt.before)
			}
			r.ok(os.MkdirAll(filepath.Join(r.dir, filepath.Dir(tt.path)), 0o755))
			before := r.files()
			p, err := r.plan(o)
			r.ok(err)
			err = p.Apply(t.Context(), func(s Step) {
				if s.Action == Enable { // in the midst of the run
					r.write(tt.path, tt.edit)
				}
			})
			wantError(t, err, errdefs.IsFailedPrecondition, "write "+tt.path, "was edited while setup ran; run it again", "everything was undone")
			if notes := strings.Join(p.Notes, "\n"); !strings.Contains(notes, tt.path+" was edited while setup ran, and stays") {
				t.Errorf("notes: %q", notes)
			}
			after := r.files()
			for _, all := range []map[string]string{before, after} {
				maps.DeleteFunc(all, func(p, _ string) bool {
					return "/"+p == tt.path || strings.HasPrefix("/"+p, stateDir) || strings.HasPrefix(p, "var/lib/ballast")
				})
			}
			if d := cmp.Diff(before, after); d != "" || r.read(tt.path) != tt.edit {
				t.Errorf("undone: %s is %q, and of others (-before +after):\n%s", tt.path, r.read(tt.path), d)
			}

			r.set(o)
			p, err = NewRemoval(t.Context(), Options{Host: r.dir, NoRestart: true})
			r.ok(err)
			r.write(tt.path, tt.ours)
			wantError(t, p.Apply(t.Context(), func(Step) {}), errdefs.IsFailedPrecondition, tt.path, "was edited while setup ran; run it again")
			if got := r.read(tt.path); got != tt.ours {
				t.Errorf("the removal has replaced the edit by %q", got)
			}
			p, err = NewRemoval(t.Context(), Options{Host: r.dir, NoRestart: true})
			r.ok(err)
			r.apply(p)
			if got := r.read(tt.path); strings.Contains(got, "ballast") || !strings.Contains(got, "nvidia-container-runtime") && !strings.Contains(got, "# of others") {
				t.Errorf("after the removal: %q", got)
			}
		})
	}
}

// TestEditedAfterACrash has others who edit a file after a set-up was killed: the undoing of the next one, which fails,
// brings their edit back, not what was there before the killed one.
func TestEditedAfterACrash(t *testing.T) {
	const config, edit = "/etc/containerd/config.toml", "version = 2\n# since\n"
	o := Options{Docker: true, SnapshotterOnly: true}
	r := newRoot(t, "docker")
	r.keys()
	r.write(dockerConfig, `{"debug": true}`)
	r.write(config, "version = 2\n")
	p, err := r.plan(o)
	r.ok(err)
	r.ok(p.begin()) // killed
	r.write(config, edit)
	p, err = r.plan(o)
	r.ok(err)
	err = p.Apply(t.Context(), func(s Step) {
		if s.Target == config {
			r.write(dockerConfig, "{}")
		}
	})
	wantError(t, err, errdefs.IsFailedPrecondition, "write "+dockerConfig, "was edited while setup ran; run it again", "everything was undone")
	if got := r.read(config); got != edit {
		t.Errorf("got %q", got)
	}
}

// TestLinksStay has links of others whose files, or directories, setup makes: a removal, and the undoing of a set-up,
// take these and leave the links.
func TestLinksStay(t *testing.T) {
	links := map[string]string{dockerConfig: "/opt/daemon.json", "/etc/containerd/certs.d": "/opt/certs.d"}
	o := Options{Docker: true, SnapshotterOnly: true, Registries: []string{"ghcr.io"}}
	for _, fails := range []bool{false, true} {
		r := newRoot(t, "docker")
		r.keys()
		r.ok(os.MkdirAll(filepath.Join(r.dir, "opt/certs.d"), 0o755))
		r.ok(os.MkdirAll(filepath.Join(r.dir, "etc/docker"), 0o755))
		for link, to := range links {
			r.ok(os.Symlink(to, filepath.Join(r.dir, link)))
		}
		before := r.files()
		p, err := r.plan(o)
		r.ok(err)
		if fails {
			p.Steps = append(p.Steps, Step{Action: Chmod, Target: "/of/nobody"})
			wantError(t, p.Apply(t.Context(), func(Step) {}), errdefs.IsFailedPrecondition, "everything was undone")
		} else {
			r.apply(p)
			if got := r.read("opt/daemon.json"); !strings.Contains(got, "ballast") {
				t.Errorf("the file of the link is %q", got)
			}
			p, err = NewRemoval(t.Context(), Options{Host: r.dir, NoRestart: true})
			r.ok(err)
			r.apply(p)
		}
		after := r.files()
		for _, all := range []map[string]string{before, after} {
			delete(all, "var/lib/ballast")
			for _, wants := range []string{"multi-user", "sockets"} { // systemctl makes them
				delete(all, "etc/systemd/system/"+wants+".target.wants")
			}
		}
		if d := cmp.Diff(before, after); d != "" {
			t.Errorf("fails %v (-before +after):\n%s", fails, d)
		}
	}
}

// TestOpenedRegistryIsRemoved opens a registry below a closed default, which makes a directory: removal takes it.
func TestOpenedRegistryIsRemoved(t *testing.T) {
	r := newRoot(t, "kubeadm")
	r.keys()
	before := r.files()
	r.set(Options{Registries: []string{"_default"}})
	p, err := NewOpen(t.Context(), Options{Host: r.dir}, []string{"quay.io"})
	r.ok(err)
	r.apply(p)
	gone, err := NewRemoval(t.Context(), Options{Host: r.dir, NoRestart: true})
	r.ok(err)
	r.apply(gone)
	delete(before, "var/lib/ballast")
	r.left(before)
}

// TestVolumesOfTheChart removes ballast from a node on which a kubelet made the directory of the chart's volume
// before the first set-up. One that has files of others stays.
func TestVolumesOfTheChart(t *testing.T) {
	for name, foreign := range map[string]string{"empty": "", "not empty": "etc/ballast/of-others"} {
		t.Run(name, func(t *testing.T) {
			r := newRoot(t, "kubeadm")
			before := r.files()
			r.ok(os.Mkdir(filepath.Join(r.dir, "etc/ballast"), 0o755))
			if foreign != "" {
				r.write(foreign, "text\n")
				before = r.files()
			}
			r.set(Options{})
			p, err := NewRemoval(t.Context(), Options{Host: r.dir, NoRestart: true})
			r.ok(err)
			r.apply(p)
			r.left(before)
		})
	}
}

// TestUnitsStartAtBoot undoes a set-up that removes the units, and makes one that removes them again: they start at
// boot where they are, and only there.
func TestUnitsStartAtBoot(t *testing.T) {
	const link = "/etc/systemd/system/multi-user.target.wants/ballastd.service"
	r := newRoot(t, "kubeadm")
	elsewhere := Options{NoService: true, RuntimeHandler: "ballast"}
	r.set(elsewhere)
	r.version("2")
	r.set(Options{RuntimeHandler: "ballast"})
	p, err := r.plan(elsewhere)
	r.ok(err)
	p.Steps = append(p.Steps, Step{Action: Chmod, Target: "/of/nobody"})
	wantError(t, p.Apply(t.Context(), func(Step) {}), errdefs.IsFailedPrecondition, "everything was undone")
	if !hostAt(r.dir).Exists(link) {
		t.Error("the unit does not start at boot any more")
	}
	r.set(elsewhere)
	if hostAt(r.dir).Exists(link) {
		t.Error("a unit that is not there starts at boot")
	}
}

// TestTemporaryFilesOfACrash removes ballast with temporary files that a crash has left: the directories go too.
func TestTemporaryFilesOfACrash(t *testing.T) {
	r := newRoot(t, "kubeadm")
	before := r.files()
	r.set(Options{Settings: map[string]string{"10-tests.toml": "version = 1\n"}})
	r.ok(os.Rename(filepath.Join(r.dir, "etc/ballast/conf.d/10-tests.toml"), filepath.Join(r.dir, "etc/ballast/conf.d/10-tests.toml.ballast-new")))
	p, err := NewRemoval(t.Context(), Options{Host: r.dir, NoRestart: true})
	r.ok(err)
	r.apply(p)
	r.left(before)
}

// TestInterruptedEmptying kills a removal while it empties the root: the next one takes the rest.
func TestInterruptedEmptying(t *testing.T) {
	for at := 1; at < 12; at += 2 {
		r := newRoot(t, "kubeadm")
		r.set(Options{})
		r.keys()
		p, err := NewRemoval(t.Context(), Options{Host: r.dir, NoRestart: true})
		r.ok(err)
		i := slices.IndexFunc(p.Steps, func(s Step) bool { return s.Action == Purge })
		r.ok(p.begin())
		for _, s := range p.Steps[:i] {
			r.ok(p.do(t.Context(), s))
		}
		r.kill(operation{Kind: "remove", Host: r.dir, NoRestart: true}, 40+at)
		p, err = NewRemoval(t.Context(), Options{Host: r.dir, NoRestart: true})
		r.ok(err)
		r.apply(p)
		if hostAt(r.dir).Exists("/var/lib/ballast") {
			t.Errorf("killed before call %d: the root is left", 40+at)
		}
	}
}
