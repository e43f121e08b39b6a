package snapshotter

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/ballast-dev/ballast/snapshotter/tree"
	"github.com/ballast-dev/ballast/store"
	"github.com/ballast-dev/ballast/store/storetest"
	"golang.org/x/sys/unix"
)

// TestRepairKeepsView: an attacker's table names a private file of another repository, and is shown early, without
// that file. Whatever is damaged before a restart, the repaired snapshot shows the file only when the attacker's
// source has given it.
func TestRepairKeepsView(t *testing.T) {
	for name, tt := range map[string]struct {
		mtime  time.Time
		way    tree.Backend // after the restart
		damage func(t *testing.T, n *node, id string)
	}{
		"a time that ext4 cannot store": {time.Date(1901, 6, 1, 0, 0, 0, 0, time.UTC), tree.Stubs, func(*testing.T, *node, string) {}},
		"a stub reads as zeros":         {way: tree.Stubs, damage: zeroStub},
		"no marker":                     {way: tree.Stubs, damage: loseMarker},
		"the marker of another table":   {way: tree.Stubs, damage: changeMarker},
		"a kernel without stubs":        {way: tree.Links, damage: func(*testing.T, *node, string) {}},
		"no marker and no stubs":        {way: tree.Links, damage: loseMarker},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, tree.Stubs)
			secret := storetest.Random(61, 3<<20)
			owner := storetest.NewBuilder("owner").Raw("w", secret, 0o644).Put(t, n.store)
			if err := n.store.AddRef("pin/owner", owner, time.Time{}); err != nil {
				t.Fatal(err)
			}
			private := storetest.FromRepository("good.example/model", storetest.Private{Fetcher: storetest.NewFetcher(secret)})
			if err := n.store.Hydrate(t.Context(), owner, store.HydrateOptions{Sources: private}); err != nil {
				t.Fatal(err)
			}

			hung := storetest.NewFetcher(secret)
			hung.Allow = func(int64, int64) bool { return false }
			b := storetest.NewBuilder("thief").RawChunks("w", secret, 0o644, 1<<20)
			b.Table().Files[0].ModTime = tt.mtime
			table := b.Put(t, n.store)
			mounts, err := n.Prepare(t.Context(), "layer", "")
			if err != nil {
				t.Fatal(err)
			}
			id, err := n.Locate(t.Context(), mounts)
			if err != nil {
				t.Fatal(err)
			}
			if err := n.Hold(t.Context(), id, table, "aaa.evil/model"); err != nil {
				t.Fatal(err)
			}
			lazy := t.TempDir()
			if err := os.Mkdir(filepath.Join(lazy, id), 0o755); err != nil {
				t.Fatal(err)
			}
			expose := func(way tree.Backend) {
				t.Helper()
				if way == tree.Stubs {
					if err := n.UseLazy(lazy, nil); err != nil {
						t.Fatal(err)
					}
				}
				o := store.ExposeOptions{View: ViewName(id), Sources: storetest.FromRepository("aaa.evil/model", hung)}
				if err := n.store.Views.Expose(t.Context(), table, o); err != nil {
					t.Fatal(err)
				}
			}
			expose(tree.Stubs)
			if err := n.Show(t.Context(), id, table); err != nil {
				t.Fatal(err)
			}
			if err := n.Commit(t.Context(), "model", "layer"); err != nil {
				t.Fatal(err)
			}
			reads := func() (string, error) {
				t.Helper()
				key := "read-" + strconv.Itoa(len(n.keys(t)))
				mounts, err := n.View(t.Context(), key, "model")
				if err != nil {
					return "", err
				}
				dir, unmount := mountAll(t, mounts)
				defer unmount()
				p, err := os.ReadFile(filepath.Join(dir, "w"))
				return string(p), err
			}
			if _, err := reads(); err == nil {
				t.Fatal("the file is shown, so the test shows nothing")
			}

			tt.damage(t, n, id)
			n.open(t, tt.way)
			if tt.way == tree.Links {
				n.noStubs = unix.EINVAL
			}
			expose(tt.way)
			if err := n.Reconcile(t.Context()); err != nil {
				t.Fatal(err)
			}
			if err := n.Inspect(t.Context()); err != nil {
				t.Error(err)
			}
			if p, err := reads(); err == nil {
				t.Errorf("the attacker reads %d bytes, the file itself: %t", len(p), p == string(secret))
			}

			given := storetest.FromRepository("aaa.evil/model", storetest.NewFetcher(secret))
			if err := n.store.Hydrate(t.Context(), table, store.HydrateOptions{Sources: given}); err != nil {
				t.Fatal(err)
			}
			for end := time.Now().Add(time.Minute); len(n.store.Views.Early(table)) > 0 && time.Now().Before(end); {
				time.Sleep(time.Millisecond) // until the chunks are compared
			}
			if err := n.Inspect(t.Context()); err != nil {
				t.Error(err)
			}
			if p, err := reads(); err != nil || p != string(secret) {
				t.Errorf("when the source has given the file: %d bytes, %v", len(p), err)
			}
		})
	}
}

// zeroStub replaces the stub "w" with a file of zeros.
func zeroStub(t *testing.T, n *node, id string) {
	t.Helper()
	path := filepath.Join(n.upperDir(id), "w")
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	write(t, path, string(make([]byte, info.Size())))
}

func loseMarker(t *testing.T, n *node, id string) {
	t.Helper()
	if err := os.Remove(filepath.Join(n.snapshotDir(id), markerName)); err != nil {
		t.Fatal(err)
	}
}

func changeMarker(t *testing.T, n *node, id string) {
	t.Helper()
	if err := writeMarker(n.snapshotDir(id), marker{Table: digestOf("other"), Show: tree.Stubs, Shown: true}); err != nil {
		t.Fatal(err)
	}
}
