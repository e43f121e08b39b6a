package snapshotter

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/ballast-dev/ballast/snapshotter/tree"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"
)

// A parallelLayer is a layer of an image of which containerd unpacks several layers at a time.
type parallelLayer struct {
	diffID digest.Digest
	labels map[string]string     // additional ones
	fill   func(key, dir string) // does what the differ does; nil if the layer is to be staged
	chain  digest.Digest         // set by parallel
}

// prepareParallel prepares the layers of an image as containerd does when it unpacks several at a time:
// without parents.
func (n *node) prepareParallel(t *testing.T, ns string, layers []parallelLayer) {
	t.Helper()
	for i := range layers {
		l := &layers[i]
		l.chain = l.diffID
		labels := map[string]string{snapshots.LabelSnapshotDiffID: l.diffID.String()}
		for k, v := range l.labels {
			labels[k] = v
		}
		if i > 0 {
			l.chain = chainID(layers[i-1].chain, l.diffID)
			labels[labelParentChainID] = layers[i-1].chain.String()
		}
		labels[snapshots.LabelSnapshotRef] = l.chain.String()
		key := ns + "/extract-" + l.chain.String()
		mounts, err := n.Prepare(t.Context(), key, "", snapshots.WithLabels(labels))
		if i == 0 && l.fill == nil {
			if !errdefs.IsAlreadyExists(err) {
				t.Fatalf("first blob layer: got %v, want already exists", err)
			}
			continue
		}
		if err != nil || len(mounts) != 1 {
			t.Fatalf("layer %d: got %v, %v, want one mount", i, mounts, err)
		}
		if got, want := mounts[0].ReadOnly(), l.fill == nil; got != want {
			t.Errorf("layer %d: got %v, want read-only: %v", i, mounts, want)
		}
		again, err := n.Mounts(t.Context(), key)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(again, mounts); diff != "" {
			t.Errorf("layer %d: mounts asked for again (-got +want):\n%s", i, diff)
		}
		if l.fill != nil {
			id, err := n.Locate(t.Context(), mounts)
			if err != nil {
				t.Fatal(err)
			}
			l.fill(key, n.upperDir(id))
		}
	}
}

// commitParallel commits the layers in order and returns the name of the last one.
func (n *node) commitParallel(t *testing.T, ns string, layers []parallelLayer) (top string) {
	t.Helper()
	for i, l := range layers {
		name, parent := ns+"/"+l.chain.String(), top
		if top = name; i == 0 && l.fill == nil {
			top = l.chain.String() // it was claimed
			continue
		}
		var opts []snapshots.Opt
		if i > 0 {
			opts = append(opts, snapshots.WithParent(parent))
		}
		if err := n.Commit(t.Context(), name, ns+"/extract-"+l.chain.String(), opts...); err != nil {
			t.Fatal(err)
		}
		info, err := n.Stat(t.Context(), name)
		if err != nil || info.Parent != parent {
			t.Errorf("layer %d: got parent %q, %v, want %q", i, info.Parent, err, parent)
		}
	}
	return top
}

func blobLayer(d digest.Digest) parallelLayer {
	return parallelLayer{diffID: filetable.BlobDiffID(d), labels: map[string]string{labelBlob: d.String()}}
}

// A model on an ordinary layer, with blob layers between, in two namespaces and with a restart before
// the commits: each layer has the right parent, and the files of all layers are present.
func TestParallelModel(t *testing.T) {
	for _, way := range backends {
		t.Run(string(way), func(t *testing.T) {
			n := newNode(t, way)
			m := newModel().file("w", 0o644, []byte("weights"))
			base := parallelLayer{diffID: digestOf("base"), fill: func(_, dir string) { write(t, filepath.Join(dir, "base"), "b") }}
			show := parallelLayer{diffID: digestOf("table"), fill: func(key, _ string) { n.apply(t, key, m) }}
			for _, ns := range []string{"default/1", "k8s.io/2"} {
				for name, layers := range map[string][]parallelLayer{
					"model":  {blobLayer(digestOf("blob 0")), blobLayer(digestOf("blob 1")), blobLayer(digestOf("blob 2")), show},
					"on top": {base, blobLayer(digestOf("blob 1")), show},
				} {
					ns := ns + name
					n.prepareParallel(t, ns, layers)
					n.open(t, way)
					top := n.commitParallel(t, ns, layers)
					dir := n.view(t, top)
					if got := read(t, filepath.Join(dir, "w")); got != "weights" {
						t.Errorf("%s: got %q, want the weights", ns, got)
					}
					if _, err := os.Stat(filepath.Join(dir, "base")); (err == nil) != (name == "on top") {
						t.Errorf("%s: file of the lowest layer: %v", ns, err)
					}
					for i, l := range layers {
						if l.fill != nil || i == 0 {
							continue
						}
						info, err := n.Stat(t.Context(), ns+"/"+l.chain.String())
						if err != nil || info.Labels[labelShows] != showsNothing {
							t.Errorf("%s: layer %d: got labels %v, %v", ns, i, info.Labels, err)
						}
					}
				}
			}
		})
	}
}

// Whiteouts of a layer hide files of the layers below.
func TestParallelWhiteouts(t *testing.T) {
	n := newNode(t, tree.Links)
	layers := []parallelLayer{
		{diffID: digestOf("1"), fill: func(_, dir string) {
			for _, f := range []string{"kept", "gone", "changed"} {
				write(t, filepath.Join(dir, f), "first")
			}
		}},
		{diffID: digestOf("2"), fill: func(key, dir string) {
			// containerd does this with such a mount:
			// https://github.com/containerd/containerd/blob/v2.4.2/core/diff/apply/apply_linux.go
			mounts, err := n.Mounts(t.Context(), key)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(mounts, []mount.Mount{{Type: "overlay", Source: "overlay", Options: []string{"upperdir=" + dir}}}); diff != "" {
				t.Errorf("mounts (-got +want):\n%s", diff)
			}
			if err := unix.Mknod(filepath.Join(dir, "gone"), unix.S_IFCHR, 0); err != nil {
				t.Fatal(err)
			}
			write(t, filepath.Join(dir, "changed"), "second")
		}},
	}
	n.prepareParallel(t, "ns", layers)
	dir := n.view(t, n.commitParallel(t, "ns", layers))
	got := map[string]string{}
	for name := range list(t, dir) {
		if name != "." {
			got[name] = read(t, filepath.Join(dir, name))
		}
	}
	if diff := cmp.Diff(got, map[string]string{"kept": "first", "changed": "second"}); diff != "" {
		t.Errorf("files (-got +want):\n%s", diff)
	}
}

// A layer is not committed without the layers below.
func TestParallelWithoutParent(t *testing.T) {
	n := newNode(t, tree.Links)
	n.layer(t, "other", "", func(string) {})
	for name, l := range map[string]parallelLayer{
		"blob":     blobLayer(digestOf("blob")),
		"ordinary": {diffID: digestOf("2"), fill: func(string, string) {}},
	} {
		layers := []parallelLayer{{diffID: digestOf("1" + name), fill: func(string, string) {}}, l}
		n.prepareParallel(t, name, layers)
		for _, opts := range [][]snapshots.Opt{nil, {snapshots.WithParent("other")}} {
			err := n.Commit(t.Context(), "alone", name+"/extract-"+layers[1].chain.String(), opts...)
			if !errdefs.IsFailedPrecondition(err) {
				t.Errorf("%s on %d: got %v, want failed precondition", name, len(opts), err)
			}
		}
		n.commitParallel(t, name, layers)
	}
}

// An image whose first layer has the labels of a later layer gains nothing.
func TestParallelHostile(t *testing.T) {
	n := newNode(t, tree.Links)
	want, err := n.Prepare(t.Context(), "want", "")
	if err != nil {
		t.Fatal(err)
	}
	for i, below := range []string{digestOf("below").String(), digestOf("first").String(), "x"} {
		first := digestOf("first").String()
		got, err := n.Prepare(t.Context(), fmt.Sprint("key", i), "", snapshots.WithLabels(map[string]string{
			snapshots.LabelSnapshotRef: first, snapshots.LabelSnapshotDiffID: first, labelParentChainID: below,
		}))
		if err != nil || got[0].Type != want[0].Type || got[0].ReadOnly() {
			t.Errorf("%s: got %v, %v, want mounts such as %v", below, got, err, want)
		}
		if err := n.Commit(t.Context(), fmt.Sprint("name", i), fmt.Sprint("key", i)); err != nil {
			t.Error(err)
		}
	}
}
