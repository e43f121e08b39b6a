package snapshotter

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/snapshotter/tree"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"
)

// walk returns the names that containerd finds when it looks for a claimed snapshot.
func (n *node) walk(t *testing.T, ref, parent string) []string {
	t.Helper()
	var names []string
	err := n.Walk(t.Context(), func(_ context.Context, info snapshots.Info) error {
		if info.Kind != snapshots.KindCommitted {
			t.Errorf("snapshot %q: got kind %v, want committed", info.Name, info.Kind)
		}
		names = append(names, info.Name)
		return nil
	}, fmt.Sprintf("labels.%q==%s,parent==%q", snapshots.LabelSnapshotRef, ref, parent))
	if err != nil && !errdefs.IsNotFound(err) {
		t.Fatal(err)
	}
	return names
}

// keys returns the keys and names of all snapshots.
func (n *node) keys(t *testing.T) map[string]bool {
	t.Helper()
	ids, err := n.ids(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	keys := map[string]bool{}
	for _, k := range ids {
		keys[k] = true
	}
	return keys
}

func TestClaim(t *testing.T) {
	n := newNode(t, Auto)
	blob := digest.FromString("blob")
	labels := blobLabels(blob)
	labels["containerd.io/snapshot/cri.image-ref"] = "registry.example/m:1"
	ref := labels[snapshots.LabelSnapshotRef]

	for i := range 2 { // the second is another namespace, or a pull after containerd lost its database
		_, err := n.Prepare(t.Context(), fmt.Sprintf("ns/%d/extract", i), "", snapshots.WithLabels(labels))
		if !errdefs.IsAlreadyExists(err) {
			t.Fatalf("prepare %d: got %v, want already exists", i, err)
		}
		if diff := cmp.Diff(n.walk(t, ref, ""), []string{ref}); diff != "" {
			t.Errorf("walk %d (-got +want):\n%s", i, diff)
		}
	}
	if diff := cmp.Diff(n.keys(t), map[string]bool{ref: true}); diff != "" {
		t.Errorf("snapshots (-got +want):\n%s", diff)
	}
	info, err := n.Stat(t.Context(), ref)
	if err != nil {
		t.Fatal(err)
	}
	labels[labelShows] = showsNothing
	if diff := cmp.Diff(info.Labels, labels); diff != "" {
		t.Errorf("labels (-got +want):\n%s", diff)
	}

	// The next layer, on the first one.
	next := blobLabels(digest.FromString("next"), digest.Digest(ref))
	_, err = n.Prepare(t.Context(), "ns/3/extract", ref, snapshots.WithLabels(next))
	if !errdefs.IsAlreadyExists(err) {
		t.Fatalf("second layer: got %v, want already exists", err)
	}
	nextRef := next[snapshots.LabelSnapshotRef]
	if diff := cmp.Diff(n.walk(t, nextRef, ref), []string{nextRef}); diff != "" {
		t.Errorf("walk for the second layer (-got +want):\n%s", diff)
	}
	if got := n.walk(t, nextRef, ""); len(got) != 0 {
		t.Errorf("walk with another parent: got %v, want nothing", got)
	}
}

// A claim that was interrupted before its answer finds the snapshot, with or without the marker that
// earlier versions wrote, and leaves nothing else.
func TestClaimCommitted(t *testing.T) {
	n := newNode(t, Auto)
	labels := blobLabels(digest.FromString("blob"))
	ref := labels[snapshots.LabelSnapshotRef]
	for _, key := range []string{"first", "without marker", "with marker"} {
		if _, err := n.Prepare(t.Context(), key, "", snapshots.WithLabels(labels)); !errdefs.IsAlreadyExists(err) {
			t.Errorf("%s: got %v, want already exists", key, err)
		}
		if got := n.keys(t); len(got) != 1 || !got[ref] {
			t.Errorf("%s: got snapshots %v", key, got)
		}
		if key == "without marker" {
			id, _, err := n.info(t.Context(), ref)
			if err != nil {
				t.Fatal(err)
			}
			if err := writeMarker(n.snapshotDir(id), marker{Empty: true}); err != nil {
				t.Fatal(err)
			}
		}
	}
	if problems, err := n.Verify(t.Context(), ""); err != nil || len(problems) > 0 {
		t.Errorf("verify: %v, %v", problems, err)
	}
}

// Two pulls claim the same layers concurrently, as for two namespaces.
func TestClaimRace(t *testing.T) {
	n := newNode(t, Auto)
	const layers, pulls = 8, 4
	errs := make(chan error, pulls)
	for p := range pulls {
		go func() { errs <- n.claimChain(t, fmt.Sprintf("ns%d", p), layers) }()
	}
	for range pulls {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	if got := len(n.keys(t)); got != layers {
		t.Errorf("got %d snapshots, want %d and no leftovers: %v", got, layers, n.keys(t))
	}
}

// claimChain claims a chain of blob layers.
func (n *node) claimChain(t *testing.T, ns string, layers int) error {
	var below []digest.Digest
	parent := ""
	for i := range layers {
		labels := blobLabels(digest.FromString(fmt.Sprint("blob ", i)), below...)
		ref := labels[snapshots.LabelSnapshotRef]
		_, err := n.Prepare(t.Context(), fmt.Sprintf("%s/%d/extract", ns, i), parent, snapshots.WithLabels(labels))
		if !errdefs.IsAlreadyExists(err) {
			return fmt.Errorf("%s: layer %d: got %v, want already exists", ns, i, err)
		}
		parent, below = ref, []digest.Digest{digest.Digest(ref)}
	}
	return nil
}

// An image can put any label on its layers. No label may make an empty snapshot with the name of a
// layer with content.
func TestClaimHostile(t *testing.T) {
	blob := digest.FromString("blob")
	below := digest.FromString("below")
	popular := digest.FromString("a layer of a popular image")
	with := func(labels map[string]string, kv ...string) map[string]string {
		for i := 0; i < len(kv); i += 2 {
			if labels[kv[i]] = kv[i+1]; kv[i+1] == "" {
				delete(labels, kv[i])
			}
		}
		return labels
	}
	tests := []struct {
		name   string
		labels map[string]string
		parent string
	}{
		{name: "blob label on an ordinary layer", labels: with(blobLabels(blob),
			snapshots.LabelSnapshotDiffID, popular.String(), snapshots.LabelSnapshotRef, popular.String())},
		{name: "diffID is the blob's digest", labels: with(blobLabels(blob),
			snapshots.LabelSnapshotDiffID, blob.String(), snapshots.LabelSnapshotRef, blob.String())},
		{name: "no diffID", labels: with(blobLabels(blob),
			snapshots.LabelSnapshotDiffID, "", snapshots.LabelSnapshotRef, popular.String())},
		{name: "name of another chain", labels: with(blobLabels(blob), snapshots.LabelSnapshotRef, popular.String())},
		{name: "no blob", labels: with(blobLabels(blob), labelBlob, "")},
		{name: "no name", labels: with(blobLabels(blob), snapshots.LabelSnapshotRef, "")},
		{name: "another blob", labels: with(blobLabels(blob), labelBlob, popular.String())},
		{name: "blob is no digest", labels: with(blobLabels(blob), labelBlob, "sha256:../../x")},
		{name: "blob in upper case", labels: with(blobLabels(blob), labelBlob, strings.ToUpper(blob.String()))},
		{name: "second layer without a parent", labels: blobLabels(blob, below)},
		{name: "first layer on a parent", labels: blobLabels(blob), parent: "ns/1/" + below.String()},
		{name: "another parent", labels: blobLabels(blob, below), parent: "ns/1/" + popular.String()},
		{name: "another parent than a label says", labels: with(blobLabels(blob, below),
			labelParentChainID, below.String()), parent: popular.String()},
		{name: "parent without a chainID", labels: blobLabels(blob, below), parent: "ns/1/" + below.String() + "/x"},
		{name: "chainID of the parent is no digest", labels: blobLabels(blob, below), parent: "x" + below.String()},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			n := newNode(t, tree.Links)
			if test.parent != "" {
				n.layer(t, test.parent, "", func(string) {})
			}
			mounts, err := n.Prepare(t.Context(), "key", test.parent, snapshots.WithLabels(test.labels))
			if err != nil || len(mounts) != 1 {
				t.Fatalf("got %v, %v, want an ordinary active snapshot", mounts, err)
			}
			info, err := n.Stat(t.Context(), "key")
			if err != nil || info.Kind != snapshots.KindActive {
				t.Errorf("got %v, %v, want an active snapshot", info, err)
			}
			for k := range n.keys(t) {
				if k != "key" && k != test.parent {
					t.Errorf("snapshot %q was made", k)
				}
			}
		})
	}
}

// A snapshot that has the name but is not empty is left alone, and the layer is unpacked as usual.
func TestClaimTaken(t *testing.T) {
	n := newNode(t, Auto)
	labels := blobLabels(digest.FromString("blob"))
	ref := labels[snapshots.LabelSnapshotRef]
	n.layer(t, ref, "", func(dir string) { write(t, filepath.Join(dir, "f"), "x") })
	mounts, err := n.Prepare(t.Context(), "key", "", snapshots.WithLabels(labels))
	if err != nil || len(mounts) != 1 {
		t.Fatalf("got %v, %v, want an ordinary active snapshot", mounts, err)
	}
	if got, want := read(t, filepath.Join(n.view(t, ref), "f")), "x"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// A blob layer that was applied, not claimed, is also left out of mounts.
func TestMarkEmpty(t *testing.T) {
	n := newNode(t, Auto)
	mounts, err := n.Prepare(t.Context(), "key", "")
	if err != nil {
		t.Fatal(err)
	}
	id, err := n.Locate(t.Context(), mounts)
	if err != nil {
		t.Fatal(err)
	}
	stray := filepath.Join(n.upperDir(id), "f")
	write(t, stray, "x")
	if err := n.MarkEmpty(t.Context(), id); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("with a file: got %v, want failed precondition", err)
	}
	if err := os.Remove(stray); err != nil {
		t.Fatal(err)
	}
	if err := n.MarkEmpty(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if err := n.Commit(t.Context(), "blob", "key"); err != nil {
		t.Fatal(err)
	}
	if err := n.MarkEmpty(t.Context(), id); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("committed: got %v, want failed precondition", err)
	}
	if got, err := n.Prepare(t.Context(), "next", "blob"); err != nil || got[0].Type != "bind" {
		t.Errorf("mounts on a blob layer alone: got %v, %v, want a bind mount", got, err)
	}
	if err := n.MarkEmpty(t.Context(), "4711"); !errdefs.IsNotFound(err) {
		t.Errorf("unknown id: got %v, want not found", err)
	}
}

// A layer is identified by its name alone: containerd before 2.3 passes neither its diffID nor the
// chainID of the layer below. The parent has the name that a client chose, or that of a claim.
func TestClaimable(t *testing.T) {
	blob, below := digest.FromString("blob"), digest.FromString("below")
	for _, tt := range []struct {
		name   string
		labels map[string]string
		parent string
	}{
		{"first layer", blobLabels(blob), ""},
		{"on an ordinary layer", blobLabels(blob, below), "k8s.io/17/" + below.String()},
		{"on a blob layer", blobLabels(blob, below), below.String()},
	} {
		want := tt.labels[snapshots.LabelSnapshotRef]
		if got := remoteTarget(tt.labels, tt.parent); got != want {
			t.Errorf("%s: got %q, want %q", tt.name, got, want)
		}
		delete(tt.labels, snapshots.LabelSnapshotDiffID)
		if got := remoteTarget(tt.labels, tt.parent); got != want {
			t.Errorf("%s, without a diffID: got %q, want %q", tt.name, got, want)
		}
	}
}
