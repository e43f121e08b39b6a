package snapshotter

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/ballast-dev/ballast/store"
	"github.com/ballast-dev/ballast/store/storetest"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

func (n *node) usage(t *testing.T, key string) snapshots.Usage {
	t.Helper()
	u, err := n.Usage(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	return u
}

// Two models share an object. It counts once, and for the other model after the first is removed.
func TestUsage(t *testing.T) {
	for _, way := range backends {
		t.Run(string(way), func(t *testing.T) {
			n := newNode(t, way)
			const shared, alone = 8 << 20, 2 << 20
			const slack = 256 << 10 // directories, stubs, small copies
			one := newModel().file("shared", 0o644, storetest.Random(1, shared))
			two := newModel().file("again", 0o644, storetest.Random(1, shared)).file("alone", 0o644, storetest.Random(2, alone))
			n.commit(t, "one", "", one)
			n.commit(t, "two", "", two)

			within := func(key string, want int64) {
				t.Helper()
				if got := n.usage(t, key).Size; got < want || got > want+slack {
					t.Errorf("%s: got %d bytes, want %d and at most %d more", key, got, want, slack)
				}
			}
			within("one", shared)
			within("two", alone)
			if _, err := n.Prepare(t.Context(), "c", "one"); err != nil {
				t.Fatal(err)
			}
			within("c", 0)
			if err := n.Remove(t.Context(), "c"); err != nil {
				t.Fatal(err)
			}
			if err := n.Remove(t.Context(), "one"); err != nil {
				t.Fatal(err)
			}
			within("two", shared+alone)
			if got := n.usage(t, "two").Inodes; got < 2 || got > 6 {
				t.Errorf("got %d inodes, want two objects and few of the snapshot", got)
			}
		})
	}
}

func TestUsageOthers(t *testing.T) {
	n := newNode(t, Auto)
	n.layer(t, "plain", "", func(dir string) { write(t, filepath.Join(dir, "f"), string(storetest.Random(1, 100_000))) })
	want, err := n.overlay.Usage(t.Context(), "plain")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(n.usage(t, "plain"), want); diff != "" || want.Size < 100_000 {
		t.Errorf("ordinary layer (-got +overlay's):\n%s", diff)
	}
	if got := n.usage(t, n.claimBlobs(t, 1)).Size; got > 64<<10 {
		t.Errorf("blob layer: got %d bytes, want next to none", got)
	}
	if _, err := n.Usage(t.Context(), "nothing"); !errdefs.IsNotFound(err) {
		t.Errorf("unknown: got %v, want not found", err)
	}
}

// names returns the references of the store.
func (n *node) names(t *testing.T) map[string]bool {
	t.Helper()
	refs := n.store.Catalog.Refs("")
	names := map[string]bool{}
	for _, r := range refs {
		names[r.Name] = true
	}
	return names
}

func (n *node) id(t *testing.T, key string) string {
	t.Helper()
	id, _, err := n.info(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// A refused Remove must keep the objects, because a container still reads them.
func TestRemove(t *testing.T) {
	n := newNode(t, Auto)
	m := newModel().file("w", 0o644, storetest.Random(1, 5000))
	n.commit(t, "model", n.claimBlobs(t, 2), m)
	name := refName(n.id(t, "model"))
	dir := n.dirOf(t, "model")
	if _, err := n.Prepare(t.Context(), "c", "model"); err != nil {
		t.Fatal(err)
	}
	if err := n.Remove(t.Context(), "model"); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("with a child: got %v, want failed precondition", err)
	}
	n.gc(t)
	if !n.names(t)[name] {
		t.Error("the reference is gone although the snapshot is not")
	}
	mounts, err := n.Mounts(t.Context(), "c")
	if err != nil {
		t.Fatal(err)
	}
	at, unmount := mountAll(t, mounts)
	if diff := m.differences(t, n.Backend(), at); diff != "" {
		t.Errorf("after a refused remove (-got +want):\n%s", diff)
	}
	unmount()

	for _, key := range []string{"c", "model"} {
		if err := n.Remove(t.Context(), key); err != nil {
			t.Fatal(err)
		}
	}
	if n.names(t)[name] {
		t.Error("the reference is left")
	}
	if err := n.Cleanup(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("directory after Cleanup: got %v, want not exist", err)
	}
	n.gc(t)
	if n.store.Has(m.Table().Files[0].Digest) {
		t.Error("the object is there after gc")
	}
	if err := n.Remove(t.Context(), "model"); !errdefs.IsNotFound(err) {
		t.Errorf("again: got %v, want not found", err)
	}
}

func (n *node) gc(t *testing.T) {
	t.Helper()
	if _, err := n.store.GC(t.Context(), store.GCOptions{}); err != nil {
		t.Fatal(err)
	}
}

// The disk usage is above the limit: when Cleanup returns, the objects of a removed snapshot are gone.
func TestCleanupMakesRoom(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=64m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	const high = 20
	n := newNodeIn(t, dir, Auto, store.Options{Reserve: 1, Evict: store.EvictOptions{Interval: time.Hour, High: high, Low: 1}})
	used := func() int64 {
		u, err := n.store.Usage()
		if err != nil {
			t.Fatal(err)
		}
		return (u.Capacity - u.Free) * 100 / u.Capacity
	}
	for i, tt := range []struct {
		name  string
		size  int
		stays bool
	}{{"room is left", 4 << 20, true}, {"none is left", 20 << 20, false}} {
		n.commit(t, tt.name, "", newModel().file("w", 0o644, storetest.Random(uint64(i), tt.size)))
		if err := n.Remove(t.Context(), tt.name); err != nil {
			t.Fatal(err)
		}
		before := used()
		if err := n.Cleanup(t.Context()); err != nil {
			t.Fatal(err)
		}
		if tt.stays != (before <= high) || tt.stays != (used() == before) {
			t.Errorf("%s: %d %% in use before, %d %% after", tt.name, before, used())
		}
	}
}

func TestReconcile(t *testing.T) {
	n := newNode(t, Auto)
	if err := n.Reconcile(t.Context()); err != nil {
		t.Fatalf("new node: %v", err)
	}
	m := newModel().file("w", 0o644, storetest.Random(1, 5000))
	table := n.commit(t, "kept", "", m)
	n.commit(t, "forgotten", "", m)
	n.layer(t, "plain", "", func(string) {})
	if err := n.store.RemoveRef(refName(n.id(t, "forgotten"))); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{refName("4711"), refName("../x"), "pin/example/m:1"} {
		if err := n.store.AddRef(name, table, time.Time{}); err != nil {
			t.Fatal(err)
		}
	}
	want := map[string]bool{refName(n.id(t, "kept")): true, refName(n.id(t, "forgotten")): true, "pin/example/m:1": true}
	for range 2 {
		n.open(t, Auto)
		if err := n.Reconcile(t.Context()); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(n.names(t), want); diff != "" {
			t.Errorf("(-got +want):\n%s", diff)
		}
	}
}

// The pull was canceled while the model was fetched.
func TestHoldRemoved(t *testing.T) {
	n := newNode(t, Auto)
	if _, err := n.Prepare(t.Context(), "key", ""); err != nil {
		t.Fatal(err)
	}
	id := n.id(t, "key")
	table := newModel().inline("f", 0o644, "f").Put(t, n.store)
	if err := n.Remove(t.Context(), "key"); err != nil {
		t.Fatal(err)
	}
	if err := n.Hold(t.Context(), id, table); !errdefs.IsNotFound(err) {
		t.Errorf("got %v, want not found", err)
	}
	if got := n.names(t); len(got) != 0 {
		t.Errorf("got references %v, want none", got)
	}
}
