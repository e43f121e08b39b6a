package setup

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/contrib/systemd"
	"github.com/google/go-cmp/cmp"
)

// install makes a root one that has the package of a version.
func (r *root) install(version string) {
	r.t.Helper()
	for name, text := range systemd.Units {
		r.write(packageUnits+"/"+name, strings.ReplaceAll(text, "/usr/local/bin/", "/usr/bin/"))
	}
	r.programs = filepath.Join(r.dir, "usr/bin")
	r.version(version)
}

// packaged returns the choices of a set-up by the programs of the package.
func (r *root) packaged(o Options) Options {
	r.t.Helper()
	o.Host = r.dir
	r.ok(o.Place(r.programs, false))
	if !o.Packaged || o.BinDir != "/usr/bin" {
		r.t.Fatalf("with a package: %+v", o)
	}
	return o
}

// TestPackaged sets up a host with the programs of a package: nothing is copied, an upgrade of the package leaves
// nothing to do, and a removal leaves the package.
func TestPackaged(t *testing.T) {
	r := newRoot(t, "default")
	r.keys()
	r.install("1")
	before := r.files()
	o := r.packaged(Options{})
	want := []string{"enable ballastd.service ballastd.socket ballastd-holder.service", "write /etc/containerd/conf.d/ballast.toml"}
	if d := cmp.Diff(r.set(o), want); d != "" {
		t.Errorf("steps (got, want):\n%s", d)
	}
	r.install("2")
	if got := r.set(o); got != nil {
		t.Errorf("after an upgrade of the package: %q", got)
	}
	r.install("1")
	gone, err := NewRemoval(t.Context(), Options{Host: r.dir, NoRestart: true})
	r.ok(err)
	got := strings.Join(r.apply(gone), "|")
	if !strings.Contains(got, "disable ballastd.socket ballastd.service ballastd-holder.service") || !strings.Contains(got, "unmount /usr/bin/ballastd") {
		t.Errorf("the removal: %s", got)
	}
	delete(before, "var/lib/ballast")
	r.left(before)
}

// TestPackagedUnits writes the units that have to differ from those of the package.
func TestPackagedUnits(t *testing.T) {
	r := newRoot(t, "default")
	r.keys()
	r.install("1")
	r.write(configFile, "version = 1\n[facade]\nlisten = \"127.0.0.1:5758\"\n")
	r.set(r.packaged(Options{}))
	if got := r.read(unitDir + "/" + socketName); !strings.Contains(got, "ListenStream=127.0.0.1:5758\n") {
		t.Errorf("the socket unit: %s", got)
	}
	for _, u := range []string{serviceName, holderName} {
		if hostAt(r.dir).Exists(filepath.Join(unitDir, u)) {
			t.Errorf("%s was written, and the package has the same", u)
		}
	}
	r.write(configFile, "version = 1\n")
	r.set(r.packaged(Options{}))
	if hostAt(r.dir).Exists(filepath.Join(unitDir, socketName)) {
		t.Error("the socket unit stays, and that of the package fits now")
	}
}

// TestPackageAndDownload changes from downloaded programs to a package and back: there is one ballast at a time, and
// the files of the package stay as they are.
func TestPackageAndDownload(t *testing.T) {
	r := newRoot(t, "default")
	r.keys()
	downloads := r.programs
	r.set(Options{})
	r.install("2")
	last, err := Recorded(r.dir)
	r.ok(err)
	r.set(r.packaged(last))
	h := hostAt(r.dir)
	for _, p := range []string{DefaultBinDir + "/ballast", DefaultBinDir + "/ballastd", unitDir + "/" + serviceName} {
		if h.Exists(p) {
			t.Errorf("%s is still there", p)
		}
	}
	before := r.files()
	if last, err = Recorded(r.dir); err != nil || !last.Packaged {
		t.Fatalf("recorded: %+v, %v", last, err)
	}
	r.programs, last.Host = downloads, r.dir
	r.ok(last.Place(downloads, false))
	if last.Packaged || last.BinDir != DefaultBinDir {
		t.Fatalf("downloaded programs are placed in %s", last.BinDir)
	}
	r.set(last)
	if got := r.read(unitDir + "/" + serviceName); !strings.Contains(got, "ExecStart="+DefaultBinDir+"/ballastd\n") {
		t.Errorf("the unit of the downloaded programs: %s", got)
	}
	after := r.files()
	for name, text := range before {
		if strings.HasPrefix(name, "usr/bin/") || strings.HasPrefix(name, "usr/lib/") {
			if after[name] != text {
				t.Errorf("%s of the package was changed", name)
			}
		}
	}
}

// TestPackageAndPod has the programs of a pod's image set up a host that was set up by a package: they are installed, or
// the daemon of the package does not run beside that of the pod.
func TestPackageAndPod(t *testing.T) {
	for _, noService := range []bool{false, true} {
		r := newRoot(t, "default")
		r.keys()
		r.install("1")
		o := Options{RuntimeHandler: "ballast"}
		r.set(r.packaged(o))
		r.programs = t.TempDir()
		r.version("2")
		o, err := Recorded(r.dir)
		r.ok(err)
		o.Host, o.NoService = r.dir, noService
		r.ok(o.Place(r.programs, false))
		want := strings.Split(install, "|")
		want = want[:len(want)-1] // they are enabled
		if noService {
			want = []string{"copy /usr/local/bin/ballast", "disable ballastd.socket ballastd.service ballastd-holder.service"}
		}
		if d := cmp.Diff(r.set(o), want); d != "" {
			t.Errorf("without a service %v: steps (got, want):\n%s", noService, d)
		}
		if again := r.set(o); again != nil {
			t.Errorf("without a service %v, a second run: %q", noService, again)
		}
	}
}

// TestUnitOfOthersStays leaves a unit of others alone where the daemon runs elsewhere.
func TestUnitOfOthersStays(t *testing.T) {
	r := newRoot(t, "default")
	r.write(unitDir+"/"+serviceName, "[Service]\nExecStart=/bin/true\n")
	if got := r.set(Options{NoService: true, RuntimeHandler: "ballast"}); slices.ContainsFunc(got, func(s string) bool { return strings.HasPrefix(s, "disable") }) {
		t.Errorf("got %q", got)
	}
}

// TestPlace chooses the directory of the programs.
func TestPlace(t *testing.T) {
	r := newRoot(t, "plain")
	r.install("1")
	for _, tt := range []struct {
		programs string
		o        Options
		chosen   bool
		dir      string
		packaged bool
	}{
		{"/usr/bin", Options{}, false, "/usr/bin", true},
		{"/usr/bin", Options{BinDir: "/opt/bin"}, true, "/opt/bin", false},
		{"/usr/bin", Options{BinDir: "/usr/bin"}, true, "/usr/bin", true},
		{"/usr/bin", Options{BinDir: "/opt/bin"}, false, "/usr/bin", true},
		{"/root/x", Options{}, false, DefaultBinDir, false},
		{"/root/x", Options{BinDir: "/opt/bin"}, false, "/opt/bin", false},
		{"/root/x", Options{BinDir: "/usr/bin", Packaged: true}, false, DefaultBinDir, false},
		{"../usr/bin", Options{}, false, DefaultBinDir, false}, // of the image of a pod
	} {
		o := tt.o
		o.Host = r.dir
		r.ok(o.Place(filepath.Join(r.dir, tt.programs), tt.chosen))
		if o.BinDir != tt.dir || o.Packaged != tt.packaged {
			t.Errorf("%s with %+v: %s, packaged %v", tt.programs, tt.o, o.BinDir, o.Packaged)
		}
	}
}

// TestLinkedProgramsStay has a link of others to the same program, or to another one, where setup copies it: neither an
// upgrade nor a removal changes the file behind it.
func TestLinkedProgramsStay(t *testing.T) {
	const at = "/usr/local/bin/ballast"
	for _, name := range []string{"ballast", "ballastd"} { // the one that is to be copied, and another
		r := newRoot(t, "plain")
		theirs, err := os.ReadFile(filepath.Join(r.programs, name))
		r.ok(err)
		r.program("opt/build/ballast", string(theirs))
		r.ok(os.MkdirAll(filepath.Join(r.dir, filepath.Dir(at)), 0o755))
		r.ok(os.Symlink("/opt/build/ballast", filepath.Join(r.dir, at)))
		r.set(Options{})
		if again := r.set(Options{}); again != nil {
			t.Errorf("%s, a second run: %q", name, again)
		}
		r.version("2")
		r.set(Options{})
		p, err := NewRemoval(t.Context(), Options{Host: r.dir, NoRestart: true})
		r.ok(err)
		r.apply(p)
		if r.read("opt/build/ballast") != string(theirs) || r.read(at) != string(theirs) {
			t.Errorf("%s: got %q, and %q in place of the link", name, r.read("opt/build/ballast"), r.read(at))
		}
	}
}
