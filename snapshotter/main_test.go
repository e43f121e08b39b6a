package snapshotter

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/ballast-dev/ballast/snapshotter/tree"
	"github.com/ballast-dev/ballast/store"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/ballast-dev/ballast/store/storetest"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/core/snapshots/storage"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/identity"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

// Mounts need root. There is no skip, because a skipped test looks like a passed one.
func TestMain(m *testing.M) {
	if os.Getuid() != 0 {
		fmt.Fprintln(os.Stderr, "the tests of the snapshotter mount; run them as root")
		os.Exit(1)
	}
	if err := inNamespaces(); err != nil {
		fmt.Fprintln(os.Stderr, "new namespaces:", err)
		os.Exit(1)
	}
	goleak.VerifyTestMain(m)
}

var backends = []tree.Backend{tree.Stubs, tree.Links}

// A node is a store and a snapshotter in one directory.
type node struct {
	*Snapshotter
	store *store.Store
	dir   string
}

func newNode(t *testing.T, way tree.Backend) *node {
	t.Helper()
	return newNodeIn(t, t.TempDir(), way, store.Options{Reserve: 1})
}

func newNodeIn(t *testing.T, dir string, way tree.Backend, o store.Options) *node {
	t.Helper()
	st, err := store.Open(filepath.Join(dir, "store"), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := st.Close(); err != nil {
			t.Error(err)
		}
	})
	n := &node{store: st, dir: dir}
	n.open(t, way)
	return n
}

// open opens the snapshotter, as a new daemon does.
func (n *node) open(t *testing.T, way tree.Backend) {
	t.Helper()
	if n.Snapshotter != nil {
		if err := n.Snapshotter.Close(); err != nil {
			t.Fatal(err)
		}
	}
	s, err := New(filepath.Join(n.dir, "snapshots"), n.store, Options{Show: way})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	n.Snapshotter = s
}

// A model is a table being built, and the sources of its files.
type model struct {
	*storetest.Builder
	from *storetest.Fetcher
}

func newModel() *model { return &model{storetest.NewBuilder("origin"), storetest.NewFetcher()} }

// file adds a file that is a blob.
func (m *model) file(path string, mode uint32, content []byte) *model {
	m.Raw(path, content, mode)
	m.from.Blobs[digest.FromBytes(content)] = content
	files := m.Table().Files
	i := slices.IndexFunc(files, func(f filetable.File) bool { return f.Path == path })
	files[i].ModTime = time.Unix(1_700_000_000, 123_456_789).UTC()
	return m
}

// inline adds a small file whose bytes are in the table.
func (m *model) inline(path string, mode uint32, content string) *model {
	m.Inline(path, []byte(content), mode)
	return m
}

func (m *model) add(f filetable.File) *model {
	m.File(f)
	return m
}

// apply does what the differ does for the table layer: the snapshot with key shows m.
func (n *node) apply(t *testing.T, key string, m *model) digest.Digest {
	t.Helper()
	ctx := t.Context()
	mounts, err := n.Mounts(ctx, key)
	if err != nil {
		t.Fatal(err)
	}
	id, err := n.Locate(ctx, mounts)
	if err != nil {
		t.Fatal(err)
	}
	table := m.Put(t, n.store)
	if err := n.Hold(ctx, id, table); err != nil {
		t.Fatal(err)
	}
	if err := n.store.Hydrate(ctx, table, store.HydrateOptions{Sources: storetest.From(m.from)}); err != nil {
		t.Fatal(err)
	}
	if err := n.Show(ctx, id, table); err != nil {
		t.Fatal(err)
	}
	return table
}

// commit makes the committed snapshot name that shows m on parent, and returns its table.
func (n *node) commit(t *testing.T, name, parent string, m *model) digest.Digest {
	t.Helper()
	key := "extract-" + name
	if _, err := n.Prepare(t.Context(), key, parent); err != nil {
		t.Fatal(err)
	}
	table := n.apply(t, key, m)
	if err := n.Commit(t.Context(), name, key); err != nil {
		t.Fatal(err)
	}
	return table
}

// layer makes the committed ordinary snapshot name with the files that f writes.
func (n *node) layer(t *testing.T, name, parent string, f func(dir string)) {
	t.Helper()
	mounts, err := n.Prepare(t.Context(), "extract-"+name, parent)
	if err != nil {
		t.Fatal(err)
	}
	dir, unmount := mountAll(t, mounts)
	f(dir)
	unmount()
	if err := n.Commit(t.Context(), name, "extract-"+name); err != nil {
		t.Fatal(err)
	}
}

// mountAll mounts at a new directory. It is unmounted when the test ends, or before.
func mountAll(t *testing.T, mounts []mount.Mount) (dir string, unmount func()) {
	t.Helper()
	dir = t.TempDir()
	if err := mount.All(mounts, dir); err != nil {
		t.Fatalf("mount %v: %v", mounts, err)
	}
	done := false
	unmount = func() {
		if done {
			return
		}
		done = true
		// A process that is being started has a copy of all descriptors, which keeps a mount busy.
		err := unix.Unmount(dir, 0)
		for end := time.Now().Add(time.Minute); errors.Is(err, unix.EBUSY) && time.Now().Before(end); err = unix.Unmount(dir, 0) {
			time.Sleep(10 * time.Millisecond)
		}
		if err != nil {
			t.Errorf("unmount %s: %v", dir, err)
		}
	}
	t.Cleanup(func() {
		if done {
			return
		}
		done = true
		if err := mount.UnmountAll(dir, unix.MNT_DETACH); err != nil {
			t.Errorf("unmount %s: %v", dir, err)
		}
	})
	return dir, unmount
}

// view mounts a view of a committed snapshot.
func (n *node) view(t *testing.T, parent string) string {
	t.Helper()
	mounts, err := n.View(t.Context(), fmt.Sprintf("view-%d-%s", rand.Int(), parent), parent)
	if err != nil {
		t.Fatal(err)
	}
	if len(mounts) != 1 || !mounts[0].ReadOnly() {
		t.Fatalf("view of %q: got %v, want one read-only mount", parent, mounts)
	}
	dir, _ := mountAll(t, mounts)
	return dir
}

// container mounts the root file system of a container of a committed snapshot.
func (n *node) container(t *testing.T, key, parent string) string {
	t.Helper()
	mounts, err := n.Prepare(t.Context(), key, parent)
	if err != nil {
		t.Fatal(err)
	}
	dir, _ := mountAll(t, mounts)
	return dir
}

// An entry describes a file as a user sees it.
type entry struct {
	Mode   fs.FileMode
	Size   int64
	MTime  time.Time
	UID    uint32
	GID    uint32
	Sum    string
	Target string
}

// list reads everything below dir.
func list(t *testing.T, dir string) map[string]entry {
	t.Helper()
	out := map[string]entry{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		fi, err := os.Lstat(path)
		if err != nil {
			return err
		}
		st := fi.Sys().(*syscall.Stat_t)
		e := entry{Mode: fi.Mode(), MTime: fi.ModTime().UTC(), UID: st.Uid, GID: st.Gid}
		switch {
		case fi.Mode().IsRegular():
			e.Size = fi.Size()
			e.Sum = sum(t, path)
		case fi.Mode()&fs.ModeSymlink != 0:
			if e.Target, err = os.Readlink(path); err != nil {
				return err
			}
		}
		out[rel] = e
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func sum(t *testing.T, path string) string {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		t.Fatal(err)
	}
	return hex.EncodeToString(h.Sum(nil))
}

func read(t *testing.T, path string) string {
	t.Helper()
	p, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(p)
}

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

// blobLabels are the labels of a Prepare of the blob layer of d on the given chain.
func blobLabels(d digest.Digest, below ...digest.Digest) map[string]string {
	diffID := filetable.BlobDiffID(d)
	labels := map[string]string{
		snapshots.LabelSnapshotDiffID: diffID.String(),
		labelBlob:                     d.String(),
	}
	ref := diffID
	if len(below) > 0 {
		ref = chainID(below[0], diffID)
	}
	labels[snapshots.LabelSnapshotRef] = ref.String()
	return labels
}

func chainID(ids ...digest.Digest) digest.Digest { return identity.ChainID(ids) }

func digestOf(s string) digest.Digest { return digest.FromString(s) }

// ids returns the name or key of every snapshot by id.
func (n *node) ids(ctx context.Context) (ids map[string]string, err error) {
	err = n.meta.WithTransaction(ctx, false, func(ctx context.Context) error {
		ids, err = storage.IDMap(ctx)
		return err
	})
	return ids, err
}
