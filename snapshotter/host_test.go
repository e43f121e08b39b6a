package snapshotter

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/ballast-dev/ballast/store"
	"github.com/ballast-dev/ballast/store/storetest"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"
)

// host prepares the mount of m at a directory and makes it.
func (n *node) host(t *testing.T, dir string, m *model) {
	t.Helper()
	_, made, err := n.prepareHost(t, dir, m)
	if err != nil {
		t.Fatal(err)
	}
	if err := made.Mount(dir); err != nil {
		t.Fatalf("mount %v: %v", made, err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) }) // most are gone
}

func (n *node) prepareHost(t *testing.T, dir string, m *model) (HostMount, mount.Mount, error) {
	t.Helper()
	table := m.Put(t, n.store)
	return n.PrepareHost(t.Context(), HostMount{Dir: dir, Name: "example.com/m:1", Table: table}, func(ctx context.Context, id string) error {
		if err := n.Hold(ctx, id, table); err != nil {
			return err
		}
		if err := n.store.Hydrate(ctx, table, store.HydrateOptions{Sources: storetest.From(m.from)}); err != nil {
			return err
		}
		return n.Show(ctx, id, table)
	})
}

// TestHostMount mounts a model on the host, read-only, and keeps it during a restart and a cleanup
// while it is mounted.
func TestHostMount(t *testing.T) {
	for _, way := range backends {
		t.Run(string(way), func(t *testing.T) {
			n := newNode(t, way)
			m := newModel().file("weights/model.gguf", 0o644, storetest.Random(31, 1<<20))
			dir := t.TempDir()
			n.host(t, dir, m)
			wantHost := func(mounted bool) {
				t.Helper()
				got, err := n.HostMounts(t.Context())
				if err != nil || len(got) != 1 || got[0].Dir != dir || got[0].Name != "example.com/m:1" || got[0].Table == "" || got[0].Mounted != mounted {
					t.Errorf("mounts: %+v, %v; want one, mounted %t", got, err, mounted)
				}
			}
			wantHost(true)
			if diff := m.differences(t, way, dir); diff != "" {
				t.Error(diff)
			}
			if err := unix.Mkdir(filepath.Join(dir, "x"), 0o755); !errors.Is(err, unix.EROFS) {
				t.Errorf("write: %v", err)
			}
			if err := n.RemoveHost(t.Context(), dir); !errdefs.IsFailedPrecondition(err) {
				t.Errorf("remove what is mounted: %v", err)
			}
			n.open(t, way)
			if err := n.Reconcile(t.Context()); err != nil {
				t.Fatal(err)
			}
			if _, err := n.store.GC(t.Context(), store.GCOptions{}); err != nil {
				t.Fatal(err)
			}
			wantHost(true)
			if diff := m.differences(t, way, dir); diff != "" {
				t.Errorf("after a restart: %s", diff)
			}
			if err := unix.Unmount(dir, 0); err != nil {
				t.Fatal(err)
			}
			wantHost(false)
			if err := n.RemoveHost(t.Context(), dir); err != nil {
				t.Fatal(err)
			}
			if left, err := n.dirs(); err != nil || len(left) > 0 {
				t.Errorf("directories that are left: %v, %v", left, err)
			}
			if err := n.RemoveHost(t.Context(), dir); !errdefs.IsNotFound(err) {
				t.Errorf("remove again: %v", err)
			}
			if refs := n.store.Catalog.Refs(""); len(refs) > 0 {
				t.Errorf("references that are left: %v", refs)
			}
		})
	}
}

// TestHostMountOfContainerd hides host mounts from containerd, whose garbage collector removes
// snapshots that it does not know.
func TestHostMountOfContainerd(t *testing.T) {
	n := newNode(t, backends[0])
	n.host(t, t.TempDir(), newModel().file("model.bin", 0o644, storetest.Random(32, 1<<20)))
	if _, err := n.Prepare(t.Context(), "default/1/own", ""); err != nil {
		t.Fatal(err)
	}
	var keys []string
	err := n.Walk(t.Context(), func(_ context.Context, info snapshots.Info) error {
		keys = append(keys, info.Name)
		return nil
	})
	if err != nil || len(keys) != 1 || keys[0] != "default/1/own" {
		t.Errorf("containerd sees %q, %v", keys, err)
	}
	refs, err := n.HostRefs(t.Context())
	if err != nil || len(refs) != 1 {
		t.Errorf("references: %v, %v", refs, err)
	}
}

// TestHostMountAgain has one snapshot for a directory: the same model reuses it, another model replaces
// it only when it is not mounted, and a model that could not be shown leaves nothing.
func TestHostMountAgain(t *testing.T) {
	n := newNode(t, backends[0])
	dir := t.TempDir()
	one := newModel().file("model.bin", 0o644, storetest.Random(33, 1<<20))
	two := newModel().file("model.bin", 0o644, storetest.Random(34, 1<<20))
	n.host(t, dir, one)
	first, err := n.HostMounts(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	again, made, err := n.prepareHost(t, dir, one)
	if err != nil || again.ID != first[0].ID || made.Type != "overlay" {
		t.Errorf("again: %+v, %v, %v", again, made, err)
	}
	if _, _, err := n.prepareHost(t, dir, two); !errdefs.IsAlreadyExists(err) {
		t.Errorf("another model at the same directory: %v", err)
	}
	if err := unix.Unmount(dir, 0); err != nil {
		t.Fatal(err)
	}
	n.host(t, dir, two)
	if diff := two.differences(t, backends[0], dir); diff != "" {
		t.Error(diff)
	}
	gone := newModel().file("model.bin", 0o644, storetest.Random(35, 1<<20))
	delete(gone.from.Blobs, digest.FromBytes(storetest.Random(35, 1<<20)))
	if _, _, err := n.prepareHost(t, t.TempDir(), gone); err == nil {
		t.Error("a model that is not there was prepared")
	}
	if all, err := n.HostMounts(t.Context()); err != nil || len(all) != 1 {
		t.Errorf("mounts: %+v, %v", all, err)
	}
}

// TestHostMountOfOthers checks that ids in the relative paths of another overlay, which containerd
// writes for long lists, do not count as mounted.
func TestHostMountOfOthers(t *testing.T) {
	n := newNode(t, backends[0])
	dir := t.TempDir()
	prepared, _, err := n.prepareHost(t, dir, newModel().file("model.bin", 0o644, storetest.Random(36, 1<<20)))
	if err != nil {
		t.Fatal(err)
	}
	other := t.TempDir()
	for _, d := range []string{prepared.ID + "/fs", "x/fs", "merged"} {
		if err := os.MkdirAll(filepath.Join(other, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Chdir(other)
	if err := unix.Mount("overlay", "merged", "overlay", unix.MS_RDONLY, "lowerdir="+prepared.ID+"/fs:x/fs"); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := unix.Unmount("merged", 0); err != nil {
			t.Error(err)
		}
	}()
	if err := n.RemoveHost(t.Context(), dir); err != nil {
		t.Error(err)
	}
}
