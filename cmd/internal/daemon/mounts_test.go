package daemon

import (
	"testing"
	"time"

	"github.com/ballast-dev/ballast/cmd/internal/admin"
	"github.com/ballast-dev/ballast/cmd/internal/config"
	"github.com/ballast-dev/ballast/snapshotter/differ"
	"github.com/ballast-dev/ballast/snapshotter/tree"
	"github.com/ballast-dev/ballast/store"
	"github.com/ballast-dev/ballast/store/storetest"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"
)

// newMountsRig returns a daemon that can prepare mounts, and a complete model.
func newMountsRig(t *testing.T) (*Daemon, store.Image) {
	t.Helper()
	d, table := newSourcesRig(t, tree.Links)
	d.resolved(t, table, "good.example/team/m:1")
	if err := d.store.Hydrate(t.Context(), table, store.HydrateOptions{}); err != nil {
		t.Fatal(err)
	}
	d.config = &config.Config{Address: t.TempDir() + "/ballastd.sock"}
	d.differ = differ.New(differ.Options{Snapshotter: d.snapshotter, Store: d.store})
	d.mounts = newHostMounts(d)
	images, err := d.store.ImagesByTable(t.Context(), table)
	if err != nil || len(images) != 1 {
		t.Fatalf("%v, %v", images, err)
	}
	return d, images[0]
}

// TestMountsSettle lets go of models whose mounts are gone, but neither of those that are there nor of those that
// are about to be made.
func TestMountsSettle(t *testing.T) {
	d, im := newMountsRig(t)
	dirs := map[string]string{"mounted": t.TempDir(), "gone": t.TempDir(), "new": t.TempDir(), "busy": t.TempDir()}
	for what, dir := range dirs {
		m, err := d.mounts.prepare(t.Context(), im, admin.MountRequest{Name: "good.example/team/m:1", Dir: dir})
		if err != nil {
			t.Fatal(err)
		}
		if what != "new" {
			d.mounts.hand(dir, time.Now().Add(-2*mountGrace))
		}
		if what != "mounted" {
			continue
		}
		made := mount.Mount{Type: m.Type, Source: m.Source, Options: m.Options}
		if err := made.Mount(dir); err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := unix.Unmount(dir, 0); err != nil {
				t.Error(err)
			}
		}()
	}
	if err := d.mounts.begin(t.Context(), dirs["busy"]); err != nil {
		t.Fatal(err)
	}
	if err := d.mounts.settle(t.Context()); err != nil {
		t.Fatal(err)
	}
	all, err := d.mounts.list(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	left := map[string]bool{}
	for _, m := range all {
		left[m.Dir] = m.Mounted
	}
	if len(left) != 3 || !left[dirs["mounted"]] || left[dirs["new"]] || left[dirs["busy"]] {
		t.Errorf("left: %v of %v", left, dirs)
	}
	if err := d.mounts.release(t.Context(), dirs["mounted"]); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("release what is mounted: %v", err)
	}
	if err := d.mounts.release(t.Context(), dirs["gone"]); !errdefs.IsNotFound(err) {
		t.Errorf("release what is gone: %v", err)
	}
}

// TestMountsIncomplete refuses a model that can not be read before it is complete, and leaves nothing of it.
func TestMountsIncomplete(t *testing.T) {
	d, _ := newMountsRig(t)
	p := storetest.Random(40, 1<<20)
	table := storetest.NewBuilder("other").Raw("model.bin", p, 0o644).Put(t, d.store)
	im := store.Image{Manifest: digest.FromString("other"), Table: table, Refs: []string{"good.example/team/other:1"}}
	_, err := d.mounts.prepare(t.Context(), im, admin.MountRequest{Name: im.Refs[0]})
	if !errdefs.IsFailedPrecondition(err) {
		t.Errorf("got %v, want failed precondition", err)
	}
	if all, err := d.mounts.list(t.Context()); err != nil || len(all) != 0 {
		t.Errorf("mounts: %v, %v", all, err)
	}
}

// TestMountsSources fetches the rest of what is mounted on the host with the credentials of the node.
func TestMountsSources(t *testing.T) {
	d, im := newMountsRig(t)
	im.PrivateNames = []string{"good.example/team/m"}
	if err := d.store.PutImage(t.Context(), im); err != nil {
		t.Fatal(err)
	}
	m, err := d.mounts.prepare(t.Context(), im, admin.MountRequest{Name: "good.example/team/m:1", Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	got, err := d.shownFrom(t.Context(), "snapshot/"+m.Snapshot, im.Table)
	if err != nil {
		t.Fatal(err)
	}
	const name = "good.example/team/m"
	sameKeys(t, "mounted on the host", got, name+" ", name+" node")
}
