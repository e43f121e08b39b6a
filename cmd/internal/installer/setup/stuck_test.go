package setup

import (
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/cmd/internal/host/ctrd"
	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
)

// apart are the choices of a set-up without a daemon.
var apart = Options{NoService: true, RuntimeHandler: "ballast"}

// breaks makes containerd not start while a file of the host exists.
func (r *root) breaks(p string) {
	r.program("usr/bin/systemctl", "#!/bin/sh\n[ \"$*\" != \"restart containerd\" ] || [ ! -e "+p+" ] || exit 1\n"+systemctl[len("#!/bin/sh\n"):])
}

// running returns the plan of a set-up with a containerd that answers.
func (r *root) running(o Options) *Plan {
	r.t.Helper()
	o.Host = r.dir
	v, err := look(r.t.Context(), &o)
	r.ok(err)
	v.State = &ctrd.State{}
	p, err := planOf(r.t.Context(), v, &o, r.programs)
	r.ok(err)
	return p
}

// TestRestartOfAnEarlierRun has a containerd that does not start with what a set-up without restarts has written: the
// next set-up has nothing to put back, and says how to get containerd back.
func TestRestartOfAnEarlierRun(t *testing.T) {
	const dropIn = "/etc/containerd/conf.d/ballast.toml"
	r := newRoot(t, "kubeadm")
	r.keys()
	r.set(apart)
	r.breaks(dropIn)
	p := r.running(apart)
	wantError(t, p.Apply(t.Context(), func(Step) {}), errdefs.IsFailedPrecondition, "restart containerd", "everything was undone")
	if notes := strings.Join(p.Notes, "\n"); !strings.Contains(notes, "does not start with its old configuration") || !strings.Contains(notes, "setup --remove --force") {
		t.Errorf("notes: %q", notes)
	}
	gone, err := NewRemoval(t.Context(), Options{Host: r.dir, NoRestart: true})
	r.ok(err)
	r.apply(gone)
	if hostAt(r.dir).Exists(dropIn) {
		t.Error("the drop-in is left")
	}
}

// TestRemovalInsteadOfUndoing has a containerd that does not start for another reason, so that the undoing of a set-up
// cannot be completed: a removal by force removes ballast nevertheless.
func TestRemovalInsteadOfUndoing(t *testing.T) {
	r := newRoot(t, "kubeadm")
	r.keys()
	r.breaks("/etc")
	before := r.files()
	wantError(t, r.running(apart).Apply(t.Context(), func(Step) {}), func(err error) bool { return err != nil }, "could not be undone completely", "setup --remove --force")
	o := Options{Host: r.dir, NoRestart: true}
	for _, o.Force = range []bool{false, true} {
		p, err := NewRemoval(t.Context(), o)
		r.ok(err)
		if undoes := p.Steps[0].Action == Undo; undoes == o.Force {
			t.Errorf("force %v: %s", o.Force, list(p.Steps))
		}
		if o.Force {
			r.apply(p)
		}
	}
	delete(before, "var/lib/ballast")
	r.left(before)
}

// TestOpenedInARun opens a registry after an upgrade was killed before containerd's restart: the set-up that goes on and
// fails is undone as a whole, with the versions that it has kept.
func TestOpenedInARun(t *testing.T) {
	r := newRoot(t, "kubeadm")
	r.keys()
	r.breaks("/etc")
	r.set(apart)
	before := r.files()
	r.version("2")
	o := apart
	o.Host, o.RuntimeHandler = r.dir, "models"
	p, err := New(t.Context(), o, r.programs)
	r.ok(err)
	r.ok(p.begin())
	for _, s := range p.Steps {
		if s.Action == Restart { // killed
			break
		}
		r.ok(p.do(t.Context(), s))
	}
	open, err := NewOpen(t.Context(), Options{Host: r.dir}, []string{"docker.io"})
	r.ok(err)
	r.apply(open)
	p, err = New(t.Context(), o, r.programs)
	r.ok(err)
	wantError(t, p.Apply(t.Context(), func(Step) {}), errdefs.IsFailedPrecondition, "restart containerd", "everything was undone")
	if d := cmp.Diff(before, r.files()); d != "" {
		t.Errorf("undone (-before +after):\n%s", d)
	}
}

// TestUndoneWithoutRestarts has a set-up without restarts that fails: its undoing restarts nothing either, and says
// what to restart.
func TestUndoneWithoutRestarts(t *testing.T) {
	r := newRoot(t, "docker")
	r.keys()
	r.set(Options{SnapshotterOnly: true})
	r.docker(map[string]any{"ServerVersion": "29.7.2", "Driver": "overlayfs"})
	r.version("2")
	r.write("run/calls", "")
	p := r.running(Options{Docker: true, SnapshotterOnly: true, NoRestart: true})
	p.view.running.daemon = true
	p.Steps = append(p.Steps, Step{Action: Chmod, Target: "/of/nobody"})
	wantError(t, p.Apply(t.Context(), func(Step) {}), errdefs.IsFailedPrecondition, "everything was undone")
	if calls := r.read("run/calls"); strings.Contains(calls, "restart") || strings.Contains(calls, "start ") {
		t.Errorf("calls of systemctl:\n%s", calls)
	}
	rec, err := hostAt(r.dir).readRecord()
	r.ok(err)
	if d := cmp.Diff([]string{pendingDaemon, pendingContainerd, pendingDocker}, sorted(rec.Pending)); d != "" {
		t.Errorf("pending (-want +got):\n%s", d)
	}
	for _, unit := range []string{"containerd", dockerService, serviceName} {
		if notes := strings.Join(p.Notes, "\n"); !strings.Contains(notes, "since setup began: systemctl restart "+unit) {
			t.Errorf("notes do not say %s: %q", unit, notes)
		}
	}
}
