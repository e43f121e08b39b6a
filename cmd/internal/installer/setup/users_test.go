package setup

import (
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
	"github.com/moby/sys/mountinfo"
)

// TestUsersOf finds in mount tables, as kernels print them, what shows files of the root: the overlays of containers,
// the bind mounts of image volumes of one layer, and those that people make; nothing else.
func TestUsersOf(t *testing.T) {
	const (
		disk  = "21 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw\n"
		apart = "22 21 8:2 / /var/lib/ballast rw,relatime - xfs /dev/sdb rw\n"
		whole = "23 21 8:2 /models /var/lib/ballast rw,relatime - xfs /dev/sdb rw\n" // by a bind mount
	)
	overlay := func(at, options string) string {
		return "40 21 0:40 / " + at + " rw,relatime - overlay overlay rw," + options + "\n"
	}
	bind := func(device, inside, at string) string {
		return "41 21 " + device + " " + inside + " " + at + " ro,relatime - ext4 /dev/sda1 rw\n"
	}
	const volume = "/var/lib/kubelet/pods/1/volumes/image"
	for name, tt := range map[string]struct {
		table string
		want  []string
	}{
		"nothing": {disk, nil},
		"container": {disk + overlay("/run/containerd/rootfs", "lowerdir=/var/lib/ballast/snapshots/2/fs:/var/lib/ballast/snapshots/1/fs,upperdir=/var/lib/ballast/snapshots/3/fs,workdir=/var/lib/ballast/snapshots/3/work"),
			[]string{"/run/containerd/rootfs"}},
		"model":         {disk + overlay(volume, "lowerdir=/var/lib/ballast/snapshots/2/fs::/var/lib/ballast/objects,metacopy=on"), []string{volume}},
		"new mount API": {disk + overlay(volume, "lowerdir+=/var/lib/ballast/snapshots/2/fs,datadir+=/var/lib/ballast/objects,metacopy=on"), []string{volume}},
		"containers of others": {disk + overlay("/a", "lowerdir=/var/lib/containerd/1/fs,upperdir=/var/lib/containerd/2/fs,workdir=/w") +
			overlay("/b", "lowerdir=/var/lib/ballastic/snapshots/1/fs:/mnt/copy/var/lib/ballast/snapshots/1/fs"), nil},
		"image volume of one layer":                      {disk + bind("8:1", "/var/lib/ballast/snapshots/2/fs", volume), []string{volume}},
		"the same, a root that is a disk":                {disk + apart + bind("8:2", "/snapshots/2/fs", volume), []string{volume}},
		"the same, a root that is a directory of a disk": {disk + whole + bind("8:2", "/models/snapshots/2/fs", volume), []string{volume}},
		"the disk of the root, elsewhere too":            {disk + apart + bind("8:2", "/", "/mnt"), nil},
		"another directory of the disk of the root":      {disk + whole + bind("8:2", "/backup", "/mnt") + bind("8:2", "/models2", "/mnt2"), nil},
		"the same path on another disk":                  {disk + bind("8:7", "/var/lib/ballast/snapshots/2/fs", "/mnt"), nil},
		"hidden below another disk":                      {disk + apart + bind("8:1", "/var/lib/ballast/snapshots/2/fs", "/old"), nil},
		"mounts in the root":                             {disk + bind("8:1", "/var/lib/ballast/snapshots/2/fs", "/var/lib/ballast/snapshots/9/fs") + overlay("/var/lib/ballast/mnt", "lowerdir=/var/lib/ballast/snapshots/2/fs:/x"), nil},
		"a root with a space in a mount point of others": {disk + bind("8:1", "/var/lib/ballast/snapshots/2/fs", `/mnt/a\040b`), []string{"/mnt/a b"}},
	} {
		t.Run(name, func(t *testing.T) {
			all, err := mountinfo.GetMountsFromReader(strings.NewReader(tt.table), nil)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(tt.want, usersOf(all, "/var/lib/ballast")); d != "" {
				t.Errorf("(-want +got):\n%s", d)
			}
		})
	}
	all, err := mountinfo.GetMountsFromReader(strings.NewReader(disk+overlay(volume, `lowerdir=/my\040models=1/snapshots/2/fs::/my\040models=1/objects`)), nil)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff([]string{volume}, usersOf(all, "/my models=1")); d != "" {
		t.Errorf("a root with escaped characters (-want +got):\n%s", d)
	}
}

// TestScopeNotes says at the first set-up what flags that are not given mean, and which label a node of a cluster and
// which annotation a pod needs, when pods of a handler become possible; and not again.
func TestScopeNotes(t *testing.T) {
	const (
		all     = "all pods of this node will use ballast"
		open    = "no registry is closed"
		label   = "kubectl label node NODE ballast.dev/node=true"
		handler = "the annotation io.containerd.cri.runtime-handler: models"
	)
	closed := []string{"registry.ollama.ai"}
	for name, steps := range map[string][]struct {
		o    Options
		want []string
	}{
		"all pods":  {{Options{}, []string{all, open}}, {Options{}, nil}, {Options{RuntimeHandler: "models"}, []string{label, handler}}},
		"some pods": {{Options{RuntimeHandler: "models", Registries: closed}, []string{label, handler}}, {Options{RuntimeHandler: "models"}, nil}},
		"no pods":   {{Options{SnapshotterOnly: true}, []string{open}}},
	} {
		r := newRoot(t, "kubeadm")
		for i, step := range steps {
			p, err := r.plan(step.o)
			r.ok(err)
			for _, text := range []string{all, open, label, handler} {
				if got := strings.Contains(strings.Join(p.Notes, "\n"), text); got != slices.Contains(step.want, text) {
					t.Errorf("%s, set-up %d: notes %q", name, i, p.Notes)
				}
			}
			r.set(step.o)
		}
	}
}

// TestRemovalIsRefusedBehindLink has a root that is a symbolic link to another disk, on which an image volume shows a
// bind mount: mount tables have the path behind the link.
func TestRemovalIsRefusedBehindLink(t *testing.T) {
	const volume = "/var/lib/kubelet/pods/1/volumes/image"
	for name, line := range map[string]string{
		"bind mount": "3 1 8:2 /models/snapshots/2/fs " + volume + " ro - xfs /dev/sdb rw\n",
		"overlay":    "3 1 0:9 / " + volume + " ro - overlay overlay ro,lowerdir=/data/models/snapshots/2/fs::/data/models/objects\n",
	} {
		t.Run(name, func(t *testing.T) {
			r := newRoot(t, "kubeadm")
			r.ok(os.MkdirAll(filepath.Join(r.dir, "data/models"), 0o700))
			r.ok(os.MkdirAll(filepath.Join(r.dir, "var/lib"), 0o755))
			r.ok(os.Symlink("/data/models", filepath.Join(r.dir, "var/lib/ballast")))
			r.set(Options{})
			r.write("proc/1/mountinfo", "1 2 8:1 / / rw - ext4 /dev/sda rw\n2 1 8:2 / /data rw - xfs /dev/sdb rw\n"+line)
			_, err := NewRemoval(t.Context(), Options{Host: r.dir, NoRestart: true})
			wantError(t, err, errdefs.IsFailedPrecondition, volume, "--force")
		})
	}
}

// TestRemovalWithoutContainerd refuses to remove snapshots while containerd does not say whose they are: containers of
// Docker that are stopped mount nothing. By force they go, and what stays in containerd is said.
func TestRemovalWithoutContainerd(t *testing.T) {
	const file = "var/lib/ballast/snapshots/7/fs/x"
	r := newRoot(t, "docker")
	r.keys()
	o := Options{Docker: true, SnapshotterOnly: true}
	r.set(o)
	r.write(file, "of a container")
	o.Host, o.NoRestart = r.dir, true
	_, err := NewRemoval(t.Context(), o)
	wantError(t, err, errdefs.IsFailedPrecondition, "containerd does not answer", "it is not known which containers use ballast", "--force")
	r.read(file)
	o.Force = true
	p, err := NewRemoval(t.Context(), o)
	r.ok(err)
	if notes := strings.Join(p.Notes, "\n"); !strings.Contains(notes, "images of models and records of snapshots stay in containerd") {
		t.Errorf("notes: %q", notes)
	}
	r.apply(p)
	if hostAt(r.dir).Exists("/" + file) {
		t.Error("the snapshots are left")
	}
}

// TestDaemonElsewhere removes ballast while a daemon of a pod runs: its files stay, and that it has to be stopped is
// said unless it runs for the removal.
func TestDaemonElsewhere(t *testing.T) {
	r := newRoot(t, "kubeadm")
	r.set(Options{NoService: true, RuntimeHandler: "ballast"})
	r.ok(os.MkdirAll(filepath.Join(r.dir, "run/ballast"), 0o700))
	l, err := net.Listen("unix", filepath.Join(r.dir, "run/ballast/admin.sock"))
	r.ok(err)
	daemon := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("{}")) })}
	go func() { _ = daemon.Serve(l) }()
	t.Cleanup(func() { r.ok(daemon.Close()) })
	for _, with := range []bool{false, true} {
		p, err := NewRemoval(t.Context(), Options{Host: r.dir, NoRestart: true, WithDaemon: with})
		r.ok(err)
		if said := strings.Contains(strings.Join(p.Notes, "\n"), "stop it, and run this command again"); said == with {
			t.Errorf("with a daemon for the removal %v: notes %q", with, p.Notes)
		}
		if slices.ContainsFunc(p.Steps, func(s Step) bool { return s.Action == Purge }) {
			t.Errorf("with a daemon for the removal %v: %v", with, p.Steps)
		}
	}
}
