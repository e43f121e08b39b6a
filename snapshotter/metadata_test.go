package snapshotter

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/core/metadata"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/containerd/v2/plugins/content/local"
	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"
	"go.etcd.io/bbolt"
)

// newMetadata returns containerd's metadata over a node.
func newMetadata(t *testing.T, n *node) *metadata.DB {
	t.Helper()
	bolt, err := bbolt.Open(filepath.Join(n.dir, "meta.db"), 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := bolt.Close(); err != nil {
			t.Error(err)
		}
	})
	cs, err := local.NewStore(filepath.Join(n.dir, "content"))
	if err != nil {
		t.Fatal(err)
	}
	db := metadata.NewDB(bolt, cs, map[string]snapshots.Snapshotter{"ballast": n.Snapshotter})
	if err := db.Init(t.Context()); err != nil {
		t.Fatal(err)
	}
	return db
}

// pull claims two blob layers and unpacks m on them, as the snapshot "model".
func (n *node) pull(ctx context.Context, t *testing.T, sn snapshots.Snapshotter, m *model, opt snapshots.Opt) {
	t.Helper()
	first := blobLabels(digest.FromString("one"))
	second := blobLabels(digest.FromString("two"), digest.Digest(first[snapshots.LabelSnapshotRef]))
	parent := ""
	for _, labels := range []map[string]string{first, second} {
		ref := labels[snapshots.LabelSnapshotRef]
		if _, err := sn.Prepare(ctx, "extract "+ref, parent, snapshots.WithLabels(labels)); !errdefs.IsAlreadyExists(err) {
			t.Fatalf("claim: got %v, want already exists", err)
		}
		if info, err := sn.Stat(ctx, ref); err != nil || info.Kind != snapshots.KindCommitted || info.Parent != parent {
			t.Fatalf("stat: got %v, %v, want a committed snapshot on %q", info, err, parent)
		}
		parent = ref
	}
	mounts, err := sn.Prepare(ctx, "extract table", parent, opt)
	if err != nil {
		t.Fatal(err)
	}
	id, err := n.Locate(ctx, mounts)
	if err != nil {
		t.Fatal(err)
	}
	ids, err := n.ids(ctx)
	if err != nil {
		t.Fatal(err)
	}
	n.apply(t, ids[id], m)
	if err := sn.Commit(ctx, "model", "extract table", opt); err != nil {
		t.Fatal(err)
	}
}

// A pull through containerd's own metadata, which adds a namespace and a number to keys, finds claimed
// snapshots with a filter, and collects unreferenced snapshots.
func TestThroughMetadata(t *testing.T) {
	n := newNode(t, Auto)
	db := newMetadata(t, n)
	sn := db.Snapshotter("ballast")
	root := snapshots.WithLabels(map[string]string{"containerd.io/gc.root": "x"})
	m := awkward()
	all := []string{"k8s.io", "default"}
	for _, ns := range all {
		ctx := namespaces.WithNamespace(t.Context(), ns)
		n.pull(ctx, t, sn, m, root)
		mounts, err := sn.View(ctx, "view", "model", root)
		if err != nil {
			t.Fatal(err)
		}
		dir, unmount := mountAll(t, mounts)
		if diff := m.differences(t, n.Backend(), dir); diff != "" {
			t.Errorf("%s: (-got +want):\n%s", ns, diff)
		}
		unmount()
	}
	collect := func() {
		t.Helper()
		if _, err := db.GarbageCollect(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	collect()
	if got := len(n.keys(t)); got != 6 {
		t.Errorf("got %d snapshots, want two blob layers in common, two models and two views: %v", got, n.keys(t))
	}
	for _, ns := range all {
		for _, key := range []string{"view", "model"} {
			if err := sn.Remove(namespaces.WithNamespace(t.Context(), ns), key); err != nil {
				t.Fatal(err)
			}
		}
		collect()
	}
	if diff := cmp.Diff(n.keys(t), map[string]bool{}); diff != "" {
		t.Errorf("snapshots left (-got +want):\n%s", diff)
	}
	if diff := cmp.Diff(n.names(t), map[string]bool{}); diff != "" {
		t.Errorf("references left (-got +want):\n%s", diff)
	}
	left, err := filepath.Glob(filepath.Join(n.root, "snapshots", "*"))
	if err != nil || len(left) != 0 {
		t.Errorf("directories left: %v, %v", left, err)
	}
}

// TestLockedMetadata checks that the error of metadata that somebody has open says who that is.
func TestLockedMetadata(t *testing.T) {
	root := t.TempDir()
	db, err := bbolt.Open(filepath.Join(root, metadataName), 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	_, err = prepareMetadata(root, slog.New(slog.DiscardHandler))
	if want := fmt.Sprintf("%s: process %d has it open", metadataName, os.Getpid()); !errdefs.IsUnavailable(err) || !strings.Contains(err.Error(), want) {
		t.Errorf("got %v, want %q", err, want)
	}
}
